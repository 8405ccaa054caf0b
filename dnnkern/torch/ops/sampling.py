"""Images sampled at the points of a grid."""
import dnnkern

from .._table import Refused, aten
from .._tensors import one_dtype

_MODES = "bilinear", "nearest", "bicubic"
_PADDINGS = "zeros", "border", "reflection"


def _options(x, grid, mode, padding, align_corners):
    one_dtype(x, grid)
    if x.numel() == 0 or grid.numel() == 0:
        raise Refused("no elements")
    return {"mode": _MODES[mode], "padding_mode": _PADDINGS[padding], "align_corners": align_corners}


@aten("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(x, grid, mode, padding, align_corners):
    """``grid_sample_fwd``."""
    return dnnkern.grid_sample_fwd(x, grid, **_options(x, grid, mode, padding, align_corners))


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(dy, x, grid, mode, padding, align_corners, mask):
    """``grid_sample_bwd``."""
    one_dtype(x, dy)
    dx, dgrid = dnnkern.grid_sample_bwd(dy, x, grid, **_options(x, grid, mode, padding, align_corners))
    return dx if mask[0] else None, dgrid if mask[1] else None
