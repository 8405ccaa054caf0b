"""Tensor maps on the host: their description, its rules, and the 128 bytes that the driver encodes for an address.

Extents are outermost first, as arrays have them, strides in elements, the innermost dimension contiguous.
"""
import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from . import driver
from .driver import CudaError
from .dtypes import ITEMSIZE

# CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion
_TYPES = {"uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4,
          "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_NBYTES = 128  # of a CUtensorMap, which is aligned to 64
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}  # by rank: corners are from minus this to below it


class _Map:
    """What both kinds of maps have in common: ``dtype, shape, strides, swizzle, steps, l2_promotion``."""

    @property
    def itemsize(self):
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def every(self):
        """`steps`, or 1 along each dimension."""
        return self.steps or (1,) * len(self.shape)

    @property
    def nbytes(self):
        """Bytes that a copy moves, what lies outside the array included: what an mbarrier is to expect."""
        return int(np.prod(self.counts)) * self.itemsize

    def _check(self, least, row, what):
        rank = len(self.shape)
        if self.dtype not in _TYPES:
            raise ValueError(f"tensor map: dtype {self.dtype!r}; expected one of {', '.join(_TYPES)}")
        if not least <= rank <= 5 or len(self.strides) != rank or len(self.every) != rank:
            raise ValueError(f"tensor map: shape {self.shape}, strides {self.strides}, steps {self.steps}; expected {least} to 5 entries, "
                             "as many in each")
        if self.strides[-1] != 1:
            raise ValueError(f"tensor map: the innermost stride is {self.strides[-1]}; expected 1")
        for n in self.shape:
            if not 1 <= n <= 2 ** 32:
                raise ValueError(f"tensor map: a dimension has {n} elements; expected 1 to 2**32")
        for s in self.strides[:-1]:
            nbytes = s * self.itemsize
            if nbytes % 16 or not 0 <= nbytes < 2 ** 40:
                raise ValueError(f"tensor map: a stride of {nbytes} bytes; expected a multiple of 16 below 2**40")
        if not all(1 <= n <= 8 for n in self.every) or self.every[-1] != 1:
            raise ValueError(f"tensor map: steps {self.steps}; expected 1 to 8 along each dimension, 1 along the innermost")
        if self.swizzle not in _SWIZZLES:
            raise ValueError(f"tensor map: swizzle {self.swizzle}; expected 0, 32, 64 or 128")
        if self.l2_promotion not in _PROMOTIONS:
            raise ValueError(f"tensor map: l2_promotion {self.l2_promotion}; expected 0, 64, 128 or 256")
        if row * self.itemsize % 16:
            raise ValueError(f"tensor map: {what} of {row * self.itemsize} bytes; expected a multiple of 16")
        if self.swizzle and row * self.itemsize > self.swizzle:
            raise ValueError(f"tensor map: {what} of {row * self.itemsize} bytes is wider than the swizzle's {self.swizzle}")
        if self.swizzle and row * self.itemsize < self.swizzle:
            raise ValueError(f"tensor map: {what} of {row * self.itemsize} bytes is narrower than the swizzle's {self.swizzle}; where "
                             "such rows would lie is documented nowhere")

    def check_address(self, address):
        """Raise `ValueError` where no array of the map may begin."""
        if address % 16:
            raise ValueError(f"tensor map: the array begins at address {address:#x}, which is {address % 16} bytes past a multiple of "
                             "16; a tensor map takes multiples of 16 alone")

    def encode(self, address) -> bytes:
        """The CUtensorMap of the array at an address, which must be a multiple of 16."""
        self.check_address(address)
        encode, fixed = _encoder(self)
        storage = ctypes.create_string_buffer(_NBYTES + 63)
        at = -(-ctypes.addressof(storage) // 64) * 64
        try:
            encode(at, *fixed[:2], address, *fixed[2:])
            return ctypes.string_at(at, _NBYTES)
        except CudaError as error:
            raise CudaError(f"tensor map: the driver does not take {self} at address {address:#x}: {error}") from None


@dataclass(frozen=True)
class TensorMap(_Map):
    """A tiled view of an array: boxes of it travel between global and shared memory in one instruction.

    Attributes
    ----------
    dtype : str
    shape, strides : tuple of int
        One to five dimensions.
    box : tuple of int
        Extent of a box along each dimension, 1 to 256.
    swizzle : 0, 32, 64 or 128
        Bytes over which 16-byte chunks are permuted in shared memory; if not 0, the bytes of a box's row.
    steps : tuple of int, optional
        Every how many elements of the box one is taken, along each dimension: ceil(box / step) of them. The innermost is 1.
    l2_promotion : 0, 64, 128 or 256
        Bytes that the L2 reads at least.
    """
    dtype: str
    shape: tuple
    strides: tuple
    box: tuple
    swizzle: int = 0
    steps: tuple | None = None
    l2_promotion: int = 128
    im2col = False

    def __post_init__(self):
        if len(self.box) != len(self.shape):
            raise ValueError(f"tensor map: shape {self.shape}, box {self.box}; expected one to five entries, as many in each")
        for n in self.box:
            if not 1 <= n <= 256:
                raise ValueError(f"tensor map: box {self.box}; expected 1 to 256 elements along each dimension")
        self._check(1, self.box[-1] if self.box else 0, "a box row")

    @property
    def counts(self):
        """Elements that a box has along each dimension."""
        return tuple(-(-n // step) for n, step in zip(self.box, self.every))


@dataclass(frozen=True)
class Im2colMap(_Map):
    """Pixels of images, for convolutions: a column of them, of a few channels each, travels to shared memory in one instruction.

    Pixels are counted within a box: along width from `lower` to width - 1 + `upper`, then height, then depth, then on in the next image. An
    offset, given at each copy, moves where they are read; what lies outside the image is zero. For a convolution with padding p, dilation d
    and a filter of r taps, `lower` is -p, `upper` is p - (r - 1) * d, `steps` are its strides and offsets are taps times d.

    Attributes
    ----------
    dtype : str
    shape, strides : tuple of int
        Images, [depth,] [height,] width, channels.
    lower, upper : tuple of int
        Corners of the box of pixels, [depth,] [height,] width.
    channels, pixels : int
        What a copy moves: up to 256 channels of up to 1024 pixels.
    swizzle, steps, l2_promotion
        As of `TensorMap`; steps are 1 for images and channels.
    """
    dtype: str
    shape: tuple
    strides: tuple
    lower: tuple
    upper: tuple
    channels: int
    pixels: int
    swizzle: int = 0
    steps: tuple | None = None
    l2_promotion: int = 128
    im2col = True

    def __post_init__(self):
        if not 1 <= self.channels <= 256 or not 1 <= self.pixels <= 1024:
            raise ValueError(f"tensor map: {self.channels} channels of {self.pixels} pixels; expected 1 to 256 of 1 to 1024")
        self._check(3, self.channels, "a pixel")
        space, bound = self.shape[1:-1], _CORNERS[len(self.shape)]
        if len(self.lower) != len(space) or len(self.upper) != len(space):
            raise ValueError(f"tensor map: corners {self.lower} and {self.upper}; expected {len(space)} entries in each")
        if not all(-bound <= c < bound for c in self.lower + self.upper):
            raise ValueError(f"tensor map: corners {self.lower} and {self.upper}; expected {-bound} to {bound - 1} in {len(space)} "
                             "dimensions")
        for n, low, up in zip(space, self.lower, self.upper):
            if n + up <= low:
                raise ValueError(f"tensor map: corners {self.lower} and {self.upper} leave no pixel of an image of {space}")
        if self.every[0] != 1:
            raise ValueError(f"tensor map: steps {self.steps}; expected 1 along the images")

    @property
    def counts(self):
        """Pixels, and channels of each."""
        return self.pixels, self.channels


@functools.lru_cache(maxsize=1024)
def _encoder(spec):
    """The driver's function, and its arguments but the addresses of the map and of the array."""
    size, rank = spec.itemsize, len(spec.shape)
    if spec.im2col:  # corners like all else from the width on, whatever order the driver's documentation names them in
        encode = driver.cuTensorMapEncodeIm2col
        box = _reversed(ctypes.c_int, spec.lower), _reversed(ctypes.c_int, spec.upper), int(spec.channels), int(spec.pixels)
    else:
        encode, box = driver.cuTensorMapEncodeTiled, (_reversed(ctypes.c_uint32, spec.box),)
    strides = _reversed(ctypes.c_uint64, [s * size for s in spec.strides[:-1]] or [16])  # not read, but no null pointer either
    return encode, (_TYPES[spec.dtype], rank, _reversed(ctypes.c_uint64, spec.shape), strides, *box, _reversed(ctypes.c_uint32, spec.every),
                    0, _SWIZZLES[spec.swizzle], _PROMOTIONS[spec.l2_promotion], 0)  # not interleaved; zeros outside of the array


def _reversed(kind, values):
    """An array in C: the driver counts dimensions from the innermost."""
    return (kind * len(values))(*map(int, reversed(values)))  # ctypes takes no integers of NumPy
