"""Cases of activation_fwd."""
from ._activation import Forward, cases, large
from ._pointwise import check_large

CASES, LARGE = cases(Forward, "activation_fwd"), large(Forward, "activation_fwd")
BEYOND_INT32 = [Forward("2**31-run-relu-bf16", (2 ** 31 + 3,), "bfloat16", "relu")]


def check_beyond_int32(case, algo, allow):
    """Exactly, against torch."""
    check_large(case, algo, allow, lambda torch, x: torch.relu(x))
