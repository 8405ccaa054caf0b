"""PyTorch's gradient of affine_grid: a product of matrices."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch."""
    return make_peer(bind, "dtheta", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem."""
    import torch
    run, dgrid, size = torch.ops.aten.affine_grid_generator_backward, t["dgrid"], (p.grid.shape[0], 1, *p.grid.shape[1:-1])
    return lambda: run(dgrid, size, p.align_corners)
