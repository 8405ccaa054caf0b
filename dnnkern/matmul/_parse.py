"""Matrix products in words: ``4096x4096x4096 bf16 tn --bias --activation gelu``, for the command line and for lists of shapes."""
import argparse
import re

from ..engine.program_words import add_program_argument, with_program
from ..engine.prologues import Prologue
from ..host.products import default_output
from ..host.scalars import LARGEST
from ..host.tensor import Tensor
from ..host.words import DTYPE_HELP, WordParser, addend_dtype, dtype_word, problem_from_record
from . import _grouped_parse
from ._parse_words import add_operand_arguments, scale_tensors
from ._problem import MatmulProblem, make_problem


def add_arguments(parser: argparse.ArgumentParser):
    """The words that describe a matrix product."""
    parser.add_argument("shape", type=_shape, metavar="MxNxK", help="sizes, or BxMxNxK for a batch")
    parser.add_argument("dtype", type=dtype_word, help=DTYPE_HELP)
    parser.add_argument("layout", nargs="?", default="nn", choices=("nn", "nt", "tn", "tt"),
                        help="t: the operand is stored transposed (default nn)")
    add_operand_arguments(parser)
    parser.add_argument("--bias", nargs="?", const="column", choices=("column", "row", "batch-column", "batch-row"),
                        help="add a vector per column (default) or per row; batch: one per matrix")
    parser.add_argument("--c", action="store_true", help="add beta * c, a matrix of the result's shape")
    parser.add_argument("--in-place", action="store_true", help="as --c, with c as the output")
    parser.add_argument("--beta", type=float, default=1.0)
    add_program_argument(parser)


def make(arguments) -> MatmulProblem:
    """The problem that parsed words describe: packed operands, aligned to 16 bytes."""
    *batch, m, n, k = arguments.shape
    transpose_a, transpose_b = (letter == "t" for letter in arguments.layout)
    a = Tensor.packed((*batch, *((k, m) if transpose_a else (m, k))), arguments.dtype)
    b = Tensor.packed((*batch, *((n, k) if transpose_b else (k, n))), arguments.dtype_b or arguments.dtype)
    out = arguments.out_dtype or default_output(arguments.dtype)
    addend = addend_dtype(out)
    bias = {None: None, "column": (n,), "row": (m, 1), "batch-column": (*batch, 1, n),
            "batch-row": (*batch, m, 1)}[arguments.bias]
    has_c = arguments.c or arguments.in_place
    y = Tensor.packed((*batch, m, n), out)
    c = (y if arguments.in_place else Tensor.packed(y.shape, addend)) if has_c and arguments.beta != 0 else None
    tensors = a, b, Tensor.packed(bias, addend) if bias is not None else None, c, *scale_tensors(arguments.scales, m, n, k)
    problem = make_problem(tensors, y if arguments.in_place else None, transpose_a, transpose_b, arguments.activation, arguments.math,
                           arguments.out_dtype, arguments.alpha != 1, arguments.beta != 1,
                           aliases=frozenset({"c"}) if c is not None and arguments.in_place else frozenset())
    return with_program(problem, arguments.program, (-2,), -1)


def parse_problem(words, op="matmul"):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x32x128 bf16 tn --bias --activation gelu".split()))
    matmul 64x32x128 bfloat16 tn + bias by column, gelu
    >>> print(parse_problem("64x32x128 bf16 --program mul@0.5 add@32 swish".split()))
    matmul 64x32x128 bfloat16 nn + program mul+add+swish
    >>> print(parse_problem("8x4096x1024x512 e4m3 nt --scales block".split(), "grouped_matmul"))
    grouped_matmul 8 groups of 4096x1024x512 float8_e4m3fn nt -> bfloat16 + scales by block and block
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))


def _shape(text):
    if not re.fullmatch(r"\d+(x\d+){2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK or BxMxNxK")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


def from_record(record) -> MatmulProblem:
    """The problem that `dispatch.problem_record` made into JSON data; ValueError where it is something else."""
    def make_it(**fields):
        for name in ("prologue_a", "prologue_b"):
            if fields.get(name) is not None:
                fields[name] = Prologue.of_record(fields[name])
        return MatmulProblem(**fields)
    return problem_from_record(make_it, "matmul", record)


FAMILY = {"matmul": (add_arguments, make, from_record),
          "grouped_matmul": (_grouped_parse.add_arguments, _grouped_parse.make, _grouped_parse.from_record),
          "grouped_matmul_bwd_weights": (_grouped_parse.add_weights_arguments, _grouped_parse.make_weights_words,
                                         _grouped_parse.weights_from_record)}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""
