"""Operators that Hugging Face's models are made of, with gradients: attention with all that their layers ask for, and RMS norm with weights
of float32."""
import torch
import torch.nn.functional as F

import dnnkern

from ._above import gradients
from ._operator import operator
from ._tensors import computed


def _wanted(mask, found):
    return [grad if wanted else None for wanted, grad in zip(mask, found)]


# ---- RMS norm of the last dimension; the weight may be float32 beside 16 bits

def plain_rms_norm(x, gamma, eps):
    """By PyTorch's functions."""
    wide = x.to(computed(x))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gamma.to(wide.dtype)).to(x.dtype)


_rms_backward = operator(
    "transformers_rms_norm_backward(Tensor dy, Tensor x, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
    lambda dy, x, gamma, rstd: dnnkern.rms_norm_bwd(dy, x, gamma, rstd), lambda dy, x, gamma, rstd: (
        x.new_empty(x.shape), gamma.new_empty(gamma.shape)), "rms_norm backward")


def _rms_gradient(dy, mask, x, gamma, eps, y1):
    if torch.is_grad_enabled():
        return gradients(lambda x, gamma: plain_rms_norm(x, gamma, eps), (x, gamma), dy)
    return _wanted(mask, _rms_backward(dy, x, gamma, y1))


rms_norm = operator(
    "transformers_rms_norm(Tensor x, Tensor gamma, float eps) -> (Tensor, Tensor)",
    lambda x, gamma, eps: dnnkern.rms_norm_fwd(x, gamma, eps=eps),
    lambda x, gamma, eps: (x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=computed(x))), "rms_norm", _rms_gradient)


# ---- attention: the result is (B, S, H, E), as the models' layers take it

def plain_attention(q, k, v, bias, sink, scale, causal, window, softcap, dropout):
    """By PyTorch's functions, with all probabilities in memory."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    rows, keys = q.shape[2], k.shape[2]
    scores = (q @ k.mT * scale).to(computed(q))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at, key = torch.arange(rows, device=q.device)[:, None] + keys - rows, torch.arange(keys, device=q.device)
    allowed = (key <= at if causal else key >= 0) & (key >= at - window if window >= 0 else key >= 0)
    if bias is not None and bias.dtype is torch.bool:
        allowed = allowed & bias
    elif bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~allowed, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    none = scores[..., :keys].amax(-1, keepdim=True) == float("-inf")
    p = torch.softmax(scores.masked_fill(none, 0.0), -1)[..., :keys].masked_fill(none, 0.0)
    return (F.dropout(p, dropout).to(q.dtype) @ v).transpose(1, 2).contiguous()


def _options(bias, sink, seed, scale, causal, window, softcap, dropout):
    return {"bias" if bias is not None and bias.is_floating_point() else "mask": bias, "sink": sink, "scale": scale, "causal": causal,
            "window": (window, -1), "align": "bottom_right", "softcap": softcap, "dropout": dropout, "seed": 0 if seed is None else seed}


def _forward(q, k, v, *more):
    o, lse = _forward_fake(q, k, v)
    dnnkern.sdpa_fwd(q, k, v, **_options(*more), return_lse=True, out=(o.transpose(1, 2), lse))
    return o, lse


def _forward_fake(q, k, v, *_):
    b, h, s, _ = q.shape
    return q.new_empty((b, s, h, v.shape[3])), q.new_empty((b, h, s), dtype=computed(q))


def _backward(dy, q, k, v, o, lse, bias, sink, seed, of_bias, of_sink, *more):
    out = _backward_fake(dy, q, k, v, o, lse, bias, sink, seed, of_bias, of_sink)
    dnnkern.sdpa_bwd(dy.transpose(1, 2), q, k, v, o.transpose(1, 2), lse, **_options(bias, sink, seed, *more), bias_gradient=of_bias,
                     sink_gradient=of_sink, out=tuple(out))
    return out


def _backward_fake(dy, q, k, v, o, lse, bias, sink, seed, of_bias, of_sink, *_):
    return [torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *([bias.new_empty(bias.shape)] if of_bias else []),
            *([sink.new_empty(sink.shape)] if of_sink else [])]


_MORE = "float scale, bool causal, int window, float softcap, float dropout"
_attention_backward = operator(
    "transformers_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? bias, Tensor? sink, "
    f"Tensor? seed, bool of_bias, bool of_sink, {_MORE}) -> Tensor[]", _backward, _backward_fake, "attention backward")


def _attention_gradient(dy, mask, q, k, v, bias, sink, seed, scale, causal, window, softcap, dropout, y0, y1):
    if torch.is_grad_enabled():
        if dropout:
            raise RuntimeError("attention of transformers: no second derivatives with dropout; expected attention_dropout=0")
        return gradients(lambda *tensors: plain_attention(*tensors, scale, causal, window, softcap, 0.0), (q, k, v, bias, sink), dy)
    of_bias, of_sink = mask[3] and bias.is_floating_point(), mask[4]
    dq, dk, dv, *others = _attention_backward(dy, q, k, v, y0, y1, bias, sink, seed, of_bias, of_sink, scale, causal, window, softcap,
                                              dropout)
    return dq, dk, dv, others.pop(0) if of_bias else None, others.pop(0) if of_sink else None, None


attention = operator(
    f"transformers_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sink, Tensor? seed, {_MORE}) -> (Tensor, Tensor)",
    _forward, _forward_fake, "attention", _attention_gradient)
