"""PyTorch's gradients of grid_sample, with atomics."""
from ._torch_moves import NAME, make_peer  # noqa: F401


def make(case, operands, clock):
    """The case in PyTorch. It adds float16 to float16: a few places on one pixel, and its sums are a tenth off."""
    peer = make_peer(bind, ("dx", "dgrid"), case, operands, clock)
    if peer is not None and case.problem.dx.dtype == "float16":
        peer.tolerance = 0.15
    return peer


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem."""
    import torch

    from dnnkern.transform.sample._grid_problem import PADDINGS, SAMPLE_MODES
    run, ways = getattr(torch.ops.aten, f"grid_sampler_{p.dims}d_backward"), (SAMPLE_MODES.index(p.mode), PADDINGS.index(p.padding_mode))
    dy, x, grid = t["dy"], t["x"], t["grid"]
    return lambda: run(dy, x, grid, *ways, p.align_corners, [True, True])
