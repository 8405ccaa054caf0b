"""Pooling: maxima and averages over a window, and over as many windows as are asked for."""
import functools

from ..host.choices import dtype_of
from ..host.front import Operation, public
from ..host.last import of_images
from ..host.scalars import flag, integer, ints, shown
from ..host.window import windows
from ._problem import (INDEX_DTYPES, PoolProblem, check_index, make_adaptive_backward, make_adaptive_forward, make_backward, make_forward)

__all__ = ["PoolProblem", "adaptive_avg_pool_bwd", "adaptive_avg_pool_fwd", "adaptive_max_pool_bwd", "adaptive_max_pool_fwd",
           "avg_pool_bwd", "avg_pool_fwd", "max_pool_bwd", "max_pool_fwd"]


def _bound(make, *first):
    """A maker of problems with its first arguments given, which still says where it is from."""
    return of_images(functools.wraps(make)(functools.partial(make, *first)))


# An operation with an index comes before the one without: the first of an op is what `find` takes for problems of either kind.

def _maxima(make, function):
    """{want_index: Operation} of max_pool_fwd's problems."""
    def operation(want):
        return Operation("max_pool_fwd", operands=("x",), outputs=("y", "index") if want else ("y",), function=function,
                         problem=_bound(make, "max_pool_fwd", want))
    return {want: operation(want) for want in (True, *INDEX_DTYPES, False)}


_max = _maxima(make_forward, "max_pool_fwd")
MAX_FWD = _max[True]
MAX_BWD = Operation("max_pool_bwd", operands=("dy", "index"), outputs=("dx",), problem=_bound(make_backward, "max_pool_bwd"),
                    check_values=check_index)
_max_bwd = MAX_BWD.call
AVG_FWD = Operation("avg_pool_fwd", operands=("x",), outputs=("y",), problem=_bound(make_forward, "avg_pool_fwd", False))
_avg = AVG_FWD.call
AVG_BWD = Operation("avg_pool_bwd", operands=("dy",), outputs=("dx",), problem=_bound(make_backward, "avg_pool_bwd"))
_avg_bwd = AVG_BWD.call
_adaptive_max = _maxima(make_adaptive_forward, "adaptive_max_pool_fwd")
_adaptive_max_bwd = Operation("max_pool_bwd", operands=("dy", "index"), outputs=("dx",), function="adaptive_max_pool_bwd",
                              problem=_bound(make_adaptive_backward, "max_pool_bwd"), check_values=check_index).call
_adaptive_avg = Operation("avg_pool_fwd", operands=("x",), outputs=("y",), function="adaptive_avg_pool_fwd",
                          problem=_bound(make_adaptive_forward, "avg_pool_fwd", False)).call
_adaptive_avg_bwd = Operation("avg_pool_bwd", operands=("dy",), outputs=("dx",), function="adaptive_avg_pool_bwd",
                              problem=_bound(make_adaptive_backward, "avg_pool_bwd")).call


def _wanted(function, return_index, index_dtype):
    """The key of the maxima of a call."""
    if not flag(function, "return_index", return_index):
        if index_dtype is not None:
            raise ValueError(f"{function}: index_dtype={shown(index_dtype)} without return_index=True")
        return False
    if index_dtype is None:
        return True
    return dtype_of(function, "index_dtype", index_dtype, INDEX_DTYPES)


def _divisor(function, divisor):
    """The divisor of all averages of a call, or None."""
    return divisor if divisor is None else integer(function, "divisor", divisor, 1, 2 ** 31 - 1)


@public
def max_pool_fwd(x, window, *, stride=None, padding=0, dilation=1, ceil_mode=False, layout="NCHW", return_index=False, index_dtype=None,
                 out=None, workspace=None, stream=None, **choice):
    """Maximum over each pooling window: ``y[n, c, p, q] = max over (r, s) of x[n, c, p*u - a + r*d, q*v - b + s*e]``.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        One to three spatial dimensions; float64, float32, float16 or bfloat16; arbitrary strides.
    window : int, tuple of int or None
        Extents of the window. Like the next three, one value for all spatial dimensions or one for each. None: the whole image.
    stride : int, tuple of int or None
        Pixels between neighbouring windows; None: the window.
    padding : int, tuple of int, or tuple of (before, after)
        Pixels around the image, which are never the maximum. Padding may exceed the window.
    dilation : int or tuple of int
        Pixels between taps.
    ceil_mode : bool
        Also include windows that extend past the padded image, except those that would start in the trailing padding.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    return_index : bool
        Also return the positions of the maxima, for `max_pool_bwd`.
    index_dtype : "int32", "int64" or None
        Of the index: PyTorch's is int64, int32 takes half the memory. None: that of out's index, int32 without `out`.
    out : array, or with `return_index` a tuple (y, index)
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array of x's framework and dtype
        NaN if the window contains one, -inf if it covers only padding.
    index : array of `index_dtype`, with `return_index`
        Of y's shape: the flat position of the maximum in the spatial extent. Of equal maxima the first in tap order; the first NaN, if
        there is one; -1 if the window covers no pixel.

    Raises
    ------
    ValueError
        A window that does not fit the padded image, parameters of the wrong length or out of range, an `out` that overlaps x, an image
        of 2**31 pixels or more without an index of int64, `index_dtype` without `return_index`.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cudnnPoolingForward with CUDNN_POOLING_MAX and CUDNN_PROPAGATE_NAN, and cuDNN's resampling with
    an index, and `torch.nn.functional.max_pool2d`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[[1, 5, 2], [7, 0, 7], [3, 4, 6]]]], np.float32)
    >>> dnnkern.max_pool_fwd(x, 2, stride=1)[0, 0]
    array([[7., 7.],
           [7., 7.]], dtype=float32)
    >>> y, index = dnnkern.max_pool_fwd(x, 2, stride=1, return_index=True)
    >>> index[0, 0]
    array([[3, 5],
           [3, 5]], dtype=int32)

    PyTorch's index:

    >>> dnnkern.max_pool_fwd(x, 2, stride=1, return_index=True, index_dtype="int64")[1].dtype
    dtype('int64')
    """
    wanted = _wanted("max_pool_fwd", return_index, index_dtype)
    f = "max_pool_fwd"
    parameters = *windows(f, window, stride, padding, dilation), flag(f, "ceil_mode", ceil_mode), False, None, layout
    return _max[wanted].call((x,), out, parameters, (), workspace, stream, choice)


@public
def max_pool_bwd(dy, index, x_shape, window, *, stride=None, padding=0, dilation=1, ceil_mode=False, layout="NCHW", out=None,
                 workspace=None, stream=None, **choice):
    """The gradient of `max_pool_fwd`: each pixel receives the gradients of the windows whose maximum it was.

    Parameters
    ----------
    dy : array
        Gradient of `max_pool_fwd`'s result; float64, float32, float16 or bfloat16; arbitrary strides.
    index : array of int32 or int64
        As returned by `max_pool_fwd`, or by PyTorch. An index outside its window has no effect.
    x_shape : tuple of int
        Shape of the image.
    window, stride, padding, dilation, ceil_mode, layout
        As in `max_pool_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dy or index is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of dy's framework and dtype
        Summed in float32 (float64 for float64) over the windows in order, and rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `max_pool_fwd`; also ValueError if dy or index does not match x_shape, and with ``DNNKERN_CHECK=values`` if an index is not a
        pixel of the image.

    Notes
    -----
    Deterministic: a gather, without atomics. Mirrors cudnnPoolingBackward with
    CUDNN_POOLING_MAX_DETERMINISTIC.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, index = dnnkern.max_pool_fwd(np.array([[[3, 1, 2, 2]]], np.float32), 2, stride=1, return_index=True)
    >>> dnnkern.max_pool_bwd(np.array([[[1, 2, 4]]], np.float32), index, (1, 1, 4), 2, stride=1)
    array([[[1., 0., 6., 0.]]], dtype=float32)
    """
    f = "max_pool_bwd"
    parameters = (ints(f, "x_shape", x_shape), *windows(f, window, stride, padding, dilation), flag(f, "ceil_mode", ceil_mode), False,
                  None, layout)
    return _max_bwd((dy, index), out, parameters, (), workspace, stream, choice)


@public
def avg_pool_fwd(x, window, *, stride=None, padding=0, dilation=1, ceil_mode=False, count_include_pad=False, divisor=None, layout="NCHW",
                 out=None, workspace=None, stream=None, **choice):
    """Average over each pooling window.

    Parameters
    ----------
    x, window, stride, padding, dilation, ceil_mode, layout
        As in `max_pool_fwd`; here the padding is zeros.
    count_include_pad : bool
        Whether the divisor counts taps in the padding too, or only those in the image. Taps past the padded image never count.
    divisor : int or None
        Divides every sum, whatever taps count; from 1 to 2**31 - 1.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array of x's framework and dtype
        Summed in float32 (float64 for float64), rounded once; 0 if nothing is counted.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `max_pool_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnPoolingForward with CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING or ..._EXCLUDE_PADDING, and
    `torch.nn.functional.avg_pool2d`, whose default counts the padding.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[2, 4, 6, 8, 10]]], np.float32)
    >>> dnnkern.avg_pool_fwd(x, 2, padding=1)
    array([[[2., 5., 9.]]], dtype=float32)
    >>> dnnkern.avg_pool_fwd(x, 2, padding=1, count_include_pad=True)
    array([[[1., 5., 9.]]], dtype=float32)
    >>> dnnkern.avg_pool_fwd(x, 2, padding=1, divisor=1)
    array([[[ 2., 10., 18.]]], dtype=float32)
    """
    f = "avg_pool_fwd"
    parameters = (*windows(f, window, stride, padding, dilation), flag(f, "ceil_mode", ceil_mode),
                  flag(f, "count_include_pad", count_include_pad), _divisor(f, divisor), layout)
    return _avg((x,), out, parameters, (), workspace, stream, choice)


@public
def avg_pool_bwd(dy, x_shape, window, *, stride=None, padding=0, dilation=1, ceil_mode=False, count_include_pad=False, divisor=None,
                 layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The gradient of `avg_pool_fwd`: each pixel receives its share of the gradients of the windows that cover it.

    Parameters
    ----------
    dy : array
        Gradient of `avg_pool_fwd`'s result; float64, float32, float16 or bfloat16; arbitrary strides.
    x_shape : tuple of int
        Shape of the image.
    window, stride, padding, dilation, ceil_mode, count_include_pad, divisor, layout
        As in `avg_pool_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dy is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of dy's framework and dtype
        Summed in float32 (float64 for float64) over the windows in order, and rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `max_pool_fwd`; also ValueError if dy does not match x_shape.

    Notes
    -----
    Deterministic: no atomics. Mirrors cudnnPoolingBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.avg_pool_bwd(np.array([[[2, 4]]], np.float32), (1, 1, 5), 2)
    array([[[1., 1., 2., 2., 0.]]], dtype=float32)
    """
    f = "avg_pool_bwd"
    parameters = (ints(f, "x_shape", x_shape), *windows(f, window, stride, padding, dilation), flag(f, "ceil_mode", ceil_mode),
                  flag(f, "count_include_pad", count_include_pad), _divisor(f, divisor), layout)
    return _avg_bwd((dy,), out, parameters, (), workspace, stream, choice)


@public
def adaptive_max_pool_fwd(x, output_size, *, layout="NCHW", return_index=False, index_dtype=None, out=None, workspace=None, stream=None,
                          **choice):
    """Max pooling to a given output size: of n pixels, output p of m covers ``p * n // m`` to ``ceil((p + 1) * n / m) - 1``.

    Parameters
    ----------
    x, layout, return_index, index_dtype, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `max_pool_fwd`. The algorithms are those of `max_pool_fwd`.
    output_size : int or tuple of int or None
        Output extents, one for all spatial dimensions or one for each; None in a tuple keeps the input's extent.

    Returns
    -------
    y, index
        As in `max_pool_fwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `max_pool_fwd`; also ValueError for an image without pixels.

    Notes
    -----
    Deterministic, exact. Mirrors `torch.nn.functional.adaptive_max_pool2d`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.adaptive_max_pool_fwd(np.array([[[1, 5, 2, 7, 3]]], np.float32), 2)
    array([[[5., 7.]]], dtype=float32)
    """
    wanted = _wanted("adaptive_max_pool_fwd", return_index, index_dtype)
    parameters = ints("adaptive_max_pool_fwd", "output_size", output_size), layout
    return _adaptive_max[wanted].call((x,), out, parameters, (), workspace, stream, choice)


@public
def adaptive_max_pool_bwd(dy, index, x_shape, *, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The gradient of `adaptive_max_pool_fwd`.

    Parameters
    ----------
    dy, index, x_shape, layout, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `max_pool_bwd`; the output size is dy's.

    Returns
    -------
    dx
        As in `max_pool_bwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `max_pool_bwd`.

    Notes
    -----
    Deterministic: no atomics. Mirrors the gradient of `torch.nn.functional.adaptive_max_pool2d`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, index = dnnkern.adaptive_max_pool_fwd(np.array([[[1, 5, 9, 7, 3]]], np.float32), 2, return_index=True)
    >>> dnnkern.adaptive_max_pool_bwd(np.array([[[1, 2]]], np.float32), index, (1, 1, 5))
    array([[[0., 0., 3., 0., 0.]]], dtype=float32)
    """
    return _adaptive_max_bwd((dy, index), out, (ints("adaptive_max_pool_bwd", "x_shape", x_shape), layout), (), workspace, stream, choice)


@public
def adaptive_avg_pool_fwd(x, output_size, *, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """Average pooling to a given output size, with the windows of `adaptive_max_pool_fwd`.

    Parameters
    ----------
    x, layout, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `avg_pool_fwd`. The algorithms are those of `avg_pool_fwd`.
    output_size : int or tuple of int or None
        As in `adaptive_max_pool_fwd`.

    Returns
    -------
    y
        As in `avg_pool_fwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `adaptive_max_pool_fwd`.

    Notes
    -----
    Deterministic. Mirrors `torch.nn.functional.adaptive_avg_pool2d`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.adaptive_avg_pool_fwd(np.array([[[1, 5, 3, 7, 2]]], np.float32), 2)
    array([[[3., 4.]]], dtype=float32)
    """
    return _adaptive_avg((x,), out, (ints("adaptive_avg_pool_fwd", "output_size", output_size), layout), (), workspace, stream, choice)


@public
def adaptive_avg_pool_bwd(dy, x_shape, *, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The gradient of `adaptive_avg_pool_fwd`.

    Parameters
    ----------
    dy, x_shape, layout, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `avg_pool_bwd`; the output size is dy's.

    Returns
    -------
    dx
        As in `avg_pool_bwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `avg_pool_bwd`.

    Notes
    -----
    Deterministic: no atomics. Mirrors the gradient of `torch.nn.functional.adaptive_avg_pool2d`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.adaptive_avg_pool_bwd(np.array([[[3, 6]]], np.float32), (1, 1, 5))
    array([[[1., 1., 3., 2., 2.]]], dtype=float32)
    """
    return _adaptive_avg_bwd((dy,), out, (ints("adaptive_avg_pool_bwd", "x_shape", x_shape), layout), (), workspace, stream, choice)
