"""Activations in float64 NumPy, from their definitions; the references' own, sharing nothing with `dnnkern.device.epilogue`."""
import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


# name -> (function with the default parameters, the largest slope it has anywhere, whether integers give exact results)
ACTIVATIONS = {
    "identity": (lambda x: x, 1.0, True),
    "relu": (lambda x: np.maximum(x, 0), 1.0, True),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), 1.0, False),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 1.0, False),
    "selu": (lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))), 1.76, False),
    "celu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 1.0, False),
    "sigmoid": (_sigmoid, 0.25, False),
    "hard_sigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), 1 / 6, False),
    "tanh": (np.tanh, 1.0, False),
    "softplus": (_softplus, 1.0, False),
    "softsign": (lambda x: x / (1 + np.abs(x)), 1.0, False),
    "gelu": (lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), 1.13, False),
    "gelu_tanh": (lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))), 1.13, False),
    "swish": (lambda x: x * _sigmoid(x), 1.1, False),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 1.5, False),
    "mish": (lambda x: x * np.tanh(_softplus(x)), 1.09, False),
}


def _gelu_slope(x):
    return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x):
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


def _mish_slope(x):
    t = np.tanh(_softplus(x))
    return t + x * (1 - t * t) * _sigmoid(x)


# name -> derivative with the default parameters; at a kink that of the clipped side
SLOPES = {
    "identity": np.ones_like,
    "relu": lambda x: np.where(x > 0, 1.0, 0.0),
    "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01),
    "elu": lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, 1.0, 1.6732632423543772 * np.exp(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))),
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
    "hard_sigmoid": lambda x: np.where(np.abs(x) < 3, 1 / 6, 0.0),
    "tanh": lambda x: 1 / np.cosh(x) ** 2,
    "softplus": _sigmoid,
    "softsign": lambda x: 1 / (1 + np.abs(x)) ** 2,
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "swish": lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)),
    "hard_swish": lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5)),
    "mish": _mish_slope,
}
