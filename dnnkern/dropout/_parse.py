"""Dropout problems in words, for the command line: ``8192x4096 bf16``."""
import functools

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._problem import DropoutGradientProblem, DropoutProblem, make_backward, make_forward, mask_shape
from ._random_problem import DISTRIBUTIONS, RandomProblem, make_random


def add_arguments(parser):
    """The words that describe a dropout or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--in-place", action="store_true", help="write the result over the input")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    mask, same = Tensor.packed(mask_shape(x), "uint8"), arguments.in_place
    if op == "dropout_fwd":
        return make_forward((x,), None, frozenset({"x"} if same else ()))
    return make_backward((x, mask), None, frozenset({"dy"} if same else ()))


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(DropoutProblem if op == "dropout_fwd" else DropoutGradientProblem, op, record)


def add_random_arguments(parser):
    """The words that describe an array of random numbers."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("distribution", choices=DISTRIBUTIONS)


def make_random_words(arguments):
    """The problem that parsed words describe: a packed array, in place."""
    return make_random((Tensor.packed(arguments.shape, arguments.dtype),), None, arguments.distribution, frozenset({"x"}))


def random_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(RandomProblem, "random_fill", record)


DROPOUTS = "dropout_fwd", "dropout_bwd"
FAMILY = {op: (add_arguments, functools.partial(make, op), functools.partial(from_record, op)) for op in DROPOUTS}
FAMILY["random_fill"] = add_random_arguments, make_random_words, random_from_record
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {op: ("5x101 f32", "3x800 bf16 --in-place", "4x9 f64") for op in DROPOUTS}
SMALL["random_fill"] = "5x101 f32 uniform", "3x800 bf16 normal", "4x9 f64 bernoulli"
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("8192x4096 bf16".split(), "dropout_fwd"))
    dropout_fwd 8192x4096 bfloat16
    """
    parser = WordParser(op, add_help=False)
    add, make_problem, _ = FAMILY[op]
    add(parser)
    return make_problem(parser.parse_args(list(words)))
