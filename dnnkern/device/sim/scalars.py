"""Casts and element types.

An integer in a kernel is a Python int: as on a GPU, where Numba widens, a sum of two 32-bit integers does not wrap until it is cast or
stored. In a kernel of `dnnkern.device.jit` it may be one that knows its type (see `integers`). A float is a NumPy scalar. Casts double as
the dtype of an array.
"""
from functools import lru_cache

import numpy as np

from .._parameters import rebuilt
from .integers import tags

f32, f64 = np.float32, np.float64


def _integer(name):
    dtype = np.dtype(name)
    mask = (1 << 8 * dtype.itemsize) - 1
    half = (mask >> 1) + 1
    least = -half
    if dtype.kind == "i":
        def cast(x):
            if not (type(x) is int and least <= x < half):
                x = ((int(x) + half) & mask) - half
            return x if not tags or name not in tags else tags[name](x)
    else:
        def cast(x):
            if not (type(x) is int and 0 <= x <= mask):
                x = int(x) & mask
            return x if not tags or name not in tags else tags[name](x)
    cast.__name__ = cast.__qualname__ = name
    cast.__doc__ = f"`x` as {name}: truncated towards zero, wrapped to {8 * dtype.itemsize} bits."
    cast.dtype = dtype
    return cast


i8, u8, i16, u16, i32, u32, i64, u64 = (_integer(n) for n in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))
_CASTS = {c.dtype: c for c in (i8, u8, i16, u16, i32, u32, i64, u64)}


@lru_cache(maxsize=None)
def as_dtype(t):
    """NumPy dtype of a cast of this module, a NumPy type or dtype, a Python type, a name, or a Numba type."""
    own = getattr(t, "dtype", None)
    if isinstance(own, np.dtype):
        return own
    if not isinstance(t, (type, str, np.dtype)) and isinstance(getattr(t, "name", None), str):
        t = t.name  # a Numba type
    return np.dtype(t)


@lru_cache(maxsize=None)
def converter(dtype):
    """Function that converts a value as a store to memory of `dtype` does."""
    if dtype in _CASTS:
        return _CASTS[dtype]
    return bool if dtype.kind == "b" else dtype.type


def as_parameter(kind, value):
    """A constant as a kernel parameter of a type, a NamedTuple's class among them (see `_parameters`); pointers stay what they are."""
    return rebuilt(kind, value, lambda scalar, v: v if scalar.endswith("*") else np.dtype(scalar).type(v))


def as_argument(value):
    """A scalar as a kernel parameter: NumPy integers become Python ints of their type, Python floats are float64 as they are to Numba."""
    if isinstance(value, np.integer):
        return tags.get(value.dtype.name, int)(value)
    if type(value) is float:
        return np.float64(value)
    return value
