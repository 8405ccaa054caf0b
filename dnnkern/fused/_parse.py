"""Programs in words, for the command line: ``8192x4096 bf16 mul@4096 add@8192x4096 gelu``, a chain from one array on; with reductions
``8192x4096 bf16 sub@row-max exp div@row-add`` is softmax."""
import argparse

from ..device.pointwise import Function
from ..device.program import Program, Step
from ..engine.program_words import chain, step_word
from ..host.words import Words, dtype_word, integers_word, shape_word
from ..reduce import MODES
from ..sketch import problem
from ._staged import Reduction, StagedProgram

words = Words()
ROW = "@row-"


@words("fused_pointwise", small=("1001 f32 mul@1001 add@0.5 gelu", "7x33 bf16 mul@33 add@7x1 relu --keep",
                                 "4x6x35 f16 add@6x1 swish --out f32", "65 f64 exp", "9x40 i32 add@40"))
def _pointwise(op, shape: shape_word, dtype, *steps: step_word, out: dtype_word = None, keep=False):
    """SHAPE, DTYPE: of the first array; STEPS: functions, one after the other: relu, add@256x1x1 (another array), mul@0.5 (a number).
    --out: the result's dtype; --keep: the value before the last function is a result too."""
    compute, operands = {"float64": "float64", "int32": "int32"}.get(dtype, "float32"), [o for _, o in steps if o is not None]
    loads = [(dtype, "matrix"), *((dtype, o if isinstance(o, float) else "matrix") for o in operands)]
    made, last = chain(steps, 1, loads[1:], compute)
    stores = tuple((value, out or dtype, "matrix") for value in (last, *made[-1].inputs[:1] * keep))
    return problem(op, program=Program(loads, made, stores, accumulators=0), inputs=_arrays(shape, dtype, steps))


def _arrays(shape, dtype, steps):
    return [(shape, dtype), *((operand, dtype) for _, operand in steps if isinstance(operand, tuple))]


def _row_step_word(text):
    """(function, its second operand) of a word; the operand "max" of ``sub@row-max`` is a reduction of the value."""
    mode, found, reduction = text.partition(ROW)
    if not found:
        return step_word(text)
    try:
        function = Function.of(mode)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if function.inputs != 2 or reduction not in MODES:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a function of two values, and one of {', '.join(MODES)}")
    return function, reduction


@words("fused_reduction", small=(
    "5x96 f32 sub@row-max exp div@row-add", "7x33 bf16 mul@33 add@7x1 relu --rows add,amax",
    "3x4x40 f16 sub@row-avg div@row-norm2 mul@40 --out f32", "4x6x9 f32 exp --axes 0,2 --rows add --only-rows", "5x70 f64 abs --rows max",
    "6x50x24 f16 mul@24 relu --axes 0,1 --rows add,sum_square"))
def _reduction(op, shape: shape_word, dtype, *steps: _row_step_word, axes: integers_word = (-1,), rows="", only_rows=False,
               out: dtype_word = None):
    """STEPS: as of fused_pointwise, or sub@row-max (the reduction of the value over its row). --axes: what is reduced; --rows: reductions of
    the last value that are results too: add,amax; --only-rows: the last value itself is none; --out: the result's dtype."""
    compute, arrays = "float64" if dtype == "float64" else "float32", _arrays(shape, dtype, steps)
    loads = [(dtype, "matrix")] * len(arrays) + [(compute, operand) for _, operand in steps if isinstance(operand, float)]
    made, last, array, number = [], 0, 1, len(arrays)
    for function, operand in steps:
        if isinstance(operand, str):
            made.append(Reduction(operand, last, None, compute))
            other = len(loads) + len(made) - 1
        elif operand is not None:
            other = array if isinstance(operand, tuple) else number
            array, number = array + isinstance(operand, tuple), number + isinstance(operand, float)
        made.append(Step(function, (last,) if operand is None else (last, other), None, compute))
        last = len(loads) + len(made) - 1
    stores = [] if only_rows else [(last, out or dtype, "matrix")]
    for mode in filter(None, rows.split(",")):
        made.append(Reduction(mode, last, None, compute))
        stores.append((len(loads) + len(made) - 1, compute, "row"))
    return problem(op, program=StagedProgram(loads, made, stores), inputs=arrays, axes=axes)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
