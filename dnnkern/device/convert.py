"""Element types: how float64 ... int8 and fp8 lie in memory, and how kernels compute with them.

16-bit elements and bytes travel as unsigned integers (``uint16*``, ``uint8*``, or packed into ``uint32`` words) and are computed with in
float32. `element` gives the descriptor of a type, whose functions a kernel captures::

    load, store = element("bfloat16").load, element("bfloat16").store

    @jit(launch_bounds=256)
    def double(x, y, n):                                     # x, y: "uint16*"
        i = cuda.blockIdx.x * 256 + cuda.threadIdx.x
        if i < n:
            store(y, i, 2 * load(x, i))

How conversions round is `numeric`'s.
"""
import dataclasses
import functools
from typing import Callable

import numpy as np

from . import device_function, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from .numeric import (bfloat16_to_float, bfloat162_to_floats, bits_float, double_to_int32, double_words, e4m3x2_to_floats, e5m2x2_to_floats,
                      float_bits, float_to_bfloat16, float_to_half, float_to_int8, float_to_uint8, floats_to_bfloat162, floats_to_e4m3x2,
                      floats_to_e5m2x2, floats_to_half2, half2_to_floats, half_to_float, words_double)


@dataclasses.dataclass(frozen=True, eq=False)
class Element:
    """How one element type is stored and computed with; the functions are device functions for kernels to capture.

    Attributes
    ----------
    name : str
        ``"float64" "float32" "float16" "bfloat16" "int8" "uint8" "int32" "e4m3" "e5m2"``; with an integer `compute` those of `INTEGERS`.
    storage : numpy.dtype
        What an array of it holds in kernels: uint16 words for both halves, uint8 for fp8.
    pointer : str
        The kernel parameter's type, ``"uint16*"``.
    compute : str
        ``"float32"``, or ``"float64"`` for float64 and int32, whose values float32 cannot hold; ``"int32"``
        or ``"int64"`` where that was asked for.
    per_word, per_chunk : int
        Elements in a 32-bit word (0 for float64) and in 16 bytes.
    load, store : device functions ``load(p, i)`` and ``store(p, i, value)``
        One element, converted.
    widen, narrow : device functions ``widen(word)`` and ``narrow(value)``
        Between a stored word and the compute type.
    unpack, pack : device functions ``unpack(word)`` and ``pack(value, ...)``
        Between a 32-bit word and its `per_word` values, lowest first: a tuple, or one plain value; None for float64.
    unpack_chunk, pack_chunk : device functions ``unpack_chunk(values, k, words, j)`` and ``pack_chunk(words, j, values, k)``
        Between ``words[j:j+4]`` and ``values[k:k+per_chunk]`` of local arrays (uint32 and the compute type).
    """
    name: str
    storage: np.dtype
    pointer: str
    compute: str
    widen: Callable
    narrow: Callable
    unpack: Callable
    pack: Callable
    load: Callable = None
    store: Callable = None
    unpack_chunk: Callable = None
    pack_chunk: Callable = None

    @property
    def per_word(self):
        return 4 // self.storage.itemsize

    @property
    def per_chunk(self):
        return 16 // self.storage.itemsize

    def __repr__(self):
        return f"element({self.name!r})"


def _cast(scalar):
    return device_function(lambda value: scalar(value))


def _bytes(widen, narrow):
    """unpack and pack of four one-byte integers."""
    @device_function
    def unpack(word):
        return (widen(word & 255), widen((word >> 8) & 255), widen((word >> 16) & 255),
                widen(word >> 24))

    @device_function
    def pack(a, b, c, d):
        low = (u32(narrow(a)) & 255) | ((u32(narrow(b)) & 255) << 8)
        high = (u32(narrow(c)) & 255) | ((u32(narrow(d)) & 255) << 8)
        return low | (high << 16)
    return unpack, pack


def _fp8(widen_pair, narrow_pair):
    """The four functions of an fp8 type, from its pair conversions."""
    @device_function
    def widen(word):
        return widen_pair(u16(word))[0]

    @device_function
    def narrow(value):
        return u8(narrow_pair(value, f32(0)) & u32(0xFF))

    @device_function
    def unpack(word):
        a, b = widen_pair(u16(word & 0xFFFF))
        c, d = widen_pair(u16(word >> 16))
        return a, b, c, d

    @device_function
    def pack(a, b, c, d):
        return narrow_pair(a, b) | (u32(narrow_pair(c, d)) << 16)
    return widen, narrow, unpack, pack


def _chunks(itemsize, unpack, pack):
    """unpack_chunk and pack_chunk of a type of `itemsize` bytes."""
    if itemsize == 8:
        def unpack_chunk(values, k, words, j):
            values[k] = words_double(words[j], words[j + 1])
            values[k + 1] = words_double(words[j + 2], words[j + 3])

        def pack_chunk(words, j, values, k):
            words[j], words[j + 1] = double_words(values[k])
            words[j + 2], words[j + 3] = double_words(values[k + 1])
    elif itemsize == 4:
        def unpack_chunk(values, k, words, j):
            for w in range(4):
                values[k + w] = unpack(words[j + w])

        def pack_chunk(words, j, values, k):
            for w in range(4):
                words[j + w] = pack(values[k + w])
    elif itemsize == 2:
        def unpack_chunk(values, k, words, j):
            for w in range(4):
                values[k + 2 * w], values[k + 2 * w + 1] = unpack(words[j + w])

        def pack_chunk(words, j, values, k):
            for w in range(4):
                words[j + w] = pack(values[k + 2 * w], values[k + 2 * w + 1])
    else:
        def unpack_chunk(values, k, words, j):
            for w in range(4):
                a, b, c, d = unpack(words[j + w])
                values[k + 4 * w], values[k + 4 * w + 1], values[k + 4 * w + 2], values[k + 4 * w + 3] = a, b, c, d

        def pack_chunk(words, j, values, k):
            for w in range(4):
                words[j + w] = pack(values[k + 4 * w], values[k + 4 * w + 1], values[k + 4 * w + 2], values[k + 4 * w + 3])
    return device_function(unpack_chunk), device_function(pack_chunk)


def _parts(name):
    """storage, compute, (widen, narrow, unpack, pack) of a type."""
    if name == "float64":
        return "float64", "float64", (_cast(f64), _cast(f64), None, None)
    if name == "float32":
        return "float32", "float32", (_cast(f32), _cast(f32), bits_float, float_bits)
    if name == "float16":
        return "uint16", "float32", (half_to_float, float_to_half, half2_to_floats, floats_to_half2)
    if name == "bfloat16":
        return "uint16", "float32", (bfloat16_to_float, float_to_bfloat16, bfloat162_to_floats, floats_to_bfloat162)
    if name == "e4m3":
        return "uint8", "float32", _fp8(e4m3x2_to_floats, floats_to_e4m3x2)
    if name == "e5m2":
        return "uint8", "float32", _fp8(e5m2x2_to_floats, floats_to_e5m2x2)
    if name == "int8":
        widen, narrow = device_function(lambda word: f32(i8(word))), device_function(lambda value: i8(float_to_int8(value)))
        return "int8", "float32", (widen, narrow) + _bytes(widen, float_to_int8)
    if name == "uint8":
        widen, narrow = device_function(lambda word: f32(u8(word))), device_function(lambda value: u8(float_to_uint8(value)))
        return "uint8", "float32", (widen, narrow) + _bytes(widen, float_to_uint8)
    if name == "int32":
        widen = device_function(lambda word: f64(i32(word)))
        return "int32", "float64", (widen, double_to_int32, widen, device_function(lambda value: u32(double_to_int32(value))))
    raise TypeError(f"element: no element type {name!r}; there are float64, float32, float16, bfloat16, int8, uint8, int32, e4m3, e5m2")


_ALIASES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def _accesses(widen, narrow):
    """(load, store) of single elements."""
    @device_function
    def load(p, i):
        return widen(p[i])

    @device_function
    def store(p, i, value):
        p[i] = narrow(value)
    return load, store


@functools.cache
def _element(name):
    storage, compute, (widen, narrow, unpack, pack) = _parts(name)
    storage = np.dtype(storage)

    return Element(name, storage, f"{storage.name}*", compute, widen, narrow, unpack, pack, *_accesses(widen, narrow),
                   *_chunks(storage.itemsize, unpack, pack))


INTEGERS = {"int64": i64, "int32": i32, "int16": i16, "int8": i8, "uint8": u8, "bool": u8}
"""What integers that are computed with as such are stored as."""
SCALARS = {"float32": f32, "float64": f64, "int32": i32, "int64": i64}
"""Kernel types by the name of a compute type."""


@functools.cache
def _integer(name, compute):
    """Integers that stay integers. To int32 what does not fit is clipped, to int64 it wraps; there is no pack."""
    if name not in INTEGERS:
        raise TypeError(f"element: no integer type {name!r}; there are {', '.join(INTEGERS)}")
    S, T, WRAPS, TRUTH = INTEGERS[name], SCALARS[compute], compute == "int64", name == "bool"
    storage = np.dtype("uint8" if TRUTH else name)
    LOW, HIGH = (0, 1) if TRUTH else (int(np.iinfo(storage).min), int(np.iinfo(storage).max))

    @device_function
    def widen(word):
        if TRUTH:
            return T(1) if word != S(0) else T(0)
        return T(S(word))

    @device_function
    def narrow(value):
        if WRAPS:
            return S(value)
        return S(min(max(value, LOW), HIGH))

    if storage.itemsize == 1:
        def unpack(word):
            return (widen(u8(word)), widen(u8(word >> 8)), widen(u8(word >> 16)), widen(u8(word >> 24)))
    elif storage.itemsize == 2:
        def unpack(word):
            return widen(u16(word)), widen(u16(u32(word >> u32(16))))
    elif storage.itemsize == 4:
        def unpack(word):
            return widen(word)
    else:
        def unpack(low, high):
            return i64(u64(u64(low) | u64(u64(high) << u64(32))))
    return Element(name, storage, f"{storage.name}*", compute, widen, narrow, device_function(unpack), None, *_accesses(widen, narrow))


def element(dtype, compute=None):
    """The `Element` of a dtype, given by name or as a NumPy dtype (ml_dtypes' bfloat16 and float8 included). With `compute` "int32" or
    "int64" integers stay such: `store` clips int32 to the type, and wraps int64.

    >>> element("bfloat16").pointer
    'uint16*'
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if compute in ("int32", "int64"):
        return _integer(name, compute)
    return _element(_ALIASES.get(name, name))


def short_of(*dtypes):
    """The float type of 16 bits whose range and precision results of these dtypes need; None if they need more."""
    if any(element(d, "int32" if d in INTEGERS else None).storage.itemsize > 2 for d in dtypes):
        return None
    return "bfloat16" if "bfloat16" in dtypes else "float16"
