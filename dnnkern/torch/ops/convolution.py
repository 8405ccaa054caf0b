"""Convolutions, transposed or not, and their gradients."""
from typing import NamedTuple

import torch

import dnnkern

from .._find import find_once
from .._table import Refused, aten
from .._tensors import PRECISIONS, each, layout_of, math_of, one_dtype

_LAST = torch.channels_last, torch.channels_last_3d
_backend, _format, _has_cudnn = torch._C._select_conv_backend, torch._C._conv_determine_backend_memory_format, torch._C._get_cudnn_enabled
_benchmark = torch._C._get_cudnn_benchmark
_state = PRECISIONS["conv"], _has_cudnn, _benchmark
_LIMIT = 1 << 12
_known = {}


class _Found(NamedTuple):
    """Keywords of calls, `more` of transposed ones, and functions that ``torch.backends.cudnn.benchmark`` asks to measure."""
    keywords: dict
    more: dict
    unmeasured: set


def _options(x, w, other, stride, padding, dilation, transposed, output_padding, groups):
    """Keywords of this library's functions. `other` is a bias or a gradient. They are found once for tensors like these: it is most of what
    an override costs."""
    math = math_of("conv", x)
    key = (x.shape, x.stride(), x.dtype, w.shape, w.stride(), w.dtype, other is None or other.dtype, tuple(stride), tuple(padding),
           tuple(dilation), transposed, tuple(output_padding), groups, math, _has_cudnn(), _benchmark())
    found = _known.get(key)
    if found is None:
        one_dtype(x, w, other)
        if not (x.numel() and w.numel()):
            raise Refused("no elements")
        dims = x.dim() - 2
        *window, more = [each(v, dims) for v in (stride, padding, dilation, output_padding)]
        last = "channels_last" in (layout_of(x), layout_of(w)) and _format(x, w, _backend(
            x, w, None if other is None or other.dim() > 1 else other, *window, transposed, output_padding, groups)) in _LAST
        found = dict(zip(("stride", "padding", "dilation"), window), groups=groups, math=math, layout="channels_last" if last else "NCHW")
        if len(_known) >= _LIMIT:
            _known.clear()
        found = _known[key] = _Found(found, {**found, "output_padding": more},
                                     {"conv_fwd", "conv_transpose_fwd", "conv_bwd_data", "conv_bwd_filter"} if _benchmark() else set())
    return found


@aten("convolution", state=_state)
def convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups, *, residual=None, activation=None):
    """``conv_fwd`` or ``conv_transpose_fwd``; the former may end with an addition and an activation."""
    found = _options(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)
    if found.unmeasured:
        name, keywords = ("conv_transpose_fwd", found.more) if transposed else ("conv_fwd", found.keywords)
        find_once(found.unmeasured, name, x=x, w=w, bias=bias, **keywords)
    if transposed:
        return dnnkern.conv_transpose_fwd(x, w, bias, **found.more)
    if residual is None and activation is None:
        return dnnkern.conv_fwd(x, w, bias, **found.keywords)
    one_dtype(x, residual)
    return dnnkern.conv_fwd(x, w, bias, residual=residual, activation=activation, **found.keywords)


@aten("convolution_backward", state=_state)
def convolution_backward(dy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
    """``conv_bwd_data``, ``conv_bwd_filter`` and ``conv_bwd_bias``; of a transposed convolution the first is ``conv_fwd``."""
    options, _, unmeasured = _options(x, w, dy, stride, padding, dilation, transposed, output_padding, groups)
    image, result = (dy, x) if transposed else (x, dy)
    dx = dw = db = None
    if mask[0]:
        if unmeasured:
            given = {"x": dy} if transposed else {"dy": dy, "x_shape": tuple(x.shape)}
            find_once(unmeasured, "conv_fwd" if transposed else "conv_bwd_data", w=w, **given, **options)
        dx = dnnkern.conv_fwd(dy, w, **options) if transposed else dnnkern.conv_bwd_data(dy, w, tuple(x.shape), **options)
    if mask[1]:
        if unmeasured:
            find_once(unmeasured, "conv_bwd_filter", x=image, dy=result, w_shape=tuple(w.shape), **options)
        dw = dnnkern.conv_bwd_filter(image, result, tuple(w.shape), **options)
    if mask[2]:
        db = dnnkern.conv_bwd_bias(dy, layout=options["layout"])
    return dx, dw, db
