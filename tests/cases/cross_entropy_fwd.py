"""Cases of cross_entropy_fwd."""
from ._cross_entropy import Forward, beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = table(Forward), large(Forward), beyond(Forward)
