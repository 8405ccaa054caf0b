"""The problems of layer and RMS normalisation: validation, shapes, and the rows that algorithms read."""
import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.rows import Dim, RowForm, merged
from ..engine.programs import WithRowProgram
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, FP8, alike
from ..host.tensor import Tensor

if TYPE_CHECKING:
    from ..device.program import Program

MOST_DIMENSIONS = 8
WHOLE, ROW, OUTER = "whole", "row", "outer"  # of x's shape, of its shape from the axis on, of its shape before the axis
SHAPES = {**dict.fromkeys(("x", "residual", "y", "summed", "dy", "dx", "dsummed"), WHOLE),
          **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), ROW), **dict.fromkeys(("mean", "rstd"), OUTER)}


class _RowNorm:
    """What all four share: `names` are the operands and the results, `optional` what may be missing."""
    names, optional = ((), ()), ()
    extra_strides, program = (), None

    def __post_init__(self):
        self._check()

    @functools.cached_property
    def arrays(self):
        """((name, tensor or None, kind of shape), ...): operands, and those results that there are."""
        operands, results = self.names
        return (*((name, getattr(self, name), SHAPES[name]) for name in operands),
                *((name, t, SHAPES[name]) for name in results if (t := getattr(self, name)) is not None))

    @property
    def results(self):
        """How many there are."""
        return len(self.arrays) - len(self.names[0])

    def _check(self):
        op, x = self.op, self.x
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if x.ndim > MOST_DIMENSIONS:
            raise ValueError(f"{op}: x has {x.ndim} dimensions (shape {x.shape}); expected 1 to {MOST_DIMENSIONS}")
        if not 0 <= self.axis < x.ndim:
            raise ValueError(f"{op}: axis={self.axis} is not normalised for {x.ndim} dimensions")
        if 0 in x.shape[self.axis:]:
            raise ValueError(f"{op}: x has shape {x.shape}; expected rows of one element at least from axis {self.axis} on")
        if "residual" in self.names[0] and (self.residual is None) != (self.summed is None):
            raise ValueError(f"{op}: residual is {self.residual}, summed {self.summed}; expected both or neither")
        shapes = {WHOLE: x.shape, ROW: x.shape[self.axis:], OUTER: x.shape[:self.axis]}
        dtypes = {WHOLE: (x.dtype,), ROW: alike(x.dtype), OUTER: (self.compute,)}
        for position, (name, t, kind) in enumerate(self.arrays):
            if t is None:
                continue
            result = position >= len(self.arrays) - self.results
            label = f"{name} of out" if result else name
            allowed = self.results_of(x.dtype) if name == "y" else dtypes[kind]
            if t.dtype not in allowed:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected {' or '.join(allowed)} beside a {x.dtype} x")
            if t.shape != shapes[kind]:
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {shapes[kind]} (x has shape {x.shape}, axis {self.axis})")
            if result:
                t.check_addresses(op, label)

    def results_of(self, dtype):
        """What y may be beside an x of this dtype: fp8 past a program, which has to scale."""
        fp8 = FP8 if getattr(self, "program", None) is not None and self.compute == "float32" else ()
        return (*alike(dtype), *fp8)

    @functools.cached_property
    def form(self) -> RowForm:
        """Rows from the axis on; strides are those of all arrays, 0 where an array has not the dimension or is missing, then those of the
        program's operands."""
        def strides(t, kind, d):
            if t is None or kind == ROW and d < self.axis or kind == OUTER and d >= self.axis:
                return 0
            return t.strides[d - self.axis if kind == ROW else d]
        extras = len(self.extra_strides)
        dims = [Dim(n, (*(s[d] for s in self.extra_strides), *(strides(t, kind, d) for _, t, kind in self.arrays)))
                for d, n in enumerate(self.x.shape)]  # the last array says which dimension is the innermost
        row, outer = ([Dim(d.size, d.strides[extras:] + d.strides[:extras]) for d in merged(some)]
                      for some in (dims[self.axis:], dims[:self.axis]))
        return RowForm(tuple(row) or (Dim(1, (1,) * len(self.arrays) + (0,) * extras),), tuple(outer))

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def result(self):
        """y's dtype; "" where it is x's, or there is no y."""
        y = getattr(self, "y", None)
        return "" if y is None or y.dtype == self.x.dtype else y.dtype

    @property
    def compute(self):
        """Type of sums and of statistics."""
        return compute_dtype(self.x.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return tuple(t for _, t, _ in self.arrays[-self.results:])

    @property
    def is_empty(self):
        return all(t.size == 0 for t in self.outputs)

    @property
    def flops(self):
        return 8 * self.x.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for _, t, _ in self.arrays if t is not None)

    def __str__(self):
        shape = "x".join(map(str, self.x.shape))
        weights = "".join(f" {name} {t.dtype}" for name, t, kind in self.arrays[:-self.results] if kind == ROW and t is not None)
        strided = "".join(f" {name} strides {t.strides}" for name, t, _ in self.arrays if t is not None and not t.is_packed)
        extra = " residual" if getattr(self, "summed", None) else " dbeta" if self.op == "rms_norm_bwd" and self.dbeta else ""
        extra += " dsummed" if getattr(self, "dsummed", None) else ""
        extra += f" to {self.result}" if self.result else ""
        return f"{self.op} {shape} {self.dtype} axis {self.axis}{weights}{extra}{strided}"


class _Forward(WithRowProgram, _RowNorm):
    """What becomes of y before it is rounded, by the fields `program` and `extras`; they are of x's dimensions."""

    def _check(self):
        super()._check()
        self.check_row_program(range(self.axis, self.x.ndim))

    joint_form = property(lambda self: self.form)

    @property
    def output_names(self):
        """Of the results that there are, as the operation calls them."""
        return (*(name for name, _, _ in self.arrays[-self.results:]), *(self.extra_names[1] if self.program else ()))

    def __str__(self):
        return super().__str__() + f" program {self.program}" * (self.program is not None)


@dataclass(frozen=True)
class LayerNormProblem(_Forward):
    """``y = (x - mean) * rstd * gamma + beta``, ``rstd = 1 / sqrt(var + eps)``, over the dimensions from `axis` on.

    Attributes
    ----------
    x, y : Tensor
    gamma, beta : Tensor or None
        Of the shape from the axis on.
    mean, rstd : Tensor
        Of the shape before the axis.
    axis : int
        From 0 on.
    residual, summed : Tensor or None
        Both or neither: ``summed = x + residual``, rounded, is what is normalised.
    program : Program or None
        What becomes of each element of y before it is rounded, see `device.program`; rows are those of the dimensions before the axis.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to x, see `engine.programs`.
    """
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    y: Tensor
    mean: Tensor
    rstd: Tensor
    axis: int
    residual: Tensor | None = None
    summed: Tensor | None = None
    program: "Program | None" = None
    extras: tuple = ()
    op, optional = "layer_norm_fwd", ("gamma", "beta", "residual")
    names = ("x", "gamma", "beta", "residual"), ("y", "mean", "rstd", "summed")


@dataclass(frozen=True)
class RmsNormProblem(_Forward):
    """``y = x * rstd * gamma + beta``, ``rstd = 1 / sqrt(mean(x * x) + eps)``; attributes as `LayerNormProblem`'s."""
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    y: Tensor
    rstd: Tensor
    axis: int
    residual: Tensor | None = None
    summed: Tensor | None = None
    program: "Program | None" = None
    extras: tuple = ()
    op, optional = "rms_norm_fwd", ("gamma", "beta", "residual")
    names = ("x", "gamma", "beta", "residual"), ("y", "rstd", "summed")


@dataclass(frozen=True)
class LayerNormGradientProblem(_RowNorm):
    """The gradients of `LayerNormProblem`: with ``n = (x - mean) * rstd`` and ``g = dy * gamma``, averages over a row,
    ``dx = rstd * (g - avg(g) - n * avg(g * n)) + dsummed``; sums over rows, ``dgamma = sum(dy * n)``, ``dbeta = sum(dy)``.

    Attributes
    ----------
    dy, x, dx : Tensor
    gamma : Tensor or None
    mean, rstd : Tensor
        What the forward operation gave.
    dgamma, dbeta : Tensor
    axis : int
    dsummed : Tensor or None
        The gradient that reaches the sum of x and a residual by another way.
    """
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    mean: Tensor
    rstd: Tensor
    dx: Tensor
    dgamma: Tensor
    dbeta: Tensor
    axis: int
    dsummed: Tensor | None = None
    op, optional = "layer_norm_bwd", ("gamma", "dsummed")
    names = ("dy", "x", "gamma", "mean", "rstd", "dsummed"), ("dx", "dgamma", "dbeta")


@dataclass(frozen=True)
class RmsNormGradientProblem(_RowNorm):
    """The gradients of `RmsNormProblem`: ``n = x * rstd``, ``dx = rstd * (g - n * avg(g * n)) + dsummed``; else as
    `LayerNormGradientProblem`, but dbeta may be None."""
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    rstd: Tensor
    dx: Tensor
    dgamma: Tensor
    axis: int
    dbeta: Tensor | None = None
    dsummed: Tensor | None = None
    op, optional = "rms_norm_bwd", ("gamma", "dsummed")
    names = ("dy", "x", "gamma", "rstd", "dsummed"), ("dx", "dgamma", "dbeta")


def _normal_axis(op, axis, ndim):
    try:
        given = operator.index(axis)
    except TypeError:
        raise TypeError(f"{op}: axis={axis!r}; expected an integer") from None
    if not -ndim <= given < ndim:
        raise ValueError(f"{op}: axis={given}; expected {-ndim} to {ndim - 1} for {ndim} dimensions")
    return given % ndim


def _make(kind, extra=True):
    """The maker of a kind of problem; without `extra` the last of its results, which may be missing, is."""
    op, (operands, results) = kind.op, kind.names
    results = results if extra else results[:-1]

    def make(tensors, outs, axis, aliases):
        given = dict(zip(operands, tensors))
        for name, t in given.items():
            if t is None and (name not in kind.optional or name == "residual" and extra):
                raise TypeError(f"{op}: {name}: got NoneType; expected an array")
        x, gamma = given["x"], given["gamma"]
        if not x.ndim:
            raise ValueError(f"{op}: x has no dimensions; expected 1 to {MOST_DIMENSIONS}")
        axis = _normal_axis(op, axis, x.ndim)
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if outs is None:
            packed = {WHOLE: Tensor.packed(x.shape, x.dtype), OUTER: Tensor.packed(x.shape[:axis], compute_dtype(x.dtype)),
                      ROW: Tensor.packed(x.shape[axis:], x.dtype if gamma is None else gamma.dtype)}
            outs = tuple(packed[SHAPES[name]] for name in results)
        return kind(**given, **dict(zip(results, outs)), axis=axis)
    return make


make_layer_forward, make_layer_forward_residual = _make(LayerNormProblem, False), _make(LayerNormProblem)
make_rms_forward, make_rms_forward_residual = _make(RmsNormProblem, False), _make(RmsNormProblem)
make_layer_backward = _make(LayerNormGradientProblem)
make_rms_backward, make_rms_backward_beta = _make(RmsNormGradientProblem, False), _make(RmsNormGradientProblem)
