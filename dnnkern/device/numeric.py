"""float32 from and to float16, bfloat16, tf32, fp8 and integers, one function per instruction; numbers as their bits.

Rounding is to nearest even, but of tf32. float16 and bfloat16 overflow to infinity; e4m3, e5m2 and the integers saturate (an fp8 infinity
too). NaN stays NaN: narrowed it is the canonical word 0x7fff or 0x7f, as the hardware's; as an integer it is 0.

`convert.element` has these functions by the name of a type.
"""
import struct

import numpy as np

from . import SIMULATED, device_function, instruction, u16, u32

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
    from ._intrinsics import bitcast, target_arch  # noqa: F401
    float_bits, bits_float = bitcast("float32", "uint32"), bitcast("uint32", "float32")
    double_words = instruction("mov.b64 {$0, $1}, $2;", ("uint32", "uint32"), ("float64",), twin=None, pure=True)
    words_double = instruction("mov.b64 $0, {$1, $2};", ("float64",), ("uint32", "uint32"), twin=None, pure=True)


# ---- float16: every architecture has the conversions, sm_80 the packed one

def _table(words, dtype):
    """All float32 values of a format, by word."""
    values = words.view(dtype).astype(np.float32) if dtype else words
    values.flags.writeable = False
    return values


_HALF = _table(np.arange(1 << 16, dtype=np.uint16), np.float16) if SIMULATED else None
_BF16 = _table((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32), None) if SIMULATED else None


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
half2_to_floats = instruction("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", ("float32", "float32"),
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


_E4M3, _E5M2 = (_fp8_table(7, 256, 0x7F), _fp8_table(8, 1, None)) if SIMULATED else (None, None)


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
floats_to_e4m3x4 = instruction(
    "{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, $2, $1; cvt.rn.satfinite.e4m3x2.f32 h, $4, $3; mov.b32 $0, {l, h}; }", ("uint32",),
    ("float32",) * 4, twin=lambda a, b, c, d: _fp8_pair(_round_e4m3)(a, b) | _fp8_pair(_round_e4m3)(c, d) << 16, pure=True)
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


_e4m3x2_to_half2 = instruction("cvt.rn.f16x2.e4m3x2 $0, $1;", ("uint32",), ("uint16",), pure=True,
                               twin=lambda pair: _pair(_float_to_half_twin)(*_fp8_twin(_E4M3)(pair)))


@device_function
def e4m3x2_to_half2(pair):
    """A 16-bit pair of e4m3 as two float16, exactly."""
    if target_arch() >= 890:
        return _e4m3x2_to_half2(u16(pair))
    low, high = e4m3x2_to_floats(u16(pair))
    return floats_to_half2(low, high)


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
double_to_int32 = instruction("{ .reg .pred n; .reg .b32 v; setp.nan.f64 n, $1, $1; cvt.rni.s32.f64 v, $1; selp.b32 $0, 0, v, n; }",
                              ("int32",), ("float64",), twin=_saturating(-2**31, 2**31 - 1), pure=True)


# ---- bytes of words

def _permute_bytes(a, b, selector):
    word = int(a) | int(b) << 32
    return u32(sum((word >> 8 * (int(selector) >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4)))


permute_bytes = instruction("prmt.b32 $0, $1, $2, $3;", ("uint32",), ("uint32",) * 3, twin=_permute_bytes, pure=True)
"""``permute_bytes(a, b, selector)``: byte k of the result is that of the eight of a (0-3) and b (4-7) which the selector's hexadecimal
digit k names."""
