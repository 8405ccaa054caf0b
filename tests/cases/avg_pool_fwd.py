"""Cases of avg_pool_fwd, with adaptive windows too."""
from ._pool import cases, large

CASES = cases("avg_pool_fwd")
LARGE = large("avg_pool_fwd")
