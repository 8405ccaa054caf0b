"""Cases of mse_loss_bwd."""
from ._mse import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
