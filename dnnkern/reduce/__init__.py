"""Reductions along dimensions: sums, products, extrema and where they are, norms, averages, logsumexp."""
from ..host.front import Operation, public
from ..host.scalars import flag, integer, ints
from ._problem import MODES, ArgReduceProblem, ReduceProblem, make_arg_problem, make_problem

__all__ = ["MODES", "ArgReduceProblem", "ReduceProblem", "argreduce", "reduce"]

REDUCE = Operation("reduce", operands=("x",), outputs=("y",), problem=make_problem)
_reduce = REDUCE.call
ARGREDUCE = Operation("argreduce", operands=("x",), outputs=("value", "index"), problem=make_arg_problem)
_argreduce = ARGREDUCE.call


@public
def reduce(x, mode, *, axes=None, keepdims=False, out_dtype=None, out=None, workspace=None, stream=None, **choice):
    """Reduce x over the given axes.

    Parameters
    ----------
    x : array
        float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8 or bool, at most eight dimensions, arbitrary strides (0 and
        negative included).
    mode : str
        ================ ===================================== ==================
        mode             result                                over no elements
        ================ ===================================== ==================
        "add"            ``sum(x)``                            0
        "mul"            ``prod(x)``                           1
        "min", "max"     the smallest, the largest element     +inf, -inf [1]_
        "amax"           ``max(abs(x))``                       0
        "avg"            ``sum(x) / n``                        0
        "norm1"          ``sum(abs(x))``                       0
        "norm2"          ``sqrt(sum(x * x))``                  0
        "mul_no_zeros"   the product of those that are not 0   1
        "sum_square"     ``sum(x * x)``                        0
        "logsumexp"      ``log(sum(exp(x)))``                  -inf
        ================ ===================================== ==================

        "avg", "norm2" and "logsumexp" take floats only. For bool, "add" counts, "max" is any, "min" is all.
    axes : int or sequence of int, optional
        Dimensions to reduce; negative numbers count from the end. None: all; an empty sequence: none.
    keepdims : bool
        Keep them, with size 1.
    out_dtype : dtype, optional
        Default: x's; for integers and bool "int64", but x's for "min" and "max". "float32" is allowed for 16-bit floats, "int32" where the
        default is "int64".
    out : array of such a dtype
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Accumulated in float32 (float64 for float64) and rounded once. Integers wrap modulo 2**64, an int32 result modulo 2**32, as sums in
        PyTorch and NumPy do. NaN anywhere gives NaN, in "min", "max" and "amax" too. "norm2" avoids intermediate overflow and underflow,
        "logsumexp" subtracts the maximum.

    Raises
    ------
    ValueError
        An unknown mode, axes out of range or repeated, an `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: the order of sums depends only on the problem and the device; there are no atomics. Mirrors
    cudnnReduceTensor and cuDNN's Reduction operation. Exponentials of float32 sums are the hardware's (relative error 2**-22).

    .. [1] For integers the dtype's largest and smallest value, for bool True and False.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    >>> dnnkern.reduce(x, "add", axes=1)
    array([2., 3.], dtype=float32)
    >>> dnnkern.reduce(x, "amax", axes=0, keepdims=True)
    array([[4., 5., 6.]], dtype=float32)
    >>> float(dnnkern.reduce(x, "avg"))
    0.8333333730697632
    >>> dnnkern.reduce(x > 0, "add", axes=1)
    array([2, 2])
    >>> dnnkern.reduce(np.full(3000, 1, np.float16), "add", out_dtype="float32")
    array(3000., dtype=float32)
    """
    return _reduce((x,), out, (mode, ints("reduce", "axes", axes), flag("reduce", "keepdims", keepdims), out_dtype), (), workspace, stream,
                   choice)


@public
def argreduce(x, mode, *, axis, keepdims=False, out=None, workspace=None, stream=None, **choice):
    """The smallest or largest element along a dimension, and its index.

    Parameters
    ----------
    x : array
        Of `reduce`'s dtypes, at most eight dimensions, arbitrary strides; from 1 to 2**31 - 1 elements along the dimension.
    mode : "min" or "max"
    axis : int
        The dimension; a negative number counts from the end.
    keepdims : bool
        Keep it, with size 1.
    out : (array of x's dtype, array of int32)
        Output, written and returned; arbitrary strides. Overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    value : array, of x's framework and dtype
    index : array of int32
        First index of that value; if there is a NaN, the value is NaN and the index that of the first NaN, as in `numpy.argmin` and
        `numpy.argmax`.

    Raises
    ------
    ValueError
        An unknown mode, a dimension out of range or with no elements, an `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact. Mirrors cudnnReduceTensor with flattened indices.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.argreduce(np.array([[1, 7, 7], [4, 2, 3]], np.float32), "max", axis=1)
    (array([7., 4.], dtype=float32), array([1, 0], dtype=int32))
    """
    parameters = mode, integer("argreduce", "axis", axis), flag("argreduce", "keepdims", keepdims)
    return _argreduce((x,), out, parameters, (), workspace, stream, choice)
