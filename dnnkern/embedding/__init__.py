"""Embeddings: rows of a table taken by index, and the table's gradient."""
from ..host.front import Operation, public
from ..host.scalars import flag, integer
from ._problem import EmbeddingGradientProblem, EmbeddingProblem, check_rows, make_backward, make_forward

__all__ = ["EmbeddingGradientProblem", "EmbeddingProblem", "embedding_bwd", "embedding_fwd"]

EMBEDDING_FWD = Operation("embedding_fwd", operands=("weight", "indices"), outputs=("y",), problem=make_forward, check_values=check_rows)
_forward = EMBEDDING_FWD.call
EMBEDDING_BWD = Operation("embedding_bwd", operands=("dy", "indices"), outputs=("dweight",), problem=make_backward,
                          check_values=check_rows)
_backward = EMBEDDING_BWD.call


@public
def embedding_fwd(weight, indices, *, out=None, workspace=None, stream=None, **choice):
    """Rows of a table by index: ``y[p] = weight[indices[p]]`` for every position p.

    Parameters
    ----------
    weight : array (rows, columns)
        float64, float32, float16 or bfloat16; arbitrary strides.
    indices : array of int32 or int64
        Of any shape with up to seven dimensions; arbitrary strides.
    out : array (*indices.shape, columns)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array (*indices.shape, columns), of weight's framework and dtype
        The very bits of the rows. NaN where an index is no row, negative ones included.

    Raises
    ------
    ValueError
        A weight that is not two-dimensional, an `out` of another shape or one that overlaps an operand; with ``DNNKERN_CHECK=values`` an
        index that is no row, with its position.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, exact; an index out of range reads nothing outside the arrays. Mirrors ``torch.nn.functional.embedding``, whose
    ``padding_idx`` concerns the gradient alone.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> weight = np.array([[0, 1], [2, 3], [4, 5]], np.float32)
    >>> dnnkern.embedding_fwd(weight, np.array([[2, 0], [2, 1]]))
    array([[[4., 5.],
            [0., 1.]],
    <BLANKLINE>
           [[4., 5.],
            [2., 3.]]], dtype=float32)
    """
    return _forward((weight, indices), out, (), (), workspace, stream, choice)


@public
def embedding_bwd(dy, indices, num_embeddings, *, padding_idx=None, scale_grad_by_freq=False, out=None, workspace=None, stream=None,
                  **choice):
    """The gradient of `embedding_fwd` with respect to the table: ``dweight[v] = sum over p with indices[p] == v of dy[p]``.

    Parameters
    ----------
    dy : array (*indices.shape, columns)
        Gradient of `embedding_fwd`'s result; float64, float32, float16 or bfloat16; arbitrary strides.
    indices : array of int32 or int64
        As passed to `embedding_fwd`. An index that is no row has no effect.
    num_embeddings : int
        Rows of the table.
    padding_idx : int, optional
        The row whose gradient is 0; negative: counted from the end.
    scale_grad_by_freq : bool
        Divide each row by the number of times its index occurs.
    out : array (num_embeddings, columns)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dweight : array (num_embeddings, columns), of dy's framework and dtype
        Summed in float32 (float64 for float64) and rounded once; rows whose index does not occur are 0.

    Raises
    ------
    ValueError
        Shapes that do not match, a padding_idx that is no row, an `out` that overlaps an operand; with ``DNNKERN_CHECK=values`` an index
        that is no row, with its position.
    TypeError, NotSupported
        As `embedding_fwd`.

    Notes
    -----
    Deterministic, without atomics on floats. A row is the sum of its positions in order; `sorted` adds up a row of many positions (more
    than half the root of all, and 32 at least) in stretches of the sorted list of positions, each in order, then the stretches in order.
    Mirrors the gradient of ``torch.nn.functional.embedding``, for a dense table.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dy = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> dnnkern.embedding_bwd(dy, np.array([2, 0, 2]), 4)
    array([[3., 4.],
           [0., 0.],
           [6., 8.],
           [0., 0.]], dtype=float32)
    """
    f = "embedding_bwd"
    parameters = (integer(f, "num_embeddings", num_embeddings, 0),
                  None if padding_idx is None else integer(f, "padding_idx", padding_idx),
                  flag(f, "scale_grad_by_freq", scale_grad_by_freq))
    return _backward((dy, indices), out, parameters, (), workspace, stream, choice)
