"""Dropout: one kernel each way, and a mask of one bit per element."""
import torch

import dnnkern

from .._above import define, differentiable, needs_gradient
from .._table import Refused, aten
from .._tensors import one_dtype


def _forward(x, seed, p):
    return dnnkern.dropout_fwd(x, p, seed, out=(torch.empty_like(x), x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)))


def _fake(x, seed, p):
    return torch.empty_like(x), x.new_empty(-(-x.numel() // 8), dtype=torch.uint8)


def _backward(dy, mask, p):
    return dnnkern.dropout_bwd(dy, mask, p, out=torch.empty_like(dy))


forward = define("dropout(Tensor x, Tensor seed, float p) -> (Tensor, Tensor)", _forward, _fake, "dropout")
backward = define("dropout_backward(Tensor dy, Tensor mask, float p) -> Tensor", _backward, lambda dy, mask, p: torch.empty_like(dy),
                  "dropout backward")


class Dropout(torch.autograd.Function):
    """The result and its gradient."""

    @staticmethod
    def forward(x, seed, p):
        return forward(x, seed, p)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.p = inputs[2]
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, _):
        return None if dy is None else Gradient.apply(dy, *ctx.saved_tensors, ctx.p), None, None


differentiable(forward, Dropout.backward, Dropout.setup_context)


class Gradient(torch.autograd.Function):
    """The gradient, which is linear in dy: its own is of the same form."""

    @staticmethod
    def forward(dy, mask, p):
        return backward(dy, mask, p)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.p = inputs[2]
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, d):
        return Gradient.apply(d, *ctx.saved_tensors, ctx.p), None, None


@aten("dropout", heavy=False, composite=True)
def dropout(x, p, train):
    """``dropout_fwd`` and ``dropout_bwd``, with a seed of PyTorch's generator: other numbers than PyTorch's own would draw."""
    one_dtype(x)
    if not train or not 0 < p < 1 or x.numel() == 0:
        raise Refused("nothing to draw")
    seed = torch.empty((), dtype=torch.int64, device=x.device).random_()
    return (Dropout.apply if needs_gradient(x) else forward)(x, seed, p)[0]
