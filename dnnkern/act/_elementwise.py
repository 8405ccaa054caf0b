"""Functions of one, two or three arrays, element by element: the problems."""
import functools
from dataclasses import dataclass

from ..device.pointwise import ALIASES, BINARY, COMPARISONS, LOGICAL, UNARY, Function
from ..host.choices import one_of
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ..host.window import integer
from ..engine.form import Operand, spread
from ..host.canonical import check_output
from ._problem import Pointwise, check_dtype, check_in_place, missing_output, present, sizes_text

INTEGERS = ("int8", "uint8", "int32")
NUMBERS = (*FLOATS, *INTEGERS)
INDEX = "int32"


def _result(mode, dtype):
    return INDEX if mode == "gen_index" else "bool" if mode in COMPARISONS or mode in LOGICAL else dtype


def _allowed(mode):
    return (*NUMBERS, "bool") if mode in LOGICAL or mode == "binary_select" else NUMBERS


@dataclass(frozen=True)
class UnaryProblem(Pointwise):
    """``y = f(x)``: all but the addresses.

    Attributes
    ----------
    x, y : Tensor
    mode : str
        One of `UNARY`.
    axis : int or None
        Of gen_index, counted from 0; x is not read then.
    in_place : tuple of str
        ("x",) where it is exactly y.
    """
    x: Tensor
    y: Tensor
    mode: str
    axis: int | None = None
    in_place: tuple = ()
    op = "unary"
    names = ("x", "y")

    def __post_init__(self):
        one_of("unary", "op", self.mode, UNARY)
        object.__setattr__(self, "in_place", check_in_place("unary", self.in_place, ("x",)))
        present("unary", x=self.x)
        check_dtype("unary", "x", self.x, _allowed(self.mode))
        if (self.mode == "gen_index") != (self.axis is not None):
            raise ValueError(f"unary: {self.mode} with axis={self.axis}; expected an axis for gen_index, and for nothing else")
        if self.axis is not None and not 0 <= self.axis < self.x.ndim:
            raise ValueError(f"unary: axis {self.axis} of x with shape {self.x.shape}")
        check_output("unary", self.y, self.x.shape, _result(self.mode, self.x.dtype))

    @property
    def function(self) -> Function:
        return Function("unary", self.mode)

    @property
    def outputs(self):
        return (self.y,)

    @property
    def arrays(self):
        return self.x, self.y

    @property
    def bytes(self):
        return self.y.nbytes if self.axis is not None else super().bytes

    def operands(self):
        """(inputs, outputs). The input of gen_index is an array in no memory, whose offsets are the index."""
        y = spread("y", self.y, self.y.shape)
        if self.axis is None:
            return (spread("x", self.x, self.y.shape),), (y,)
        steps = tuple(int(axis == self.axis) for axis in range(self.y.ndim))
        return (Operand("y", Tensor(self.y.shape, steps, INDEX)),), (y,)

    @property
    def words(self):
        """In the words of the command line."""
        return f"{sizes_text(self.x)} {self.x.dtype} {self.mode}" + (f" --axis {self.axis}" if self.axis is not None else "")


@dataclass(frozen=True)
class BinaryProblem(Pointwise):
    """``y = f(a, b)``, or ``y = a if mask else b``: all but the addresses.

    Attributes
    ----------
    a, b, y : Tensor
        a and b broadcast to y's shape.
    mode : str
        One of `BINARY`.
    mask : Tensor or None
        Of binary_select: bool or uint8, broadcast as well.
    in_place : tuple of str
        Of "a" and "b", those that are exactly y.
    """
    a: Tensor
    b: Tensor
    y: Tensor
    mode: str
    mask: Tensor | None = None
    in_place: tuple = ()
    op = "binary"

    def __post_init__(self):
        one_of("binary", "op", self.mode, BINARY)
        object.__setattr__(self, "in_place", check_in_place("binary", self.in_place, ("a", "b")))
        present("binary", a=self.a, b=self.b)
        for name, t in (("a", self.a), ("b", self.b)):
            check_dtype("binary", name, t, _allowed(self.mode))
        if self.a.dtype != self.b.dtype:
            raise TypeError(f"binary: a is {self.a.dtype} and b is {self.b.dtype}; expected the same dtype")
        if (self.mode == "binary_select") != (self.mask is not None):
            raise TypeError(f"binary: {self.mode} with mask {self.mask}; expected a mask, an array, for binary_select and for nothing else")
        if self.mask is not None:
            check_dtype("binary", "mask", self.mask, ("bool", "uint8"))
        check_output("binary", self.y, broadcast_shape(self.names, self.arrays[:-1]), _result(self.mode, self.a.dtype))

    @property
    def function(self) -> Function:
        return Function("binary", self.mode)

    @property
    def outputs(self):
        return (self.y,)

    @functools.cached_property
    def names(self):
        """Of `arrays`, as launches call them."""
        return ("a", "b", *("mask",) * (self.mask is not None), "y")

    @property
    def arrays(self):
        return tuple(getattr(self, name) for name in self.names)

    def operands(self):
        """(inputs, outputs)"""
        found = [spread(name, t, self.y.shape) for name, t in zip(self.names, self.arrays)]
        return found[:-1], found[-1:]

    @property
    def words(self):
        """In the words of the command line."""
        mask = f" --mask {sizes_text(self.mask)}" if self.mask is not None else ""
        return f"{sizes_text(self.a)} {sizes_text(self.b)} {self.a.dtype} {self.mode}{mask}"


def broadcast_shape(names, tensors):
    """The shape that the operands have together, as NumPy broadcasts; ValueError where they do not."""
    ndim = max(t.ndim for t in tensors)
    shapes = [(1,) * (ndim - t.ndim) + t.shape for t in tensors]
    found = []
    for sizes in zip(*shapes):
        wanted = {n for n in sizes if n != 1} or {1}
        if len(wanted) > 1:
            raise ValueError("binary: the shapes of " + ", ".join(f"{name} {t.shape}" for name, t in zip(names, tensors))
                             + " do not broadcast")
        found += wanted
    return tuple(found)


def make_unary(tensors, out, mode, axis, aliases):
    """`UnaryProblem` of a call."""
    (x,) = tensors
    present("unary", x=x)
    one_of("unary", "op", mode, UNARY)
    if axis is not None:
        axis = integer("unary", "axis", axis, -x.ndim)
        axis += x.ndim if axis < 0 else 0
    return UnaryProblem(x, missing_output(out, x.shape, _result(mode, x.dtype)), mode, axis, tuple(aliases))


def make_binary(tensors, out, mode, aliases):
    """`BinaryProblem` of a call."""
    a, b, mask = tensors
    present("binary", a=a, b=b)
    mode = one_of("binary", "op", mode, (*BINARY, *ALIASES))
    mode = ALIASES.get(mode, mode)
    shape = broadcast_shape(("a", "b", "mask"), [t for t in (a, b, mask) if t is not None])
    return BinaryProblem(a, b, missing_output(out, shape, _result(mode, a.dtype)), mode, mask,
                         tuple(name for name in ("a", "b") if name in aliases))
