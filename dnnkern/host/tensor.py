"""Tensor descriptors: what a problem knows of an operand."""
import math
from dataclasses import dataclass

import numpy as np

from .dtypes import ITEMSIZE


def packed_strides(shape):
    """Row-major strides in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Tensor:
    """Shape, strides (in elements), dtype name and alignment of an array; no pointer.

    `alignment` is the largest power of two up to 16 that divides the address of the first element.
    """
    shape: tuple
    strides: tuple
    dtype: str
    alignment: int = 16

    def __post_init__(self):
        if len(self.shape) != len(self.strides):
            raise ValueError(f"a tensor of shape {self.shape} needs {len(self.shape)} strides, got {self.strides}")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"a tensor has no negative sizes, got shape {self.shape}")
        if self.dtype not in ITEMSIZE:
            raise TypeError(f"unknown dtype {self.dtype!r}; expected one of {', '.join(ITEMSIZE)}")

    @classmethod
    def packed(cls, shape, dtype, alignment=16):
        """A row-major tensor without gaps."""
        shape = tuple(shape)
        return cls(shape, packed_strides(shape), dtype, alignment)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def itemsize(self):
        return ITEMSIZE[self.dtype]

    @property
    def is_packed(self):
        return all(s == p for n, s, p in zip(self.shape, self.strides, packed_strides(self.shape)) if n > 1)

    @property
    def extent(self):
        """Bytes (first, last) that elements may occupy, relative to the first element's address; (0, 0) where there are none."""
        if not self.size:
            return 0, 0
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s < 0)
        high = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s > 0)
        return low * self.itemsize, (high + 1) * self.itemsize

    @property
    def nbytes(self):
        """Bytes of the distinct elements: a dimension of stride 0 counts once."""
        if 0 not in self.strides:
            return math.prod(self.shape) * ITEMSIZE[self.dtype]
        return math.prod(n for n, s in zip(self.shape, self.strides) if s) * self.itemsize if self.size else 0

    def check_addresses(self, function, name="out"):
        """Raise where several elements of an array that is written share one address."""
        if self.size and any(s == 0 for n, s in zip(self.shape, self.strides) if n > 1):
            raise ValueError(f"{function}: {name} has shape {self.shape} and strides {self.strides}; several elements share one address")

    def __str__(self):
        text = f"{self.dtype}{list(self.shape)}"
        if not self.is_packed:
            text += f" strides {self.strides}"
        return text if self.alignment == 16 else f"{text} align {self.alignment}"


class _Shadow:
    """A NumPy array at an address; it is not read."""

    def __init__(self, t, address):
        strides = tuple(s * t.itemsize for s in t.strides)
        self.__array_interface__ = {"version": 3, "shape": t.shape, "strides": strides, "typestr": f"|V{t.itemsize}",
                                    "data": (address, True)}


def share_memory(s, s_address, t, t_address) -> bool:
    """Whether two arrays have a byte in common; True as well where finding out would take too long (bounds of the problem: NumPy's)."""
    try:
        return np.shares_memory(np.asarray(_Shadow(s, s_address)), np.asarray(_Shadow(t, t_address)), max_work=100_000)
    except np.exceptions.TooHardError if hasattr(np, "exceptions") else np.TooHardError:
        return True
