"""Resizing and sampling of images."""
import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS
from .pointwise import only


@rule("Resize", (10, 11, 13, 18, 19), "`resample_fwd`")
def resize(node, x, *given):
    """Modes whose positions are this library's; others are ONNX's evaluator's."""
    if node.version == 10:
        return upsample(node, x, *given)
    only((x,), FLOATS)
    _, scales, sizes = (*given, None, None, None)[:3]
    axes = [k % x.ndim for k in node.attribute("axes") or range(x.ndim)]
    scale, size = [1.0] * x.ndim, list(x.shape)
    if sizes is not None and sizes.size:
        if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Refused("keep_aspect_ratio_policy")
        for axis, n in zip(axes, sizes.ints()):
            scale[axis], size[axis] = n / x.shape[axis], n
    else:
        for axis, s in zip(axes, scales.host()):
            scale[axis], size[axis] = float(s), int(np.floor(x.shape[axis] * s))
    mode, where = node.attribute("mode", "nearest"), node.attribute("coordinate_transformation_mode", "half_pixel")
    return _resized(node, x, scale, size, mode, where, node.attribute("nearest_mode", "round_prefer_floor"))


@rule("Upsample", (7, 9), "`resample_fwd`")
def upsample(node, x, scales=None):
    """Before opset 11: positions are rounded down."""
    only((x,), FLOATS)
    scale = node.attribute("scales") if scales is None else [float(s) for s in scales.host()]
    size = [int(np.floor(n * s)) for n, s in zip(x.shape, scale)]
    return _resized(node, x, scale, size, node.attribute("mode", "nearest"), "asymmetric", "floor")


def _resized(node, x, scale, size, mode, where, rounding):
    """x resized along its last dimensions, by one of `resample_fwd`'s modes."""
    changed = [k for k, (s, n, m) in enumerate(zip(scale, x.shape, size)) if s != 1 or n != m]
    if not changed:
        return x
    first = max(min(changed), x.ndim - 3)
    if min(changed) < first or 0 in size:
        raise Refused(f"sizes {size} of x {x.shape}")
    pairs = [(x.shape[k], size[k]) for k in range(first, x.ndim)]
    if any(abs(scale[k] * x.shape[k] - size[k]) > 1e-4 * size[k] for k in changed):  # positions go by the scale, not by the sizes
        raise Refused(f"scales {scale}, which give no whole sizes")
    options = {"align_corners": where == "align_corners" and mode != "nearest"}
    if mode == "nearest":
        resampling = _nearest(pairs, where, rounding)
    elif mode in ("linear", "bilinear", "cubic"):
        halves = where == "half_pixel" or where == "pytorch_half_pixel" and all(m > 1 for _, m in pairs) or \
            where == "half_pixel_symmetric"
        if not halves and where != "align_corners" or any(m == 1 for _, m in pairs) and where == "align_corners":
            raise Refused(f"coordinate_transformation_mode {where!r}")
        if mode == "cubic" and (node.attribute("cubic_coeff_a", -0.75) != -0.75 or node.attribute("exclude_outside", 0)):
            raise Refused("cubic_coeff_a or exclude_outside")
        if node.attribute("antialias", 0):
            raise Refused("antialias")
        resampling = "bicubic" if mode == "cubic" else "bilinear"
    else:
        raise Refused(f"mode {mode!r}")
    images = x.reshape(1, int(np.prod(x.shape[:first])), *x.shape[first:])
    return node.call("resample_fwd", images, tuple(size[first:]), mode=resampling, **options).reshape(*size)


def _nearest(pairs, where, rounding):
    """The mode whose pixels these are."""
    if where == "asymmetric" and rounding == "floor":
        return "nearest"
    if where in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and (where[0] == "h" or all(m > 1 for _, m in pairs)):
        if rounding == "round_prefer_ceil":
            return "nearest-exact"
        # Both ways of rounding agree where no position is in the middle of two pixels.
        if rounding == "round_prefer_floor" and not any((2 * i + 1) * n % (2 * m) == 0 for n, m in pairs for i in range(m)):
            return "nearest-exact"
    raise Refused(f"nearest_mode {rounding!r} with {where!r}")


@rule("GridSample", (16, 20, 22), "`grid_sample_fwd`")
def grid_sample(node, x, grid):
    """PyTorch's."""
    only((x, grid), FLOATS)
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(node.attribute("mode", "bilinear"), node.attribute("mode", "bilinear"))
    return node.call("grid_sample_fwd", x, grid, mode=mode, padding_mode=node.attribute("padding_mode", "zeros"),
                     align_corners=bool(node.attribute("align_corners", 0)))


@rule("AffineGrid", (20,), "`affine_grid_fwd`")
def affine_grid(node, theta, size):
    """PyTorch's."""
    only((theta,), FLOATS)
    return node.call("affine_grid_fwd", theta, tuple(size.ints()), align_corners=bool(node.attribute("align_corners", 0)))
