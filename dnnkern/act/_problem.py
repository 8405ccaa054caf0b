"""Activations and their gradients: the problem, and what it shares with the other operations on single elements.

Whatever an operation is called, algorithms see the same: a `Function` of up to three values, and the arrays it is applied to in one
canonical `Form`.
"""
import functools
from dataclasses import dataclass

from ..device.activation import MODES, PARAMETERS, Activation
from ..device.pointwise import WITH_SLOPE, Function
from ..host.canonical import check_output
from ..host.choices import one_of
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ..engine.form import Form, Operand, canonical, spread
from ._slopes import first_part, parts_of


class Pointwise:
    """What algorithms and the front end read of a problem.

    A problem has `op`, `function`, `outputs`, and ``operands() -> (inputs, outputs)``, two tuples of `Operand`; `arrays`, the tensors of
    all that the caller gave or gets; `in_place`, the names of operands that are exactly the output; and `scalars`, the names of the
    run-time numbers that the function takes, of type `scalar_type`.
    """
    scalar_type = "float32"
    scalars = ()
    dslope = None

    @functools.cached_property
    def form(self) -> Form:
        """The arrays in their canonical form."""
        return canonical(*self.operands())

    @property
    def compute(self):
        """What values are computed in."""
        dtypes = [t.dtype for t in self.arrays]
        return "float64" if "float64" in dtypes or "int32" in dtypes else "float32"

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in self.arrays)

    @property
    def flops(self):
        return 0

    def __str__(self):
        text = f"{self.op} {self.words}"
        for name, t in zip(self.names, self.arrays):
            text += "" if t.is_packed else f" {name} strides {t.strides}"
        return text


def sizes_text(t):
    """A shape in words: 64x256, or scalar."""
    return "x".join(map(str, t.shape)) or "scalar"


def present(op, **operands):
    """TypeError where an operand is missing."""
    for name, t in operands.items():
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


def check_dtype(op, name, t, allowed):
    """TypeError unless the operand has one of these dtypes."""
    if t.dtype not in allowed:
        raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(allowed)}")


def check_same(op, name, t, other, u):
    """The operand `name` has the shape and the dtype of `other`."""
    if t.shape != u.shape:
        raise ValueError(f"{op}: {name} has shape {t.shape}, {other} has {u.shape}; expected the same")
    if t.dtype != u.dtype:
        raise TypeError(f"{op}: {name} is {t.dtype}, {other} is {u.dtype}; expected the same dtype")


def check_in_place(op, in_place, allowed):
    """The names of a problem's operands that are its output; a record has them as a list."""
    names = tuple(in_place)
    if any(name not in allowed for name in names):
        raise ValueError(f"{op}: in_place={names}; expected some of {allowed}")
    return names


def missing_output(out, shape, dtype):
    """The output that is given, or a packed one."""
    return out if out is not None else Tensor.packed(shape, dtype)


OPERANDS = {"activation_fwd": ("x",), "activation_bwd": ("dy", "x")}


@dataclass(frozen=True)
class ActivationProblem(Pointwise):
    """``y = f(x)``, or ``dx = dy f'(x)``: all but the addresses.

    Attributes
    ----------
    op : "activation_fwd" or "activation_bwd"
    x : Tensor
    result : Tensor
        y or dx, of x's shape and dtype.
    activation : Activation or None
        None is prelu.
    dy : Tensor or None
        Of the gradient.
    slope : Tensor or None
        Of prelu; it broadcasts to x.
    dslope : Tensor or None
        The slope's gradient, of the slope's shape and dtype, where it is computed.
    in_place : tuple of str
        Of "dy" and "x", those that are exactly the result.
    """
    op: str
    x: Tensor
    result: Tensor
    activation: Activation | None
    dy: Tensor | None = None
    slope: Tensor | None = None
    in_place: tuple = ()
    dslope: Tensor | None = None

    def __post_init__(self):
        op = self.op
        one_of("ActivationProblem", "op", op, OPERANDS)
        object.__setattr__(self, "in_place", check_in_place(op, self.in_place, OPERANDS[op]))
        present(op, **{name: getattr(self, name) for name in OPERANDS[op]})
        check_dtype(op, "x", self.x, FLOATS)
        if self.dy is not None:
            check_same(op, "dy", self.dy, "x", self.x)
        if (self.slope is None) != (self.activation is not None):
            raise TypeError(f"{op}: prelu takes a slope, an array, and nothing else does; got slope {self.slope} for {self.mode}")
        if self.slope is not None:
            wide = "float64" if self.x.dtype == "float64" else "float32"
            check_dtype(op, "slope", self.slope, tuple(dict.fromkeys((self.x.dtype, wide))))
            if not broadcasts(self.slope.shape, self.x.shape):
                raise ValueError(f"{op}: slope has shape {self.slope.shape}, which does not broadcast to x's {self.x.shape}")
        check_output(op, self.result, self.x.shape, self.x.dtype)
        if self.dslope is not None:
            if op != "activation_bwd" or self.slope is None:
                raise ValueError(f"{op}: the gradient of a slope is activation_bwd's of prelu; got {self.mode}")
            check_output(op, self.dslope, self.slope.shape, self.slope.dtype, "out[1]")

    @property
    def mode(self):
        return self.activation.mode if self.activation is not None else "prelu"

    @property
    def function(self) -> Function:
        return Function(self.op, self.mode if self.dslope is None else WITH_SLOPE, self.activation)

    @property
    def outputs(self):
        return (self.result,) if self.dslope is None else (self.result, self.dslope)

    @property
    def is_empty(self):
        """Without elements of x the slope's gradient is still 0."""
        return not any(t.size for t in self.outputs)

    @property
    def names(self):
        """Of `arrays`, as launches call them."""
        return (*OPERANDS[self.op], *("slope",) * (self.slope is not None), OUTPUT[self.op], *("dslope",) * (self.dslope is not None))

    @property
    def arrays(self):
        return tuple(self.result if name == OUTPUT[self.op] else getattr(self, name) for name in self.names)

    def operands(self):
        """(inputs, outputs); the second output is each element's part of the slope's gradient."""
        *inputs, result = [spread(name, t, self.x.shape) for name, t in zip(self.names, self.arrays) if name != "dslope"]
        return inputs, [result] if self.dslope is None else [result, Operand("workspace", parts_of(self), first_part(self))]

    @property
    def words(self):
        """In the words of the command line."""
        changed = "" if self.activation is None else "".join(
            f" {n}={v:g}" for n, v in self.activation.parameters if v != PARAMETERS[self.mode][n])
        slope = "" if self.slope is None else f" slope {sizes_text(self.slope)} {self.slope.dtype}" + (
            "" if self.dslope is None else " and its gradient")
        return f"{sizes_text(self.x)} {self.x.dtype} {self.mode}{changed}{slope}"


OUTPUT = {"activation_fwd": "y", "activation_bwd": "dx"}


def broadcasts(shape, target):
    """Whether an array of a shape broadcasts to another."""
    return len(shape) <= len(target) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(target)))


def make_activation(op, tensors, out, mode, parameters, slope_gradient=False, *, aliases):
    """`ActivationProblem` of a call; `parameters` are ((name, value), ...) of all but a slope, which is the last operand.

    `slope_gradient`: the slope's gradient is computed too, and `out` is a pair.
    """
    *main, slope = tensors
    given = dict(zip(OPERANDS[op], main))
    present(op, **given)
    if isinstance(mode, str) and mode == "prelu":
        if parameters:
            raise ValueError(f"{op}: prelu has no parameter {parameters[0][0]}; it takes slope, an array")
        present(op, slope=slope)
        activation = None
    elif isinstance(mode, Activation) and not parameters:
        activation = mode
    else:
        one_of(op, "mode", mode, (*MODES, "prelu"))
        try:
            activation = Activation(mode, **dict(parameters))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{op}: {error}") from None
    x = given["x"]
    out, dslope = out if slope_gradient and out is not None else (out, None)
    if slope_gradient:
        if slope is None:
            raise ValueError(f"{op}: slope_gradient=True with mode {mode!r}, which has no slope; expected prelu")
        dslope = missing_output(dslope, slope.shape, slope.dtype)
    return ActivationProblem(op, x, missing_output(out, x.shape, x.dtype), activation, given.get("dy"), slope,
                             tuple(name for name in OPERANDS[op] if name in aliases), dslope)
