"""Matrix products of groups of rows."""
import torch

import dnnkern

from .._above import gradients, needs_gradient
from .._operator import operator
from .._rules import LOW
from .._table import Refused
from .._tensors import math_of, one_dtype
from . import activation as act
from ._front import public


def _pytorchs(a, b, offsets, bias, transpose_b, activation):
    """Of the rows of groups; the others are 0."""
    ends, b = offsets.tolist(), b.mT if transpose_b else b
    parts = [a[:ends[0]].new_zeros(ends[0], b.shape[2])]
    for g, (first, last) in enumerate(zip(ends, ends[1:])):
        y = a[first:last] @ b[g]
        parts.append(act.pytorchs(y if bias is None else y + bias[g], activation))
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[2])])


def _run(a, b, offsets, bias, transpose_b, activation):
    how = {"activation": act.parsed(activation), "math": math_of("matmul", a)}
    return dnnkern.grouped_matmul(a, b, offsets, bias=bias, transpose_b=transpose_b, **how)


def _fake(a, b, offsets, bias, transpose_b, activation):
    return a.new_empty((a.shape[0], b.shape[1 if transpose_b else 2]))


def _run_gradient(dy, b, offsets, transpose_b):
    out = dy.new_zeros((dy.shape[0], b.shape[2 if transpose_b else 1]))  # rows of no group
    return dnnkern.grouped_matmul(dy, b, offsets, transpose_b=not transpose_b, math=math_of("matmul", dy), out=out)


_of_rows = operator("grouped_matmul_gradient(Tensor dy, Tensor b, Tensor offsets, bool transpose_b) -> Tensor", _run_gradient,
                    lambda dy, b, offsets, transpose_b: dy.new_empty((dy.shape[0], b.shape[2 if transpose_b else 1])),
                    "grouped_matmul backward")
_of_weights = operator("grouped_matmul_gradient_of_weights(Tensor a, Tensor dy, Tensor offsets) -> Tensor",
                       lambda a, dy, offsets: dnnkern.grouped_matmul_bwd_weights(a, dy, offsets, math=math_of("matmul", a)),
                       lambda a, dy, offsets: a.new_empty((offsets.shape[0] - 1, a.shape[1], dy.shape[1])), "grouped_matmul backward")


def _gradient(dy, wanted, a, b, offsets, bias, transpose_b, activation, y0):
    if torch.is_grad_enabled():
        da, db, dbias = gradients(lambda a, b, bias: _pytorchs(a, b, offsets, bias, transpose_b, activation), (a, b, bias), dy)
        return da, db, None, dbias
    dz = act.gradient(dy, y0, activation) if activation else dy
    return (_of_rows(dz, b, offsets, transpose_b) if wanted[0] else None,
            _of_weights(*((dz, a) if transpose_b else (a, dz)), offsets) if wanted[1] else None, None,
            _of_weights(dz.new_ones((dz.shape[0], 1)), dz, offsets).squeeze(1) if wanted[3] else None)


_grouped = operator("grouped_matmul(Tensor a, Tensor b, Tensor offsets, Tensor? bias, bool transpose_b, str activation) -> Tensor", _run,
                    _fake, "grouped_matmul", _gradient, cast=LOW)


def _composition(input, weight, offsets, *, bias=None, transpose_weight=False, activation=None):
    return _pytorchs(input, weight, offsets, bias, transpose_weight, act.text_at_end("grouped_matmul", activation))


@public(_composition, LOW)
def grouped_matmul(input, weight, offsets, *, bias=None, transpose_weight=False, activation=None):
    """Products of groups of rows, one matrix a group, as of experts: ``y[rows] = activation(input[rows] @ weight[g] + bias[g])``.

    Parameters
    ----------
    input : Tensor (M, K)
        Rows, sorted by group; float64, float32, float16 or bfloat16.
    weight : Tensor (G, K, N), or (G, N, K) with `transpose_weight`
    offsets : Tensor (G + 1,) of int32
        Group g has the rows ``offsets[g]`` to ``offsets[g + 1] - 1``. They stay on the device. Rows of no group are not written; their
        gradient is 0.
    bias : Tensor (G, N), optional
    transpose_weight : bool
    activation : str, optional
        As in `conv2d`.

    Returns
    -------
    Tensor (M, N)

    Raises
    ------
    ValueError, TypeError
        Shapes or dtypes that do not fit.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> experts = torch.stack([torch.eye(2), 2 * torch.eye(2)])
    >>> functional.grouped_matmul(torch.ones(3, 2), experts, torch.tensor([0, 1, 3], dtype=torch.int32))
    tensor([[1., 1.],
            [2., 2.],
            [2., 2.]])
    """
    text = act.text_at_end("grouped_matmul", activation)
    if input.dim() != 2 or weight.dim() != 3 or input.shape[1] != weight.shape[2 if transpose_weight else 1]:
        raise ValueError(f"grouped_matmul: input has shape {tuple(input.shape)}, weight {tuple(weight.shape)}; expected (M, K) and "
                         f"{'(G, N, K)' if transpose_weight else '(G, K, N)'}")
    if offsets.dtype is not torch.int32 or offsets.shape != (weight.shape[0] + 1,):
        raise ValueError(f"grouped_matmul: offsets is {offsets.dtype} of shape {tuple(offsets.shape)}; expected torch.int32 of shape "
                         f"({weight.shape[0] + 1},), one more than groups")
    n = weight.shape[1 if transpose_weight else 2]
    if bias is not None and bias.shape != (weight.shape[0], n):
        raise ValueError(f"grouped_matmul: bias has shape {tuple(bias.shape)}; expected {(weight.shape[0], n)}")
    one_dtype(input, weight, bias)
    if 0 in (*input.shape, *weight.shape):
        raise Refused("no elements")
    last, after = act.parted(text, needs_gradient(input, weight, bias))
    return act.then(_grouped(input, weight, offsets, bias, transpose_weight, last), after)
