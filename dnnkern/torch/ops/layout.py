"""Tensors put together, and padded; gradients of padding."""
import functools

import torch

import dnnkern

from .._table import Refused, aten
from .._tensors import are_channels_last, layout_of, one_dtype

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


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
