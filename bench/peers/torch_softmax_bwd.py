"""PyTorch's gradients of softmax and log_softmax."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "dx", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem, into its result."""
    import torch
    dy, y, dx = t["dy"], t["y"], t["dx"]
    run = torch.ops.aten._log_softmax_backward_data if p.log else torch.ops.aten._softmax_backward_data
    return lambda: run.out(dy, y, p.axis, dy.dtype, **{"out" if p.log else "grad_input": dx})
