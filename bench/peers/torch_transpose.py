"""PyTorch's copy of a permuted view, which is what ``x.permute(axes).contiguous()`` runs."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(_bind, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    x, y = t["x"].permute(p.axes), t["y"]
    return lambda: y.copy_(x)
