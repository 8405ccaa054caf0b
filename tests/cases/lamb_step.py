"""Cases of lamb_step."""
from ._optim import beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = (make("lamb_step") for make in (table, large, beyond))
