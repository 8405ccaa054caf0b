"""Embeddings in words, for the command line: ``50257x768 bf16 16x1024``: the table, then the shape of the indices."""
import functools

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._problem import INDICES, EmbeddingGradientProblem, EmbeddingProblem, make_backward, make_forward

PROBLEMS = {kind.op: kind for kind in (EmbeddingProblem, EmbeddingGradientProblem)}


def add_arguments(op, parser):
    """The words that describe an embedding or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="rows and columns of the table: 50257x768")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("positions", type=sizes_word, help="shape of the indices: 16x1024")
    parser.add_argument("--indices", choices=INDICES, default="int64", help="dtype of the indices")
    if op.endswith("bwd"):
        parser.add_argument("--padding", type=int, help="row without a gradient")
        parser.add_argument("--frequency", action="store_true", help="rows are divided by how often their index occurs")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a = arguments
    if len(a.shape) != 2:
        raise ValueError(f"{op}: a table of shape {a.shape}; expected rows x columns")
    forward = make_forward((Tensor.packed(a.shape, a.dtype), Tensor.packed(a.positions, a.indices)), None, frozenset())
    if op == forward.op:
        return forward
    return make_backward((forward.y, forward.indices), None, a.shape[0], a.padding, a.frequency, frozenset())


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(PROBLEMS[op], op, record)


FAMILY = {op: (functools.partial(add_arguments, op), functools.partial(make, op), functools.partial(from_record, op)) for op in PROBLEMS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

_SMALL = ("50x24 f32 6x7", "33x40 bf16 200 --indices int32", "9x5 f64 3x4x5", "7x8 f16 300")
SMALL = {"embedding_fwd": _SMALL, "embedding_bwd": (*_SMALL, "21x16 bf16 90 --padding 3 --frequency")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("50257x768 bf16 16x1024".split(), "embedding_fwd"))
    embedding_fwd 16x1024 int64 of 50257x768 bfloat16
    """
    parser = WordParser(op, add_help=False)
    FAMILY[op][0](parser)
    return FAMILY[op][1](parser.parse_args(list(words)))
