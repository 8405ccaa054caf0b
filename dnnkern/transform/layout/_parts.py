"""Parts of arrays: slices, concatenations, borders, values in place of all elements, blocks of pixels."""
from ...host.front import Operation, public
from ...host.scalars import integer, ints, number
from ._blocks_problem import make_blocks_problem
from ._concat_problem import LABELS, MOST_ARRAYS, OPERANDS, make_concat_problem
from ._pad_problem import make_gradient_problem, make_pad_problem, make_set_problem
from ._slice_problem import make_slice_problem

STRIDED_SLICE = Operation("strided_slice", operands=("x",), outputs=("y",), problem=make_slice_problem)
_strided_slice = STRIDED_SLICE.call
CONCAT = Operation("concat", operands=OPERANDS, outputs=("y",), problem=make_concat_problem, labels=LABELS)
_concat = CONCAT.call
PAD = Operation("pad", operands=("x",), outputs=("y",), scalars=("value",), problem=make_pad_problem)
_pad = PAD.call
PAD_BWD = Operation("pad_bwd", operands=("dy",), outputs=("dx",), problem=make_gradient_problem)
_pad_bwd = PAD_BWD.call
SET_TENSOR = Operation("set_tensor", operands=("x",), outputs=("y",), scalars=("value",), problem=make_set_problem,
                       in_place=frozenset({"x"}))
_set_tensor = SET_TENSOR.call
DEPTH_TO_SPACE = Operation("depth_to_space", operands=("x",), outputs=("y",),
                           problem=lambda *call, **more: make_blocks_problem("depth_to_space", *call, **more))
_depth_to_space = DEPTH_TO_SPACE.call
SPACE_TO_DEPTH = Operation("space_to_depth", operands=("x",), outputs=("y",),
                           problem=lambda *call, **more: make_blocks_problem("space_to_depth", *call, **more))
_space_to_depth = SPACE_TO_DEPTH.call


@public
def strided_slice(x, starts, stops, steps=None, *, out=None, workspace=None, stream=None, **choice):
    """Copy a slice of x: ``y = x[starts[0]:stops[0]:steps[0], starts[1]:stops[1]:steps[1], ...].copy()``.

    Parameters
    ----------
    x : array
        Of any dtype but bool, at most eight dimensions, arbitrary strides (0 and negative included).
    starts, stops : sequence of int or None
        One entry per dimension, as in Python's slices: negative numbers count from the end, numbers past an end are clamped, None is the
        first or last element in the step's direction.
    steps : sequence of int or None
        One entry per dimension, not 0; negative ones go backwards. Default: 1.
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
        Too few or too many entries, a step of 0, an `out` of another shape or that overlaps x.
    TypeError
        Entries that are not integers, unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cuDNN's Slice operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.arange(12, dtype=np.float32).reshape(3, 4)
    >>> dnnkern.strided_slice(x, (1, 0), (3, 4), (1, 2))
    array([[ 4.,  6.],
           [ 8., 10.]], dtype=float32)
    >>> dnnkern.strided_slice(x, (0, None), (1, None), (1, -1))
    array([[3., 2., 1., 0.]], dtype=float32)
    """
    parameters = ints("strided_slice", "starts", starts), ints("strided_slice", "stops", stops), ints("strided_slice", "steps", steps)
    return _strided_slice((x,), out, parameters, (), workspace, stream, choice)


@public
def concat(arrays, axis, *, out=None, workspace=None, stream=None, **choice):
    """Concatenate arrays along an axis: ``y = numpy.concatenate(arrays, axis)``.

    Parameters
    ----------
    arrays : sequence of arrays
        1 to 128 arrays of the same dtype, any but bool, and the same shape except along the axis, where extents may differ and be 0; at
        most eight dimensions, arbitrary strides.
    axis : int
        Negative numbers count from the end.
    out : array
        Output, written and returned; arbitrary strides. Overlap with an array is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of the first array's framework
        Contiguous, unless `out` is given. Bits are copied, NaNs included.

    Raises
    ------
    ValueError
        No arrays or too many, shapes that do not match, an axis out of range, an `out` of another shape or that overlaps.
    TypeError
        Dtypes that differ or are unsupported, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cuDNN's Concatenate operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> a, b = np.zeros((2, 1), np.float32), np.ones((2, 2), np.float32)
    >>> dnnkern.concat((a, b), 1)
    array([[0., 1., 1.],
           [0., 1., 1.]], dtype=float32)
    """
    operands = tuple(arrays) if hasattr(arrays, "__len__") and not hasattr(arrays, "shape") else None
    if operands is None:
        raise TypeError(f"concat: arrays is a {type(arrays).__name__}; expected a sequence of arrays")
    if not 1 <= len(operands) <= MOST_ARRAYS:
        raise ValueError(f"concat: arrays has {len(operands)} entries; expected 1 to {MOST_ARRAYS}")
    return _concat(operands, out, (len(operands), integer("concat", "axis", axis)), (), workspace, stream, choice)


@public
def pad(x, pads, *, mode="constant", value=0.0, out=None, workspace=None, stream=None, **choice):
    """Pad x: ``y = numpy.pad(x, pads, mode)``.

    Parameters
    ----------
    x : array
        Of any dtype but bool, at most eight dimensions, arbitrary strides (0 and negative included).
    pads : sequence of (int, int)
        Elements before and after x, 0 or more, one pair per dimension.
    mode : "constant", "edge" or "reflect"
        Fill with `value`, with the nearest element, or with x mirrored at its outermost elements, which are not repeated; "reflect" needs
        pads smaller than x.
    value : float
        Rounded to x's dtype as `cast` rounds: integers and 8-bit floats saturate.
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
        Too few or too many pads, negative pads, pads too large for x, an unknown mode, an `out` of another shape
        or that overlaps x.
    TypeError
        Pads that are not integers, unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors ONNX's Pad; cudnnTransformTensorEx pads with zeros.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1, 2, 3]], np.float32)
    >>> dnnkern.pad(x, ((1, 0), (0, 2)), value=9)
    array([[9., 9., 9., 9., 9.],
           [1., 2., 3., 9., 9.]], dtype=float32)
    >>> dnnkern.pad(x, ((0, 0), (2, 2)), mode="reflect")
    array([[3., 2., 1., 2., 3., 2., 1.]], dtype=float32)
    """
    return _pad((x,), out, (ints("pad", "pads", pads), mode), (number("pad", "value", value),), workspace, stream, choice)


@public
def pad_bwd(dy, pads, *, mode="constant", out=None, workspace=None, stream=None, **choice):
    """The gradient of `pad` with respect to x: each element of dx is the sum of those of dy that are copies of it.

    Parameters
    ----------
    dy : array of float64, float32, float16 or bfloat16
        Gradient of the result; at most eight dimensions, arbitrary strides (0 and negative included).
    pads, mode
        As passed to `pad`.
    out : array of x's shape
        Output, written and returned; arbitrary strides. Overlap with dy is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of x's shape, of dy's dtype and framework
        Accumulated in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `pad`; ValueError also where the pads are larger than dy.

    Notes
    -----
    Deterministic, without atomics. Mirrors PyTorch's reflection_pad2d_backward and replication_pad2d_backward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.pad_bwd(np.array([1, 2, 3, 4, 5], np.float32), ((2, 0),), mode="reflect")
    array([3., 6., 6.], dtype=float32)
    """
    return _pad_bwd((dy,), out, (ints("pad_bwd", "pads", pads), mode), (), workspace, stream, choice)


@public
def set_tensor(x, value, *, out=None, workspace=None, stream=None, **choice):
    """Fill an array in place: ``x[...] = value``.

    Parameters
    ----------
    x : array
        Of any dtype but bool, at most eight dimensions, arbitrary strides but 0.
    value : float
        Rounded to x's dtype as `cast` rounds: integers and 8-bit floats saturate.
    out : array
        Written and returned in place of x, with its shape and dtype; arbitrary strides. May be exactly x; other overlap is an
        error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    x : array
        The same object, or `out`.

    Raises
    ------
    ValueError
        Elements of x that share an address, an `out` of another shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable array.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cudnnSetTensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.zeros((2, 3), np.float32)
    >>> dnnkern.set_tensor(x, 0.5) is x
    True
    >>> x
    array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]], dtype=float32)
    """
    return _set_tensor((x,), x if out is None else out, (), (number("set_tensor", "value", value),), workspace, stream, choice)


@public
def depth_to_space(x, block, *, out=None, workspace=None, stream=None, **choice):
    """Rearrange channels into blocks of pixels: ``y[n, c, h * block + i, w * block + j] = x[n, (i * block + j) * C + c, h, w]``.

    Parameters
    ----------
    x : array (N, C * block**2, H, W)
        Of any dtype but bool, arbitrary strides.
    block : int
        Side of a block of pixels, 1 or more.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`. The algorithms are those of `transpose`.

    Returns
    -------
    y : array (N, C, H * block, W * block), of x's framework
        Contiguous, unless `out` is given. Bits are copied, NaNs included.

    Raises
    ------
    ValueError
        A shape without 4 dimensions or not divisible by the block, an `out` of another shape or that overlaps x.
    TypeError
        A block that is not an integer, unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors ONNX's DepthToSpace in its mode DCR (depth, column, row), which is TensorFlow's. PyTorch's pixel_shuffle
    has the channels in another order.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 4, 1, 2)
    >>> dnnkern.depth_to_space(x, 2)[0, 0]
    array([[0., 2., 1., 3.],
           [4., 6., 5., 7.]], dtype=float32)
    """
    return _depth_to_space((x,), out, (integer("depth_to_space", "block", block, 1),), (), workspace, stream, choice)


@public
def space_to_depth(x, block, *, out=None, workspace=None, stream=None, **choice):
    """Rearrange blocks of pixels into channels: the inverse of `depth_to_space`.

    Parameters
    ----------
    x : array (N, C, H * block, W * block)
        Of any dtype but bool, arbitrary strides.
    block, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `depth_to_space`.

    Returns
    -------
    y : array (N, C * block**2, H, W), of x's framework
        ``y[n, (i * block + j) * C + c, h, w] = x[n, c, h * block + i, w * block + j]``.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `depth_to_space`.

    Notes
    -----
    Deterministic, exact. Mirrors ONNX's SpaceToDepth.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    >>> dnnkern.space_to_depth(x, 2)[0, :, 0]
    array([[0., 2.],
           [1., 3.],
           [4., 6.],
           [5., 7.]], dtype=float32)
    """
    return _space_to_depth((x,), out, (integer("space_to_depth", "block", block, 1),), (), workspace, stream, choice)
