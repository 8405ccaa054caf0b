"""Images resized, and their gradients."""
import functools

import numpy as np

import dnnkern

from .._table import Refused, aten, nothing
from .._tensors import layout_of, one_dtype

# This library's mode -> names of PyTorch's operators with that of one dimension first, whether `align_corners` is among the arguments.
_NAMES = {"nearest": ((1, "upsample_nearest1d"), (2, "upsample_nearest2d"), (3, "upsample_nearest3d")),
          "nearest-exact": ((1, "_upsample_nearest_exact1d"), (2, "_upsample_nearest_exact2d"), (3, "_upsample_nearest_exact3d")),
          "bilinear": ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")),
          "bicubic": ((2, "upsample_bicubic2d"),)}
_ANTIALIASED = {"bilinear": ((2, "_upsample_bilinear2d_aa"),), "bicubic": ((2, "_upsample_bicubic2d_aa"),)}


@functools.lru_cache(1 << 12)
def _check(mode, image, size, scales):
    """Refuse images whose pixels PyTorch's kernels find elsewhere: by a scale that is not the ratio of the extents, or, of nearest pixels,
    because they round positions to float32."""
    for n, m, scale in zip(image, size, scales or (None,) * len(size)):
        if scale is not None and n * scale != m:
            raise Refused(f"the scale {scale} of {n} pixels to {m}")
        if mode.startswith("nearest") and m not in (n, 2 * n):
            i, half = np.arange(m, dtype=np.int64), int(mode != "nearest")
            theirs = np.floor((i.astype(np.float32) + np.float32(half / 2)) * (np.float32(n) / np.float32(m)))
            if not np.array_equal(np.minimum(theirs.astype(np.int64), n - 1), (2 * i + half) * n // (2 * m)):
                raise Refused(f"{n} pixels to {m}: PyTorch rounds positions")


def _options(x, dims, image, size, mode, antialias, corners, scales):
    one_dtype(x)
    if x.dim() != dims + 2 or x.numel() == 0 or 0 in size or 0 in image:
        raise Refused(f"a tensor of shape {tuple(x.shape)} to {tuple(size)}")
    if not corners:
        _check(mode, tuple(image), tuple(size), scales)
    return {"mode": mode, "antialias": antialias, "align_corners": corners, "layout": layout_of(x)}


def _corners(takes, more):
    """(align_corners, scales) of the last arguments."""
    return (more[0], more[1:]) if takes else (False, more)


def _forward(dims, mode, antialias, takes, x, size, *more):
    corners, scales = _corners(takes, more)
    return dnnkern.resample_fwd(x, tuple(size), **_options(x, dims, x.shape[2:], size, mode, antialias, corners, scales))


def _backward(dims, mode, antialias, takes, dy, size, shape, *more):
    corners, scales = _corners(takes, more)
    return dnnkern.resample_bwd(dy, tuple(shape), **_options(dy, dims, shape[2:], size, mode, antialias, corners, scales))


for _antialias, _modes in ((False, _NAMES), (True, _ANTIALIASED)):
    for _mode, _operators in _modes.items():
        for _dims, _name in _operators:
            _given = _dims, _mode, _antialias, not _mode.startswith("nearest")
            aten(_name, state=nothing)(functools.update_wrapper(functools.partial(_forward, *_given), _forward))
            aten(f"{_name}_backward", state=nothing)(functools.update_wrapper(functools.partial(_backward, *_given), _backward))
