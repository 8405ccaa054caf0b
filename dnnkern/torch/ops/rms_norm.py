"""RMS normalisation: one kernel each way."""
import torch

import dnnkern

from .._above import define, differentiable, gradients, needs_gradient
from .._rules import FLOAT32, leading
from .._table import Refused, aten
from .._tensors import KEY, computed, one_dtype


def _forward(x, gamma, axis, eps):
    return dnnkern.rms_norm_fwd(x, gamma, axis=axis, eps=eps)


def _fake(x, gamma, axis, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape[:axis], dtype=computed(x))


def _backward(dy, x, gamma, rstd, axis):
    return dnnkern.rms_norm_bwd(dy, x, gamma, rstd, axis=axis)


def _fake_gradients(dy, x, gamma, rstd, axis):
    return x.new_empty(x.shape), x.new_empty(x.shape[axis:])


forward = define("rms_norm(Tensor x, Tensor? gamma, int axis, float eps) -> (Tensor, Tensor)", _forward, _fake, "rms_norm",
                 repeats=True, cast=FLOAT32 if KEY == "CUDA" else None, batch=leading("x", shifted=("axis",)))
backward = define("rms_norm_backward(Tensor dy, Tensor x, Tensor? gamma, Tensor rstd, int axis) -> (Tensor, Tensor)", _backward,
                  _fake_gradients, "rms_norm backward", repeats=True)


class RmsNorm(torch.autograd.Function):
    """The result and its gradients by x and gamma."""

    @staticmethod
    def forward(x, gamma, axis, eps):
        return forward(x, gamma, axis, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, gamma, ctx.axis, ctx.eps = inputs
        ctx.save_for_backward(x, gamma, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, _):
        x, gamma, rstd = ctx.saved_tensors
        if dy is None:
            return (None,) * 4
        if torch.is_grad_enabled():
            found = gradients(lambda x, gamma: torch.rms_norm(x, x.shape[ctx.axis:], gamma, ctx.eps), (x, gamma), dy)
        else:
            found = backward(dy, x, gamma, rstd, ctx.axis)
        return found[0], None if gamma is None else found[1], None, None


differentiable(forward, RmsNorm.backward, RmsNorm.setup_context)


@aten("rms_norm", composite=True)
def rms_norm(x, normalized_shape, weight=None, eps=None):
    """``rms_norm_fwd`` and ``rms_norm_bwd``."""
    one_dtype(x, weight)
    axis = x.dim() - len(normalized_shape)
    if axis < 0 or not normalized_shape or tuple(x.shape[axis:]) != tuple(normalized_shape) or x.numel() == 0 or (
            weight is not None and weight.shape != x.shape[axis:]):
        raise Refused(f"normalized_shape {list(normalized_shape)} of a tensor of shape {tuple(x.shape)}")
    given = x, weight, axis, torch.finfo(computed(x)).eps if eps is None else eps
    return (RmsNorm.apply if needs_gradient(x, weight) else forward)(*given)[0]
