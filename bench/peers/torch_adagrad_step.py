"""PyTorch's Adagrad through lists."""
from ._torch_optim import foreach, lists_of, make_peer

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(NAME, foreach, case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return foreach(case.problem, lists_of(case.problem, arrays))
