"""Matrix products in words: ``4096x4096x4096 bf16 tn --bias --activation gelu``, for the command line and for lists of shapes."""
import argparse
import re

from ..device.epilogue import PARAMETERS, Activation
from ..device.index import ceil_div
from ..host.dtypes import dtype_name
from ..host.tensor import Tensor
from ._problem import INPUTS, MATH, MatmulProblem, default_output, make_problem
from ._scales import BLOCK, FP8

LARGEST = 2 ** 31 - 1
DTYPE_HELP = "of the operands: " + ", ".join(INPUTS) + ", or a short name (bf16, f32, e4m3, ...)"


def add_arguments(parser: argparse.ArgumentParser):
    """The words that describe a matrix product."""
    parser.add_argument("shape", type=_shape, metavar="MxNxK", help="sizes, or BxMxNxK for a batch")
    parser.add_argument("dtype", type=_dtype, help=DTYPE_HELP)
    parser.add_argument("layout", nargs="?", default="nn", choices=("nn", "nt", "tn", "tt"),
                        help="t: the operand is stored transposed (default nn)")
    add_operand_arguments(parser)
    parser.add_argument("--bias", nargs="?", const="column", choices=("column", "row"), help="add a vector by column (default) or by row")
    parser.add_argument("--c", action="store_true", help="add beta * c, a matrix like the result")
    parser.add_argument("--in-place", action="store_true", help="the same, and c is the output")
    parser.add_argument("--beta", type=float, default=1.0)


def add_operand_arguments(parser):
    """What all products have: 8-bit floats' second dtype and scales, alpha, activation, math, output type."""
    parser.add_argument("--dtype-b", type=_dtype, help="of b, where it is another 8-bit float than a")
    parser.add_argument("--scales", type=_scales, default=(None, None), metavar="BY",
                        help="of 8-bit floats: tensor, row (and column), block, or two of none, tensor, row, column, block: row,tensor")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--activation", choices=sorted(PARAMETERS))
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--out-dtype", type=_dtype)


def scale_tensors(by, m, n, k, lead=()):
    """Descriptors of the scales that ``--scales`` asks for."""
    blocks = ceil_div(k, BLOCK)
    shapes = ({"tensor": (1,), "row": (m, 1), "block": (m, blocks)},
              {"tensor": (1,), "column": (*lead, 1, n), "block": (*lead, blocks, ceil_div(n, BLOCK))})
    return tuple(None if name is None else Tensor.packed(known[name], "float32") for name, known in zip(by, shapes))


def make(arguments) -> MatmulProblem:
    """The problem that parsed words describe: packed operands, aligned to 16 bytes."""
    *batch, m, n, k = arguments.shape
    transpose_a, transpose_b = (letter == "t" for letter in arguments.layout)
    a = Tensor.packed((*batch, *((k, m) if transpose_a else (m, k))), arguments.dtype)
    b = Tensor.packed((*batch, *((n, k) if transpose_b else (k, n))), arguments.dtype_b or arguments.dtype)
    out = arguments.out_dtype or default_output(arguments.dtype)
    addend = addend_dtype(out)
    bias = {None: None, "column": (n,), "row": (m, 1)}[arguments.bias]
    has_c = arguments.c or arguments.in_place
    y = Tensor.packed((*batch, m, n), out)
    c = (y if arguments.in_place else Tensor.packed(y.shape, addend)) if has_c and arguments.beta != 0 else None
    tensors = a, b, Tensor.packed(bias, addend) if bias is not None else None, c, *scale_tensors(arguments.scales, m, n, k)
    return make_problem(tensors, y if arguments.in_place else None, transpose_a, transpose_b, arguments.activation, arguments.math,
                        arguments.out_dtype, arguments.alpha != 1, arguments.beta != 1,
                        aliases=frozenset({"c"}) if c is not None and arguments.in_place else frozenset())


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


def parse_problem(words) -> MatmulProblem:
    """The problem a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x32x128 bf16 tn --bias --activation gelu".split()))
    matmul 64x32x128 bfloat16 tn + bias by column, gelu
    """
    parser = _Parser(add_help=False)
    add_arguments(parser)
    return make(parser.parse_args(list(words)))


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"matmul: {message}")


def _shape(text):
    if not re.fullmatch(r"\d+(x\d+){2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK or BxMxNxK")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


def _scales(text):
    words = {"tensor": "tensor,tensor", "row": "row,column", "block": "block,block"}.get(text, text).split(",")
    known = ("none", "tensor", "row", "block"), ("none", "tensor", "column", "block")
    if len(words) != 2 or any(word not in some for word, some in zip(words, known)):
        raise argparse.ArgumentTypeError(f"{text!r} is not tensor, row, block, or one of {', '.join(known[0])}, a comma, and one of "
                                         f"{', '.join(known[1])}")
    return tuple(None if word == "none" else word for word in words)


def _dtype(text):
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def from_record(record) -> MatmulProblem:
    """The problem that `dispatch.problem_record` made into JSON data; ValueError where it is something else."""
    return problem_from_record(MatmulProblem, "matmul", record)


def problem_from_record(make_it, op, record):
    """The problem with the fields of a record: an `Activation`, tensors, and plain values."""
    try:
        fields = dict(record)
        for name, value in fields.items():
            if isinstance(value, dict) and "shape" in value:
                fields[name] = Tensor(tuple(value["shape"]), tuple(value["strides"]), value["dtype"], value["alignment"])
        activation = fields["activation"]
        fields["activation"] = Activation(activation["mode"], **{name: float(v) for name, v in activation["parameters"]})
        return make_it(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{op}: not a record of a problem: {type(error).__name__}: {error}") from None


FAMILY = {"matmul": (add_arguments, make, from_record)}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""
