"""The problems of rotary embeddings: validation, shapes, rows."""
import functools
from dataclasses import dataclass

from ...device.rows import RowForm, row_form
from ...host.canonical import MOST_DIMENSIONS, sizes_text
from ...host.choices import one_of
from ...host.dtypes import compute_dtype
from ...host.products import FLOATS
from ...host.tensor import Tensor
from .._checks import present

ROPES = ("rope_fwd", "rope_bwd")


@dataclass(frozen=True)
class RopeProblem:
    """Pairs of elements of rows rotated by angles, or rotated back.

    Attributes
    ----------
    op : "rope_fwd" or "rope_bwd"
    x, y : Tensor
        What is rotated, and the result; backward dy and dx.
    cos, sin : Tensor
        Of one dtype; they broadcast to the pairs of x.
    interleaved : bool
        Pairs are neighbours, not halves of what is rotated.
    in_place : bool
        y is exactly x.
    """
    op: str
    x: Tensor
    cos: Tensor
    sin: Tensor
    y: Tensor
    interleaved: bool = False
    in_place: bool = False
    flops = 0

    def __post_init__(self):
        op, x, y, name = self.op, self.x, self.y, self.names[0]
        one_of("RopeProblem", "op", op, ROPES)
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: {name} is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if not 1 <= x.ndim <= MOST_DIMENSIONS:
            raise ValueError(f"{op}: {name} has {x.ndim} dimensions (shape {x.shape}); expected 1 to {MOST_DIMENSIONS}")
        if not isinstance(self.interleaved, bool):
            raise TypeError(f"{op}: interleaved={self.interleaved!r}; expected True or False")
        for angle in ("cos", "sin"):
            self._check_angles(angle, name)
        if self.cos.shape[-1] != self.sin.shape[-1] or self.sin.dtype != self.cos.dtype:
            raise ValueError(f"{op}: cos is {self.cos}, sin {self.sin}; expected the same number of pairs and the same dtype")
        if y.dtype != x.dtype:
            raise TypeError(f"{op}: out is {y.dtype}, {name} is {x.dtype}; expected the same dtype")
        if y.shape != x.shape:
            raise ValueError(f"{op}: out has shape {y.shape}, {name} has {x.shape}; expected the same shape")
        y.check_addresses(op)

    def _check_angles(self, angle, name):
        t, x = getattr(self, angle), self.x
        if t.dtype not in (x.dtype, self.compute):
            raise TypeError(f"{self.op}: {angle} is {t.dtype}; expected {x.dtype}" + f" or {self.compute}" * (self.compute != x.dtype))
        lead = x.shape[:-1]
        fits = 1 <= t.ndim <= x.ndim and all(n in (1, m) for n, m in zip(t.shape[-2::-1], lead[::-1]))
        if not fits or 2 * t.shape[-1] > x.shape[-1]:
            wanted = ", ".join(map(str, (*lead, "R / 2")))
            raise ValueError(f"{self.op}: {angle} has shape {t.shape}, {name} {x.shape}; expected one that broadcasts to ({wanted}) with R "
                             f"up to {x.shape[-1]}")

    @property
    def names(self):
        """Of what is rotated and of the result."""
        return ("x", "y") if self.op == "rope_fwd" else ("dy", "dx")

    dy = property(lambda self: self.x)

    @property
    def pairs(self):
        """Of a row; what is behind them stays as it is."""
        return self.cos.shape[-1]

    @property
    def length(self):
        return self.x.shape[-1]

    def angle_strides(self, t):
        """Strides along the dimensions of x: 0 where all share a row of angles."""
        missing = self.x.ndim - t.ndim
        return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(t.shape[:-1], t.strides)) + t.strides[-1:]

    @functools.cached_property
    def form(self) -> RowForm:
        """Rows of x, cos, sin and y."""
        x = self.x
        strides = x.strides, self.angle_strides(self.cos), self.angle_strides(self.sin), self.y.strides
        return row_form(x.shape, (x.ndim - 1,), *strides)

    @property
    def steps(self):
        """Element strides along a row."""
        return tuple(t.strides[-1] for t in (self.x, self.cos, self.sin, self.y))

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def compute(self):
        """Type of the products."""
        return compute_dtype(self.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return not self.y.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.x.nbytes + self.y.nbytes + self.cos.nbytes + self.sin.nbytes

    def __str__(self):
        strided = "".join(f" strides {t.strides}" for t in (self.x, self.y) if not t.is_packed)
        return (f"{self.op} {sizes_text(self.x.shape)} {self.dtype} {self.pairs} pairs of {self.cos.dtype}"
                + f"{' interleaved' * self.interleaved}{' in place' * self.in_place}{strided}")


def make_rope(op, tensors, out, interleaved, aliases):
    """`RopeProblem` of a call."""
    names = ("x" if op == "rope_fwd" else "dy", "cos", "sin")
    present(op, names, tensors)
    x, cos, sin = tensors
    for name, t in zip(names, tensors):
        if not t.ndim:
            raise ValueError(f"{op}: {name} has no dimensions; expected one at least")
    return RopeProblem(op, x, cos, sin, out if out is not None else Tensor.packed(x.shape, x.dtype), interleaved, bool(aliases))
