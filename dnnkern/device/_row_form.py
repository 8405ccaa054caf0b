"""The rows of arrays: the dimensions of a row, the dimensions that number the rows, and offsets of rows. Names of `device.rows`."""
import functools
import math
from collections import namedtuple
from dataclasses import dataclass

from . import device_function
from .index import divide_remainder, divisor


@dataclass(frozen=True)
class Dim:
    """A dimension: its size, and the element stride of each array along it."""
    size: int
    strides: tuple


@dataclass(frozen=True)
class RowForm:
    """Rows of several arrays: what is reduced (`row`), and what there is one row of each (`outer`), the last dimension fastest."""
    row: tuple
    outer: tuple

    @property
    def length(self):
        """Elements of a row."""
        return math.prod(d.size for d in self.row)

    @property
    def rows(self):
        return math.prod(d.size for d in self.outer)

    @property
    def steps(self):
        """Element stride of each array along the row, if that is one dimension; else None."""
        return self.row[0].strides if len(self.row) == 1 else None


def merged(dims):
    """Dimensions by descending strides of the last array, those of size 1 gone, neighbours that are one in all arrays merged."""
    found = []
    for d in sorted((d for d in dims if d.size != 1), key=lambda d: tuple(-abs(s) for s in reversed(d.strides))):
        if found and all(a == b * d.size for a, b in zip(found[-1].strides, d.strides)):
            found[-1] = Dim(found[-1].size * d.size, d.strides)
        else:
            found.append(d)
    return tuple(found)


def row_form(shape, axes, *strides) -> RowForm:
    """The rows along `axes` of arrays of one shape, with these element strides. Host function.

    >>> row_form((4, 6, 8), (2,), (48, 8, 1), (64, 10, 1))
    RowForm(row=(Dim(size=8, strides=(1, 1)),), outer=(Dim(size=4, strides=(48, 64)), Dim(size=6, strides=(8, 10))))
    >>> row_form((4, 6, 8), (1, 2), (48, 8, 1), (48, 8, 1)).length
    48
    """
    dims = [Dim(n, tuple(s[k] for s in strides)) for k, n in enumerate(shape)]
    row = merged(d for k, d in enumerate(dims) if k in axes)
    return RowForm(row or (Dim(1, (1,) * len(strides)),), merged(d for k, d in enumerate(dims) if k not in axes))


def row_vector(form, tensors):
    """(bytes of a vector, whether some row has unaligned edges): 16 where all arrays have the same phase, else an element. Host function;
    `tensors` have `alignment` and one `itemsize`.
    """
    itemsize = tensors[0].itemsize
    per = 16 // itemsize
    one = form.steps is not None and all(s == 1 for s in form.steps) and all(t.alignment >= 16 for t in tensors)
    phases = {tuple(s % per for s in d.strides) for d in form.outer}
    if not one or any(len(set(phase)) > 1 for phase in phases):
        return itemsize, False
    return 16, form.length % per != 0 or any(phase[0] for phase in phases)


def row_arguments(form, arrays=None):
    """Numbers of the kernel parameters `divisors` ("uint32x...") and `strides` ("int64x...") of the first `arrays` arrays."""
    dims = form.outer or (Dim(1, (0,) * len(form.row[0].strides)),)
    return (tuple(v for d in dims for v in divisor(d.size)), tuple(s for d in dims for s in d.strides[:arrays]))


@functools.cache
def make_row_offsets(dims, arrays):
    """Device function ``row_offsets(row, divisors, strides)``: the element offset (int64) of row number `row` in each of the arrays, as a
    tuple; `arrays` is their number, or a tuple of names, which the result then has as fields."""
    def make_split(d):
        SIZE, MULTIPLIER, SHIFT = 3 * d, 3 * d + 1, 3 * d + 2

        @device_function
        def split(row, divisors):
            return divide_remainder(row, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))
        return split
    return _row_offsets(dims, arrays, make_split)


def row_arguments64(dims, arrays):
    """Values of the kernel parameters `sizes` and `strides` ("int64x...") of `make_row_offsets64`; for no dimensions those of one of size
    1. Host function.
    """
    return tuple(d.size for d in dims) or (1,), tuple(s for d in dims for s in d.strides) or (0,) * arrays


@functools.cache
def make_row_offsets64(dims, arrays):
    """`make_row_offsets` for any number of rows, by division: ``row_offsets(row, sizes, strides)``; slow, and without limits."""
    def make_split(d):
        @device_function
        def split(row, sizes):
            quotient = row // sizes[d]
            return quotient, row - quotient * sizes[d]
        return split
    return _row_offsets(dims, arrays, make_split)


def _row_offsets(dims, arrays, make_split):
    """``row_offsets(row, divisors, strides)``, of which ``make_split(d)`` divides by the size of dimension d.

    The functions are nested, one a dimension and one an array, since a tuple that is indexed by a variable is in local memory.
    """
    @device_function
    def row_offsets(row, divisors, strides):
        return (row * strides[0],)
    count = arrays if isinstance(arrays, int) else len(arrays)
    for a in range(1, count):
        row_offsets = _with_array(row_offsets, a)
    for d in range(1, dims):
        row_offsets = _with_dimension(row_offsets, make_split(d), _sums(d, count))
    return row_offsets if isinstance(arrays, int) else _with_names(row_offsets, arrays)


def _with_names(numbered, names):
    Offsets = namedtuple("Offsets", names)

    @device_function
    def row_offsets(row, divisors, strides):
        return Offsets(*numbered(row, divisors, strides))
    return row_offsets


def _with_array(before, a):
    @device_function
    def row_offsets(row, divisors, strides):
        return before(row, divisors, strides) + (row * strides[a],)
    return row_offsets


def _with_dimension(outer, split, add):
    @device_function
    def row_offsets(row, divisors, strides):
        row, i = split(row, divisors)
        return add(outer(row, divisors, strides), i, strides)
    return row_offsets


def _sums(d, arrays):
    """Device function ``add(offsets, i, strides)``: with index i along dimension d added."""
    def make_add(before, a, k):
        @device_function
        def add(offsets, i, strides):
            return before(offsets, i, strides) + (offsets[a] + i * strides[k],)
        return add
    FIRST = d * arrays

    @device_function
    def add(offsets, i, strides):
        return (offsets[0] + i * strides[FIRST],)
    for a in range(1, arrays):
        add = make_add(add, a, FIRST + a)
    return add
