"""PyTorch's gradients of attention: FlashAttention 2, or for float32 and float64, which that lacks, what it has."""
from ._torch_attention import backward_call, make_peer
from .torch_sdpa_fwd import BACKENDS, NAME


def make(case, operands, clock):
    """The case in PyTorch, by the first of its backends that can."""
    return next((peer for b in BACKENDS if (peer := make_peer(NAME, b, case, operands, clock))), None)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return backward_call(BACKENDS, case.problem, arrays)
