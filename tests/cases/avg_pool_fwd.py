"""Cases of avg_pool_fwd, with adaptive windows too."""
from ._pool import cases, large
from ._pool_programs import program_cases

CASES = cases("avg_pool_fwd") + program_cases("avg_pool_fwd")
LARGE = large("avg_pool_fwd")
