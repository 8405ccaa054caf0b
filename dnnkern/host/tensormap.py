"""Tensor maps on the host: what is encoded, the rules it must keep, and the 128 bytes the driver makes of it for one address."""
import functools
from dataclasses import dataclass

import numpy as np

from .device import check
from .dtypes import ITEMSIZE

_TYPES = {"uint8": "UINT8", "int8": "UINT8", "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8", "uint16": "UINT16", "int16": "UINT16",
          "int32": "INT32", "uint32": "UINT32", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32", "float64": "FLOAT64",
          "int64": "INT64", "uint64": "UINT64"}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


@dataclass(frozen=True)
class TensorMap:
    """A tiled view of an array: boxes of it travel between global and shared memory in one instruction.

    Attributes
    ----------
    dtype : str
    shape, strides : tuple of int
        Outermost dimension first, strides in elements; one to five dimensions, the innermost contiguous.
    box : tuple of int
        Elements of a box along each dimension, 1 to 256.
    swizzle : 0, 32, 64 or 128
        Bytes over which 16-byte chunks are permuted in shared memory; the box's innermost extent must not be wider.
    steps : tuple of int, optional
        Every how many elements one is taken, along each dimension.
    """
    dtype: str
    shape: tuple
    strides: tuple
    box: tuple
    swizzle: int = 0
    steps: tuple | None = None

    def __post_init__(self):
        rank, size = len(self.shape), ITEMSIZE[self.dtype]
        if not 1 <= rank <= 5 or len(self.strides) != rank or len(self.box) != rank or len(self.steps or self.box) != rank:
            raise ValueError(f"tensor map: shape {self.shape}, strides {self.strides}, box {self.box}, steps {self.steps}; expected one to "
                             "five entries, as many in each")
        if self.strides[-1] != 1:
            raise ValueError(f"tensor map: the innermost stride is {self.strides[-1]}; expected 1")
        for n, s in zip(self.shape, self.strides):
            if not 1 <= n <= 2 ** 32:
                raise ValueError(f"tensor map: a dimension has {n} elements; expected 1 to 2**32")
        for s in self.strides[:-1]:
            if s * size % 16 or not 0 <= s * size < 2 ** 40:
                raise ValueError(f"tensor map: a stride of {s * size} bytes; expected a multiple of 16 below 2**40")
        for n in self.box:
            if not 1 <= n <= 256:
                raise ValueError(f"tensor map: box {self.box}; expected 1 to 256 elements along each dimension")
        if self.box[-1] * size % 16:
            raise ValueError(f"tensor map: a box row of {self.box[-1] * size} bytes; expected a multiple of 16")
        if self.swizzle not in _SWIZZLES:
            raise ValueError(f"tensor map: swizzle {self.swizzle}; expected 0, 32, 64 or 128")
        if self.swizzle and self.box[-1] * size > self.swizzle:
            raise ValueError(f"tensor map: a box row of {self.box[-1] * size} bytes is wider than the swizzle's {self.swizzle}")

    def encode(self, address) -> bytes:
        """The CUtensorMap of the array at an address, which must be a multiple of 16."""
        if address % 16:
            raise ValueError(f"tensor map: address {address:#x}; expected a multiple of 16")
        encode, fixed = _encoder(self)
        return np.array([int(word) for word in check(encode(*fixed[:2], address, *fixed[2:])).opaque], np.uint64).tobytes()


@functools.lru_cache(maxsize=1024)
def _encoder(spec):
    """The driver's function, and its arguments but the address."""
    from cuda.bindings import driver as d
    size, rank = ITEMSIZE[spec.dtype], len(spec.shape)
    fixed = (getattr(d.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + _TYPES[spec.dtype]), rank,
             [d.cuuint64_t(n) for n in reversed(spec.shape)], [d.cuuint64_t(s * size) for s in reversed(spec.strides[:-1])],
             [d.cuuint32_t(n) for n in reversed(spec.box)], [d.cuuint32_t(n) for n in reversed(spec.steps or (1,) * rank)],
             d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
             getattr(d.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + _SWIZZLES[spec.swizzle]),
             d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B, d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return d.cuTensorMapEncodeTiled, fixed
