"""Cases of sdpa_bwd."""
from ._sdpa_gradient import Backward
from ._sdpa_tables import large, table

CASES, LARGE = table(Backward), large(Backward)
