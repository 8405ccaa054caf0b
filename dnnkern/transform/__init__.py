"""Transforms: transpose, layouts, slices, padding, rows, im2col, resampling, grids, casts, scaled blocks."""
from ..host.front import Operation, public
from ..host.scalars import ints, number
from ..host.window import windows
from ._cast_problem import CastProblem, make_cast_problem
from ._problem import TransposeProblem, make_layout_problem, make_problem
from .blocks._blocks import BLOCK_SCALE_DEQUANTIZE, BLOCK_SCALE_QUANTIZE, block_scale_dequantize, block_scale_quantize
from .blocks._problem import BlockScaleProblem
from .layout._blocks_problem import BlocksProblem
from .layout._concat_problem import ConcatProblem
from .layout._pad_problem import PadGradientProblem, PadProblem, SetProblem
from .layout._parts import (CONCAT, DEPTH_TO_SPACE, PAD, PAD_BWD, SET_TENSOR, SPACE_TO_DEPTH, STRIDED_SLICE, concat, depth_to_space, pad,
                            pad_bwd, set_tensor, space_to_depth, strided_slice)
from .layout._slice_problem import SliceProblem
from .rows._rows import MOVE_ROWS, move_rows
from .rows._rows_problem import RowsProblem
from .sample._grid_problem import AffineGridProblem, GridSampleGradientProblem, GridSampleProblem
from .sample._grids import (AFFINE_GRID_BWD, AFFINE_GRID_FWD, GRID_SAMPLE_BWD, GRID_SAMPLE_FWD, affine_grid_bwd, affine_grid_fwd,
                            grid_sample_bwd, grid_sample_fwd)
from .sample._resample import RESAMPLE_BWD, RESAMPLE_FWD, resample_bwd, resample_fwd
from .sample._resample_problem import ResampleProblem
from .window._problem import WindowProblem, make_col2im_problem, make_im2col_problem

__all__ = ["AFFINE_GRID_BWD", "AFFINE_GRID_FWD", "BLOCK_SCALE_DEQUANTIZE", "BLOCK_SCALE_QUANTIZE", "CONCAT", "DEPTH_TO_SPACE",
           "GRID_SAMPLE_BWD", "GRID_SAMPLE_FWD", "MOVE_ROWS", "PAD", "PAD_BWD", "RESAMPLE_BWD", "RESAMPLE_FWD", "SET_TENSOR",
           "SPACE_TO_DEPTH", "STRIDED_SLICE", "AffineGridProblem", "BlockScaleProblem", "BlocksProblem", "CastProblem", "ConcatProblem",
           "GridSampleGradientProblem", "GridSampleProblem", "PadGradientProblem", "PadProblem", "ResampleProblem", "RowsProblem",
           "SetProblem", "SliceProblem", "TransposeProblem", "WindowProblem", "affine_grid_bwd", "affine_grid_fwd",
           "block_scale_dequantize", "block_scale_quantize", "cast", "col2im", "concat", "convert_layout", "depth_to_space",
           "grid_sample_bwd", "grid_sample_fwd", "im2col", "move_rows", "pad", "pad_bwd", "resample_bwd", "resample_fwd", "set_tensor",
           "space_to_depth", "strided_slice", "transpose"]

TRANSPOSE = Operation("transpose", operands=("x",), outputs=("y",), problem=make_problem)
_transpose = TRANSPOSE.call
_convert_layout = Operation("transpose", operands=("x",), outputs=("y",), problem=make_layout_problem, function="convert_layout").call
IM2COL = Operation("im2col", operands=("x",), outputs=("columns",), problem=make_im2col_problem)
_im2col = IM2COL.call
COL2IM = Operation("col2im", operands=("columns",), outputs=("x",), problem=make_col2im_problem)
_col2im = COL2IM.call
CAST = Operation("cast", operands=("x",), outputs=("y",), scalars=("scale",), problem=make_cast_problem)
_cast = CAST.call


@public
def transpose(x, axes, *, out=None, workspace=None, stream=None, **choice):
    """A copy of x with its dimensions in another order: ``y = numpy.transpose(x, axes).copy()``.

    Parameters
    ----------
    x : array
        Of any dtype but bool, at most eight dimensions, arbitrary strides (0 and negative included).
    axes : sequence of int
        Dimension k of y is dimension ``axes[k]`` of x; negative numbers count from the end.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Contiguous, unless `out` is given. Bits are copied, NaNs included.

    Raises
    ------
    ValueError
        Axes that are not a permutation, an `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cuDNN's Transpose operation and cudnnTransformTensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.transpose(np.arange(6, dtype=np.float32).reshape(2, 3), (1, 0))
    array([[0., 3.],
           [1., 4.],
           [2., 5.]], dtype=float32)
    """
    return _transpose((x,), out, (ints("transpose", "axes", axes),), (), workspace, stream, choice)


@public
def convert_layout(x, source, target, *, out=None, workspace=None, stream=None, **choice):
    """A copy of x with its dimensions in the order of another layout.

    Parameters
    ----------
    x : array
        As in `transpose`.
    source, target : str
        One letter per dimension, the same letters in both: "NCHW", "NHWC", "BSHD", ... "NCHW", "NHWC" (images) and "KCRS", "KRSC"
        (filters) are also the names of their forms with one and three spatial dimensions.
    out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `transpose`. The algorithms are those of `transpose`.

    Returns
    -------
    y : array, of x's framework
        Its shape is x's in the order of `target`.

    Raises
    ------
    ValueError
        Layouts that do not name each dimension of x once; as `transpose` does.
    TypeError, NotSupported
        As `transpose`.

    Notes
    -----
    Deterministic, exact. Mirrors cudnnTransformTensor and cudnnTransformFilter.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.convert_layout(np.zeros((8, 3, 32, 32), np.float32), "NCHW", "NHWC").shape
    (8, 32, 32, 3)
    >>> dnnkern.convert_layout(np.zeros((8, 3, 100), np.float32), "NCHW", "NHWC").shape
    (8, 100, 3)
    """
    return _convert_layout((x,), out, (source, target), (), workspace, stream, choice)


@public
def im2col(x, window, *, stride=1, padding=0, dilation=1, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The pixels covered by each window position, as a matrix: convolution becomes a matrix product.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        One to three spatial dimensions, any dtype but bool, arbitrary strides.
    window : int or tuple of int
        Extents of the window, T x R x S taps. Like the next three, one value for all spatial dimensions or one for each.
    stride, dilation : int or tuple of int
    padding : int, tuple of int, or tuple of (before, after)
        Zeros around the image.
    layout : "NCHW" or "NHWC"
        Channels first or last, for any number of spatial dimensions.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    columns : array, of x's framework
        With P window positions (spatial dimensions in order, the last one fastest): for "NCHW" (N, C * T * R * S, P), rows ordered by
        channel, then tap, as `torch.nn.functional.unfold`'s and a KCRS filter's; for "NHWC" (N * P, T * R * S * C), columns ordered by tap,
        then channel, as a KRSC filter's.

    Raises
    ------
    ValueError
        A window that does not fit the padded image, parameters of the wrong length or out of range, an `out` that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cudnnIm2Col.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> dnnkern.im2col(x, 2)[0]                                     # 4 taps, 2 x 2 positions
    array([[0., 1., 3., 4.],
           [1., 2., 4., 5.],
           [3., 4., 6., 7.],
           [4., 5., 7., 8.]], dtype=float32)
    >>> dnnkern.im2col(x.reshape(1, 3, 3, 1), 2, stride=2, padding=((0, 1), (0, 1)), layout="NHWC")
    array([[0., 1., 3., 4.],
           [2., 0., 5., 0.],
           [6., 7., 0., 0.],
           [8., 0., 0., 0.]], dtype=float32)
    """
    parameters = *windows("im2col", window, stride, padding, dilation), layout
    return _im2col((x,), out, parameters, (), workspace, stream, choice)


@public
def col2im(columns, x_shape, window, *, stride=1, padding=0, dilation=1, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """Scatter-add of columns into pixels, the adjoint of `im2col`: each pixel is the sum of the elements copied from it.

    Parameters
    ----------
    columns : array (N, C * taps, P) or (N * P, taps * C)
        As returned by `im2col`, arbitrary strides; float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, uint8 or int32.
    x_shape : tuple of int
        Shape of the image, (N, C, spatial...) or (N, spatial..., C).
    window, stride, padding, dilation, layout
        As in `im2col`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with columns is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    x : array, of columns' framework
        Summed in float32 (float64 for float64 and int32) in tap order and rounded once; integers and 8-bit floats saturate. A pixel
        that no window covers is 0.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `im2col`; also ValueError if columns does not match x_shape.

    Notes
    -----
    Deterministic: a gather, without atomics. Mirrors `torch.nn.functional.fold`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.col2im(np.ones((1, 4, 4), np.float32), (1, 1, 3, 3), 2)[0, 0]
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    parameters = ints("col2im", "x_shape", x_shape), *windows("col2im", window, stride, padding, dilation), layout
    return _col2im((columns,), out, parameters, (), workspace, stream, choice)


@public
def cast(x, dtype, *, scale=1.0, out=None, workspace=None, stream=None, **choice):
    """Convert x to another dtype, with a scale: ``y = dtype(scale * x)``.

    Parameters
    ----------
    x : array
        float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, uint8 or int32; at most eight dimensions, arbitrary strides.
    dtype : dtype
        One of these: a name, a NumPy or a torch dtype. It may be x's own.
    scale : float
        Multiplied in float32, or in float64 if x or y is float64 or int32.
    out : array of that dtype
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Contiguous, unless `out` is given. Rounded to nearest even, once. float16 and bfloat16 overflow to infinity; integers and 8-bit
        floats saturate, infinities too. NaN stays NaN, and becomes 0 in integers.

    Raises
    ------
    ValueError
        An `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnTransformTensor between dtypes, and the scaling and casting of cuDNN's pointwise operations.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.cast(np.array([0.5, 1.5, 2.5, 300], np.float32), "int8")
    array([  0,   2,   2, 127], dtype=int8)
    >>> dnnkern.cast(np.array([1, -3], np.int32), np.float16, scale=0.5)
    array([ 0.5, -1.5], dtype=float16)
    """
    scale = number("cast", "scale", scale)
    return _cast((x,), out, (dtype, scale != 1), (scale,), workspace, stream, choice)


def __getattr__(name):
    """`scale_tensor` and `add_tensor` belong here by purpose; their kernels are in the pointwise family, which imports this one."""
    if name in ("add_tensor", "scale_tensor"):
        from .. import act
        return getattr(act, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
