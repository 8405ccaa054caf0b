"""Cases of max_pool_bwd, with adaptive windows too."""
from ._pool import cases, large

CASES = cases("max_pool_bwd")
LARGE = large("max_pool_bwd")
