"""Losses in words, for the command line: ``8192x50257 bf16 --weight --smoothing 0.1``, ``16x21x512x512 f32 --targets soft``; for CTC
``512x32x128 f32 64``: steps, samples, classes, and the most labels."""
import functools

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._ctc_problem import CtcGradientProblem, CtcProblem, make_ctc_backward, make_ctc_forward
from ._mse_problem import MseGradientProblem, MseProblem, make_mse_backward, make_mse_forward
from ._problem import (REDUCTIONS, CrossEntropyGradientProblem, CrossEntropyProblem, NllGradientProblem, NllProblem, make_backward,
                       make_forward, make_nll_backward, make_nll_forward)

PROBLEMS = {kind.op: kind for kind in (CrossEntropyProblem, CrossEntropyGradientProblem, NllProblem, NllGradientProblem, MseProblem,
                                       MseGradientProblem, CtcProblem, CtcGradientProblem)}


def add_arguments(op, parser):
    """The words that describe a loss over classes or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of the logits, classes along axis 1 or the only axis: 8192x50257")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    soft = ("soft",) if op.startswith("cross") else ()
    parser.add_argument("--targets", choices=("int64", "int32", *soft), default="int64", help="class indices, or probabilities")
    parser.add_argument("--weight", action="store_true", help="class weights")
    if soft:
        parser.add_argument("--smoothing", type=float, default=0.0, help="label smoothing")
    parser.add_argument("--ignore", type=int, default=-100, help="ignored target")
    parser.add_argument("--reduction", choices=REDUCTIONS, default="mean")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a, shape = arguments, arguments.shape
    axis = min(1, len(shape) - 1)
    rows, classes = shape[:axis] + shape[axis + 1:], shape[axis]
    scores = Tensor.packed(shape, a.dtype)
    targets = scores if a.targets == "soft" else Tensor.packed(rows, a.targets)
    weight = Tensor.packed((classes,), a.dtype) if a.weight else None
    if op.startswith("nll"):
        given = a.ignore, a.reduction, frozenset()
        forward = make_nll_forward((scores, targets, weight), None, *given)
        return forward if op == forward.op else make_nll_backward((forward.loss, scores, targets, weight), None, *given)
    given = a.ignore, a.smoothing, a.reduction, frozenset()
    forward = make_forward((scores, targets, weight), None, *given)
    return forward if op == forward.op else make_backward((forward.loss, scores, targets, forward.lse, weight), None, *given)


def add_mse_arguments(parser):
    """The words that describe a squared difference or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 1024x1024")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--reduction", choices=REDUCTIONS, default="mean")


def make_mse(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    forward = make_mse_forward((x, x), None, arguments.reduction, frozenset())
    return forward if op == forward.op else make_mse_backward((forward.loss, x, x), None, arguments.reduction, frozenset())


def add_ctc_arguments(parser):
    """The words that describe a CTC loss or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of the logits, steps x samples x classes: 512x32x128")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("labels", type=int, help="length of the longest target")
    parser.add_argument("--targets", choices=("int64", "int32"), default="int64", help="dtype of labels and lengths")
    parser.add_argument("--blank", type=int, default=0)
    parser.add_argument("--zero-infinity", action="store_true", help="targets that are too long have loss 0")
    parser.add_argument("--normalized", action="store_true", help="the logits are log-probabilities already")


def make_ctc(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a = arguments
    if len(a.shape) != 3:
        raise ValueError(f"{op}: logits of shape {a.shape}; expected steps x samples x classes")
    logits, lengths = Tensor.packed(a.shape, a.dtype), Tensor.packed(a.shape[1:2], a.targets)
    tensors = logits, Tensor.packed((a.shape[1], a.labels), a.targets), lengths, lengths
    forward = make_ctc_forward(tensors, None, a.blank, a.zero_infinity, a.normalized, frozenset())
    if op == forward.op:
        return forward
    return make_ctc_backward((forward.loss, *tensors, forward.saved), None, a.blank, a.zero_infinity, a.normalized, frozenset())


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(PROBLEMS[op], op, record)


_WORDS = {"mse": (add_mse_arguments, make_mse), "ctc": (add_ctc_arguments, make_ctc)}


def _family(op):
    add, make_it = _WORDS.get(op[:3], (functools.partial(add_arguments, op), make))
    return add, functools.partial(make_it, op), functools.partial(from_record, op)


FAMILY = {op: _family(op) for op in PROBLEMS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

_ENTROPY = ("5x100 f32", "3x777 bf16 --weight --smoothing 0.1", "2x6x5x8 f16 --targets soft", "4x9 f64 --reduction sum --targets int32")
_NLL = ("5x100 f32", "3x777 bf16 --weight", "2x6x5x8 f16 --reduction none", "4x9 f64 --reduction sum --targets int32")
_MSE = ("5x100 f32", "3x777 bf16 --reduction none", "4099 f16 --reduction sum", "4x9 f64")
_CTC = ("12x3x7 f32 4", "9x2x33 bf16 3 --blank 5", "5x2x4 f16 3 --zero-infinity --targets int32", "6x1x5 f64 2 --normalized")
SMALL = {op: {"nll": _NLL, "mse": _MSE, "ctc": _CTC}.get(op[:3], _ENTROPY) for op in PROBLEMS}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("8192x50257 bf16 --smoothing 0.1".split(), "cross_entropy_fwd"))
    cross_entropy_fwd 8192x50257 bfloat16 int64 targets mean smoothing 0.1
    """
    parser = WordParser(op, add_help=False)
    FAMILY[op][0](parser)
    return FAMILY[op][1](parser.parse_args(list(words)))
