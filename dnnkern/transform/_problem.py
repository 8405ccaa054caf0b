"""The transposition problem: validation, shapes, and the canonical form that algorithms read.

Whatever the ranks, axes and strides were, algorithms see a few dimensions, each with a size and an element stride in either array. Those of
size 1 are gone, those that are one in both arrays are merged, y's strides are positive and descend.
"""
import functools
import math
import operator
from dataclasses import dataclass

from ..host.dtypes import ITEMSIZE
from ..host.scalars import shown
from ..host.tensor import Tensor

MOST_DIMENSIONS = 8
DTYPES = tuple(name for name in ITEMSIZE if name != "bool")
MOVES = ("transpose", "strided_slice", "depth_to_space", "space_to_depth")
"""Operations whose problems are `Moves`: one set of kernels solves them all."""


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


class Moves:
    """What algorithms and the front end read of a problem whose result is elements of x in other places.

    A problem has `op`, `x`, `y` and `canonical`, the elements as they are.
    """
    compute = "float32"  # bits are moved: no kernel computes in float64
    scalar_type = "float32"
    flops = 0

    @functools.cached_property
    def units(self) -> Canonical:
        """The same with short runs of neighbours, which stay neighbours, as one element of up to 16 bytes."""
        form = self.canonical
        *rest, last = form.dims
        nbytes = last.size * form.itemsize
        whole = all(v % last.size == 0 for d in rest for v in (d.x, d.y)) and rest
        whole = whole and form.x_first % last.size == form.y_first % last.size == 0
        if (last.x, last.y) != (1, 1) or nbytes not in (2, 4, 8, 16) or not whole or min(self.alignments(form)) < nbytes:
            return form
        dims = tuple(Dim(d.size, d.x // last.size, d.y // last.size) for d in rest)
        return Canonical(dims, nbytes, form.x_first // last.size, form.y_first // last.size)

    def alignments(self, form):
        """Bytes, at most 16, to which the first elements of x and y of a form are aligned."""
        return aligned_to(self.x, form.x_first, form.itemsize), aligned_to(self.y, form.y_first, form.itemsize)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return self.y.size == 0

    @property
    def read_bytes(self):
        """Bytes of the distinct elements of x that are read."""
        return math.prod(d.size for d in self.canonical.dims if d.x) * self.x.itemsize

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.read_bytes + self.y.nbytes

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y)) if not t.is_packed)
        return f"{self.op} {sizes_text(self.x.shape)} {self.x.dtype} {self.words}{strided}"


@dataclass(frozen=True)
class TransposeProblem(Moves):
    """``y[i0, i1, ...] = x[j0, j1, ...]`` with ``i_k = j_axes[k]``: everything but the addresses.

    Attributes
    ----------
    x, y : Tensor
    axes : tuple of int
        Dimension k of y is dimension ``axes[k]`` of x.
    """
    x: Tensor
    y: Tensor
    axes: tuple
    op = "transpose"

    def __post_init__(self):
        check_moved("transpose", self.x)
        if self.axes != normal_axes(self.axes, self.x.ndim, "transpose"):
            raise ValueError(f"transpose: axes={self.axes} are not normalised")
        check_output("transpose", self.y, tuple(self.x.shape[a] for a in self.axes), self.x.dtype)

    @functools.cached_property
    def canonical(self) -> Canonical:
        """The elements as they are."""
        return canonical(self.y.shape, tuple(self.x.strides[a] for a in self.axes), self.y.strides, self.x.itemsize)

    @property
    def words(self):
        """In the words of the command line."""
        return ",".join(map(str, self.axes))


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

    >>> canonical((2, 3, 4, 5), (60, 5, 15, 1), (60, 20, 5, 1), 4).dims        # the last dimension stays, the middle ones change places
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


def normal_axes(axes, ndim, function):
    """The axes as a tuple of numbers from 0 on; the error names `function`."""
    try:
        given = tuple(operator.index(a) for a in axes)
    except TypeError:
        raise TypeError(f"{function}: axes={axes!r}; expected {ndim} integers") from None
    found = tuple(a + ndim if a < 0 else a for a in given)
    if sorted(found) != list(range(ndim)):
        raise ValueError(f"{function}: axes={given}; expected each of the {ndim} dimensions of x once")
    return found


def check_moved(function, x, name="x"):
    """An operand whose elements are moved: present, of a dtype and rank that kernels have."""
    if x is None:
        raise TypeError(f"{function}: {name}: got NoneType; expected an array")
    if x.dtype not in DTYPES:
        raise TypeError(f"{function}: {name} is {x.dtype}; expected one of {', '.join(DTYPES)}")
    if x.ndim > MOST_DIMENSIONS:
        raise ValueError(f"{function}: {name} has {x.ndim} dimensions (shape {x.shape}); expected {MOST_DIMENSIONS} at most")


def check_output(function, y, shape, dtype):
    """An output of this shape and dtype, whose elements have addresses of their own."""
    if y.dtype != dtype:
        raise TypeError(f"{function}: out is {y.dtype}, the result is {dtype}")
    if y.shape != shape:
        raise ValueError(f"{function}: out has shape {y.shape}, the result has {shape}")
    if y.size and any(s == 0 for n, s in zip(y.shape, y.strides) if n > 1):
        raise ValueError(f"{function}: out has shape {y.shape} and strides {y.strides}; several elements share one address")


def make_problem(tensors, out, axes, aliases, function="transpose"):
    """`TransposeProblem` of a call."""
    (x,) = tensors
    check_moved(function, x)
    axes = normal_axes(axes, x.ndim, function)
    shape = tuple(x.shape[a] for a in axes)
    if out is not None:
        check_output(function, out, shape, x.dtype)
    return TransposeProblem(x, out if out is not None else Tensor.packed(shape, x.dtype), axes)


# ---- layouts by name

_GENERIC = {"NCHW": ("NC", "DHW", ""), "NHWC": ("N", "DHW", "C"), "KCRS": ("KC", "TRS", ""), "KRSC": ("K", "TRS", "C")}


def layout_letters(name, ndim, argument):
    """A letter for each dimension: NCHW, NHWC, KCRS and KRSC stand for their forms of any number of spatial dimensions."""
    if not isinstance(name, str) or not name.isalpha():
        raise TypeError(f"convert_layout: {argument}={shown(name)}; expected a word of one letter for each dimension, such as 'NHWC'")
    if name in _GENERIC and 3 <= ndim <= 5:
        first, spatial, last = _GENERIC[name]
        return first + spatial[5 - ndim:] + last
    if len(set(name)) != len(name):
        raise ValueError(f"convert_layout: {argument}={shown(name)} names a dimension twice")
    if len(name) != ndim:
        raise ValueError(f"convert_layout: {argument}={shown(name)} has {len(name)} letters, x has {ndim} dimensions")
    return name


def make_layout_problem(tensors, out, source, target, aliases):
    """`TransposeProblem` of a call of convert_layout."""
    (x,) = tensors
    check_moved("convert_layout", x)
    have, want = layout_letters(source, x.ndim, "source"), layout_letters(target, x.ndim, "target")
    if sorted(have) != sorted(want):
        raise ValueError(f"convert_layout: source={shown(source)} and target={shown(target)} name different dimensions: {have} and {want}")
    return make_problem(tensors, out, tuple(have.index(letter) for letter in want), aliases, "convert_layout")
