"""`move_rows`."""
from ...host.front import Operation, public
from ...host.scalars import integer
from ._rows_problem import check_rows, make_rows

MOVE_ROWS = Operation("move_rows", operands=("x", "source", "target"), outputs=("y",), problem=make_rows, check_values=check_rows)
_move_rows = MOVE_ROWS.call


@public
def move_rows(x, source=None, target=None, *, rows=None, out=None, workspace=None, stream=None, **choice):
    """Gather and scatter rows: ``y[target[i]] = x[source[i]]``.

    Parameters
    ----------
    x : array (S, K)
        Of any dtype but bool, arbitrary strides.
    source, target : int32 array (n,), optional
        Numbers of rows; arbitrary strides. Without one of them it is i, without both x is copied.
    rows : int, optional
        Rows of y; default: n. Without a target n.
    out : array (rows, K)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array (rows, K), of x's framework and dtype
        Contiguous, unless `out` is given. Rows that no target names are not written; nor is a row whose number is out of range.

    Raises
    ------
    ValueError
        Shapes that do not fit, an `out` that overlaps an operand; with ``DNNKERN_CHECK=values`` numbers out of range.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic where no target occurs twice. Bits are copied. The routing of a mixture of experts, as in cuDNN's operation
    MoeGroupedMatmul with GATHER and SCATTER.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> dnnkern.move_rows(x, np.array([2, 0, 2], np.int32))
    array([[5., 6.],
           [1., 2.],
           [5., 6.]], dtype=float32)
    >>> dnnkern.move_rows(x, target=np.array([2, 0, 1], np.int32))
    array([[3., 4.],
           [5., 6.],
           [1., 2.]], dtype=float32)
    """
    rows = None if rows is None else integer("move_rows", "rows", rows, 0)
    return _move_rows((x, source, target), out, (rows,), (), workspace, stream, choice)
