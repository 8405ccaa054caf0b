"""Cases of dropout_fwd."""
from ._dropout import Forward, beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = table(Forward), large(Forward), beyond(Forward)
