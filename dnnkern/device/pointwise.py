"""What is computed of an element: the device functions of all operations, by name."""
import functools
from dataclasses import dataclass

from . import device_function, f32, f64
from .activation import Activation, activation_function, activation_gradient
from .fastmath import atan2, ceil, cos, erf, exp, fabs, floor, fma, fmod, log, maximum, minimum, pow, sin, sqrt, tan

TYPES = {"float32": f32, "float64": f64}
COMPARISONS = ("cmp_eq", "cmp_neq", "cmp_gt", "cmp_ge", "cmp_lt", "cmp_le")
LOGICAL = ("logical_and", "logical_or", "logical_not")
UNARY = ("identity", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "sin", "cos", "tan", "ceil", "floor", "logical_not",
         "gen_index")
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "mod", "atan2", "add_square", *COMPARISONS, *LOGICAL[:2], "binary_select")
ALIASES = {"bias": "add", "scale": "mul"}
"""cuDNN's other names."""
GATES = ("sigmoid", "swish", "silu", "gelu")
WITH_SLOPE = "prelu with its slope"
"""The mode of prelu's gradient whose second result is the element's part of the slope's gradient."""
SCALED = ("scale_tensor", "add_tensor")
"""Operations with run-time numbers alpha, and beta."""


@dataclass(frozen=True)
class Function:
    """A function of up to three values: which operation it is, its mode, and the activation that it is or is made with."""
    op: str
    mode: str
    activation: Activation | None = None

    @property
    def results(self):
        """How many values it returns."""
        return 2 if self.op == "glu_bwd" or self.mode == WITH_SLOPE else 1

    @property
    def is_scaled(self):
        """Whether it takes the numbers (alpha, beta) in place of a third value."""
        return self.op in SCALED


@functools.cache
def make_function(function, compute, short=False):
    """Device function ``apply(a, b, c)`` of values of type `compute`; those that it has no use for may be anything, c is the tuple (alpha,
    beta) if it is scaled. Two results are a tuple; `short`: they will be rounded to 16 bits or fewer."""
    T, op, mode = TYPES[compute], function.op, function.mode
    if op == "unary":
        return device_function(_unary(T, mode))
    if op == "binary":
        return device_function(_binary(T, mode))
    if function.is_scaled:
        return device_function(_scaled(mode))
    if mode in ("prelu", WITH_SLOPE):
        return device_function(_prelu(T, op, mode))
    f, g = (make(function.activation, compute, short) for make in (activation_function, activation_gradient))
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
