"""Grouped products in words: ``8x4096x14336x4096 bf16 nt --bias --activation gelu`` is 4096 rows in 8 groups."""
import argparse
import re

from ..host.products import default_output
from ..host.scalars import LARGEST
from ..host.tensor import Tensor
from ..host.words import DTYPE_HELP, addend_dtype, dtype_word, problem_from_record
from ._grouped_problem import GroupedMatmulProblem, make_problem
from ._grouped_weights_problem import GroupedWeightsProblem, make_weights
from ._parse_words import add_operand_arguments, scale_tensors


def add_arguments(parser: argparse.ArgumentParser):
    """The words that describe a grouped product."""
    parser.add_argument("shape", type=_shape, metavar="GxMxNxK", help="groups, rows of all groups, columns, k")
    parser.add_argument("dtype", type=dtype_word, help=DTYPE_HELP)
    parser.add_argument("layout", nargs="?", default="nn", choices=("nn", "nt"), help="nt: the matrices are stored transposed (default nn)")
    add_operand_arguments(parser)
    parser.add_argument("--bias", action="store_true", help="add a vector for each group")


def make(arguments) -> GroupedMatmulProblem:
    """The problem that parsed words describe: packed operands, aligned to 16 bytes."""
    groups, m, n, k = arguments.shape
    transpose_b = arguments.layout == "nt"
    out = arguments.out_dtype or default_output(arguments.dtype)
    tensors = (Tensor.packed((m, k), arguments.dtype),
               Tensor.packed((groups, *((n, k) if transpose_b else (k, n))), arguments.dtype_b or arguments.dtype),
               Tensor.packed((groups + 1,), "int32"), Tensor.packed((groups, n), addend_dtype(out)) if arguments.bias else None,
               *scale_tensors(arguments.scales, m, n, k, lead=(groups,)))
    return make_problem(tensors, None, transpose_b, arguments.activation, arguments.math, arguments.out_dtype, arguments.alpha != 1,
                        aliases=frozenset())


def from_record(record) -> GroupedMatmulProblem:
    """The problem that `dispatch.problem_record` made into JSON data; ValueError where it is something else."""
    return problem_from_record(GroupedMatmulProblem, "grouped_matmul", record)


def add_weights_arguments(parser: argparse.ArgumentParser):
    """The words that describe the gradient of a grouped product's matrices: ``8x4096x14336x4096 bf16``."""
    parser.add_argument("shape", type=_shape, metavar="GxMxNxK", help="groups, rows of all groups, columns of dy, of a")
    parser.add_argument("dtype", type=dtype_word, help=DTYPE_HELP)
    parser.add_argument("--math", choices=("tf32", "fast"))


def make_weights_words(arguments) -> GroupedWeightsProblem:
    """The problem that parsed words describe: packed operands, aligned to 16 bytes."""
    groups, m, n, k = arguments.shape
    tensors = (*(Tensor.packed((m, columns), arguments.dtype) for columns in (k, n)), Tensor.packed((groups + 1,), "int32"))
    return make_weights(tensors, None, arguments.math, None, aliases=frozenset())


def weights_from_record(record) -> GroupedWeightsProblem:
    """The problem of JSON data; ValueError where it is something else."""
    return problem_from_record(GroupedWeightsProblem, "grouped_matmul_bwd_weights", record)


def _shape(text):
    if not re.fullmatch(r"\d+(x\d+){3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not GxMxNxK")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes
