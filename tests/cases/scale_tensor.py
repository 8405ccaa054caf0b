"""Cases of scale_tensor."""
from ._pointwise import check_large
from ._scaled import LARGE_SCALE, Scale, scale_cases

CASES, LARGE = scale_cases(), LARGE_SCALE
BEYOND_INT32 = [Scale("2**31-bf16", (2 ** 31 + 9,), "bfloat16", same=None)]


def check_beyond_int32(case, algo, allow):
    """Exactly, against torch."""
    check_large(case, algo, allow, lambda torch, x: case.alpha * x)
