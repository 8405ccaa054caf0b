"""Cases of batch_norm_infer."""
from ._batch_norm import Infer, large, table

CASES, LARGE = table(Infer), large(Infer)
