"""Dropout masks of attention: validation."""
from dataclasses import dataclass

from ...host import seeds
from ...host.canonical import check_output, sizes_text
from ...host.products import FLOATS
from ...host.tensor import Tensor
from .._checks import present

OP = "sdpa_dropout_mask"
GROUP = 8
"""Keys of one call of Philox."""


@dataclass(frozen=True)
class DropoutMaskProblem(seeds.Drawn):
    """``y[b, h, i, j] = 1 where attention keeps the probability, else 0``, y being of x's shape and dtype, and mostly x itself.

    Attributes
    ----------
    x, y : Tensor
        (B, H, S, N).
    in_place : bool
        x is y.
    seed_array, offset_array : Tensor or None
        Where the seed and the offset are read from; None: they are numbers of the call.
    """
    x: Tensor
    y: Tensor
    in_place: bool = True
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op, flops, scalar_type = OP, 0, "float32"
    scalar_types = {"seed": "uint64", "offset": "uint64", "threshold": "uint32"}

    def __post_init__(self):
        x = self.x
        if x.dtype not in FLOATS:
            raise TypeError(f"{OP}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if x.ndim != 4:
            raise ValueError(f"{OP}: x has shape {x.shape}; expected four dimensions, (B, H, S, N)")
        check_output(OP, self.y, x.shape, x.dtype)
        seeds.check(OP, self.seed_array, self.offset_array)

    def __str__(self):
        strided = "" if self.y.is_packed else f" strides {self.y.strides}"
        return f"{OP} {sizes_text(self.y.shape)} {self.dtype}{seeds.in_words(self)}{strided}"


def make_dropout_mask(tensors, out, aliases):
    """`DropoutMaskProblem` of a call; in place where there is no `out`."""
    x, *words = tensors
    present(OP, ("x",), (x,))
    return DropoutMaskProblem(x, x if out is None else out, "x" in aliases, *words)
