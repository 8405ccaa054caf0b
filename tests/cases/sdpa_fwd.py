"""Cases of sdpa_fwd."""
from ._sdpa import Forward
from ._sdpa_tables import beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = table(Forward), large(Forward), beyond(Forward)
