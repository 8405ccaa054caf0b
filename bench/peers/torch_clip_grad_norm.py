"""PyTorch's clipping of gradients."""
from ._torch_optim import clip, lists_of, make_norm_peer

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_norm_peer(clip, case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return clip(case.problem, lists_of(case.problem, arrays))
