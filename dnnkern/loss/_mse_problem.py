"""The problems of the squared difference of two arrays: validation, and the one shape that algorithms walk."""
import functools
from dataclasses import dataclass

from ..device.rows import merged, row_form
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ._problem import MOST_DIMENSIONS, REDUCTIONS, expect, present


class _Mse:
    """What both directions share."""
    scalar_type = "float32"

    def _check(self):
        if self.x.dtype not in FLOATS:
            raise TypeError(f"{self.op}: x is {self.x.dtype}; expected one of {', '.join(FLOATS)}")
        if self.x.ndim > MOST_DIMENSIONS:
            raise ValueError(f"{self.op}: x has {self.x.ndim} dimensions (shape {self.x.shape}); expected up to {MOST_DIMENSIONS}")
        one_of(self.op, "reduction", self.reduction, REDUCTIONS)
        expect(self.op, "target", self.target, self.x.dtype, self.x.shape)
        name, loss = ("out", self.loss) if self.is_forward else ("dloss", self.dloss)
        short = self.each and loss.dtype == self.x.dtype
        expect(self.op, name, loss, self.x.dtype if short else self.compute, self.x.shape if self.each else ())
        if not self.is_forward:
            expect(self.op, "out", self.dx, self.x.dtype, self.x.shape)
        (out,) = self.outputs
        out.check_addresses(self.op)

    @property
    def is_forward(self):
        return self.op.endswith("fwd")

    @property
    def each(self):
        """Whether every element has a loss of its own."""
        return self.reduction == "none"

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def compute(self):
        """Type of differences, sums and losses."""
        return compute_dtype(self.x.dtype)

    @property
    def loss_dtype(self):
        """Of the losses or their gradients: `compute`, or of each element that of x."""
        return (self.loss if self.is_forward else self.dloss).dtype

    @property
    def scale(self):
        """What squares are multiplied by, or backward differences."""
        mean = (1 / self.x.size if self.x.size else float("nan")) if self.reduction == "mean" else 1.0
        return mean if self.is_forward else 2 * mean

    @property
    def walked(self):
        """((name, tensor), ...) of the arrays that have an element for each of x."""
        named = [("x", self.x), ("target", self.target)]
        if self.each:
            named.append(("loss", self.loss) if self.is_forward else ("dloss", self.dloss))
        return (*named, ("dx", self.dx)) if not self.is_forward else tuple(named)

    @functools.cached_property
    def dims(self):
        """The merged dimensions of those arrays."""
        form = row_form(self.x.shape, (), *(t.strides for _, t in self.walked))
        return merged(form.outer)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def flops(self):
        return 3 * self.x.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for _, t in self.walked)

    def __str__(self):
        shape = "x".join(map(str, self.x.shape)) or "scalar"
        strided = "".join(f", {name} strides {t.strides}" for name, t in self.walked if not t.is_packed)
        short = f" loss {self.loss_dtype}" * (self.loss_dtype != self.compute)
        return f"{self.op} {shape} {self.dtype} {self.reduction}{short}{strided}"


@dataclass(frozen=True)
class MseProblem(_Mse):
    """``(x - target) ** 2``, their sum or mean.

    Attributes
    ----------
    x, target, loss : Tensor
    reduction : str
    """
    x: Tensor
    target: Tensor
    loss: Tensor
    reduction: str = "mean"
    op = "mse_loss_fwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return (self.loss,)


@dataclass(frozen=True)
class MseGradientProblem(_Mse):
    """The gradient of `MseProblem` by x.

    Attributes
    ----------
    dloss, x, target, dx : Tensor
    reduction : str
    """
    dloss: Tensor
    x: Tensor
    target: Tensor
    dx: Tensor
    reduction: str = "mean"
    op = "mse_loss_bwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return (self.dx,)


def make_mse_forward(tensors, out, reduction, aliases):
    """The problem of a forward call."""
    x, target = tensors
    present("mse_loss_fwd", ("x", "target"), tensors)
    one_of("mse_loss_fwd", "reduction", reduction, REDUCTIONS)
    compute = compute_dtype(x.dtype) if x.dtype in FLOATS else "float32"
    return MseProblem(x, target, out if out is not None else Tensor.packed(x.shape if reduction == "none" else (), compute), reduction)


def make_mse_backward(tensors, out, reduction, aliases):
    """The problem of a backward call."""
    present("mse_loss_bwd", ("dloss", "x", "target"), tensors)
    dloss, x, target = tensors
    return MseGradientProblem(dloss, x, target, out if out is not None else Tensor.packed(x.shape, x.dtype), reduction)
