"""Connectionist temporal classification: the loss and its gradient."""
import itertools

import torch

import dnnkern

from .._table import Refused, aten

_LABELS = torch.int32, torch.int64


def _operands(x, targets, input_lengths, target_lengths):
    """(targets, one row per sample, lengths of inputs and of targets) beside x, where PyTorch has lengths on the host."""
    if x.dtype not in (torch.float32, torch.float64) or targets.dtype not in _LABELS:
        raise Refused(f"log-probabilities in {x.dtype}, targets in {targets.dtype}")
    if x.dim() != 3 or 0 in x.shape or not len(input_lengths) == len(target_lengths) == x.shape[1]:
        raise Refused(f"log-probabilities of shape {tuple(x.shape)}, {len(input_lengths)} inputs, {len(target_lengths)} targets")
    if min(*input_lengths, *target_lengths) < 0 or max(input_lengths) > x.shape[0]:
        raise Refused(f"inputs of {input_lengths} steps, targets of {target_lengths}")
    lengths = torch.tensor([input_lengths, target_lengths], device=x.device)
    return _rows(targets.to(x.device), target_lengths), *lengths.unbind()


def _rows(targets, lengths):
    """Targets one below the other, of the longest one's length; one-dimensional ones follow each other in memory."""
    longest, count = max(lengths), targets.shape[0] if targets.dim() else 0
    if targets.dim() == 2 and count == len(lengths) and targets.shape[1] >= longest:
        return targets[:, :longest]
    if targets.dim() != 1 or sum(lengths) != count:
        raise Refused(f"targets of shape {tuple(targets.shape)}, of which {lengths} are the lengths")
    if not longest:
        return targets.new_empty((len(lengths), 0))
    firsts = [0, *itertools.accumulate(lengths[:-1])]
    return targets[torch.tensor([[min(first + k, count - 1) for k in range(longest)] for first in firsts], device=targets.device)]


@aten("_ctc_loss")
def ctc_loss(x, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """``ctc_loss_fwd`` of log-probabilities; infinite losses are PyTorch's to replace."""
    return dnnkern.ctc_loss_fwd(x, *_operands(x, targets, input_lengths, target_lengths), blank=blank, normalized=True)


@aten("_ctc_loss_backward")
def ctc_loss_backward(dloss, x, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity=False):
    """``ctc_loss_bwd``."""
    return dnnkern.ctc_loss_bwd(dloss, x, *_operands(x, targets, input_lengths, target_lengths), alpha, blank=blank,
                                zero_infinity=zero_infinity, normalized=True)


@aten("_cudnn_ctc_loss")
def cudnn_ctc_loss(x, targets, input_lengths, target_lengths, blank, deterministic, zero_infinity):
    """The losses and their gradients at once. cuDNN normalizes."""
    how = {"blank": blank, "zero_infinity": zero_infinity}
    given = x, *_operands(x, targets, input_lengths, target_lengths)
    loss, saved = dnnkern.ctc_loss_fwd(*given, **how)
    return loss, dnnkern.ctc_loss_bwd(torch.ones_like(loss), *given, saved, **how)
