"""cuDNN's attention, through PyTorch."""
from torch.nn.attention import SDPBackend

from ._torch_attention import forward_call, make_peer

NAME = "cudnn"


def make(case, operands, clock):
    """The case by cuDNN; None where it has no kernel."""
    return make_peer(NAME, SDPBackend.CUDNN_ATTENTION, case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return forward_call(SDPBackend.CUDNN_ATTENTION, case.problem, arrays)
