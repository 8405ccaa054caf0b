"""Cases of clip_grad_norm."""
from ._grad_norm import beyond, check_beyond_int32, large, table  # noqa: F401

CASES, LARGE, BEYOND_INT32 = (make("clip_grad_norm") for make in (table, large, beyond))
