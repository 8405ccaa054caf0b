"""Tensors put together, padded, copied into other layouts and dtypes; gradients of padding."""
import functools

import torch

import dnnkern

from ...host.canonical import canonical
from ...host.dtypes import ITEMSIZE
from .._table import Refused, aten, nothing
from .._tensors import FLOATS, are_channels_last, layout_of, one_dtype

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_MOVED = frozenset(getattr(torch, name) for name in ITEMSIZE if name != "bool" and hasattr(torch, name))
# Those with the same bits: PyTorch rounds float64 to 16 bits twice, truncates to integers, and its 8-bit floats overflow to NaN.
_SMALL = {torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2}
_CASTS = frozenset((source, target) for sources, targets in (
    (_SMALL | FLOATS - {torch.float64}, FLOATS), ({torch.int32, torch.float64}, {torch.float32, torch.float64}))
    for source in sources for target in targets if source is not target)


def _out(x, shape):
    """Memory for a result with channels last where x has them; None where it is packed."""
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_FORMATS[x.dim()]) if layout_of(x) != "NCHW" else None


@aten("cat", heavy=False)
def cat(tensors, dim=0):
    """``concat``."""
    if not all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        raise Refused("tensors of other classes")
    one_dtype(*tensors)
    first = tensors[0]
    if any(t.dim() != first.dim() or t.numel() == 0 for t in tensors) or not first.dim():
        raise Refused("tensors without elements, or of several numbers of dimensions")
    out = None
    if all(are_channels_last(t.shape, t.stride()) for t in tensors):
        shape = list(first.shape)
        shape[dim] = sum(t.shape[dim] for t in tensors)
        out = _out(first, shape)
    return dnnkern.concat(tensors, dim, out=out)


def _padded(x, pads, mode, value=0.0, keeps=True):
    """PyTorch lists pairs from the last dimension. Negative ones take elements away."""
    one_dtype(x)
    pairs = list(zip(pads[::2], pads[1::2]))[::-1]
    every = ((0, 0),) * (x.dim() - len(pairs)) + tuple(pairs)
    shape = [n + before + after for n, (before, after) in zip(x.shape, every)]
    if len(every) > x.dim() or min(shape, default=0) < 1 or x.numel() == 0:
        raise Refused(f"pads {list(pads)} of a tensor of shape {tuple(x.shape)}")
    out, part = _out(x, shape) if keeps else None, x
    for d, (before, after) in enumerate(every):
        if before < 0 or after < 0:
            first = max(0, -before)
            part = part.narrow(d, first, x.shape[d] - first - max(0, -after))
    return dnnkern.pad(part, [(max(0, before), max(0, after)) for before, after in every], mode=mode, value=float(value), out=out)


@aten("constant_pad_nd", heavy=False)
def constant_pad(x, pads, value=0):
    """``pad`` with a number."""
    return _padded(x, pads, "constant", value)


def _check_images(dims, x, pads):
    if x.dim() not in (dims + 1, dims + 2) or len(pads) != 2 * dims or min(pads) < 0:
        raise Refused(f"pads {list(pads)} of a tensor of shape {tuple(x.shape)}")


def _of_images(dims, mode, x, pads):
    _check_images(dims, x, pads)
    return _padded(x, pads, mode, keeps=not x.is_cuda)  # PyTorch's kernels of a GPU leave it packed


def _of_images_backward(dims, mode, dy, x, pads):
    _check_images(dims, x, pads)
    one_dtype(x, dy)
    pairs = [(0, 0)] * (x.dim() - dims) + list(zip(pads[::2], pads[1::2]))[::-1]
    if x.numel() == 0 or dy.shape != tuple(n + before + after for n, (before, after) in zip(x.shape, pairs)):
        raise Refused(f"a gradient of shape {tuple(dy.shape)}, pads {list(pads)} of a tensor of shape {tuple(x.shape)}")
    return dnnkern.pad_bwd(dy, pairs, mode=mode, out=None if x.is_cuda else _out(x, x.shape))


for _name, _mode in (("reflection_pad", "reflect"), ("replication_pad", "edge")):
    for _dims in (1, 2, 3):
        for _suffix, _function in (("", _of_images), ("_backward", _of_images_backward)):
            aten(f"{_name}{_dims}d{_suffix}", heavy=False)(functools.update_wrapper(functools.partial(_function, _dims, _mode), _function))


@functools.lru_cache(1 << 12)
def _lie_alike(shape, strides, others):
    """Whether tensors of these strides are one stretch of memory each, in the same order: a copy is one of bytes."""
    (first, *rest) = canonical(shape, strides, others, 1).dims
    return not rest and first.x == first.y == 1


def _is_no_layout(y, x, *_, **__):
    """Copies that PyTorch makes: of bytes, between devices, of numbers, and to dtypes that are no cast of this library's."""
    if not isinstance(x, torch.Tensor):
        return True
    if x.dtype is not y.dtype:
        return (x.dtype, y.dtype) not in _CASTS or x.device != y.device or not y.numel()
    if x.shape == y.shape and (x.is_contiguous() and y.is_contiguous() or _lie_alike(y.shape, x.stride(), y.stride())):
        return True
    return x.device != y.device or y.dtype not in _MOVED or not y.numel()


@aten("copy_", heavy=False, numbers=_is_no_layout, state=nothing)
def copy(y, x, non_blocking=False):
    """``transpose`` without another order of dimensions, or ``cast``: what `clone`, `contiguous`, `reshape` and `to` come to."""
    if x.shape != y.shape:
        try:
            x = x.expand(y.shape)
        except RuntimeError:  # PyTorch says so in other words
            raise Refused(f"a tensor of shape {tuple(x.shape)} into one of {tuple(y.shape)}") from None
    return dnnkern.transpose(x, range(x.dim()), out=y) if x.dtype is y.dtype else dnnkern.cast(x, y.dtype, out=y)
