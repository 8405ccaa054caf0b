"""Layer and RMS normalisation, and their gradients."""
from ..host.front import Operation, public
from ..host.scalars import flag, integer, number
from ._batch import BATCH_BACKWARD, BATCH_INFER, BATCH_TRAIN, batch_norm_bwd, batch_norm_infer, batch_norm_train_fwd  # noqa: F401
from ._batch_problem import BatchNormGradientProblem, BatchNormProblem
from ._group_problem import GroupNormGradientProblem
from ._group import GROUP_BACKWARD, GROUP_FORWARD, group_norm_bwd, group_norm_fwd, instance_norm_bwd, instance_norm_fwd  # noqa: F401
from ._parts import (BATCH_APPLY, BATCH_MERGE, batch_norm_bwd_apply, batch_norm_bwd_sums, batch_norm_merge,  # noqa: F401
                     batch_norm_stats)
from ._lrn import LRN_BACKWARD, LRN_FORWARD, lrn_bwd, lrn_fwd  # noqa: F401
from ._problem import (LayerNormGradientProblem, LayerNormProblem, RmsNormGradientProblem, RmsNormProblem, make_layer_backward,
                       make_layer_forward, make_layer_forward_residual, make_rms_backward, make_rms_backward_beta, make_rms_forward,
                       make_rms_forward_residual)

__all__ = ["BatchNormGradientProblem", "BatchNormProblem", "GroupNormGradientProblem", "LayerNormGradientProblem",
           "LayerNormProblem", "RmsNormGradientProblem", "RmsNormProblem", "batch_norm_bwd", "batch_norm_bwd_apply", "batch_norm_bwd_sums",
           "batch_norm_infer", "batch_norm_merge", "batch_norm_stats",
           "batch_norm_train_fwd", "group_norm_bwd", "group_norm_fwd", "instance_norm_bwd", "instance_norm_fwd", "layer_norm_bwd",
           "layer_norm_fwd", "lrn_bwd", "lrn_fwd", "rms_norm_bwd", "rms_norm_fwd"]

_FORWARD, _BACKWARD = {"operands": ("x", "gamma", "beta"), "scalars": ("eps",)}, {"outputs": ("dx", "dgamma", "dbeta")}
_RESIDUAL = {**_FORWARD, "operands": ("x", "gamma", "beta", "residual")}
# Of two operations of one name that with more arrays comes first: `find` takes it for problems of either kind.
LAYER_FORWARD = Operation("layer_norm_fwd", outputs=("y", "mean", "rstd", "summed"), problem=make_layer_forward_residual, **_RESIDUAL)
LAYER_BACKWARD = Operation("layer_norm_bwd", operands=("dy", "x", "gamma", "mean", "rstd", "dsummed"), problem=make_layer_backward,
                           **_BACKWARD)
RMS_FORWARD = Operation("rms_norm_fwd", outputs=("y", "rstd", "summed"), problem=make_rms_forward_residual, **_RESIDUAL)
RMS_BACKWARD = Operation("rms_norm_bwd", operands=("dy", "x", "gamma", "rstd", "dsummed"), problem=make_rms_backward_beta, **_BACKWARD)
_layer_residual, _layer_backward, _rms_residual, _rms_backward_beta = (
    o.call for o in (LAYER_FORWARD, LAYER_BACKWARD, RMS_FORWARD, RMS_BACKWARD))
_layer_forward = Operation("layer_norm_fwd", outputs=("y", "mean", "rstd"), problem=make_layer_forward, **_FORWARD).call
_rms_forward = Operation("rms_norm_fwd", outputs=("y", "rstd"), problem=make_rms_forward, **_FORWARD).call
_rms_backward = Operation("rms_norm_bwd", operands=RMS_BACKWARD.operands, outputs=("dx", "dgamma"), problem=make_rms_backward).call


@public
def layer_norm_fwd(x, gamma=None, beta=None, *, axis=-1, eps=1e-5, residual=None, out=None, workspace=None, stream=None, **choice):
    """Layer normalisation over the dimensions from `axis` on: ``y = (x - mean) * rstd * gamma + beta``, ``rstd = 1 / sqrt(var + eps)``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; one to eight dimensions, arbitrary strides.
    gamma, beta : array of shape ``x.shape[axis:]``, optional
        float64 with a float64 x, else float32, float16 or bfloat16; default: 1 and 0.
    axis : int
        The first dimension that is normalised; negative numbers count from the end.
    eps : float
        Added to the biased variance.
    residual : array, optional
        Of x's shape and dtype: ``summed = x + residual``, rounded to x's dtype, is normalised instead of x, and returned.
    out : tuple of arrays (y, mean, rstd[, summed])
        Output, written and returned; arbitrary strides. y of any dtype that gamma may have. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y, mean, rstd[, summed] : arrays, of x's framework
        y as x; mean and rstd of shape ``x.shape[:axis]`` in float32 (float64 for float64), for `layer_norm_bwd`; with a residual also
        summed, as x.

    Raises
    ------
    ValueError
        Shapes that do not match, an axis out of range, empty rows, overlapping arrays.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. The variance is a sum of squared distances from the mean, accurate for rows far from 0. Mirrors cuDNN's layernorm
    operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, mean, rstd = dnnkern.layer_norm_fwd(np.array([[1, 2, 3], [10001, 10002, 10003]], np.float32))
    >>> y.round(3)
    array([[-1.225,  0.   ,  1.225],
           [-1.225,  0.   ,  1.225]], dtype=float32)
    >>> mean
    array([2.0000e+00, 1.0002e+04], dtype=float32)
    """
    axis, eps = integer("layer_norm_fwd", "axis", axis), number("layer_norm_fwd", "eps", eps)
    if residual is not None:
        return _layer_residual((x, gamma, beta, residual), out, (axis,), (eps,), workspace, stream, choice)
    return _layer_forward((x, gamma, beta), out, (axis,), (eps,), workspace, stream, choice)


@public
def layer_norm_bwd(dy, x, gamma, mean, rstd, *, axis=-1, dsummed=None, out=None, workspace=None, stream=None, **choice):
    """The gradients of `layer_norm_fwd`.

    With ``n = (x - mean) * rstd``, ``g = dy * gamma`` and averages over a row, ``dx = rstd * (g - avg(g) - n * avg(g * n)) + dsummed``;
    summed over the rows, ``dgamma = sum(dy * n)`` and ``dbeta = sum(dy)``.

    Parameters
    ----------
    dy, x : array
        Of one shape and dtype; strides and dtypes as in `layer_norm_fwd`. x is what was normalised: `summed` if there was a residual.
    gamma : array or None
        As passed to `layer_norm_fwd`.
    mean, rstd : array
        As returned by `layer_norm_fwd`.
    axis : int
        As passed to `layer_norm_fwd`.
    dsummed : array, optional
        Of x's shape and dtype, arbitrary strides: the other gradient of `summed`, from the residual stream of a pre-norm transformer.
        It is added before dx is rounded; dx is then the gradient of `summed`, and so of x and of the residual.
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
        As `layer_norm_fwd`.

    Notes
    -----
    Deterministic: sums over rows have a fixed order. Mirrors cuDNN's layernorm backward operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[1, 2, 3], [4, 4, 7]], np.float32), np.array([[1, 0, 0], [0, 0, 1]], np.float32)
    >>> y, mean, rstd = dnnkern.layer_norm_fwd(x)
    >>> dx, dgamma, dbeta = dnnkern.layer_norm_bwd(dy, x, None, mean, rstd)
    >>> dgamma.round(3), dbeta
    (array([-1.225,  0.   ,  1.414], dtype=float32), array([1., 0., 1.], dtype=float32))
    >>> dnnkern.layer_norm_bwd(dy, x, None, mean, rstd, dsummed=np.full((2, 3), 10, np.float32))[0].round(3)
    array([[10.204,  9.592, 10.204],
           [10.   , 10.   , 10.   ]], dtype=float32)
    """
    operands = (dy, x, gamma, mean, rstd) if dsummed is None else (dy, x, gamma, mean, rstd, dsummed)
    return _layer_backward(operands, out, (integer("layer_norm_bwd", "axis", axis),), (), workspace, stream, choice)


@public
def rms_norm_fwd(x, gamma=None, beta=None, *, axis=-1, eps=1e-6, residual=None, out=None, workspace=None, stream=None, **choice):
    """RMS normalisation over the dimensions from `axis` on: ``y = x * rstd * gamma + beta``, ``rstd = 1 / sqrt(mean(x * x) + eps)``.

    Parameters
    ----------
    x, gamma, beta, axis, eps, residual, workspace, stream, algo, allow, workspace_limit, exclude
        As in `layer_norm_fwd`.
    out : tuple of arrays (y, rstd[, summed])
        Output, written and returned; arbitrary strides. y of any dtype that gamma may have. Overlap with an operand is an error.

    Returns
    -------
    y, rstd[, summed] : arrays, of x's framework
        y as x; rstd of shape ``x.shape[:axis]`` in float32 (float64 for float64), for `rms_norm_bwd`; with a residual also summed, as x.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `layer_norm_fwd`.

    Notes
    -----
    Deterministic. Mirrors cuDNN's rmsnorm operation; Zhang and Sennrich, "Root mean square layer normalization" (2019).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, rstd = dnnkern.rms_norm_fwd(np.array([[3, 4], [-1, 1]], np.float32), np.array([1, 10], np.float32))
    >>> y.round(3)
    array([[ 0.849, 11.314],
           [-1.   , 10.   ]], dtype=float32)
    >>> y, rstd, summed = dnnkern.rms_norm_fwd(np.array([3], np.float32), residual=np.array([1], np.float32))
    >>> summed
    array([4.], dtype=float32)
    """
    axis, eps = integer("rms_norm_fwd", "axis", axis), number("rms_norm_fwd", "eps", eps)
    if residual is not None:
        return _rms_residual((x, gamma, beta, residual), out, (axis,), (eps,), workspace, stream, choice)
    return _rms_forward((x, gamma, beta), out, (axis,), (eps,), workspace, stream, choice)


@public
def rms_norm_bwd(dy, x, gamma, rstd, *, axis=-1, dsummed=None, has_beta=False, out=None, workspace=None, stream=None, **choice):
    """The gradients of `rms_norm_fwd`: with ``n = x * rstd`` and ``g = dy * gamma``, ``dx = rstd * (g - n * avg(g * n)) + dsummed`` and,
    summed over the rows, ``dgamma = sum(dy * n)`` and ``dbeta = sum(dy)``.

    Parameters
    ----------
    dy, x, gamma, rstd, axis, dsummed, workspace, stream, algo, allow, workspace_limit, exclude
        As in `layer_norm_bwd`.
    has_beta : bool
        Also return dbeta.
    out : tuple of arrays (dx, dgamma[, dbeta])
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.

    Returns
    -------
    dx, dgamma[, dbeta] : arrays, of dy's framework
        As in `layer_norm_bwd`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `layer_norm_fwd`.

    Notes
    -----
    Deterministic: sums over rows have a fixed order. Mirrors cuDNN's rmsnorm backward operation.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[3, 4]], np.float32), np.array([[1, 0]], np.float32)
    >>> y, rstd = dnnkern.rms_norm_fwd(x)
    >>> dx, dgamma = dnnkern.rms_norm_bwd(dy, x, None, rstd)
    >>> dx.round(3), dgamma.round(3)
    (array([[ 0.181, -0.136]], dtype=float32), array([0.849, 0.   ], dtype=float32))
    """
    call = _rms_backward_beta if flag("rms_norm_bwd", "has_beta", has_beta) else _rms_backward
    operands = (dy, x, gamma, rstd) if dsummed is None else (dy, x, gamma, rstd, dsummed)
    return call(operands, out, (integer("rms_norm_bwd", "axis", axis),), (), workspace, stream, choice)
