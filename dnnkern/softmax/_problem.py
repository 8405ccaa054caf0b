"""The softmax problems: validation, shapes, and the rows that algorithms read."""
import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.rows import Dim, RowForm, row_form, row_vector
from ..engine.programs import WithRowProgram
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, alike
from ..host.tensor import Tensor

if TYPE_CHECKING:
    from ..device.program import Program

MOST_DIMENSIONS = 8


def _each(form, change):
    """A form with other strides of each dimension."""
    return RowForm(*(tuple(Dim(d.size, change(d.strides)) for d in dims) for dims in (form.row, form.outer)))


class _Softmax:
    """What both directions share; `arrays` are the tensors that kernels walk in step, the result last."""
    scalar_type, program, extra_strides, wide, row_refusal = "float32", None, (), False, None

    def _check(self, *named):
        first = named[0][1]
        if not 1 <= first.ndim <= MOST_DIMENSIONS:
            raise ValueError(f"{self.op}: {named[0][0]} has {first.ndim} dimensions (shape {first.shape}); expected 1 to {MOST_DIMENSIONS}")
        for name, t in named:
            if t.dtype not in FLOATS:
                raise TypeError(f"{self.op}: {name} is {t.dtype}; expected one of {', '.join(FLOATS)}")
            if t is self.arrays[-1] and self.op == "softmax_fwd":
                if t.dtype not in alike(first.dtype):
                    raise TypeError(f"{self.op}: {name} is {t.dtype}; expected {' or '.join(alike(first.dtype))} beside a {first.dtype} x")
            elif t.dtype != first.dtype:
                raise TypeError(f"{self.op}: {name} is {t.dtype}, {named[0][0]} is {first.dtype}; expected the same dtype")
            if t.shape != first.shape:
                raise ValueError(f"{self.op}: {name} has shape {t.shape}, {named[0][0]} has {first.shape}; expected the same shape")
        if not 0 <= self.axis < first.ndim:
            raise ValueError(f"{self.op}: axis={self.axis} is not normalised for {first.ndim} dimensions")
        out = named[-1][1]
        out.check_addresses(self.op)

    @functools.cached_property
    def joint_form(self) -> RowForm:
        """The rows along the axis, of all arrays and of the program's operands."""
        found, extras = row_form(self.arrays[0].shape, (self.axis,), *self.extra_strides, *(t.strides for t in self.arrays)), len(
            self.extra_strides)
        return _each(found, lambda strides: strides[extras:] + strides[:extras])

    @functools.cached_property
    def form(self) -> RowForm:
        """The same, with the strides of the arrays alone."""
        return _each(self.joint_form, lambda strides: strides[:len(self.arrays)])

    @functools.cached_property
    def vector(self):
        """(bytes of a vector, whether rows have unaligned edges)."""
        return row_vector(self.form, self.arrays)

    @property
    def dtype(self):
        return self.arrays[0].dtype

    @property
    def result(self):
        """The result's dtype, "" where it is the operands'."""
        return "" if self.arrays[-1].dtype == self.dtype else self.arrays[-1].dtype

    @property
    def compute(self):
        """Type of exponentials and sums."""
        return compute_dtype(self.dtype)

    @property
    def outputs(self):
        return self.arrays[-1:]

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def flops(self):
        return 4 * self.outputs[0].size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in self.arrays)

    def __str__(self):
        shape = "x".join(map(str, self.arrays[0].shape))
        strided = "".join(f" strides {t.strides}" for t in self.arrays if not t.is_packed)
        return f"{self.op} {shape} {self.dtype} axis {self.axis}{' log' * self.log}{f' to {self.result}' * bool(self.result)}{strided}"


@dataclass(frozen=True)
class SoftmaxProblem(WithRowProgram, _Softmax):
    """``y = exp(x - m) / sum(exp(x - m))`` along an axis, m being the maximum; with `log` its logarithm.

    Attributes
    ----------
    x, y : Tensor
        Of one shape; dtypes that are computed in the same type.
    axis : int
        From 0 on.
    log : bool
    program : Program or None
        What becomes of each element of y before it is rounded, see `device.program`; rows are those of the dimensions but the axis.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to x, see `engine.programs`.
    """
    x: Tensor
    y: Tensor
    axis: int
    log: bool = False
    program: "Program | None" = None
    extras: tuple = ()
    op = "softmax_fwd"

    def __post_init__(self):
        self._check(("x", self.x), ("out", self.y))
        self.check_row_program((self.axis,))

    @property
    def arrays(self):
        return self.x, self.y

    def __str__(self):
        return super().__str__() + f" program {self.program}" * (self.program is not None)


@dataclass(frozen=True)
class SoftmaxGradientProblem(_Softmax):
    """``dx = y * (dy - sum(y * dy))`` along an axis; with `log` ``dx = dy - exp(y) * sum(dy)``.

    Attributes
    ----------
    dy, y, dx : Tensor
        Of one shape and dtype; y is what the forward operation gave.
    axis : int
        From 0 on.
    log : bool
    """
    dy: Tensor
    y: Tensor
    dx: Tensor
    axis: int
    log: bool = False
    op = "softmax_bwd"

    def __post_init__(self):
        self._check(("dy", self.dy), ("y", self.y), ("out", self.dx))

    @property
    def arrays(self):
        return self.dy, self.y, self.dx


def normal_axis(op, axis, ndim):
    """The axis as a number from 0 on."""
    try:
        given = operator.index(axis)
    except TypeError:
        raise TypeError(f"{op}: axis={axis!r}; expected an integer") from None
    if not -ndim <= given < ndim:
        raise ValueError(f"{op}: axis={given}; expected {-ndim} to {ndim - 1} for {ndim} dimensions")
    return given % ndim


def _make(op, kind, names):
    def make(tensors, out, axis, log, aliases):
        for name, t in zip(names, tensors):
            if t is None:
                raise TypeError(f"{op}: {name}: got NoneType; expected an array")
        first = tensors[0]
        if not first.ndim:
            raise ValueError(f"{op}: {names[0]} has no dimensions; expected 1 to {MOST_DIMENSIONS}")
        if not isinstance(log, bool):
            raise TypeError(f"{op}: log={log!r}; expected True or False")
        return kind(*tensors, out if out is not None else Tensor.packed(first.shape, first.dtype), normal_axis(op, axis, first.ndim), log)
    return make


make_forward = _make("softmax_fwd", SoftmaxProblem, ("x",))
make_backward = _make("softmax_bwd", SoftmaxGradientProblem, ("dy", "y"))
