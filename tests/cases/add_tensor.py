"""Cases of add_tensor."""
from ._pointwise import check_large
from ._scaled import LARGE_ADD, Add, add_cases

CASES, LARGE = add_cases(), LARGE_ADD
BEYOND_INT32 = [Add("2**31-row-bf16", (4097, 2 ** 19 + 1), "bfloat16", a=(2 ** 19 + 1,), same=None)]


def check_beyond_int32(case, algo, allow):
    """Exactly, against torch."""
    check_large(case, algo, allow, lambda torch, a, c: case.alpha * a + case.beta * c)
