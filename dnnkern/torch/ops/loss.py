"""Losses and their gradients."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._table import Refused, aten
from .._tensors import computed, one_dtype

REDUCTIONS = "none", "mean", "sum"


def _check(x, target, weight, least):
    one_dtype(x, weight)
    if target.dtype not in (torch.int64, torch.uint8):
        raise Refused(f"targets in {target.dtype}")  # which are PyTorch's errors
    if x.dim() < least or target.dim() != max(x.dim() - 1, 0) or x.numel() == 0:
        raise Refused(f"targets of shape {tuple(target.shape)} with scores of shape {tuple(x.shape)}")


def _nll(least, x, target, weight, reduction, ignore_index):
    _check(x, target, weight, least)
    options = {"weight": weight, "ignore_index": ignore_index}
    loss = dnnkern.nll_loss_fwd(x, target, reduction=REDUCTIONS[reduction], **options)
    if HOST_MEMORY and bool(loss.isnan().any()):
        raise Refused("the loss is NaN, as it is where a target is no class")  # which PyTorch's kernel for the CPU reports
    if reduction == 0 and x.dim() > 1:
        total = x.new_zeros(())
    else:  # the weights of the targets: the loss if each class had the score -1
        total = dnnkern.nll_loss_fwd(x.new_full((), -1).expand(x.shape), target, reduction="sum", **options).to(x.dtype)
    return loss.to(x.dtype), total


def _nll_backward(least, dy, x, target, weight, reduction, ignore_index, total):
    one_dtype(x, dy)
    _check(x, target, weight, least)
    return dnnkern.nll_loss_bwd(dy.to(computed(x)), x, target, weight=weight, ignore_index=ignore_index, reduction=REDUCTIONS[reduction])


@aten("nll_loss_forward")
def nll_loss(x, target, weight, reduction, ignore_index):
    """``nll_loss_fwd``, and the sum of the targets' weights."""
    return _nll(1, x, target, weight, reduction, ignore_index)


@aten("nll_loss2d_forward")
def nll_loss_of_images(x, target, weight, reduction, ignore_index):
    """`nll_loss` for each pixel."""
    return _nll(4, x, target, weight, reduction, ignore_index)


@aten("nll_loss_backward")
def nll_loss_backward(dy, x, target, weight, reduction, ignore_index, total):
    """``nll_loss_bwd``."""
    return _nll_backward(1, dy, x, target, weight, reduction, ignore_index, total)


@aten("nll_loss2d_backward")
def nll_loss_of_images_backward(dy, x, target, weight, reduction, ignore_index, total):
    """`nll_loss_backward` for each pixel."""
    if not x.is_contiguous():
        raise Refused("images with channels last")
    return _nll_backward(4, dy, x, target, weight, reduction, ignore_index, total)
