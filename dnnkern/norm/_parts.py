"""Batch normalisation in parts, for batches that are divided among devices: the public functions."""
from ..host.front import Operation, public
from ..host.scalars import flag, number
from ._channel_problem import backward_operands
from ._parts_problem import make_apply, make_merge, make_stats, make_sums

_stats = Operation("batch_norm_train_fwd", operands=("x",), outputs=("mean", "rstd"), scalars=("eps", "momentum"), problem=make_stats,
                   function="batch_norm_stats").call
BATCH_MERGE = Operation("batch_norm_merge", operands=("means", "rstds", "counts", "running_mean", "running_var"),
                        outputs=("mean", "var", "rstd"), scalars=("eps", "momentum"), problem=make_merge,
                        updates=frozenset({"running_mean", "running_var"}))
_merge = BATCH_MERGE.call
_sums = Operation("batch_norm_bwd", operands=("dy", "x", "gamma", "mean", "rstd", "y", "beta"), outputs=("dgamma", "dbeta"),
                  problem=make_sums, function="batch_norm_bwd_sums").call
_APPLIED = ("dy", "x", "gamma", "mean", "rstd", "dgamma", "dbeta", "counts", "y", "beta")
# The one with a residual comes first: the first of an op is what `find` takes for problems of either kind.
BATCH_APPLY = Operation("batch_norm_bwd_apply", operands=_APPLIED, outputs=("dx", "dresidual"), problem=make_apply)
_apply_residual = BATCH_APPLY.call
_apply = Operation("batch_norm_bwd_apply", operands=_APPLIED, outputs=("dx",), problem=make_apply).call


@public
def batch_norm_stats(x, *, eps=1e-5, mode="spatial", layout="NCHW", out=None, workspace=None, stream=None, **choice):
    """The statistics that `batch_norm_train_fwd` normalises with, alone: the mean, and ``rstd = 1 / sqrt(var + eps)``.

    Parameters
    ----------
    x, eps, mode, layout, workspace, stream, algo, allow, workspace_limit, exclude
        As in `batch_norm_train_fwd`, whose algorithms these are.
    out : tuple of arrays (mean, rstd)
        Output, written and returned; arbitrary strides. Overlap with x is an error.

    Returns
    -------
    mean, rstd : arrays, of x's framework
        As `batch_norm_train_fwd` returns them; `batch_norm_merge` merges those of several parts of a batch.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `batch_norm_train_fwd`.

    Notes
    -----
    Deterministic. Mirrors ``torch.batch_norm_stats``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.batch_norm_stats(np.array([[1, 10], [3, 10]], np.float32), eps=1.0)
    (array([ 2., 10.], dtype=float32), array([0.70710677, 1.        ], dtype=float32))
    """
    return _stats((x,), out, (mode, layout), (number("batch_norm_stats", "eps", eps), 0.0), workspace, stream, choice)


@public
def batch_norm_merge(means, rstds, counts, running_mean=None, running_var=None, *, momentum=0.1, eps=1e-5, out=None, workspace=None,
                     stream=None, **choice):
    """The statistics of a batch from those of its parts, such as the ranks of a process group.

    ``var = 1 / rstd**2 - eps`` in each part; two parts of n and m values have together the mean ``a + (b - a) * m / (n + m)`` and the sum
    of squared distances of both and ``(b - a)**2 * n * m / (n + m)`` more.

    Parameters
    ----------
    means, rstds : array (parts, channels)
        What `batch_norm_stats` gave of each part; float32 or float64, arbitrary strides.
    counts : array (parts,)
        Values of a channel in each part, 0 among them: images by pixels. int32, int64, float32 or float64.
    running_mean, running_var : array (channels,), optional
        float64, float32, float16 or bfloat16. Updated in place: ``running = (1 - momentum) * running + momentum * batch``, with the
        unbiased variance.
    momentum : float
        Weight of the new batch statistic.
    eps : float
        As passed to `batch_norm_stats`.
    out : tuple of arrays (mean, var, rstd)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    mean, var, rstd : arrays (channels,) of means' framework and dtype
        var is biased: with mean it is what `batch_norm_infer` normalises with; mean and rstd are for `batch_norm_bwd_sums`.

    Raises
    ------
    ValueError
        Shapes that do not match, no parts, overlapping arrays.
    TypeError
        Unsupported dtypes, objects that are not device arrays, immutable `out` or running statistics.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: parts are merged in their order. Parts of count 0 are skipped; without any value mean and var are 0. Mirrors
    ``torch.batch_norm_gather_stats_with_counts``; Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[1], [3], [8]], np.float32)
    >>> parts = [dnnkern.batch_norm_stats(part) for part in (x[:2], x[2:])]
    >>> means, rstds = (np.stack(values) for values in zip(*parts))
    >>> mean, var, rstd = dnnkern.batch_norm_merge(means, rstds, np.array([2, 1]))
    >>> mean, var.round(4), x.var().round(4)
    (array([4.], dtype=float32), array([8.6667], dtype=float32), np.float32(8.6667))
    """
    f = "batch_norm_merge"
    operands = (means, rstds, counts) if running_mean is None and running_var is None else (means, rstds, counts, running_mean, running_var)
    return _merge(operands, out, (), (number(f, "eps", eps), number(f, "momentum", momentum)), workspace, stream, choice)


@public
def batch_norm_bwd_sums(dy, x, gamma, mean, rstd, *, mode="spatial", layout="NCHW", activation=None, y=None, beta=None, out=None,
                        workspace=None, stream=None, **choice):
    """The sums of `batch_norm_bwd`, alone: with its dz and n, ``dgamma = sum(dz * n)`` and ``dbeta = sum(dz)``.

    Parameters
    ----------
    dy, x, gamma, mean, rstd, mode, layout, activation, y, beta, workspace, stream, algo, allow, workspace_limit, exclude
        As in `batch_norm_bwd`, whose algorithms these are; mean and rstd are those of the whole batch. gamma may be None unless the
        activation's gradient needs it.
    out : tuple of arrays (dgamma, dbeta)
        Output, written and returned; arbitrary strides; of any dtype that gamma may have. Overlap with an operand is an error.

    Returns
    -------
    dgamma, dbeta : arrays of float32 (float64 for float64), of dy's framework
        Of this part: their sums over all parts are the gradients of gamma and beta, and what `batch_norm_bwd_apply` takes.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `batch_norm_bwd`.

    Notes
    -----
    Deterministic. Mirrors ``torch.batch_norm_backward_reduce``, whose sum_dy is dbeta, and sum_dy_xmu ``dgamma / rstd``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[1], [3]], np.float32), np.array([[1], [5]], np.float32)
    >>> mean, rstd = dnnkern.batch_norm_stats(x, eps=0.0)
    >>> dnnkern.batch_norm_bwd_sums(dy, x, None, mean, rstd)
    (array([4.], dtype=float32), array([6.], dtype=float32))
    """
    return _sums(backward_operands(dy, x, gamma, mean, rstd, y, beta), out, (mode, layout, activation), (), workspace, stream, choice)


@public
def batch_norm_bwd_apply(dy, x, gamma, mean, rstd, dgamma, dbeta, counts, *, mode="spatial", layout="NCHW", activation=None, y=None,
                         beta=None, residual=False, out=None, workspace=None, stream=None, **choice):
    """dx of `batch_norm_bwd` from given sums: with its dz and n, ``dx = gamma * rstd * (dz - (dbeta + n * dgamma) / sum(counts))``.

    Parameters
    ----------
    dy, x, gamma, mean, rstd, mode, layout, activation, y, beta, residual, workspace, stream, algo, allow, workspace_limit, exclude
        As in `batch_norm_bwd`; mean and rstd are those of the whole batch.
    dgamma, dbeta : array
        Of the whole batch: the sums of what `batch_norm_bwd_sums` gave of its parts; float32 (float64 for float64).
    counts : array (parts,)
        Values of a channel in each part. int32, int64, float32 or float64.
    out : array, or with `residual` a tuple (dx, dresidual)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.

    Returns
    -------
    dx[, dresidual] : arrays of x's shape and dtype, of dy's framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `batch_norm_bwd`.

    Notes
    -----
    Deterministic. Mirrors ``torch.batch_norm_backward_elemt``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([[1], [2], [6]], np.float32), np.array([[1], [0], [0]], np.float32)
    >>> mean, rstd = dnnkern.batch_norm_stats(x)
    >>> sums = dnnkern.batch_norm_bwd_sums(dy, x, None, mean, rstd)
    >>> dnnkern.batch_norm_bwd_apply(dy, x, None, mean, rstd, *sums, np.array([2, 1])).round(3).ravel()
    array([ 0.176, -0.22 ,  0.044], dtype=float32)
    """
    residual = flag("batch_norm_bwd_apply", "residual", residual)
    operands = (dy, x, gamma, mean, rstd, dgamma, dbeta, counts, y, beta)[:10 if beta is not None else 9 if y is not None else 8]
    call = _apply_residual if residual else _apply
    return call(operands, out, (mode, layout, activation, residual), (), workspace, stream, choice)
