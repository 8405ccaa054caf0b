"""The operands of a program in a kernel: the members of their tuple. What has no program needs no more of `program` than this."""
import functools
from typing import NamedTuple

from . import i32
from ._parameters import structure
from .convert import INTEGERS

MEMBERS = {"scalar": ("pointer",), "value": ("number",), "row": ("pointer", "stride"), "column": ("pointer", "stride"),
           "matrix": ("pointer", "stride", "stride"), "index": ("stride",) * 3}
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


def loaded_type(dtype) -> str:
    """The type of a value that is loaded, or rounded to a dtype."""
    return "int32" if dtype in INTEGERS else "float64" if dtype == "float64" else "float32"


def has_strides(access) -> bool:
    """Whether operands of this access move along a batch."""
    return "stride" in MEMBERS[access]


def _bounds(program):
    """Members before those of the operands."""
    return 2 if program.stores else 0


@functools.cache
def operands_class(types):
    """The NamedTuple class of such members: a kernel parameter's type."""
    return structure("Operands", types)
