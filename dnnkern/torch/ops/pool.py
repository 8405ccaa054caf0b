"""Pooling in two and three dimensions, one dimension being PyTorch's case of two."""
import functools

from ... import (adaptive_avg_pool_bwd, adaptive_avg_pool_fwd, adaptive_max_pool_bwd, adaptive_max_pool_fwd, avg_pool_bwd, avg_pool_fwd,
                 max_pool_bwd, max_pool_fwd)
from .._table import Refused, aten
from .._tensors import is_channels_last, one_dtype, to_first, to_last


class _Image:
    """A tensor of images as this library's functions take it: with a dimension for images, and channels last where they are and PyTorch's
    kernel `keeps` them there."""

    def __init__(self, x, dims, keeps):
        one_dtype(x)
        self.single = x.dim() == dims + 1
        if x.dim() != dims + 2 and not self.single:
            raise Refused(f"a {x.dim()}-D tensor")
        if 0 in x.shape[-dims - 1:]:
            raise Refused(f"an image without elements, of shape {tuple(x.shape)}")
        self.last = keeps and is_channels_last(x)
        self.x = self.into(x)
        self.options = {"layout": "NHWC" if self.last else "NCHW"}
        self.extents = tuple(self.x.shape[1:-1] if self.last else self.x.shape[2:])

    def into(self, x):
        """Another tensor of such images likewise."""
        if self.single:
            x = x.unsqueeze(0)
        return to_last(x) if self.last else x

    def back(self, y):
        """A result as PyTorch's."""
        y = to_first(y) if self.last else y
        return y.squeeze(0) if self.single else y


def _window(image, kernel, stride, padding, dilation=1):
    """Keywords of the window. PyTorch gives one entry for all dimensions at times, and refuses padding of more than half a window."""
    dims = len(image.extents)
    kernel, stride, padding, dilation = [_each(v, dims) for v in (kernel, stride or kernel, padding, dilation)]
    if any(2 * p > k or p and d > n for p, k, d, n in zip(padding, kernel, dilation, image.extents)):
        raise Refused(f"padding {padding} of a window {kernel} with dilation {dilation}")
    return {"window": kernel, "stride": stride, "padding": padding, "dilation": dilation}


def _each(value, dims):
    value = (value,) if isinstance(value, int) else tuple(value)
    return value if len(value) == dims else value * dims


def _max(dims, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
    image = _Image(x, dims, True)
    window = _window(image, kernel, stride, padding, dilation)
    y, index = max_pool_fwd(image.x, **window, ceil_mode=ceil_mode, return_index=True, index_dtype="int64", **image.options)
    return image.back(y), image.back(index)


def _max_backward(dims, dy, x, kernel, stride, padding, dilation, ceil_mode, index):
    one_dtype(x, dy)
    image = _Image(x, dims, True)
    window = _window(image, kernel, stride, padding, dilation)
    return image.back(max_pool_bwd(image.into(dy), image.into(index), tuple(image.x.shape), **window, ceil_mode=ceil_mode, **image.options))


def _average_options(image, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    if divisor_override is not None:
        raise Refused("divisor_override")
    return {**_window(image, kernel, stride, padding), "ceil_mode": ceil_mode, "count_include_pad": count_include_pad, **image.options}


def _average(dims, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    image = _Image(x, dims, dims == 2)
    return image.back(avg_pool_fwd(image.x, **_average_options(image, kernel, stride, padding, ceil_mode, count_include_pad,
                                                               divisor_override)))


def _average_backward(dims, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    one_dtype(x, dy)
    image = _Image(x, dims, dims == 2)
    return image.back(avg_pool_bwd(image.into(dy), tuple(image.x.shape), **_average_options(
        image, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)))


def _adaptive_average(dims, x, size):
    image = _Image(x, dims, dims == 2)
    return image.back(adaptive_avg_pool_fwd(image.x, _each(size, dims), **image.options))


def _adaptive_average_backward(dims, dy, x):
    one_dtype(x, dy)
    image = _Image(x, dims, dims == 2)
    return image.back(adaptive_avg_pool_bwd(image.into(dy), tuple(image.x.shape), **image.options))


def _adaptive_max(dims, x, size):
    image = _Image(x, dims, dims == 2)
    y, index = adaptive_max_pool_fwd(image.x, _each(size, dims), return_index=True, index_dtype="int64", **image.options)
    return image.back(y), image.back(index)


def _adaptive_max_backward(dims, dy, x, index):
    one_dtype(x, dy)
    image = _Image(x, dims, dims == 2)
    return image.back(adaptive_max_pool_bwd(image.into(dy), image.into(index), tuple(image.x.shape), **image.options))


def _both(name, function):
    """Bind a function of the number of dimensions to the operator's name for two and for three."""
    for dims in (2, 3):
        aten(name.format(dims))(functools.update_wrapper(functools.partial(function, dims), function))


_both("max_pool{}d_with_indices", _max)
_both("max_pool{}d_with_indices_backward", _max_backward)
_both("avg_pool{}d", _average)
_both("avg_pool{}d_backward", _average_backward)
_both("_adaptive_avg_pool{}d", _adaptive_average)
_both("_adaptive_avg_pool{}d_backward", _adaptive_average_backward)
_both("adaptive_max_pool{}d", _adaptive_max)
_both("adaptive_max_pool{}d_backward", _adaptive_max_backward)
