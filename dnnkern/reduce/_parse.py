"""Problems of this family in words, for the command line: ``64x4096 bf16 add 1``, ``64x256x56x56 f16 avg 0,2,3``, ``1000000 f32 norm2``."""
import argparse
import re

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._problem import ARG, MODES, ArgReduceProblem, ReduceProblem, make_arg_problem, make_problem


def _axes_word(text):
    """Axes written 0,2,3; negative ones count from the end."""
    if not re.fullmatch(r"-?\d+(,-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of axes such as 0,2,3")
    return tuple(map(int, text.split(",")))


def add_reduce_arguments(parser):
    """The words that describe a reduction."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("axes", type=_axes_word, nargs="?", help="axes to reduce: 0,2,3; default: all")
    parser.add_argument("--keepdims", action="store_true")
    parser.add_argument("--out-dtype", type=dtype_word, help="float32 for 16-bit floats, int32 for integers; default: x's, int64")


def add_argreduce_arguments(parser):
    """The words that describe a search for an extreme."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x50257")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("mode", choices=tuple(ARG.values()))
    parser.add_argument("axis", type=int, help="axis to search along")
    parser.add_argument("--keepdims", action="store_true")


def make_reduce(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    a = arguments
    return make_problem((x,), None, a.mode, a.axes, a.keepdims, a.out_dtype, frozenset())


def make_argreduce(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    return make_arg_problem((x,), None, arguments.mode, arguments.axis, arguments.keepdims, frozenset())


def reduce_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(lambda axes, **fields: ReduceProblem(axes=tuple(axes), **fields), "reduce", record)


def argreduce_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(ArgReduceProblem, "argreduce", record)


FAMILY = {"reduce": (add_reduce_arguments, make_reduce, reduce_from_record),
          "argreduce": (add_argreduce_arguments, make_argreduce, argreduce_from_record)}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"reduce": ("7x130 f32 add 1", "100x24 bf16 norm2 0", "2x3x7x7 f16 avg 0,2,3", "5000 f64 logsumexp",
                    "9x70 bf16 add 1 --out-dtype f32", "7x130 i8 add 1", "100x24 int32 max 0", "5000 bool add"),
         "argreduce": ("7x130 bf16 max 1", "100x24 f32 min 0", "4200 f16 max 0", "7x130 uint8 min 1")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x256x56x56 bf16 avg 0,2,3".split(), "reduce"))
    reduce 64x256x56x56 bfloat16 avg 0,2,3
    >>> print(parse_problem("64x50257 f32 max 1".split(), "argreduce"))
    argreduce 64x50257 float32 max 1
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))
