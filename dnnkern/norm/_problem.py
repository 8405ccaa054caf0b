"""The problems of layer and RMS normalisation: validation, shapes, and the rows that algorithms read."""
import functools
import operator
from dataclasses import dataclass

from ..device.rows import Dim, RowForm, merged
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.tensor import Tensor

MOST_DIMENSIONS = 8
WHOLE, ROW, OUTER = "whole", "row", "outer"  # of x's shape, of its shape from the axis on, of its shape before the axis


class _RowNorm:
    """What all four share. `arrays` are (name, tensor or None, kind) in the kernels' order, the `results` last."""
    results = 1

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
        shapes = {WHOLE: x.shape, ROW: x.shape[self.axis:], OUTER: x.shape[:self.axis]}
        dtypes = {WHOLE: (x.dtype,), ROW: tuple(dict.fromkeys((x.dtype, self.compute))), OUTER: (self.compute,)}
        for position, (name, t, kind) in enumerate(self.arrays):
            if t is None:
                continue
            result = position >= len(self.arrays) - self.results
            label = f"{name} of out" if result else name
            if t.dtype not in dtypes[kind]:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected {' or '.join(dtypes[kind])} beside a {x.dtype} x")
            if t.shape != shapes[kind]:
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {shapes[kind]} (x has shape {x.shape}, axis {self.axis})")
            if result and t.size and any(s == 0 for n, s in zip(t.shape, t.strides) if n > 1):
                raise ValueError(f"{op}: {label} has shape {t.shape} and strides {t.strides}; several elements share one address")

    @functools.cached_property
    def form(self) -> RowForm:
        """Rows from the axis on; strides are those of all arrays, 0 where an array has not the dimension or is missing."""
        def strides(t, kind, d):
            if t is None or kind == ROW and d < self.axis or kind == OUTER and d >= self.axis:
                return 0
            return t.strides[d - self.axis if kind == ROW else d]
        dims = [Dim(n, tuple(strides(t, kind, d) for _, t, kind in self.arrays)) for d, n in enumerate(self.x.shape)]
        return RowForm(merged(dims[self.axis:]) or (Dim(1, (1,) * len(self.arrays)),), merged(dims[:self.axis]))

    @property
    def dtype(self):
        return self.x.dtype

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
        return f"{self.op} {shape} {self.dtype} axis {self.axis}{weights}{strided}"


@dataclass(frozen=True)
class LayerNormProblem(_RowNorm):
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
    """
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    y: Tensor
    mean: Tensor
    rstd: Tensor
    axis: int
    op, results = "layer_norm_fwd", 3

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("x", self.x, WHOLE), ("gamma", self.gamma, ROW), ("beta", self.beta, ROW), ("y", self.y, WHOLE),
                ("mean", self.mean, OUTER), ("rstd", self.rstd, OUTER))


@dataclass(frozen=True)
class RmsNormProblem(_RowNorm):
    """``y = x * rstd * gamma + beta``, ``rstd = 1 / sqrt(mean(x * x) + eps)``; attributes as `LayerNormProblem`'s."""
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    y: Tensor
    rstd: Tensor
    axis: int
    op, results = "rms_norm_fwd", 2

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("x", self.x, WHOLE), ("gamma", self.gamma, ROW), ("beta", self.beta, ROW), ("y", self.y, WHOLE),
                ("rstd", self.rstd, OUTER))


@dataclass(frozen=True)
class LayerNormGradientProblem(_RowNorm):
    """The gradients of `LayerNormProblem`: with ``n = (x - mean) * rstd`` and ``g = dy * gamma``, averages over a row,
    ``dx = rstd * (g - avg(g) - n * avg(g * n))``; sums over rows, ``dgamma = sum(dy * n)``, ``dbeta = sum(dy)``.

    Attributes
    ----------
    dy, x, dx : Tensor
    gamma : Tensor or None
    mean, rstd : Tensor
        What the forward operation gave.
    dgamma, dbeta : Tensor
    axis : int
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
    op, results = "layer_norm_bwd", 3

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("dy", self.dy, WHOLE), ("x", self.x, WHOLE), ("gamma", self.gamma, ROW), ("mean", self.mean, OUTER),
                ("rstd", self.rstd, OUTER), ("dx", self.dx, WHOLE), ("dgamma", self.dgamma, ROW), ("dbeta", self.dbeta, ROW))


@dataclass(frozen=True)
class RmsNormGradientProblem(_RowNorm):
    """The gradients of `RmsNormProblem`: ``n = x * rstd``, ``dx = rstd * (g - n * avg(g * n))``; else as `LayerNormGradientProblem`."""
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    rstd: Tensor
    dx: Tensor
    dgamma: Tensor
    axis: int
    op, results = "rms_norm_bwd", 2

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("dy", self.dy, WHOLE), ("x", self.x, WHOLE), ("gamma", self.gamma, ROW), ("rstd", self.rstd, OUTER),
                ("dx", self.dx, WHOLE), ("dgamma", self.dgamma, ROW))


def _normal_axis(op, axis, ndim):
    try:
        given = operator.index(axis)
    except TypeError:
        raise TypeError(f"{op}: axis={axis!r}; expected an integer") from None
    if not -ndim <= given < ndim:
        raise ValueError(f"{op}: axis={given}; expected {-ndim} to {ndim - 1} for {ndim} dimensions")
    return given % ndim


def _make(kind, names, optional, outer):
    """The maker of a kind of problem, from operands of these names; `outer` is the number of statistics among the results."""
    op = kind.op

    def make(tensors, outs, axis, aliases):
        given = dict(zip(names, tensors))
        for name, t in given.items():
            if t is None and name not in optional:
                raise TypeError(f"{op}: {name}: got NoneType; expected an array")
        x = given["x"]
        if not x.ndim:
            raise ValueError(f"{op}: x has no dimensions; expected 1 to {MOST_DIMENSIONS}")
        axis = _normal_axis(op, axis, x.ndim)
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if outs is None:
            gamma = given["gamma"]
            weights = Tensor.packed(x.shape[axis:], x.dtype if gamma is None else gamma.dtype)
            statistics = Tensor.packed(x.shape[:axis], compute_dtype(x.dtype))
            others = (statistics,) * outer if outer else (weights,) * (kind.results - 1)
            outs = (Tensor.packed(x.shape, x.dtype), *others)
        return kind(*tensors, *outs, axis)
    return make


make_layer_forward = _make(LayerNormProblem, ("x", "gamma", "beta"), ("gamma", "beta"), 2)
make_rms_forward = _make(RmsNormProblem, ("x", "gamma", "beta"), ("gamma", "beta"), 1)
make_layer_backward = _make(LayerNormGradientProblem, ("dy", "x", "gamma", "mean", "rstd"), ("gamma",), 0)
make_rms_backward = _make(RmsNormGradientProblem, ("dy", "x", "gamma", "rstd"), ("gamma",), 0)
