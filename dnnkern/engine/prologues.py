"""Prologues: programs of pointwise functions that make an operand of a product as it is loaded (see `device.program`).

A problem with `prologue_a` or `prologue_b` has in "a" or "b" what lies in memory, value 0 of the program, whose rows and columns are those
of the operand: m and k of a, k and n of b. Its result is rounded once, to `Prologue.dtype`, which the products are of. Past the edges of
an operand products take zeros, not the program of zeros.

The program's operands are the operands "a0" and on of the operation, or "b0" and on; a number that is given at each launch is a scalar of
its name.
"""
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..device.program_operands import loaded_type
from ..host.products import INPUTS
from ..host.tensor import Tensor
from .programs import IN_MEMORY, Steps, WithProgram, broadcast_strides, check_access, members_argument

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
        from ..host.words import tensor_of_record
        return cls(Program.of_record(record["program"]), record["dtype"], tuple(map(tensor_of_record, record["extras"])))

    def names(self, of):
        """The name of each of the program's operands; `of` is "a" or "b"."""
        return tuple(f"{of}{k}" for k in range(len(self.program.operands)))

    def check(self, op, of, t, steps):
        """Raise unless it makes something of the tensor `t`, operand `of` of `op`; `steps` are those of the extras."""
        from ..device.program import Program
        name, p = f"prologue_{of}", self.program
        if not isinstance(p, Program):
            raise TypeError(f"{op}: {name}: got {type(p).__name__}; expected a Program")
        if p.accumulators != 1 or p.stores:
            raise ValueError(f"{op}: {name}: a program of {p.accumulators} accumulators and {len(p.stores)} stores; expected 1 and none")
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
    """A `Made`, and what its kernel parameter is of: the prologue's operand names and their `Steps` in the loader's rows and k."""
    made: Made
    names: tuple
    steps: tuple

    def argument(self, dims):
        """The kernel parameter with the program's operands, moved along `dims` dimensions of a batch."""
        return members_argument(self.made.program, self.names, self.steps, self.made.wide, dims)


def making_of(problem, of):
    """The `Making` of operand `of`, None where it is loaded as it is."""
    prologue = getattr(problem, f"prologue_{of}")
    if prologue is None:
        return None
    program, steps = prologue.program, tuple(s._replace(batch=batch) for s, batch in zip(*problem.prologue_steps(of)))
    if of == "b":  # loaders have k last
        program, steps = program.transposed(), tuple(s.transposed() for s in steps)
    return Making(Made(program, getattr(problem, of).dtype, prologue.dtype, problem.is_wide), prologue.names(of), steps)


class WithPrologues(WithProgram):
    """What a problem with the fields `prologue_a` and `prologue_b` as well is to its operation; a mixin."""

    @functools.cached_property
    def prologues(self):
        """{"a" or "b": Prologue} of the operands that have one."""
        return {of: p for of in ("a", "b") if (p := getattr(self, f"prologue_{of}")) is not None}

    @functools.cached_property
    def dtype_a(self):
        """What products take of a."""
        return self.a.dtype if self.prologue_a is None else self.prologue_a.dtype

    @functools.cached_property
    def dtype_b(self):
        """What products take of b."""
        return self.b.dtype if self.prologue_b is None else self.prologue_b.dtype

    def _made(self, accesses):
        """{name: (dtype, tensor)} of the prologues' operands that are read by these accesses."""
        return {name: (dtype, t) for of, p in self.prologues.items()
                for name, (dtype, by), t in zip(p.names(of), p.program.operands, p.extras) if by in accesses}

    @functools.cached_property
    def extra_names(self):
        """As `WithProgram`'s, the prologues' after the program's."""
        operands, outputs, scalars = WithProgram.extra_names.func(self) or ((), (), ())
        return (*operands, *self._made(IN_MEMORY)), outputs, (*scalars, *self._made(("value",)))

    @functools.cached_property
    def scalar_types(self):
        """{scalar: type} of the program's and the prologues'."""
        return {**WithProgram.scalar_types.func(self), **{name: loaded_type(dtype) for name, (dtype, _) in self._made(("value",)).items()}}

    @functools.cached_property
    def extra_tensors(self):
        """{name: tensor} of all their operands that are in memory."""
        return {**WithProgram.extra_tensors.func(self), **{name: t for name, (_, t) in self._made(IN_MEMORY).items()}}

    def of_tensors(self, tensors):
        """The same problem with other tensors, {name: tensor}: those of a call's arrays."""
        made = {f"prologue_{of}": replace(p, extras=tuple(tensors.get(name, t) for name, t in zip(p.names(of), p.extras)))
                for of, p in self.prologues.items()}
        return super().of_tensors(tensors, **made)

    def operand(self, of) -> Tensor:
        """Operand "a" or "b" as products take it: with its own address and strides, and the prologue's dtype."""
        t = getattr(self, of)
        return t if of not in self.prologues else replace(t, dtype=self.prologues[of].dtype)

    def check_prologues(self, op):
        """Raise unless the prologues are some."""
        for of, p in self.prologues.items():
            if not isinstance(p, Prologue):
                raise TypeError(f"{op}: prologue_{of}: got {type(p).__name__}; expected a Prologue")
            t = getattr(self, of)
            if getattr(self, f"scale_{of}") is not None:
                raise ValueError(f"{op}: scale_{of} beside prologue_{of}; the program has to scale")
            strides = [self._along(of, broadcast_strides(e, t.shape)) if e.ndim <= t.ndim else ((0, 0), ()) for e in p.extras]
            p.check(op, of, t, [Steps(*matrix, batch) for matrix, batch in strides])

    def _along(self, of, strides):
        """((along the operand's rows, columns), along its batch dimensions) of strides along its dimensions."""
        t, transposed = getattr(self, of), getattr(self, f"transpose_{of}")
        if t.ndim == 1:
            return ((0, strides[0]) if of == "a" else (strides[0], 0)), ()
        matrix = strides[-2:][::-1] if transposed else strides[-2:]
        return tuple(matrix), tuple(strides[:-2])

    @functools.cached_property
    def _prologue_strides(self):
        """{"a" or "b": [((rows, columns), batch dimensions of y)]} of their operands."""
        rank = len(self.batch_shape)

        def along(of, t):
            matrix, batch = self._along(of, broadcast_strides(t, getattr(self, of).shape))
            return matrix, (0,) * (rank - len(batch)) + batch
        return {of: [along(of, t) for t in p.extras] for of, p in self.prologues.items()}

    @functools.cached_property
    def prologue_batches(self):
        """Strides of all prologues' operands along each batch dimension of y, a's first."""
        return tuple(batch for of in self._prologue_strides for _, batch in self._prologue_strides[of])

    def prologue_steps(self, of):
        """(`Steps` of each of its prologue's operands, their strides along the dimensions of `batch`)."""
        before = len(self.extras) + (len(self.prologue_a.extras) if of == "b" and self.prologue_a is not None else 0)
        steps = [Steps(*matrix) for matrix, _ in self._prologue_strides[of]]
        return steps, [tuple(d.extras[before + k] for d in self.batch) for k in range(len(steps))]
