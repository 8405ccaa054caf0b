"""Several arrays of one shape as the kernels see them: a few dimensions, along which each array has a stride.

Dimensions of size 1 are gone, neighbours that are one in every array are merged, the first output's strides are positive and descend. An
array that is broadcast along a dimension has the stride 0 there.
"""
import math
from dataclasses import dataclass

from ..host.tensor import Tensor

WIDE = 2 ** 31


@dataclass(frozen=True)
class Operand:
    """An array, or a part of one, spread over the shape of the results: `tensor` has that shape, and begins `first` elements from the
    address that the launch is given under `name`."""
    name: str
    tensor: Tensor
    first: int = 0

    @property
    def dtype(self):
        return self.tensor.dtype

    @property
    def itemsize(self):
        return self.tensor.itemsize

    @property
    def alignment(self):
        """Largest power of two up to 16 that divides the address of the first element that is used."""
        offset = self.first * self.itemsize
        return min(self.tensor.alignment, offset & -offset or 16)


@dataclass(frozen=True)
class Dim:
    """A dimension: its size, and the element stride of each array along it."""
    size: int
    strides: tuple


@dataclass(frozen=True)
class Form:
    """`arrays`: the inputs, then the outputs; `dims`: outermost first, one at least."""
    dims: tuple
    arrays: tuple
    inputs: int

    @property
    def size(self):
        """Elements of an output."""
        return math.prod(d.size for d in self.dims)

    @property
    def is_wide(self):
        """Whether an offset, in words of 32 bits or in elements, may not fit 32 bits."""
        return any(sum((d.size - 1) * abs(d.strides[k]) for d in self.dims) * max(a.itemsize // 4, 1) >= WIDE
                   for k, a in enumerate(self.arrays))


def spread(name, t, shape, first=0) -> Operand:
    """An operand that broadcasts to `shape`, as NumPy's arrays do."""
    missing = (0,) * (len(shape) - t.ndim)
    strides = missing + tuple(0 if n == 1 else s for n, s in zip(t.shape, t.strides))
    return Operand(name, Tensor(tuple(shape), strides, t.dtype, t.alignment), first)


def canonical(inputs, outputs) -> Form:
    """The form of operands that all have the shape of the outputs.

    >>> x, b = Tensor.packed((8, 4, 10), "float32"), Tensor.packed((4, 1), "float32")
    >>> form = canonical((spread("x", x, x.shape), spread("b", b, x.shape)), (spread("y", x, x.shape),))
    >>> form.dims
    (Dim(size=8, strides=(40, 0, 40)), Dim(size=4, strides=(10, 1, 10)), Dim(size=10, strides=(1, 0, 1)))
    """
    arrays, leader = (*inputs, *outputs), len(inputs)
    firsts, dims = [a.first for a in arrays], []
    for axis, n in enumerate(arrays[leader].tensor.shape):
        if n == 1:
            continue
        strides = [a.tensor.strides[axis] for a in arrays]
        if strides[leader] < 0:  # walk it the other way, in all arrays
            firsts = [first + (n - 1) * s for first, s in zip(firsts, strides)]
            strides = [-s for s in strides]
        dims.append(Dim(n, tuple(strides)))
    dims.sort(key=lambda d: -d.strides[leader])
    merged = []
    for d in dims:
        if merged and all(outer == s * d.size for outer, s in zip(merged[-1].strides, d.strides)):
            merged[-1] = Dim(merged[-1].size * d.size, d.strides)
        else:
            merged.append(d)
    if not merged:
        merged = [Dim(1, tuple(1 for _ in arrays))]
    return Form(tuple(merged), tuple(Operand(a.name, a.tensor, first) for a, first in zip(arrays, firsts)), leader)
