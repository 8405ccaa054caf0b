"""PyTorch's attention: FlashAttention 2, or for float32 and float64, which that lacks, what it has."""
from torch.nn.attention import SDPBackend

from ._torch_attention import forward_call, make_peer

NAME = "torch"
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def make(case, operands, clock):
    """The case in PyTorch, by the first of its backends that can."""
    return next((peer for b in BACKENDS if (peer := make_peer(NAME, b, case, operands, clock))), None)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return forward_call(BACKENDS, case.problem, arrays)
