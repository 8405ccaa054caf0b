"""Cases of lrn_bwd."""
from ._lrn import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
