"""PyTorch's own kernels."""
from ._torch_act import NAME, make_act_peer, plain_call  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None for what is no single kernel there."""
    return make_act_peer("y", case, operands, clock)
