"""Cases of batch_norm_bwd."""
from ._batch_norm import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
