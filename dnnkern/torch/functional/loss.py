"""Softmax, losses, dropout, embedding, attention."""
import torch
import torch.nn.functional as F

from .._operator import derived, twin
from .._rules import folded, leading
from .._table import Refused
from .._tensors import KEY
from ..ops import attention as attention_ops
from ..ops import cross_entropy as cross_entropy_ops
from ..ops import dropout as dropout_ops
from ..ops.loss import REDUCTIONS
from ._front import FLOAT32, LOW, replaces

_WIDE = FLOAT32 if KEY == "CUDA" else None  # what autocast does on a GPU


@derived("_softmax", leading("self", shifted=("dim",)), _WIDE)
def _softmax(dy, mask, dim, y0):
    return [twin("_softmax_backward_data")(dy, y0, dim, y0.dtype)]


@derived("_log_softmax", leading("self", shifted=("dim",)), _WIDE)
def _log_softmax(dy, mask, dim, y0):
    return [twin("_log_softmax_backward_data")(dy, y0, dim, y0.dtype)]


def _softmax_of(run):
    def function(input, dim=None, _stacklevel=3, dtype=None):
        if dim is None or not input.dim() or not -input.dim() <= dim < input.dim():
            raise Refused(f"dim {dim} of a {input.dim()}-D tensor")
        return run(input if dtype is None else input.to(dtype), dim, False)
    return function


replaces(F.softmax, _WIDE)(_softmax_of(_softmax))
replaces(F.log_softmax, _WIDE)(_softmax_of(_log_softmax))


def _nll_gradient(backward):
    def gradient(dy, mask, self, target, weight, reduction, ignore_index, y1):
        return [backward(dy, self, target, weight, reduction, ignore_index, y1)]
    return gradient


_nll = derived("nll_loss_forward")(_nll_gradient(twin("nll_loss_backward")))
_nll_of_images = derived("nll_loss2d_forward")(_nll_gradient(twin("nll_loss2d_backward")))


def _reduction(size_average, reduce, reduction):
    if size_average is not None or reduce is not None or reduction not in REDUCTIONS:
        raise Refused(f"size_average {size_average}, reduce {reduce}, reduction {reduction!r}")
    return REDUCTIONS.index(reduction)


@replaces(F.nll_loss, _WIDE)
def nll_loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"):
    if input.dim() not in (1, 2, 4):
        raise Refused(f"{input.dim()}-D scores")
    run = _nll_of_images if input.dim() == 4 else _nll
    return run(input, target, weight, _reduction(size_average, reduce, reduction), ignore_index)[0]


@replaces(F.cross_entropy, _WIDE)
def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    number = _reduction(size_average, reduce, reduction)
    return cross_entropy_ops.cross_entropy(input, target, weight, number, ignore_index, label_smoothing)


@replaces(F.dropout)
def dropout(input, p=0.5, training=True, inplace=False):
    if not training and 0 <= p <= 1:
        return input
    if inplace:
        raise Refused("a result in place")
    return dropout_ops.dropout(input, p, training)


@derived("embedding")
def _embedding(dy, mask, weight, indices, padding_idx, scale_grad_by_freq):
    return [twin("embedding_dense_backward")(dy, indices, weight.shape[0], padding_idx, scale_grad_by_freq)]


@replaces(F.embedding)
def embedding(input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    if max_norm is not None or sparse:
        raise Refused("max_norm" if max_norm is not None else "sparse gradients")
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise Refused(f"padding_idx {padding_idx} in a table of {rows} rows")
    return _embedding(weight, input, -1 if padding_idx is None else padding_idx % rows, scale_grad_by_freq, False)


@replaces(F.scaled_dot_product_attention, LOW)
def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    return attention_ops.attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# ---- products, which PyTorch's attention with returned weights is made of

@derived("bmm", folded("self", "mat2"), LOW)
def _bmm(dy, mask, self, mat2):
    return _bmm(dy, mat2.mT) if mask[0] else None, _bmm(self.mT, dy) if mask[1] else None


@replaces(torch.bmm, LOW)
def bmm(input, mat2):
    return _bmm(input, mat2)
