"""Scales of 8-bit floating operands: which shapes they may have, and how kernels apply them.

A scale is one number for the whole operand, one for each row of a or column of b, or one for each block: 1 x 128 of a along k, 128 x 128 of
b. The first two are factors of a whole sum and belong to the epilogue; those of blocks change along k, so that a main loop multiplies the
sum over each block by them before it adds it to the others'.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import device_function, i64
from ..device.index import ceil_div
from ..host.launch import Argument
from ..host.products import FP8

BLOCK = 128


class ScaleStrides(NamedTuple):
    """Element strides of scale_a along rows and blocks of k, of scale_b along blocks of k and along columns or blocks of them.

    They are 0 where there is one value for all.
    """
    a_row: i64
    a_block: i64
    b_block: i64
    b_column: i64


@dataclass(frozen=True)
class Scales:
    """How the two operands of a product are scaled.

    Attributes
    ----------
    a : None, "tensor", "row" or "block"
    b : None, "tensor", "column" or "block"
    strides : ScaleStrides
    names : (str, str)
        The operands' names in the plan.
    """
    a: str | None = None
    b: str | None = None
    strides: ScaleStrides = ScaleStrides(0, 0, 0, 0)
    names: tuple = ("scale_a", "scale_b")

    @property
    def by_block(self):
        """Whether a main loop has to apply some of them."""
        return "block" in (self.a, self.b)

    @property
    def in_epilogue(self):
        """`EpilogueSpec.scales` for those that are factors of the whole sum."""
        return tuple(None if by == "block" else by for by in (self.a, self.b))

    def swapped(self):
        """Those of the transposed product; blocks then lie the other way, which its main loop has to know."""
        across = {"row": "column", "column": "row"}
        return Scales(across.get(self.b, self.b), across.get(self.a, self.a), ScaleStrides(*self.strides[::-1]), self.names[::-1])

    def __str__(self):
        return "scales by " + " and ".join(by or "nothing" for by in (self.a, self.b))

    def arguments(self) -> tuple:
        """The kernel parameters scale_a, scale_b and their strides."""
        return tuple(Argument("float32*", name) for name in self.names) + (Argument(ScaleStrides, self.strides),)


def scales_of(op, a, b, scale_a, scale_b, m, n, k, lead=()) -> Scales:
    """`Scales` of descriptors, None for a missing one; TypeError or ValueError where they do not fit the operands.

    `lead` are the dimensions in front of (k, n) that b has one matrix for each index of, and a scale by column or block with it.
    """
    for name, t, operand, tensor in (("scale_a", scale_a, "a", a), ("scale_b", scale_b, "b", b)):
        if t is None:
            continue
        if tensor.dtype not in FP8:
            raise TypeError(f"{op}: {name} is for an operand of {' or '.join(FP8)}, {operand} is {tensor.dtype}")
        if t.dtype != "float32":
            raise TypeError(f"{op}: {name} is {t.dtype}; expected float32")
    blocks = ceil_div(k, BLOCK)
    by_a = _by(op, "scale_a", scale_a, {"row": (m, 1), "block": (m, blocks)}, f"blocks of {BLOCK} along k")
    by_b = _by(op, "scale_b", scale_b, {"column": (*lead, 1, n), "block": (*lead, blocks, ceil_div(n, BLOCK))},
               f"blocks of {BLOCK}x{BLOCK}")
    along_m, along_ka = _strides(scale_a, by_a)
    along_kb, along_n = _strides(scale_b, by_b)
    return Scales(by_a, by_b, ScaleStrides(along_m, along_ka, along_kb, along_n))


def _by(op, name, t, shapes, blocks):
    """Which of the shapes a scale has."""
    if t is None:
        return None
    line = next(iter(shapes))
    for by, shape in shapes.items():
        if t.shape == shape:
            return by
    if t.size == 1 and t.ndim <= len(shapes[line]):
        return "tensor"
    raise ValueError(f"{op}: {name} has shape {t.shape}; expected one element, {shapes[line]} by {line}, or {shapes['block']} by {blocks}")


def _strides(t, by):
    """Element strides along the last two dimensions, 0 along those of size 1."""
    if by in (None, "tensor"):
        return 0, 0
    return tuple(0 if size == 1 else stride for size, stride in zip(t.shape[-2:], t.strides[-2:]))


@functools.cache
def make_block_factor(a, b):
    """Device function ``factor(m, n, block, scale_a, scale_b, strides)``: what the sum over one block of k is multiplied by.

    `a` and `b` are those of `Scales`; what is not by block is left to the epilogue.
    """
    by_a, by_b = a == "block", b == "block"

    if by_a and by_b:
        def factor(m, n, block, scale_a, scale_b, strides):
            x = scale_a[m * strides.a_row + block * strides.a_block]
            return x * scale_b[block * strides.b_block + (n >> 7) * strides.b_column]
    elif by_a:
        def factor(m, n, block, scale_a, scale_b, strides):
            return scale_a[m * strides.a_row + block * strides.a_block]
    else:
        def factor(m, n, block, scale_a, scale_b, strides):
            return scale_b[block * strides.b_block + (n >> 7) * strides.b_column]
    return device_function(factor)
