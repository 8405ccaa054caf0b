"""PyTorch's borders: of the last dimensions, of one to three of them where they are not a value."""
import torch.nn.functional as F

from ._torch_moves import NAME, make_peer  # noqa: F401

MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}


def make(case, operands, clock):
    """The case in PyTorch; None where its borders are not those that it has."""
    p = case.problem
    if p.mode != "constant" and not padded_dims(p) < p.x.ndim <= 5:
        return None
    return make_peer(_bind, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def padded_dims(p):
    """How many of the last dimensions there are from the first one that has a border."""
    return len(p.pads) - next((k for k, some in enumerate(p.pads) if any(some)), len(p.pads))


def _bind(p, t):
    x, count = t["x"], max(padded_dims(p), 1)
    flat = [v for some in reversed(p.pads[len(p.pads) - count:]) for v in some]
    if p.mode == "constant":
        return lambda: F.pad(x, flat, value=1.0)
    return lambda: F.pad(x, flat, mode=MODES[p.mode])
