"""Activations and their gradients."""
import functools

import torch

import dnnkern

from .._table import Refused, aten
from .._tensors import one_dtype


def _forward(x, mode, **parameters):
    one_dtype(x)
    return dnnkern.activation_fwd(x, mode, out=None if x.is_contiguous() else torch.empty_like(x), **parameters)


def _backward(dy, x, mode, *, order=(0, 1), **parameters):
    """`order`: in which PyTorch's kernel takes dy and x, whose strides decide the result's."""
    one_dtype(x, dy)
    if dy.shape != x.shape:
        raise Refused(f"shapes {tuple(dy.shape)} and {tuple(x.shape)}")
    packed = dy.is_contiguous() and x.is_contiguous()
    return dnnkern.activation_bwd(dy, x, mode, out=None if packed else _like(*[(dy, x)[i] for i in order]), **parameters)


def _like(*tensors):
    """A result with the strides that PyTorch gives those of functions of single elements."""
    first = tensors[0]
    if all(t.stride() == first.stride() for t in tensors):
        return torch.empty_like(first)
    strides = torch._prims_common.compute_elementwise_output_strides(*tensors)
    return torch.empty_strided(first.shape, strides, dtype=first.dtype, device=first.device)


# Activations without parameters, by PyTorch's names; and those whose gradients PyTorch derives from x.
MODES = {"relu": "relu", "silu": "silu", "sigmoid": "sigmoid", "tanh": "tanh", "mish": "mish", "hardswish": "hard_swish",
         "hardsigmoid": "hard_sigmoid"}
OF_X = "silu", "mish"


def _add(name, function, mode):
    """Override an operator by `_forward` or `_backward` with a mode."""
    aten(name, heavy=False)(functools.update_wrapper(functools.partial(function, mode=mode), function))


for _name, _mode in MODES.items():
    _add(_name, _forward, _mode)
for _name in OF_X:
    _add(f"{_name}_backward", _backward, MODES[_name])


@aten("relu_", heavy=False)
def relu_(x):
    """`relu` into x."""
    one_dtype(x)
    return dnnkern.activation_fwd(x, "relu", out=x)


@aten("threshold_backward", heavy=False)
def threshold_backward(dy, x, threshold):
    """The gradient of `relu`."""
    if threshold != 0:
        raise Refused(f"threshold {threshold}")
    return _backward(dy, x, "relu", order=(1, 0))


def _gelu(approximate):
    return "gelu_tanh" if approximate == "tanh" else "gelu"


@aten("gelu", heavy=False)
def gelu(x, *, approximate="none"):
    """x by the normal distribution's integral."""
    return _forward(x, _gelu(approximate))


@aten("gelu_backward", heavy=False)
def gelu_backward(dy, x, *, approximate="none"):
    """The gradient of `gelu`."""
    return _backward(dy, x, _gelu(approximate))


@aten("leaky_relu", heavy=False)
def leaky_relu(x, negative_slope=0.01):
    """x, negative_slope x where it is negative."""
    return _forward(x, "leaky_relu", negative_slope=float(negative_slope))


@aten("elu", heavy=False)
def elu(x, alpha=1, scale=1, input_scale=1):
    """x, alpha (exp(x) - 1) where it is negative; celu and selu come as its cases with scales."""
    if scale != 1 or input_scale != 1:
        raise Refused("elu with scales")
    return _forward(x, "elu", alpha=float(alpha))
