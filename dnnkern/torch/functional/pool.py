"""Pooling. One dimension is a case of two, as with PyTorch."""
import functools

import torch.nn.functional as F

from .._operator import derived, twin
from .._table import Refused
from ._front import each, replaces


def _derived(name, gradient):
    """The gradient's twins in two and in three dimensions."""
    return {dims: derived(name.format(dims))(functools.partial(gradient, twin(f"{name.format(dims)}_backward")))
            for dims in (2, 3)}


def _max(backward, dy, mask, self, kernel_size, stride, padding, dilation, ceil_mode, y1):
    return [backward(dy, self, kernel_size, stride, padding, dilation, ceil_mode, y1)]


def _avg(backward, dy, mask, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return [backward(dy, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)]


def _adaptive_avg(backward, dy, mask, self):
    return [backward(dy, self)]


def _adaptive_max(backward, dy, mask, self, y1):
    return [backward(dy, self, y1)]


_MAX, _AVG = _derived("max_pool{}d_with_indices", _max), _derived("avg_pool{}d", _avg)
_ADAPTIVE_AVG, _ADAPTIVE_MAX = _derived("_adaptive_avg_pool{}d", _adaptive_avg), _derived("adaptive_max_pool{}d", _adaptive_max)


def _spread(dims, x, *windows, fill):
    """(dimensions, x, windows): in one dimension x with one more, and windows of one row in it."""
    windows = [each(w, dims) for w in windows]
    if x.dim() not in (dims + 1, dims + 2):
        raise Refused(f"a {x.dim()}-D tensor")
    if dims > 1:
        return dims, x, windows
    return 2, x.unsqueeze(-2), [(f, *w) for f, w in zip(fill, windows)]


def _back(dims, y):
    return y.squeeze(-2) if dims == 1 else y


def _max_pool(dims, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    stride = kernel_size if stride is None or stride == [] else stride
    n, x, windows = _spread(dims, input, kernel_size, stride, padding, dilation, fill=(1, 1, 0, 1))
    y, index = _MAX[n](x, *windows, ceil_mode)
    return (_back(dims, y), _back(dims, index)) if return_indices else _back(dims, y)


def _avg_pool(dims, input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    stride = kernel_size if stride is None or stride == [] else stride
    n, x, windows = _spread(dims, input, kernel_size, stride, padding, fill=(1, 1, 0))
    return _back(dims, _AVG[n](x, *windows, ceil_mode, count_include_pad, divisor_override))


def _size(x, dims, size):
    """The size of an adaptive result; None among its entries stands for the image's."""
    size = (size,) * dims if isinstance(size, int) or size is None else tuple(size)
    if len(size) != dims:
        raise Refused(f"output_size {size} in {dims} dimensions")
    return [n if s is None else s for s, n in zip(size, x.shape[-dims:])]


def _adaptive(dims, operators, input, output_size):
    n, x, (size,) = _spread(dims, input, _size(input, dims, output_size), fill=(1,))
    return operators[n](x, size)


def _adaptive_avg_pool(dims, input, output_size):
    return _back(dims, _adaptive(dims, _ADAPTIVE_AVG, input, output_size))


def _adaptive_max_pool(dims, input, output_size, return_indices=False):
    y, index = _adaptive(dims, _ADAPTIVE_MAX, input, output_size)
    return (_back(dims, y), _back(dims, index)) if return_indices else _back(dims, y)


for _name, _function in (("max_pool", _max_pool), ("avg_pool", _avg_pool), ("adaptive_avg_pool", _adaptive_avg_pool),
                         ("adaptive_max_pool", _adaptive_max_pool)):
    for _dims in (1, 2, 3):
        replaces(getattr(F, f"{_name}{_dims}d"), name=f"{_name}{_dims}d")(functools.partial(_function, _dims))
