"""Programs in words, for the command line: ``8192x4096 bf16 mul@4096 add@8192x4096 gelu``, a chain from one array on; with reductions
``8192x4096 bf16 sub@row-max exp div@row-add`` is softmax."""
import argparse
import contextlib

from ..device.program import Program, Step
from ..engine.program_words import chain, step_word
from ..host.words import new_words
from ..reduce import MODES
from ..sketch import problem
from ._staged import Reduction, StagedProgram

words, FAMILY, SMALL, parse_problem = new_words()
ROW = "@row-"


def _row_step_word(text):
    """(function, its second operand) of a word; the operand "max" of ``sub@row-max`` is a reduction of the value."""
    mode, found, reduction = text.partition(ROW)
    if not found:
        return step_word(text)
    with contextlib.suppress(argparse.ArgumentTypeError):
        if reduction in MODES:
            return step_word(f"{mode}@0.5")[0], reduction
    raise argparse.ArgumentTypeError(f"{text!r}: expected a function of two values, and one of {', '.join(MODES)}")


def _arrays(op, shape, dtype, steps):
    if not steps and op == "fused_pointwise":
        raise ValueError(f"{op}: no steps; expected functions: mul@4096 relu")
    return [(shape, dtype), *((operand, dtype) for _, operand in steps if isinstance(operand, tuple))]


@words("fused_pointwise", small=("1001 f32 mul@1001 add@0.5 gelu", "7x33 bf16 mul@33 add@7x1 relu --keep",
                                 "4x6x35 f16 add@6x1 swish --out f32", "65 f64 exp", "9x40 i32 add@40"))
def _pointwise(op, shape, dtype, *steps: step_word, out=None, keep=False):
    inputs, compute = _arrays(op, shape, dtype, steps), {"float64": "float64", "int32": "int32"}.get(dtype, "float32")
    loads = [(dtype, "matrix"), *((dtype, o if isinstance(o, float) else "matrix") for _, o in steps if o is not None)]
    made, last = chain(steps, 1, loads[1:], compute)
    stores = tuple((value, out or dtype, "matrix") for value in (last, *made[-1].inputs[:1] * keep))
    return problem(op, program=Program(loads, made, stores, accumulators=0), inputs=inputs)


@words("fused_reduction", small=(
    "5x96 f32 sub@row-max exp div@row-add", "7x33 bf16 mul@33 add@7x1 relu --rows add,amax",
    "3x4x40 f16 sub@row-avg div@row-norm2 mul@40 --out f32", "4x6x9 f32 exp --axes 0,2 --rows add --only-rows", "5x70 f64 abs --rows max",
    "6x50x24 f16 mul@24 relu --axes 0,1 --rows add,sum_square"))
def _reduction(op, shape, dtype, *steps: _row_step_word, axes=(-1,), rows="", only_rows=False, out=None):
    compute, inputs = "float64" if dtype == "float64" else "float32", _arrays(op, shape, dtype, steps)
    loads = [(dtype, "matrix")] * len(inputs) + [(compute, operand) for _, operand in steps if isinstance(operand, float)]
    made, last, others = [], 0, {tuple: iter(range(1, len(inputs))), float: iter(range(len(inputs), len(loads)))}
    for function, operand in steps:
        if isinstance(operand, str):
            made.append(Reduction(operand, last, None, compute))
        other = () if operand is None else (next(others[type(operand)]) if type(operand) in others else len(loads) + len(made) - 1,)
        made.append(Step(function, (last, *other), None, compute))
        last = len(loads) + len(made) - 1
    stores = [] if only_rows else [(last, out or dtype, "matrix")]
    for mode in filter(None, rows.split(",")):
        made.append(Reduction(mode, last, None, compute))
        stores.append((len(loads) + len(made) - 1, compute, "row"))
    return problem(op, program=StagedProgram(loads, made, stores), inputs=inputs, axes=axes)
