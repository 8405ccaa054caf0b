"""Sums, means, products, norms and extremes over dimensions."""
import math

import torch

import dnnkern

from .._table import Refused, aten
from .._tensors import one_dtype

_ops = torch.ops.aten


_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})


def _out(x, *call, dtype=None):
    """Memory for the first result of an operator; None where it is packed. PyTorch's keeps the order of x's strides: its kernel without
    values has it."""
    if x.is_contiguous():
        return None
    operator, *args = call
    like = operator(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), *args)
    like = like if isinstance(like, torch.Tensor) else like[0]
    return torch.empty_strided(like.shape, like.stride(), dtype=dtype or x.dtype, device=x.device)


def _check(x, dtype=None):
    one_dtype(x)
    if dtype is not None and dtype is not x.dtype:
        raise Refused(f"a result of {dtype}")
    if x.numel() == 0:
        raise Refused("no elements")


def _reduced(x, mode, operator, dim, keepdim, dtype=None):
    _check(x, dtype)
    return dnnkern.reduce(x, mode, axes=tuple(dim) if dim else None, keepdims=keepdim, out=_out(x, operator, dim, keepdim))


@aten("sum.dim_IntList", heavy=False)
def sum_of(x, dim, keepdim=False, *, dtype=None):
    """The sum over dimensions; of integers in 64 bits, of 16-bit numbers in float32 if that is asked for."""
    kind = x.dtype
    result = torch.int64 if kind in _INTEGERS else kind if dtype is None else dtype
    if kind not in _INTEGERS:
        _check(x, None if result is torch.float32 and kind.itemsize == 2 else dtype)
    elif dtype not in (None, result) or x.numel() == 0:
        raise Refused(f"a sum of {x.numel()} {kind} as {dtype}")
    return dnnkern.reduce(x, "add", axes=tuple(dim) if dim else None, keepdims=keepdim, out_dtype=result,
                          out=_out(x, _ops.sum.dim_IntList, dim, keepdim, dtype=result))


@aten("mean.dim", heavy=False)
def mean_of(x, dim, keepdim=False, *, dtype=None):
    """The mean over dimensions."""
    return _reduced(x, "avg", _ops.mean.dim, dim, keepdim, dtype)


@aten("amax", heavy=False)
def amax(x, dim=(), keepdim=False):
    """The largest element over dimensions."""
    return _reduced(x, "max", _ops.amax.default, dim, keepdim)


@aten("amin", heavy=False)
def amin(x, dim=(), keepdim=False):
    """The smallest element over dimensions."""
    return _reduced(x, "min", _ops.amin.default, dim, keepdim)


@aten("prod.dim_int", heavy=False)
def product_of(x, dim, keepdim=False, *, dtype=None):
    """The product over a dimension."""
    _check(x, dtype)
    return dnnkern.reduce(x, "mul", axes=dim, keepdims=keepdim, out=_out(x, _ops.prod.dim_int, dim, keepdim))


_NORMS = {1: "norm1", 2: "norm2", math.inf: "amax"}


@aten("linalg_vector_norm", heavy=False)
def norm_of(x, order=2, dim=None, keepdim=False, *, dtype=None):
    """The sum of absolute values, the root of the sum of squares, or the largest absolute value."""
    if order not in _NORMS:
        raise Refused(f"a norm of order {order}")
    _check(x, dtype)
    return dnnkern.reduce(x, _NORMS[order], axes=tuple(dim) if dim else None, keepdims=keepdim,
                          out=_out(x, _ops.linalg_vector_norm.default, order, dim, keepdim))


def _extreme(x, mode, operator, dim, keepdim):
    _check(x)
    if x.dim() == 0:
        raise Refused("no dimensions")
    value = _out(x, operator, dim, keepdim)
    if value is None:
        value, index = dnnkern.argreduce(x, mode, axis=dim, keepdims=keepdim)
    else:
        index = torch.empty_like(value, dtype=torch.int32)
        dnnkern.argreduce(x, mode, axis=dim, keepdims=keepdim, out=(value, index))
    return value, index.to(torch.int64)


@aten("max.dim", heavy=False)
def max_of(x, dim, keepdim=False):
    """The largest element along a dimension, and its index."""
    return _extreme(x, "max", _ops.max.dim, dim, keepdim)


@aten("min.dim", heavy=False)
def min_of(x, dim, keepdim=False):
    """The smallest element along a dimension, and its index."""
    return _extreme(x, "min", _ops.min.dim, dim, keepdim)


def _index(x, mode, operator, dim, keepdim):
    if dim is None:
        if keepdim:
            raise Refused("all dimensions are kept")
        x, dim = x.reshape(-1), 0
    return _extreme(x, mode, operator, dim, keepdim)[1]


@aten("argmax", heavy=False)
def argmax(x, dim=None, keepdim=False):
    """The index of the largest element."""
    return _index(x, "max", _ops.max.dim, dim, keepdim)


@aten("argmin", heavy=False)
def argmin(x, dim=None, keepdim=False):
    """The index of the smallest element."""
    return _index(x, "min", _ops.min.dim, dim, keepdim)
