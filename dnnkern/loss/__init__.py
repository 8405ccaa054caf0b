"""Losses and their gradients."""
from ..host.front import Operation, public
from ..host.scalars import flag, integer, number
from ._ctc_problem import CtcGradientProblem, CtcProblem, check_sequences, make_ctc_backward, make_ctc_forward
from ._mse_problem import MseGradientProblem, MseProblem, make_mse_backward, make_mse_forward
from ._problem import (CrossEntropyGradientProblem, CrossEntropyProblem, NllGradientProblem, NllProblem, check_labels, make_backward,
                       make_forward, make_nll_backward, make_nll_forward)

__all__ = ["CrossEntropyGradientProblem", "CrossEntropyProblem", "CtcGradientProblem", "CtcProblem", "MseGradientProblem", "MseProblem",
           "NllGradientProblem", "NllProblem", "cross_entropy_bwd", "cross_entropy_fwd", "ctc_loss_bwd", "ctc_loss_fwd", "mse_loss_bwd",
           "mse_loss_fwd", "nll_loss_bwd", "nll_loss_fwd"]

CROSS_ENTROPY_FWD = Operation("cross_entropy_fwd", operands=("logits", "targets", "weight"), outputs=("loss", "lse"), problem=make_forward,
                              check_values=check_labels)
_cross_entropy = CROSS_ENTROPY_FWD.call
CROSS_ENTROPY_BWD = Operation("cross_entropy_bwd", operands=("dloss", "logits", "targets", "lse", "weight"), outputs=("dlogits",),
                              problem=make_backward, check_values=check_labels)
_cross_entropy_bwd = CROSS_ENTROPY_BWD.call
NLL_LOSS_FWD = Operation("nll_loss_fwd", operands=("logp", "targets", "weight"), outputs=("loss",), problem=make_nll_forward,
                         check_values=check_labels)
_nll = NLL_LOSS_FWD.call
NLL_LOSS_BWD = Operation("nll_loss_bwd", operands=("dloss", "logp", "targets", "weight"), outputs=("dlogp",), problem=make_nll_backward,
                         check_values=check_labels)
_nll_bwd = NLL_LOSS_BWD.call
MSE_LOSS_FWD = Operation("mse_loss_fwd", operands=("x", "target"), outputs=("loss",), problem=make_mse_forward)
_mse = MSE_LOSS_FWD.call
MSE_LOSS_BWD = Operation("mse_loss_bwd", operands=("dloss", "x", "target"), outputs=("dx",), problem=make_mse_backward)
_mse_bwd = MSE_LOSS_BWD.call
CTC_LOSS_FWD = Operation("ctc_loss_fwd", operands=("logits", "targets", "input_lengths", "target_lengths"), outputs=("loss", "saved"),
                         problem=make_ctc_forward, check_values=check_sequences)
_ctc_forward = CTC_LOSS_FWD.call
CTC_LOSS_BWD = Operation("ctc_loss_bwd", operands=("dloss", "logits", "targets", "input_lengths", "target_lengths", "saved"),
                         outputs=("dlogits",), problem=make_ctc_backward, check_values=check_sequences)
_ctc_backward = CTC_LOSS_BWD.call


@public
def cross_entropy_fwd(logits, targets, *, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean", out=None, workspace=None,
                      stream=None, **choice):
    """Cross-entropy of ``softmax(logits)`` with targets, for any number of classes, whose probabilities are never written.

    With ``p = softmax(logits)`` along the classes, s the label smoothing and C classes, a row costs
    ``-(1 - s) * w[t] * log(p[t]) - s / C * sum over c of w[c] * log(p[c])`` for a class index t, and
    ``-sum over c of w[c] * ((1 - s) * t[c] + s / C) * log(p[c])`` for probabilities t.

    Parameters
    ----------
    logits : array (N, C, ...) or (C,)
        float64, float32, float16 or bfloat16; classes along axis 1, or the only one; up to eight dimensions, arbitrary strides.
    targets : array
        int32 or int64 of the logits' shape without the classes: class indices. Or of the logits' shape and dtype: probabilities, which
        need not add up to 1.
    weight : array (C,), optional
        Of the classes; the logits' dtype, or float32 beside 16-bit logits.
    ignore_index : int
        Rows with this target cost nothing, and do not count in the mean; it may be a class.
    label_smoothing : float
        From 0 to 1.
    reduction : "mean", "sum" or "none"
        "mean" divides the sum by that of the weights of the targets (their number without weights); with probabilities by the number of
        rows.
    out : (loss, lse)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    loss : array of float32, float64 for float64
        Without dimensions, or with "none" of the logits' shape without the classes.
    lse : array of the loss's dtype
        The logarithm of the sum of exponentials of each row: what `cross_entropy_bwd` takes.

    Raises
    ------
    ValueError
        Shapes that do not match, a smoothing or reduction that there is not, an `out` that overlaps an operand; under
        ``DNNKERN_CHECK=values`` a target that is neither a class nor ignored, with its position.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, the mean too: each row leaves its loss, which one or two further launches add up. A target that is neither a class nor
    ignored gives NaN, and reads nothing outside the arrays. The mean over no rows is NaN, as PyTorch's. A row that holds NaN or +inf costs
    NaN unless it is ignored. Mirrors ``torch.nn.functional.cross_entropy``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logits = np.array([[2, 0, 0], [0, 0, 3], [1, 1, 1]], np.float32)
    >>> loss, lse = dnnkern.cross_entropy_fwd(logits, np.array([0, 1, -100]))
    >>> print(loss.round(4), lse.round(4))
    1.6672 [2.2395 3.0949 2.0986]
    >>> dnnkern.cross_entropy_fwd(logits, np.array([0, 1, 2]), label_smoothing=0.1, reduction="none")[0].round(4)
    array([0.3729, 2.9949, 1.0986], dtype=float32)
    """
    f = "cross_entropy_fwd"
    parameters = integer(f, "ignore_index", ignore_index), number(f, "label_smoothing", label_smoothing), reduction
    return _cross_entropy((logits, targets, weight), out, parameters, (), workspace, stream, choice)


@public
def cross_entropy_bwd(dloss, logits, targets, lse, *, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean", out=None,
                      workspace=None, stream=None, **choice):
    """The gradient of `cross_entropy_fwd` by the logits: ``dlogits = g * (q.sum() * exp(logits - lse) - q)`` in each row.

    q is what the logarithms of the probabilities are multiplied with in the loss, g the gradient of the row's loss: that of the mean is
    divided as the mean is.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" one for each row.
    logits, targets, weight, ignore_index, label_smoothing, reduction
        As given to `cross_entropy_fwd`.
    lse : array
        As `cross_entropy_fwd` returned it.
    out : array of the logits' shape and dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dlogits : array of the logits' dtype, of dloss's framework
        Computed in float32 (float64 for float64) and rounded once. Ignored rows are 0.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `cross_entropy_fwd` does.

    Notes
    -----
    Deterministic. Rows whose target is neither a class nor ignored are NaN. The logits are read once, and exponentials are taken of them
    and `lse`, without another sum.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logits, targets = np.array([[2, 0, 0], [0, 0, 3]], np.float32), np.array([0, 1])
    >>> loss, lse = dnnkern.cross_entropy_fwd(logits, targets, reduction="sum")
    >>> dnnkern.cross_entropy_bwd(np.ones((), np.float32), logits, targets, lse, reduction="sum").round(4)
    array([[-0.213 ,  0.1065,  0.1065],
           [ 0.0453, -0.9547,  0.9094]], dtype=float32)
    """
    f = "cross_entropy_bwd"
    parameters = integer(f, "ignore_index", ignore_index), number(f, "label_smoothing", label_smoothing), reduction
    return _cross_entropy_bwd((dloss, logits, targets, lse, weight), out, parameters, (), workspace, stream, choice)


@public
def nll_loss_fwd(logp, targets, *, weight=None, ignore_index=-100, reduction="mean", out=None, workspace=None, stream=None, **choice):
    """The negative logarithms of the targets' probabilities: a row costs ``-w[t] * logp[t]``.

    Parameters
    ----------
    logp : array (N, C, ...) or (C,)
        Logarithms of probabilities, such as ``softmax_fwd(x, axis=1, log=True)`` returns; dtypes, dimensions and strides as
        `cross_entropy_fwd`'s logits.
    targets : array of int32 or int64
        Class indices, of the shape of logp without the classes.
    weight, ignore_index, reduction
        As in `cross_entropy_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    loss : array of float32, float64 for float64
        Without dimensions, or with "none" of the targets' shape.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `cross_entropy_fwd` does.

    Notes
    -----
    Deterministic. A target that is neither a class nor ignored gives NaN, and reads nothing outside the arrays. Mirrors
    ``torch.nn.functional.nll_loss``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logp = np.array([[-1, -2, -3], [-4, -5, -6]], np.float32)
    >>> print(dnnkern.nll_loss_fwd(logp, np.array([1, 0])))
    3.0
    """
    parameters = integer("nll_loss_fwd", "ignore_index", ignore_index), reduction
    return _nll((logp, targets, weight), out, parameters, (), workspace, stream, choice)


@public
def nll_loss_bwd(dloss, logp, targets, *, weight=None, ignore_index=-100, reduction="mean", out=None, workspace=None, stream=None,
                 **choice):
    """The gradient of `nll_loss_fwd` by logp: 0 but at the targets, where it is ``-w[t]`` times that of the row's loss.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" one for each row.
    logp : array
        As given to `nll_loss_fwd`; only its shape and dtype count.
    targets, weight, ignore_index, reduction
        As given to `nll_loss_fwd`.
    out : array of logp's shape and dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dlogp : array of logp's dtype, of dloss's framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `cross_entropy_fwd` does.

    Notes
    -----
    Deterministic. Rows whose target is neither a class nor ignored are NaN.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logp = np.array([[-1, -2, -3], [-4, -5, -6]], np.float32)
    >>> dnnkern.nll_loss_bwd(np.ones((), np.float32), logp, np.array([1, 0])) + 0
    array([[ 0. , -0.5,  0. ],
           [-0.5,  0. ,  0. ]], dtype=float32)
    """
    parameters = integer("nll_loss_bwd", "ignore_index", ignore_index), reduction
    return _nll_bwd((dloss, logp, targets, weight), out, parameters, (), workspace, stream, choice)


@public
def mse_loss_fwd(x, target, *, reduction="mean", out=None, workspace=None, stream=None, **choice):
    """The squared difference of two arrays: ``(x - target) ** 2``, its mean or sum.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; up to eight dimensions, arbitrary strides.
    target : array of x's shape and dtype
    reduction : "mean", "sum" or "none"
    out : array
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    loss : array of float32, float64 for float64
        Without dimensions, or with "none" of x's shape.

    Raises
    ------
    ValueError
        Shapes that differ, a reduction that there is not, an `out` that overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. The mean of nothing is NaN, as PyTorch's. Mirrors ``torch.nn.functional.mse_loss``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> print(dnnkern.mse_loss_fwd(np.array([1, 2, 3], np.float32), np.array([1, 0, 0], np.float32), reduction="sum"))
    13.0
    """
    return _mse((x, target), out, (reduction,), (), workspace, stream, choice)


@public
def mse_loss_bwd(dloss, x, target, *, reduction="mean", out=None, workspace=None, stream=None, **choice):
    """The gradient of `mse_loss_fwd` by x: ``2 * dloss * (x - target)``, of the mean divided by the number of elements.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" of x's shape.
    x, target, reduction
        As given to `mse_loss_fwd`. The gradient by target is the negative one.
    out : array of x's shape and dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of x's dtype, of dloss's framework

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `mse_loss_fwd` does.

    Notes
    -----
    Deterministic.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, target = np.array([1, 2, 3], np.float32), np.array([1, 0, 0], np.float32)
    >>> dnnkern.mse_loss_bwd(np.ones((), np.float32), x, target, reduction="sum")
    array([0., 4., 6.], dtype=float32)
    """
    return _mse_bwd((dloss, x, target), out, (reduction,), (), workspace, stream, choice)


@public
def ctc_loss_fwd(logits, targets, input_lengths, target_lengths, *, blank=0, zero_infinity=False, out=None, workspace=None, stream=None,
                 **choice):
    """Connectionist temporal classification: the negative logarithm of the probability of all alignments of a target with its input.

    An alignment names a class for each step; without repetitions, and then without blanks, it is the target. Classes have the probabilities
    ``softmax(logits)``.

    Parameters
    ----------
    logits : array (T, N, C)
        Steps, samples, classes; float64, float32, float16 or bfloat16, arbitrary strides. Logarithms of probabilities are logits, too.
    targets : array (N, L) of int32 or int64
        Labels, each a class other than blank; those behind a target's length do not count.
    input_lengths, target_lengths : array (N,) of int32 or int64
        Steps and labels of each sample: 0 to T, 0 to L.
    blank : int
        The class that stands for no label.
    zero_infinity : bool
        A target that no alignment fits, since it is longer than its input, costs 0 instead of infinity.
    out : (loss, saved)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    loss : array (N,) of float32, float64 for float64
        Of each sample, neither summed nor divided by lengths. An empty target of an empty input costs 0.
    saved : array (N, T, 2 * L + 2) of the loss's dtype
        Logarithms of probabilities, what `ctc_loss_bwd` takes: of the alignments up to each of 2 * L + 1 states at each step, and last
        the logarithm of the sum of exponentials of the step's logits.

    Raises
    ------
    ValueError
        Shapes that do not match, a blank that is no class, an `out` that overlaps an operand; under ``DNNKERN_CHECK=values`` a length that
        does not fit, or a label that is no class or blank, with its position.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. A length that does not fit or a label that is no class gives NaN, and reads nothing outside the arrays. Mirrors
    cudnnCTCLoss with CUDNN_LOSS_NORMALIZATION_SOFTMAX and its deterministic algorithm, and ``torch.nn.functional.ctc_loss`` of
    ``log_softmax(logits)``. Graves, Fernandez, Gomez and Schmidhuber, "Connectionist temporal classification" (2006).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logits = np.zeros((3, 1, 2), np.float32)                    # three steps of two classes, all alike
    >>> one = np.array([1])
    >>> loss, saved = dnnkern.ctc_loss_fwd(logits, np.array([[1]]), np.array([3]), one)
    >>> print(np.exp(-loss).round(4))                               # 6 of 8: not 000, not 101
    [0.75]
    """
    operands = logits, targets, input_lengths, target_lengths
    parameters = integer("ctc_loss_fwd", "blank", blank), flag("ctc_loss_fwd", "zero_infinity", zero_infinity)
    return _ctc_forward(operands, out, parameters, (), workspace, stream, choice)


@public
def ctc_loss_bwd(dloss, logits, targets, input_lengths, target_lengths, saved, *, blank=0, zero_infinity=False, out=None, workspace=None,
                 stream=None, **choice):
    """The gradient of `ctc_loss_fwd` by the logits: of each class its probability, less that of its states given the target.

    Parameters
    ----------
    dloss : array (N,) of float32, float64 for float64
        Gradient of each sample's loss.
    logits, targets, input_lengths, target_lengths, blank, zero_infinity
        As given to `ctc_loss_fwd`.
    saved : array (N, T, 2 * L + 2)
        As `ctc_loss_fwd` returned it.
    out : array of the logits' shape and dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dlogits : array (T, N, C) of the logits' dtype, of dloss's framework
        0 behind a sample's input. Of a sample that no alignment fits NaN, or with zero_infinity 0.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `ctc_loss_fwd` does.

    Notes
    -----
    Deterministic: states of one class are added in their order, without atomics. Samples with a length that does not fit are NaN
    throughout.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> logits, target, steps, one = np.zeros((2, 1, 2), np.float32), np.array([[1]]), np.array([2]), np.array([1])
    >>> loss, saved = dnnkern.ctc_loss_fwd(logits, target, steps, one)
    >>> dnnkern.ctc_loss_bwd(np.ones(1, np.float32), logits, target, steps, one, saved)[:, 0].round(4)
    array([[ 0.1667, -0.1667],
           [ 0.1667, -0.1667]], dtype=float32)
    """
    operands = dloss, logits, targets, input_lengths, target_lengths, saved
    parameters = integer("ctc_loss_bwd", "blank", blank), flag("ctc_loss_bwd", "zero_infinity", zero_infinity)
    return _ctc_backward(operands, out, parameters, (), workspace, stream, choice)
