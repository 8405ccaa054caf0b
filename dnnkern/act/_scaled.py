"""Arrays times a number, and added to others, in place: the problems."""
from dataclasses import dataclass

from ..device.pointwise import Function
from ..host.tensor import Tensor
from ._elementwise import NUMBERS
from ..engine.form import spread
from ..host.canonical import check_output
from ._problem import Pointwise, broadcasts, check_dtype, check_in_place, present, sizes_text


class Scaled(Pointwise):
    """What both have: numbers, of the type in which they are multiplied."""

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return (self.y,)

    @property
    def arrays(self):
        return tuple(getattr(self, name) for name in self.names)

    def operands(self):
        """(inputs, outputs)"""
        found = [spread(name, t, self.y.shape) for name, t in zip(self.names, self.arrays)]
        return found[:-1], found[-1:]


@dataclass(frozen=True)
class ScaleProblem(Scaled):
    """``y = alpha * x``, y being mostly x: all but the addresses and the number.

    Attributes
    ----------
    x, y : Tensor
    in_place : tuple of str
        ("x",) where it is exactly y.
    """
    x: Tensor
    y: Tensor
    in_place: tuple = ("x",)
    op = "scale_tensor"
    names = ("x", "y")
    scalars = ("alpha",)
    function = Function("scale_tensor", "scale")

    def __post_init__(self):
        object.__setattr__(self, "in_place", check_in_place(self.op, self.in_place, ("x",)))
        present(self.op, x=self.x)
        check_dtype(self.op, "x", self.x, NUMBERS)
        check_output(self.op, self.y, self.x.shape, self.x.dtype)

    @property
    def words(self):
        """In the words of the command line."""
        return f"{sizes_text(self.x)} {self.x.dtype}"


@dataclass(frozen=True)
class AddProblem(Scaled):
    """``y = alpha * a + beta * c``, y being mostly c: all but the addresses and the numbers.

    Attributes
    ----------
    a, c, y : Tensor
        a broadcasts to c's shape.
    keeps : bool
        beta is not 0; else c is not read.
    in_place : tuple of str
        ("c",) where it is exactly y.
    """
    a: Tensor
    c: Tensor
    y: Tensor
    keeps: bool = True
    in_place: tuple = ("c",)
    op = "add_tensor"
    scalars = ("alpha", "beta")

    def __post_init__(self):
        object.__setattr__(self, "in_place", check_in_place(self.op, self.in_place, ("c",)))
        present(self.op, a=self.a, c=self.c)
        for name, t in (("a", self.a), ("c", self.c)):
            check_dtype(self.op, name, t, NUMBERS)
        if self.a.dtype != self.c.dtype:
            raise TypeError(f"add_tensor: a is {self.a.dtype} and c is {self.c.dtype}; expected the same dtype")
        if not broadcasts(self.a.shape, self.c.shape):
            raise ValueError(f"add_tensor: a has shape {self.a.shape}, which does not broadcast to c's {self.c.shape}")
        check_output(self.op, self.y, self.c.shape, self.c.dtype)

    @property
    def function(self) -> Function:
        return Function(self.op, "add" if self.keeps else "scale")

    @property
    def names(self):
        """Of `arrays`, as launches call them."""
        return ("a", "c", "y") if self.keeps else ("a", "y")

    @property
    def words(self):
        """In the words of the command line."""
        return f"{sizes_text(self.a)} {sizes_text(self.c)} {self.c.dtype}{'' if self.keeps else ' --overwrite'}"


def make_scale(tensors, out, aliases):
    """`ScaleProblem` of a call; in place where there is no `out`."""
    (x,) = tensors
    present("scale_tensor", x=x)
    return ScaleProblem(x, x if out is None else out, tuple(aliases))


def make_add(tensors, out, keeps, aliases):
    """`AddProblem` of a call; in place where there is no `out`."""
    a, c = tensors
    present("add_tensor", a=a, c=c)
    return AddProblem(a, c, c if out is None else out, keeps, tuple(aliases & {"c"}))
