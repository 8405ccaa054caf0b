"""Local response normalisation's problems, forward and backward."""
import functools
from dataclasses import dataclass

from ..device.rows import Dim, RowForm, merged
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.last import CALL_LAYOUTS, of_images
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ..host.window import LAYOUTS, integer
from ._channel_problem import channel_axis

OPS = ("lrn_fwd", "lrn_bwd")


@dataclass(frozen=True)
class LrnProblem:
    """``y = x * s ** -beta``, ``s = k + alpha / size * sum(x * x)`` over neighbouring channels, or its gradient.

    The window of channel c is from ``c - size // 2`` to ``c + (size - 1) // 2``.

    Attributes
    ----------
    op : str
    x, y : Tensor
    dy, dx : Tensor or None
    size : int
    layout : "NCHW" or "NHWC"
    """
    op: str
    x: Tensor
    y: Tensor
    dy: Tensor | None
    dx: Tensor | None
    size: int
    layout: str = "NCHW"

    def __post_init__(self):
        one_of("LrnProblem", "op", self.op, OPS)
        op, x = self.op, self.x
        one_of(op, "layout", self.layout, LAYOUTS)
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if not 2 <= x.ndim <= 5:
            raise ValueError(f"{op}: x has shape {x.shape}; expected 2 to 5 dimensions: images, channels, up to 3 spatial ones")
        integer(op, "size", self.size, 1)
        for name, t in self.arrays:
            label = f"{name} of out" if t is self.outputs[0] else name
            if t.dtype != x.dtype:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected {x.dtype}, x's")
            if t.shape != x.shape:
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {x.shape}, x's")
        result = self.outputs[0]
        result.check_addresses(op)

    @property
    def arrays(self):
        """(name, tensor), the result last."""
        return tuple((name, t) for name, t in (("dy", self.dy), ("x", self.x), ("y", self.y), ("dx", self.dx)) if t is not None)

    @functools.cached_property
    def form(self) -> RowForm:
        """Rows of channels, and what there is one row of each."""
        axis = channel_axis(self.x, self.layout)
        dims = [Dim(n, tuple(t.strides[k] for _, t in self.arrays)) for k, n in enumerate(self.x.shape)]
        return RowForm((dims.pop(axis),), merged(dims) or (Dim(1, (0,) * len(self.arrays)),))

    @property
    def before(self):
        """Channels of a window before its own."""
        return self.size // 2

    @property
    def after(self):
        return (self.size - 1) // 2

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def compute(self):
        return compute_dtype(self.x.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return (self.y if self.op == "lrn_fwd" else self.dx,)

    @property
    def is_empty(self):
        return self.x.size == 0

    @property
    def flops(self):
        return (2 * self.size + 4) * self.x.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for _, t in self.arrays)

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in self.arrays if not t.is_packed)
        return f"{self.op} {'x'.join(map(str, self.x.shape))} {self.dtype} {self.layout} size {self.size}{strided}"


def _given(op, names, tensors, layout):
    one_of(op, "layout", layout, CALL_LAYOUTS)
    for name, t in zip(names, tensors):
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


@of_images
def make_lrn_forward(tensors, out, size, layout, aliases):
    """`LrnProblem` of a call of lrn_fwd."""
    _given("lrn_fwd", ("x",), tensors, layout)
    x, size = tensors[0], integer("lrn_fwd", "size", size, 1)
    return LrnProblem("lrn_fwd", x, Tensor.packed(x.shape, x.dtype) if out is None else out, None, None, size, layout)


@of_images
def make_lrn_backward(tensors, out, size, layout, aliases):
    """`LrnProblem` of a call of lrn_bwd."""
    _given("lrn_bwd", ("dy", "x", "y"), tensors, layout)
    (dy, x, y), size = tensors, integer("lrn_bwd", "size", size, 1)
    return LrnProblem("lrn_bwd", x, y, dy, Tensor.packed(x.shape, x.dtype) if out is None else out, size, layout)
