"""Arithmetic of block scales: the least scale of a format that a block's largest magnitude needs, and elements in units of it.

A scale is the quotient of that magnitude and the largest element, rounded up (cuDNN's documentation, "Block Scaling"; the OCP Microscaling
Formats specification 1.0 is kept, whose own sample conversion, section 6.3, rounds down): no element saturates but where scales of e4m3
end, at 448. Magnitudes are the bits of a float32 without its sign, whose order is that of the numbers, with NaN above infinity.
"""
import functools

import numpy as np

from ...device import device_function, f32, u8, u16, u32
from ...device.convert import element
from ...device.numeric import bits_float, float_bits, half_to_float

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "uint8": 6.0}
"""The largest element, by the dtype of what is quantized; "uint8" are two e2m1 each."""
SCALES = ("float8_e8m0fnu", "float8_e4m3fn")
"""Formats of scales that `block_scale_quantize` writes."""


@device_function
def e8m0_to_float(code):
    """``2 ** (code - 127)``; 255 is NaN."""
    bits = u32(code) << 23
    if bits == 0:
        bits = bits | 0x400000
    if bits == 0x7F800000:
        bits = bits | 0x400000
    return bits_float(bits)


@functools.cache
def make_scale_load(dtype):
    """Device function ``load(p, i)``: a scale as float32."""
    if dtype != "float8_e8m0fnu":
        return element(dtype).load

    @device_function
    def load(p, i):
        return e8m0_to_float(p[i])
    return load


@functools.cache
def make_scale(dtype, narrow):
    """Device function ``scale(magnitude) -> (code, value, inverse)``: a block's scale as it is stored, as a number, and what its elements
    are multiplied by, which is used where it is exact. Of a block of zeros the value is not 0."""
    largest = LARGEST[narrow]
    LARGEST_ELEMENT, LARGEST_BITS = np.float32(largest), {448.0: 0x43E00000, 57344.0: 0x47600000, 6.0: 0x40C00000}[largest]
    ABOVE = 0x80000000 + 0x7FFFFF - LARGEST_BITS  # rounds up, and 2**8 more keeps differences of exponents above 0
    if dtype == "float8_e8m0fnu":
        @device_function
        def scale(magnitude):
            code = min(max((magnitude + ABOVE) >> 23, 256 - 127), 256 + 127) - (256 - 127)
            if magnitude >= 0x7F800000:
                code = 254
            opposite = 254 - code
            if magnitude > 0x7F800000:
                code, opposite = 255, 255
            return u8(code), e8m0_to_float(code), e8m0_to_float(opposite)
        return scale
    to_word, to_value = element(dtype).narrow, element(dtype).widen
    RECIPROCAL = np.float32(1 / largest)

    @device_function
    def scale(magnitude):
        amax = bits_float(magnitude)
        code = to_word(amax * RECIPROCAL)
        if to_value(code) * LARGEST_ELEMENT < amax and code < 0x7E:
            code = u8(code + 1)
        value = to_value(code)
        if code == 0:
            value = f32(1)
        return code, value, value
    return scale


@functools.cache
def make_scaled(dtype):
    """Device function ``scaled(x, value, inverse)``: x in units of a scale."""
    EXACT = dtype == "float8_e8m0fnu"

    @device_function
    def scaled(x, value, inverse):
        if EXACT:
            return x * inverse
        return x / value
    return scaled


@device_function
def to_e2m1(x, scale):
    """The four bits of x in units of a scale: rounded to nearest even, as comparisons with the middles, which are exact products."""
    bits = float_bits(x)
    size, code = bits_float(bits & 0x7FFFFFFF), (bits >> 28) & 8
    if size > 0.25 * scale:
        code += 1
    if size >= 0.75 * scale:
        code += 1
    if size > 1.25 * scale:
        code += 1
    if size >= 1.75 * scale:
        code += 1
    if size > 2.5 * scale:
        code += 1
    if size >= 3.5 * scale:
        code += 1
    if size > 5 * scale:
        code += 1
    return code


@device_function
def e2m1_to_float(code):
    """The number of four bits: of a float16 they are sign, exponent and mantissa, 2**14 too small."""
    return half_to_float(u16(((code & 8) << 12) | ((code & 7) << 9))) * 16384
