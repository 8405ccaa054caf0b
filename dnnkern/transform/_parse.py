"""Problems of this family in words, for the command line: ``64x256x56x56 f16 0,2,3,1``, ``8x3x224x224 f32 NCHW:NHWC``."""
import argparse
import re

from ..host.tensor import Tensor
from ..host.words import LARGEST, dtype_word, problem_from_record
from ._problem import TransposeProblem, make_layout_problem, make_problem


def sizes_word(text):
    """Sizes written 64x3x224x224."""
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 64x3x224x224")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


def _order_word(text):
    """Axes written 0,2,3,1, or a pair of layouts written NCHW:NHWC."""
    if re.fullmatch(r"\d+(,\d+)*", text):
        return tuple(int(n) for n in text.split(","))
    if re.fullmatch(r"[A-Za-z]+:[A-Za-z]+", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither axes such as 0,2,3,1 nor layouts such as NCHW:NHWC")


def add_transpose_arguments(parser):
    """The words that describe a transposition."""
    parser.add_argument("shape", type=sizes_word, help="of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="float32, bf16, int8, ...")
    parser.add_argument("order", type=_order_word, help="axes (0,2,3,1) or two layouts (NCHW:NHWC)")


def make_transpose(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    if isinstance(arguments.order, str):
        return make_layout_problem((x,), None, *arguments.order.split(":"), aliases=frozenset())
    return make_problem((x,), None, arguments.order, aliases=frozenset())


def transpose_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(lambda axes, **fields: TransposeProblem(axes=tuple(axes), **fields), "transpose", record)


FAMILY = {"transpose": (add_transpose_arguments, make_transpose, transpose_from_record)}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""
