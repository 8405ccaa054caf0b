"""Cases of group_norm_fwd, instance normalisation among them."""
from ._group_norm import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
