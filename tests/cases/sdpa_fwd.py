"""Cases of sdpa_fwd."""
from ._sdpa import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
