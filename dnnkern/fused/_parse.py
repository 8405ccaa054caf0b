"""Programs in words, for the command line: ``8192x4096 bf16 mul@4096 add@8192x4096 gelu``, a chain from one array on."""
import functools

from ..device.program import Program
from ..engine.program_words import chain, shape_word, step_word
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ._problem import FusedProblem, make_fused


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


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    def make_it(program, inputs, outputs, axes, in_place):
        some = [tuple(Tensor(tuple(t["shape"]), tuple(t["strides"]), t["dtype"], t["alignment"]) for t in given)
                for given in (inputs, outputs)]
        return FusedProblem(program, *some, tuple(axes), tuple(in_place))
    return problem_from_record(make_it, op, record)


FAMILY = {"fused_pointwise": (add_arguments, make_words, functools.partial(from_record, "fused_pointwise"))}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"fused_pointwise": ("1001 f32 mul@1001 add@0.5 gelu", "7x33 bf16 mul@33 add@7x1 relu --keep", "4x6x35 f16 add@6x1 swish --out f32",
                             "65 f64 exp", "9x40 i32 add@40")}
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
