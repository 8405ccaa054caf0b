"""Cases of cross_entropy_bwd."""
from ._cross_entropy import Backward, beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = table(Backward), large(Backward), beyond(Backward)
