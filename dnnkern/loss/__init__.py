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
    """Cross-entropy of ``softmax(logits)`` with targets, for any number of classes; no probability array is written.

    With ``p = softmax(logits)`` along the classes, s the label smoothing and C classes, a row costs
    ``-(1 - s) * w[t] * log(p[t]) - s / C * sum over c of w[c] * log(p[c])`` for a class index t, and
    ``-sum over c of w[c] * ((1 - s) * t[c] + s / C) * log(p[c])`` for probabilities t.

    Parameters
    ----------
    logits : array (N, C, ...) or (C,)
        float64, float32, float16 or bfloat16; classes along axis 1, or the only one; up to eight dimensions, arbitrary strides.
    targets : array
        Class indices, int32 or int64, of the logits' shape without the classes; or probabilities of the logits' shape and dtype, which
        need not sum to 1.
    weight : array (C,), optional
        Class weights; the logits' dtype, or float32 with 16-bit logits.
    ignore_index : int
        Rows with this target have loss 0 and do not count in the mean; it may be a class.
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
        The log-sum-exp of each row, for `cross_entropy_bwd`.

    Raises
    ------
    ValueError
        Shapes that do not match, an invalid smoothing, an unknown reduction, an `out` that overlaps an operand; with
        ``DNNKERN_CHECK=values`` a target that is neither a class nor ignored, with its position.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic, including the mean: one or two further launches add the rows' losses. A target that is neither a class nor ignored
    gives NaN, and reads nothing outside the arrays. The mean over no rows is NaN, as in PyTorch. A row with NaN or +inf has loss NaN unless
    it is ignored. Mirrors ``torch.nn.functional.cross_entropy``.

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
    """The gradient of `cross_entropy_fwd` with respect to the logits: ``dlogits = g * (q.sum() * exp(logits - lse) - q)`` in each row.

    q are the factors of the log-probabilities in the loss, g is the gradient of the row's loss, for "mean" divided as the mean is.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" one for each row.
    logits, targets, weight, ignore_index, label_smoothing, reduction
        As passed to `cross_entropy_fwd`.
    lse : array
        As returned by `cross_entropy_fwd`.
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
        As `cross_entropy_fwd`.

    Notes
    -----
    Deterministic. Rows whose target is neither a class nor ignored are NaN. The logits are read once; with
    `lse` no further sum is needed.

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
    """Negative log likelihood: a row costs ``-w[t] * logp[t]``.

    Parameters
    ----------
    logp : array (N, C, ...) or (C,)
        Log-probabilities, such as ``softmax_fwd(x, axis=1, log=True)``; dtypes, dimensions and strides as
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
        As `cross_entropy_fwd`.

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
    """The gradient of `nll_loss_fwd` with respect to logp: ``-w[t]`` times that of the row's loss at the target, 0 elsewhere.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" one for each row.
    logp : array
        As passed to `nll_loss_fwd`; only its shape and dtype matter.
    targets, weight, ignore_index, reduction
        As passed to `nll_loss_fwd`.
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
        As `cross_entropy_fwd`.

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
    """Squared error, ``(x - target) ** 2``, its mean or sum.

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
        Without dimensions, or with "none" of x's shape; an `out` of x's shape may have x's dtype.

    Raises
    ------
    ValueError
        Shapes that differ, an unknown reduction, an `out` that overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. The mean of no elements is NaN, as in PyTorch. Mirrors ``torch.nn.functional.mse_loss``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> print(dnnkern.mse_loss_fwd(np.array([1, 2, 3], np.float32), np.array([1, 0, 0], np.float32), reduction="sum"))
    13.0
    """
    return _mse((x, target), out, (reduction,), (), workspace, stream, choice)


@public
def mse_loss_bwd(dloss, x, target, *, reduction="mean", out=None, workspace=None, stream=None, **choice):
    """The gradient of `mse_loss_fwd` with respect to x: ``2 * dloss * (x - target)``, for "mean" divided by the number of elements.

    Parameters
    ----------
    dloss : array of float32, float64 for float64
        Gradient of the loss: without dimensions, or with "none" of x's shape, where it may have x's dtype.
    x, target, reduction
        As passed to `mse_loss_fwd`. The gradient with respect to target is the negative.
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
        As `mse_loss_fwd`.

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


def _ctc_parameters(op, blank, zero_infinity, normalized):
    return integer(op, "blank", blank), flag(op, "zero_infinity", zero_infinity), flag(op, "normalized", normalized)


@public
def ctc_loss_fwd(logits, targets, input_lengths, target_lengths, *, blank=0, zero_infinity=False, normalized=False, out=None,
                 workspace=None, stream=None, **choice):
    """Connectionist temporal classification (CTC): negative log-probability of all alignments of a target with its input.

    An alignment has a class for each step; with repetitions and then blanks removed it is the target. Class probabilities are
    ``softmax(logits)``, or if they are normalized ``exp(logits)``.

    Parameters
    ----------
    logits : array (T, N, C)
        Steps, samples, classes; float64, float32, float16 or bfloat16, arbitrary strides.
    targets : array (N, L) of int32 or int64
        Labels, each a class other than blank; those past a target's length are ignored.
    input_lengths, target_lengths : array (N,) of int32 or int64
        Steps and labels of each sample: 0 to T, 0 to L.
    blank : int
        The class that stands for no label.
    zero_infinity : bool
        A target that is too long for its input has loss 0 instead of infinity.
    normalized : bool
        The logits are log-probabilities, as log-softmax gives them: they are taken as they are.
    out : (loss, saved)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    loss : array (N,) of float32, float64 for float64
        Per sample, neither summed nor divided by lengths. An empty target of an empty input has loss 0.
    saved : array (N, T, 2 * L + 2) of the loss's dtype, (N, T, 2 * L + 1) of normalized logits
        For `ctc_loss_bwd`: log-probabilities of the alignments up to each of 2 * L + 1 states at each step, and last the log-sum-exp of
        the step's logits.

    Raises
    ------
    ValueError
        Shapes that do not match, a blank that is not a class, an `out` that overlaps an operand; with ``DNNKERN_CHECK=values`` a length out
        of range, or a label that is not a class or is blank, with its position.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. A length out of range or a label that is not a class gives NaN, and reads nothing outside the arrays. Mirrors
    cudnnCTCLoss with CUDNN_LOSS_NORMALIZATION_SOFTMAX and its deterministic algorithm, and ``torch.nn.functional.ctc_loss`` of
    ``log_softmax(logits)``, or of normalized logits. Graves, Fernandez, Gomez and Schmidhuber, "Connectionist temporal
    classification" (2006).

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
    return _ctc_forward(operands, out, _ctc_parameters("ctc_loss_fwd", blank, zero_infinity, normalized), (), workspace, stream, choice)


@public
def ctc_loss_bwd(dloss, logits, targets, input_lengths, target_lengths, saved, *, blank=0, zero_infinity=False, normalized=False,
                 out=None, workspace=None, stream=None, **choice):
    """The gradient of `ctc_loss_fwd` with respect to the logits: a class's probability minus that of its states given the target.

    Of normalized logits it is the gradient with respect to what log-softmax was taken of, as PyTorch's: log-softmax passes it on as it is.

    Parameters
    ----------
    dloss : array (N,) of float32, float64 for float64
        Gradient of each sample's loss.
    logits, targets, input_lengths, target_lengths, blank, zero_infinity, normalized
        As passed to `ctc_loss_fwd`.
    saved : array (N, T, 2 * L + 2) or (N, T, 2 * L + 1)
        As returned by `ctc_loss_fwd`.
    out : array of the logits' shape and dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dlogits : array (T, N, C) of the logits' dtype, of dloss's framework
        0 past a sample's input. For a target that is too long NaN, or with zero_infinity 0.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `ctc_loss_fwd`.

    Notes
    -----
    Deterministic: the states of a class are added in order, without atomics. Samples with a length out of range are NaN throughout.

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
    return _ctc_backward(operands, out, _ctc_parameters("ctc_loss_bwd", blank, zero_infinity, normalized), (), workspace, stream, choice)
