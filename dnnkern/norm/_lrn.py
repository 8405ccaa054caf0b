"""Local response normalisation: the public functions."""
from ..host.front import Operation, public
from ..host.scalars import integer, number
from ._lrn_problem import make_lrn_backward, make_lrn_forward

SCALARS = ("alpha", "beta", "k")
LRN_FORWARD = Operation("lrn_fwd", operands=("x",), outputs=("y",), scalars=SCALARS, problem=make_lrn_forward)
LRN_BACKWARD = Operation("lrn_bwd", operands=("dy", "x", "y"), outputs=("dx",), scalars=SCALARS, problem=make_lrn_backward)
_forward, _backward = LRN_FORWARD.call, LRN_BACKWARD.call


@public
def lrn_fwd(x, *, size=5, alpha=1e-4, beta=0.75, k=1.0, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """Local response normalisation across channels: ``y = x / s ** beta``, ``s = k + alpha / size * sum(x * x)``.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        Up to three spatial dimensions, or none; float64, float32, float16 or bfloat16; arbitrary strides.
    size : int
        Channels of the sum for channel c: from ``c - size // 2`` to ``c + (size - 1) // 2``; channels outside x count as 0.
    alpha, beta, k : float
        s must be positive.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array of x's shape, dtype and framework

    Raises
    ------
    ValueError
        Shapes that do not match, a size below 1, overlapping arrays.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. As `torch.nn.functional.local_response_norm`, and cudnnLRNCrossChannelForward for an odd size (cuDNN's windows of an even
    one extend further ahead); Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks"
    (2012).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[1], [2], [3]]], np.float32)
    >>> dnnkern.lrn_fwd(x, size=3, alpha=3.0, beta=1.0, k=0.0).round(3).ravel()
    array([0.2  , 0.143, 0.231], dtype=float32)
    """
    numbers = number("lrn_fwd", "alpha", alpha), number("lrn_fwd", "beta", beta), number("lrn_fwd", "k", k)
    return _forward((x,), out, (integer("lrn_fwd", "size", size, 1), layout), numbers, workspace, stream, choice)


@public
def lrn_bwd(dy, x, y, *, size=5, alpha=1e-4, beta=0.75, k=1.0, layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The gradient of `lrn_fwd`: ``dx = dy * s ** -beta - 2 * alpha * beta / size * x * sum(dy * y / s)``, the sum over the channels
    whose windows contain this one.

    Parameters
    ----------
    dy, x, y : array
        Of one shape and dtype, arbitrary strides; y is what `lrn_fwd` returned.
    size, alpha, beta, k, layout
        As passed to it.
    out : array
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of dy's shape, dtype and framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `lrn_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnLRNCrossChannelBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[[1], [2]]], np.float32), np.array([[[1], [0]]], np.float32)
    >>> settings = {"size": 3, "alpha": 3.0, "beta": 1.0, "k": 1.0}
    >>> dnnkern.lrn_bwd(dy, x, dnnkern.lrn_fwd(x, **settings), **settings).round(3).ravel()
    array([ 0.111, -0.111], dtype=float32)
    """
    numbers = number("lrn_bwd", "alpha", alpha), number("lrn_bwd", "beta", beta), number("lrn_bwd", "k", k)
    return _backward((dy, x, y), out, (integer("lrn_bwd", "size", size, 1), layout), numbers, workspace, stream, choice)
