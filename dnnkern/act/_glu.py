"""Gated linear units: the problem."""
from dataclasses import dataclass

from ..device.epilogue import Activation
from ..device.pointwise import GATES, Function
from ..host.choices import one_of
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ..host.window import integer
from ..engine.form import Operand, spread
from ..host.canonical import check_output
from ._problem import Pointwise, check_dtype, missing_output, present, sizes_text

OPS = ("glu_fwd", "glu_bwd")


@dataclass(frozen=True)
class GluProblem(Pointwise):
    """``y = value * f(gate)``, value and gate being the halves of x along an axis, or the gradient of x: all but the addresses.

    Attributes
    ----------
    op : "glu_fwd" or "glu_bwd"
    x : Tensor
    result : Tensor
        y, with half of x's extent along the axis, or dx, of x's shape.
    axis : int
        Counted from 0.
    gate : str
        One of `GATES`; silu is kept as swish.
    dy : Tensor or None
        Of the gradient.
    """
    op: str
    x: Tensor
    result: Tensor
    axis: int
    gate: str
    dy: Tensor | None = None
    in_place = ()

    def __post_init__(self):
        op, x = self.op, self.x
        one_of("GluProblem", "op", op, OPS)
        present(op, x=x, **({} if op == "glu_fwd" else {"dy": self.dy}))
        object.__setattr__(self, "gate", Activation(one_of(op, "gate", self.gate, GATES)).mode)
        half = half_shape(op, x.shape, self.axis)
        check_dtype(op, "x", x, FLOATS)
        if self.dy is not None:
            check_dtype(op, "dy", self.dy, (x.dtype,))
            if self.dy.shape != half:
                raise ValueError(f"{op}: dy has shape {self.dy.shape}; x {x.shape} and axis {self.axis} give {half}")
        check_output(op, self.result, half if op == "glu_fwd" else x.shape, x.dtype)

    @property
    def function(self) -> Function:
        return Function(self.op, self.gate, Activation(self.gate))

    @property
    def outputs(self):
        return (self.result,)

    @property
    def names(self):
        """Of `arrays`, as launches call them."""
        return ("x", "y") if self.op == "glu_fwd" else ("dy", "x", "dx")

    @property
    def arrays(self):
        return (self.x, self.result) if self.op == "glu_fwd" else (self.dy, self.x, self.result)

    def operands(self):
        """(inputs, outputs): the halves of x, and of dx, are two arrays."""
        shape = half_shape(self.op, self.x.shape, self.axis)
        halves = _halves("x", self.x, shape, self.axis)
        if self.op == "glu_fwd":
            return halves, (spread("y", self.result, shape),)
        return (spread("dy", self.dy, shape), *halves), _halves("dx", self.result, shape, self.axis)

    @property
    def words(self):
        """In the words of the command line."""
        return f"{sizes_text(self.x)} {self.x.dtype} {self.gate} --axis {self.axis}"


def half_shape(op, shape, axis):
    """The shape of one half."""
    if not 0 <= axis < len(shape):
        raise ValueError(f"{op}: axis {axis} of x with shape {shape}")
    if shape[axis] % 2:
        raise ValueError(f"{op}: x has an extent of {shape[axis]} along axis {axis} (shape {shape}); expected an even one")
    return shape[:axis] + (shape[axis] // 2,) + shape[axis + 1:]


def _halves(name, t, shape, axis):
    second = shape[axis] * t.strides[axis]
    return tuple(Operand(name, Tensor(shape, t.strides, t.dtype, t.alignment), first) for first in (0, second))


def make_glu(op, tensors, out, axis, gate, aliases):
    """`GluProblem` of a call."""
    dy, x = tensors if op == "glu_bwd" else (None, *tensors)
    present(op, x=x, **({} if op == "glu_fwd" else {"dy": dy}))
    axis = integer(op, "axis", axis, -x.ndim)
    axis += x.ndim if axis < 0 else 0
    shape = half_shape(op, x.shape, axis) if op == "glu_fwd" else x.shape
    return GluProblem(op, x, missing_output(out, shape, x.dtype), axis, gate, dy)
