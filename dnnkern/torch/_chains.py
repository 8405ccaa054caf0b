"""Neighbours that run in one kernel: a convolution or a product, batch normalisation, an addition, an activation."""
import weakref
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from .. import NotSupported
from . import nn as ours
from ._above import needs_gradient
from ._table import Refused
from ._tensors import KEY
from .functional import activation as act
from .functional._front import NAMES, in_dtype
from .functional.conv import conv
from .functional.linear import linear
from .functional.norm import batch_norm, settings

CONVOLUTIONS = ours.Conv1d, ours.Conv2d, ours.Conv3d
NORMS = ours.BatchNorm1d, ours.BatchNorm2d, ours.BatchNorm3d
HEADS = *CONVOLUTIONS, ours.Linear
_ERRORS = Refused, NotSupported, ValueError, TypeError
_DEVICE = KEY.lower()

ACTIVATIONS = {
    ours.ReLU: lambda m: "relu", ours.ReLU6: lambda m: act.text_of("relu", upper_clip=6), ours.SiLU: lambda m: "silu",
    ours.Hardtanh: lambda m: act.text_of("relu", lower_clip=m.min_val, upper_clip=m.max_val), ours.Mish: lambda m: "mish",
    ours.LeakyReLU: lambda m: act.text_of("leaky_relu", negative_slope=m.negative_slope), ours.Hardswish: lambda m: "hard_swish",
    ours.GELU: lambda m: "gelu_tanh" if m.approximate == "tanh" else "gelu", ours.ELU: lambda m: act.text_of("elu", alpha=m.alpha),
    ours.Sigmoid: lambda m: "sigmoid", ours.Tanh: lambda m: "tanh", ours.Hardsigmoid: lambda m: "hard_sigmoid"}
"""The texts of activations that are modules."""
FUNCTIONS = {F.relu: "relu", torch.relu: "relu", torch.relu_: "relu", "relu": "relu", "relu_": "relu", F.silu: "silu", F.gelu: "gelu",
             F.mish: "mish", F.hardswish: "hard_swish", F.hardsigmoid: "hard_sigmoid", torch.sigmoid: "sigmoid", "sigmoid": "sigmoid",
             torch.tanh: "tanh", "tanh": "tanh", F.relu6: act.text_of("relu", upper_clip=6)}
"""The texts of activations that are functions, or methods of tensors."""


class Chain(NamedTuple):
    """Modules and functions of one call, in their order; each may be missing.

    `activation` is a module, or the text of a function.
    """
    head: nn.Module | None
    norm: nn.Module | None
    activation: nn.Module | str | None

    def __call__(self, x, residual=None):
        return _ended(self, x, residual)


def _ended(chain, x, residual):
    head, norm, activation = chain
    text = activation if isinstance(activation, str) else "" if activation is None else _text(activation)
    if text is None or x.device.type != _DEVICE or not all(map(_is_plain, (head, norm))):
        return _apart(chain, x, residual)
    if norm is None:
        return _of_head(chain, x, residual, text, head.weight, head.bias)
    if head is not None and type(head) in CONVOLUTIONS and not _of_batch(norm):
        if not needs_gradient(x, residual, head.weight, head.bias, norm.weight, norm.bias):
            return _of_head(chain, x, residual, text, *_folded(head, norm))
    elif head is not None:
        _known.pop(head, None)
    y = x if head is None else head(x)
    norm._check_input_dim(y)
    running, of_batch, momentum = settings(norm)
    given = y, *running, norm.weight, norm.bias, of_batch, momentum, norm.eps
    last, then = act.parted(text, needs_gradient(y, residual, norm.weight, norm.bias))
    try:
        _matches(residual, y)
        return act.then(batch_norm(*given, residual=residual, activation=last), then)
    except _ERRORS:
        y = NAMES["batch_norm"](*given)
        return act.pytorchs(y if residual is None else y + residual, text)


def _is_plain(module):
    """Whether a module of PyTorch's would only be called, without hooks."""
    return module is None or type(module) in ours.BACK and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        or _has_any_global_hook())


def _text(activation):
    """The text of a module; None if it must be called itself."""
    return ACTIVATIONS[type(activation)](activation) if type(activation) in ACTIVATIONS and _is_plain(activation) else None


def _apart(chain, x, residual):
    """One after the other."""
    for module in (chain.head, chain.norm):
        x = x if module is None else module(x)
    x = x if residual is None else x + residual
    if isinstance(chain.activation, str):
        return act.pytorchs(x, chain.activation)
    return x if chain.activation is None else chain.activation(x)


def _matches(residual, y):
    if residual is not None and not (isinstance(residual, torch.Tensor) and residual.shape == y.shape and residual.dtype is y.dtype):
        raise Refused("a residual of another shape or dtype")


def _of_head(chain, x, residual, text, weight, bias):
    """A convolution or product with all that follows in it."""
    head = chain.head
    last, then = act.parted(text, needs_gradient(x, residual, weight, bias))
    try:
        if residual is not None and type(residual) is not torch.Tensor:
            raise Refused("a residual that is no plain tensor")
        x, weight, bias = in_dtype((x, weight, bias))
        if type(head) in CONVOLUTIONS:
            if head.padding_mode != "zeros":
                x, padding = F.pad(x, head._reversed_padding_repeated_twice, mode=head.padding_mode), 0
            else:
                padding = head.padding
            y = conv(x, weight, bias, head.stride, padding, head.dilation, head.groups, residual=residual, activation=last)
        else:
            y = linear(x, weight, bias, residual=residual, activation=last)
        return act.then(y, then)
    except _ERRORS:
        return _apart(chain, x, residual)


# ---- folding of batch normalisation into the weights of a convolution

_known = weakref.WeakKeyDictionary()


def _of_batch(norm):
    """Whether the batch's statistics are taken."""
    return norm.training or norm.running_mean is None or norm.running_var is None


def _folded(head, norm):
    """Weight and bias of a convolution that includes the normalisation; made anew when a tensor that they come from has changed."""
    tensors = head.weight, head.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var
    keeps = not any(t is not None and t.is_inference() for t in tensors)
    versions = [None if t is None else t._version for t in tensors] if keeps else None
    known = _known.get(head)
    if keeps and known is not None:
        before, versions_before, eps, result = known
        if versions_before == versions and eps == norm.eps and all(a is b for a, b in zip(before, tensors)):
            return result
    with torch.no_grad():
        weight, bias, gamma, beta, mean, var = tensors
        scale = (var.to(torch.promote_types(var.dtype, torch.float32)) + norm.eps).rsqrt()
        scale = scale if gamma is None else scale * gamma
        moved = (-mean if bias is None else bias - mean) * scale
        moved = moved if beta is None else moved + beta
        result = (weight * scale.view(-1, *[1] * (weight.dim() - 1))).to(weight.dtype), moved.to(weight.dtype)
    if keeps:
        _known[head] = tensors, versions, norm.eps, result
    return result
