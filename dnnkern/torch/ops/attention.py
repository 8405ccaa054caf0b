"""Scaled dot-product attention: one kernel forward, two backward."""
import torch

import dnnkern

from ...device import HOST_MEMORY
from .._above import define, differentiable, gradients, needs_gradient
from .._rules import LOW, folded
from .._table import Refused, aten
from .._tensors import one_dtype

_MATH, _FLASH, _EFFICIENT = 0, 1, 2  # of the kernels between which PyTorch chooses


def _like_kernel(q, shape, choice):
    """Memory for a result of q's dtype, with the strides of the kernel that PyTorch would choose."""
    b, h, s, e = shape
    if choice == _EFFICIENT:
        return q.new_empty((b, s, h, e)).transpose(1, 2)
    return q.new_empty(shape) if choice == _MATH or shape != q.shape else torch.empty_like(q)


def _gradient_like(x, choice, of_keys=False):
    """Memory for a gradient, likewise; that of keys is the product of transposed matrices, unless groups of heads are summed."""
    b, h, s, d = x.shape
    if choice == _MATH:
        return x.new_empty((b, h, d, s)).transpose(2, 3) if of_keys else x.new_empty(x.shape)
    if choice == _EFFICIENT or HOST_MEMORY:
        return x.new_empty((b, s, h, d)).transpose(1, 2)
    return torch.empty_like(x)


def _likely(dtype, mask):
    """What PyTorch chooses for tensors without values, which a compiler traces: it does not tell."""
    if HOST_MEMORY or mask is None and dtype.itemsize == 2:
        return _FLASH
    return _MATH if dtype is torch.float64 else _EFFICIENT


def _options(mask, dropout, seed, causal, scale):
    kind = "mask" if mask is None or mask.dtype is torch.bool else "bias"
    return {kind: mask, "dropout": dropout, "seed": 0 if seed is None else seed, "causal": causal, "scale": scale}


def _forward(q, k, v, mask, dropout, seed, causal, scale, choice):
    o, lse = _fake(q, k, v, mask, dropout, seed, causal, scale, choice)
    return dnnkern.sdpa_fwd(q, k, v, **_options(mask, dropout, seed, causal, scale), return_lse=True, out=(o, lse))


def _fake(q, k, v, mask, dropout, seed, causal, scale, choice):
    o = _like_kernel(q, (*q.shape[:3], v.shape[3]), choice)
    return o, q.new_empty(q.shape[:3], dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)


def _backward(*given):
    return backward_into((None,) * 3, *given)


def backward_into(out, dy, q, k, v, o, lse, mask, dropout, seed, causal, scale, choice):
    """The gradients of `backward`, in memory that is given; None: in memory of their own."""
    more = {"bias_gradient": False} if mask is not None and mask.dtype is not torch.bool else {}
    out = tuple(_gradient_like(x, choice, of_keys) if y is None else y for y, (x, of_keys) in zip(out, _gradients_of(q, k, v)))
    return dnnkern.sdpa_bwd(dy, q, k, v, o, lse, **_options(mask, dropout, seed, causal, scale), **more, out=out)


def _gradients_of(q, k, v):
    return (q, False), (k, k.shape[1] == q.shape[1]), (v, False)


def _fake_gradients(dy, q, k, v, o, lse, mask, dropout, seed, causal, scale, choice):
    return tuple(_gradient_like(x, choice, of_keys) for x, of_keys in _gradients_of(q, k, v))


def _backward_of_bias(dy, q, k, v, o, lse, bias, dropout, seed, causal, scale, choice):
    out = _fake_gradients_of_bias(dy, q, k, v, o, lse, bias, dropout, seed, causal, scale, choice)
    return dnnkern.sdpa_bwd(dy, q, k, v, o, lse, **_options(bias, dropout, seed, causal, scale), out=out)


def _fake_gradients_of_bias(dy, q, k, v, o, lse, bias, *more):
    return *_fake_gradients(dy, q, k, v, o, lse, bias, *more), bias.new_empty(bias.shape)


_MORE = "Tensor? mask, float dropout, Tensor? seed, bool causal, float? scale, int choice"
_QKV = "Tensor q, Tensor k, Tensor v"
forward = define(f"attention({_QKV}, {_MORE}) -> (Tensor, Tensor)", _forward, _fake, "scaled_dot_product_attention", cast=LOW,
                 batch=folded("q", "k", "v", when=lambda given, which: not given["dropout"] and (
                     given["mask"] is None or given["mask"].dim() < 4)))
backward = define(f"attention_backward(Tensor dy, {_QKV}, Tensor o, Tensor lse, {_MORE}) -> (Tensor, Tensor, Tensor)", _backward,
                  _fake_gradients, "scaled_dot_product_attention backward")


backward_of_bias = define(
    f"attention_bias_backward(Tensor dy, {_QKV}, Tensor o, Tensor lse, {_MORE}) -> (Tensor, Tensor, Tensor, Tensor)", _backward_of_bias,
    _fake_gradients_of_bias, "scaled_dot_product_attention backward")


class Attention(torch.autograd.Function):
    """The result and its gradients by queries, keys, values and a bias."""

    @staticmethod
    def forward(q, k, v, mask, dropout, seed, *options):
        return forward(q, k, v, mask, dropout, seed, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, mask, dropout, seed, *options = inputs
        ctx.save_for_backward(q, k, v, mask, seed, *output)
        ctx.dropout, ctx.options = dropout, options
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dy, _):
        q, k, v, mask, seed, o, lse = ctx.saved_tensors
        causal, scale, _ = ctx.options
        if dy is None:
            return (None,) * 9
        if not torch.is_grad_enabled():
            function = backward_of_bias if ctx.needs_input_grad[3] else backward
            found = function(dy, q, k, v, o, lse, mask, ctx.dropout, seed, *ctx.options)
        elif ctx.dropout:
            raise RuntimeError("scaled_dot_product_attention: no second derivatives with dropout; expected dropout_p=0, or "
                               "dnnkern.torch.enable(exclude=['scaled_dot_product_attention'])")
        else:
            found = gradients(lambda *qkvm: torch.nn.functional.scaled_dot_product_attention(
                *qkvm, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]), (q, k, v, mask), dy)
        return *found, *(None,) * (9 - len(found))


differentiable(forward, Attention.backward, Attention.setup_context)


@aten("scaled_dot_product_attention", composite=True)
def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """``sdpa_fwd`` and ``sdpa_bwd``."""
    one_dtype(q, k, v)
    if any(t.dim() != 4 for t in (q, k, v)):
        raise Refused(f"{q.dim()}-D queries, {k.dim()}-D keys, {v.dim()}-D values")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or not (enable_gqa or q.shape[1] == k.shape[1]) or 0 in (*q.shape, *v.shape):
        raise Refused(f"queries of shape {tuple(q.shape)}, keys {tuple(k.shape)}, values {tuple(v.shape)}")
    if attn_mask is not None:
        if is_causal or attn_mask.dtype not in (torch.bool, q.dtype) or attn_mask.dim() < 2:
            raise Refused("such a mask")
    if not 0 <= dropout_p < 1:
        raise Refused(f"dropout_p {dropout_p}")
    choice = _likely(q.dtype, attn_mask)
    if type(q) in (torch.Tensor, torch.nn.Parameter):
        choice = torch._fused_sdp_choice(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    seed = torch.empty((), dtype=torch.int64, device=q.device).random_() if dropout_p else None
    given = q, k, v, attn_mask, dropout_p, seed, is_causal, scale, choice
    return (Attention.apply if needs_gradient(q, k, v, attn_mask) else forward)(*given)[0]
