"""Cases of resample_bwd."""
from ._resample import beyond_int32, check_beyond_int32, large_cases, resample_cases  # noqa: F401

CASES, LARGE, BEYOND_INT32 = resample_cases("resample_bwd"), large_cases("resample_bwd"), beyond_int32("resample_bwd")
