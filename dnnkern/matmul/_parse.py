"""Matrix products in words: ``4096x4096x4096 bf16 tn --bias --activation gelu``, for the command line and for lists of shapes."""
import argparse
import re

from ..device.epilogue import PARAMETERS, Activation
from ..host.dtypes import dtype_name
from ..host.tensor import Tensor
from ._problem import INPUTS, MATH, MatmulProblem, make_problem

LARGEST = 2 ** 31 - 1


def add_arguments(parser: argparse.ArgumentParser):
    """The words that describe a matrix product."""
    parser.add_argument("shape", type=_shape, metavar="MxNxK", help="sizes, or BxMxNxK for a batch")
    parser.add_argument("dtype", type=_dtype, help="of the operands: " + ", ".join(INPUTS) + ", or a short name (bf16, f32, ...)")
    parser.add_argument("layout", nargs="?", default="nn", choices=("nn", "nt", "tn", "tt"),
                        help="t: the operand is stored transposed (default nn)")
    parser.add_argument("--bias", nargs="?", const="column", choices=("column", "row"), help="add a vector by column (default) or by row")
    parser.add_argument("--c", action="store_true", help="add beta * c, a matrix like the result")
    parser.add_argument("--in-place", action="store_true", help="the same, and c is the output")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--beta", type=float, default=1.0)
    parser.add_argument("--activation", choices=sorted(PARAMETERS))
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--out-dtype", type=_dtype)


def make(arguments) -> MatmulProblem:
    """The problem that parsed words describe: packed operands, aligned to 16 bytes."""
    *batch, m, n, k = arguments.shape
    transpose_a, transpose_b = (letter == "t" for letter in arguments.layout)
    a = Tensor.packed((*batch, *((k, m) if transpose_a else (m, k))), arguments.dtype)
    b = Tensor.packed((*batch, *((n, k) if transpose_b else (k, n))), arguments.dtype)
    out = arguments.out_dtype or ("int32" if arguments.dtype == "int8" else arguments.dtype)
    addend = "float32" if out == "int8" else out
    bias = {None: None, "column": (n,), "row": (m, 1)}[arguments.bias]
    has_c = arguments.c or arguments.in_place
    y = Tensor.packed((*batch, m, n), out)
    c = (y if arguments.in_place else Tensor.packed(y.shape, addend)) if has_c and arguments.beta != 0 else None
    tensors = a, b, Tensor.packed(bias, addend) if bias is not None else None, c
    return make_problem(tensors, y if arguments.in_place else None, transpose_a, transpose_b, arguments.activation, arguments.math,
                        arguments.out_dtype, arguments.alpha != 1, arguments.beta != 1,
                        aliases=frozenset({"c"}) if c is not None and arguments.in_place else frozenset())


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


def _dtype(text):
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def from_record(record) -> MatmulProblem:
    """The problem that `dispatch.problem_record` made into JSON data; ValueError where it is something else."""
    try:
        fields = dict(record)
        for name in ("a", "b", "y", "bias", "c"):
            if fields[name] is not None:
                t = fields[name]
                fields[name] = Tensor(tuple(t["shape"]), tuple(t["strides"]), t["dtype"], t["alignment"])
        activation = fields["activation"]
        fields["activation"] = Activation(activation["mode"], **{name: float(v) for name, v in activation["parameters"]})
        return MatmulProblem(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"matmul: not a record of a problem: {type(error).__name__}: {error}") from None


FAMILY = {"matmul": (add_arguments, make, from_record)}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""
