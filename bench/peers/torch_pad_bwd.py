"""PyTorch's gradients of borders: a view's copy where they are a value, else of one to three of the last dimensions."""
import torch
import torch.nn.functional as F

from ._torch_moves import NAME, make_peer  # noqa: F401
from .torch_pad import padded_dims

KINDS = {"edge": "replication", "reflect": "reflection"}


def make(case, operands, clock):
    """The case in PyTorch; None where its borders are not those that it has."""
    p = case.problem
    if p.mode != "constant" and not (padded_dims(p) <= 3 and padded_dims(p) < p.dx.ndim <= padded_dims(p) + 2):
        return None
    return make_peer(_bind, "dx", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    dy, dx, count = t["dy"], t["dx"], max(padded_dims(p), 1)
    flat = [v for some in reversed(p.pads[len(p.pads) - count:]) for v in some]
    if p.mode == "constant":
        return lambda: F.pad(dy, [-v for v in flat])
    gradient = getattr(torch.ops.aten, f"{KINDS[p.mode]}_pad{count}d_backward")
    return lambda: gradient(dy, dx, flat)
