"""Cases of batch_norm_bwd_apply."""
from ._batch_norm import Apply, large, table

CASES, LARGE = table(Apply), large(Apply)
