"""Programs in words, for the command line: the functions of a chain, one after the other, ``mul@0.5 add@4096 gelu``."""
import argparse
import re
from dataclasses import replace

from ..device.pointwise import Function
from ..device.program import Program, Step
from ..host.tensor import Tensor
from ..host.words import shape_word
from .programs import broadcast_strides

_STEP = re.compile(r"([a-z]\w*)(?:@(.+))?")


def step_word(text):
    """(function, its second operand) of add@4096: the shape of another array, or of mul@0.5: a number; None where it has none."""
    found = _STEP.fullmatch(text)
    try:
        function = Function.of(found[1] if found else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    operand = found[2]
    if operand is not None and re.fullmatch(r"-?\d*\.\d+", operand):
        operand = float(operand)
    elif operand is not None:
        operand = shape_word(operand)
    if function.inputs != 1 + (operand is not None) or function.mode == "gen_index":
        raise argparse.ArgumentTypeError(f"{text!r}: {function.mode} of {function.inputs} values; expected a function of the chain's "
                                         "value, or of it and an operand: add@64x256, mul@0.5")
    return function, operand


def chain(steps, first, loads, compute):
    """The `Program` steps and the number of the last value: `steps` as `step_word` gives them, `first` values before the loads."""
    found, last, used = [], 0, first - 1
    for function, operand in steps:
        used += operand is not None
        found.append(Step(function, (last,) if operand is None else (last, used), None, compute))
        last = first + len(loads) + len(found) - 1
    return found, last


STEPS = {"nargs": "+", "type": step_word, "metavar": "STEP",
         "help": "functions of the result, one after the other: add@4096 (an array that broadcasts to it), mul@0.5 (a number), relu"}
"""The option of a program that runs in an anchor's kernel."""


def with_program(problem, steps, rows, column, order=None):
    """The problem with the chain of these steps after its result.

    Parameters
    ----------
    rows, column : tuple of int, int or tuple of int
        Axes of the result that are the rows and the columns of its kernel.
    order : tuple of int, optional
        The axes of the words' sizes in the order of the result's.
    """
    if not steps:
        return problem
    if "program" not in problem.__dataclass_fields__:
        raise ValueError(f"{problem.op}: has no program after its result")
    result = next(iter(problem.outputs))
    compute = "float64" if result.dtype == "float64" else "float32"
    loads, extras = [], []
    for _, operand in steps:
        if isinstance(operand, float):
            loads.append((compute, operand))
        elif operand is not None:
            shape = (1,) * (len(result.shape) - len(operand)) + operand
            extras.append(Tensor.packed(tuple(shape[a] for a in order) if order else shape, result.dtype))
            if any(n not in (1, m) for n, m in zip(extras[-1].shape, result.shape)) or len(shape) > len(result.shape):
                raise ValueError(f"{problem.op}: {'x'.join(map(str, operand))} does not broadcast to the result's "
                                 f"{'x'.join(map(str, result.shape))}")
            loads.append((result.dtype, access_of(broadcast_strides(extras[-1], result.shape), rows, column)))
    return replace(problem, program=Program(loads, chain(steps, 1, loads, compute)[0]), extras=tuple(extras))


def with_image_program(problem, steps, ordered=True):
    """The same after a result with channels; the words' sizes are N, C, the extents for every layout, if `ordered`."""
    ndim = next(iter(problem.outputs)).ndim
    channel = 1 if problem.layout == "NCHW" else ndim - 1
    others = tuple(axis for axis in range(ndim) if axis != channel)
    return with_program(problem, steps, others, channel, (0, *range(2, ndim), 1) if ordered and channel > 1 else None)


def access_of(strides, rows, column):
    """How an operand with these strides, 0 where it broadcasts, is addressed from rows and columns; `column` is an axis, or several."""
    along = {axis % len(strides) for axis, stride in enumerate(strides) if stride}
    columns = {axis % len(strides) for axis in ((column,) if isinstance(column, int) else column)}
    m, n = along & {axis % len(strides) for axis in rows}, along & columns
    others = along - m - columns
    if m and n or others and not (m or n):
        return "matrix"
    return "row" if m else "column" if n else "scalar"
