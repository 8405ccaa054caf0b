"""What elements mean: words as values to compute with, and conversions from one element type to another."""
import functools

from ..device import cuda, device_function, f32, f64, u8, u16, u32
from ..device.convert import element
from ..device.numeric import bits_float, double_words, float_bits, words_double
from .pack_words import make_pack

COMPUTE = {"float32": f32, "float64": f64}


@functools.cache
def make_words(dtype, unit, compute=None):
    """(widen, narrow) between the words of a unit and compute values: ``widen(values, words, k)``, ``narrow(words, values)``. `compute`:
    as `element` takes it; integers that stay such go one by one."""
    e = element(dtype, compute)
    if unit == 16:
        @device_function
        def widen(values, words, k):
            e_unpack(values, 0, words, k)

        @device_function
        def narrow(words, values):
            e_pack(words, 0, values, 0)
        e_unpack, e_pack = e.unpack_chunk, e.pack_chunk
        return widen, narrow
    if dtype == "float64":
        @device_function
        def widen(values, words, k):
            values[0] = words_double(words[k], words[k + 1])

        @device_function
        def narrow(words, values):
            words[0], words[1] = double_words(values[0])
    elif dtype == "float32":
        @device_function
        def widen(values, words, k):
            values[0] = bits_float(words[k])

        @device_function
        def narrow(words, values):
            words[0] = float_bits(values[0])
    else:
        to_value, to_word, T = e.widen, e.narrow, {1: u8, 2: u16, 4: u32}[e.storage.itemsize]

        @device_function
        def widen(values, words, k):
            values[0] = to_value(T(words[k]))

        @device_function
        def narrow(words, values):
            words[0] = u32(T(to_word(values[0])))
    return widen, narrow


def compute_of(x_dtype, y_dtype):
    """What a conversion computes in: float64 where either side is float64 or int32, which float32 cannot hold."""
    return "float64" if "float64" in (element(x_dtype).compute, element(y_dtype).compute) else "float32"


@device_function
def round_to_odd(value):
    """A float64 as float32, towards zero, with the last bit set where that lost something: what is rounded once more is rounded right."""
    near = f32(value)
    bits, back = float_bits(near), f64(near)
    if back != value and value == value:
        if abs(back) > abs(value):
            bits = bits - 1
        bits = bits | 1
    return bits_float(bits)


@functools.cache
def make_convert(x_dtype, y_dtype, scaled):
    """Device function ``convert(value, scale)`` from x's compute value to y's, which is ready to be narrowed."""
    compute, result = compute_of(x_dtype, y_dtype), element(y_dtype).compute
    Compute, Result = COMPUTE[compute], COMPUTE[result]
    odd = compute == "float64" and result == "float32" and y_dtype != "float32"

    @device_function
    def convert(value, scale):
        v = Compute(value)
        if scaled:
            v = Compute(v * scale)
        if odd:
            return round_to_odd(v)
        return Result(v)
    return convert


@functools.cache
def make_unpack(dtype, count, compute=None):
    """Device functions ``unpack(values, words)`` and ``pack(words, values)`` of `count` elements, which fill whole words, side by side.
    `compute`: as `element` takes it; integers that stay such are clipped."""
    e = element(dtype, compute)
    WORDS = count * e.storage.itemsize // 4
    to_values, to_word = e.unpack, e.pack
    if e.storage.itemsize == 8:
        @device_function
        def unpack(values, words):
            for k in range(count):
                values[k] = words_double(words[2 * k], words[2 * k + 1])

        @device_function
        def pack(words, values):
            for k in range(count):
                words[2 * k], words[2 * k + 1] = double_words(values[k])
    elif e.storage.itemsize == 4:
        @device_function
        def unpack(values, words):
            for k in range(WORDS):
                values[k] = to_values(words[k])

        @device_function
        def pack(words, values):
            for k in range(WORDS):
                words[k] = to_word(values[k])
    elif e.storage.itemsize == 2:
        @device_function
        def unpack(values, words):
            for k in range(WORDS):
                values[2 * k], values[2 * k + 1] = to_values(words[k])

        @device_function
        def pack(words, values):
            for k in range(WORDS):
                words[k] = to_word(values[2 * k], values[2 * k + 1])
    else:
        @device_function
        def unpack(values, words):
            for k in range(WORDS):
                a, b, c, d = to_values(words[k])
                values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3] = a, b, c, d

        @device_function
        def pack(words, values):
            for k in range(WORDS):
                words[k] = to_word(values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3])
    stays = e.pack is None and e.storage.itemsize < 8
    return unpack, _pack_integers(e, count) if stays else pack


def _pack_integers(e, count):
    """`pack` of integers that stay such."""
    gather, _ = make_pack(e.storage.itemsize, count)
    narrow, MASK = e.narrow, (1 << 8 * e.storage.itemsize) - 1

    @device_function
    def pack(words, values):
        parts = cuda.local.array(count, u32)
        for k in range(count):
            parts[k] = u32(narrow(values[k])) & MASK
        gather(parts, words)
    return pack
