"""PyTorch's copy of a view; what runs backwards, which views cannot, is flipped by a second kernel."""
import torch

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(_bind, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    x, y = t["x"], t["y"]
    flipped = [k for k, step in enumerate(p.steps) if step < 0]
    slices = []
    for n, start, step in zip(p.y.shape, p.starts, p.steps):
        low = start + (n - 1) * step if step < 0 else start
        slices.append(slice(low, low + (n - 1) * abs(step) + 1, abs(step)))
    part = x[tuple(slices)]
    if not flipped:
        return lambda: y.copy_(part)
    return lambda: y.copy_(torch.flip(part, flipped))
