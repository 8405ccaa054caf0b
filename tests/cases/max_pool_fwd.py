"""Cases of max_pool_fwd, with adaptive windows too."""
from ._pool import cases, large
from ._pool_programs import program_cases

CASES = cases("max_pool_fwd") + program_cases("max_pool_fwd")
LARGE = large("max_pool_fwd")
