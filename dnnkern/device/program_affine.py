"""Integers of programs that go up evenly with row and column: a tile has one, and adds a constant for each element.

The difference of two indices, times a number, is products and a conversion of each element otherwise. In float32 the sum is exact: indices
of which this is said are small.
"""
import functools
from dataclasses import replace
from typing import NamedTuple

from . import device_function, f32, i32
from .program import Program, make_cast, make_program, positions_of
from .program_operands import MEMBERS

SMALL, FACTORS = 1 << 20, 8
"""Of indices, and of a number, below the one, as many make a sum that float32 has exactly, in tiles beyond the end too."""


class Affine(NamedTuple):
    """``row * i + column * j + more`` and of each of `operands`, indices, its first, some times: as `type`."""
    type: str
    row: int
    column: int
    operands: tuple
    more: int


@functools.cache
def with_affine(program, indices):
    """(the program with such integers as further operands by value, at the end; their `Affine`). `indices`: (row, column), the strides of
    operands that are small indices, None of the others."""
    values, numbers = [None] * program.accumulators, iter(range(len(program.operands)))
    for dtype, access in program.loads:
        number, found = next(numbers) if access in MEMBERS else None, None
        if access == "index" and indices[number] is not None:
            found = (number,), (), 0
        elif number is None and dtype == "int32" and abs(access) < SMALL:
            found = (), (), int(access)
        values.append(found)
    found, loads, steps = [], [], []
    for step in program.steps:
        inputs = [values[i] for i in step.inputs]
        own = _sum_of(step, inputs)
        values.append(own)
        if own is None:
            taken = list(step.inputs)
            for at, value in enumerate(inputs):
                if value is not None and (value[0] or value[1]):
                    kind = "float32" if step.compute == "float32" else "int32"
                    affine = _affine(kind, value, indices)
                    if affine not in found:
                        found.append(affine)
                        loads.append((kind, "value"))
                    taken[at] = -1 - found.index(affine)
            step = replace(step, inputs=tuple(taken))
        steps.append(step)
    if values[program.result] is not None:  # nothing of the accumulator
        return program, ()
    return with_loads(program, tuple(loads), steps), tuple(found)


def _sum_of(step, inputs):
    """(operands that are added, those that are subtracted, a number) of a step that is their sum; None of others."""
    mode = step.function.mode
    if step.compute != "int32" or step.round_to or None in inputs or mode not in ("identity", "add", "sub"):
        return None
    (plus, minus, more), (others, less, number) = inputs[0], inputs[1] if mode != "identity" else ((), (), 0)
    if mode == "sub":
        others, less, number = less, others, -number
    plus, minus, more = plus + others, minus + less, more + number
    return (plus, minus, more) if len(plus + minus) <= FACTORS and abs(more) < SMALL else None


def _affine(kind, value, indices):
    plus, minus, more = value
    row, column = (sum(indices[k][axis] for k in plus) - sum(indices[k][axis] for k in minus) for axis in (0, 1))
    return Affine(kind, row, column, tuple((k, plus.count(k) - minus.count(k)) for k in sorted({*plus, *minus})), more)


@functools.cache
def make_affine(affines, positions):
    """Device function ``values(given, at, operands)``: `given`, a tuple, and the values of these. `positions` are of the operands' first
    members; `at` is a `program_operands.Position`."""
    values = device_function(lambda given, at, operands: given)
    for affine in affines:
        first = _make_first(affine, positions)
        values = _with_affine(values, first, affine.row, affine.column, affine.type == "float32")
    return values


def _make_first(affine, positions):
    """Device function ``first(operands)``: the sum of what does not vary along a head."""
    more = affine.more
    first = device_function(lambda operands: i32(more))
    for number, times in affine.operands:
        first = _with_first(first, positions[number] + 2, times)
    return first


def _with_first(before, AT, times):
    return device_function(lambda operands: before(operands) + i32(times) * i32(operands[AT]))


def _with_affine(before, first, row, column, is_float):
    """The values `before`, and one more."""
    @device_function
    def begin(at, operands):
        return i32(i32(row) * i32(at.row) + i32(column) * i32(at.column) + first(operands))

    @device_function
    def steps(at):
        found = i32(0)
        if row != 0:
            found = i32(found + i32(row) * i32(at.rows))
        if column != 0:
            found = i32(found + i32(column) * i32(at.columns))
        return found

    @device_function
    def with_float(given, at, operands):
        return before(given, at, operands) + (f32(begin(at, operands)) + f32(steps(at)),)

    @device_function
    def with_integer(given, at, operands):
        return before(given, at, operands) + (begin(at, operands) + steps(at),)
    return with_float if is_float else with_integer


def with_loads(program, loads, steps):
    """The program with more loads, and with other steps, whose inputs -1, -2 and so on are these."""
    known = program.accumulators + len(program.loads)

    def moved(value):
        return known - 1 - value if value < 0 else value + len(loads) * (value >= known)
    steps = tuple(replace(step, inputs=tuple(map(moved, step.inputs))) for step in steps)
    return Program((*program.loads, *loads), steps, (), moved(program.result), program.accumulators) if loads else program


@functools.cache
def make_at_position(program, compute, indices, first):
    """Device function ``run(accumulators, operands, at)``: the result of a program at a `Position`. Its operands' members begin with number
    `first`; `indices` are of `with_affine`."""
    program, affines = with_affine(program, indices)
    operands = len(program.operands)
    given = tuple(range(operands - len(affines), operands))
    ALONE = program.accumulators == 1 and not given
    values = make_affine(affines, tuple(first + at for at in positions_of(program)))
    run, cast = make_program(program, compute, given=given, first=first), make_cast(program.types(compute)[program.result], compute)

    @device_function
    def run_alone(accumulators, operands, at):
        return cast(run(accumulators[0], at.i, at.j, operands))

    @device_function
    def run_beside(accumulators, operands, at):
        return cast(run(values(accumulators, at, operands), at.i, at.j, operands))
    return run_alone if ALONE else run_beside
