"""Functions of elements in words, for the command line: ``64x256x56x56 bf16 relu upper_clip=6``, ``512x4096 4096 f32 add``."""
import argparse

from ..host.words import Words, like, shape_word
from ..sketch import problem

words = Words()


def _parameter_word(text):
    """(name, value) of upper_clip=6."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a parameter such as upper_clip=6") from None


@words("activation_fwd", "activation_bwd", small={
    "activation_fwd": ("1001 f32 gelu", "7x33 bf16 relu upper_clip=6", "4x6x35 f16 prelu --slope 6x1", "65 f64 mish"),
    "activation_bwd": ("1001 f32 gelu", "7x33 bf16 swish", "4x6x35 f32 prelu --slope 6x1",
                       "4x6x35 bf16 prelu --slope 6x1 --slope-gradient")})
def _activation(op, shape: shape_word, dtype, mode: str, *parameters: _parameter_word, slope: shape_word = None, **options):
    """--slope: the shape of prelu's slope."""
    x, given = (shape, dtype), {} if slope is None else {"slope": (slope, dtype)}
    return problem(op, x=x, **{"dy": x} if op == "activation_bwd" else {}, mode=mode, **given, **options, **dict(parameters))


@words("unary", small=("1001 f32 rsqrt", "7x33 bf16 exp", "9x5 i32 neg", "4x6 f32 gen_index --axis 0"))
def _unary(op, shape: shape_word, dtype, mode: str, **options):
    return problem(op, x=(shape, dtype), op=mode, **options)


@words("binary", small=("33x65 65 f32 add", "33x1 1x65 bf16 mul", "513 scalar f16 cmp_gt", "9x8 9x8 i8 max",
                        "6x40 40 f32 binary_select --mask 6x1"))
def _binary(op, a: shape_word, b: shape_word, dtype, mode: str, *, mask: shape_word = None):
    return problem(op, a=(a, dtype), b=(b, dtype), op=mode, mask=None if mask is None else (mask, "bool"))


@words("scale_tensor", small=("1001 f32", "7x33 bf16", "65 i32"))
def _scale(op, shape: shape_word, dtype):
    return problem(op, x=(shape, dtype), alpha=1.0)


@words("add_tensor", small=("6x40 6x40 f32", "6x1 4x6x35 bf16", "40 6x40 f16", "scalar 513 f64", "33 7x33 f16 --overwrite"))
def _add(op, a: shape_word, c: shape_word, dtype, *, overwrite=False):
    """--overwrite: beta is 0."""
    return problem(op, a=(a, dtype), c=(c, dtype), beta=float(not overwrite))


@words("glu_fwd", "glu_bwd", small={"glu_fwd": ("9x66 f32", "4x6x35 bf16 swish --axis 1"),
                                    "glu_bwd": ("9x66 f32 gelu", "4x6x35 bf16 swish --axis 1")})
def _glu(op, shape: shape_word, dtype, gate: str = "sigmoid", **options):
    x = shape, dtype
    forward = problem("glu_fwd", x=x, gate=gate, **options)
    return forward if op == "glu_fwd" else problem(op, dy=like(forward.result), x=x, gate=gate, **options)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
