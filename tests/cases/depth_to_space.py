"""Cases of depth_to_space."""
from ._blocks import beyond_int32, blocks_cases, check_beyond_int32, large_cases  # noqa: F401

CASES, LARGE, BEYOND_INT32 = blocks_cases("depth_to_space"), large_cases("depth_to_space"), beyond_int32("depth_to_space")
