"""Cases of max_pool_fwd, with adaptive windows too."""
from ._pool import cases, large

CASES = cases("max_pool_fwd")
LARGE = large("max_pool_fwd")
