"""Images resampled: the public functions."""
from ...host.front import Operation, public
from ...host.scalars import flag, ints
from ._resample_problem import make_resample

RESAMPLE_FWD = Operation("resample_fwd", operands=("x",), outputs=("y",),
                         problem=lambda *call, **more: make_resample("resample_fwd", *call, **more))
_resample_fwd = RESAMPLE_FWD.call
RESAMPLE_BWD = Operation("resample_bwd", operands=("dy",), outputs=("dx",),
                         problem=lambda *call, **more: make_resample("resample_bwd", *call, **more))
_resample_bwd = RESAMPLE_BWD.call


@public
def resample_fwd(x, size, *, mode="nearest", align_corners=False, layout="NCHW", antialias=False, out=None, workspace=None,
                 stream=None, **choice):
    """An image of another size.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        One to three spatial dimensions; float64, float32, float16 or bfloat16, arbitrary strides.
    size : int or tuple of int
        Extents of the result, one for all spatial dimensions or one for each.
    mode : str
        Along a dimension of n pixels that become m, place i of the result

        - "nearest": is pixel ``floor(i n / m)``; "nearest-exact": pixel ``floor((i + 1/2) n / m)``;
        - "bilinear", which is linear in one dimension and trilinear in three: lies at ``(i + 1/2) n / m - 1/2``, but not before pixel 0,
          and is a mixture of the two pixels round it;
        - "bicubic": lies there and is a mixture of four by Keys' cubic with A = -3/4, in each dimension;
        - "area": is the mean of the pixels from ``floor(i n / m)`` to before ``ceil((i + 1) n / m)``.
    align_corners : bool
        Places of "bilinear" and "bicubic" are ``i (n - 1) / (m - 1)``.
    layout : "NCHW" or "NHWC"
        Channels first or last, for any number of spatial dimensions.
    antialias : bool
        With "bilinear" and "bicubic", where m < n: pixels are weighted by a triangle, or by the cubic with A = -1/2, that is n / m times as
        wide and as Pillow has it, and the weights divided by their sum.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and dtype
        Computed in float32 (float64 for float64), rounded once. A pixel whose share is 0 does not count, infinities and NaN included.

    Raises
    ------
    ValueError
        Sizes of a wrong number, an image without pixels, modes, layouts, corners or antialias where they make no sense, an `out` of
        another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Places are computed in integers, without rounding; of several dimensions "bicubic", "area" and antialias are done one
    after the other where the algorithm is "axes", in float32 (float64 for float64) between. Mirrors cuDNN's Resample operation and
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
    """The gradient of `resample_fwd`: each pixel gathers what the places that it is a part of give it.

    Parameters
    ----------
    dy : array
        Gradient of `resample_fwd`'s result.
    x_shape : tuple of int
        Shape of its x.
    mode, align_corners, layout, antialias
        As in `resample_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dy is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework and dtype
        Of the shape `x_shape`; summed in float32 (float64 for float64) over the places in their order, rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `resample_fwd` does; ValueError too where dy does not fit x_shape.

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
