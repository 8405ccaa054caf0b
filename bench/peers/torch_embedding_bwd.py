"""The gradient of PyTorch's embedding: the operator that autograd runs."""
import torch

from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "dweight", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    dy, indices, run = t["dy"], t["indices"], torch.ops.aten.embedding_dense_backward
    return lambda: run(dy, indices, p.table.shape[0], p.padding_idx, p.scale_grad_by_freq)
