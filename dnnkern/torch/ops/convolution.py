"""Convolutions, transposed or not, and their gradients."""
import torch

from ... import conv_bwd_bias, conv_bwd_data, conv_bwd_filter, conv_fwd, conv_transpose_fwd
from .._table import Refused, aten
from .._tensors import is_channels_last, math_of, one_dtype, to_first, to_last

_LAST = torch.channels_last, torch.channels_last_3d
_backend, _format, _has_cudnn = torch._C._select_conv_backend, torch._C._conv_determine_backend_memory_format, torch._C._get_cudnn_enabled
_LIMIT = 1 << 12
_known = {}


def _is_last(x, w, bias, window, transposed, output_padding, groups):
    """Whether PyTorch's kernel would give channels last, which some of its backends do not."""
    if not (is_channels_last(x) or is_channels_last(w)):
        return False
    key = (x.shape, x.stride(), w.shape, w.stride(), x.dtype, bias is None, window, transposed, tuple(output_padding), groups, _has_cudnn())
    found = _known.get(key)
    if found is None:
        if len(_known) >= _LIMIT:
            _known.clear()
        found = _known[key] = _format(x, w, _backend(x, w, bias, *window, transposed, output_padding, groups)) in _LAST
    return found


def _steps(x, stride, padding, dilation):
    """One entry a dimension of each; PyTorch gives one for all at times."""
    n = x.dim() - 2
    return tuple([tuple(v) if len(v) == n else tuple(v) * n for v in (stride, padding, dilation)])


def _options(x, window, groups, last):
    stride, padding, dilation = window
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": "NHWC" if last else "NCHW",
            "math": math_of("conv", x)}


def _check(x, w, *others):
    one_dtype(x, w, *others)
    if not (x.numel() and w.numel()):
        raise Refused("no elements")


@aten("convolution")
def convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups, *, residual=None, activation=None):
    """``conv_fwd`` or ``conv_transpose_fwd``; the former may end with an addition and an activation."""
    _check(x, w, bias, residual)
    window = _steps(x, stride, padding, dilation)
    last = _is_last(x, w, bias, window, transposed, output_padding, groups)
    if last:
        x, w, residual = to_last(x), to_last(w), None if residual is None else to_last(residual)
    options = _options(x, window, groups, last)
    if transposed:
        more = tuple(output_padding) if len(output_padding) == x.dim() - 2 else tuple(output_padding) * (x.dim() - 2)
        y = conv_transpose_fwd(x, w, bias, output_padding=more, **options)
    else:
        y = conv_fwd(x, w, bias, residual=residual, activation=activation, **options)
    return to_first(y) if last else y


@aten("convolution_backward")
def convolution_backward(dy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
    """``conv_bwd_data``, ``conv_bwd_filter`` and ``conv_bwd_bias``; of a transposed convolution the first is ``conv_fwd``."""
    _check(x, w, dy)
    window = _steps(x, stride, padding, dilation)
    last = _is_last(x, w, None, window, transposed, output_padding, groups)
    if last:
        dy, x, w = to_last(dy), to_last(x), to_last(w)
    options = _options(x, window, groups, last)
    dx = dw = db = None
    if mask[0]:
        dx = conv_fwd(dy, w, **options) if transposed else conv_bwd_data(dy, w, tuple(x.shape), **options)
    if mask[1]:
        dw = conv_bwd_filter(*((dy, x) if transposed else (x, dy)), tuple(w.shape), **options)
    if mask[2]:
        db = conv_bwd_bias(dy, layout=options["layout"])
    return to_first(dx) if last and mask[0] else dx, to_first(dw) if last and mask[1] else dw, db
