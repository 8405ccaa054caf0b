"""The operands of a program in a kernel: the members of their tuple. What has no program needs no more of `program` than this."""
import functools
from typing import NamedTuple

from . import device_function, i32
from ._parameters import structure
from .convert import INTEGERS

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32", "bool")
"""What a program loads, stores and rounds to."""
MEMBERS = {"scalar": ("pointer",), "value": ("number",), "row": ("pointer", "stride"), "column": ("pointer", "stride"),
           "matrix": ("pointer", "stride", "stride"), "bits": ("pointer",) + ("stride",) * 3, "index": ("stride",) * 3}
"""Access -> the members of its operand."""


class Position(NamedTuple):
    """Row i and column j, for which operands are read; for integers that go up with them once more a row and a column, of a tile's first
    element, and how far it is from there: constants where a tile is in registers."""
    i: i32
    j: i32
    row: i32
    column: i32
    rows: i32
    columns: i32


def _known(what, dtype):
    """Raise unless a dtype is one that programs have."""
    if dtype not in DTYPES:
        raise TypeError(f"program: {what} is {dtype!r}; expected one of {', '.join(DTYPES)}")


def loads_of_record(record):
    """Loads of plain data, in which infinities are text."""
    return [(dtype, float(access) if access in ("inf", "-inf", "nan") else access) for dtype, access in record]


def loaded_type(dtype) -> str:
    """The type of a value that is loaded, or rounded to a dtype."""
    return "int32" if dtype in INTEGERS else "float64" if dtype == "float64" else "float32"


def has_strides(access) -> bool:
    """Whether operands of this access move along a batch."""
    return "stride" in MEMBERS[access]


def handed_over(program, given):
    """Of what is `given` to an epilogue, what it does not load: all but side outputs."""
    return tuple(name for name in given if program is None or isinstance(name, str) or name < program.inputs)


def _bounds(program):
    """Members before those of the operands."""
    return 2 if program.stores else 0


@functools.cache
def operands_class(types):
    """The NamedTuple class of such members: a kernel parameter's type."""
    return structure("Operands", types)


@functools.cache
def make_position(transposed):
    """Device function ``position_of(line, at, step, last_row, last_column)``: the `Position` of an element in a thread's line of a
    fragment, `step` after its first one `at`. Beyond the last row and column it is there, but for the integers of columns in a tile that is
    not transposed: such an element is masked, whatever it is."""
    @device_function
    def position_of(line, at, step, last_row, last_column):
        row = min(line, last_row)
        return Position(row, min(at + step, last_column), row, at, i32(0), i32(step))

    @device_function
    def transposed_position_of(line, at, step, last_row, last_column):
        column, steps = min(line, last_column), min(i32(step), last_row - at)
        return Position(at + steps, column, at, column, steps, i32(0))
    return transposed_position_of if transposed else position_of
