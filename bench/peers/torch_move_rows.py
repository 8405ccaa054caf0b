"""PyTorch's index_select and index_copy_."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    x, y, source, target = t["x"], t["y"], t.get("source"), t.get("target")
    if target is None:
        return lambda: x.index_select(0, source)
    target = target.long()
    if source is None:
        some = x[:p.count]
        return lambda: y.index_copy_(0, target, some)
    return lambda: y.index_copy_(0, target, x.index_select(0, source))
