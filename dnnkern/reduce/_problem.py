"""The problems of reductions: validation, shapes, and the form that algorithms read.

Whatever the ranks, axes and strides were, algorithms receive a few kept and a few reduced dimensions. Those of size 1 are dropped,
neighbours with a constant stride in x are merged, and strides are positive wherever the order of elements does not count.
"""
import functools
import operator
from dataclasses import dataclass

from ..device.convert import INTEGERS
from ..host.canonical import MOST_DIMENSIONS, check_output, normal_axes
from ..host.choices import dtype_of, one_of
from ..host.products import FLOATS
from ..host.tensor import Tensor

MODES = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros", "sum_square", "logsumexp")
OF_FLOATS = ("avg", "norm2", "logsumexp")
"""Modes whose results are no integers, of which there are no reductions of integers."""
ARG = {"argmin": "min", "argmax": "max"}


def results_of(dtype, mode):
    """What results may be: the default first."""
    if dtype in INTEGERS:
        return (dtype,) if mode in ARG.values() else ("int64", "int32")
    return (dtype, "float32") if dtype in ("float16", "bfloat16") else (dtype,)


@dataclass(frozen=True)
class Kept:
    """A dimension that stays: its size, the element strides of x and of the outputs."""
    size: int
    x: int
    y: int
    index: int = 0


@dataclass(frozen=True)
class Reduced:
    """A dimension that goes: its size, and the element stride of x."""
    size: int
    x: int


@dataclass(frozen=True)
class Form:
    """What is reduced: kept dimensions and reduced ones, outermost first, and how many elements the first one of each array is from the
    array's own."""
    kept: tuple
    reduced: tuple
    x_first: int
    y_first: int
    index_first: int

    @functools.cached_property
    def outputs(self):
        """Number of results."""
        return _volume(self.kept)

    @functools.cached_property
    def length(self):
        """Elements that one result is made of."""
        return _volume(self.reduced)

    @functools.cached_property
    def is_wide(self):
        """Whether offsets of reduced elements do not fit 32 bits."""
        return sum((d.size - 1) * abs(d.x) for d in self.reduced) >= 2 ** 31 - 2 ** 20


def _volume(dims):
    count = 1
    for d in dims:
        count *= d.size
    return count


class _Reduction:
    """What both problems share."""
    scalar_type = "float32"

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def compute(self):
        """Type of the sums; extrema of integers of up to 32 bits need no more of them."""
        if self.x.dtype in INTEGERS:
            return "int32" if self.mode in ARG.values() and self.x.dtype != "int64" else "int64"
        return "float64" if self.x.dtype == "float64" else "float32"

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def flops(self):
        return self.x.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each result written."""
        return self.x.nbytes + sum(t.nbytes for t in self.outputs)

    @functools.cached_property
    def x_alignment(self):
        """Bytes, at most 16, to which the first element of the form is aligned."""
        offset = self.form.x_first * self.x.itemsize
        return min(self.x.alignment, offset & -offset or 16)

    def _text(self, axes):
        strided = f" strides {self.x.strides}" if not self.x.is_packed else ""
        to = f" -> {self.outputs[0].dtype}" * (self.outputs[0].dtype != results_of(self.x.dtype, self.mode)[0])
        return f"{self.op} {'x'.join(map(str, self.x.shape)) or 'scalar'} {self.x.dtype} {self.mode} {axes}{to}{strided}"


@dataclass(frozen=True)
class ReduceProblem(_Reduction):
    """``y[kept] = mode over the axes of x``: everything but the addresses.

    Attributes
    ----------
    x, y : Tensor
    mode : str
    axes : tuple of int
        What is reduced, ascending.
    keepdims : bool
    """
    x: Tensor
    y: Tensor
    mode: str
    axes: tuple
    keepdims: bool = False
    op = "reduce"

    def __post_init__(self):
        _check("reduce", self.x, self.mode, MODES)
        if self.axes != normal_axes(self.axes, self.x.ndim):
            raise ValueError(f"reduce: axes={self.axes} are not normalised")
        allowed = results_of(self.x.dtype, self.mode)
        if self.y.dtype not in allowed:
            raise TypeError(f"reduce: out is {self.y.dtype}; expected {' or '.join(allowed)} for mode {self.mode!r} of {self.x.dtype}")
        check_output("reduce", self.y, _result_shape(self.x.shape, self.axes, self.keepdims), self.y.dtype)

    @property
    def fold(self):
        """Name of what is done with elements."""
        return self.mode

    @property
    def outputs(self):
        return (self.y,)

    @functools.cached_property
    def form(self) -> Form:
        return make_form(self.x, self.axes, self.y, None, self.keepdims, ordered=False)

    def __str__(self):
        return self._text(",".join(map(str, self.axes)) or "()") + " keepdims" * self.keepdims


@dataclass(frozen=True)
class ArgReduceProblem(_Reduction):
    """``value[kept], index[kept] = the extreme along an axis of x, and its first position``.

    Attributes
    ----------
    x, value, index : Tensor
    mode : "min" or "max"
    axis : int
    keepdims : bool
    """
    x: Tensor
    value: Tensor
    index: Tensor
    mode: str
    axis: int
    keepdims: bool = False
    op = "argreduce"

    def __post_init__(self):
        _check("argreduce", self.x, self.mode, tuple(ARG.values()))
        if not 0 <= self.axis < self.x.ndim:
            raise ValueError(f"argreduce: axis={self.axis} is not normalised")
        if not 1 <= self.x.shape[self.axis] < 2 ** 31:
            raise ValueError(f"argreduce: axis {self.axis} of x has {self.x.shape[self.axis]} elements (shape {self.x.shape}); expected 1 "
                             "to 2**31 - 1")
        shape = _result_shape(self.x.shape, (self.axis,), self.keepdims)
        check_output("argreduce", self.value, shape, self.x.dtype)
        check_output("argreduce", self.index, shape, "int32")

    @property
    def fold(self):
        """Name of what is done with elements."""
        return "arg" + self.mode

    @property
    def outputs(self):
        return self.value, self.index

    @functools.cached_property
    def form(self) -> Form:
        return make_form(self.x, (self.axis,), self.value, self.index, self.keepdims, ordered=True)

    def __str__(self):
        return self._text(self.axis) + " keepdims" * self.keepdims


def _check(function, x, mode, modes):
    if x is None:
        raise TypeError(f"{function}: x: got NoneType; expected an array")
    if x.dtype not in (*FLOATS, *INTEGERS):
        raise TypeError(f"{function}: x is {x.dtype}; expected one of {', '.join((*FLOATS, *INTEGERS))}")
    if x.ndim > MOST_DIMENSIONS:
        raise ValueError(f"{function}: x has {x.ndim} dimensions (shape {x.shape}); expected {MOST_DIMENSIONS} at most")
    one_of(function, "mode", mode, modes)
    if mode in OF_FLOATS and x.dtype not in FLOATS:
        raise TypeError(f"{function}: x is {x.dtype}; expected one of {', '.join(FLOATS)} for mode {mode!r}, whose results are no integers")


def _result_shape(shape, axes, keepdims):
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _result_strides(t, ndim, axes, keepdims):
    """Strides of an output along the dimensions of x; None along those that are reduced."""
    strides = iter(t.strides)
    return [next(strides) if keepdims or a not in axes else None for a in range(ndim)]


def make_form(x, axes, y, index, keepdims, ordered) -> Form:
    """The form of a reduction of x along axes; `ordered`: reduced elements are visited in their own order.

    >>> make_form(Tensor.packed((2, 3, 4, 5), "float32"), (2, 3), Tensor.packed((2, 3), "float32"), None, False, False)
    Form(kept=(Kept(size=6, x=20, y=1, index=1),), reduced=(Reduced(size=20, x=1),), x_first=0, y_first=0, index_first=0)
    """
    to_y = _result_strides(y, x.ndim, axes, keepdims)
    to_index = to_y if index is None else _result_strides(index, x.ndim, axes, keepdims)
    x_first = y_first = index_first = 0
    kept, reduced = [], []
    for a, (n, step) in enumerate(zip(x.shape, x.strides)):
        if n == 1:
            continue
        if a in axes:
            if step < 0 and not ordered:
                x_first, step = x_first + (n - 1) * step, -step
            reduced.append(Reduced(n, step))
            continue
        d = Kept(n, step, to_y[a], to_index[a])
        if step < 0:  # walk it the other way, in all arrays
            x_first, y_first, index_first = x_first + (n - 1) * d.x, y_first + (n - 1) * d.y, index_first + (n - 1) * d.index
            d = Kept(n, -d.x, -d.y, -d.index)
        kept.append(d)
    kept.sort(key=lambda d: (d.x != 0, -d.x, -abs(d.y)))
    reduced.sort(key=lambda d: (d.x != 0, -abs(d.x)))
    folded = []
    for d in kept:
        if folded and (folded[-1].x, folded[-1].y, folded[-1].index) == (d.x * d.size, d.y * d.size, d.index * d.size):
            folded[-1] = Kept(folded[-1].size * d.size, d.x, d.y, d.index)
        else:
            folded.append(d)
    walks = []
    for d in reduced:
        if walks and walks[-1].x == d.x * d.size:
            walks[-1] = Reduced(walks[-1].size * d.size, d.x)
        else:
            walks.append(d)
    return Form(tuple(folded) or (Kept(1, 0, 0, 0),), tuple(walks) or (Reduced(1, 1),), x_first, y_first, index_first)


def make_problem(tensors, out, mode, axes, keepdims, out_dtype, aliases):
    """`ReduceProblem` of a call."""
    (x,) = tensors
    _check("reduce", x, mode, MODES)
    axes, keepdims = normal_axes(axes, x.ndim), _flag("reduce", keepdims)
    allowed = results_of(x.dtype, mode)
    wanted = None if out_dtype is None else dtype_of("reduce", "out_dtype", out_dtype, allowed)
    if out is not None and wanted not in (None, out.dtype):
        raise TypeError(f"reduce: out is {out.dtype}, out_dtype asks for {wanted}")
    y = out if out is not None else Tensor.packed(_result_shape(x.shape, axes, keepdims), wanted or allowed[0])
    return ReduceProblem(x, y, mode, axes, keepdims)


def make_arg_problem(tensors, out, mode, axis, keepdims, aliases):
    """`ArgReduceProblem` of a call."""
    (x,) = tensors
    _check("argreduce", x, mode, tuple(ARG.values()))
    keepdims = _flag("argreduce", keepdims)
    try:
        number = operator.index(axis)
    except TypeError:
        raise TypeError(f"argreduce: axis={axis!r}; expected an int") from None
    if not -x.ndim <= number < x.ndim:
        raise ValueError(f"argreduce: axis={axis!r} is none of the {x.ndim} dimensions of x")
    number %= x.ndim
    shape = _result_shape(x.shape, (number,), keepdims)
    value, index = out if out is not None else (Tensor.packed(shape, x.dtype), Tensor.packed(shape, "int32"))
    return ArgReduceProblem(x, value, index, mode, number, keepdims)


def _flag(function, keepdims):
    if not isinstance(keepdims, bool):
        raise TypeError(f"{function}: keepdims={keepdims!r}; expected True or False")
    return keepdims
