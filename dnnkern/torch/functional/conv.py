"""Convolutions, transposed or not."""
import torch
import torch.nn.functional as F

from .._above import gradients, needs_gradient
from .._operator import derived, operator, twin
from .._rules import folded
from .._table import Refused
from ..ops.convolution import convolution as kernel
from . import activation as act
from ._front import LOW, each, replaces


@derived("convolution", folded("input"), (LOW, "input", "weight", "bias"))
def _convolution(dy, mask, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    sizes = None if bias is None else list(bias.shape)
    return twin("convolution_backward")(dy, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, mask)


def _pytorchs(x, w, bias, residual, stride, padding, dilation, groups, activation):
    y = torch.convolution(x, w, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return act.pytorchs(y if residual is None else y + residual, activation)


def _kernel(x, w, bias, residual, stride, padding, dilation, groups, activation):
    return kernel(x, w, bias, stride, padding, dilation, False, [0] * len(stride), groups, residual=residual,
                  activation=act.parsed(activation))


def _gradient(dy, mask, x, w, bias, residual, stride, padding, dilation, groups, activation, y0):
    if torch.is_grad_enabled():
        return gradients(lambda *tensors: _pytorchs(*tensors, stride, padding, dilation, groups, activation), (x, w, bias, residual), dy)
    dz = act.gradient(dy, y0, activation) if activation else dy
    sizes = None if bias is None else list(bias.shape)
    options = stride, padding, dilation, False, [0] * len(stride), groups
    return *twin("convolution_backward")(dz, x, w, sizes, *options, mask[:3]), dz if mask[3] else None


_fused = operator("convolution_fused(Tensor x, Tensor w, Tensor? bias, Tensor? residual, SymInt[] stride, SymInt[] padding, "
                  "SymInt[] dilation, SymInt groups, str activation) -> Tensor", _kernel, _pytorchs, "convolution", _gradient,
                  cast=LOW, batch=folded("x", "residual"))


def _padded(x, w, stride, padding, dilation):
    """x and the padding in numbers; PyTorch also takes "valid" and "same"."""
    dims = w.dim() - 2
    if not isinstance(padding, str):
        return x, each(padding, dims)
    if padding == "valid":
        return x, (0,) * dims
    if padding != "same" or any(s != 1 for s in stride):
        raise Refused(f"padding {padding!r} with stride {stride}")
    both = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
    if any(n % 2 for n in both):  # one more after the image
        x = F.pad(x, [n for b in reversed(both) for n in (0, b % 2)])
    return x, tuple(n // 2 for n in both)


def conv(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, *, residual=None, activation=""):
    """``activation(conv(input, weight) + bias + residual)`` in one kernel. `input` may be one image, without a dimension for images."""
    dims = weight.dim() - 2
    if input.dim() not in (dims + 1, dims + 2):
        raise Refused(f"a {input.dim()}-D tensor")
    stride, dilation = each(stride, dims), each(dilation, dims)
    x, padding = _padded(input, weight, stride, padding, dilation)
    single = x.dim() == dims + 1
    if single:
        x, residual = x.unsqueeze(0), None if residual is None else residual.unsqueeze(0)
    if residual is None and not activation:
        y = _convolution(x, weight, bias, stride, padding, dilation, False, (0,) * dims, groups)
    else:
        y = _fused(x, weight, bias, residual, stride, padding, dilation, groups, activation)
    return y.squeeze(0) if single else y


def _transposed(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    dims = weight.dim() - 2
    if input.dim() not in (dims + 1, dims + 2):
        raise Refused(f"a {input.dim()}-D tensor")
    x = input.unsqueeze(0) if input.dim() == dims + 1 else input
    window = [each(v, dims) for v in (stride, padding, dilation)]
    y = _convolution(x, weight, bias, *window, True, each(output_padding, dims), groups)
    return y if x is input else y.squeeze(0)


def _of(dims, function):
    """The function, of tensors of so many dimensions only."""
    def call(input, weight, *args, **more):
        if weight.dim() != dims + 2:
            raise Refused(f"a {weight.dim()}-D weight")
        return function(input, weight, *args, **more)
    return call


def _ended(dims):
    def call(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, *, residual=None, activation=None):
        if weight.dim() != dims + 2:
            raise Refused(f"a {weight.dim()}-D weight")
        text = act.text_at_end(f"conv{dims}d", activation)
        last, after = act.parted(text, needs_gradient(input, weight, bias, residual))
        return act.then(conv(input, weight, bias, stride, padding, dilation, groups, residual=residual, activation=last), after)
    return call


def _composition(theirs):
    def call(*args, residual=None, activation=None, **more):
        y = theirs(*args, **more)
        return act.pytorchs(y if residual is None else y + residual, act.text_at_end(theirs.__name__, activation))
    return call


_DOC = """``activation(conv{dims}d(input, weight) + bias + residual)`` in one kernel; otherwise as ``torch.nn.functional.conv{dims}d``.

    Parameters
    ----------
    input : Tensor (N, C, {sizes}) or (C, {sizes})
        float64, float32, float16 or bfloat16, also with channels last.
    weight : Tensor (K, C / groups, {windows})
    bias : Tensor (K,), optional
    stride, padding, dilation : int or tuple of int
        Padding may be "valid" or "same" too.
    groups : int
    residual : Tensor, optional
        Of the result's shape; PyTorch's functions take other dtypes.
    activation : str, optional
        "relu", "silu", "gelu", "gelu_tanh", "leaky_relu negative_slope=0.2" and others of `dnnkern.activation_fwd`. Where gradients are
        needed, those that do not follow from the result ("gelu", "silu") are a kernel of their own.

    Returns
    -------
    Tensor (N, K, ...)
        Channels last where PyTorch's is.

    Raises
    ------
    ValueError, TypeError
        A residual of another shape, an unknown activation; other errors are PyTorch's.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> x, w = torch.ones({example}), -torch.ones({filter})
    >>> functional.conv{dims}d(x, w, torch.tensor([2.0]), residual=3 * torch.ones({example}), activation="relu").flatten()
    tensor([4., 4.])
    """
for _dims in (1, 2, 3):
    _theirs = getattr(F, f"conv{_dims}d")
    _ones = ", 1" * (_dims - 1)
    replaces(_theirs, LOW, composition=_composition(_theirs), doc=_DOC.format(
        dims=_dims, sizes=", ".join("DHW"[3 - _dims:]), windows=", ".join("TRS"[3 - _dims:]), example=f"1, 1{_ones}, 2",
        filter=f"1, 1{_ones}, 1"))(_ended(_dims))
    replaces(getattr(F, f"conv_transpose{_dims}d"), LOW)(_of(_dims, _transposed))
