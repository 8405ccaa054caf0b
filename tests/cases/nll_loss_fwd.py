"""Cases of nll_loss_fwd."""
from ._nll import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
