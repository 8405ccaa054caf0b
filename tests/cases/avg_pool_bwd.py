"""Cases of avg_pool_bwd, with adaptive windows too."""
from ._pool import cases, large

CASES = cases("avg_pool_bwd")
LARGE = large("avg_pool_bwd")
