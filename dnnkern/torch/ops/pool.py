"""Pooling in two and three dimensions, one dimension being PyTorch's case of two."""
import functools
import math

import torch

import dnnkern

from .._above import needs_gradient
from .._operator import operator
from .._table import Refused, aten, nothing
from .._tensors import are_channels_last, each, one_dtype

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_LARGE = 1 << 23  # results whose index saves more if it is int32 than a gradient of Python's takes on the host, 35 us both ways


@functools.lru_cache(1 << 12)
def _keywords(shape, strides, dims, keeps, kernel=None, stride=(), padding=(0,), dilation=(1,)):
    """Keywords of a call on images like these; channels are last where they are and PyTorch's kernel `keeps` them there."""
    if len(shape) not in (dims + 1, dims + 2):
        raise Refused(f"a {len(shape)}-D tensor")
    if 0 in shape[-dims - 1:]:
        raise Refused(f"an image without elements, of shape {tuple(shape)}")
    layout = {"layout": "channels_last" if keeps and are_channels_last(shape, strides) else "NCHW"}
    if kernel is None:
        return layout
    kernel, stride, padding, dilation = [each(v, dims) for v in (kernel, stride or kernel, padding, dilation)]
    # PyTorch refuses padding of more than half a window.
    if any(2 * p > k or p and d > n for p, k, d, n in zip(padding, kernel, dilation, shape[-dims:])):
        raise Refused(f"padding {padding} of a window {kernel} with dilation {dilation}")
    return {"window": kernel, "stride": stride, "padding": padding, "dilation": dilation, **layout}


def _options(x, dims, keeps, *window):
    one_dtype(x)
    return _keywords(x.shape, x.stride(), dims, keeps, *map(tuple, window))


def _batch(x, dims):
    """The tensor with a dimension for images."""
    return x if x.dim() == dims + 2 else x.unsqueeze(0)


def _like(x, y):
    """The result with one where x has one."""
    return y if y.dim() == x.dim() else y.squeeze(0)


def _shape(x, dims):
    return tuple(x.shape) if x.dim() == dims + 2 else (1, *x.shape)


def _max(dims, x, kernel, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    y, index = dnnkern.max_pool_fwd(_batch(x, dims), ceil_mode=ceil_mode, return_index=True, index_dtype="int64",
                                    **_options(x, dims, True, kernel, stride, padding, dilation))
    return _like(x, y), _like(x, index)


def _max_backward(dims, dy, x, kernel, stride, padding, dilation, ceil_mode, index):
    one_dtype(x, dy)
    return _like(x, dnnkern.max_pool_bwd(_batch(dy, dims), _batch(index, dims), _shape(x, dims), ceil_mode=ceil_mode,
                                         **_options(x, dims, True, kernel, stride, padding, dilation)))


def _maxima(dims):
    """PyTorch's operator of maxima with an index; without one; and with an index of int32, which is half as large."""
    name = f"max_pool{dims}d"
    theirs = getattr(torch.ops.aten, f"{name}_with_indices").default
    window = "int[] window, int[] stride, int[] padding, int[] dilation, bool ceil_mode, bool last"

    def options(window, stride, padding, dilation, ceil_mode, last):
        return {"window": tuple(window), "stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation),
                "ceil_mode": ceil_mode, "layout": "channels_last" if last else "NCHW"}

    def run(x, *more):
        return _like(x, dnnkern.max_pool_fwd(_batch(x, dims), **options(*more)))

    def fake(x, *more):
        return theirs(x, *more[:-1])[0]

    def run_indexed(x, shape, *more):
        y, index = dnnkern.max_pool_fwd(_batch(x, dims), return_index=True, **options(*more))
        return _like(x, y), _like(x, index)

    def fake_indexed(x, shape, *more):
        y, index = theirs(x, *more[:-1])
        return y, index.to(torch.int32)

    def run_backward(dy, index, shape, *more):
        full = tuple(shape) if len(shape) == dims + 2 else (1, *shape)
        dx = dnnkern.max_pool_bwd(_batch(dy, dims), _batch(index, dims), full, **options(*more))
        return dx if len(shape) == len(full) else dx.squeeze(0)

    def fake_backward(dy, index, shape, *more):
        return dy.new_empty(shape).contiguous(memory_format=_FORMATS[len(shape)] if more[-1] else torch.contiguous_format)

    def second(ddx, mask, index):
        return ddx.flatten(-dims).gather(-1, index.flatten(-dims).long()).view_as(index), None
    backward = operator(f"{name}_backward(Tensor dy, Tensor index, SymInt[] shape, {window}) -> Tensor", run_backward, fake_backward,
                        f"{name} backward", second)

    def first(dy, mask, y1, shape, window, stride, padding, dilation, ceil_mode, last):
        return backward(dy, y1, shape, window, stride, padding, dilation, ceil_mode, last),
    return (theirs, operator(f"{name}(Tensor x, {window}) -> Tensor", run, fake, name),
            operator(f"{name}_indexed(Tensor x, SymInt[] shape, {window}) -> (Tensor, Tensor)", run_indexed, fake_indexed, name, first))


_MAXIMA = {dims: _maxima(dims) for dims in (2, 3)}


def _max_above(dims, x, kernel, stride=(), padding=(0,), dilation=(1,), ceil_mode=False):
    """Maxima alone: no index is written unless a gradient will be asked for, and then one of int32 if there are many."""
    if not all(type(n) is int for n in x.shape):
        raise Refused("sizes that a compiler does not know yet")
    found = _options(x, dims, True, kernel, stride, padding, dilation)
    window = (*(found[name] for name in ("window", "stride", "padding", "dilation")), ceil_mode, found["layout"] == "channels_last")
    theirs, plain, indexed = _MAXIMA[dims]
    if not needs_gradient(x):
        return plain(x, *window)
    if x.numel() < _LARGE * math.prod(found["stride"]):
        return theirs(x, kernel, stride, padding, dilation, ceil_mode)[0]  # which is overridden, too
    return indexed(x, tuple(x.shape), *window)[0]


def _average_options(x, dims, window, ceil_mode, count_include_pad, divisor_override):
    if divisor_override is not None and divisor_override < 1:
        raise Refused(f"divisor_override {divisor_override}")
    return {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor": divisor_override,
            **_options(x, dims, dims == 2, *window)}


def _average(dims, x, kernel, stride=(), padding=(0,), *more):
    return _like(x, dnnkern.avg_pool_fwd(_batch(x, dims), **_average_options(x, dims, (kernel, stride, padding), *_defaults(*more))))


def _defaults(ceil_mode=False, count_include_pad=True, divisor_override=None):
    return ceil_mode, count_include_pad, divisor_override


def _average_backward(dims, dy, x, kernel, stride, padding, *more):
    one_dtype(x, dy)
    return _like(x, dnnkern.avg_pool_bwd(_batch(dy, dims), _shape(x, dims), **_average_options(x, dims, (kernel, stride, padding), *more)))


def _adaptive_average(dims, x, size):
    return _like(x, dnnkern.adaptive_avg_pool_fwd(_batch(x, dims), each(size, dims), **_options(x, dims, dims == 2)))


def _adaptive_average_backward(dims, dy, x):
    one_dtype(x, dy)
    return _like(x, dnnkern.adaptive_avg_pool_bwd(_batch(dy, dims), _shape(x, dims), **_options(x, dims, dims == 2)))


def _adaptive_max(dims, x, size):
    y, index = dnnkern.adaptive_max_pool_fwd(_batch(x, dims), each(size, dims), return_index=True, index_dtype="int64",
                                             **_options(x, dims, dims == 2))
    return _like(x, y), _like(x, index)


def _adaptive_max_backward(dims, dy, x, index):
    one_dtype(x, dy)
    return _like(x, dnnkern.adaptive_max_pool_bwd(_batch(dy, dims), _batch(index, dims), _shape(x, dims), **_options(x, dims, dims == 2)))


def _both(name, function, **how):
    """Bind a function of the number of dimensions to the operator's name for two and for three."""
    for dims in (2, 3):
        aten(name.format(dims), **how or {"state": nothing})(functools.update_wrapper(functools.partial(function, dims), function))


_both("max_pool{}d", _max_above, composite=True)
_both("max_pool{}d_with_indices", _max)
_both("max_pool{}d_with_indices_backward", _max_backward)
_both("avg_pool{}d", _average)
_both("avg_pool{}d_backward", _average_backward)
_both("_adaptive_avg_pool{}d", _adaptive_average)
_both("_adaptive_avg_pool{}d_backward", _adaptive_average_backward)
_both("adaptive_max_pool{}d", _adaptive_max)
_both("adaptive_max_pool{}d_backward", _adaptive_max_backward)
