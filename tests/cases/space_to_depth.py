"""Cases of space_to_depth."""
from ._blocks import beyond_int32, blocks_cases, check_beyond_int32, large_cases  # noqa: F401

CASES, LARGE, BEYOND_INT32 = blocks_cases("space_to_depth"), large_cases("space_to_depth"), beyond_int32("space_to_depth")
