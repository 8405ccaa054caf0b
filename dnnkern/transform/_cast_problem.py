"""The conversion problem: one array's values in another dtype, times a scale."""
import functools
from dataclasses import dataclass

from ..engine.values import compute_of
from ..host.canonical import MOST_DIMENSIONS, Canonical, canonical, check_output
from ..host.choices import dtype_of
from ..host.tensor import Tensor

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32")


@dataclass(frozen=True)
class CastProblem:
    """``y = dtype(scale * x)``: all but the addresses and the value of scale.

    Attributes
    ----------
    x, y : Tensor
        Of one shape.
    scale : bool
        The scale is not 1.
    """
    x: Tensor
    y: Tensor
    scale: bool = False
    op = "cast"
    flops = 0

    def __post_init__(self):
        for name, dtype in (("x", self.x.dtype), ("the result", self.y.dtype)):
            if dtype not in DTYPES:
                raise TypeError(f"cast: {name} is {dtype}; expected one of {', '.join(DTYPES)}")
        if self.x.ndim > MOST_DIMENSIONS:
            raise ValueError(f"cast: x has {self.x.ndim} dimensions (shape {self.x.shape}); expected {MOST_DIMENSIONS} at most")
        check_output("cast", self.y, self.x.shape, self.y.dtype)

    @functools.cached_property
    def canonical(self) -> Canonical:
        """Dimensions in the order of y's strides, merged; `itemsize` is the larger one."""
        return canonical(self.x.shape, self.x.strides, self.y.strides, max(self.x.itemsize, self.y.itemsize))

    @property
    def compute(self):
        """What the scale is multiplied in."""
        return compute_of(self.x.dtype, self.y.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return (self.y,)

    @property
    def is_empty(self):
        return self.y.size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.x.nbytes + self.y.nbytes

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("x", self.x), ("y", self.y)) if not t.is_packed)
        return f"cast {'x'.join(map(str, self.x.shape)) or 'scalar'} {self.x.dtype} -> {self.y.dtype}{' scaled' * self.scale}{strided}"


def make_cast_problem(tensors, out, dtype, scaled, aliases):
    """`CastProblem` of a call."""
    (x,) = tensors
    if x is None:
        raise TypeError("cast: x: got NoneType; expected an array")
    wanted = dtype_of("cast", "dtype", dtype, DTYPES)
    if out is not None and out.dtype != wanted:
        raise TypeError(f"cast: out is {out.dtype}, dtype asks for {wanted}")
    return CastProblem(x, out if out is not None else Tensor.packed(x.shape, wanted), bool(scaled))
