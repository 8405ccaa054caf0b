"""Activations."""
import functools

import torch
import torch.nn.functional as F

from ... import activation_bwd, activation_fwd
from ...device.activation import Activation
from .._above import counted, gradients, needs_gradient
from .._operator import is_eager, operator
from .._rules import leading
from .._table import Refused
from .._tensors import one_dtype
from ._front import replaces

FROM_RESULT = "relu", "leaky_relu"
"""Activations whose gradient follows from the result, with which other kernels can therefore end."""


@functools.cache
def parsed(text):
    """The `Activation` of a text: "elu alpha=2.0"; None for an empty one.

    >>> parsed("elu alpha=2.0")
    Activation('elu', alpha=2.0)
    """
    mode, *parameters = text.split() or [None]
    return mode and Activation(mode, **{name: float(value) for name, value in (p.split("=") for p in parameters)})


def text_of(mode, **parameters):
    """What `parsed` takes. Operators have it for an argument: PyTorch's have no other way to pass a mode with parameters."""
    return " ".join([mode, *(f"{name}={float(value)!r}" for name, value in parameters.items())])


def text_at_end(function, activation):
    """The text of a function's argument ``activation``; ValueError where there is no such activation."""
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"{function}: activation is {type(activation).__name__}; expected a str such as 'relu' or 'elu alpha=2.0', or None")
    if activation and not torch.compiler.is_compiling():  # the operator's fake kernel finds what is wrong then
        try:
            parsed(activation)
        except ValueError as error:
            raise ValueError(f"{function}: activation is {activation!r}: {error}") from None
    return activation or ""


def is_from_result(text):
    """Whether the activation's gradient follows from its result."""
    return text.partition(" ")[0] in FROM_RESULT


def parted(text, derived):
    """The activation at a kernel's end, and the one after it: which one is whose gradient does not follow from its result."""
    return (text, "") if not (derived and text) or is_from_result(text) else ("", text)


def then(y, text):
    """The activation of a text, if there is one."""
    return activate(y, text) if text else y


_PYTORCHS = {"relu": lambda x, p: F.relu(x) if p["upper_clip"] == float("inf") else F.hardtanh(x, p["lower_clip"], p["upper_clip"]),
             "leaky_relu": lambda x, p: F.leaky_relu(x, p["negative_slope"]), "elu": lambda x, p: F.elu(x, p["alpha"]),
             "celu": lambda x, p: F.celu(x, p["alpha"]), "softplus": lambda x, p: F.softplus(x, p["beta"]),
             **{mode: lambda x, p, f=f: f(x) for mode, f in {
                 "selu": F.selu, "sigmoid": torch.sigmoid, "hard_sigmoid": F.hardsigmoid, "tanh": torch.tanh, "softsign": F.softsign,
                 "gelu": F.gelu, "swish": F.silu, "hard_swish": F.hardswish, "mish": F.mish}.items()},
             "gelu_tanh": lambda x, p: F.gelu(x, approximate="tanh")}


def pytorchs(x, text):
    """The activation by PyTorch's functions."""
    activation = parsed(text)
    return x if activation is None else _PYTORCHS[activation.mode](x, dict(activation.parameters))


gradient = operator("activation_backward(Tensor dy, Tensor x, str activation) -> Tensor", lambda dy, x, text: activation_bwd(
    dy, x, parsed(text), out=torch.empty_like(x)), lambda dy, x, text: torch.empty_like(x), "activation backward", batch=leading("dy", "x"))
"""dx from dy and x, or y in place of x for those of `FROM_RESULT`."""


def _gradient(dy, mask, x, activation):
    if torch.is_grad_enabled():
        return gradients(lambda x: pytorchs(x, activation), [x], dy)
    return [gradient(dy, x, activation)]


def _gradient_of_result(dy, mask, activation, y0):
    return _gradient(dy, mask, y0, activation)


def _made(name, derivative):
    return operator(f"{name}(Tensor x, str activation) -> Tensor", lambda x, text: activation_fwd(x, parsed(text), out=torch.empty_like(x)),
                    lambda x, text: torch.empty_like(x), "activation", derivative, batch=leading("x"))


_of_x, _of_result = _made("activation", _gradient), _made("activation_by_result", _gradient_of_result)
_into = counted(lambda x, text: activation_fwd(x, parsed(text), out=x), "activation")


class _InPlace(torch.autograd.Function):
    """An activation of `FROM_RESULT` into its argument."""

    @staticmethod
    def forward(ctx, x, text):
        ctx.text = text
        _into(x, text)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, dy):
        return _gradient(dy, None, *ctx.saved_tensors, ctx.text)[0], None


def activate(x, text, inplace=False):
    """The activation of a text."""
    one_dtype(x)
    if not inplace:
        return (_of_result if is_from_result(text) else _of_x)(x, text)
    if not is_eager(x) or x.numel() == 0:
        raise Refused("a result in place that is empty, or while something traces")
    if needs_gradient(x):
        return _InPlace.apply(x, text) if is_from_result(text) else x.copy_(_of_x(x.clone(), text))
    _into(x, text)
    torch.autograd.graph.increment_version(x)
    return x


@replaces(F.relu)
def relu(input, inplace=False):
    return activate(input, "relu", inplace)


@replaces(F.hardtanh)
def hardtanh(input, min_val=-1.0, max_val=1.0, inplace=False):
    return activate(input, text_of("relu", lower_clip=min_val, upper_clip=max_val), inplace)


@replaces(F.relu6)
def relu6(input, inplace=False):
    return hardtanh(input, 0.0, 6.0, inplace)


@replaces(F.gelu)
def gelu(input, approximate="none"):
    if approximate not in ("none", "tanh"):
        raise Refused(f"approximate {approximate!r}")
    return activate(input, "gelu_tanh" if approximate == "tanh" else "gelu")


@replaces(F.softplus)
def softplus(input, beta=1.0, threshold=20.0):
    if threshold < 20:
        raise Refused(f"threshold {threshold}")
    return activate(input, text_of("softplus", beta=beta))


def _simple(theirs, mode, **defaults):
    """A function that takes a tensor, the activation's parameters, and `inplace`."""
    names = list(defaults)

    def function(input, *values, inplace=False, **more):
        *values, inplace = (*values, inplace) if len(values) <= len(names) else values
        return activate(input, text_of(mode, **{**defaults, **dict(zip(names, values)), **more}), inplace)
    replaces(theirs, name=theirs.__name__)(function)


_simple(F.leaky_relu, "leaky_relu", negative_slope=0.01)
_simple(F.elu, "elu", alpha=1.0)
_simple(F.celu, "celu", alpha=1.0)
for _theirs, _mode in ((F.selu, "selu"), (F.silu, "silu"), (F.mish, "mish"), (F.hardswish, "hard_swish"), (F.hardsigmoid, "hard_sigmoid"),
                       (F.softsign, "softsign"), (torch.sigmoid, "sigmoid"), (torch.tanh, "tanh")):
    _simple(_theirs, _mode)
