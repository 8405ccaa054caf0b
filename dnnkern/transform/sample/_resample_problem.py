"""The problem of resampling images, and of its gradient.

Along each dimension position i of the resampled image lies in the image at ``(i * a + b) / d``, or 0 if that is negative: three integers,
so that what is a half or a quarter is exact, and forward and backward agree about every neighbour.
"""
import functools
import math
from dataclasses import dataclass

from ...host.canonical import check_output, sizes_text
from ...host.choices import one_of
from ...host.last import CALL_LAYOUTS
from ...host.products import FLOATS
from ...host.tensor import Tensor
from ...host.window import Windows, check_rank, check_shape, per_dimension

RESAMPLES = ("resample_fwd", "resample_bwd")
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
OF_NEAREST = MODES[:2]
OF_CORNERS = OF_ANTIALIAS = ("bilinear", "bicubic")


@dataclass(frozen=True)
class Axis:
    """A dimension: extents of the image and of the resampled one, and a, b, d."""
    inner: int
    outer: int
    a: int
    b: int
    d: int


@dataclass(frozen=True)
class ResampleProblem(Windows):
    """``y = resample(x)``, or the gradient of x: all but the addresses.

    Attributes
    ----------
    op : "resample_fwd" or "resample_bwd"
    x : Tensor
        The image, or its gradient: (N, C, spatial...) or (N, spatial..., C).
    y : Tensor
        The resampled image, or its gradient.
    mode : str
        Of `MODES`.
    align_corners : bool
        The outermost pixels of both images are at the same positions; only with "bilinear" and "bicubic".
    layout : "NCHW" or "NHWC"
    antialias : bool
        Where an image becomes smaller the filter becomes wider; only with "bilinear" and "bicubic", without `align_corners`.
    """
    op: str
    x: Tensor
    y: Tensor
    mode: str = "nearest"
    align_corners: bool = False
    layout: str = "NCHW"
    antialias: bool = False
    flops = 0

    def __post_init__(self):
        op, given = self.op, self.dx if self.is_forward else self.dy
        one_of("ResampleProblem", "op", op, RESAMPLES)
        one_of(op, "mode", self.mode, MODES)
        if self.align_corners and self.mode not in OF_CORNERS:
            raise ValueError(f"{op}: align_corners=True with mode={self.mode!r}; expected mode={' or '.join(map(repr, OF_CORNERS))}")
        if self.antialias and self.mode not in OF_ANTIALIAS:
            raise ValueError(f"{op}: antialias=True with mode={self.mode!r}; expected mode={' or '.join(map(repr, OF_ANTIALIAS))}")
        if self.antialias and self.align_corners:
            raise ValueError(f"{op}: antialias=True with align_corners=True; expected one of them")
        if given.dtype not in FLOATS:
            raise TypeError(f"{op}: {'x' if self.is_forward else 'dy'} is {given.dtype}; expected one of {', '.join(FLOATS)}")
        image = f"{'x' if self.is_forward else 'x_shape'} has shape {self.x.shape}"
        result, other = (self.y, self.x) if self.is_forward else (self.x, self.y)
        check_output(op, result, result.shape, other.dtype)
        if (len(self.x.shape) != len(self.y.shape) or self.x.shape[0] != self.y.shape[0]
                or self.c != self.y.shape[1 if self.layout == "NCHW" else -1]):
            raise ValueError(f"{op}: {'out' if self.is_forward else 'dy'} has shape {self.y.shape}, {image}; expected as many dimensions, "
                             f"images and channels (layout {self.layout})")
        if self.x.size == 0 < self.y.size:
            raise ValueError(f"{op}: {image}, no pixels to resample to {self.y.shape}")

    @property
    def is_forward(self):
        return self.op == "resample_fwd"

    @property
    def dx(self):
        return self.x

    @property
    def dy(self):
        return self.y

    @functools.cached_property
    def window(self):
        """The resampled extents, one a spatial dimension."""
        return self.spatial(self.y.shape)

    @functools.cached_property
    def out(self):
        """The resampled extents (O, P, Q)."""
        return self.three(self.window, 1)

    @functools.cached_property
    def y_strides(self):
        """Element strides of y along (n, c, d, h, w)."""
        return self.strides_of(self.y)

    @functools.cached_property
    def axes(self):
        """Three of `Axis`."""
        return tuple(make_axis(n, m, self.mode, self.align_corners) for n, m in zip(self.image, self.out))

    @property
    def filter(self):
        """What `_filters` weighs pixels by; None where a position is one pixel, or a mixture of two in each dimension (`_taps`)."""
        if self.antialias:
            return "antialias-" + self.mode
        return self.mode if self.mode in ("bicubic", "area") else None

    @property
    def pixels(self):
        """Which pixels of a dimension `_taps` finds, where there is no filter: the "nearest" one, or two ("bilinear")."""
        return "nearest" if self.mode in OF_NEAREST else "bilinear"

    @property
    def compute(self):
        """What is computed in."""
        return "float64" if self.x.dtype == "float64" else "float32"

    @property
    def scalar_type(self):
        return self.compute

    @property
    def is_wide(self):
        """Whether an element's offset in an array, counted in words of up to 4 bytes, does not fit 32 bits."""
        return any(max(map(abs, t.extent)) // min(t.itemsize, 4) >= 2 ** 31 for t in (self.x, self.y))

    @property
    def outputs(self):
        return (self.y if self.is_forward else self.x,)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def bytes(self):
        """Bytes that must move: both images once."""
        return self.x.nbytes + self.y.nbytes

    def __str__(self):
        corners = " align_corners" * self.align_corners + " antialias" * self.antialias
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y)) if not t.is_packed)
        return (f"{self.op} {sizes_text(self.x.shape)} {self.x.dtype} {self.layout} to {sizes_text(self.window)} {self.mode}{corners}"
                f"{strided}")


def make_axis(inner, outer, mode, align_corners) -> Axis:
    """Where the positions of a dimension lie.

    >>> make_axis(5, 10, "bilinear", False)             # -1/4, 1/4, 3/4, ...
    Axis(inner=5, outer=10, a=2, b=-1, d=4)
    >>> make_axis(5, 9, "bilinear", True), make_axis(5, 10, "nearest", False)
    (Axis(inner=5, outer=9, a=1, b=0, d=2), Axis(inner=5, outer=10, a=1, b=0, d=2))
    """
    if not outer:
        a, b, d = 1, 0, 1
    elif mode in ("nearest", "area"):  # of an area: where it begins
        a, b, d = inner, 0, outer
    elif mode == "nearest-exact":
        a, b, d = 2 * inner, inner, 2 * outer
    elif align_corners:
        a, b, d = inner - 1, 0, max(outer - 1, 1)
    else:
        a, b, d = 2 * inner, inner - outer, 2 * outer
    common = math.gcd(a, b, d) or 1
    return Axis(inner, outer, a // common, b // common, d // common)


def make_resample(op, tensors, out, shape, mode, align_corners, layout, antialias, aliases):
    """`ResampleProblem` of a call; `shape` are the extents of the result, of a backward call the shape of x."""
    (given,) = tensors
    name = "x" if op == "resample_fwd" else "dy"
    one_of(op, "layout", layout, CALL_LAYOUTS)
    if given is None:
        raise TypeError(f"{op}: {name}: got NoneType; expected an array")
    dims = check_rank(op, name, given.shape)
    if op == "resample_fwd":
        size = per_dimension(op, "size", shape, dims, 0)
        n, c = given.shape[0], given.shape[1 if layout == "NCHW" else -1]
        wanted = (n, c, *size) if layout == "NCHW" else (n, *size, c)
    else:
        wanted = check_shape(op, "x_shape", shape)
        check_rank(op, "x_shape", wanted)
    if out is not None:
        check_output(op, out, wanted, given.dtype)
    result = out if out is not None else Tensor.packed(wanted, given.dtype)
    x, y = (given, result) if op == "resample_fwd" else (result, given)
    return ResampleProblem(op, x, y, mode, bool(align_corners), layout, antialias)
