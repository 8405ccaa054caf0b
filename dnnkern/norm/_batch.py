"""Batch normalisation: the public functions."""
from ..host.front import Operation, public
from ..host.scalars import flag, number
from ._batch_problem import make_batch_backward, make_batch_backward_frozen, make_batch_infer, make_batch_train
from ._channel_problem import backward_operands

BATCH_TRAIN = Operation("batch_norm_train_fwd", operands=("x", "gamma", "beta", "running_mean", "running_var", "residual"),
                        outputs=("y", "mean", "rstd"), scalars=("eps", "momentum"), problem=make_batch_train,
                        updates=frozenset({"running_mean", "running_var"}))
BATCH_INFER = Operation("batch_norm_infer", operands=("x", "gamma", "beta", "mean", "var", "residual"), outputs=("y",), scalars=("eps",),
                        problem=make_batch_infer)
# The one with a residual comes first: the first of an op is what `find` takes for problems of either kind.
_BACKWARD = {(residual, frozen): Operation(
    "batch_norm_bwd", operands=("dy", "x", "gamma", "mean", "rstd", "y", "beta"),
    outputs=("dx", "dgamma", "dbeta", "dresidual")[:4 if residual else 3],
    problem=make_batch_backward_frozen if frozen else make_batch_backward) for residual in (True, False) for frozen in (False, True)}
BATCH_BACKWARD = _BACKWARD[True, False]
_train, _infer = BATCH_TRAIN.call, BATCH_INFER.call


@public
def batch_norm_train_fwd(x, gamma, beta, running_mean=None, running_var=None, *, momentum=0.1, eps=1e-5, mode="spatial", layout="NCHW",
                         activation=None, residual=None, out=None, workspace=None, stream=None, **choice):
    """Batch normalisation with the statistics of the batch: ``y = activation((x - mean) * rstd * gamma + beta + residual)``.

    ``rstd = 1 / sqrt(var + eps)``, and ``running = (1 - momentum) * running + momentum * batch`` for the mean and the unbiased variance.

    Parameters
    ----------
    x : array (N, C, spatial...) or (N, spatial..., C)
        Up to three spatial dimensions, or none; float64, float32, float16 or bfloat16; arbitrary strides.
    gamma, beta : array or None
        (C,), with ``mode="per_activation"`` ``x.shape[1:]``; float64 with a float64 x, else float32, float16 or bfloat16.
        None: 1 and 0.
    running_mean, running_var : array, optional
        As gamma, in shape and dtype. Updated in place.
    momentum : float
        Weight of the new batch statistic.
    eps : float
        Added to the biased variance.
    mode : "spatial" or "per_activation"
        Statistics per channel, over images and pixels; or per channel and pixel, over images only.
    layout : "NCHW", "NHWC" or "channels_last"
        Channels first or last, for any number of spatial dimensions. "channels_last": sizes as in "NCHW"; what is allocated lies in memory
        as with "NHWC", which for arrays of NumPy, CuPy and PyTorch can be said.
    activation : str or Activation, optional
        Any of `activation_fwd` without array parameters; with a residual only relu or leaky_relu, whose gradient follows from y.
    residual : array, optional
        Of x's shape and dtype, arbitrary strides.
    out : tuple of arrays (y, mean, rstd)
        Output, written and returned; arbitrary strides. y of any dtype that gamma may have. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y, mean, rstd : arrays, of x's framework
        y as x; mean and rstd of gamma's shape in float32 (float64 for float64), for `batch_norm_bwd`.

    Raises
    ------
    ValueError
        Shapes that do not match, channels without values, an activation that cannot be combined with a residual, overlapping arrays.
    TypeError
        Dtypes, objects that are not device arrays, immutable `out` or running statistics.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. The variance is a sum of squared distances from the mean, not a difference of squares. The unbiased variance divides by
    one less than the number of values, or by 1 if there is only one. Mirrors cudnnBatchNormalizationForwardTrainingEx and its fusions, and
    `torch.nn.functional.batch_norm`; Ioffe and Szegedy, "Batch normalization" (2015).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, ones, zeros = np.array([[[1, 2]], [[3, 6]]], np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)
    >>> running_mean, running_var = np.zeros(1, np.float32), np.ones(1, np.float32)
    >>> y, mean, rstd = dnnkern.batch_norm_train_fwd(x, ones, zeros, running_mean, running_var, activation="relu")
    >>> y.round(3).ravel(), mean
    (array([0.   , 0.   , 0.   , 1.604], dtype=float32), array([3.], dtype=float32))
    >>> running_mean.round(3), running_var.round(3)
    (array([0.3], dtype=float32), array([1.367], dtype=float32))
    """
    eps, momentum = number("batch_norm_train_fwd", "eps", eps), number("batch_norm_train_fwd", "momentum", momentum)
    if residual is not None:
        operands = x, gamma, beta, running_mean, running_var, residual
    else:
        operands = (x, gamma, beta) if running_mean is None and running_var is None else (x, gamma, beta, running_mean, running_var)
    return _train(operands, out, (mode, layout, activation), (eps, momentum), workspace, stream, choice)


@public
def batch_norm_infer(x, gamma, beta, mean, var, *, eps=1e-5, mode="spatial", layout="NCHW", activation=None, residual=None, out=None,
                     workspace=None, stream=None, **choice):
    """Batch normalisation with given statistics: ``y = activation((x - mean) / sqrt(var + eps) * gamma + beta + residual)``.

    Parameters
    ----------
    x, gamma, beta, eps, mode, layout, residual, workspace, stream, algo, allow, workspace_limit, exclude
        As in `batch_norm_train_fwd`.
    mean, var : array
        As gamma, in shape and dtype: what training left in `running_mean` and `running_var`.
    activation : str or Activation, optional
        Any of `activation_fwd` without array parameters.
    out : array
        Output, written and returned; arbitrary strides; of any dtype that gamma may have. Overlap with an operand is an error.

    Returns
    -------
    y : array of x's shape, dtype and framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `batch_norm_train_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnBatchNormalizationForwardInference.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> one, two, four = (np.full(1, v, np.float32) for v in (1, 2, 4))
    >>> dnnkern.batch_norm_infer(np.array([[3], [7]], np.float32), two, one, one, four, eps=0.0)
    array([[3.],
           [7.]], dtype=float32)
    """
    operands = (x, gamma, beta, mean, var) if residual is None else (x, gamma, beta, mean, var, residual)
    return _infer(operands, out, (mode, layout, activation), (number("batch_norm_infer", "eps", eps),), workspace, stream, choice)


@public
def batch_norm_bwd(dy, x, gamma, mean, rstd, *, mode="spatial", layout="NCHW", activation=None, y=None, beta=None, residual=False,
                   frozen=False, out=None, workspace=None, stream=None, **choice):
    """The gradients of `batch_norm_train_fwd`, or of `batch_norm_infer`.

    With ``dz = dy * activation'`` and ``n = (x - mean) * rstd``, averages and sums over the values of a mean,
    ``dx = gamma * rstd * (dz - avg(dz) - n * avg(dz * n))``, ``dgamma = sum(dz * n)``, ``dbeta = sum(dz)`` and ``dresidual = dz``.
    Where the statistics are constants, those of a frozen layer, ``dx = gamma * rstd * dz``.

    Parameters
    ----------
    dy, x : array
        Of one shape and dtype; strides and dtypes as in `batch_norm_train_fwd`.
    gamma : array or None
        As passed to `batch_norm_train_fwd`.
    mean, rstd : array
        As returned by it; frozen: the running mean, and ``1 / sqrt(running_var + eps)``, both of float32 (float64 for float64).
    mode, layout, activation
        As passed to it.
    y : array, for relu and leaky_relu
        As returned by it: their gradient follows from it.
    beta : array, for other activations
        As passed to it: their argument, ``(x - mean) * rstd * gamma + beta``, is recomputed. May be None if gamma is.
    residual : bool
        Also return dresidual.
    frozen : bool
        The statistics are constants, as in `batch_norm_infer`.
    out : tuple of arrays (dx, dgamma, dbeta), with `residual` (dx, dgamma, dbeta, dresidual)
        Output, written and returned; arbitrary strides. dgamma and dbeta of any dtype that gamma may have. Overlap with an operand is
        an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx, dgamma, dbeta[, dresidual] : arrays, of dy's framework
        dx and dresidual as x, the others of gamma's dtype (x's without gamma). Summed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `batch_norm_train_fwd`.

    Notes
    -----
    Deterministic: sums have a fixed order. Mirrors cudnnBatchNormalizationBackwardEx.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy, ones = np.array([[1], [2], [6]], np.float32), np.array([[1], [0], [0]], np.float32), np.ones(1, np.float32)
    >>> y, mean, rstd = dnnkern.batch_norm_train_fwd(x, ones, None)
    >>> dx, dgamma, dbeta = dnnkern.batch_norm_bwd(dy, x, ones, mean, rstd)
    >>> dx.round(3).ravel(), dgamma.round(3), dbeta
    (array([ 0.176, -0.22 ,  0.044], dtype=float32), array([-0.926], dtype=float32), array([1.], dtype=float32))
    >>> dnnkern.batch_norm_bwd(dy, x, ones, mean, rstd, frozen=True)[0].round(3).ravel()
    array([0.463, 0.   , 0.   ], dtype=float32)
    """
    residual = flag("batch_norm_bwd", "residual", residual)
    call = _BACKWARD[residual, frozen is not False and flag("batch_norm_bwd", "frozen", frozen)].call
    operands = backward_operands(dy, x, gamma, mean, rstd, y, beta)
    return call(operands, out, (mode, layout, activation, residual), (), workspace, stream, choice)
