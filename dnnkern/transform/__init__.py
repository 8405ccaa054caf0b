"""Moving and converting elements: transpositions, layouts."""
from ..dispatch import Note
from ..host.front import Operation
from ._problem import TransposeProblem, make_layout_problem, make_problem

__all__ = ["TransposeProblem", "convert_layout", "transpose"]

TRANSPOSE = Operation("transpose", operands=("x",), outputs=("y",), problem=make_problem)
_transpose = TRANSPOSE.call
_convert_layout = Operation("transpose", operands=("x",), outputs=("y",), problem=make_layout_problem, function="convert_layout").call


def transpose(x, axes, *, out=None, workspace=None, stream=None, algo=None, allow=Note.NONE):
    """A copy of x with its dimensions in another order: ``y = numpy.transpose(x, axes).copy()``.

    Parameters
    ----------
    x : array
        Of any dtype but bool, at most eight dimensions, any strides (0 and negative ones too).
    axes : sequence of int
        Dimension k of y is dimension ``axes[k]`` of x; negative numbers count from the end.
    out : array
        Written and returned; any strides. Overlap with x is an error.
    workspace, stream, algo, allow
        As `dnnkern.matmul`'s.

    Returns
    -------
    y : array, of x's framework
        Packed, unless `out` is given. The bits of x, NaNs included.

    Raises
    ------
    ValueError
        Axes that are no permutation, an `out` of another shape or that overlaps x.
    TypeError
        Dtypes, objects that are not device arrays, an immutable `out`.
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
    return _transpose((x,), out, (axes if type(axes) is tuple else _hashable(axes),), (), workspace, stream, algo, allow)


def _hashable(axes):
    try:
        return tuple(axes)
    except TypeError:
        return axes


def convert_layout(x, source, target, *, out=None, workspace=None, stream=None, algo=None, allow=Note.NONE):
    """A copy of x with its dimensions in the order of another layout.

    Parameters
    ----------
    x : array
        As `transpose`'s.
    source, target : str
        A letter for each dimension of x and of y, the same ones: "NCHW", "NHWC", "BSHD", ... "NCHW", "NHWC" (images) and "KCRS", "KRSC"
        (filters) are also the names of their forms with one and three spatial dimensions.
    out, workspace, stream, algo, allow
        As `transpose`'s. The algorithms are those of `transpose`.

    Returns
    -------
    y : array, of x's framework
        Its shape is x's in the order of `target`.

    Raises
    ------
    ValueError
        Layouts that do not name each dimension of x once; as `transpose` does.
    TypeError, NotSupported
        As `transpose` does.

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
    return _convert_layout((x,), out, (source, target), (), workspace, stream, algo, allow)
