"""Products, normalizations, reductions and what else PyTorch's operators are in the operation graph."""
import math

import torch

from ...host.tensor import packed_strides
from .._tensors import math_of
from ..ops import rms_norm
from . import _pointwise
from ._draft import Left, Operand, Whole
from ._shapes import in_dims, padded

aten = torch.ops.aten

VIEWS = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.slice.Tensor,
    aten.select.int, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.alias.default, aten.detach.default,
    aten.as_strided.default})
"""Operators whose results are views."""
RULES = _pointwise.rules()
"""{operator: rule}: ``rule(draft, node)`` adds operations, and returns how the program has the results."""


def _rule(*targets):
    def register(function):
        for target in targets:
            RULES[target] = function
        return function
    return register


# ---- products


@_rule(aten.mm.default, aten.bmm.default)
def _(draft, node):
    whole, view = _product(draft, node, *node.args[:2])
    return view


def _product(draft, node, a, b, inner=False):
    """(the product's memory, how the program has it); `inner`: it is read by another operation of the node."""
    a, b, value = draft.view(a), draft.view(b), draft.meta(node)
    _same_dtype(a, b)
    _exact("matmul", a)
    operands = [draft.memory(s, padded(s.shape, s.strides, 3)[0]) for s in (a, b)]
    shape, strides = padded(tuple(value.shape), tuple(value.stride()), 3)
    whole, view = draft.result(node, shape)
    if inner:
        whole = Whole(shape, packed_strides(shape), torch.float64 if a.whole.dtype is torch.float64 else torch.float32)
    draft.add("matmul", dict(zip("AB", operands)), whole)
    return whole, view


def _same_dtype(*views):
    found = {s.whole.dtype for s in views}
    if len(found) > 1:
        raise Left(f"arguments of {' and '.join(sorted(str(d).removeprefix('torch.') for d in found))}")


def _exact(kind, view):
    """The graph never rounds float32 to TF32; overrides do where PyTorch allows it."""
    if math_of(kind, view.whole):
        raise Left("PyTorch allows TF32, and the graph has none")


@_rule(aten.addmm.default, aten.baddbmm.default)
def _(draft, node):
    c, a, b = node.args[:3]
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise Left("alpha or beta")
    product, _ = _product(draft, node, a, b, inner=True)
    return _added(draft, node, product, draft.view(c))


def _added(draft, node, product, addend):
    """An addend after a product."""
    value = node.meta["val"]
    other = draft.broadcast(addend, tuple(value.shape), product.dims)
    if other is None:
        raise Left(f"an addend of shape {addend.shape} as dims {product.dims}")
    whole, view = draft.result(node, product.dims)
    draft.add("add", {"a": Operand(product, product.dims, product.strides), "b": other}, whole)
    return view


def _window(node, first, rank):
    """{argument: ints} of a convolution, whose stride is this argument of the node."""
    stride, padding, dilation, transposed = node.args[first:first + 4]
    if transposed:
        raise Left("a transposed convolution")
    return {name: [*values] * rank if len(values) == 1 else [*values]
            for name, values in (("stride", stride), ("padding", padding), ("dilation", dilation))}


@_rule(aten.convolution.default)
def _(draft, node):
    x, w, bias = node.args[:3]
    x, w = draft.view(x), draft.view(w)
    _same_dtype(x, w)
    _exact("conv", x)
    rank = len(x.shape) - 2
    whole, view = draft.result(node, tuple(draft.meta(node).shape))
    if bias is not None:
        whole = Whole(whole.dims, whole.strides, torch.float64 if x.whole.dtype is torch.float64 else torch.float32)
    draft.add("conv_fprop", {"image": draft.memory(x), "weight": draft.memory(w)}, whole, **_window(node, 3, rank))
    if bias is None:
        return view
    b = draft.view(bias)
    of = Operand(b.whole, (1, b.shape[0], *(1,) * rank), (0, b.strides[0], *(0,) * rank), b.first)
    result, view = draft.result(node, whole.dims)
    draft.add("add", {"a": Operand(whole, whole.dims, whole.strides), "b": of}, result)
    return view


@_rule(aten.convolution_backward.default)
def _(draft, node):
    dy, x, w = map(draft.view, node.args[:3])
    _same_dtype(dy, x, w)
    _exact("conv", x)
    mask, rank = node.args[10], len(x.shape) - 2
    windows = _window(node, 4, rank)
    found = [None] * 3
    if mask[0]:
        whole, found[0] = draft.result(node, x.shape, 0)
        draft.add("conv_dgrad", {"loss": draft.memory(dy), "filter": draft.memory(w)}, whole, **windows)
    if mask[1]:
        whole, found[1] = draft.result(node, w.shape, 1)
        draft.add("conv_wgrad", {"image": draft.memory(x), "loss": draft.memory(dy)}, whole, **windows)
    if mask[2]:
        dims = (1, dy.shape[1], *(1,) * rank)
        whole, found[2] = draft.result(node, dims, 2)
        draft.add("reduction", {"input": draft.memory(dy)}, whole, mode="ADD")
    return tuple(found)


# ---- reductions


def _reduced(draft, node, mode, x, axes, keeps):
    x, value = draft.view(x), draft.meta(node)
    if not x.whole.dtype.is_floating_point:
        raise Left(f"a reduction of {str(x.whole.dtype).removeprefix('torch.')}")
    rank = len(x.shape)
    axes = {a % rank for a in axes} if axes else set(range(rank))
    kept = value.stride() if keeps else _with(axes, value.stride(), rank)
    outer = tuple(0 if k in axes else s for k, s in enumerate(kept))
    for dims in (x.whole.dims, (1, math.prod(x.shape[:-1]), x.shape[-1]), padded(x.shape, x.strides, 3)[0]):
        if len(dims) < 3 or math.prod(dims) != math.prod(x.shape):
            continue
        operand, strides = in_dims(x.shape, x.strides, dims), in_dims(x.shape, _marked(x.shape, axes), dims)
        of = in_dims(x.shape, outer, dims)
        if None not in (operand, strides, of) and math.prod(n for n, s in zip(dims, strides) if s and n != 1) == value.numel():
            break
    else:
        raise Left(f"a reduction of shape {x.shape}, strides {x.strides}")
    own = tuple(n if s else 1 for n, s in zip(dims, strides))
    whole, view = draft.result(node, own)
    draft.add("reduction", {"input": Operand(x.whole, dims, operand, x.first)}, whole, mode=mode)
    return view


def _with(axes, strides, rank):
    left = list(strides)
    return [0 if k in axes else left.pop(0) for k in range(rank)]


def _marked(shape, axes):
    """Strides of packed memory of the dims that are kept, 0 for others."""
    found, step = [], 1
    for k in reversed(range(len(shape))):
        found.insert(0, 0 if k in axes else step)
        step *= 1 if k in axes else shape[k]
    return tuple(found)


@_rule(aten.sum.dim_IntList, aten.mean.dim)
def _(draft, node):
    mode = "ADD" if node.target is aten.sum.dim_IntList else "AVG"
    return _reduced(draft, node, mode, *_axes(node))


@_rule(aten.sum.default, aten.mean.default)
def _(draft, node):
    return _reduced(draft, node, "ADD" if node.target is aten.sum.default else "AVG", node.args[0], None, False)


@_rule(aten.amax.default, aten.amin.default)
def _(draft, node):
    return _reduced(draft, node, "MAX" if node.target is aten.amax.default else "MIN", *_axes(node))


def _axes(node):
    """(x, the axes or None, whether they are kept)"""
    return (*node.args, None, False)[:3] if len(node.args) == 1 else (*node.args, False)[:3]


# ---- softmax


def _along(draft, node, axis, *of):
    """(the axis, operands, the result's memory, how the program has it) of what is computed along an axis."""
    views, value = [draft.view(n) for n in of], draft.meta(node)
    shape, strides = tuple(value.shape), tuple(value.stride())
    if not shape:
        raise Left("a tensor of no dims")
    axis = axis % len(shape) - len(shape)
    dims = draft.dims_for(views, shape, strides) if axis == -1 else padded(shape, strides, 3)[0]
    if dims[axis] != shape[axis]:
        dims = padded(shape, strides, 3)[0]
    return axis, [draft.memory(s, dims) for s in views], *draft.result(node, dims)


@_rule(aten._softmax.default)
def _(draft, node):
    axis, (x,), whole, view = _along(draft, node, node.args[1], node.args[0])
    draft.add("softmax", {"input": x}, whole, axis=axis)
    return view


@_rule(aten._softmax_backward_data.default)
def _(draft, node):
    axis, (dy, y), whole, view = _along(draft, node, node.args[2], *node.args[:2])
    draft.add("softmax_backward", {"loss": dy, "input": y}, whole, axis=axis)
    return view


# ---- normalizations


def _rows(draft, node, x, shape, value):
    """(dims, dims of weights, of statistics) of a normalization of the last dims, whose sizes are `shape`."""
    if len(shape) != 1:
        raise Left(f"a normalization of {len(shape)} dims")
    dims = draft.dims_for([x], tuple(value.shape), tuple(value.stride()))
    if dims[-1] != shape[0]:
        dims = padded(value.shape, value.stride(), 3)[0]
    return dims, (*(1,) * (len(dims) - 1), dims[-1]), (*dims[:-1], 1)


def _weight(draft, node, dims):
    w = draft.view(node)
    return Operand(w.whole, dims, (*(0,) * (len(dims) - 1), w.strides[-1]), w.first)


@_rule(aten.native_layer_norm.default)
def _(draft, node):
    x, shape, weight, bias, eps = node.args
    if weight is None or bias is None:
        raise Left("no weight, or no bias")
    x, value = draft.view(x), draft.meta(node, 0)
    dims, own, small = _rows(draft, node, x, shape, value)
    y, view = draft.result(node, dims, 0)
    mean, rstd = (draft.result(node, small, k) for k in (1, 2))
    draft.add("layernorm", {"input": draft.memory(x, dims), "scale": _weight(draft, weight, own), "bias": _weight(draft, bias, own),
                            "epsilon": float(eps)}, y, mean[0], rstd[0], norm_forward_phase="TRAINING")
    return view, mean[1], rstd[1]


@_rule(aten.native_layer_norm_backward.default)
def _(draft, node):
    dy, x, shape, mean, rstd, weight, bias, mask = node.args
    if weight is None or bias is None:
        raise Left("no weight, or no bias")
    views, value = [draft.view(n) for n in (dy, x)], node.args[1].meta["val"]
    dims, own, small = _rows(draft, node, views[1], shape, value)
    results, found = [], [None] * 3
    for k, size in enumerate((dims, own, own)):
        if mask[k]:
            whole, found[k] = draft.result(node, size, k)
            results.append(whole)
        else:
            results.append(None)
    statistics = [draft.memory(draft.view(n), small) for n in (mean, rstd)]
    draft.add("layernorm_backward", {"grad": draft.memory(views[0], dims), "input": draft.memory(views[1], dims),
                                     "scale": _weight(draft, weight, own), "mean": statistics[0], "inv_variance": statistics[1]},
              *results)
    return tuple(found)


@_rule(rms_norm.forward)
def _(draft, node):
    x, weight, axis, eps = node.args
    shape = draft.meta(node, 0).shape[axis:]
    if weight is None:
        raise Left("no weight")
    x, value = draft.view(x), draft.meta(node, 0)
    dims, own, small = _rows(draft, node, x, shape, value)
    (y, view), (rstd, inverse) = draft.result(node, dims, 0), draft.result(node, small, 1)
    draft.add("rmsnorm", {"input": draft.memory(x, dims), "scale": _weight(draft, weight, own), "epsilon": float(eps)}, y, rstd,
              norm_forward_phase="TRAINING")
    return view, inverse


@_rule(rms_norm.backward)
def _(draft, node):
    dy, x, weight, rstd, axis = node.args
    if weight is None:
        raise Left("no weight")
    dy, x, value = draft.view(dy), draft.view(x), draft.meta(node, 0)
    dims, own, small = _rows(draft, node, x, value.shape[axis:], value)
    (dx, view), (dscale, other) = draft.result(node, dims, 0), draft.result(node, own, 1)
    draft.add("rmsnorm_backward", {"grad": draft.memory(dy, dims), "input": draft.memory(x, dims), "scale": _weight(draft, weight, own),
                                   "inv_variance": draft.memory(draft.view(rstd), small)}, dx, dscale)
    return view, other


def _channels(draft, node, rank):
    """A weight or a statistic of one element a channel."""
    w = draft.view(node)
    return Operand(w.whole, (1, w.shape[0], *(1,) * (rank - 2)), (0, w.strides[0], *(0,) * (rank - 2)), w.first)


@_rule(aten._native_batch_norm_legit_functional.default)
def _(draft, node):
    x, weight, bias, mean, var, training, momentum, eps = node.args
    if not training or weight is None or bias is None:
        raise Left("no weights, or statistics that are given")
    x = draft.view(x)
    rank = len(x.shape)
    if rank < 3:
        raise Left("no images")
    small = (1, x.shape[1], *(1,) * (rank - 2))
    results, found = zip(*[draft.result(node, x.shape if k == 0 else small, k) for k in range(5)])
    draft.add("batchnorm", {"input": draft.memory(x), **{name: _channels(draft, n, rank) for name, n in (
        ("scale", weight), ("bias", bias), ("in_running_mean", mean), ("in_running_var", var))},
        "epsilon": float(eps), "momentum": float(momentum)}, *results)
    return found


@_rule(aten.native_batch_norm_backward.default)
def _(draft, node):
    dy, x, weight, _, _, mean, rstd, training, eps, mask = node.args
    if not training or weight is None:
        raise Left("no weight, or statistics that are given")
    dy, x = draft.view(dy), draft.view(x)
    rank = len(x.shape)
    if rank < 3:
        raise Left("no images")
    small = (1, x.shape[1], *(1,) * (rank - 2))
    results, found = [], [None] * 3
    for k in range(3):
        if node.meta["val"][k] is None or not mask[k]:
            results.append(None)
            continue
        whole, found[k] = draft.result(node, x.shape if k == 0 else small, k)
        results.append(whole)
    draft.add("batchnorm_backward", {"grad": draft.memory(dy), "input": draft.memory(x), **{name: _channels(draft, n, rank) for name, n in (
        ("scale", weight), ("mean", mean), ("inv_variance", rstd))}}, *results)
    return tuple(found)


@_rule(aten._native_batch_norm_legit_no_training.default)
def _(draft, node):
    """A scale and a bias for each channel, which small operations make first."""
    x, weight, bias, mean, var, momentum, eps = node.args
    if weight is None or bias is None:
        raise Left("no weights")
    x = draft.view(x)
    rank = len(x.shape)
    if rank < 3:
        raise Left("no images")
    g, b, m, v = (_channels(draft, n, rank) for n in (weight, bias, mean, var))
    whole, view = draft.result(node, x.shape, 0)

    def small(method, **inputs):
        dims = g.dims
        made = Whole(dims, (dims[1], 1, *(dims[1],) * (rank - 2)), torch.float32)
        draft.add(method, inputs, made)
        return Operand(made, made.dims, made.strides)
    rstd = small("rsqrt", input=small("add", a=v, b=float(eps)))
    scale = small("mul", a=g, b=rstd)
    moved = small("sub", a=b, b=small("mul", a=m, b=scale))
    product = Whole(whole.dims, whole.strides, torch.float32)
    draft.add("mul", {"a": draft.memory(x), "b": scale}, product)
    draft.add("add", {"a": Operand(product, product.dims, product.strides), "b": moved}, whole)
    return (view, *[None] * 2)
