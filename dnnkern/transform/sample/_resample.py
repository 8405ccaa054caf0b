"""Images resampled: the public functions."""
from ...host.front import Operation, public
from ...host.last import of_images
from ...host.scalars import flag, ints
from ._resample_problem import make_resample

RESAMPLE_FWD = Operation("resample_fwd", operands=("x",), outputs=("y",),
                         problem=of_images(lambda *call, **more: make_resample("resample_fwd", *call, **more)))
_resample_fwd = RESAMPLE_FWD.call
RESAMPLE_BWD = Operation("resample_bwd", operands=("dy",), outputs=("dx",),
                         problem=of_images(lambda *call, **more: make_resample("resample_bwd", *call, **more)))
_resample_bwd = RESAMPLE_BWD.call


@public
def resample_fwd(x, size, *, mode="nearest", align_corners=False, layout="NCHW", antialias=False, out=None, workspace=None,
                 stream=None, **choice):
    """Resize an image.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        One to three spatial dimensions; float64, float32, float16 or bfloat16, arbitrary strides.
    size : int or tuple of int
        Extents of the result, one for all spatial dimensions or one for each.
    mode : str
        Along a dimension of n pixels resized to m, output i

        - "nearest": is pixel ``floor(i n / m)``; "nearest-exact": pixel ``floor((i + 1/2) n / m)``;
        - "bilinear" (linear in one dimension, trilinear in three): interpolates the two pixels around ``(i + 1/2) n / m - 1/2``, but not
        before
          pixel 0;
        - "bicubic": interpolates four pixels by Keys' cubic with A = -3/4, in each dimension;
        - "area": is the mean of the pixels from ``floor(i n / m)`` to before ``ceil((i + 1) n / m)``.
    align_corners : bool
        "bilinear" and "bicubic" sample at ``i (n - 1) / (m - 1)``.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    antialias : bool
        "bilinear" and "bicubic" with m < n: weight pixels by a triangle, or the cubic with A = -1/2, n / m times as wide, as Pillow does,
        and normalise the weights.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and dtype
        Computed in float32 (float64 for float64), rounded once. A pixel with weight 0 does not contribute, even if infinite or NaN.

    Raises
    ------
    ValueError
        A size of the wrong length, an image without pixels, an unknown mode or layout, align_corners or antialias with another mode, an
        `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Sample positions are computed in integers, without rounding. The algorithm "axes" computes "bicubic", "area" and
    antialias one dimension after the other, with float32 (float64 for float64) in between. Mirrors cuDNN's Resample operation and
    `torch.nn.functional.interpolate` without a scale_factor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[0, 4, 8]]], np.float32)
    >>> dnnkern.resample_fwd(x, 6)
    array([[[0., 0., 4., 4., 8., 8.]]], dtype=float32)
    >>> dnnkern.resample_fwd(x, 6, mode="bilinear")
    array([[[0., 1., 3., 5., 7., 8.]]], dtype=float32)
    >>> dnnkern.resample_fwd(x, 5, mode="bilinear", align_corners=True)
    array([[[0., 2., 4., 6., 8.]]], dtype=float32)
    >>> dnnkern.resample_fwd(x, 2, mode="area")
    array([[[2., 6.]]], dtype=float32)
    """
    parameters = (ints("resample_fwd", "size", size), mode, flag("resample_fwd", "align_corners", align_corners), layout,
                  flag("resample_fwd", "antialias", antialias))
    return _resample_fwd((x,), out, parameters, (), workspace, stream, choice)


@public
def resample_bwd(dy, x_shape, *, mode="nearest", align_corners=False, layout="NCHW", antialias=False, out=None, workspace=None,
                 stream=None, **choice):
    """The gradient of `resample_fwd`: each pixel gathers from the outputs to which it contributes.

    Parameters
    ----------
    dy : array
        Gradient of `resample_fwd`'s result.
    x_shape : tuple of int
        Shape of the forward's x.
    mode, align_corners, layout, antialias
        As in `resample_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dy is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework and dtype
        Of the shape `x_shape`; summed in float32 (float64 for float64) over the outputs in order, rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `resample_fwd`; also ValueError if dy does not fit x_shape.

    Notes
    -----
    Deterministic: no atomics. Mirrors cuDNN's Resample backward operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.resample_bwd(np.ones((1, 1, 6), np.float32), (1, 1, 3), mode="bilinear")
    array([[[2., 2., 2.]]], dtype=float32)
    """
    parameters = (ints("resample_bwd", "x_shape", x_shape), mode, flag("resample_bwd", "align_corners", align_corners), layout,
                  flag("resample_bwd", "antialias", antialias))
    return _resample_bwd((dy,), out, parameters, (), workspace, stream, choice)
