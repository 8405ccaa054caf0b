"""Cases of ctc_loss_fwd."""
from ._ctc import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
