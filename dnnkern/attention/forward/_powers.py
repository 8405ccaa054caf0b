"""Powers of two by multiply-adds, two at a time, as two float16: what the units for exponentials, a sixteenth as many as multipliers, need
not compute. Where probabilities become e4m3, of four significant bits, eight are enough.

2**y of y = 32 v - 15, v from 0 to 1: a float32 of v + 256 has v 2**15 in its low 16 bits, which are the float16 (1 + f) 2**n, where
n and f are the whole part and the rest of y. It lacks a factor 2**f / (1 + f), for which stands a polynomial in 1 + f.
"""
import numpy as np

from ...device import device_function, f32, instruction, u32
from ...device.numeric import bits_float, float_bits, floats_to_e4m3x2, floats_to_half2, half2_to_floats

C = 1.4570, -0.69417, 0.23369
"""Of the polynomial: off by 0.0035 at most."""


def _half2(value):
    bits = int(np.float16(value).view(np.uint16))
    return f"0x{bits << 16 | bits:08X}"


def _twin(x, y, scale, offset):
    word = 0
    for k, value in enumerate((x, y)):
        v = np.float32(np.float64(value) * np.float64(scale) + np.float64(offset))
        v = np.float32(0) if v != v else min(max(v, np.float32(0)), np.float32(1))
        h = int(np.float32(v + np.float32(256)).view(np.uint32)) & 0xFFFF
        z = np.array(h & 0x3FF | 0x3C00, np.uint16).view(np.float16)
        c = np.float16(np.float64(z) * np.float64(np.float16(C[2])) + np.float64(np.float16(C[1])))
        c = np.float16(np.float64(z) * np.float64(c) + np.float64(np.float16(C[0])))
        p = np.float16(np.float64(np.array(h, np.uint16).view(np.float16)) * np.float64(c))
        word |= int(p.view(np.uint16)) << 16 * k
    return word


powers = instruction(
    "{ .reg .f32 a, b; .reg .b32 h, i, z, c; fma.rn.sat.f32 a, $1, $3, $4; fma.rn.sat.f32 b, $2, $3, $4; add.rn.f32 a, a, 0f43800000; "
    "add.rn.f32 b, b, 0f43800000; mov.b32 h, a; mov.b32 i, b; prmt.b32 h, h, i, 0x5410; lop3.b32 z, h, 0x03FF03FF, 0x3C003C00, 0xEA; "
    f"mov.b32 c, {_half2(C[2])}; mov.b32 i, {_half2(C[1])}; fma.rn.f16x2 c, z, c, i; mov.b32 i, {_half2(C[0])}; "
    "fma.rn.f16x2 c, z, c, i; mul.rn.f16x2 $0, h, c; }",
    ("uint32",), ("float32", "float32", "float32", "float32"), pure=True, twin=_twin)
"""``powers(x, y, scale, offset)``: 2**(32 v - 15) of v = x * scale + offset, clipped to 0 and 1, and of y's, as two float16."""


halves_to_e4m3 = instruction("cvt.rn.satfinite.e4m3x2.f16x2 $0, $1;", ("uint16",), ("uint32",), pure=True, twin=lambda word: int(
    floats_to_e4m3x2(*half2_to_floats(u32(word)))))


def make_powers(every):
    """Device functions for fragments whose groups of 8 columns number `every` - 1, and each `every` after it, are such pairs.

    of_group(x, k, scale, offset)
        x[k], x[k + 1] -> 2**(x * scale + offset), as the bits of a word in x[k].
    scale_mixed(x, groups, factors)
        `_fragments.scale_rows` of exponentials.
    pack(words, x)
        `_fragments.make_pack_bytes`.
    """
    @device_function
    def of_group(x, k, scale, offset):
        x[k] = bits_float(powers(x[k], x[k + 1], scale * f32(1 / 32), (offset + f32(15)) * f32(1 / 32)))
        x[k + 1] = f32(0)

    @device_function
    def scale_mixed(x, groups, factors):
        for j in range(groups):
            for h in range(2):
                k = 4 * j + 2 * h
                if j % every == every - 1:
                    a, b = half2_to_floats(float_bits(x[k]))
                    x[k] = bits_float(floats_to_half2(a * factors[h], b * factors[h]))
                else:
                    x[k], x[k + 1] = x[k] * factors[h], x[k + 1] * factors[h]

    @device_function
    def narrow(x, k, j):
        if j % every == every - 1:
            return halves_to_e4m3(float_bits(x[k]))
        return floats_to_e4m3x2(x[k], x[k + 1])

    def make_pack(count):
        @device_function
        def pack(words, x):
            for i in range(count):
                k = 8 * (i // 2) + 2 * (i % 2)
                words[i] = u32(narrow(x, k, k // 4)) | u32(narrow(x, k + 4, k // 4 + 1)) << 16
        return pack
    return of_group, scale_mixed, make_pack
