"""Group and instance normalisation: the public functions."""
from ..host.front import Operation, public
from ..host.scalars import integer, number
from ._channel_problem import backward_operands
from ._group_problem import make_group_backward, make_group_forward, make_instance_backward, make_instance_forward

_FORWARD = {"operands": ("x", "gamma", "beta"), "outputs": ("y", "mean", "rstd"), "scalars": ("eps",)}
_BACKWARD = {"operands": ("dy", "x", "gamma", "mean", "rstd", "y", "beta"), "outputs": ("dx", "dgamma", "dbeta")}
GROUP_FORWARD = Operation("group_norm_fwd", problem=make_group_forward, **_FORWARD)
GROUP_BACKWARD = Operation("group_norm_bwd", problem=make_group_backward, **_BACKWARD)
_group_forward, _group_backward = GROUP_FORWARD.call, GROUP_BACKWARD.call
_instance_forward = Operation("group_norm_fwd", function="instance_norm_fwd", problem=make_instance_forward, **_FORWARD).call
_instance_backward = Operation("group_norm_bwd", function="instance_norm_bwd", problem=make_instance_backward, **_BACKWARD).call


@public
def group_norm_fwd(x, gamma, beta, groups, *, eps=1e-5, layout="NCHW", activation=None, out=None, workspace=None, stream=None, **choice):
    """Group normalisation: ``y = activation((x - mean) * rstd * gamma + beta)``, ``rstd = 1 / sqrt(var + eps)``, with a mean and a variance
    per image and group of C/groups neighbouring channels.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        Up to three spatial dimensions, or none; float64, float32, float16 or bfloat16; arbitrary strides.
    gamma, beta : array (C,) or None
        float64 with a float64 x, else float32, float16 or bfloat16. None: 1 and 0.
    groups : int
        A divisor of C.
    eps : float
        Added to the biased variance.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    activation : str or Activation, optional
        Any of `activation_fwd` without array parameters.
    out : tuple of arrays (y, mean, rstd)
        Output, written and returned; arbitrary strides. y of any dtype that gamma may have. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y, mean, rstd : arrays, of x's framework
        y as x; mean and rstd (N, groups) in float32 (float64 for float64), for `group_norm_bwd`.

    Raises
    ------
    ValueError
        Shapes that do not match, groups that do not divide C or have no values, overlapping arrays.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. The variance is a sum of squared distances from the mean, not a difference of squares. As
    `torch.nn.functional.group_norm`; Wu and He, "Group normalization" (2018).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[1], [3], [10], [30]]], np.float32)
    >>> y, mean, rstd = dnnkern.group_norm_fwd(x, None, None, 2)
    >>> y.round(3).ravel(), mean
    (array([-1.,  1., -1.,  1.], dtype=float32), array([[ 2., 20.]], dtype=float32))
    """
    groups = integer("group_norm_fwd", "groups", groups, 1)
    eps = number("group_norm_fwd", "eps", eps)
    return _group_forward((x, gamma, beta), out, (groups, layout, activation), (eps,), workspace, stream, choice)


@public
def group_norm_bwd(dy, x, gamma, mean, rstd, groups, *, layout="NCHW", activation=None, y=None, beta=None, out=None, workspace=None,
                   stream=None, **choice):
    """The gradients of `group_norm_fwd`.

    With ``dz = dy * activation'``, ``n = (x - mean) * rstd``, ``g = dz * gamma`` and averages over the values of a mean,
    ``dx = rstd * (g - avg(g) - n * avg(g * n))``; summed over images and pixels, ``dgamma = sum(dz * n)`` and ``dbeta = sum(dz)``.

    Parameters
    ----------
    dy, x : array
        Of one shape and dtype; strides and dtypes as in `group_norm_fwd`.
    gamma : array or None
        As passed to `group_norm_fwd`.
    mean, rstd : array
        As returned by it.
    groups, layout, activation
        As passed to it.
    y : array, for relu and leaky_relu
        As returned by it: their gradient follows from it.
    beta : array, for other activations
        As passed to it: their argument, ``(x - mean) * rstd * gamma + beta``, is recomputed. May be None if gamma is.
    out : tuple of arrays (dx, dgamma, dbeta)
        Output, written and returned; arbitrary strides. dgamma and dbeta of any dtype that gamma may have. Overlap with an operand is
        an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx, dgamma, dbeta : arrays, of dy's framework
        dx as x, the others of gamma's dtype (x's without gamma). Summed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `group_norm_fwd`.

    Notes
    -----
    Deterministic: sums have a fixed order.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[[1], [2], [6]]], np.float32), np.array([[[1], [0], [0]]], np.float32)
    >>> y, mean, rstd = dnnkern.group_norm_fwd(x, None, None, 1)
    >>> dx, dgamma, dbeta = dnnkern.group_norm_bwd(dy, x, None, mean, rstd, 1)
    >>> dx.round(3).ravel(), dbeta
    (array([ 0.176, -0.22 ,  0.044], dtype=float32), array([1., 0., 0.], dtype=float32))
    >>> gamma, beta = np.ones(3, np.float32), np.array([0, 1, -1], np.float32)
    >>> y, mean, rstd = dnnkern.group_norm_fwd(x, gamma, beta, 1, activation="silu")
    >>> dx, dgamma, dbeta = dnnkern.group_norm_bwd(dy, x, gamma, mean, rstd, 1, activation="silu", beta=beta)
    >>> dbeta.round(3)
    array([0.096, 0.   , 0.   ], dtype=float32)
    """
    groups = integer("group_norm_bwd", "groups", groups, 1)
    operands = backward_operands(dy, x, gamma, mean, rstd, y, beta)
    return _group_backward(operands, out, (groups, layout, activation), (), workspace, stream, choice)


@public
def instance_norm_fwd(x, gamma=None, beta=None, *, eps=1e-5, layout="NCHW", activation=None, out=None, workspace=None, stream=None,
                      **choice):
    """Instance normalisation: ``y = activation((x - mean) * rstd * gamma + beta)``, ``rstd = 1 / sqrt(var + eps)``, with a mean and a
    variance per image and channel: group normalisation with one channel per group.

    Parameters
    ----------
    x, gamma, beta, eps, layout, activation, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `group_norm_fwd`.

    Returns
    -------
    y, mean, rstd : arrays, of x's framework
        As in `group_norm_fwd`; mean and rstd (N, C).

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `group_norm_fwd`.

    Notes
    -----
    Deterministic. Mirrors cuDNN's instancenorm operation, and `torch.nn.functional.instance_norm`; Ulyanov, Vedaldi and Lempitsky,
    "Instance normalization" (2016).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, mean, rstd = dnnkern.instance_norm_fwd(np.array([[[1, 3], [10, 30]]], np.float32))
    >>> y.round(3), mean
    (array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32), array([[ 2., 20.]], dtype=float32))
    """
    eps = number("instance_norm_fwd", "eps", eps)
    return _instance_forward((x, gamma, beta), out, (layout, activation), (eps,), workspace, stream, choice)


@public
def instance_norm_bwd(dy, x, gamma, mean, rstd, *, layout="NCHW", activation=None, y=None, beta=None, out=None, workspace=None,
                      stream=None, **choice):
    """The gradients of `instance_norm_fwd`: those of `group_norm_fwd` with one channel per group.

    Parameters
    ----------
    dy, x, gamma, mean, rstd, layout, activation, y, beta, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `group_norm_bwd`.

    Returns
    -------
    dx, dgamma, dbeta : arrays, of dy's framework
        As in `group_norm_bwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `group_norm_fwd`.

    Notes
    -----
    Deterministic: sums have a fixed order. Mirrors cuDNN's instancenorm backward operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[[1, 2, 6]]], np.float32), np.array([[[1, 0, 0]]], np.float32)
    >>> y, mean, rstd = dnnkern.instance_norm_fwd(x)
    >>> dnnkern.instance_norm_bwd(dy, x, None, mean, rstd)[0].round(3)
    array([[[ 0.176, -0.22 ,  0.044]]], dtype=float32)
    """
    operands = backward_operands(dy, x, gamma, mean, rstd, y, beta)
    return _instance_backward(operands, out, (layout, activation), (), workspace, stream, choice)
