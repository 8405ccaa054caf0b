"""Cases of rope_fwd."""
from ._rope import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
