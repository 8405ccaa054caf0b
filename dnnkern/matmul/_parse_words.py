"""What the words of all products share: dtypes, scales, alpha, activation, math, output type; and problems out of records."""
import argparse

from ..device.epilogue import PARAMETERS, Activation
from ..device.index import ceil_div
from ..host.dtypes import dtype_name
from ..host.tensor import Tensor
from ._problem import INPUTS, MATH
from ._scales import BLOCK, FP8

LARGEST = 2 ** 31 - 1
DTYPE_HELP = "of the operands: " + ", ".join(INPUTS) + ", or a short name (bf16, f32, e4m3, ...)"


def add_operand_arguments(parser):
    """What all products have: 8-bit floats' second dtype and scales, alpha, activation, math, output type."""
    parser.add_argument("--dtype-b", type=dtype_word, help="of b, where it is another 8-bit float than a")
    parser.add_argument("--scales", type=_scales, default=(None, None), metavar="BY",
                        help="of 8-bit floats: tensor, row (and column), block, or two of none, tensor, row, column, block: row,tensor")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--activation", choices=sorted(PARAMETERS))
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--out-dtype", type=dtype_word)


def scale_tensors(by, m, n, k, lead=()):
    """Descriptors of the scales that ``--scales`` asks for."""
    blocks = ceil_div(k, BLOCK)
    shapes = ({"tensor": (1,), "row": (m, 1), "block": (m, blocks)},
              {"tensor": (1,), "column": (*lead, 1, n), "block": (*lead, blocks, ceil_div(n, BLOCK))})
    return tuple(None if name is None else Tensor.packed(known[name], "float32") for name, known in zip(by, shapes))


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


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


def _scales(text):
    words = {"tensor": "tensor,tensor", "row": "row,column", "block": "block,block"}.get(text, text).split(",")
    known = ("none", "tensor", "row", "block"), ("none", "tensor", "column", "block")
    if len(words) != 2 or any(word not in some for word, some in zip(words, known)):
        raise argparse.ArgumentTypeError(f"{text!r} is not tensor, row, block, or one of {', '.join(known[0])}, a comma, and one of "
                                         f"{', '.join(known[1])}")
    return tuple(None if word == "none" else word for word in words)


def dtype_word(text):
    """A dtype's name, given as one of its names; argparse's error where it is none."""
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
