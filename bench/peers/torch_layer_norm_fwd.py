"""PyTorch's layer norm, which gives mean and rstd as well."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(plain_call_on, "y", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem; the first of its results is compared."""
    import torch
    x, gamma, beta, shape = t["x"], t["gamma"], t["beta"], list(p.x.shape[p.axis:])
    return lambda: torch.native_layer_norm(x, shape, gamma, beta, 1e-5)[0]
