"""Activations and their gradients as scalar device functions, for any kernel.

No overflow to NaN for any finite or infinite argument, no cancellation in the tails, NaN in gives NaN out.
"""
import dataclasses
import functools
import math
import numbers
import sys

from . import device_function, f32, f64
from .fastmath import (BFLOAT16_FAR, HALF_FAR, bfloat16_odds, bfloat16_tail, erfc, ex2, exp, exp_fast, expm1, expm1_negative, fabs, fma,
                       fmin, half_odds, half_tail, log1p, log1p_unit, maximum, minimum, normal_tail, product_saturated, rcp, short_tail,
                       tanh)

PARAMETERS = {
    "identity": {},
    "relu": {"negative_slope": 0.0, "lower_clip": 0.0, "upper_clip": math.inf},
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1.0},
    "selu": {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    "celu": {"alpha": 1.0},
    "sigmoid": {},
    "hard_sigmoid": {"alpha": 1 / 6, "beta": 0.5},
    "tanh": {},
    "softplus": {"beta": 1.0},
    "softsign": {},
    "gelu": {},
    "gelu_tanh": {},
    "swish": {"beta": 1.0},
    "hard_swish": {},
    "mish": {},
}
"""Every activation, with its parameters and their defaults."""
SYNONYMS = {"silu": "swish"}
"""Other names that a mode goes by; an `Activation` has the name in `PARAMETERS`."""
MODES = (*PARAMETERS, *SYNONYMS)
"""Every name that an activation may be given by."""


@dataclasses.dataclass(frozen=True, init=False)
class Activation:
    """A pointwise activation: `mode`, one of `MODES`, and its parameters, all of them, by name and in order.

    >>> Activation("relu", upper_clip=6)
    Activation('relu', upper_clip=6.0)
    >>> Activation("relu", upper_clip=6) == Activation("relu", upper_clip=6.0, lower_clip=0.0)
    True
    """
    mode: str
    parameters: tuple

    def __init__(self, mode="identity", **parameters):
        if not isinstance(mode, str) or mode not in MODES:
            error = ValueError if isinstance(mode, str) else TypeError
            raise error(f"Activation: mode={mode!r}; expected one of {', '.join(map(repr, MODES))}")
        mode = SYNONYMS.get(mode, mode)
        defaults = PARAMETERS[mode]
        for name, value in parameters.items():
            if name not in defaults:
                raise ValueError(f"activation {mode}: no parameter {name}; it takes {', '.join(defaults) or 'none'}")
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                raise TypeError(f"activation {mode}: {name} is {value!r}, expected a number")
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                raise ValueError(f"activation {mode}: {name} is an int that float64 cannot hold")
            if math.isnan(value) or math.isinf(value) and name not in ("lower_clip", "upper_clip"):
                raise ValueError(f"activation {mode}: {name} is {value}")
        given = {name: float(parameters.get(name, default)) for name, default in defaults.items()}
        if mode == "relu":
            if not given["lower_clip"] < given["upper_clip"]:
                raise ValueError(f"activation relu: lower_clip {given['lower_clip']} is not below upper_clip {given['upper_clip']}")
            if math.isinf(given["lower_clip"]) and given["negative_slope"]:
                raise ValueError(f"activation relu: lower_clip {given['lower_clip']} leaves no place for negative_slope")
        if mode == "softplus" and given["beta"] <= 0 or mode == "celu" and given["alpha"] == 0:
            name = "beta" if mode == "softplus" else "alpha"
            raise ValueError(f"activation {mode}: {name} is {given[name]}, expected it {'positive' if mode == 'softplus' else 'not zero'}")
        object.__setattr__(self, "mode", mode)
        object.__setattr__(self, "parameters", tuple(given.items()))

    def __getitem__(self, name):
        return dict(self.parameters)[name]

    def __repr__(self):
        changed = "".join(f", {n}={v}" for n, v in self.parameters if v != PARAMETERS[self.mode][n])
        return f"Activation({self.mode!r}{changed})"

    @classmethod
    def of(cls, activation):
        """An `Activation`, a mode's name, or None for the identity."""
        return activation if isinstance(activation, cls) else cls() if activation is None else cls(activation)


def _reciprocal64(x):
    return 1 / x


def _normal_tail64(a):
    return 0.5 * erfc(a * math.sqrt(0.5)), exp(-0.5 * a * a)


def _types(compute, short):
    """Scalar type, reciprocal, `normal_tail`, and a bound past which every tail is flat, for a compute type."""
    if compute == "float32":
        return f32, rcp, short_tail if short else normal_tail, 14.0
    if compute == "float64":
        return f64, device_function(_reciprocal64), device_function(_normal_tail64), 40.0
    raise ValueError(f"activation: compute type {compute!r}, expected 'float32' or 'float64'")


@functools.cache
def activation_function(activation, compute="float32", short=None):
    """Device function ``f(x)`` of a scalar of type `compute`.

    Parameters
    ----------
    activation : Activation, str or None
    compute : "float32" or "float64"
    short : None, "float16" or "bfloat16"
        Results will be rounded to 16 bits or fewer (see `convert.short_of`): gelu may have the error of `half_tail`, or `bfloat16_tail`,
        gelu_tanh that of `half_odds`, or `bfloat16_odds`.
    """
    activation = Activation.of(activation)
    T, inverse, tail_of, far = _types(compute, short)
    p = dict(activation.parameters)
    alpha, beta, gamma = (p.get(n, 0.0) for n in ("alpha", "beta", "gamma"))
    mode = activation.mode
    below, fade, log_of = (expm1_negative, exp_fast, log1p_unit) if compute == "float32" else (expm1, exp, log1p)
    if mode == "identity":
        def f(x):
            return x
    elif mode in ("relu", "leaky_relu"):
        slope, lower, upper = p["negative_slope"], p.get("lower_clip", 0.0), p.get("upper_clip", math.inf)
        clipped = upper < math.inf

        def f(x):
            if slope != 0.0:
                y = x if x > T(lower) else T(lower) + T(slope) * (x - T(lower))
            else:
                y = maximum(x, T(lower))
            if clipped:
                y = minimum(y, T(upper))
            return y
    elif mode in ("elu", "selu", "celu"):
        outer = gamma if mode == "selu" else 1.0
        scale = outer * alpha
        inner = 1.0 / alpha if mode == "celu" else 1.0
        grow = below if inner > 0 else expm1

        def f(x):
            return x * T(outer) if x > T(0) else T(scale) * grow(x * T(inner))
    elif mode == "sigmoid":
        def f(x):
            return inverse(T(1) + exp(-x))
    elif mode == "hard_sigmoid":
        def f(x):
            return minimum(maximum(fma(x, T(alpha), T(beta)), T(0)), T(1))
    elif mode == "tanh":
        def f(x):
            return tanh(x)
    elif mode == "softplus":
        def f(x):
            v = x * T(beta)
            return (maximum(v, T(0)) + log_of(fade(-fabs(v)))) * T(1.0 / beta)
    elif mode == "softsign":
        # NOTE: beyond 2**60 the quotient is one; the bound keeps infinity out of it and the reciprocal normal
        def f(x):
            v = minimum(maximum(x, T(-2.0**60)), T(2.0**60))
            return v * inverse(T(1) + fabs(v))
    elif mode == "gelu" and compute == "float32" and short:
        # NOTE: as below, with the bound as part of the tail's argument, where it is no instruction
        tail_in_parts, part = (half_tail, 1 / HALF_FAR) if short == "float16" else (bfloat16_tail, 1 / BFLOAT16_FAR)

        def f(x):
            u = product_saturated(fabs(x), f32(part))
            return fma(-u, tail_in_parts(u), maximum(x, f32(0)))
    elif mode == "gelu":
        # NOTE: max(x, 0) - |x| erfc(|x|/sqrt 2)/2 has no cancellation, and the bound keeps infinity times zero out of it
        def f(x):
            a = fmin(fabs(x), T(far))
            tail, _ = tail_of(a)
            return maximum(x, T(0)) - a * tail
    elif mode == "gelu_tanh" and compute == "float32" and short:
        # NOTE: max(x, 0) - |x| e / (1 + e) with e = exp(-2 |u|), as below; the one MUFU is e's
        odds, slope = half_odds if short == "float16" else bfloat16_odds, -2 * math.sqrt(2 / math.pi) * math.log2(math.e)

        def f(x):
            a = fmin(fabs(x), f32(16))
            e = ex2(a * fma(a * a, f32(0.044715 * slope), f32(slope)))
            return fma(-a * e, odds(e), maximum(x, f32(0)))
    elif mode == "gelu_tanh":
        # x (1 + tanh u)/2 is x sigmoid(2u), which keeps its relative accuracy in the tail
        def f(x):
            v = maximum(x, T(-100.0))
            u = v * fma(v * v, T(2 * 0.044715 * math.sqrt(2 / math.pi)), T(2 * math.sqrt(2 / math.pi)))
            return v * inverse(T(1) + exp(-u))
    elif mode == "swish":
        positive, negative = beta > 0, beta < 0

        def f(x):
            v = x
            if positive:
                v = maximum(x, T(-1e30))
            if negative:
                v = minimum(x, T(1e30))
            return v * inverse(T(1) + exp(-v * T(beta)))
    elif mode == "hard_swish":
        def f(x):
            v = maximum(x, T(-3.0))
            return v * minimum(fma(v, T(1 / 6), T(0.5)), T(1))
    elif mode == "mish":
        # tanh(log(1 + w)) with w = exp(x) is n/(n + 2), n = w (w + 2); from 20 on it is one
        def f(x):
            v = maximum(x, T(-1e4))
            w = exp(minimum(v, T(20)))
            n = w * (w + T(2))
            return v * n * inverse(n + T(2))
    return device_function(f)


@functools.cache
def activation_gradient(activation, compute="float32", short=None):
    """Device function ``g(dy, x)``: dy times the derivative at `x`; at a kink that of the clipped side, relu's at 0 being its slope.
    `short`: the results will be rounded to 16 bits or fewer; gelu's tail may have a relative error of 2**-16."""
    activation = Activation.of(activation)
    T, inverse, tail_of, far = _types(compute, short)
    p = dict(activation.parameters)
    alpha, beta, gamma = (p.get(n, 0.0) for n in ("alpha", "beta", "gamma"))
    mode = activation.mode
    if mode == "identity":
        def g(dy, x):
            return dy
    elif mode in ("relu", "leaky_relu"):
        slope, lower, upper = p["negative_slope"], p.get("lower_clip", 0.0), p.get("upper_clip", math.inf)
        bounded, clipped = lower > -math.inf, upper < math.inf

        def g(dy, x):
            dx = dy
            if bounded:
                dx = T(slope) * dy if x <= T(lower) else dy
            if clipped:
                dx = T(0) if x >= T(upper) else dx
            return dx
    elif mode in ("elu", "selu", "celu"):
        outer = gamma if mode == "selu" else 1.0
        scale = 1.0 if mode == "celu" else outer * alpha
        inner = 1.0 / alpha if mode == "celu" else 1.0

        def g(dy, x):
            return dy * T(outer) if x > T(0) else dy * T(scale) * exp(x * T(inner))
    elif mode in ("sigmoid", "tanh"):
        # with e = exp(-|k x|): sigmoid' = e/(1 + e)**2, tanh' = 4e/(1 + e)**2
        inner, outer = (1.0, 1.0) if mode == "sigmoid" else (2.0, 4.0)

        def g(dy, x):
            e = exp(T(-inner) * fabs(x))
            r = inverse(T(1) + e)
            return dy * T(outer) * e * r * r
    elif mode == "hard_sigmoid":
        def g(dy, x):
            v = fma(x, T(alpha), T(beta))
            return T(0) if v <= T(0) or v >= T(1) else dy * T(alpha)
    elif mode == "softplus":
        def g(dy, x):
            return dy * inverse(T(1) + exp(T(-beta) * x))
    elif mode == "softsign":
        def g(dy, x):
            r = inverse(T(1) + minimum(fabs(x), T(2.0**60)))
            return dy * r * r
    elif mode == "gelu":
        def g(dy, x):
            v = minimum(maximum(x, T(-far)), T(far))
            tail, e = tail_of(fabs(v))
            cdf = T(1) - tail if v > T(0) else tail
            return dy * fma(v, e * T(1 / math.sqrt(2 * math.pi)), cdf)
    elif mode == "gelu_tanh":
        def g(dy, x):
            v = minimum(maximum(x, T(-100.0)), T(100.0))
            square = v * v
            u = v * fma(square, T(2 * 0.044715 * math.sqrt(2 / math.pi)), T(2 * math.sqrt(2 / math.pi)))
            slope = fma(square, T(6 * 0.044715 * math.sqrt(2 / math.pi)), T(2 * math.sqrt(2 / math.pi)))
            e = exp(-fabs(u))
            r = inverse(T(1) + e)
            sigmoid = r if u > T(0) else e * r
            return dy * fma(v * slope, e * r * r, sigmoid)
    elif mode == "swish":
        def g(dy, x):
            v = minimum(maximum(x, T(-1e30)), T(1e30)) * T(beta)
            e = exp(-fabs(v))
            r = inverse(T(1) + e)
            sigmoid = r if v > T(0) else e * r
            return dy * fma(v, e * r * r, sigmoid)
    elif mode == "hard_swish":
        def g(dy, x):
            return T(0) if x <= T(-3.0) else dy if x >= T(3.0) else dy * fma(x, T(1 / 3), T(0.5))
    elif mode == "mish":
        def g(dy, x):
            v = minimum(maximum(x, T(-1e4)), T(20))
            w = exp(v)
            n = w * (w + T(2))
            r = inverse(n + T(2))
            return dy * fma(v * T(4) * w * (T(1) + w) * r, r, n * r)
    return device_function(g)
