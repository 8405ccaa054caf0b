"""PyTorch's reductions; the largest magnitude and sums of squares are two of its operations."""
import torch

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch; None for what it has no function for."""
    p = case.problem
    of_several = p.mode == "mul" and 1 < len(p.axes) < len(p.x.shape)  # torch.prod takes one dimension or all
    return None if p.mode == "mul_no_zeros" or of_several else make_peer(_bind, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    x, y, dims, keep = t["x"], t["y"], list(p.axes), p.keepdims
    norm = torch.linalg.vector_norm
    calls = {"add": lambda: torch.sum(x, dims, keepdim=keep, out=y), "avg": lambda: torch.mean(x, dims, keepdim=keep, out=y),
             "min": lambda: torch.amin(x, dims, keepdim=keep, out=y), "max": lambda: torch.amax(x, dims, keepdim=keep, out=y),
             "amax": lambda: norm(x, float("inf"), dims, keepdim=keep, out=y), "norm1": lambda: norm(x, 1, dims, keepdim=keep, out=y),
             "norm2": lambda: norm(x, 2, dims, keepdim=keep, out=y), "sum_square": lambda: norm(x, 2, dims, keepdim=keep, out=y).square_(),
             "logsumexp": lambda: torch.logsumexp(x, dims, keepdim=keep, out=y)}
    if p.mode == "mul":
        if len(dims) == x.ndim:
            return lambda: y.copy_(torch.prod(x).reshape(y.shape))
        return lambda: torch.prod(x, dims[0], keepdim=keep, out=y)
    return calls[p.mode]
