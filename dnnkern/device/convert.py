"""Element types: how float64 ... int8 and fp8 lie in memory, and how kernels compute with them.

Halves and bytes travel as unsigned integers (``uint16*``, ``uint8*``, or packed into ``uint32`` words) and are computed with in float32.
`element` gives the descriptor of a type, whose functions a kernel captures::

    load, store = element("bfloat16").load, element("bfloat16").store

    @cuda.jit(launch_bounds=256)
    def double(x, y, n):                                     # x, y: "uint16*"
        i = i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
        if i < n:
            store(y, i, f32(2) * load(x, i))

Rounding is to nearest even everywhere. float16 and bfloat16 overflow to infinity; e4m3, e5m2 and the integers saturate (an fp8 infinity
too). NaN stays NaN: narrowed it is the canonical word 0x7fff or 0x7f, as the hardware's; as an integer it is 0.
"""
import dataclasses
import functools
import struct
from typing import Callable

import numpy as np

from . import SIMULATED, device_function, f32, f64, i8, i16, i32, i64, instruction, u8, u16, u32, u64

if SIMULATED:
    def float_bits(value):
        """The 32 bits of a float32, as uint32."""
        return u32(struct.unpack("<I", struct.pack("<f", value))[0])

    def bits_float(bits):
        """The float32 of 32 bits."""
        return np.uint32(bits).view(np.float32)

    def double_words(value):
        """The two 32-bit words (low, high) of a float64."""
        return tuple(map(u32, struct.unpack("<II", struct.pack("<d", value))))

    def words_double(low, high):
        """The float64 of two 32-bit words."""
        return np.float64(struct.unpack("<d", struct.pack("<II", low, high))[0])

    def target_arch():
        """Architecture the kernel is compiled for, 900 for sm_90; a constant to the compiler. The simulator is a Hopper."""
        return 900
else:
    from ._numba import bitcast, target_arch  # noqa: F401
    float_bits, bits_float = bitcast("float32", "uint32"), bitcast("uint32", "float32")
    double_words = instruction("mov.b64 {$0, $1}, $2;", ("uint32", "uint32"), ("float64",), twin=None, pure=True)
    words_double = instruction("mov.b64 $0, {$1, $2};", ("float64",), ("uint32", "uint32"), twin=None, pure=True)


# ---- float16: every architecture has the conversions, sm_80 the packed one

def _table(words, dtype):
    """All float32 values of a format, by word."""
    values = words.view(dtype).astype(np.float32) if dtype else words
    values.flags.writeable = False
    return values


_HALF = _table(np.arange(1 << 16, dtype=np.uint16), np.float16)
_BF16 = _table((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32), None)


def _half_to_float_twin(word):
    return _HALF[int(word) & 0xFFFF]


def _float_to_half_twin(value):
    try:
        return 0x7FFF if value != value else int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def _pair(narrow):
    """Twin that packs two narrowed values into 32 bits."""
    return lambda lo, hi: narrow(lo) | narrow(hi) << 16


half_to_float = instruction("cvt.f32.f16 $0, $1;", ("float32",), ("uint16",), twin=_half_to_float_twin, pure=True)
float_to_half = instruction("cvt.rn.f16.f32 $0, $1;", ("uint16",), ("float32",), twin=_float_to_half_twin, pure=True)
_half2_to_floats = instruction("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", ("float32", "float32"),
                               ("uint32",), twin=lambda word: (_HALF[int(word) & 0xFFFF], _HALF[int(word) >> 16 & 0xFFFF]), pure=True)
_floats_to_half2 = instruction("cvt.rn.f16x2.f32 $0, $2, $1;", ("uint32",), ("float32", "float32"), twin=_pair(_float_to_half_twin),
                               pure=True)
_floats_to_half2_sm75 = instruction("{ .reg .b16 l, h; cvt.rn.f16.f32 l, $1; cvt.rn.f16.f32 h, $2; mov.b32 $0, {l, h}; }", ("uint32",),
                                    ("float32", "float32"), twin=_pair(_float_to_half_twin), pure=True)


@device_function
def floats_to_half2(lo, hi):
    """Two float32 rounded to float16, packed: `lo` in the low half."""
    if target_arch() >= 800:
        return _floats_to_half2(lo, hi)
    return _floats_to_half2_sm75(lo, hi)


# ---- bfloat16: widening is a shift; narrowing is one instruction from sm_80, five integer ones before

def _round_bfloat16(value):
    bits = float_bits(value)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


_TWO_FLOATS, _TWO_WORDS = struct.Struct("<ff"), struct.Struct("<II")


def _round_bfloat162(lo, hi):
    """Both at once: a third of the time of two."""
    low, high = _TWO_WORDS.unpack(_TWO_FLOATS.pack(lo, hi))
    if low & 0x7FFFFFFF > 0x7F800000 or high & 0x7FFFFFFF > 0x7F800000:
        return _round_bfloat16(lo) | _round_bfloat16(hi) << 16
    return low + 0x7FFF + (low >> 16 & 1) >> 16 | high + 0x7FFF + (high >> 16 & 1) & 0xFFFF0000


_NARROW_BF16 = ("{ .reg .b32 b, l; .reg .pred n; mov.b32 b, $1; bfe.u32 l, b, 16, 1; add.u32 b, b, l; add.u32 b, b, 0x7fff; "
                "shr.u32 b, b, 16; setp.nan.f32 n, $1, $1; selp.b32 $0, 0x7fff, b, n; }")
bfloat16_to_float = instruction("{ .reg .b16 z; mov.b16 z, 0; mov.b32 $0, {z, $1}; }", ("float32",), ("uint16",),
                                twin=lambda word: _BF16[int(word) & 0xFFFF], pure=True)
_float_to_bfloat16 = instruction("cvt.rn.bf16.f32 $0, $1;", ("uint16",), ("float32",), twin=_round_bfloat16, pure=True)
_float_to_bfloat16_sm75 = instruction(_NARROW_BF16, ("uint32",), ("float32",), twin=_round_bfloat16, pure=True)
_floats_to_bfloat162 = instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", ("uint32",), ("float32", "float32"), twin=_round_bfloat162,
                                   pure=True)


@device_function
def float_to_bfloat16(value):
    """A float32 rounded to bfloat16, as its 16-bit word."""
    if target_arch() >= 800:
        return u16(_float_to_bfloat16(value))
    return u16(_float_to_bfloat16_sm75(value))


@device_function
def floats_to_bfloat162(lo, hi):
    """Two float32 rounded to bfloat16, packed: `lo` in the low half."""
    if target_arch() >= 800:
        return _floats_to_bfloat162(lo, hi)
    return _float_to_bfloat16_sm75(lo) | (_float_to_bfloat16_sm75(hi) << 16)


if SIMULATED:
    def bfloat162_to_floats(word):
        """The two float32 values (low, high) of a word of two bfloat16."""
        return _BF16[int(word) & 0xFFFF], _BF16[int(word) >> 16 & 0xFFFF]
else:
    @device_function
    def bfloat162_to_floats(word):
        return bits_float(word << 16), bits_float(word & 0xFFFF0000)


# ---- tf32: a float32 of which tensor cores read the upper 19 bits

def _round_tf32(word):
    word = int(word)
    if word & 0x7FFFFFFF > 0x7F800000:
        return u32(0x7FFFFFFF)  # the one NaN that arithmetic gives
    return u32(word + 0x1000 if 0 < word & 0x7F800000 < 0x7F800000 else word)


# NOTE: x + 2**(e - 11), e being the exponent of x: infinities and NaN stay, and it takes no predicate, of which there are seven. The
# instruction (cvt.rna.tf32) does, and one of its four operations clears bits that nobody reads.
round_tf32 = instruction("{ .reg .b32 p; .reg .f32 h, x; and.b32 p, $1, 0xff800000; mov.b32 h, p; mov.b32 x, $1; "
                         "fma.rn.f32 x, h, 0f3a000000, x; mov.b32 $0, x; }", ("uint32",), ("uint32",), twin=_round_tf32, pure=True)
"""``round_tf32(word)``: the bits of a float32, rounded to tf32, ties away from zero, in the upper 19; the lower 13 are
of no meaning."""


# ---- fp8: one byte; sm_89 converts pairs, before that integer arithmetic does

def _fp8_table(shift, scale, nan):
    """e5m2 is the upper byte of a float16; e4m3 fits a float16 seven bits up, 2**8 too small, and has one NaN a sign and no infinity."""
    byte = np.arange(256, dtype=np.uint16)
    halves = ((byte & 0x80) << 8 | (byte & 0x7F) << shift).view(np.float16)
    values = np.array([np.nan if b & 0x7F == nan else float(h) * scale for b, h in enumerate(halves)], np.float32)
    values.flags.writeable = False
    return values


_E4M3, _E5M2 = _fp8_table(7, 256, 0x7F), _fp8_table(8, 1, None)


def _fp8_rounding(largest, smallest_normal, ulp_bits, shift, bias):
    """Software rounding to fp8 from bit patterns. One ulp of `ulp_bits` is the smallest subnormal: adding rounds to it."""
    half = (1 << shift - 1) - 1

    @device_function
    def narrow(value):
        bits = float_bits(value)
        magnitude = bits & 0x7FFFFFFF
        sign = (bits >> 24) & 0x80
        if magnitude > 0x7F800000:
            return u32(0x7F)
        if magnitude > largest:
            magnitude = u32(largest)
        if magnitude < smallest_normal:
            return sign | (float_bits(bits_float(magnitude) + bits_float(u32(ulp_bits))) - ulp_bits)
        odd = (magnitude >> shift) & 1
        return sign | (((magnitude + odd + half) >> shift) - bias)
    return narrow


_round_e4m3 = _fp8_rounding(0x43E00000, 0x3C800000, 0x46800000, 20, (127 - 7) << 3)  # 448, 2**-6, 2**14
_round_e5m2 = _fp8_rounding(0x47600000, 0x38800000, 0x43000000, 21, (127 - 15) << 2)  # 57344, 2**-14, 2**7


def _fp8_pair(narrow):
    return lambda lo, hi: int(narrow(lo)) | int(narrow(hi)) << 8


_floats_to_e4m3x2 = instruction("cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", ("uint16",), ("float32", "float32"),
                                twin=_fp8_pair(_round_e4m3), pure=True)
_floats_to_e5m2x2 = instruction("cvt.rn.satfinite.e5m2x2.f32 $0, $2, $1;", ("uint16",), ("float32", "float32"),
                                twin=_fp8_pair(_round_e5m2), pure=True)


def _fp8_twin(table):
    return lambda pair: (table[int(pair) & 0xFF], table[int(pair) >> 8 & 0xFF])


_e4m3x2_to_floats = instruction("{ .reg .b32 p; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 p, $2; mov.b32 {l, h}, p; cvt.f32.f16 $0, l; "
                                "cvt.f32.f16 $1, h; }", ("float32", "float32"), ("uint16",), twin=_fp8_twin(_E4M3), pure=True)


@device_function
def _e4m3_to_float_sm75(byte):
    word = byte
    if word & 0x7F == 0x7F:
        return bits_float(u32(0x7FFFFFFF))
    return half_to_float(u16(((word & 0x80) << 8) | ((word & 0x7F) << 7))) * 256


@device_function
def e4m3x2_to_floats(pair):
    """The two float32 values (low, high) of a 16-bit pair of e4m3."""
    if target_arch() >= 890:
        return _e4m3x2_to_floats(pair)
    return _e4m3_to_float_sm75(pair & u32(0xFF)), _e4m3_to_float_sm75((u32(pair) >> 8) & 0xFF)


@device_function
def floats_to_e4m3x2(lo, hi):
    """Two float32 rounded to e4m3 and saturated at 448, as a 16-bit pair."""
    if target_arch() >= 890:
        return u16(_floats_to_e4m3x2(lo, hi))
    return u16(_round_e4m3(lo) | (_round_e4m3(hi) << 8))


e5m2x2_to_floats = instruction("{ .reg .b16 l, h; shl.b16 l, $2, 8; and.b16 h, $2, 0xff00; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
                               ("float32", "float32"), ("uint16",), twin=_fp8_twin(_E5M2), pure=True)


@device_function
def floats_to_e5m2x2(lo, hi):
    """Two float32 rounded to e5m2 and saturated at 57344, as a 16-bit pair."""
    if target_arch() >= 890:
        return u16(_floats_to_e5m2x2(lo, hi))
    return u16(_round_e5m2(lo) | (_round_e5m2(hi) << 8))


# ---- integers: nearest even, then clamped

def _saturating(low, high):
    def twin(value):
        if value != value:
            return 0
        return int(min(max(float(value), low), high).__round__())
    return twin


float_to_int8 = instruction("cvt.rni.sat.s8.f32 $0, $1;", ("int32",), ("float32",), twin=_saturating(-128, 127), pure=True)
float_to_uint8 = instruction("cvt.rni.sat.u8.f32 $0, $1;", ("uint32",), ("float32",), twin=_saturating(0, 255), pure=True)
float_to_int32 = instruction("cvt.rni.s32.f32 $0, $1;", ("int32",), ("float32",), twin=_saturating(-2**31, 2**31 - 1), pure=True)
_double_to_int32 = instruction("{ .reg .pred n; .reg .b32 v; setp.nan.f64 n, $1, $1; cvt.rni.s32.f64 v, $1; selp.b32 $0, 0, v, n; }",
                               ("int32",), ("float64",), twin=_saturating(-2**31, 2**31 - 1), pure=True)


# ---- bytes of words

def _permute_bytes(a, b, selector):
    word = int(a) | int(b) << 32
    return u32(sum((word >> 8 * (int(selector) >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4)))


permute_bytes = instruction("prmt.b32 $0, $1, $2, $3;", ("uint32",), ("uint32",) * 3, twin=_permute_bytes, pure=True)
"""``permute_bytes(a, b, selector)``: byte k of the result is that of the eight of a (0-3) and b (4-7) which the selector's hexadecimal
digit k names."""


# ---- descriptors

@dataclasses.dataclass(frozen=True)
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
        return "uint16", "float32", (half_to_float, float_to_half, _half2_to_floats, floats_to_half2)
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
        return "int32", "float64", (widen, _double_to_int32, widen, device_function(lambda value: u32(_double_to_int32(value))))
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
