"""The backward pass of PyTorch's mse_loss: the operator that autograd runs."""
from ._torch_moves import NAME, make_peer  # noqa: F401

_REDUCTION = {"none": 0, "mean": 1, "sum": 2}


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "dx", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem."""
    import torch
    x, target, dloss, run = t["x"], t["target"], t["dloss"].to(t["x"].dtype), torch.ops.aten.mse_loss_backward
    return lambda: run(dloss, x, target, _REDUCTION[p.reduction])
