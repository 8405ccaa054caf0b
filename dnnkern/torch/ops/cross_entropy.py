"""Cross-entropy of logits, with classes or probabilities: one kernel each way."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._above import define, differentiable, gradients, needs_gradient
from .._rules import FLOAT32, folded
from .._table import Refused, aten
from .._tensors import KEY, computed, one_dtype
from .loss import REDUCTIONS


def _options(weight, reduction, ignore_index, smoothing):
    return {"weight": weight, "reduction": REDUCTIONS[reduction], "ignore_index": ignore_index, "label_smoothing": smoothing}


def _forward(x, target, weight, reduction, ignore_index, smoothing):
    return dnnkern.cross_entropy_fwd(x, target, **_options(weight, reduction, ignore_index, smoothing))


def _fake(x, target, weight, reduction, ignore_index, smoothing):
    rows = x.shape[:1] + x.shape[2:] if x.dim() > 1 else ()
    return tuple(x.new_empty(shape, dtype=computed(x)) for shape in (() if reduction else rows, rows))


def _backward(dy, x, target, lse, weight, reduction, ignore_index, smoothing):
    return dnnkern.cross_entropy_bwd(dy.to(computed(x)), x, target, lse, **_options(weight, reduction, ignore_index, smoothing))


_MORE = "Tensor? weight, int reduction, int ignore_index, float smoothing"
forward = define(f"cross_entropy(Tensor x, Tensor target, {_MORE}) -> (Tensor, Tensor)", _forward, _fake, "cross_entropy_loss",
                 repeats=True, cast=(FLOAT32, "x") if KEY == "CUDA" else None,
                 batch=folded("x", "target", when=lambda given, which: given["reduction"] == 0 and given["x"].dim() > 1))
backward = define(f"cross_entropy_backward(Tensor dy, Tensor x, Tensor target, Tensor lse, {_MORE}) -> Tensor", _backward,
                  lambda dy, x, *_: x.new_empty(x.shape), "cross_entropy_loss backward", repeats=True)


class CrossEntropy(torch.autograd.Function):
    """The loss and its gradient by the logits."""

    @staticmethod
    def forward(x, target, weight, *options):
        return forward(x, target, weight, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], output[1])
        ctx.options = inputs[3:]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, _):
        x, target, weight, lse = ctx.saved_tensors
        if dy is None:
            return (None,) * 6
        if torch.is_grad_enabled():
            reduction, ignore_index, smoothing = ctx.options
            again = torch.ops.aten.cross_entropy_loss
            dx, = gradients(lambda x: again(x, target, weight, reduction, ignore_index, smoothing), [x], dy.to(x.dtype))
        else:
            dx = backward(dy, x, target, lse, weight, *ctx.options)
        return dx, *(None,) * 5


differentiable(forward, CrossEntropy.backward, CrossEntropy.setup_context)


@aten("cross_entropy_loss", composite=True)
def cross_entropy(x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    """``cross_entropy_fwd`` and ``cross_entropy_bwd``."""
    one_dtype(x, weight)
    soft = target.is_floating_point()
    if target.dtype is not (x.dtype if soft else torch.int64) or soft and ignore_index >= 0:
        raise Refused(f"targets in {target.dtype}, ignored: {ignore_index}")
    rows = (*x.shape[:1], *x.shape[2:]) if x.dim() > 1 else ()
    if not x.dim() or tuple(target.shape) != (tuple(x.shape) if soft else rows) or x.numel() == 0:
        raise Refused(f"targets of shape {tuple(target.shape)} with logits of shape {tuple(x.shape)}")
    if needs_gradient(weight, target):
        raise Refused("weights or targets that need a gradient")
    given = x, target, weight, reduction, ignore_index, label_smoothing
    loss = CrossEntropy.apply(*given)[0] if needs_gradient(x) else forward(*given)[0]
    if HOST_MEMORY and not soft and type(loss) is torch.Tensor and bool(loss.isnan().any()):
        raise Refused("the loss is NaN, as it is where a target is no class")  # which PyTorch's kernels for the CPU report
    if KEY == "CUDA" and torch.is_autocast_enabled("cuda"):  # PyTorch's log-softmax is of float32 then
        return loss
    return loss.to(x.dtype)
