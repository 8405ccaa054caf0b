"""Local response normalisation in words, for the command line: ``64x96x55x55 bf16 nhwc 5``."""
import argparse
import functools

from ..host.tensor import Tensor
from ..host.window import LAYOUTS
from ..host.words import dtype_word, problem_from_record
from ..host.words import sizes_word
from ._lrn_problem import OPS, LrnProblem, make_lrn_backward, make_lrn_forward


def _term(text):
    """(what, value) of the size or a layout."""
    if text.isdigit():
        return "size", int(text)
    if text.upper() in LAYOUTS:
        return "layout", text.upper()
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number of channels nor one of nchw, nhwc")


def add_arguments(parser):
    """The words that describe a problem."""
    parser.add_argument("shape", type=sizes_word, help="N, C and the spatial extents, in this order for every layout: 64x96x55x55")
    parser.add_argument("dtype", type=dtype_word, help="float32, bf16, ...")
    parser.add_argument("terms", nargs="*", type=_term, help="5 (channels of a window, the default), nhwc")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    given = {"size": 5, "layout": "NCHW", **dict(arguments.terms)}
    n, c, *image = (*arguments.shape, 1, 1)[:max(2, len(arguments.shape))]
    x = Tensor.packed((n, c, *image) if given["layout"] == "NCHW" else (n, *image, c), arguments.dtype)
    if op == "lrn_fwd":
        return make_lrn_forward((x,), None, given["size"], given["layout"], frozenset())
    return make_lrn_backward((x, x, x), None, given["size"], given["layout"], frozenset())


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(LrnProblem, op, record)


FAMILY = {op: (add_arguments, functools.partial(make, op), functools.partial(from_record, op)) for op in OPS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {op: ("2x7x5x3 f32", "3x16x7 bf16 nhwc", "2x9x4 f16 nhwc 4", "2x3x2x3x2 f64 3") for op in OPS}
"""Problems that ``python -m dnnkern check`` tries."""
