"""The transposition problem: validation, shapes, and the canonical form that algorithms read.

Whatever the ranks, axes and strides were, algorithms see a few dimensions, each with a size and an element stride in either array. Those of
size 1 are gone, those that are one in both arrays are merged, y's strides are positive and descend.
"""
import functools
import math
import operator
from dataclasses import dataclass

from ..host.canonical import MOST_DIMENSIONS, Dim, Canonical, aligned_to, sizes_text, canonical, check_output
from ..host.dtypes import ITEMSIZE
from ..host.scalars import shown
from ..host.tensor import Tensor

DTYPES = tuple(name for name in ITEMSIZE if name != "bool")
MOVES = ("transpose", "strided_slice", "depth_to_space", "space_to_depth")
"""Operations whose problems are `Moves`: one set of kernels solves them all."""


class Moves:
    """What algorithms and the front end read of a problem whose result is the elements of x in another order.

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
        if (last.x, last.y) != (1, 1) or nbytes not in (2, 4, 8, 16) or not rest or min(self.alignments(form)) < nbytes:
            return form
        if any(v % last.size for d in rest for v in (d.x, d.y)) or form.x_first % last.size or form.y_first % last.size:
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
    """``y[i0, i1, ...] = x[j0, j1, ...]`` with ``i_k = j_axes[k]``: all but the addresses.

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
