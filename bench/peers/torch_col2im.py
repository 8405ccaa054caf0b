"""torch.nn.functional.fold: two dimensions, channels first, equal padding on both sides."""
import torch.nn.functional as F

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks."""
    p = case.problem
    if p.layout != "NCHW" or len(p.window) != 2 or any(a != b for a, b in p.padding):
        return None
    return make_peer(_bind, "x", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    columns, padding, size = t["columns"], tuple(a for a, _ in p.padding), p.x.shape[2:]
    return lambda: F.fold(columns, size, p.window, p.dilation, padding, p.stride)
