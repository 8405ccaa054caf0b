"""Softmax and log-softmax along any axis, and their gradients."""
from ..host.front import Operation, public
from ..host.scalars import flag, integer
from ._problem import SoftmaxGradientProblem, SoftmaxProblem, make_backward, make_forward

__all__ = ["SoftmaxGradientProblem", "SoftmaxProblem", "softmax_bwd", "softmax_fwd"]

FORWARD = Operation("softmax_fwd", operands=("x",), outputs=("y",), problem=make_forward)
_forward = FORWARD.call
BACKWARD = Operation("softmax_bwd", operands=("dy", "y"), outputs=("dx",), problem=make_backward)
_backward = BACKWARD.call


@public
def softmax_fwd(x, *, axis=-1, log=False, out=None, workspace=None, stream=None, **choice):
    """Softmax along an axis: ``y = exp(x - m) / sum(exp(x - m))`` with m the maximum; or log-softmax, ``x - m - log(sum(exp(x - m)))``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; one to eight dimensions, arbitrary strides (0 and negative included).
    axis : int
        Negative numbers count from the end.
    log : bool
        Log-softmax, computed directly: finite where softmax is 0.
    out : array of x's shape
        Output, written and returned; arbitrary strides; of x's dtype, or another of float32, float16 and bfloat16. Overlap with x is an
        error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Contiguous, unless `out` is given. Computed in float32 (float64 for float64) and rounded once. If x is -inf, y is 0 (with `log`
        -inf). A row with NaN or +inf, or only -inf, is NaN throughout, as in PyTorch.

    Raises
    ------
    ValueError
        An axis that x has not, an `out` of another shape or that overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnSoftmaxForward with CUDNN_SOFTMAX_ACCURATE and CUDNN_SOFTMAX_LOG; axis 1 of NCHW is its mode CHANNEL. The
    online sum: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1, 2, 3], [1000, 1000, -np.inf]], np.float32)
    >>> dnnkern.softmax_fwd(x).round(4)
    array([[0.09  , 0.2447, 0.6652],
           [0.5   , 0.5   , 0.    ]], dtype=float32)
    >>> dnnkern.softmax_fwd(x[:1], log=True).round(4)
    array([[-2.4076, -1.4076, -0.4076]], dtype=float32)
    """
    return _forward((x,), out, (integer("softmax_fwd", "axis", axis), flag("softmax_fwd", "log", log)), (), workspace, stream, choice)


@public
def softmax_bwd(dy, y, *, axis=-1, log=False, out=None, workspace=None, stream=None, **choice):
    """The gradient of `softmax_fwd`: ``dx = y * (dy - sum(y * dy))``, or with log ``dx = dy - exp(y) * sum(dy)``, sums along the axis.

    Parameters
    ----------
    dy : array
        Gradient of the result; dtypes and strides as in `softmax_fwd`.
    y : array of dy's shape and dtype
        As returned by `softmax_fwd`.
    axis, log
        As passed to `softmax_fwd`.
    out : array of dy's shape and dtype
        Output, written and returned; arbitrary strides. Overlap with dy or y is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework
        Contiguous, unless `out` is given. Computed in float32 (float64 for float64) and rounded once.

    Raises
    ------
    ValueError
        Shapes that differ, an axis out of range, an `out` of another shape or that overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnSoftmaxBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y = dnnkern.softmax_fwd(np.array([1, 2, 3], np.float32))
    >>> dnnkern.softmax_bwd(np.array([1, 0, 0], np.float32), y).round(4)
    array([ 0.0819, -0.022 , -0.0599], dtype=float32)
    """
    return _backward((dy, y), out, (integer("softmax_bwd", "axis", axis), flag("softmax_bwd", "log", log)), (), workspace, stream, choice)
