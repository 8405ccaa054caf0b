"""What a kernel does to an accumulator before it stores it: scale, add, activate, round once.

`make_epilogue` turns an `EpilogueSpec` into a device function that matmul, convolution and fused graphs capture in their kernels::

    epilogue = make_epilogue(EpilogueSpec(alpha=True, bias="column", bias_dtype="bfloat16", activation=Activation("relu"),
                                          accumulator="float32", output="bfloat16"))
    ...
    d[offset] = epilogue(acc, m, n, (alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride))

computes ``activation(alpha*acc + beta*c + residual + bias)`` for row `m` and column `n` in float32 (float64 for a float64 accumulator) and
rounds it to the output type once. Parts the spec does not ask for leave no instruction, and their arguments are never looked at.

`activation_function` and `activation_gradient` are the scalar functions themselves: no overflow to NaN for any finite or infinite argument,
no cancellation in the tails, NaN in gives NaN out.
"""
import dataclasses
import functools
import math
import numbers
import sys

from . import device_function, f32, f64, i32, i64
from .convert import element
from .fastmath import (erfc, exp, exp_fast, expm1, expm1_negative, fabs, fma, fmin, log1p, log1p_unit, maximum, minimum, normal_tail, rcp,
                       short_tail, tanh)
from .numeric import float_to_int32, floats_to_bfloat162, floats_to_half2

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
def activation_function(activation, compute="float32", short=False):
    """Device function ``f(x)`` of a scalar of type `compute`.

    Parameters
    ----------
    activation : Activation, str or None
    compute : "float32" or "float64"
    short : bool
        Results will be rounded to 16 bits or fewer: gelu's tail may have a relative error of 2**-16.
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
    elif mode == "gelu":
        # NOTE: max(x, 0) - |x| erfc(|x|/sqrt 2)/2 has no cancellation, and the bound keeps infinity times zero out of it
        def f(x):
            a = fmin(fabs(x), T(far))
            tail, _ = tail_of(a)
            return maximum(x, T(0)) - a * tail
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
def activation_gradient(activation, compute="float32", short=False):
    """Device function ``g(dy, x)``: dy times the derivative at `x`; at a kink that of the clipped side, relu's at 0 being its slope.
    `short` as `activation_function`'s."""
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


ARGUMENTS = ("alpha", "beta", "bias", "bias_stride", "c", "c_row_stride", "c_column_stride",
             "residual", "residual_row_stride", "residual_column_stride", "scale_a", "scale_b", "scale_a_stride", "scale_b_stride")
"""Order of the tuple `e` an epilogue takes. The last two are for scales by row or column. A spec without scales needs the first ten,
without residual either the first seven."""


@dataclasses.dataclass(frozen=True)
class EpilogueSpec:
    """What `make_epilogue` makes: y = activation(alpha*acc + beta*c + residual + bias), rounded to `output`.

    Attributes
    ----------
    alpha, beta : bool
        Whether the factor is an argument; one otherwise. `beta` needs `c`.
    bias : None, "row" or "column"
        Adds ``bias[m*bias_stride]`` or ``bias[n*bias_stride]``, of type `bias_dtype`.
    c, residual : str or None
        Element type of an addend at ``m*row_stride + n*column_stride``.
    activation : Activation
    accumulator : "float32", "float64" or "int32"
    output : str
        Element type of the result; float64 or float32 for a float64 accumulator. An int32 accumulator stays in exact (wrapping) integer
        arithmetic where output, bias and addends are int32 and there is no factor and no activation.
    scales : (None, "tensor" or "row"; None, "tensor" or "column"), or ()
        Multiply the accumulator by the float32 ``scale_a[0]`` or ``scale_a[m*scale_a_stride]``, then by ``scale_b[0]`` or
        ``scale_b[n*scale_b_stride]``. True is ``("tensor", "tensor")``.
    wide : bool
        64-bit offsets and strides.
    """
    alpha: bool = False
    beta: bool = False
    bias: str = None
    bias_dtype: str = "float32"
    c: str = None
    residual: str = None
    activation: Activation = Activation()
    accumulator: str = "float32"
    output: str = "float32"
    scales: tuple = ()
    wide: bool = False

    def __post_init__(self):
        object.__setattr__(self, "activation", Activation.of(self.activation))
        if self.accumulator not in ("float32", "float64", "int32"):
            raise ValueError(f"epilogue: accumulator {self.accumulator!r}, expected float32, float64 or int32")
        if self.bias not in (None, "row", "column"):
            raise ValueError(f"epilogue: bias {self.bias!r}, expected None, 'row' or 'column'")
        if self.beta and self.c is None:
            raise ValueError("epilogue: beta scales c, and there is no c")
        if self.accumulator == "float64" and self.output not in ("float64", "float32"):
            raise ValueError(f"epilogue: output {self.output} of a float64 accumulator, expected float64 or float32")
        scales = ("tensor", "tensor") if self.scales is True else tuple(self.scales or ())
        if scales and (len(scales) != 2 or scales[0] not in (None, "tensor", "row") or scales[1] not in (None, "tensor", "column")):
            raise ValueError(f"epilogue: scales {self.scales!r}, expected None, 'tensor' or 'row', and None, 'tensor' or 'column'")
        object.__setattr__(self, "scales", scales if any(scales) else ())
        for dtype in (self.output, self.c or self.output, self.residual or self.output, self.bias_dtype):
            element(dtype)

    @property
    def integer(self):
        """Whether the arithmetic stays in int32."""
        others = {self.output, self.c or "int32", self.residual or "int32", self.bias_dtype if self.bias else "int32"}
        return self.accumulator == "int32" and others == {"int32"} and self.activation.mode == "identity" and not (
            self.alpha or self.beta or self.scales)

    @property
    def is_short(self):
        """Whether results have 16 bits or fewer."""
        return element(self.output).storage.itemsize <= 2

    @property
    def compute(self):
        """Type of the arithmetic."""
        return "int32" if self.integer else "float64" if "float64" in (self.accumulator, self.output) else "float32"

    @property
    def arguments(self):
        """((name, kernel parameter type), ...) of the tuple `e`; parts not asked for may be 0 and null."""
        factor, offset = ("float64" if self.compute == "float64" else "float32"), ("int64" if self.wide else "int32")
        types = [factor, factor, element(self.bias_dtype).pointer, offset, element(self.c or self.output).pointer, offset, offset]
        if self.residual or self.scales:
            types += [element(self.residual or self.output).pointer, offset, offset]
        if self.scales:
            types += ["float32*", "float32*"]
        if "row" in self.scales or "column" in self.scales:
            types += [offset, offset]
        return tuple(zip(ARGUMENTS, types))


@functools.cache
def make_epilogue(spec, result="storage", given=None):
    """Device function ``epilogue(acc, m, n, e)`` of `spec`; `e` is the tuple that `ARGUMENTS` describes.

    Parameters
    ----------
    spec : EpilogueSpec
    result : "storage", "compute" or "packed"
        The word to store; or the value before rounding; or, for 16-bit outputs, ``epilogue(acc0, acc1, m, n, e)`` gives the uint32 word
        of columns n and n + 1.
    given : None, "c" or "residual"
        With "packed": an addend of 16 bits that is not loaded but handed over, ``epilogue(acc0, acc1, m, n, e, word)``.
    """
    T = {"float32": f32, "float64": f64, "int32": i32}[spec.compute]
    Offset = i64 if spec.wide else i32
    has_alpha, has_beta, has_c, has_residual = spec.alpha, spec.beta, spec.c is not None, spec.residual is not None
    scale_a, scale_b = spec.scales or (None, None)
    a_by_tensor, a_by_row, b_by_tensor, b_by_column = scale_a == "tensor", scale_a == "row", scale_b == "tensor", scale_b == "column"
    by_row, by_column = spec.bias == "row", spec.bias == "column"
    load_bias, load_c = _loader(spec.bias_dtype, spec.integer), _loader(spec.c or spec.output, spec.integer)
    load_residual = _loader(spec.residual or spec.output, spec.integer)
    activate = device_function(_same) if spec.integer else activation_function(spec.activation, spec.compute, spec.is_short)

    c_given, residual_given = given == "c", given == "residual"

    @device_function
    def combine(acc, m, n, e, other):
        y = T(acc)
        if a_by_tensor:
            y = y * T(e[10][0])
        if a_by_row:
            y = y * T(e[10][Offset(Offset(m) * e[12])])
        if b_by_tensor:
            y = y * T(e[11][0])
        if b_by_column:
            y = y * T(e[11][Offset(Offset(n) * e[13])])
        if has_alpha:
            y = y * T(e[0])
        if has_c:
            addend = T(other) if c_given else T(load_c(e[4], Offset(Offset(m) * e[5] + Offset(n) * e[6])))
            y = fma(addend, T(e[1]), y) if has_beta else T(y + addend)
        if has_residual:
            y = T(y + (T(other) if residual_given else T(load_residual(e[7], Offset(Offset(m) * e[8] + Offset(n) * e[9])))))
        if by_row:
            y = T(y + T(load_bias(e[2], Offset(Offset(m) * e[3]))))
        if by_column:
            y = T(y + T(load_bias(e[2], Offset(Offset(n) * e[3]))))
        return activate(y)

    @device_function
    def transform(acc, m, n, e):
        return combine(acc, m, n, e, T(0))

    if result == "compute":
        return transform
    if result == "packed":
        if element(spec.output).per_word != 2:
            raise ValueError(f"make_epilogue: packed results are for 16-bit outputs, not {spec.output}")
        pack = floats_to_half2 if spec.output == "float16" else floats_to_bfloat162
        if given is not None:
            addend = spec.c if given == "c" else spec.residual
            if addend not in ("float16", "bfloat16"):
                raise ValueError(f"make_epilogue: {given} of type {addend} cannot be given; expected float16 or bfloat16")
            unpack = element(addend).unpack

            @device_function
            def packed_given(acc0, acc1, m, n, e, word):
                low, high = unpack(word)
                return pack(combine(acc0, m, n, e, low), combine(acc1, m, n + 1, e, high))
            return packed_given

        @device_function
        def packed(acc0, acc1, m, n, e):
            return pack(transform(acc0, m, n, e), transform(acc1, m, n + 1, e))
        return packed
    if result != "storage":
        raise ValueError(f"make_epilogue: result {result!r}, expected 'storage', 'compute' or 'packed'")
    narrow = (i32 if spec.integer else float_to_int32) if spec.output == "int32" else element(spec.output).narrow

    @device_function
    def epilogue(acc, m, n, e):
        return narrow(transform(acc, m, n, e))
    return epilogue


def _same(value):
    return value


def _plain_load(p, i):
    return p[i]


def _loader(dtype, integer):
    """Load of an addend; integers stay integers, and an int32 goes to the compute type by one cast."""
    return device_function(_plain_load) if integer or dtype == "int32" else element(dtype).load
