"""Cases of mse_loss_fwd."""
from ._mse import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
