"""PyTorch's affine_grid."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(bind, "grid", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem."""
    import torch.nn.functional as F
    theta, size = t["theta"], (p.grid.shape[0], 1, *p.grid.shape[1:-1])
    return lambda: F.affine_grid(theta, size, align_corners=p.align_corners)
