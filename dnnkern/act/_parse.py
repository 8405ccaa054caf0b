"""Problems of this family in words, for the command line: ``64x256x56x56 bf16 relu upper_clip=6``, ``512x4096 4096 f32 add``."""
import argparse
import functools

from ..device.pointwise import ALIASES, GATES
from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._elementwise import BINARY, UNARY, BinaryProblem, UnaryProblem, make_binary, make_unary
from ._glu import GluProblem, half_shape, make_glu
from ._problem import ActivationProblem, make_activation
from ._scaled import AddProblem, ScaleProblem, make_add, make_scale

NOBODY = frozenset()


def shape_word(text):
    """Sizes written 64x256, or "scalar"."""
    return () if text == "scalar" else sizes_word(text)


def _parameter_word(text):
    """(name, value) of upper_clip=6."""
    name, mark, value = text.partition("=")
    try:
        return name, float(value) if mark else float("nan")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a parameter such as upper_clip=6") from None


def add_activation_arguments(parser):
    """The words that describe an activation or its gradient."""
    parser.add_argument("shape", type=shape_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("mode", help="relu, gelu, ..., prelu")
    parser.add_argument("parameters", nargs="*", type=_parameter_word, help="upper_clip=6, alpha=0.5, ...")
    parser.add_argument("--slope", type=shape_word, help="shape of prelu's slope: 256x1x1")
    parser.add_argument("--slope-gradient", action="store_true", help="activation_bwd: also compute the slope's gradient")


def make_activation_words(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    slope = None if arguments.slope is None else Tensor.packed(arguments.slope, arguments.dtype)
    return make_activation(op, (*(x,) * (1 + (op == "activation_bwd")), slope), None, arguments.mode, tuple(arguments.parameters),
                           arguments.slope_gradient, aliases=NOBODY)


def add_unary_arguments(parser):
    """The words that describe a function of one array."""
    parser.add_argument("shape", type=shape_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("mode", choices=UNARY)
    parser.add_argument("--axis", type=int, help="axis of gen_index")


def make_unary_words(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    return make_unary((Tensor.packed(arguments.shape, arguments.dtype),), None, arguments.mode, arguments.axis, NOBODY)


def add_binary_arguments(parser):
    """The words that describe a function of two arrays."""
    parser.add_argument("a", type=shape_word, help="shape of a: 512x4096")
    parser.add_argument("b", type=shape_word, help="shape of b: 4096, or scalar")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("mode", choices=(*BINARY, *ALIASES))
    parser.add_argument("--mask", type=shape_word, help="shape of binary_select's mask")


def make_binary_words(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    mask = None if arguments.mask is None else Tensor.packed(arguments.mask, "bool")
    return make_binary((Tensor.packed(arguments.a, arguments.dtype), Tensor.packed(arguments.b, arguments.dtype), mask), None,
                       arguments.mode, NOBODY)


def add_glu_arguments(parser):
    """The words that describe a gated linear unit or its gradient."""
    parser.add_argument("shape", type=shape_word, help="shape of x: 4096x8192")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("gate", nargs="?", choices=GATES, default="sigmoid")
    parser.add_argument("--axis", type=int, default=-1)


def make_glu_words(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    if op == "glu_fwd":
        return make_glu(op, (x,), None, arguments.axis, arguments.gate, NOBODY)
    dy = Tensor.packed(half_shape(op, x.shape, arguments.axis % max(x.ndim, 1)), arguments.dtype)
    return make_glu(op, (dy, x), None, arguments.axis, arguments.gate, NOBODY)


def add_scale_arguments(parser):
    """The words that describe an array times a number."""
    parser.add_argument("shape", type=shape_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")


def make_scale_words(arguments):
    """The problem that parsed words describe: a packed array, aligned to 16 bytes, in place."""
    return make_scale((Tensor.packed(arguments.shape, arguments.dtype),), None, frozenset({"x"}))


def add_add_arguments(parser):
    """The words that describe an array added to another."""
    parser.add_argument("a", type=shape_word, help="shape of a: 256x1x1, or scalar")
    parser.add_argument("c", type=shape_word, help="shape of c: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--overwrite", action="store_true", help="beta = 0: overwrite c")


def make_add_words(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes, in place."""
    a, c = (Tensor.packed(shape, arguments.dtype) for shape in (arguments.a, arguments.c))
    return make_add((a, c), None, not arguments.overwrite, frozenset({"c"}))


def _from_record(make, op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(make, op, record)


FAMILY = {
    **{op: (add_activation_arguments, functools.partial(make_activation_words, op), functools.partial(_from_record, ActivationProblem, op))
       for op in ("activation_fwd", "activation_bwd")},
    "unary": (add_unary_arguments, make_unary_words, functools.partial(_from_record, UnaryProblem, "unary")),
    "binary": (add_binary_arguments, make_binary_words, functools.partial(_from_record, BinaryProblem, "binary")),
    "scale_tensor": (add_scale_arguments, make_scale_words, functools.partial(_from_record, ScaleProblem, "scale_tensor")),
    "add_tensor": (add_add_arguments, make_add_words, functools.partial(_from_record, AddProblem, "add_tensor")),
    **{op: (add_glu_arguments, functools.partial(make_glu_words, op), functools.partial(_from_record, GluProblem, op))
       for op in ("glu_fwd", "glu_bwd")}}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"activation_fwd": ("1001 f32 gelu", "7x33 bf16 relu upper_clip=6", "4x6x35 f16 prelu --slope 6x1", "65 f64 mish"),
         "activation_bwd": ("1001 f32 gelu", "7x33 bf16 swish", "4x6x35 f32 prelu --slope 6x1",
                            "4x6x35 bf16 prelu --slope 6x1 --slope-gradient"),
         "unary": ("1001 f32 rsqrt", "7x33 bf16 exp", "9x5 i32 neg", "4x6 f32 gen_index --axis 0"),
         "binary": ("33x65 65 f32 add", "33x1 1x65 bf16 mul", "513 scalar f16 cmp_gt", "9x8 9x8 i8 max",
                    "6x40 40 f32 binary_select --mask 6x1"),
         "scale_tensor": ("1001 f32", "7x33 bf16", "65 i32"),
         "add_tensor": ("6x40 6x40 f32", "6x1 4x6x35 bf16", "40 6x40 f16", "scalar 513 f64", "33 7x33 f16 --overwrite"),
         "glu_fwd": ("9x66 f32", "4x6x35 bf16 swish --axis 1"), "glu_bwd": ("9x66 f32 gelu", "4x6x35 bf16 swish --axis 1")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x256x56x56 bf16 relu upper_clip=6".split(), "activation_fwd"))
    activation_fwd 64x256x56x56 bfloat16 relu upper_clip=6
    >>> print(parse_problem("512x4096 4096 f32 bias".split(), "binary"))
    binary 512x4096 4096 float32 add
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))
