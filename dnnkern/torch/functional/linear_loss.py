"""Cross-entropy of a linear layer's result, in chunks of rows: neither the logits nor their gradient are whole in memory.

With a mean or a sum the gradients are computed in the forward pass, chunk by chunk, where they will be needed: the loss is one number, so
that they are known but for a factor, and each chunk's logits, computed once, serve both. They take the memory of x and of the weight until
backward. Losses of rows have a factor each, which the weight's gradient cannot be given afterwards: there backward computes the logits
again, a product more.
"""
import torch
import torch.nn.functional as F

import dnnkern

from .._above import gradients, needs_gradient
from .._operator import operator
from .._rules import LOW, in_dtype
from .._table import Refused
from .._tensors import KEY, computed, math_of, one_dtype
from ..ops.loss import REDUCTIONS
from ._front import public

LEAST = 512
"""Rows of a chunk, at least: fewer would leave a product's tiles empty."""


def rows_of_chunk(rows, features, classes):
    """How many rows a chunk has, so that its logits are about as large as x.

    >>> rows_of_chunk(8192, 4096, 32000), rows_of_chunk(100, 4096, 32000)
    (1049, 100)
    """
    return min(rows, max(LEAST, -(-rows * features // classes)))


class _Chunks:
    """The loss and its gradients of one call, chunk after chunk."""

    def __init__(self, x, w, bias, target, weight, ignore_index, smoothing, wanted):
        self.x, self.w, self.bias, self.target = x, w, bias, target
        self.options = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": smoothing, "reduction": "none"}
        self.math, wide = math_of("matmul", x), computed(x)
        self.dx = torch.empty_like(x) if wanted[0] else None
        self.dw, self.db = [t.new_zeros(t.shape, dtype=wide) if w else None for t, w in zip((w, bias), wanted[1:])]

    def logits(self, rows):
        return dnnkern.matmul(self.x[rows], self.w.t(), bias=self.bias, math=self.math)

    def loss(self, rows, logits, out):
        return dnnkern.cross_entropy_fwd(logits, self.target[rows], **self.options, out=out)

    def add(self, rows, logits, lse, dloss):
        """Add the gradients of these rows, given those of their losses."""
        d = dnnkern.cross_entropy_bwd(dloss, logits, self.target[rows], lse, **self.options)
        if self.dx is not None:
            dnnkern.matmul(d, self.w, math=self.math, out=self.dx[rows])
        if self.dw is not None:  # sums of chunks in float32
            dnnkern.matmul(d.t(), self.x[rows], c=self.dw, out_dtype=str(self.dw.dtype).removeprefix("torch."), math=self.math, out=self.dw)
        if self.db is not None:
            self.db += dnnkern.reduce(d, "add", axes=(0,))

    def gradients(self):
        return [self.dx, *[None if d is None else d.to(t.dtype) for d, t in ((self.dw, self.w), (self.db, self.bias))]]


def _slices(x, w):
    rows = rows_of_chunk(x.shape[0], *reversed(w.shape))
    return [slice(first, min(first + rows, x.shape[0])) for first in range(0, x.shape[0], rows)]


def _divisor(x, target, weight, ignore_index):
    """What a mean divides by: the weights of the targets, or their number."""
    if target.is_floating_point():
        return x.new_full((), x.shape[0], dtype=computed(x))
    counts = target != ignore_index
    if weight is None:
        return counts.sum().to(computed(x))
    return torch.where(counts, weight[target.clamp(0, weight.shape[0] - 1)], 0.0).sum(dtype=computed(x))


def _or_nothing(x, found):
    """Operators return no None: tensors without elements."""
    return [x.new_empty(0) if t is None else t for t in found]


def _run(x, w, bias, target, weight, reduction, ignore_index, smoothing, of_x, of_w, of_bias):
    wide, n = computed(x), x.shape[0]
    loss, lse = x.new_empty(n, dtype=wide), x.new_empty(n, dtype=wide)
    chunks = _Chunks(x, w, bias, target, weight, ignore_index, smoothing, (of_x, of_w, of_bias))
    divisor = _divisor(x, target, weight, ignore_index) if reduction == 1 else None
    factor = None
    if of_x or of_w or of_bias:
        factor = x.new_ones(n, dtype=wide) if divisor is None else divisor.reciprocal().expand(n).contiguous()
    for rows in _slices(x, w):
        logits = chunks.logits(rows)
        chunks.loss(rows, logits, (loss[rows], lse[rows]))
        if factor is not None:
            chunks.add(rows, logits, lse[rows], factor[rows])
    result = loss if reduction == 0 else dnnkern.reduce(loss, "add") if divisor is None else dnnkern.reduce(loss, "add") / divisor
    return result, lse, *_or_nothing(x, chunks.gradients())


def _fake(x, w, bias, target, weight, reduction, ignore_index, smoothing, of_x, of_w, of_bias):
    wide, n = computed(x), x.shape[0]
    found = [torch.empty_like(x) if of_x else None, *[t.new_empty(t.shape) if of else None for t, of in ((w, of_w), (bias, of_bias))]]
    return x.new_empty((n,) if reduction == 0 else (), dtype=wide), x.new_empty(n, dtype=wide), *_or_nothing(x, found)


def _run_again(dy, x, w, bias, target, weight, lse, reduction, ignore_index, smoothing, of_x, of_w, of_bias):
    chunks = _Chunks(x, w, bias, target, weight, ignore_index, smoothing, (of_x, of_w, of_bias))
    if reduction == 1:
        dy = dy / _divisor(x, target, weight, ignore_index)
    dy = dy.to(computed(x)).expand(x.shape[0]).contiguous()
    for rows in _slices(x, w):
        chunks.add(rows, chunks.logits(rows), lse[rows], dy[rows])
    return tuple(_or_nothing(x, chunks.gradients()))


def _fake_again(dy, x, w, bias, target, weight, lse, *options):
    return _fake(x, w, bias, target, weight, *options)[2:]


_MORE = "int reduction, int ignore_index, float smoothing, bool of_x, bool of_w, bool of_bias"
_again = operator("linear_cross_entropy_gradients(Tensor dy, Tensor x, Tensor w, Tensor? bias, Tensor target, Tensor? weight, "
                  f"Tensor lse, {_MORE}) -> (Tensor, Tensor, Tensor)", _run_again, _fake_again, "linear_cross_entropy backward")


def _pytorchs(x, w, bias, target, weight, reduction, ignore_index, smoothing):
    return F.cross_entropy(F.linear(x, w, bias), target, weight, reduction=REDUCTIONS[reduction], ignore_index=ignore_index,
                           label_smoothing=smoothing)


def _gradient(dy, wanted, x, w, bias, target, weight, reduction, ignore_index, smoothing, of_x, of_w, of_bias, y1, y2, y3, y4):
    if torch.is_grad_enabled():
        return gradients(lambda x, w, bias: _pytorchs(x, w, bias, target, weight, reduction, ignore_index, smoothing).to(dy.dtype),
                         (x, w, bias), dy)
    known = of_x, of_w, of_bias
    if all(k or not n for k, n in zip(known, wanted)):
        return [(y * dy).to(y.dtype) if n else None for y, n in zip((y2, y3, y4), wanted)]
    found = _again(dy, x, w, bias, target, weight, y1, reduction, ignore_index, smoothing, *wanted[:3])
    return [y if n else None for y, n in zip(found, wanted)]


_loss = operator(f"linear_cross_entropy(Tensor x, Tensor w, Tensor? bias, Tensor target, Tensor? weight, {_MORE}) "
                 "-> (Tensor, Tensor, Tensor, Tensor, Tensor)", _run, _fake, "linear_cross_entropy", _gradient,
                 cast=(LOW, "x", "w", "bias"))


def _composition(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=-100,
                 label_smoothing=0.0):
    ignore_index = -100 if ignore_index is None else ignore_index
    return F.cross_entropy(F.linear(input, linear_weight, linear_bias), target, weight, reduction=reduction, ignore_index=ignore_index,
                           label_smoothing=label_smoothing)


@public(_composition)
def linear_cross_entropy(input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=-100,
                         label_smoothing=0.0):
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)`` without the logits, or their gradient, in memory.

    Parameters
    ----------
    input : Tensor (N, K) or (K,)
        float64, float32, float16 or bfloat16.
    linear_weight : Tensor (C, K)
    target : Tensor (N,) of int64, or (N, C) of input's dtype
        Classes, or their probabilities.
    linear_bias : Tensor (C,), optional
    weight : Tensor (C,), optional
        Of the classes.
    reduction : "mean", "sum" or "none"
        With "mean" and "sum" the gradients of input, weight and bias are computed in the forward pass, chunk by chunk, and multiplied by
        the loss's in backward. With "none" each row has a factor, and backward computes the logits of each chunk again.
    ignore_index : int
        Rows with this target have loss 0 and do not count in the mean.
    label_smoothing : float
        From 0 to 1.

    Returns
    -------
    Tensor
        A number, or with "none" (N,); of input's dtype, under autocast on a GPU float32.

    Raises
    ------
    ValueError
        Shapes that do not fit, an unknown reduction, a smoothing out of range.

    Notes
    -----
    A chunk's logits are about as large as input, and have 512 rows at least. The weight's gradient is summed in float32.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> functional.linear_cross_entropy(torch.tensor([[2.0, 0], [0, 3]]), torch.eye(2), torch.tensor([0, 1]), reduction="none")
    tensor([0.1269, 0.0486])
    """
    name = "linear_cross_entropy"
    soft, classes = target.is_floating_point(), linear_weight.shape[0] if linear_weight.dim() == 2 else -1
    if input.dim() not in (1, 2) or linear_weight.dim() != 2 or input.shape[-1] != linear_weight.shape[1]:
        raise ValueError(f"{name}: input has shape {tuple(input.shape)}, linear_weight {tuple(linear_weight.shape)}; expected (N, K) and "
                         "(C, K)")
    expected = (*input.shape[:-1], classes) if soft else input.shape[:-1]
    if tuple(target.shape) != tuple(expected):
        raise ValueError(f"{name}: target has shape {tuple(target.shape)}; expected {tuple(expected)}")
    for word, t in (("linear_bias", linear_bias), ("weight", weight)):
        if t is not None and tuple(t.shape) != (classes,):
            raise ValueError(f"{name}: {word} has shape {tuple(t.shape)}; expected {(classes,)}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction is {reduction!r}; expected one of {', '.join(REDUCTIONS)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing is {label_smoothing}; expected 0 to 1")
    if not soft and target.dtype is not torch.int64:
        raise TypeError(f"{name}: target is {target.dtype}; expected torch.int64, or probabilities")
    x, w, bias = in_dtype((input, linear_weight, linear_bias))
    one_dtype(x, w, bias)
    if input.numel() == 0 or classes == 0 or needs_gradient(weight, target) or soft and ignore_index is not None and ignore_index >= 0:
        raise Refused("no elements, weights or probabilities that need a gradient, or ignored probabilities")
    if soft and target.dtype is not x.dtype or weight is not None and weight.dtype not in (x.dtype, computed(x)):
        raise Refused("probabilities or weights of another dtype")
    single = x.dim() == 1
    if single:
        x, target = x.unsqueeze(0), target.unsqueeze(0)
    number = REDUCTIONS.index(reduction)
    known = number != 0 and torch.is_grad_enabled()
    loss = _loss(x, w, bias, target, weight, number, -100 if ignore_index is None else ignore_index, label_smoothing,
                 *[known and needs_gradient(t) for t in (x, w, bias)])[0]
    loss = loss.squeeze(0) if single and number == 0 else loss
    return loss if KEY == "CUDA" and torch.is_autocast_enabled("cuda") else loss.to(x.dtype)
