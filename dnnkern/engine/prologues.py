"""Prologues: programs of pointwise functions that make an operand of a product as it is loaded (see `device.program`).

A problem with `prologue_a` or `prologue_b` has in "a" or "b" what lies in memory, value 0 of the program, whose rows and columns are those
of the operand: m and k of a, k and n of b. Its result is rounded once, to `Prologue.dtype`, which the products are of. Past the edges of
an operand products take zeros, not the program of zeros.

The program's operands are the operands "a0" and on of the operation, or "b0" and on; a number that is given at each launch is a scalar of
its name.
"""
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..host.products import INPUTS
from .programs import check_access, check_functions, members_argument

if TYPE_CHECKING:
    from ..device.program import Program

SOURCES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool")
"""What an operand with a prologue may be in memory."""


@dataclass(frozen=True)
class Prologue:
    """What an operand is made of.

    Attributes
    ----------
    program : Program
        Of one accumulator, the element in memory, an int32 where that is an integer; nothing is stored.
    dtype : str
        What the result is rounded to.
    extras : tuple of Tensor
        The program's operands, in its order, broadcasting to the operand.
    """
    program: "Program"
    dtype: str
    extras: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "extras", tuple(self.extras))

    @classmethod
    def of_record(cls, record):
        """The prologue that `dataclasses.asdict` made into plain data."""
        from ..device.program import Program
        from ..host.records import tensor_of_record
        return cls(Program.of_record(record["program"]), record["dtype"], tuple(map(tensor_of_record, record["extras"])))

    def names(self, of):
        """The name of each of the program's operands; `of` is "a" or "b"."""
        return tuple(f"{of}{k}" for k in range(len(self.program.operands)))

    def check(self, op, of, t, steps):
        """Raise unless it makes something of the tensor `t`, operand `of` of `op`; `steps` are those of the extras."""
        name, p = f"prologue_{of}", self.program
        check_functions(op, name, p, 1)
        if t.dtype not in SOURCES:
            raise TypeError(f"{op}: {of} is {t.dtype}; expected one of {', '.join(SOURCES)} beside a prologue")
        if self.dtype not in INPUTS or self.dtype == "float64":
            raise TypeError(f"{op}: {name} makes {self.dtype}; expected one of {', '.join(d for d in INPUTS if d != 'float64')}")
        if len(self.extras) != len(p.operands):
            raise ValueError(f"{op}: {name}: {len(self.extras)} extras; the program has {len(p.operands)} operands")
        for extra, (dtype, by), tensor, moved in zip(self.names(of), p.operands, self.extras, steps):
            if tensor.dtype != dtype:
                raise TypeError(f"{op}: {extra} is {tensor.dtype}; the program has {dtype}")
            if tensor.ndim > t.ndim or any(n not in (1, m) for n, m in zip(tensor.shape[::-1], t.shape[::-1])):
                raise ValueError(f"{op}: {extra} has shape {tensor.shape}, which does not broadcast to {of}'s {t.shape}")
            check_access(op, extra, by, moved)


class Made(NamedTuple):
    """How a loader makes an operand of what is in memory: `program`, whose rows are the loader's rows and whose columns are k; the dtype in
    memory, the dtype of its result, and whether offsets need 64 bits."""
    program: object
    source: str
    dtype: str
    wide: bool


class Making(NamedTuple):
    """A `Made`, and what its kernel parameter is of: the prologue's operands, their names and their `Steps` in the loader's rows and k."""
    made: Made
    names: tuple
    steps: tuple
    extras: tuple

    def transposed(self):
        """The same where rows are the columns."""
        made = self.made._replace(program=self.made.program.transposed())
        return self._replace(made=made, steps=tuple(s.transposed() for s in self.steps))

    def argument(self, dims):
        """The kernel parameter with the program's operands, moved along `dims` dimensions of a batch."""
        return members_argument(self.made.program, self.names, self.steps, self.made.wide, dims)


def making_by(problem, of, steps):
    """The `Making` of operand `of`, whose prologue's operands have these `Steps` in its rows and columns."""
    prologue = getattr(problem, f"prologue_{of}")
    return Making(Made(prologue.program, getattr(problem, of).dtype, prologue.dtype, problem.is_wide), prologue.names(of), tuple(steps),
                  prologue.extras)


def making_of(problem, of):
    """The `Making` of operand `of` of a matrix product, None where it is loaded as it is."""
    prologue = getattr(problem, f"prologue_{of}")
    if prologue is None:
        return None
    making = making_by(problem, of, [s._replace(batch=batch) for s, batch in zip(*problem.prologue_steps(of))])
    return making if of == "a" else making.transposed()  # loaders have k last
