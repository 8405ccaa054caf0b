"""The dropout problems: validation, shapes, and the elements in the order in which they are numbered."""
import functools
import math
from dataclasses import dataclass

from ..host import seeds
from ..host.canonical import MOST_DIMENSIONS, Dim, sizes_text
from ..host.dtypes import compute_dtype
from ..host.products import FLOATS
from ..host.tensor import Tensor


class _Dropout:
    """What both directions share: elements of `source` times a factor, or zero, become those of `result`."""
    flops = 0
    seed_array = offset_array = None
    scalar_types = {"seed": "uint64", "offset": "uint64", "threshold": "uint32"}

    def _check(self, name):
        source, result, mask = self.source, self.result, self.mask
        if source.dtype not in FLOATS:
            raise TypeError(f"{self.op}: {name} is {source.dtype}; expected one of {', '.join(FLOATS)}")
        if source.ndim > MOST_DIMENSIONS:
            raise ValueError(f"{self.op}: {name} has {source.ndim} dimensions (shape {source.shape}); expected {MOST_DIMENSIONS} at most")
        if result.dtype != source.dtype:
            raise TypeError(f"{self.op}: out is {result.dtype}, {name} is {source.dtype}; expected the same dtype")
        if result.shape != source.shape:
            raise ValueError(f"{self.op}: out has shape {result.shape}, {name} has {source.shape}; expected the same shape")
        result.check_addresses(self.op)
        label = "mask" if self.op == "dropout_bwd" else "mask of out"
        if mask.dtype != "uint8":
            raise TypeError(f"{self.op}: {label} is {mask.dtype}; expected uint8")
        wanted = mask_shape(source)
        if mask.shape != wanted:
            raise ValueError(f"{self.op}: {label} has shape {mask.shape}; expected {wanted}, a bit for each of {source.size} elements")
        if not mask.is_packed:
            raise ValueError(f"{self.op}: {label} has strides {mask.strides}; expected it packed")

    @functools.cached_property
    def dims(self) -> tuple:
        """Dimensions with the element strides of source and result, in their order, those that are one in both arrays merged."""
        found = []
        for d in (Dim(n, x, y) for n, x, y in zip(self.source.shape, self.source.strides, self.result.strides) if n != 1):
            if found and (found[-1].x, found[-1].y) == (d.x * d.size, d.y * d.size):
                found[-1] = Dim(found[-1].size * d.size, d.x, d.y)
            else:
                found.append(d)
        return tuple(found) or (Dim(1, 1, 1),)

    @property
    def is_wide(self):
        """Whether an element offset does not fit 32 bits."""
        return any(abs(edge) // t.itemsize >= 2 ** 31 - 64 for t in (self.source, self.result) for edge in t.extent)

    @property
    def size(self):
        return self.source.size

    @property
    def dtype(self):
        return self.source.dtype

    @property
    def compute(self):
        """Type of the products."""
        return compute_dtype(self.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def is_empty(self):
        return self.size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written, and the bits."""
        return self.source.nbytes + self.result.nbytes + self.mask.nbytes

    def __str__(self):
        strided = "".join(f" strides {t.strides}" for t in (self.source, self.result) if not t.is_packed)
        return f"{self.op} {sizes_text(self.source.shape)} {self.dtype}{' in place' * self.in_place}{seeds.in_words(self)}{strided}"


@dataclass(frozen=True)
class DropoutProblem(_Dropout):
    """``y = keep * x * factor`` for random bits `keep`: all but the addresses, the seed and the probability.

    Attributes
    ----------
    x, y : Tensor
        Of one shape and dtype.
    mask : Tensor (ceil(x.size / 8),)
        The bits.
    in_place : bool
        y is exactly x.
    seed_array, offset_array : Tensor or None
        Where the seed and the offset are read from; None: they are numbers of the call.
    """
    x: Tensor
    y: Tensor
    mask: Tensor
    in_place: bool = False
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op = "dropout_fwd"

    def __post_init__(self):
        self._check("x")
        seeds.check(self.op, self.seed_array, self.offset_array)

    source = property(lambda self: self.x)
    result = property(lambda self: self.y)
    outputs = property(lambda self: (self.y, self.mask))


@dataclass(frozen=True)
class DropoutGradientProblem(_Dropout):
    """``dx = keep * dy * factor``.

    Attributes
    ----------
    dy, dx : Tensor
        Of one shape and dtype.
    mask : Tensor (ceil(dy.size / 8),)
        The bits.
    in_place : bool
        dx is exactly dy.
    """
    dy: Tensor
    mask: Tensor
    dx: Tensor
    in_place: bool = False
    op = "dropout_bwd"

    def __post_init__(self):
        self._check("dy")

    source = property(lambda self: self.dy)
    result = property(lambda self: self.dx)
    outputs = property(lambda self: (self.dx,))


def mask_shape(t):
    """Shape of the mask of a tensor."""
    return (-(-math.prod(t.shape) // 8),)


def make_forward(tensors, out, aliases):
    """`DropoutProblem` of a call."""
    x, *words = tensors
    if x is None:
        raise TypeError("dropout_fwd: x: got NoneType; expected an array")
    y, mask = out if out is not None else (Tensor.packed(x.shape, x.dtype), Tensor.packed(mask_shape(x), "uint8"))
    return DropoutProblem(x, y, mask, bool(aliases), *words)


def make_backward(tensors, out, aliases):
    """`DropoutGradientProblem` of a call."""
    dy, mask = tensors
    for name, t in (("dy", dy), ("mask", mask)):
        if t is None:
            raise TypeError(f"dropout_bwd: {name}: got NoneType; expected an array")
    return DropoutGradientProblem(dy, mask, out if out is not None else Tensor.packed(dy.shape, dy.dtype), "dy" in aliases)
