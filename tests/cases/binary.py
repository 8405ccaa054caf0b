"""Cases of binary."""
from ._elementwise import LARGE_BINARY, Binary, binary_cases
from ._pointwise import check_large

CASES, LARGE = binary_cases(), LARGE_BINARY
BEYOND_INT32 = [Binary("2**31-row-add-bf16", (4097, 2 ** 19 + 1), "bfloat16", "add", b=(2 ** 19 + 1,))]


def check_beyond_int32(case, algo, allow):
    """Exactly, against torch."""
    check_large(case, algo, allow, lambda torch, a, b: a + b)
