"""PyTorch's embedding."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    import torch.nn.functional as F
    weight, indices = t["weight"], t["indices"]
    return lambda: F.embedding(indices, weight)
