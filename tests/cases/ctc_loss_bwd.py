"""Cases of ctc_loss_bwd."""
from ._ctc import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
