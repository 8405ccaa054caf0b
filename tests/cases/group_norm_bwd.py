"""Cases of group_norm_bwd, instance normalisation among them."""
from ._group_norm import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
