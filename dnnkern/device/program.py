"""A DAG of pointwise functions as data, and the device function that computes it in any kernel's registers.

A `Program` numbers its values: first what the kernel computed (its accumulator, or several), then the loads, then the steps. So
bias and GELU after a product, with the sum before GELU kept in bfloat16 beside it, are::

    add, gelu = Function.of("add"), Function.of("gelu")
    program = Program(loads=(("bfloat16", "column"),),                                    # value 1; value 0 is the accumulator
                      steps=(Step(add, (0, 1), round_to="bfloat16"), Step(gelu, (2,))),   # values 2 and 3
                      stores=((2, "bfloat16", "matrix"),))                                # side outputs; the result is the last value

A load's *access* says how the operand is addressed from the (m, n) that the kernel computes, and which members it has in the tuple of all
operands, in the order of the loads, then of the stores:

========  ==================================================  ===========================================================
scalar    the element at the pointer                          pointer
value     a number that is given at each launch               number
row       pointer[m * stride]                                 pointer, stride
column    pointer[n * stride]                                 pointer, stride
matrix    pointer[m * row_stride + n * column_stride]         pointer, row_stride, column_stride
bits      that bit of the memory at the pointer, bool         pointer, row_stride, column_stride, first
index     m * row_stride + n * column_stride + first, int32   row_stride, column_stride, first
a number  that number                                         none
========  ==================================================  ===========================================================

An array of bits has the lowest bit of a byte first: element number k, ``m * row_stride + n * column_stride + first``, is bit k % 8 of byte
k / 8. Strides count elements, and are int64 where offsets are `wide`. Integers are loaded as int32, float64 as such, all else as float32; a
step takes its inputs to its own compute type, and a condition is 1 or 0 in that. ``round_to`` rounds a step's result to a dtype: the value
goes on as what a load of it would be. Conversions to integers round to nearest and saturate.

Reductions are of a value over all ``rows`` (a result for each column), over all ``columns``, or over ``all`` of the matrix, after
`Program.stores` and in no kernel's tuple: they are added up by tiles, see `reduce._tiles`. A kernel that does that computes each element
once, or knows which are another's.

A step may be a `Reduction` of a value over each row, whose result later steps read. Kernels that run such a program have whole rows in a
tile, see `engine.row_levels`; there is one accumulator, and `Program.reductions` are none.

Stores are of side outputs, ``matrix`` each, or by ``row`` of what is one number for a row after a `Reduction`, or ``bits`` where a kernel
has all elements of a byte in a thread and makes the stores itself (`kept` of `make_program`). A program that has some is given the numbers
of rows and of columns as the first members of the tuple, and any m and n: tiles compute elements beyond their matrix, which are not stored,
and read what the last row or column does. An element may be computed twice, alike: a program stores, and never accumulates.
"""
import functools
import itertools
import numbers
from dataclasses import asdict, dataclass

from . import device_function, i32
from .activation import Activation
from .convert import INTEGERS, element, short_of
from .numeric import double_to_int32, float_to_int32
from .pointwise import TYPES, Function, make_function
from .program_operands import MEMBERS, _bounds, _known, loaded_type, loads_of_record
from .program_reduction import Reduction

TRANSPOSED = {"row": "column", "column": "row", "rows": "columns", "columns": "rows"}
OVER = ("rows", "columns", "all")
REDUCTIONS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros", "sum_square")
"""Modes, as `reduce` has them."""
REDUCED = ("float64", "float32", "float16", "bfloat16")
"""Types of their results."""


@dataclass(frozen=True)
class Step:
    """One function of earlier values: their numbers, the dtype that its result is rounded to, and the type that it computes in."""
    function: Function
    inputs: tuple
    round_to: str | None = None
    compute: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "inputs", tuple(self.inputs))
        f = self.function
        if f.results != 1 or f.is_scaled:
            raise ValueError(f"program: {f.op} {f.mode} is no step; expected a function with one result and no run-time numbers")
        if len(self.inputs) != f.inputs:
            raise ValueError(f"program: {f.mode} of {len(self.inputs)} values; expected {f.inputs}")
        refused = f.refusal(self.compute)
        if refused:
            raise TypeError(f"program: {refused}")
        if self.round_to is not None:
            _known("round_to", self.round_to)

    def __str__(self):
        return self.function.mode + ("_backward" if self.function.op == "activation_bwd" else "")

    @classmethod
    def of_record(cls, record):
        """The step that `dataclasses.asdict` made into plain data, or the `Reduction`."""
        if "function" not in record:
            return Reduction(**record)
        f = record["function"]
        activation = f["activation"] and Activation(f["activation"]["mode"], **{n: float(v) for n, v in f["activation"]["parameters"]})
        return cls(**{**record, "function": Function(f["op"], f["mode"], activation)})


@dataclass(frozen=True)
class Program:
    """A DAG of pointwise functions, see the module; plain data, hashable.

    Attributes
    ----------
    loads : tuple of (dtype, access)
        `access` is one of `MEMBERS`, or a number: a constant.
    steps : tuple of Step or Reduction
    stores : tuple of (value, dtype, "matrix", "row" or "bits")
        Side outputs.
    result : int
        The number of the value that the kernel goes on with; the last by default.
    accumulators : int
        How many values the kernel gives.
    reductions : tuple of (value, mode, over, dtype)
        Of values that are floats: what each is reduced by, over what, and the type of the results.
    """
    loads: tuple = ()
    steps: tuple = ()
    stores: tuple = ()
    result: int | None = None
    accumulators: int = 1
    reductions: tuple = ()

    def __post_init__(self):
        put = functools.partial(object.__setattr__, self)
        for name in ("loads", "stores", "reductions"):
            put(name, tuple(map(tuple, getattr(self, name))))
        put("steps", tuple(self.steps))
        known = self.accumulators + len(self.loads)
        for dtype, access in self.loads:
            _known("a load", dtype)
            if access not in MEMBERS and (isinstance(access, (str, bool)) or not isinstance(access, numbers.Real)):
                raise ValueError(f"program: a load by {access!r}; expected one of {', '.join(MEMBERS)}, or a number")
            if access == "index" and dtype != "int32":
                raise TypeError(f"program: an index of {dtype}; expected int32")
            if access == "bits" and dtype != "bool":
                raise TypeError(f"program: a load of bits of {dtype}; expected bool")
        for step in self.steps:
            self._check(step.inputs, known, f"{step} takes")
            known += 1
        if self.result is None:
            put("result", known - 1)
        for value, dtype, access in self.stores:
            _known("a store", dtype)
            if access not in ("matrix", "bits") and not (access == "row" and self.row_steps):
                raise ValueError(f"program: a store by {access!r}; expected 'matrix' or 'bits', or 'row' after a Reduction")
            if access == "bits" and dtype != "bool":
                raise TypeError(f"program: a store of bits of {dtype}; expected bool")
            self._check((value,), known, "a store of")
        self._check((self.result,), known, "the result is")
        if self.row_steps and (self.accumulators, self.reductions) != (1, ()):
            raise ValueError(f"program: rows beside {self.accumulators} accumulators, {len(self.reductions)} reductions; expected 1, 0")
        for value, mode, over, dtype in self.reductions:
            self._check((value,), known, "a reduction of")
            for what, given, some in (("by", mode, REDUCTIONS), ("over", over, OVER), ("to", dtype, REDUCED)):
                if given not in some:
                    raise ValueError(f"program: a reduction {what} {given!r}; expected one of {', '.join(some)}")

    @staticmethod
    def _check(values, known, what):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < known:
                raise ValueError(f"program: {what} value {value!r}; expected 0 to {known - 1}")

    def __hash__(self):
        return self._hash

    @functools.cached_property
    def _hash(self):
        """Once for all calls with the program: its steps are many objects."""
        return hash(self._fields)

    @property
    def _fields(self):
        return self.loads, self.steps, self.stores, self.result, self.accumulators, self.reductions

    def __reduce__(self):  # hashes are a process's own
        return type(self), self._fields

    @classmethod
    def of_record(cls, record):
        """The program that `dataclasses.asdict` made into plain data, lists for tuples."""
        return cls(**{**record, "loads": loads_of_record(record["loads"]), "steps": [Step.of_record(s) for s in record["steps"]]})

    def record(self) -> dict:
        """As plain data."""
        return asdict(self)

    @functools.cached_property
    def operands(self) -> tuple:
        """((dtype, access), ...) of what is in memory or given at each launch: loads but for constants, then stores."""
        return tuple(load for load in self.loads if load[1] in MEMBERS) + tuple((dtype, access) for _, dtype, access in self.stores)

    @property
    def inputs(self) -> int:
        """How many of the operands are read."""
        return len(self.operands) - len(self.stores)

    @functools.cached_property
    def bits(self) -> tuple:
        """Which of "loads" and "stores" there are by bits."""
        return tuple(name for name in ("loads", "stores") if any(of[-1] == "bits" for of in getattr(self, name)))

    @functools.cached_property
    def row_steps(self) -> tuple:
        """Those of the steps that reduce each row."""
        return tuple(step for step in self.steps if isinstance(step, Reduction))

    def types(self, accumulator="float32") -> tuple:
        """The type of each value, the accumulators being of this one."""
        return ((accumulator,) * self.accumulators + tuple(loaded_type(dtype) for dtype, _ in self.loads)
                + tuple(loaded_type(s.round_to) if s.round_to else s.compute for s in self.steps))

    def reduced_type(self, accumulator="float32") -> str:
        """What its reductions are computed in."""
        types = self.types(accumulator)
        return "float64" if any(types[value] == "float64" for value, *_ in self.reductions) else "float32"

    def transposed(self):
        """The same for a kernel whose rows are the columns; of rows that are reduced there is none."""
        if self.row_steps:
            raise ValueError(f"program {self}: it reduces rows, which a transposed result does not have")
        loads = tuple((dtype, TRANSPOSED.get(access, access)) for dtype, access in self.loads)
        reductions = tuple((value, mode, TRANSPOSED.get(over, over), dtype) for value, mode, over, dtype in self.reductions)
        return Program(loads, self.steps, self.stores, self.result, self.accumulators, reductions)

    def __str__(self):
        return "+".join(map(str, self.steps)) or "copy"


# ---- the tuple of operands

def member_types(program, wide=False) -> tuple:
    """The types of the members of a program's tuple."""
    def types(dtype, access):
        name = {"pointer": element_of(dtype).pointer, "number": loaded_type(dtype), "stride": "int64" if wide else "int32"}
        return [name[member] for member in MEMBERS[access]]
    if program is None:
        return ()
    return ("int32",) * _bounds(program) + tuple(t for dtype, access in program.operands for t in types(dtype, access))


@functools.cache
def positions_of(program):
    """Where the members of each operand begin in the tuple."""
    positions, at = [], _bounds(program)
    for _, access in program.operands:
        positions.append(at)
        at += len(MEMBERS[access])
    return tuple(positions)


# ---- the device function

@functools.cache
def make_program(program, accumulator="float32", short=None, given=(), first=0, kept=()):
    """Device function ``run(acc, m, n, e)`` -> the result, of the type ``program.types(accumulator)[program.result]``.

    `acc` is the accumulator, or the tuple of several; `e` the tuple of the operands' members. `short`: what `convert.short_of` gives for
    the type that the result will be rounded to. `given`: what comes after the one or two accumulators, ``run((acc, value, ...), m, n, e)``;
    operands whose numbers are among it are not loaded. `first`: the member of `e` that the operands begin with. `kept`: numbers of stores
    that the kernel makes itself, in all elements that it computes: the result is a tuple then, with the values of these after it, truth
    values as 1 or 0, all else in the type that `element` computes in.
    """
    types, shift, positions = program.types(accumulator), not program.accumulators, (first + at for at in positions_of(program))
    values = _values_of(program, types, positions, short, given)
    RESULT, KEPT = program.result + shift, bool(kept)
    if not program.stores:
        @device_function
        def run(acc, m, n, e):
            return values(acc, m, n, e)[RESULT]
        return run
    store, picked = None, _with_picked(None, RESULT, device_function(_same))
    for k, (value, dtype, _) in enumerate(program.stores):
        at = next(positions)
        if k in kept:
            picked = _with_picked(picked, value + shift, _kept(types[value], dtype))
        else:
            store = _with_store(store, value + shift, make_narrow(types[value], dtype), at)
    if store is None:
        @device_function
        def run_and_keep(acc, m, n, e):
            return picked(values(acc, m, n, e))
        return run_and_keep

    @device_function
    def run_and_store(acc, m, n, e):
        v = values(acc, min(m, e[0] - 1), min(n, e[1] - 1), e)
        if m < e[0] and n < e[1]:
            store(v, m, n, e)
        return picked(v) if KEPT else v[RESULT]
    return run_and_store


def _kept(source, dtype):
    """Device function: a value of type `source` as what stores it elsewhere takes it."""
    return make_narrow(source, dtype) if dtype == "bool" else make_cast(source, element(dtype).compute)


def _values_of(program, types, positions, short, given):
    """Device function ``values(acc, m, n, e)``: all values of a program as a tuple, of these types; without accumulators a 0 stands first,
    since tuples are not empty. `positions`: an iterator of where the operands' members begin, of which those of the loads are taken."""
    operands, shift = itertools.count(), not program.accumulators
    values = _start(program.accumulators, bool(given))
    for dtype, access in program.loads:
        number = next(operands) if access in MEMBERS else None
        if number is None:
            values = _with_constant(values, dtype, access)
        elif number in given:
            next(positions)
            values = _with_given(values, max(program.accumulators, 1) + given.index(number))
        else:
            values = _with_load(values, dtype, access, next(positions))
    known, shorts = program.accumulators + len(program.loads), _shorts(program, [short])
    for k, step in enumerate(program.steps):
        function = make_function(step.function, step.compute, shorts[known + k])
        casts = tuple(make_cast(types[i], step.compute) for i in step.inputs)
        values = _with_step(values, function, tuple(i + shift for i in step.inputs), casts, _rounding(step.compute, step.round_to))
    return values


@functools.cache
def make_reduced(program, accumulator="float32"):
    """Device function ``reduced(acc, m, n, e)``: what a program's reductions are of, a tuple of values of the type
    ``program.reduced_type(accumulator)``."""
    types, shift, to = program.types(accumulator), not program.accumulators, program.reduced_type(accumulator)
    values, picked = _values_of(program, types, iter(positions_of(program)), None, ()), None
    for value, *_ in program.reductions:
        picked = _with_picked(picked, value + shift, make_cast(types[value], to))

    @device_function
    def reduced(acc, m, n, e):
        return picked(values(acc, m, n, e))
    return reduced


def _with_picked(before, VALUE, cast):
    """The values that were picked `before`, which may be None, and one more."""
    if before is None:
        return device_function(lambda v: (cast(v[VALUE]),))
    return device_function(lambda v: before(v) + (cast(v[VALUE]),))


def _shorts(program, result):
    """What `short_of` gives for all that each value is rounded to; None where a step goes on with the value as it is. `result`: a list of
    the same for what the kernel does with the result."""
    count = len(program.types())
    uses = [[] for _ in range(count)]
    for k, step in enumerate(program.steps, count - len(program.steps)):
        if step.round_to:
            uses[k] = [short_of(step.round_to)]
        for i in step.inputs:
            if i < count - len(program.steps) or not program.steps[i - count].round_to:
                uses[i].append(None)
    for value, dtype, _ in program.stores:
        uses[value].append(short_of(dtype))
    uses[program.result].extend(result)
    for value, *_ in program.reductions:
        uses[value].append(None)
    return [None if not of or None in of else "bfloat16" if "bfloat16" in of else "float16" for of in uses]


def element_of(dtype):
    """How programs load and store a dtype: integers stay such."""
    return element(dtype, "int32") if dtype in INTEGERS else element(dtype)


def _same(value):
    return value


@functools.cache
def make_cast(source, target):
    """Device function between value types."""
    if source == target:
        return device_function(_same)
    if target == "int32":
        return float_to_int32 if source == "float32" else double_to_int32
    T = TYPES[target]
    return device_function(lambda value: T(value))


@functools.cache
def make_narrow(source, dtype):
    """Device function: the word that is stored of a value of type `source`, rounded to a dtype."""
    if dtype == "bool":
        return device_function(_truth)
    if dtype in ("int8", "uint8") and source == "float32":
        return element(dtype).narrow
    to = element_of(dtype)
    cast, narrow = make_cast(source, to.compute), to.narrow
    return device_function(lambda value: narrow(cast(value)))


def _truth(value):
    return 1 if value != 0 else 0


@functools.cache
def _rounding(source, dtype):
    """Device function: a value of type `source` rounded to a dtype, as a load of it would be; the value itself without one."""
    if dtype is None:
        return device_function(_same)
    narrow, widen = make_narrow(source, dtype), element_of(dtype).widen
    return device_function(lambda value: widen(narrow(value)))


@functools.cache
def _start(accumulators, given=False):
    if given and accumulators == 2:
        def values(acc, m, n, e):
            return acc[0], acc[1]
    elif given:
        def values(acc, m, n, e):
            return (acc[0],)
    elif accumulators == 1:
        def values(acc, m, n, e):
            return (acc,)
    elif accumulators:
        def values(acc, m, n, e):
            return acc
    else:
        def values(acc, m, n, e):
            return (0,)
    return device_function(values)


def _with_given(before, J):
    """`before` with a value more, that is handed over."""
    @device_function
    def values(acc, m, n, e):
        return before(acc, m, n, e) + (acc[J],)
    return values


# NOTE: an index into a tuple is a variable of the closure by itself: e[AT + 1] is no constant to Numba, and fails to type.

def _with_load(before, dtype, access, AT):
    """`before` with a value more, that is loaded."""
    load, S, T, U = element_of("uint8" if access == "bits" else dtype).load, AT + 1, AT + 2, AT + 3
    if access == "scalar":
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (load(e[AT], 0),)
    elif access == "value":
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (e[AT],)
    elif access == "row":
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (load(e[AT], m * e[S]),)
    elif access == "column":
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (load(e[AT], n * e[S]),)
    elif access == "matrix":
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (load(e[AT], m * e[S] + n * e[T]),)
    elif access == "bits":
        def values(acc, m, n, e):
            at = m * e[S] + n * e[T] + e[U]
            return before(acc, m, n, e) + ((load(e[AT], at >> 3) >> i32(at & 7)) & i32(1),)
    else:
        def values(acc, m, n, e):
            return before(acc, m, n, e) + (i32(m * e[AT] + n * e[S] + e[T]),)
    return device_function(values)


def _with_constant(before, dtype, number):
    T = TYPES[loaded_type(dtype)]
    VALUE = (int if T is i32 else float)(number)

    @device_function
    def values(acc, m, n, e):
        return before(acc, m, n, e) + (T(VALUE),)
    return values


def _with_step(before, function, inputs, casts, rounded):
    """`before` with a value more, a function of others; what it has no use for is its first input again."""
    I, J, K = (*inputs, *inputs[:1] * 2)[:3]
    first, second, third = (*casts, *casts[:1] * 2)[:3]

    @device_function
    def values(acc, m, n, e):
        v = before(acc, m, n, e)
        return v + (rounded(function(first(v[I]), second(v[J]), third(v[K]))),)
    return values


def _with_store(before, VALUE, narrow, AT):
    """The stores `before`, which may be None, and one of a value more."""
    S, T = AT + 1, AT + 2

    @device_function
    def store(v, m, n, e):
        e[AT][m * e[S] + n * e[T]] = narrow(v[VALUE])
    if before is None:
        return store

    @device_function
    def stores(v, m, n, e):
        before(v, m, n, e)
        store(v, m, n, e)
    return stores
