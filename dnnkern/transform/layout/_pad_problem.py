"""The problems of an array with borders round it, and of an array filled with a value, which is a border round nothing."""
import functools
from dataclasses import dataclass

from ...host.canonical import aligned_to, canonical, check_output, sizes_text
from ...host.choices import one_of
from ...host.dtypes import compute_dtype
from ...host.products import FLOATS
from ...host.tensor import Tensor
from ...host.window import integer
from .._problem import check_moved
from ._borders import MODES
from ._rows import value_type

PADS = ("pad", "set_tensor")
"""Operations whose problems are `Bordered`: one set of kernels solves them all."""


@dataclass(frozen=True)
class Border:
    """A dimension of y: its size, x's strides and y's along it, and x's part of it: `inner` elements, after the first `before`."""
    size: int
    x: int
    y: int
    before: int
    inner: int


@dataclass(frozen=True)
class BorderForm:
    """What is moved and filled in: elements of `itemsize` bytes along `dims`, the first of them `x_first` and `y_first` elements from the
    arrays' own. y's strides are positive and descend."""
    dims: tuple
    itemsize: int
    x_first: int
    y_first: int

    @property
    def is_wide(self):
        """Whether an offset, counted from the first element, does not fit 32 bits."""
        extents = (sum((d.inner - 1) * abs(d.x) for d in self.dims if d.inner), sum((d.size - 1) * d.y for d in self.dims))
        return max(extents) * max(self.itemsize // 4, 1) >= 2 ** 31


class Bordered:
    """What algorithms and the front end read of a problem: it has `x`, `y`, `mode`, `form`, and `read_bytes`, those of x."""
    flops = 0

    @property
    def compute(self):
        return self.scalar_type

    @functools.cached_property
    def scalar_type(self):
        """Of the value that is filled in."""
        return value_type(self.y.dtype)

    @property
    def filled(self):
        """The dtype that the value becomes; None where there is no value."""
        return self.y.dtype if self.mode == "constant" else None

    @property
    def alignment(self):
        """Bytes, at most 16, to which the first element of y is aligned."""
        return aligned_to(self.y, self.form.y_first, self.form.itemsize)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return self.y.size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.read_bytes + self.y.nbytes

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y)) if not t.is_packed)
        return f"{self.op} {sizes_text(self.x.shape)} {self.x.dtype}{self.words}{strided}"


@dataclass(frozen=True)
class PadProblem(Bordered):
    """``y = numpy.pad(x, pads, mode)``: all but the addresses and the value of the borders.

    Attributes
    ----------
    x, y : Tensor
    pads : tuple of (int, int)
        Elements before and after x, a pair a dimension.
    mode : "constant", "edge" or "reflect"
    """
    x: Tensor
    y: Tensor
    pads: tuple
    mode: str = "constant"
    op = "pad"

    def __post_init__(self):
        check_moved(self.op, self.x)
        check_output(self.op, self.y, padded_shape(self.x.shape, self.pads, self.mode), self.x.dtype)

    @functools.cached_property
    def form(self) -> BorderForm:
        """Of x and y."""
        return border_form(self.x, self.y, self.pads, self.mode)

    @property
    def read_bytes(self):
        """Bytes of x."""
        return self.x.nbytes

    @property
    def words(self):
        """In the words of the command line."""
        return _words(self.pads, self.mode)


@dataclass(frozen=True)
class PadGradientProblem:
    """The gradient of `PadProblem` with respect to x: each element of dx is the sum of those of dy that are copies of it.

    Attributes
    ----------
    dy, dx : Tensor
    pads : tuple of (int, int)
        Elements before and after x, a pair a dimension.
    mode : "constant", "edge" or "reflect"
    """
    dy: Tensor
    dx: Tensor
    pads: tuple
    mode: str = "constant"
    op = "pad_bwd"
    scalar_type = "float32"

    def __post_init__(self):
        _check_gradient(self.dy)
        if self.dy.shape != padded_shape(self.dx.shape, self.pads, self.mode, self.op):
            raise ValueError(f"pad_bwd: dy has shape {self.dy.shape}, dx {self.dx.shape}, pads={self.pads}")
        check_output(self.op, self.dx, self.dx.shape, self.dy.dtype)

    @functools.cached_property
    def form(self) -> BorderForm:
        """Of dx as x, and dy as y."""
        return border_form(self.dx, self.dy, self.pads, self.mode)

    @property
    def dtype(self):
        """Of both."""
        return self.dx.dtype

    @property
    def compute(self):
        """Type of the sums."""
        return compute_dtype(self.dtype)

    @property
    def outputs(self):
        return (self.dx,)

    @property
    def is_empty(self):
        return self.dx.size == 0

    @property
    def flops(self):
        return self.dy.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written; with "constant" the borders are not read."""
        return (self.dx.nbytes if self.mode == "constant" else self.dy.nbytes) + self.dx.nbytes

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("dy", self.dy), ("dx", self.dx)) if not t.is_packed)
        return f"{self.op} {sizes_text(self.dx.shape)} {self.dx.dtype}{_words(self.pads, self.mode)}{strided}"


def _words(pads, mode):
    return f" {','.join(str(a) if a == b else f'{a}:{b}' for a, b in pads)}{' ' + mode if mode != 'constant' else ''}"


def border_form(inside, whole, pads, mode) -> BorderForm:
    """The dimensions of an array and of one with borders round it, those merged that are one in both: with a border, if it is filled with a
    value, only the outer one."""
    x_first = y_first = 0
    dims = []
    for n, m, x, y, (before, after) in zip(whole.shape, inside.shape, inside.strides, whole.strides, pads):
        if n == 1 and m == 1:
            continue
        if y < 0:  # walk it the other way, in both arrays
            x_first, y_first, x, y, before = x_first + max(m - 1, 0) * x, y_first + (n - 1) * y, -x, -y, after
        dims.append(Border(n, x, y, before, m))
    dims.sort(key=lambda d: (-d.y, -abs(d.x)))
    merged = []
    for d in dims:
        outer = merged[-1] if merged else None
        if outer and d.size == d.inner and (outer.x, outer.y) == (d.x * d.size, d.y * d.size) and (
                mode == "constant" or outer.size == outer.inner):
            merged[-1] = Border(outer.size * d.size, d.x, d.y, outer.before * d.size, outer.inner * d.size)
        else:
            merged.append(d)
    return BorderForm(tuple(merged) or (Border(1, 1, 1, 0, 1),), inside.itemsize, x_first, y_first)


@dataclass(frozen=True)
class SetProblem(Bordered):
    """``y[...] = value``, y being of x's shape and dtype, and mostly x itself: all but the addresses and the value.

    Attributes
    ----------
    x, y : Tensor
    in_place : bool
        x is y.
    """
    x: Tensor
    y: Tensor
    in_place: bool = True
    op = "set_tensor"
    mode = "constant"
    read_bytes = 0
    words = ""

    def __post_init__(self):
        check_moved(self.op, self.x)
        check_output(self.op, self.y, self.x.shape, self.x.dtype)

    @functools.cached_property
    def form(self) -> BorderForm:
        """y's dimensions in the order of its strides; of x there is nothing."""
        form = canonical(self.y.shape, self.y.strides, self.y.strides, self.y.itemsize)
        return BorderForm(tuple(Border(d.size, 0, d.y, 0, 0) for d in form.dims), form.itemsize, 0, form.y_first)


def padded_shape(shape, pads, mode, op="pad"):
    """The shape of the result; ValueError where there cannot be one."""
    one_of(op, "mode", mode, MODES)
    if len(pads) != len(shape):
        raise ValueError(f"{op}: pads={pads} has {len(pads)} entries, x has {len(shape)} dimensions")
    for axis, (n, some) in enumerate(zip(shape, pads)):
        least = {"constant": 0, "edge": 1, "reflect": max(some) + 1}[mode] if max(some) else 0
        if n < least:
            raise ValueError(f"{op}: pads={pads} in mode {mode!r} need {least} elements along axis {axis}; x has shape {shape}")
    return tuple(n + a + b for n, (a, b) in zip(shape, pads))


def _pairs(op, pads, ndim):
    if not hasattr(pads, "__len__") or not all(hasattr(some, "__len__") and len(some) == 2 for some in pads):
        raise ValueError(f"{op}: pads={pads!r}; expected a pair (before, after) for each of {ndim} dimensions")
    return tuple(tuple(integer(op, "pads", v, 0) for v in some) for some in pads)


def _check_gradient(dy):
    check_moved("pad_bwd", dy, "dy")
    if dy.dtype not in FLOATS:
        raise TypeError(f"pad_bwd: dy is {dy.dtype}; expected one of {', '.join(FLOATS)}")


def make_gradient_problem(tensors, out, pads, mode, aliases):
    """`PadGradientProblem` of a call."""
    (dy,) = tensors
    _check_gradient(dy)
    pads = _pairs("pad_bwd", pads, dy.ndim)
    shape = tuple(n - a - b for n, (a, b) in zip(dy.shape, pads))
    if len(pads) != dy.ndim or min(shape, default=0) < 0:
        raise ValueError(f"pad_bwd: pads={pads}, dy has shape {dy.shape}; expected a pair for each dimension, that leaves an x")
    if out is not None:
        check_output("pad_bwd", out, shape, dy.dtype)
    return PadGradientProblem(dy, out if out is not None else Tensor.packed(shape, dy.dtype), pads, mode)


def make_pad_problem(tensors, out, pads, mode, aliases):
    """`PadProblem` of a call."""
    (x,) = tensors
    check_moved("pad", x)
    pads = _pairs("pad", pads, x.ndim)
    shape = padded_shape(x.shape, pads, mode)
    if out is not None:
        check_output("pad", out, shape, x.dtype)
    return PadProblem(x, out if out is not None else Tensor.packed(shape, x.dtype), pads, mode)


def make_set_problem(tensors, out, aliases):
    """`SetProblem` of a call; in place where there is no `out`."""
    (x,) = tensors
    check_moved("set_tensor", x)
    return SetProblem(x, x if out is None else out, "x" in aliases)
