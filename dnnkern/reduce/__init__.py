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
    """A number out of all elements along some dimensions.

    Parameters
    ----------
    x : array
        float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8 or bool, at most eight dimensions, arbitrary strides (0 and
        negative ones too).
    mode : str
        ================ ===================================== ==================
        mode             result                                over no elements
        ================ ===================================== ==================
        "add"            ``sum(x)``                            0
        "mul"            ``prod(x)``                           1
        "min", "max"     the least, the largest element        +inf, -inf [1]_
        "amax"           ``max(abs(x))``                       0
        "avg"            ``sum(x) / n``                        0
        "norm1"          ``sum(abs(x))``                       0
        "norm2"          ``sqrt(sum(x * x))``                  0
        "mul_no_zeros"   the product of those that are not 0   1
        "sum_square"     ``sum(x * x)``                        0
        "logsumexp"      ``log(sum(exp(x)))``                  -inf
        ================ ===================================== ==================

        "avg", "norm2" and "logsumexp" are of floats alone. Of bool "add" counts, "max" is any, "min" is all.
    axes : int or sequence of int, optional
        The dimensions that are reduced; negative numbers count from the end. None is all of them, an empty sequence none.
    keepdims : bool
        They stay, with size 1.
    out_dtype : dtype, optional
        Of the result. Default: x's; of integers and bool "int64", but x's for "min" and "max". "float32" may be asked for where x has 16
        bits, "int32" where the default is "int64".
    out : array of such a dtype
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Accumulated in float32, for float64 in float64, and rounded once. Integers are exact modulo 2**64, as an int32 result modulo 2**32:
        they wrap, as PyTorch's and NumPy's sums do. NaN anywhere is NaN in the result, in "min", "max" and "amax" too.
        "norm2" neither overflows nor underflows on the way, "logsumexp" subtracts the maximum.

    Raises
    ------
    ValueError
        An unknown mode, axes that x has not or twice, an `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: sums are made in an order that depends on the problem and the device alone; there are no atomics. Mirrors
    cudnnReduceTensor and cuDNN's Reduction operation. Exponentials of float32 sums are the hardware's (relative error 2**-22).

    .. [1] Of integers the largest and the least of the dtype, of bool True and False.

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
    """The least or the largest element along a dimension, and where it is.

    Parameters
    ----------
    x : array
        Of `reduce`'s dtypes, at most eight dimensions, arbitrary strides; from 1 to 2**31 - 1 elements along the dimension.
    mode : "min" or "max"
    axis : int
        The dimension; a negative number counts from the end.
    keepdims : bool
        It stays, with size 1.
    out : (array of x's dtype, array of int32)
        Output, written and returned; arbitrary strides. Overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    value : array, of x's framework and dtype
    index : array of int32
        The first position of that value; that of the first NaN where there is one, which then is the value. As `numpy.argmin` and
        `numpy.argmax`.

    Raises
    ------
    ValueError
        An unknown mode, a dimension that x has not or that has no elements, an `out` of another shape or that overlaps x.
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
