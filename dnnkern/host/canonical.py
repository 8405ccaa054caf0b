"""The canonical form of moving elements between two arrays: few dimensions, each with a size and an element stride in either."""
import math
import operator
from dataclasses import dataclass

MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Dim:
    """A dimension of both arrays: its size, and the element strides of x and y along it."""
    size: int
    x: int
    y: int


@dataclass(frozen=True)
class Canonical:
    """What is moved: elements of `itemsize` bytes along `dims`, the first of them `x_first` and `y_first` elements from the arrays' own."""
    dims: tuple
    itemsize: int
    x_first: int = 0
    y_first: int = 0

    @property
    def size(self):
        """Number of elements."""
        return math.prod(d.size for d in self.dims)

    @property
    def is_wide(self):
        """Whether an offset, counted from the first element, does not fit 32 bits."""
        return any(sum((d.size - 1) * abs(s) for d, s in zip(self.dims, strides)) * max(self.itemsize // 4, 1) >= 2 ** 31
                   for strides in ([d.x for d in self.dims], [d.y for d in self.dims]))


def aligned_to(tensor, first, itemsize):
    """Bytes, at most 16, to which element `first`, of `itemsize` bytes, of an array is aligned."""
    offset = first * itemsize
    return min(tensor.alignment, offset & -offset or 16)


def sizes_text(shape):
    """A shape in words: 64x256, or scalar."""
    return "x".join(map(str, shape)) or "scalar"


def canonical(shape, x_strides, y_strides, itemsize, x_first=0, y_first=0) -> Canonical:
    """The canonical form of moving elements between two arrays of one shape, or parts of arrays that begin at elements `x_first` and
    `y_first`.

    >>> canonical((2, 3, 4, 5), (60, 5, 15, 1), (60, 20, 5, 1), 4).dims        # the last dimension stays, the middle ones are swapped
    (Dim(size=2, x=60, y=60), Dim(size=3, x=5, y=20), Dim(size=4, x=15, y=5), Dim(size=5, x=1, y=1))
    >>> canonical((2, 3, 4), (12, 4, 1), (12, 4, 1), 4).dims                   # a copy
    (Dim(size=24, x=1, y=1),)
    """
    dims = []
    for n, x, y in zip(shape, x_strides, y_strides):
        if n == 1:
            continue
        if y < 0:  # walk it the other way, in both arrays
            x_first, y_first, x, y = x_first + (n - 1) * x, y_first + (n - 1) * y, -x, -y
        dims.append(Dim(n, x, y))
    dims.sort(key=lambda d: (-d.y, -abs(d.x)))
    merged = []
    for d in dims:
        if merged and merged[-1].x == d.x * d.size and merged[-1].y == d.y * d.size:
            merged[-1] = Dim(merged[-1].size * d.size, d.x, d.y)
        else:
            merged.append(d)
    return Canonical(tuple(merged) or (Dim(1, 1, 1),), itemsize, x_first, y_first)


def check_output(function, y, shape, dtype, name="out"):
    """An output of this shape and dtype, whose elements have addresses of their own."""
    if y.dtype != dtype:
        raise TypeError(f"{function}: {name} is {y.dtype}, the result is {dtype}")
    if y.shape != shape:
        raise ValueError(f"{function}: {name} has shape {y.shape}, the result has {shape}")
    y.check_addresses(function, name)


def normal_axes(axes, ndim, function="reduce"):
    """The axes as ascending numbers from 0 on; None is all of them, an int one."""
    if axes is None:
        return tuple(range(ndim))
    try:
        given = tuple(map(operator.index, axes)) if hasattr(axes, "__iter__") else (operator.index(axes),)
    except TypeError:
        raise TypeError(f"{function}: axes={axes!r}; expected None, an int or several") from None
    for a in given:
        if not -ndim <= a < ndim:
            raise ValueError(f"{function}: axes={axes!r}; {a} is none of the {ndim} dimensions of x")
    found = tuple(sorted(a % ndim for a in given))
    if len(set(found)) < len(found):
        raise ValueError(f"{function}: axes={axes!r} name a dimension twice")
    return found
