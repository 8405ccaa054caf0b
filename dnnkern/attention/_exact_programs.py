"""Programs of scores in fewer instructions: a graph's mixed types compute in float64 what float32, or int32, has exactly.

    integers + - *                    in int32 where no result can leave it
    + - * /  rounded to float32       in float32 where it has the operands exactly: float64 has more than twice its bits, so that rounding
                                      twice is rounding once
    comparisons                       in float32 or int32 where it has the operands exactly; least and most in float32
    x / number                        times the reciprocal: exact of powers of two, otherwise with one rounding more
"""
import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..device.pointwise import COMPARISONS, Function
from ..device.program_affine import with_loads
from ..device.program_operands import MEMBERS, loaded_type

WHOLE, INT32 = 1 << 24, (-1 << 31, (1 << 31) - 1)
RANGES = {"bool": (0, 1), "int8": (-128, 127), "uint8": (0, 255), "int16": (-1 << 15, (1 << 15) - 1)}
FAR = 2.0 ** 100
"""Numbers beyond, or below its reciprocal, are divided by."""
SAME = "identity", "neg", "abs", "max", "min", *COMPARISONS
"""Their results are operands, or conditions: nothing is rounded."""
ROUNDED = "add", "sub", "mul", "div"
OF_RANGES = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


class _Value(NamedTuple):
    """A value's type, the range of an integer, the number that a constant is."""
    type: str
    range: tuple | None = None
    number: float | None = None

    @property
    def is_single(self):
        """Whether float32 has it exactly."""
        if self.range is not None:
            return max(map(abs, self.range)) <= WHOLE
        return self.type == "float32" or self.number is not None and float(np.float32(self.number)) == self.number


@functools.cache
def exact(program, ranges, accumulator):
    """The program of the same operands and results. `ranges`: (least, most) of each operand that is an index, None of the others."""
    if program is None:
        return None
    values, of_operands = [_Value(accumulator)] * program.accumulators, iter(ranges)
    for dtype, access in program.loads:
        kind = loaded_type(dtype)
        if access in MEMBERS:
            indices = next(of_operands)
            values.append(_Value(kind, indices or RANGES.get(dtype, INT32) if kind == "int32" else None))
        else:
            values.append(_Value(kind, (int(access),) * 2 if kind == "int32" else None, access))
    steps = []
    for step in program.steps:
        step = _exact_step(step, [values[i] for i in step.inputs])
        steps.append(step)
        kind = loaded_type(step.round_to) if step.round_to else step.compute
        values.append(_Value(kind, _range_of(step, [values[i] for i in step.inputs]) if kind == "int32" else None))
    return _multiplied(replace(program, steps=tuple(steps)), values)


def _range_of(step, inputs):
    """That of an integer result."""
    limits = RANGES.get(step.round_to, INT32)
    combine, of_inputs = OF_RANGES.get(step.function.mode), [v.range for v in inputs]
    if combine is None or None in of_inputs:
        return limits
    corners = [combine(a, b) for a in of_inputs[0] for b in of_inputs[1]]
    found = min(corners), max(corners)
    return found if limits[0] <= found[0] and found[1] <= limits[1] else limits


def _exact_step(step, inputs):
    """A step in the narrowest type with the same result."""
    if step.compute != "float64" or step.function.op not in ("unary", "binary"):
        return step
    mode = step.function.mode
    if mode in OF_RANGES and step.round_to == "int32" and all(v.type == "int32" for v in inputs):
        ends = [OF_RANGES[mode](a, b) for a in inputs[0].range for b in inputs[1].range]
        if INT32[0] <= min(ends) and max(ends) <= INT32[1]:
            return replace(step, compute="int32", round_to=None)
    if all(v.is_single for v in inputs) and (mode in SAME or mode in ROUNDED and step.round_to == "float32"):
        return replace(step, compute="float32", round_to=None if step.round_to == "float32" else step.round_to)
    if mode in COMPARISONS and all(v.type == "int32" for v in inputs):
        return replace(step, compute="int32")
    return step


def _multiplied(program, values):
    """The program with products by reciprocals of numbers in place of quotients by them."""
    reciprocals, steps = [], []
    for step in program.steps:
        number = values[step.inputs[1]].number if step.function.mode == "div" and step.compute != "int32" else None
        if number is not None and 1 / FAR <= abs(number) <= FAR:
            load = step.compute, 1 / number if step.compute == "float64" else float(1 / np.float32(number))
            reciprocals += [load] * (load not in reciprocals)
            step = replace(step, function=Function.of("mul"), inputs=(step.inputs[0], -1 - reciprocals.index(load)))
        steps.append(step)
    return with_loads(program, reciprocals, steps)
