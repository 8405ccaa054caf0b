"""Programs in words, for the command line: ``8192x4096 bf16 mul@4096 add@8192x4096 gelu``, a chain from one array on; with reductions
``8192x4096 bf16 sub@row-max exp div@row-add`` is softmax."""
import argparse
import functools

from ..device.pointwise import Function
from ..device.program import Program, Step
from ..engine.program_words import chain, shape_word, step_word
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..reduce import MODES
from ._problem import FusedProblem, make_fused
from ._reduction_problem import FusedReductionProblem, make_fused_reduction
from ._staged import Reduction, StagedProgram

ROW = "@row-"


def add_arguments(parser):
    """The words that describe a chain."""
    parser.add_argument("shape", type=shape_word, help="shape of the first array: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype of all arrays: float32, bf16, ...")
    parser.add_argument("steps", nargs="+", type=step_word, help="functions, one after the other: relu, add@256x1x1 (another array), "
                        "mul@0.5 (a number)")
    parser.add_argument("--out", type=dtype_word, help="dtype of the result; default: of the arrays")
    parser.add_argument("--keep", action="store_true", help="the value before the last function is a result too")


def make_words(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    dtype, out = arguments.dtype, arguments.out or arguments.dtype
    compute = {"float64": "float64", "int32": "int32"}.get(dtype, "float32")
    operands = [operand for _, operand in arguments.steps if operand is not None]
    loads = [(dtype, "matrix"), *((dtype, operand if isinstance(operand, float) else "matrix") for operand in operands)]
    steps, last = chain(arguments.steps, 1, loads[1:], compute)
    before = steps[-1].inputs[0]
    stores = ((last, out, "matrix"), *((before, out, "matrix"),) * arguments.keep)
    shapes = [arguments.shape, *(operand for operand in operands if isinstance(operand, tuple))]
    return make_fused(tuple(Tensor.packed(shape, dtype) for shape in shapes), None, Program(loads, steps, stores, accumulators=0), (),
                      frozenset())


def add_reduction_arguments(parser):
    """The words that describe a chain with reductions."""
    parser.add_argument("shape", type=shape_word, help="shape of the first array: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype of all arrays: float32, bf16, ...")
    parser.add_argument("steps", nargs="*", type=row_step_word, help="functions, one after the other: relu, add@4096 (another array), "
                        "mul@0.5 (a number), sub@row-max (the reduction of the value over its row)")
    parser.add_argument("--axes", type=lambda text: tuple(map(int, text.split(","))), default=(-1,), help="what is reduced; default: -1")
    parser.add_argument("--rows", type=lambda text: tuple(text.split(",")), default=(), metavar="MODES", help="reductions of the last "
                        "value that are results too: add,amax")
    parser.add_argument("--only-rows", action="store_true", help="the last value itself is no result")
    parser.add_argument("--out", type=dtype_word, help="dtype of the result; default: of the arrays")


def row_step_word(text):
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


def make_reduction_words(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    dtype, out = arguments.dtype, arguments.out or arguments.dtype
    compute = "float64" if dtype == "float64" else "float32"
    shapes = [arguments.shape, *(operand for _, operand in arguments.steps if isinstance(operand, tuple))]
    loads = [(dtype, "matrix")] * len(shapes) + [(compute, operand) for _, operand in arguments.steps if isinstance(operand, float)]
    steps, last, array, number = [], 0, 1, len(shapes)
    for function, operand in arguments.steps:
        if isinstance(operand, str):
            steps.append(Reduction(operand, last, None, compute))
            other = len(loads) + len(steps) - 1
        elif operand is not None:
            other = array if isinstance(operand, tuple) else number
            array, number = array + isinstance(operand, tuple), number + isinstance(operand, float)
        steps.append(Step(function, (last,) if operand is None else (last, other), None, compute))
        last = len(loads) + len(steps) - 1
    stores = [] if arguments.only_rows else [(last, out, "matrix")]
    for mode in arguments.rows:
        steps.append(Reduction(mode, last, None, compute))
        stores.append((len(loads) + len(steps) - 1, compute, "row"))
    return make_fused_reduction(tuple(Tensor.packed(shape, dtype) for shape in shapes), None, StagedProgram(loads, steps, stores),
                                arguments.axes, (), frozenset())


def _tensors(records):
    return tuple(Tensor(tuple(t["shape"]), tuple(t["strides"]), t["dtype"], t["alignment"]) for t in records)


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    def make_it(program, inputs, outputs, axes, in_place):
        return FusedProblem(program, _tensors(inputs), _tensors(outputs), tuple(axes), tuple(in_place))
    return problem_from_record(make_it, op, record)


def reduction_from_record(op, record):
    """The same with reductions."""
    def make_it(staged, inputs, outputs, **more):
        return FusedReductionProblem(StagedProgram.of_record(staged), _tensors(inputs), _tensors(outputs), **more)
    return problem_from_record(make_it, op, {"staged" if name == "program" else name: value for name, value in record.items()})


FAMILY = {"fused_pointwise": (add_arguments, make_words, functools.partial(from_record, "fused_pointwise")),
          "fused_reduction": (add_reduction_arguments, make_reduction_words, functools.partial(reduction_from_record, "fused_reduction"))}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"fused_pointwise": ("1001 f32 mul@1001 add@0.5 gelu", "7x33 bf16 mul@33 add@7x1 relu --keep", "4x6x35 f16 add@6x1 swish --out f32",
                             "65 f64 exp", "9x40 i32 add@40"),
         "fused_reduction": ("5x96 f32 sub@row-max exp div@row-add", "7x33 bf16 mul@33 add@7x1 relu --rows add,amax",
                             "3x4x40 f16 sub@row-avg div@row-norm2 mul@40 --out f32", "4x6x9 f32 exp --axes 0,2 --rows add --only-rows",
                             "5x70 f64 abs --rows max", "6x50x24 f16 mul@24 relu --axes 0,1 --rows add,sum_square")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("512x4096 bf16 mul@4096 add@512x4096 gelu".split(), "fused_pointwise"))
    fused_pointwise 512x4096 bfloat16 mul+add+gelu x1 [4096]
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))
