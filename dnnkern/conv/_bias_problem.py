"""The gradient of a bias: sums of dy over images and pixels, one a channel."""
import functools
import math
from dataclasses import dataclass

from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS, OUTPUTS
from ..host.tensor import Tensor
from ..host.window import LAYOUTS, check_rank
from ._geometry import shape_of

OP = "conv_bwd_bias"


@dataclass(frozen=True)
class ConvBiasProblem:
    """``db[k] = sum over n, o, p, q of dy[n, k, o, p, q]``.

    Attributes
    ----------
    dy : Tensor
    db : Tensor
        (K,)
    layout : "NCHW" or "NHWC"
    """
    dy: Tensor
    db: Tensor
    layout: str = "NCHW"

    def __post_init__(self):
        one_of(OP, "layout", self.layout, LAYOUTS)
        check_rank(OP, "dy", self.dy.shape)
        if self.dy.dtype not in FLOATS:
            raise TypeError(f"{OP}: dy is {self.dy.dtype}; expected one of {', '.join(FLOATS)}")
        if self.db.dtype not in OUTPUTS[self.dy.dtype]:
            raise TypeError(f"{OP}: out is {self.db.dtype}; expected one of {', '.join(OUTPUTS[self.dy.dtype])} for a {self.dy.dtype} dy")
        if self.db.shape != (self.k,):
            raise ValueError(f"{OP}: out has shape {self.db.shape}; expected ({self.k},)")
        self.db.check_addresses(OP)

    @property
    def op(self):
        return OP

    @functools.cached_property
    def _shape(self):
        return shape_of(self.dy.shape, self.layout)

    @property
    def n(self):
        return self._shape.outer

    @property
    def k(self):
        return self._shape.channels

    @functools.cached_property
    def out(self):
        """(O, P, Q) of dy; a missing dimension is 1."""
        return (1,) * (3 - len(self._shape.spatial)) + self._shape.spatial

    @property
    def pixels(self):
        """N * O * P * Q, the length of each sum."""
        return self.n * math.prod(self.out)

    @functools.cached_property
    def dy_strides(self):
        """Element strides of dy along (n, k, o, p, q)."""
        strides = shape_of(self.dy.strides, self.layout)
        whole = self._shape.spatial[0] * strides.spatial[0]
        return (strides.outer, strides.channels, *(whole,) * (3 - len(strides.spatial)), *strides.spatial)

    @functools.cached_property
    def pixel_dims(self):
        """((size, stride), ...) of the pixels, images included, outermost first: those of size 1 dropped, neighbours merged where dy steps
        evenly through both."""
        merged = []
        for size, stride in zip((self.n, *self.out), (self.dy_strides[0], *self.dy_strides[2:])):
            if size == 1:
                continue
            if merged and merged[-1][1] == size * stride:
                merged[-1] = merged[-1][0] * size, stride
            else:
                merged.append((size, stride))
        return tuple(merged)

    @property
    def dtype(self):
        return self.dy.dtype

    @property
    def compute(self):
        """Type of the sums."""
        return compute_dtype(self.dy.dtype)

    @property
    def scalar_type(self):
        return "float32"

    @property
    def outputs(self):
        return (self.db,)

    @property
    def is_empty(self):
        return self.db.size == 0

    @property
    def flops(self):
        return self.dy.size

    @property
    def bytes(self):
        """Bytes that must move at least."""
        return self.dy.nbytes + self.db.nbytes

    def __str__(self):
        sizes = "x".join(map(str, (self.n, self.k, *self._shape.spatial)))
        return f"{OP} {sizes} {self.dtype} {self.layout}" + (f" -> {self.db.dtype}" if self.db.dtype != self.dtype else "")
