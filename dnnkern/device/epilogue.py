"""What a kernel does to an accumulator before it stores it: scale, add, activate, round once.

`make_epilogue` turns an `EpilogueSpec` into a device function that matmul, convolution and fused graphs capture in their kernels::

    epilogue = make_epilogue(EpilogueSpec(alpha=True, bias="column", bias_dtype="bfloat16", activation=Activation("relu"),
                                          accumulator="float32", output="bfloat16"))
    ...
    e = EpilogueParams(alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras)
    d[offset] = epilogue(acc, m, n, e)

computes ``activation(alpha*acc + beta*c + residual + bias)`` for row `m` and column `n` in float32 (float64 for a float64 accumulator),
then what a `Program` makes of that, and rounds it to the output type once. Parts the spec does not ask for leave no instruction, and their
parameters are never looked at.
"""
import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

from . import device_function, f32, f64, i32, i64
from .activation import Activation, activation_function
from .convert import element, short_of
from .fastmath import fma
from .numeric import float_to_int32, floats_to_bfloat162, floats_to_e4m3x2, floats_to_e5m2x2, floats_to_half2
from .program_operands import handed_over

if TYPE_CHECKING:
    from .program import Program


class EpilogueParams(NamedTuple):
    """What an epilogue reads, by name; parts that its spec does not ask for may be anything, or another class without them.

    Factors of type `EpilogueSpec.compute`, pointers, and strides in elements, int64 with `EpilogueSpec.wide`, else int32. `extras` are the
    operands of the program.
    """
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i32
    c: object
    c_row_stride: i32
    c_column_stride: i32
    extras: object


class ResidualParams(NamedTuple):
    """`EpilogueParams` with a residual."""
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i32
    c: object
    c_row_stride: i32
    c_column_stride: i32
    residual: object
    residual_row_stride: i32
    residual_column_stride: i32


class ProgramParams(NamedTuple):
    """`ResidualParams` with the operands of a program."""
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i32
    c: object
    c_row_stride: i32
    c_column_stride: i32
    residual: object
    residual_row_stride: i32
    residual_column_stride: i32
    extras: object


class ScaledParams(NamedTuple):
    """`EpilogueParams` with scales; their strides are for a scale for each row of a, or column of b."""
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i32
    c: object
    c_row_stride: i32
    c_column_stride: i32
    scale_a: object
    scale_b: object
    scale_a_stride: i32
    scale_b_stride: i32
    extras: object


class AllParams(NamedTuple):
    """`EpilogueParams` with a residual and scales."""
    alpha: f32
    beta: f32
    bias: object
    bias_stride: i32
    c: object
    c_row_stride: i32
    c_column_stride: i32
    residual: object
    residual_row_stride: i32
    residual_column_stride: i32
    scale_a: object
    scale_b: object
    scale_a_stride: i32
    scale_b_stride: i32
    extras: object


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
    program : Program or None
        What is computed of that value before it is rounded, with operands of its own, ``e.extras``.
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
    program: "Program | None" = None

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
        if self.is_dual and (self.alpha or self.bias or self.c or self.residual or self.scales or self.activation.mode != "identity"):
            raise ValueError("epilogue: a program of two accumulators, beside parts that are of one")
        for dtype in (self.output, self.c or self.output, self.residual or self.output, self.bias_dtype):
            element(dtype)

    @property
    def is_dual(self):
        """Whether the program is of two accumulators: ``epilogue((acc, other), m, n, e)``."""
        return self.program is not None and self.program.accumulators == 2

    @property
    def integer(self):
        """Whether the arithmetic stays in int32, up to the program."""
        output = "int32" if self.program else self.output
        others = {output, self.c or "int32", self.residual or "int32", self.bias_dtype if self.bias else "int32"}
        return self.accumulator == "int32" and others == {"int32"} and self.activation.mode == "identity" and not (
            self.alpha or self.beta or self.scales)

    @property
    def short(self):
        """See `convert.short_of`."""
        return short_of(self.output)

    @property
    def compute(self):
        """Type of the arithmetic."""
        return "int32" if self.integer else "float64" if "float64" in (self.accumulator, self.output) else "float32"

    @property
    def arguments(self):
        """((name, kernel parameter type), ...) of what it reads but for the program; parts not asked for may be 0 and null."""
        factor, offset = ("float64" if self.compute == "float64" else "float32"), ("int64" if self.wide else "int32")
        types = {"alpha": factor, "beta": factor, "bias": element(self.bias_dtype).pointer, "bias_stride": offset,
                 "c": element(self.c or self.output).pointer, "c_row_stride": offset, "c_column_stride": offset}
        if self.residual:
            types |= {"residual": element(self.residual).pointer, "residual_row_stride": offset, "residual_column_stride": offset}
        if self.scales:
            types |= {"scale_a": "float32*", "scale_b": "float32*"}
        if "row" in self.scales or "column" in self.scales:
            types |= {"scale_a_stride": offset, "scale_b_stride": offset}
        return tuple(types.items())


_PAIRS = {"float16": floats_to_half2, "bfloat16": floats_to_bfloat162, "float8_e4m3fn": floats_to_e4m3x2,
          "float8_e5m2": floats_to_e5m2x2}
"""Of results that leave two in a word."""


@functools.cache
def make_epilogue(spec, result="storage", given=(), boxed=None, aside=False):
    """Device function ``epilogue(acc, m, n, e)`` of `spec`; `e` are `EpilogueParams`, or those with more.

    Parameters
    ----------
    spec : EpilogueSpec
        Of one whose program has two accumulators, `acc` is a tuple of both.
    result : "storage", "compute", "packed" or "reduced"
        The word to store; or the value before rounding; or, for outputs of 16 bits and 8-bit floats, ``epilogue(acc0, acc1, m, n, e)``
        gives the word of columns n and n + 1; or the tuple of what the program's reductions are of, for m and n within the matrix, and
        nothing is stored.
    given : tuple of "c", "residual", "bias", and numbers
        With "packed": addends, and the program's operands of these numbers, that are not loaded but handed over,
        ``epilogue(acc0, acc1, m, n, e, low, high)``: tuples of their values for either column. Numbers of side outputs: those are stored
        two columns at a time. With "storage" addends and operands, ``epilogue(acc, m, n, e, values)``.
    boxed, aside
        With "packed": the number of a side output that the epilogue does not store; `aside`, that is the result, and nothing is stored.
    """
    T = {"float32": f32, "float64": f64, "int32": i32}[spec.compute]
    Offset = i64 if spec.wide else i32
    has_alpha, has_beta, has_c, has_residual = spec.alpha, spec.beta, spec.c is not None, spec.residual is not None
    scale_a, scale_b = spec.scales or (None, None)
    a_by_tensor, a_by_row, b_by_tensor, b_by_column = scale_a == "tensor", scale_a == "row", scale_b == "tensor", scale_b == "column"
    by_row, by_column = spec.bias == "row", spec.bias == "column"
    load_bias, load_c = _loader(spec.bias_dtype, spec.integer), _loader(spec.c or spec.output, spec.integer)
    load_residual = _loader(spec.residual or spec.output, spec.integer)
    short = None if spec.program else spec.short
    activate = device_function(_same) if spec.integer else activation_function(spec.activation, spec.compute, short)

    c_given, given_c = _picked(given, "c")
    residual_given, given_residual = _picked(given, "residual")
    bias_given, given_bias = _picked(given, "bias")

    def combine_parts(acc, m, n, e, others):
        y = T(acc)
        if a_by_tensor:
            y = y * T(e.scale_a[0])
        if a_by_row:
            y = y * T(e.scale_a[Offset(m * e.scale_a_stride)])
        if b_by_tensor:
            y = y * T(e.scale_b[0])
        if b_by_column:
            y = y * T(e.scale_b[Offset(n * e.scale_b_stride)])
        if has_alpha:
            y = y * T(e.alpha)
        if has_c:
            addend = T(given_c(others)) if c_given else T(load_c(e.c, Offset(m) * e.c_row_stride + Offset(n) * e.c_column_stride))
            y = fma(addend, T(e.beta), y) if has_beta else y + addend
        if has_residual:
            if residual_given:
                addend = T(given_residual(others))
            else:
                addend = T(load_residual(e.residual, Offset(m) * e.residual_row_stride + Offset(n) * e.residual_column_stride))
            y = y + addend
        if by_row:
            y = y + T(load_bias(e.bias, Offset(m * e.bias_stride)))
        if by_column and bias_given:
            y = y + T(given_bias(others))
        elif by_column:
            y = y + T(load_bias(e.bias, Offset(n * e.bias_stride)))
        return activate(y)
    combine = device_function(lambda acc, m, n, e, others: (T(acc[0]), T(acc[1]))) if spec.is_dual else device_function(combine_parts)
    if result == "reduced":
        return _with_reduced(spec, combine)
    loaded_combine = combine
    if spec.program:
        combine = _with_program(spec, combine, given)

    @device_function
    def transform(acc, m, n, e):
        return combine(acc, m, n, e, (T(0),))

    if result == "compute":
        return transform
    if result == "packed":
        if spec.output not in _PAIRS:
            raise ValueError(f"make_epilogue: packed results are for outputs of 16 bits and 8-bit floats, not {spec.output}")
        pack = _PAIRS[spec.output]
        if spec.program:
            from .program import make_cast
            pack = _with_casts(pack, make_cast(spec.program.types(spec.compute)[spec.program.result], "float32"))
            if spec.program.stores:
                return _packed_and_stored(spec, loaded_combine, given, pack, boxed, aside)
        if given:
            @device_function
            def packed_given(acc0, acc1, m, n, e, low, high):
                return pack(combine(acc0, m, n, e, low), combine(acc1, m, n + 1, e, high))
            return packed_given

        @device_function
        def packed(acc0, acc1, m, n, e):
            return pack(transform(acc0, m, n, e), transform(acc1, m, n + 1, e))
        return packed
    if result != "storage":
        raise ValueError(f"make_epilogue: result {result!r}, expected 'storage', 'compute', 'packed' or 'reduced'")
    if spec.program:
        from .program import make_narrow
        narrow = make_narrow(spec.program.types(spec.compute)[spec.program.result], spec.output)
    else:
        narrow = (i32 if spec.integer else float_to_int32) if spec.output == "int32" else element(spec.output).narrow
    if given:
        return device_function(lambda acc, m, n, e, values: narrow(combine(acc, m, n, e, values)))

    @device_function
    def epilogue(acc, m, n, e):
        return narrow(transform(acc, m, n, e))
    return epilogue


def _picked(given, name):
    """Whether a value is given, and the device function that picks it out of the tuple of those that are."""
    AT = given.index(name) if name in given else 0
    return name in given, device_function(lambda others: others[AT])


def _with_program(spec, combine, given=()):
    """`combine`, and the program of its value, some of whose operands may be `given`. Where it stores, m and n may lie beyond the matrix,
    see `program`."""
    from .program import make_program
    run, STORES, GIVEN = make_program(spec.program, spec.compute, spec.short, given), bool(spec.program.stores), bool(given)
    values = device_function(_same) if spec.is_dual else device_function(lambda value: (value,))

    @device_function
    def combine_and_run(acc, m, n, e, others):
        if STORES:
            value = combine(acc, min(m, e.extras[0] - 1), min(n, e.extras[1] - 1), e, others)
        else:
            value = combine(acc, m, n, e, others)
        if GIVEN:
            return run(values(value) + others, m, n, e.extras)
        return run(value, m, n, e.extras)
    return combine_and_run


def _packed_and_stored(spec, combine, given, pack, boxed, aside):
    """The "packed" epilogue of a program with side outputs."""
    from .program import make_cast
    from .program_pairs import make_pair_program
    run = make_pair_program(spec.program, spec.compute, spec.short, given, boxed, aside)
    if aside:
        value, dtype, _ = spec.program.stores[boxed - spec.program.inputs]
        pack = _with_casts(_PAIRS[dtype], make_cast(spec.program.types(spec.compute)[value], "float32"))
    values = device_function(_same) if spec.is_dual else device_function(lambda value: (value,))
    GIVEN, T = bool(handed_over(spec.program, given)), {"float32": f32, "float64": f64}[spec.compute]

    @device_function
    def packed_given(acc0, acc1, m, n, e, low, high):
        row, last = min(m, e.extras[0] - 1), e.extras[1] - 1
        v, w = combine(acc0, row, min(n, last), e, low), combine(acc1, row, min(n + 1, last), e, high)
        first, second = run(values(v) + low, values(w) + high, m, n, e.extras)
        return pack(first, second)
    if GIVEN:
        return packed_given

    @device_function
    def packed(acc0, acc1, m, n, e):
        row, last = min(m, e.extras[0] - 1), e.extras[1] - 1
        v, w = combine(acc0, row, min(n, last), e, (T(0),)), combine(acc1, row, min(n + 1, last), e, (T(0),))
        first, second = run(v, w, m, n, e.extras)
        return pack(first, second)
    return packed


def _with_reduced(spec, combine):
    """What the program reduces of `combine`'s value."""
    from .program import make_reduced
    run, T = make_reduced(spec.program, spec.compute), {"float32": f32, "float64": f64, "int32": i32}[spec.compute]
    return device_function(lambda acc, m, n, e: run(combine(acc, m, n, e, (T(0),)), m, n, e.extras))


def _with_casts(pack, cast):
    return device_function(lambda low, high: pack(cast(low), cast(high)))


def _same(value):
    return value


def _plain_load(p, i):
    return p[i]


def _loader(dtype, integer):
    """Load of an addend; integers stay integers, and an int32 goes to the compute type by one cast."""
    return device_function(_plain_load) if integer or dtype == "int32" else element(dtype).load
