"""PyTorch's softmax and log_softmax."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem, into its result."""
    import torch
    x, y = t["x"], t["y"]
    if p.log:
        return lambda: torch.log_softmax(x, p.axis, out=y)
    return lambda: torch.softmax(x, p.axis, out=y)
