"""Cases of nll_loss_bwd."""
from ._nll import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
