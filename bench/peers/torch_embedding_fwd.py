"""PyTorch's embedding: rows of a table by index, written where ours are, since memory that a call gets anew is still in the L2."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(into, "y", case, operands, clock)


def into(p, t):
    """The operator that embedding calls, with its result."""
    import torch
    weight, indices, y = t["weight"], t["indices"], t["y"]
    if not (indices.is_contiguous() and y.is_contiguous()):
        return plain_call_on(p, t)
    indices, y = indices.view(-1), y.view(-1, y.shape[-1])
    return lambda: torch.index_select(weight, 0, indices, out=y)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    import torch.nn.functional as F
    weight, indices = t["weight"], t["indices"]
    return lambda: F.embedding(indices, weight)
