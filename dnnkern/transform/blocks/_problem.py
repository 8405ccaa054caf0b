"""Scaled blocks: validation, and the rows of blocks that algorithms read."""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...host.canonical import MOST_DIMENSIONS, check_output, normal_axes
from ...host.choices import dtype_of
from ...host.tensor import Tensor
from ._formats import LARGEST, SCALES

FLOATS = ("float32", "float16", "bfloat16")
QUANTIZE, DEQUANTIZE = BLOCK_SCALES = ("block_scale_quantize", "block_scale_dequantize")
FOUR_BITS = "float4_e2m1fn_x2"
"""What callers name two elements in a byte, the first in the lower bits; arrays of them are uint8."""


class Dim(NamedTuple):
    """A dimension of blocks: its size, and the element strides of the floats, of what is quantized, and of the scales."""
    size: int
    wide: int
    narrow: int
    scale: int


@dataclass(frozen=True)
class BlockScaleProblem:
    """``y = x / scale`` with a scale for each block, which is found too, or ``y = x * scale``: all but the addresses.

    Attributes
    ----------
    x, y : Tensor
        Of one shape, but that of uint8 has half of the elements along the axis.
    scale : Tensor
        The same shape, with blocks in place of elements along the axis.
    axis : int
    block : int
        Elements.
    op : str
    """
    x: Tensor
    y: Tensor
    scale: Tensor
    axis: int
    block: int
    op: str = QUANTIZE
    compute, scalar_type, flops = "float32", "float32", 0

    def __post_init__(self):
        op, names = self.op, ("x", "the result")
        for t, name, allowed in ((self.wide, names[not self.quantizes], FLOATS), (self.narrow, names[self.quantizes], tuple(LARGEST)),
                                 (self.scale, "scale", SCALES if self.quantizes else (*SCALES, *FLOATS))):
            if t.dtype not in allowed:
                raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(allowed)}")
        if self.x.ndim > MOST_DIMENSIONS or not self.x.ndim:
            raise ValueError(f"{op}: x has {self.x.ndim} dimensions (shape {self.x.shape}); expected 1 to {MOST_DIMENSIONS}")
        if not 0 <= self.axis < self.x.ndim:
            raise ValueError(f"{op}: axis={self.axis!r}; expected a dimension of x, of shape {self.x.shape}")
        if self.block < 1 or self.block % self.packed:
            raise ValueError(f"{op}: block_size={self.block}; expected {'an even number' if self.packed == 2 else 'one element at least'}")
        if self.length % self.block:
            raise ValueError(f"{op}: x has {self.length} elements along axis {self.axis} (shape {self.x.shape}); expected blocks of "
                             f"{self.block}")
        given, shape = (self.y, self.shape_with(self.length // self.packed)) if self.quantizes else (self.y, self.shape_with(self.length))
        check_output(op, given, shape, given.dtype)
        blocks = self.shape_with(self.length // self.block)
        if self.quantizes:
            check_output(op, self.scale, blocks, self.scale.dtype, "the out for scales")
        elif self.scale.shape != blocks:
            raise ValueError(f"{op}: scale has shape {self.scale.shape}; expected {blocks}, one for each block of {self.block}")

    @property
    def quantizes(self):
        return self.op == QUANTIZE

    @property
    def wide(self):
        """The floats."""
        return self.x if self.quantizes else self.y

    @property
    def narrow(self):
        """What is quantized."""
        return self.y if self.quantizes else self.x

    @property
    def packed(self):
        """Elements in a byte."""
        return 2 if self.narrow.dtype == "uint8" else 1

    @property
    def length(self):
        """Elements along the axis."""
        return self.x.shape[self.axis] * (1 if self.quantizes else self.packed)

    def shape_with(self, count):
        """x's shape with another extent along the axis."""
        return (*self.x.shape[:self.axis], count, *self.x.shape[self.axis + 1:])

    @functools.cached_property
    def dims(self):
        """`Dim`s of the blocks, in the order of the floats' strides, merged where all three arrays allow it."""
        blocks, found = self.length // self.block, []
        for d, (n, *strides) in enumerate(zip(self.x.shape, self.wide.strides, self.narrow.strides, self.scale.strides)):
            if d == self.axis:
                n, strides = blocks, (strides[0] * self.block, strides[1] * self.block // self.packed, strides[2])
            if n != 1:
                found.append(Dim(n, *strides))
        merged = []
        for d in sorted(found, key=lambda d: -abs(d.wide)):
            last = merged[-1] if merged else None
            if last and last[1:] == (d.wide * d.size, d.narrow * d.size, d.scale * d.size):
                merged[-1] = Dim(last.size * d.size, *d[1:])
            else:
                merged.append(d)
        return tuple(merged) or (Dim(1, 0, 0, 0),)

    @property
    def blocks(self):
        """How many there are."""
        return self.scale.size

    @property
    def steps(self):
        """Strides along the axis, of the floats and of what is quantized."""
        return self.wide.strides[self.axis], self.narrow.strides[self.axis]

    @property
    def outputs(self):
        return (self.y, self.scale) if self.quantizes else (self.y,)

    @property
    def is_empty(self):
        return not self.y.size

    @property
    def bytes(self):
        """Bytes that must move: each array once."""
        return self.x.nbytes + self.y.nbytes + self.scale.nbytes

    def operand_values(self, name):
        """Scales to measure with are those of ordinary numbers."""
        if name != "scale":
            return None
        import numpy as np
        return np.ones(self.scale.shape)

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y), ("scale", self.scale))
                          if not t.is_packed)
        return (f"{self.op} {'x'.join(map(str, self.x.shape))} {self.x.dtype} -> {self.y.dtype}, scales {self.scale.dtype}, blocks of "
                f"{self.block} along axis {self.axis}{strided}")


def narrow_dtype(op, dtype):
    """The dtype of what callers ask to be quantized to."""
    return "uint8" if isinstance(dtype, str) and dtype == FOUR_BITS else dtype_of(op, "dtype", dtype, (*list(LARGEST)[:2], FOUR_BITS))


def _axis(op, x, axis):
    if x is None:
        raise TypeError(f"{op}: x: got NoneType; expected an array")
    if not x.ndim:
        raise ValueError(f"{op}: x has no dimensions; expected one at least")
    return normal_axes(axis, x.ndim, op)[0]


def make_quantize(tensors, outs, block, axis, dtype, scale_dtype, aliases):
    """`BlockScaleProblem` of a call of `block_scale_quantize`."""
    (x,) = tensors
    axis = _axis(QUANTIZE, x, axis)
    narrow = narrow_dtype(QUANTIZE, dtype)
    found = SCALES[narrow == "uint8"] if scale_dtype is None else dtype_of(QUANTIZE, "scale_dtype", scale_dtype, SCALES)
    if outs is None:
        def shape(elements):
            return (*x.shape[:axis], x.shape[axis] // elements, *x.shape[axis + 1:])
        outs = Tensor.packed(shape(2 if narrow == "uint8" else 1), narrow), Tensor.packed(shape(block), found)
    y, scale = outs
    for given, wanted, name in ((y, narrow, "dtype"), (scale, found, "scale_dtype")):
        if given.dtype != wanted:
            raise TypeError(f"{QUANTIZE}: out has {given.dtype}, {name} asks for {wanted}")
    return BlockScaleProblem(x, y, scale, axis, block)


def make_dequantize(tensors, out, block, axis, dtype, aliases):
    """`BlockScaleProblem` of a call of `block_scale_dequantize`."""
    x, scale = tensors
    axis = _axis(DEQUANTIZE, x, axis)
    if scale is None:
        raise TypeError(f"{DEQUANTIZE}: scale: got NoneType; expected an array")
    wanted = dtype_of(DEQUANTIZE, "dtype", dtype, FLOATS)
    if out is not None and out.dtype != wanted:
        raise TypeError(f"{DEQUANTIZE}: out is {out.dtype}, dtype asks for {wanted}")
    packed = 2 if x.dtype == "uint8" else 1
    shape = (*x.shape[:axis], x.shape[axis] * packed, *x.shape[axis + 1:])
    return BlockScaleProblem(x, out if out is not None else Tensor.packed(shape, wanted), scale, axis, block, DEQUANTIZE)
