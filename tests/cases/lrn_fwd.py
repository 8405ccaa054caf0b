"""Cases of lrn_fwd."""
from ._lrn import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
