"""What is computed of an element: the device functions of all operations, by name.

`Function.of` knows cuDNN's pointwise modes, forward and backward, by the names of its Python package::

    Function.of("add"), Function.of("relu", lower_clip=0.5, upper_clip=6), Function.of("swish_backward", beta=1.5)

A condition is 1 or 0 in the compute type, and whatever is not 0 holds. Integers of int32 wrap; their quotient is truncated, their
remainder has the sign of the dividend, and both are 0 where the divisor is.
"""
import functools
from dataclasses import dataclass

from . import device_function, f32, f64, i32, wrapping
from .activation import MODES, Activation, activation_function, activation_gradient
from .fastmath import atan2, ceil, cos, erf, exp, fabs, floor, fma, fmod, log, maximum, minimum, pow, rsqrt_wide, sin, sqrt, tan
from .index import quotient

TYPES = {"float32": f32, "float64": f64, "int32": i32}
COMPARISONS = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le")
LOGICAL = ("logical_and", "logical_or", "logical_not")
UNARY = ("identity", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "sin", "cos", "tan", "ceil", "floor", "logical_not",
         "gen_index")
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "mod", "atan2", "add_square", *COMPARISONS, *LOGICAL[:2], "binary_select")
ALIASES = {"bias": "add", "scale": "mul"}
"""cuDNN's other names."""
ACTIVATION_ALIASES = {"gelu_approx_tanh": "gelu_tanh"}
"""cuDNN's other names of activations."""
GATES = ("sigmoid", "swish", "silu", "gelu")
WITH_SLOPE = "prelu with its slope"
"""The mode of prelu's gradient whose second result is the element's part of the slope's gradient."""
SCALED = ("scale_tensor", "add_tensor")
"""Operations with run-time numbers alpha, and beta."""
INTEGER = ("identity", "neg", "abs", "ceil", "floor", "gen_index", "add", "sub", "mul", "div", "mod", "max", "min", "add_square",
           "binary_select", *COMPARISONS, *LOGICAL)
"""Modes that there are of int32 too."""
_INPUTS = {"unary": 1, "binary": 2, "activation_fwd": 1, "activation_bwd": 2, "glu_fwd": 2, "glu_bwd": 3, "scale_tensor": 1,
           "add_tensor": 2}


@dataclass(frozen=True)
class Function:
    """A function of up to three values: which operation it is, its mode, and the activation that it is or is made with."""
    op: str
    mode: str
    activation: Activation | None = None

    @classmethod
    def of(cls, mode, **parameters):
        """A pointwise mode by its name: one of `UNARY`, `BINARY`, `ALIASES`, or an activation's, with its parameters; the gradient of an
        activation is "<name>_backward", a function of (loss, input).

        >>> Function.of("bias")
        Function(op='binary', mode='add', activation=None)
        >>> Function.of("gelu_approx_tanh_backward").activation
        Activation('gelu_tanh')
        """
        name = ALIASES.get(mode, mode)
        if name in UNARY or name in BINARY:
            if parameters:
                raise ValueError(f"Function: {mode} takes no parameters, got {', '.join(parameters)}")
            return cls("unary" if name in UNARY else "binary", name)
        name, backward, rest = str(mode).partition("_backward")
        name = ACTIVATION_ALIASES.get(name, name)
        if rest or name not in MODES:
            raise ValueError(f"Function: mode={mode!r}; expected one of {', '.join((*UNARY, *BINARY, *ALIASES, *MODES))}, or the name of "
                             "an activation and _backward")
        activation = Activation(name, **parameters)
        return cls("activation_bwd" if backward else "activation_fwd", activation.mode, activation)

    @property
    def inputs(self):
        """How many values it is a function of."""
        return _INPUTS[self.op] + (self.mode in ("binary_select", "prelu", WITH_SLOPE))

    @property
    def results(self):
        """How many values it returns."""
        return 2 if self.op == "glu_bwd" or self.mode == WITH_SLOPE else 1

    @property
    def is_scaled(self):
        """Whether it takes the numbers (alpha, beta) in place of a third value."""
        return self.op in SCALED

    @property
    def is_condition(self):
        """Whether its results are 1 or 0."""
        return self.mode in COMPARISONS or self.mode in LOGICAL

    def refusal(self, compute):
        """Why there is no such function of values of this type; None if there is."""
        if compute not in TYPES:
            return f"the type {compute!r}; expected one of {', '.join(TYPES)}"
        if compute == "int32" and not (self.op in ("unary", "binary") and self.mode in INTEGER):
            return f"{self.mode} of int32; expected one of {', '.join(INTEGER)}, or float32 or float64"
        return None


@functools.cache
def make_function(function, compute, short=None):
    """Device function ``apply(a, b, c)`` of values of type `compute`; those that it has no use for may be anything, c is the tuple (alpha,
    beta) if it is scaled. Two results are a tuple; `short`: what `convert.short_of` calls the types that they will be rounded to."""
    refused = function.refusal(compute)
    if refused:
        raise TypeError(f"make_function: {refused}")
    T, op, mode = TYPES[compute], function.op, function.mode
    if compute == "int32" and mode in _OF_INTEGERS:
        return device_function(_OF_INTEGERS[mode])
    if op == "unary":
        return device_function(_unary(T, mode))
    if op == "binary":
        return device_function(_binary(T, mode))
    if function.is_scaled:
        return device_function(_scaled(mode))
    if mode in ("prelu", WITH_SLOPE):
        return device_function(_prelu(T, op, mode))
    # NOTE: of a product's factor small values need their own precision too
    f = activation_function(function.activation, compute, None if short == "float16" and op in ("glu_fwd", "glu_bwd") else short)
    g = activation_gradient(function.activation, compute, short)
    if op == "activation_fwd":
        def apply(x, b, c):
            return f(x)
    elif op == "activation_bwd":
        def apply(dy, x, c):
            return g(dy, x)
    elif op == "glu_fwd":
        def apply(value, gate, c):
            return value * f(gate)
    else:
        def apply(dy, value, gate):
            return dy * f(gate), g(dy * value, gate)
    return device_function(apply)


def _integer_neg(x, b, c):
    return wrapping(-x)


def _integer_same(x, b, c):
    return x


def _integer_add(a, b, c):
    return wrapping(a + b)


def _integer_sub(a, b, c):
    return wrapping(a - b)


def _integer_mul(a, b, c):
    return wrapping(a * b)


def _integer_add_square(a, b, c):
    return wrapping(a + wrapping(b * b))


@device_function
def _magnitude(x):
    return x if x >= 0 else wrapping(-x)


def _integer_abs(x, b, c):
    return _magnitude(x)


@device_function
def _truncated(a, b):
    """Of the quotient of two int32; 0 where b is."""
    q = quotient(_magnitude(a), 1 if b == 0 else _magnitude(b))  # of uint32: the magnitude of -2**31 is that of its bits
    return 0 if b == 0 else q if (a < 0) == (b < 0) else wrapping(-q)


def _integer_div(a, b, c):
    return _truncated(a, b)


def _integer_mod(a, b, c):
    return 0 if b == 0 else wrapping(a - wrapping(_truncated(a, b) * b))


_OF_INTEGERS = {"neg": _integer_neg, "abs": _integer_abs, "ceil": _integer_same, "floor": _integer_same, "add": _integer_add,
                "sub": _integer_sub, "mul": _integer_mul, "div": _integer_div, "mod": _integer_mod, "add_square": _integer_add_square}
"""What is another function of int32 than of floats."""


def _scaled(mode):
    if mode == "scale":
        def apply(x, b, scalars):
            return scalars[0] * x
    else:
        def apply(a, b, scalars):
            return scalars[0] * a + scalars[1] * b
    return apply


def _prelu(T, op, mode):
    if mode == WITH_SLOPE:
        def apply(dy, x, slope):
            return dy if x > 0 else slope * dy, T(0) if x > 0 else dy * x
    elif op == "activation_fwd":
        def apply(x, slope, c):
            return x if x > 0 else slope * x
    else:
        def apply(dy, x, slope):
            return dy if x > 0 else slope * dy
    return apply


def _unary(T, mode):
    if mode in ("sqrt", "exp", "log", "erf", "sin", "cos", "tan", "ceil", "floor", "abs"):
        of = {"sqrt": sqrt, "exp": exp, "log": log, "erf": erf, "sin": sin, "cos": cos, "tan": tan, "ceil": ceil, "floor": floor,
              "abs": fabs}[mode]

        def apply(x, b, c):
            return of(x)
    elif mode == "neg":
        def apply(x, b, c):
            return -x
    elif mode == "rsqrt" and T is f32:
        def apply(x, b, c):
            return rsqrt_wide(x)
    elif mode == "rsqrt":
        def apply(x, b, c):
            return T(1) / sqrt(x)
    elif mode == "reciprocal":
        def apply(x, b, c):
            return T(1) / x
    elif mode == "logical_not":
        def apply(x, b, c):
            return T(1) if x == 0 else T(0)
    else:  # identity; gen_index, whose x is the index
        def apply(x, b, c):
            return x
    return apply


def _binary(T, mode):
    if mode in ("max", "min", "pow", "mod", "atan2"):
        of = {"max": maximum, "min": minimum, "pow": pow, "mod": fmod, "atan2": atan2}[mode]

        def apply(a, b, c):
            return of(a, b)
    elif mode == "add":
        def apply(a, b, c):
            return a + b
    elif mode == "sub":
        def apply(a, b, c):
            return a - b
    elif mode == "mul":
        def apply(a, b, c):
            return a * b
    elif mode == "div":
        def apply(a, b, c):
            return a / b
    elif mode == "add_square":
        def apply(a, b, c):
            return fma(b, b, a)
    elif mode == "binary_select":
        def apply(a, b, mask):
            return a if mask != 0 else b
    else:
        return _truth(T, mode)
    return apply


def _truth(T, mode):
    if mode == "cmp_eq":
        def holds(a, b):
            return a == b
    elif mode == "cmp_neq":
        def holds(a, b):
            return a != b
    elif mode == "cmp_gt":
        def holds(a, b):
            return a > b
    elif mode == "cmp_ge":
        def holds(a, b):
            return a >= b
    elif mode == "cmp_lt":
        def holds(a, b):
            return a < b
    elif mode == "cmp_le":
        def holds(a, b):
            return a <= b
    elif mode == "logical_and":
        def holds(a, b):
            return a != 0 and b != 0
    else:
        def holds(a, b):
            return a != 0 or b != 0
    holds = device_function(holds)

    def apply(a, b, c):
        return T(1) if holds(a, b) else T(0)
    return apply
