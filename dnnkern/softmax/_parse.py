"""Softmax problems in words, for the command line: ``8192x4096 bf16 --axis -1 --log``."""
import functools

from ..engine.program_words import add_program_argument, with_program
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._problem import SoftmaxGradientProblem, SoftmaxProblem, make_backward, make_forward


def add_arguments(op, parser):
    """The words that describe a softmax or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--axis", type=int, default=-1)
    parser.add_argument("--log", action="store_true", help="log-softmax")
    if op == "softmax_fwd":
        add_program_argument(parser)


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    tensors, make_it = ((x,), make_forward) if op == "softmax_fwd" else ((x, x), make_backward)
    problem = make_it(tensors, None, arguments.axis, arguments.log, frozenset())
    rows = [d for d in range(x.ndim) if d != problem.axis]
    return with_program(problem, getattr(arguments, "program", ()), rows, problem.axis)


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(SoftmaxProblem if op == "softmax_fwd" else SoftmaxGradientProblem, op, record)


FAMILY = {op: tuple(functools.partial(f, op) for f in (add_arguments, make, from_record)) for op in ("softmax_fwd", "softmax_bwd")}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"softmax_fwd": ("5x100 f32", "3x777 bf16 --log", "2x30x16 f16 --axis 1", "4x9 f64",
                         "5x100 bf16 --program mul@5x100 mul@0.5"),
         "softmax_bwd": ("5x100 f32", "3x777 bf16", "2x30x16 f16 --axis 1 --log", "4x9 f64")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("8192x4096 bf16 --log".split(), "softmax_fwd"))
    softmax_fwd 8192x4096 bfloat16 axis 1 log
    """
    parser = WordParser(op, add_help=False)
    add_arguments(op, parser)
    return make(op, parser.parse_args(list(words)))
