"""Cases of resample_fwd."""
from ._resample import beyond_int32, check_beyond_int32, large_cases, resample_cases  # noqa: F401

CASES, LARGE, BEYOND_INT32 = resample_cases("resample_fwd"), large_cases("resample_fwd"), beyond_int32("resample_fwd")
