"""Matrix products."""
import importlib

from ..host.front import Operation, public
from ..host.scalars import flag, number
from ._problem import MatmulProblem, make_problem

__all__ = ["GroupedMatmulProblem", "GroupedWeightsProblem", "MatmulProblem", "grouped_matmul", "grouped_matmul_bwd_weights", "matmul"]

OPERATION = Operation("matmul", operands=("a", "b", "bias", "c", "scale_a", "scale_b"), outputs=("y",), scalars=("alpha", "beta"),
                      problem=make_problem, in_place=frozenset({"c"}))
_call = OPERATION.call


def _grouped(name, module="_grouped_problem"):
    """A function of `_grouped_problem`, or of another module, which a product does without: a millisecond of a first call."""
    def function(*given, **more):
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*given, **more)
    return function


GROUPED = Operation("grouped_matmul", operands=("a", "b", "group_offsets", "bias", "scale_a", "scale_b"), outputs=("y",),
                    scalars=("alpha",), problem=_grouped("make_problem"), check_values=_grouped("check_offsets"),
                    leaves=_grouped("rows_of_no_group"))
_call_grouped = GROUPED.call
WEIGHTS = Operation("grouped_matmul_bwd_weights", operands=("a", "dy", "group_offsets"), outputs=("db",),
                    problem=_grouped("make_weights", "_grouped_weights_problem"),
                    check_values=_grouped("check_weights_offsets", "_grouped_weights_problem"))
_call_weights = WEIGHTS.call


def __getattr__(name):
    if name == "GroupedMatmulProblem":
        from ._grouped_problem import GroupedMatmulProblem
        return GroupedMatmulProblem
    if name == "GroupedWeightsProblem":
        from ._grouped_weights_problem import GroupedWeightsProblem
        return GroupedWeightsProblem
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@public
def matmul(a, b, *, bias=None, c=None, alpha=1.0, beta=1.0, transpose_a=False, transpose_b=False, activation=None, math=None,
           out_dtype=None, scale_a=None, scale_b=None, out=None, workspace=None, stream=None, **choice):
    """Matrix product with a fused epilogue: ``y = activation(alpha * a @ b + beta * c + bias)``.

    Parameters
    ----------
    a : array (..., M, K), or (..., K, M) with `transpose_a`, or (K,)
    b : array (..., K, N), or (..., N, K) with `transpose_b`, or (K,)
        float64, float32, float16, bfloat16 or int8, the same for both, or float8_e4m3fn and float8_e5m2 in any combination. Batch
        dimensions broadcast and 1-D operands behave as in `numpy.matmul`. Arbitrary strides.
    bias : array (N,) or (1, N), per column, or (M, 1), per row
        Or (..., 1, N) or (..., M, 1): one per matrix of a batch; batch dimensions broadcast to y's.
    c : array that broadcasts to y
        May be exactly `out`.
    alpha, beta : float
        c is not read if beta is 0.
    activation : str or Activation
        A mode of `activation_fwd` with its default parameters, or ``device.activation.Activation(mode, ...)``.
    math : None, "tf32" or "fast"
        None: float32 accumulation of unrounded inputs. "tf32": float32 inputs may be rounded to TF32. "fast": anything within ten times the
        error of None.
    out_dtype : dtype
        Default: the operands', int32 for int8, bfloat16 for 8-bit floats. int8 and 8-bit float results saturate.
    scale_a : float32 array of one element, (M, 1) or (M, ceil(K/128))
        Scale of 8-bit float operands: per tensor, per row of a, or per 128 elements of a row along k; the same for every matrix of a batch.
        None: 1. Rows and columns are the product's, after transposition.
    scale_b : float32 array of one element, (1, N) or (ceil(K/128), ceil(N/128))
        Per tensor, per column of b, or per block of 128x128.
    out : array
        Output, written and returned; arbitrary strides. May be exactly `c`; other overlap with an operand is an error.
    workspace : array
        Contiguous bytes, aligned to 16; by default allocated like the output. If it is too small for the algorithm that would be chosen,
        another algorithm or configuration is; a forced one must fit.
    stream : int or stream
        Default: the current stream of a's framework.
    algo : str
        Force an algorithm (``python -m dnnkern list matmul``).
    allow : Note
        NONDETERMINISTIC admits nondeterministic algorithms.
    workspace_limit : int
        Most bytes of workspace that an algorithm may use; 0: none.
    exclude : Note
        Algorithms with any of these notes are not chosen.

    Returns
    -------
    y : array (..., M, N), of a's framework
        Accumulated in float32 (float64 for float64, int32 for int8), rounded once. If K is 0 the product is 0. The operands are scaled,
        ``(scale_a * a) @ (scale_b * b)``: block scales multiply the sum over their 128 of k, others the whole sum. Tensor
        cores (``Note.TENSOR_CORE``) add 8-bit floats with 13 bits within 128 of k; those sums are added in float32.

    Raises
    ------
    ValueError
        Shapes that do not match, an `out` that partly overlaps an operand, a small workspace, arrays on different devices.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem, or limits that no algorithm meets; each candidate's reason is listed.

    Notes
    -----
    Deterministic. Mirrors cublasLtMatmul with its epilogues, and cuDNN's Matmul operation with pointwise fusion.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 2), np.float32)
    >>> dnnkern.matmul(a, b, bias=np.array([0, -20], np.float32), activation="relu")
    array([[ 3.,  0.],
           [12.,  0.]], dtype=float32)
    """
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = number("matmul", "alpha", alpha), number("matmul", "beta", beta)
    if type(transpose_a) is not bool or type(transpose_b) is not bool:
        transpose_a, transpose_b = flag("matmul", "transpose_a", transpose_a), flag("matmul", "transpose_b", transpose_b)
    if beta == 0:
        c = None
    if scale_a is not None or scale_b is not None:
        operands = a, b, bias, c, scale_a, scale_b
    elif bias is not None or c is not None:
        operands = a, b, bias, c
    else:
        operands = a, b
    return _call(operands, out, (transpose_a, transpose_b, activation, math, out_dtype, alpha != 1, beta != 1), (alpha, beta),
                 workspace, stream, choice)


@public
def grouped_matmul(a, b, group_offsets, *, bias=None, alpha=1.0, transpose_b=False, activation=None, math=None, out_dtype=None,
                   scale_a=None, scale_b=None, out=None, workspace=None, stream=None, **choice):
    """Matrix products of groups of rows, one matrix per group: ``y[rows] = activation(alpha * a[rows] @ b[g] + bias[g])``.

    The rows of group g are ``group_offsets[g]`` to ``group_offsets[g + 1] - 1``. The offsets stay on the device, so a router's result can
    be used without synchronising, also in a CUDA graph.

    Parameters
    ----------
    a : array (M, K)
        Rows, sorted by group.
    b : array (G, K, N), or (G, N, K) with `transpose_b`
        dtypes as in `matmul`; arbitrary strides.
    group_offsets : int32 array (G + 1,)
        Ascending, 0 at least and M at most; groups may be empty. Rows of y before the first offset and from the last one on belong to no
        group and are not written: in a new y they are uninitialised. The values are checked only with ``DNNKERN_CHECK=values``; wrong ones
        never cause accesses outside the arrays.
    bias : array (G, N)
        One row per group.
    alpha : float
    activation, math, out_dtype
        As in `matmul`.
    scale_a : float32 array of one element, (M, 1) or (M, ceil(K/128))
    scale_b : float32 array of one element, (G, 1, N) or (G, ceil(K/128), ceil(N/128))
        Scales of 8-bit float operands, as in `matmul`.
    out : array (M, N)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `matmul`.

    Returns
    -------
    y : array (M, N), of a's framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `matmul`.

    Notes
    -----
    Deterministic. Mirrors cuDNN's MoE grouped matmul, whose offsets are the first G of these, and PyTorch's grouped_mm, whose offsets are
    the last G; PyTorch's does not write rows past the last group either.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> tokens = np.ones((5, 2), np.float32)
    >>> experts = np.stack([np.eye(2, dtype=np.float32) * g for g in (1, 2, 3)])
    >>> dnnkern.grouped_matmul(tokens, experts, np.array([0, 2, 2, 5], np.int32))
    array([[1., 1.],
           [1., 1.],
           [3., 3.],
           [3., 3.],
           [3., 3.]], dtype=float32)
    """
    alpha, transpose_b = number("grouped_matmul", "alpha", alpha), flag("grouped_matmul", "transpose_b", transpose_b)
    if scale_a is not None or scale_b is not None:
        operands = a, b, group_offsets, bias, scale_a, scale_b
    else:
        operands = (a, b, group_offsets) if bias is None else (a, b, group_offsets, bias)
    return _call_grouped(operands, out, (transpose_b, activation, math, out_dtype, alpha != 1), (alpha,), workspace, stream, choice)


@public
def grouped_matmul_bwd_weights(a, dy, group_offsets, *, math=None, out_dtype=None, out=None, workspace=None, stream=None, **choice):
    """The gradient of `grouped_matmul`'s matrices: ``db[g] = a[rows].T @ dy[rows]`` of the rows of each group.

    That of its rows is a grouped product too: ``grouped_matmul(dy, b, group_offsets, transpose_b=True)``.

    Parameters
    ----------
    a : array (M, K)
    dy : array (M, N)
        float64, float32, float16 or bfloat16, the same for both; arbitrary strides.
    group_offsets : int32 array (G + 1,)
        As `grouped_matmul` has them; rows of no group do not count.
    math, out_dtype
        As in `matmul`.
    out : array (G, K, N)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `matmul`.

    Returns
    -------
    db : array (G, K, N), of a's framework
        Zeros for a group without rows.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `grouped_matmul`.

    Notes
    -----
    Deterministic. Mirrors cuDNN's MoE grouped matmul backward, and PyTorch's grouped_mm of two matrices.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> a, dy = np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.array([[1], [10], [100]], np.float32)
    >>> dnnkern.grouped_matmul_bwd_weights(a, dy, np.array([0, 2, 2, 3], np.int32))[:, :, 0]
    array([[ 31.,  42.],
           [  0.,   0.],
           [500., 600.]], dtype=float32)
    """
    return _call_weights((a, dy, group_offsets), out, (math, out_dtype), (), workspace, stream, choice)
