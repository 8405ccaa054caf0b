"""PyTorch's sum over every dimension but the channels."""
import torch

from ._torch_conv import make_peer

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(NAME, _bind, case.problem, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    dy, db = t["dy"], t["db"]
    dims = list(range(dy.ndim - 1)) if p.layout == "NHWC" else [0, *range(2, dy.ndim)]
    return lambda: torch.sum(dy, dims, dtype=db.dtype, out=db)
