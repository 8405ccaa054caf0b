"""Convolutions and dense layers: Keras copies images before each convolution, and adds biases afterwards."""
import torch
import torch.nn.functional as F
from keras.src import backend
from keras.src.layers.convolutional.base_conv import BaseConv
from keras.src.utils.argument_validation import standardize_tuple

from ._replace import replaces
from ._tensors import not_floating, value

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_convolution_op = BaseConv.convolution_op


# ---- convolutions

def _unsupported(x, kernel, data_format):
    if why := not_floating(x):
        return why
    kernel = value(kernel)
    if not 3 <= x.dim() <= 5 or kernel.dim() != x.dim():
        return f"a {x.dim()}-D tensor"
    channels = x.shape[1 if backend.standardize_data_format(data_format) == "channels_first" else -1]
    return f"{channels} channels, and filters of {kernel.shape[-2]}" if channels % kernel.shape[-2] else None


def _conv_unsupported(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    return _unsupported(inputs, kernel, data_format)


@replaces("conv", _conv_unsupported, module="keras.src.backend.torch.nn")
def conv(inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1, bias=None):
    """``convolution`` with the bias. Images with channels last are views of channels first, and sequences are images of one row, which have
    that format too."""
    data_format = backend.standardize_data_format(data_format)
    x, w, dims = inputs, value(kernel), inputs.dim() - 2
    strides, dilation = (standardize_tuple(v, dims, name) for v, name in ((strides, "strides"), (dilation_rate, "dilation_rate")))
    w = w.permute(dims + 1, dims, *range(dims))
    if data_format == "channels_last":
        x = x.movedim(-1, 1)
        if dims == 1:
            x, w, strides, dilation = x.unsqueeze(2), w.unsqueeze(2), (1, *strides), (1, *dilation)
        x, w = (t.contiguous(memory_format=_FORMATS[t.dim()]) for t in (x, w))
    x, pad = _padded(x, w, strides, dilation) if padding == "same" else (x, 0)
    function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    y = function(x, w, bias, strides, pad, dilation, x.shape[1] // w.shape[1])
    if data_format == "channels_last":
        y = (y.squeeze(2) if dims == 1 else y).movedim(1, -1)
    return y


def _padded(x, w, strides, dilation):
    """(x, padding) for as many results as x has pixels, over the stride: where trailing padding is longer x is padded, as PyTorch's
    operators pad both sides alike."""
    totals = [max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n) for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilation)]
    if any(total % 2 for total in totals):
        return F.pad(x, [side for total in reversed(totals) for side in (total // 2, total - total // 2)]), 0
    return x, [total // 2 for total in totals]


def _layer_unsupported(layer, inputs):
    if type(layer).convolution_op is not _convolution_op:
        return f"{type(layer).__name__}'s own convolution"
    kernel = value(layer.kernel)
    if isinstance(inputs, torch.Tensor) and inputs.dtype is not kernel.dtype:
        return f"x is {inputs.dtype}, filters are {kernel.dtype}"
    return _unsupported(inputs, kernel, layer.data_format)


@replaces("Conv1D.call", _layer_unsupported)
@replaces("BaseConv.call", _layer_unsupported, module="keras.src.layers.convolutional.base_conv")
def conv_layer(layer, inputs):
    """`conv` with the bias, then the activation."""
    x, padding = inputs, layer.padding
    if padding == "causal":
        before = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        x, padding = F.pad(x, (0, 0, before, 0) if layer.data_format == "channels_last" else (before, 0)), "valid"
    y = conv(x, layer.kernel, layer.strides, padding, layer.data_format, layer.dilation_rate, value(layer.bias) if layer.use_bias else None)
    return y if layer.activation is None else layer.activation(y)


# ---- pooling and transposed convolutions

@replaces("_transpose_spatial_inputs", lambda inputs: None, module="keras.src.backend.torch.nn")
def channels_first(inputs):
    """Images with channels first: a view."""
    x = inputs.movedim(-1, 1)
    return x if x.dim() in _FORMATS else x.contiguous()


# ---- dense layers

def _dense_unsupported(layer, inputs, training=None):
    if why := not_floating(inputs):
        return why
    kernel = value(layer.kernel)
    if inputs.dtype is not kernel.dtype or kernel.dim() != 2 or inputs.dim() < 2:
        return f"x is {inputs.dtype} of {inputs.dim()} dimensions, weights are {kernel.dtype} of {kernel.dim()}"
    return None


@replaces("Dense.call", _dense_unsupported)
def dense(layer, inputs, training=None):
    """``linear`` with the bias, then the activation."""
    y = F.linear(inputs, value(layer.kernel).T, value(layer.bias, inputs.dtype))
    return y if layer.activation is None else layer.activation(y)


def _einsum_unsupported(layer, inputs, training=None):
    if why := not_floating(inputs):
        return why
    kernel = value(layer.kernel)
    summed = _summed(layer.equation)
    if summed is None or kernel.dim() <= summed:
        return f"equation {layer.equation}"
    if inputs.dtype is not kernel.dtype or inputs.shape[inputs.dim() - summed:] != kernel.shape[:summed]:
        return f"x is {inputs.dtype} of shape {tuple(inputs.shape)}, weights are {kernel.dtype} of {tuple(kernel.shape)}"
    return None if layer.bias is None or layer.bias.shape == kernel.shape[summed:] else f"a bias of shape {tuple(layer.bias.shape)}"


def _summed(equation):
    """How many dimensions are summed over, if these are the last of x and the first of the weights; or None.

    >>> _summed("abc,cde->abde"), _summed("...ab,abc->...c"), _summed("abc,dc->abd")
    (1, 2, None)
    """
    words, result = equation.split("->")
    x, w = words.split(",")
    summed = [letter for letter in w if letter in x]
    rest = x[:len(x) - len(summed)]
    return len(summed) if summed and x + w == rest + 2 * "".join(summed) + w[len(summed):] and result == rest + w[len(summed):] else None


@replaces("EinsumDense.call", _einsum_unsupported)
def einsum_dense(layer, inputs, training=None):
    """`dense` where the equation is a product of matrices, as those of attention's layers are."""
    kernel = value(layer.kernel)
    summed = _summed(layer.equation)
    bias = None if layer.bias is None else value(layer.bias, inputs.dtype).reshape(-1)
    y = F.linear(inputs.flatten(-summed), kernel.flatten(0, summed - 1).flatten(1).T, bias).unflatten(-1, kernel.shape[summed:])
    return y if layer.activation is None else layer.activation(y)
