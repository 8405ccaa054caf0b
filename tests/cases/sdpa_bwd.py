"""Cases of sdpa_bwd."""
from ._sdpa import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
