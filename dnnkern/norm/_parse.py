"""Layer and RMS normalisations in words, for the command line: ``8192x4096 bf16 --axis -1 --weights float32``."""
import functools

from ..engine.program_words import add_program_argument, with_program
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from . import _channel_parse, _lrn_parse
from ._problem import (LayerNormGradientProblem, LayerNormProblem, RmsNormGradientProblem, RmsNormProblem, make_layer_backward,
                       make_layer_forward, make_layer_forward_residual, make_rms_backward, make_rms_backward_beta, make_rms_forward,
                       make_rms_forward_residual)

_KINDS = {"layer_norm_fwd": (LayerNormProblem, make_layer_forward, make_layer_forward_residual),
          "layer_norm_bwd": (LayerNormGradientProblem, make_layer_backward, make_layer_backward),
          "rms_norm_fwd": (RmsNormProblem, make_rms_forward, make_rms_forward_residual),
          "rms_norm_bwd": (RmsNormGradientProblem, make_rms_backward, make_rms_backward_beta)}
_EXTRA = {"layer_norm_fwd": ("--residual", "x + residual is normalised, and kept"), "rms_norm_bwd": ("--has-beta", "dbeta as well")}
_EXTRA["rms_norm_fwd"] = _EXTRA["layer_norm_fwd"]


def add_arguments(op, parser):
    """The words that describe a normalisation or its gradients."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--axis", type=int, default=-1, help="first normalised dimension")
    parser.add_argument("--weights", type=dtype_word, help="dtype of gamma and beta; default: x's")
    if op in _EXTRA:
        word, text = _EXTRA[op]
        parser.add_argument(word, dest="extra", action="store_true", help=text)
    if op.endswith("fwd"):
        add_program_argument(parser)
    else:
        parser.add_argument("--dsummed", action="store_true", help="add the gradient of the residual sum")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes; layer normalisation has gamma and beta, RMS gamma."""
    kind, plain, full = _KINDS[op]
    extra = getattr(arguments, "extra", False)
    x = Tensor.packed(arguments.shape, arguments.dtype)
    if not -x.ndim <= arguments.axis < x.ndim:
        raise ValueError(f"{op}: axis={arguments.axis} for {x.ndim} dimensions")
    axis = arguments.axis % x.ndim
    weights = Tensor.packed(x.shape[axis:], arguments.weights or x.dtype)
    statistics = Tensor.packed(x.shape[:axis], "float64" if x.dtype == "float64" else "float32")
    known = {"x": x, "dy": x, "gamma": weights, "beta": weights if op == "layer_norm_fwd" else None, "mean": statistics,
             "rstd": statistics, "residual": x if extra else None, "dsummed": x if getattr(arguments, "dsummed", False) else None}
    problem = (full if extra else plain)(tuple(known[name] for name in kind.names[0]), None, axis, frozenset())
    return with_program(problem, getattr(arguments, "program", ()), range(axis), range(axis, x.ndim))


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(_KINDS[op][0], op, record)


FAMILY = {op: (functools.partial(add_arguments, op), functools.partial(make, op), functools.partial(from_record, op)) for op in _KINDS}
FAMILY |= _channel_parse.FAMILY | _lrn_parse.FAMILY
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {op: ("5x100 f32", "3x77 bf16 --weights float32", "2x5x8 f16 --axis 1", "4x9 f64",
              *(f"3x24 f16 {word}" for word in _EXTRA.get(op, ())[:1]), *("5x100 bf16 --dsummed",) * op.endswith("bwd"),
              *("5x100 bf16 --program add@5x100 gelu mul@100",) * op.endswith("fwd")) for op in _KINDS}
SMALL |= _channel_parse.SMALL | _lrn_parse.SMALL
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("8192x4096 bf16 --weights float32".split(), "layer_norm_fwd"))
    layer_norm_fwd 8192x4096 bfloat16 axis 1 gamma float32 beta float32
    """
    parser = WordParser(op, add_help=False)
    add_words, make_it, _ = FAMILY[op]
    add_words(parser)
    return make_it(parser.parse_args(list(words)))
