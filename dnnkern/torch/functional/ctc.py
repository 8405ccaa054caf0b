"""Connectionist temporal classification."""
import torch
import torch.nn.functional as F

import dnnkern

from .._operator import is_traced, operator
from .._table import Refused
from .._tensors import KEY, computed, one_dtype
from ..ops.ctc import _rows
from ..ops.loss import REDUCTIONS
from ._front import replaces

_INTEGERS = torch.int32, torch.int64


def _fake(x, targets, input_lengths, target_lengths, blank, zero_infinity, normalized):
    steps, samples, _ = x.shape
    states = 2 * targets.shape[1] + (1 if normalized else 2)
    return x.new_empty(samples, dtype=computed(x)), x.new_empty((samples, steps, states), dtype=computed(x))


_backward = operator(
    "ctc_loss_gradient(Tensor dy, Tensor x, Tensor targets, Tensor input_lengths, Tensor target_lengths, Tensor saved, int blank, "
    "bool zero_infinity, bool normalized) -> Tensor",
    lambda dy, x, targets, input_lengths, target_lengths, saved, blank, zero, normalized: dnnkern.ctc_loss_bwd(
        dy, x, targets, input_lengths, target_lengths, saved, blank=blank, zero_infinity=zero, normalized=normalized),
    lambda dy, x, *_: x.new_empty(x.shape), "ctc_loss backward")


def _gradient(dy, wanted, x, targets, input_lengths, target_lengths, blank, zero_infinity, normalized, y1):
    if torch.is_grad_enabled():
        raise RuntimeError("ctc_loss: no second derivatives, as in PyTorch; expected create_graph=False")
    return [_backward(dy, x, targets, input_lengths, target_lengths, y1, blank, zero_infinity, normalized)]


_ctc = operator(
    "ctc_loss(Tensor x, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity, bool normalized) "
    "-> (Tensor, Tensor)", lambda x, targets, input_lengths, target_lengths, blank, zero, normalized: dnnkern.ctc_loss_fwd(
        x, targets, input_lengths, target_lengths, blank=blank, zero_infinity=zero, normalized=normalized), _fake, "ctc_loss", _gradient)


def _lengths(values, x):
    """Lengths as a tensor beside x, and as numbers where they are on the host."""
    if isinstance(values, torch.Tensor):
        if values.dtype not in _INTEGERS:
            raise Refused(f"lengths in {values.dtype}")
        known = None if is_traced() or values.device.type != "cpu" else values.reshape(-1).tolist()
        return values.reshape(-1).to(x.device), known
    return torch.tensor(list(values), device=x.device), list(values)


def _composition(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False, *, normalized=True):
    log_probs = log_probs if normalized else F.log_softmax(log_probs, -1)
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)


def _loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False, *, normalized=True):
    one_dtype(log_probs)
    if reduction not in REDUCTIONS or targets.dtype not in _INTEGERS or log_probs.dim() not in (2, 3) or log_probs.numel() == 0:
        raise Refused(f"log-probabilities of shape {tuple(log_probs.shape)}, targets in {targets.dtype}, reduction {reduction!r}")
    if KEY == "CPU" and normalized and log_probs.dtype.itemsize < 4:
        raise Refused(f"log-probabilities in {log_probs.dtype}")  # PyTorch's error
    single = log_probs.dim() == 2
    x = log_probs.unsqueeze(1) if single else log_probs
    (inputs, known_inputs), (lengths, known) = _lengths(input_lengths, x), _lengths(target_lengths, x)
    samples, classes = x.shape[1:]
    if len(inputs) != samples or len(lengths) != samples or not 0 <= blank < classes:
        raise Refused(f"{len(inputs)} and {len(lengths)} lengths of {samples} samples, blank {blank} of {classes} classes")
    if known_inputs and known and (min(*known_inputs, *known) < 0 or max(known_inputs) > x.shape[0]):
        raise Refused(f"inputs of {known_inputs} steps, targets of {known}")
    targets = targets.to(x.device)
    if single and targets.dim() == 1:
        targets = targets.unsqueeze(0)
    if targets.dim() != 2:
        if is_traced():
            raise Refused("targets one after the other, while something traces")
        targets = _rows(targets, lengths.tolist())
    if targets.shape[0] != samples or known and max(known) > targets.shape[1]:
        raise Refused(f"targets of shape {tuple(targets.shape)}, of which {known} are the lengths")
    loss = _ctc(x, targets, inputs, lengths, blank, zero_infinity, normalized)[0]
    if reduction == "mean":
        return (loss / lengths.clamp_min(1).to(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if single else loss


_DOC = """The loss of connectionist temporal classification; as ``torch.nn.functional.ctc_loss``, also of logits.

    Parameters
    ----------
    log_probs : Tensor (T, N, C) or (T, C)
        Log-probabilities of the classes at each step; with ``normalized=False`` logits, of 16 bits too: nothing else is then computed
        of them, and the gradient is theirs.
    targets : Tensor (N, L), or (sum of lengths,)
        Classes other than blank, int32 or int64; one after the other, the host waits for their lengths on a GPU.
    input_lengths, target_lengths : Tensor (N,) or tuple of int
    blank : int
    reduction : "mean", "sum" or "none"
        "mean" divides each loss by its target's length.
    zero_infinity : bool
        A target that is too long has loss and gradient 0 instead of infinity.
    normalized : bool

    Returns
    -------
    Tensor
        A number, or with "none" (N,).

    Raises
    ------
    RuntimeError
        PyTorch's.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> functional.ctc_loss(torch.zeros(3, 1, 2), torch.tensor([[1]]), (3,), (1,), normalized=False).neg().exp()  # 6 of 8
    tensor(0.7500)
    """
replaces(F.ctc_loss, composition=_composition, doc=_DOC)(_loss)
