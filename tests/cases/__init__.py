"""Problems as data: what every operation's cases are made of.

`tests/cases/<op>.py` binds `CASES` (small: they run in the simulator too), `LARGE` (GPU), optionally `BEYOND_INT32` (GPU, slow), lists of
objects with the interface of `Case`. Nothing here or there shares code with a kernel.
"""
import importlib
import math
import pathlib
from dataclasses import dataclass

import numpy as np

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
            "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "uint32": 4, "int64": 8, "bool": 1}
# Half the distance between 1 and the next number; the number of integer bits that are exact; the least positive number.
ROUNDOFF = {"float64": 2.0 ** -53, "float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8, "tf32": 2.0 ** -11,
            "float8_e4m3fn": 2.0 ** -4, "float8_e5m2": 2.0 ** -3}
EXACT = {"float64": 2 ** 53, "float32": 2 ** 24, "float16": 2 ** 11, "bfloat16": 2 ** 8, "float8_e4m3fn": 2 ** 4,
         "float8_e5m2": 2 ** 3, "int8": 127, "uint8": 255, "int16": 2 ** 15 - 1, "int32": 2 ** 31 - 1, "int64": 2 ** 53, "bool": 1}
TINY = {"float64": 2.0 ** -1074, "float32": 2.0 ** -126, "float16": 2.0 ** -24, "bfloat16": 2.0 ** -126,
        "float8_e4m3fn": 2.0 ** -9, "float8_e5m2": 2.0 ** -16}
# Integers and 8-bit floats: what is beyond saturates.
RANGE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-2 ** 15, 2 ** 15 - 1), "int32": (-2 ** 31, 2 ** 31 - 1), "bool": (0, 1)}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def numpy_dtype(name):
    """NumPy's dtype; bfloat16 and 8-bit floats are ml_dtypes'."""
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def poison(dtype):
    """The byte that fills what nobody has written: all ones is NaN in every float type; 0x7f repeated is no likely integer result."""
    return 0xFF if "float" in dtype else 0x7F


@dataclass(frozen=True)
class Place:
    """Where an array lies: its strides in elements, and how many elements behind a 16-byte boundary the first byte of its span is."""
    shape: tuple
    dtype: str
    strides: tuple
    misaligned: int = 0

    @property
    def itemsize(self):
        return ITEMSIZE[self.dtype]

    @property
    def first(self):
        """Elements of the span that precede element 0."""
        return -sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s < 0) if self.size else 0

    @property
    def span(self):
        """Elements from the lowest address to the highest."""
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.strides)) if self.size else 0

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def alignment(self):
        offset = (self.misaligned + self.first) * self.itemsize
        return min(16, offset & -offset) if offset % 16 else 16


def lay(shape, dtype, *, order=None, step=None, gap=0, flip=(), expand=(), misaligned=0):
    """A `Place`: `order` lists the axes from slowest to fastest, `step` spaces the elements of the fastest, `gap` elements separate its
    rows, axes in `flip` run backwards, axes in `expand` have stride 0."""
    order = tuple(range(len(shape))) if order is None else order
    strides, stride = [0] * len(shape), step or 1
    for position, axis in enumerate(reversed(order)):
        if axis in expand:
            continue
        strides[axis] = -stride if axis in flip else stride
        stride *= max(shape[axis], 1)
        if position == 0:
            stride += gap
    return Place(tuple(shape), dtype, tuple(strides), misaligned)


class Case:
    """What the contract asks of a case; subclasses are frozen dataclasses with an `id` and an `op`."""
    exact = True     # whether `values("exact")` gives a result without any rounding
    trivial = False  # whether zeros are the right answer
    gradient = None  # backward operations: callable(values) -> [(analytic, numeric, tolerance), ...], from the forward's reference

    def call_problem(self, arrays, out, numbers, tail):
        """A call of the case's own problem, which no public function makes."""
        from dnnkern.registry import operation_of
        problem = self.problem()
        operation = operation_of(self.op).of(problem)
        operands = tuple(map(arrays.get, operation.operands))
        return operation.call(operands, out, (problem,), numbers, tail.pop("workspace", None), tail.pop("stream", None), tail)

    def inputs(self):
        """{name: Place} of the operands; None for those that are left out."""
        raise NotImplementedError

    def outputs(self):
        """{name: Place} of the outputs."""
        raise NotImplementedError

    def in_place(self):
        """{output: input} where both are the same memory."""
        return {}

    def problem(self):
        """The library's problem of this call."""
        raise NotImplementedError

    def call(self, arrays, out, **tail):
        """The public function on arrays {name: array}."""
        raise NotImplementedError

    def values(self, mode):
        """{name: float64 array, every element representable in the operand's dtype}; mode "exact" or "float"."""
        raise NotImplementedError

    def reference(self, values, tensor_cores=False):
        """({output: float64 array before rounding to the output's type}, {output: bound of the absolute error of a correct result}).

        `tensor_cores`: the bound is for those, which add products of 8-bit floats with fewer bits than float32 has.
        """
        raise NotImplementedError

    @property
    def work(self):
        """Elementary steps, for the simulator's bound."""
        raise NotImplementedError


def rounded(values, dtype):
    """Values as the dtype holds them, as float64."""
    return np.asarray(values, np.float64).astype(numpy_dtype(dtype)).astype(np.float64)


def coherent(values, place):
    """Values with one value wherever elements share an address."""
    return np.broadcast_to(values[tuple(slice(None) if s else slice(0, 1) for s in place.strides)], values.shape)


def rounding_error(reference, dtype):
    """Bound of the error of rounding to the dtype."""
    if dtype in RANGE:
        return np.full_like(reference, 0.5)
    return ROUNDOFF[dtype] * np.abs(reference) + TINY[dtype]


def saturated(values, dtype):
    """Clipped to the range of an integer or 8-bit floating type; other float types as they are."""
    bounds = RANGE[dtype] if dtype in RANGE else (-LARGEST[dtype], LARGEST[dtype]) if dtype in LARGEST else None
    return values if bounds is None else np.clip(values, *bounds)


def modules():
    """{op: module} of all operations with cases."""
    names = sorted(p.stem for p in pathlib.Path(__file__).parent.glob("[a-z]*.py"))
    return {name: importlib.import_module(f"cases.{name}") for name in names}
