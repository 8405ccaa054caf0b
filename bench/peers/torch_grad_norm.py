"""PyTorch's norm of gradients: a norm of each array, and that of these."""
from ._torch_optim import lists_of, make_norm_peer, norm

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_norm_peer(norm, case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return norm(case.problem, lists_of(case.problem, arrays))
