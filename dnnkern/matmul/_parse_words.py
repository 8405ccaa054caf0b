"""What the words of all products share: scales, alpha, activation, math, output type."""
import argparse

from ..device.activation import MODES
from ..device.index import ceil_div
from ..engine.scales import BLOCK
from ..host.products import MATH
from ..host.tensor import Tensor
from ..host.words import dtype_word


def add_operand_arguments(parser):
    """What all products have: 8-bit floats' second dtype and scales, alpha, activation, math, output type."""
    parser.add_argument("--dtype-b", type=dtype_word, help="of b, where it is another 8-bit float than a")
    parser.add_argument("--scales", type=_scales, default=(None, None), metavar="BY",
                        help="of 8-bit floats: tensor, row (and column), block, or two of none, tensor, row, column, block: row,tensor")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--activation", choices=sorted(MODES))
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--out-dtype", type=dtype_word)


def scale_tensors(by, m, n, k, lead=()):
    """Descriptors of the scales that ``--scales`` asks for."""
    blocks = ceil_div(k, BLOCK)
    shapes = ({"tensor": (1,), "row": (m, 1), "block": (m, blocks)},
              {"tensor": (1,), "column": (*lead, 1, n), "block": (*lead, blocks, ceil_div(n, BLOCK))})
    return tuple(None if name is None else Tensor.packed(known[name], "float32") for name, known in zip(by, shapes))


def _scales(text):
    words = {"tensor": "tensor,tensor", "row": "row,column", "block": "block,block"}.get(text, text).split(",")
    known = ("none", "tensor", "row", "block"), ("none", "tensor", "column", "block")
    if len(words) != 2 or any(word not in some for word, some in zip(words, known)):
        raise argparse.ArgumentTypeError(f"{text!r} is not tensor, row, block, or one of {', '.join(known[0])}, a comma, and one of "
                                         f"{', '.join(known[1])}")
    return tuple(None if word == "none" else word for word in words)
