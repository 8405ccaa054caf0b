"""Problems of this family in words, for the command line: ``64x64x112x112 bf16 3x3 s2 p1 nhwc index``, ``8x512x13x13 f32 7x7 adaptive``."""
import argparse
import functools
import re

from ..engine.program_words import add_program_argument, with_program
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word, term_word
from ._problem import OPS, PoolProblem, make_adaptive_backward, make_adaptive_forward, make_backward, make_forward

_FLAGS = {"ceil": ("ceil_mode", True), "counting": ("count_include_pad", True), "index": ("index", "int32"), "index64": ("index", "int64"),
          "adaptive": ("adaptive", True)}


def _term(text):
    """(parameter, value) of a word such as s2, p1, nhwc, ceil or divisor9."""
    if found := re.fullmatch(r"divisor([1-9]\d*)", text):
        return "divisor", int(found[1])
    if text in _FLAGS:
        return _FLAGS[text]
    try:
        return term_word(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, {', '.join(_FLAGS)}, divisor9") from None


def _window(text):
    """A window's extents, or None for the whole image."""
    return None if text == "global" else sizes_word(text)


def add_forward_arguments(parser):
    """The words that describe a pooling, and what becomes of its result."""
    add_arguments(parser)
    add_program_argument(parser)


def add_arguments(parser):
    """The words that describe a pooling."""
    parser.add_argument("shape", type=sizes_word, help="N, C and the image extents, in this order for every layout: 64x64x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float64, float32, float16 or bfloat16")
    parser.add_argument("window", type=_window, help="window extents: 3x3; or global; with 'adaptive' the output size")
    parser.add_argument("terms", nargs="*", type=_term, help="s2 (stride), p1 or p0:1x2:0 (padding), d2 (dilation), nhwc, ceil, counting "
                        "(the padding), index or index64 (int64), divisor9, adaptive")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    given = {"stride": None, "padding": 0, "dilation": 1, "layout": "NCHW", "ceil_mode": False, "count_include_pad": False,
             "divisor": None, "index": False, "adaptive": False, **dict(arguments.terms)}
    n, c, *image = (*arguments.shape, 1, 1)[:max(len(arguments.shape), 2)]
    shape, none = (n, c, *image) if given["layout"] == "NCHW" else (n, *image, c), frozenset()
    forward, kind = op.replace("bwd", "fwd"), op.startswith("max") and (given["index"] or op.endswith("bwd") and "int32")
    window = arguments.window if arguments.window is None or len(arguments.window) != 1 else arguments.window[0]
    x = (Tensor.packed(shape, arguments.dtype),)
    if given["adaptive"]:
        problem = make_adaptive_forward(forward, kind, x, None, window, given["layout"], none)
        more = (given["layout"],)
    else:
        more = (window, *(given[name] for name in ("stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor", "layout")))
        problem = make_forward(forward, kind, x, None, *more, none)
    if op == forward:
        channel = 1 if given["layout"] == "NCHW" else problem.y.ndim - 1
        pixels = tuple(axis for axis in range(problem.y.ndim) if axis != channel)
        return with_program(problem, getattr(arguments, "program", ()), pixels, channel)
    tensors = (problem.y, problem.index)
    return (make_adaptive_backward if given["adaptive"] else make_backward)(op, tensors, None, shape, *more, none)


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    def make_it(window, stride, padding, dilation, **fields):
        return PoolProblem(window=tuple(window), stride=tuple(stride), padding=tuple(map(tuple, padding)), dilation=tuple(dilation),
                           **fields)
    return problem_from_record(make_it, op, record)


FAMILY = {op: (add_forward_arguments if op.endswith("fwd") else add_arguments, functools.partial(make, op),
               functools.partial(from_record, op)) for op in OPS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"max_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1 index", "2x16x9x7 bf16 2x2 nhwc index", "1x5x6x6 f64 4x4 adaptive index",
                          "2x8x9x8 bf16 3x3 s2 nhwc --program mul@8 relu"),
         "max_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x16x9x7 bf16 3x3 s1 p1 nhwc", "1x5x6x6 f64 4x4 adaptive"),
         "avg_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc",
                          "2x3x9 f16 2 ceil counting"),
         "avg_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc",
                          "1x3x4x5x6 f16 2x2x2 ceil")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x64x112x112 bf16 3x3 s2 p1 nhwc".split(), "max_pool_fwd"))
    max_pool_fwd 64x112x112x64 bfloat16 NHWC window 3x3 stride 2 padding 1
    """
    parser = WordParser(op, add_help=False)
    FAMILY[op][0](parser)
    return make(op, parser.parse_args(list(words)))
