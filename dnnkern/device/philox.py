"""Philox4x32-10: random numbers that are a function of (seed, subsequence, offset), so any thread can make any of them.

Ten rounds of a keyed bijection of a 128-bit counter (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
The key is the 64-bit seed; the counter's low half is the offset, which counts groups of four words, its high half the subsequence, as in
cuRAND. Everything here is integer arithmetic, exact float32 arithmetic, or fused multiply-adds in a fixed order: the simulator and every
GPU give the same bits.

>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def fill(y, seed):
...     i = i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
...     a, b, c, d = philox(seed, i, 0)
...     y[i] = uniform(a)
"""
import functools

from . import SIMULATED, device_function, f32, i32, instruction, u32, u64
from .fastmath import fma
from .numeric import bits_float, float_bits

if SIMULATED:
    import numpy as np
    _sqrt = np.sqrt
else:
    _sqrt = instruction("sqrt.rn.f32 $0, $1;", ("float32",), ("float32",), twin=None, pure=True)

STREAMS = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, to the nearest odd number: what `stream_seed` multiplies offsets by."""

_product = instruction("mul.wide.u32 $0, $1, $2;", ("uint64",), ("uint32", "uint32"), pure=True, twin=lambda a, b: a * b)


@device_function
def philox_rounds(c0, c1, c2, c3, k0, k1):
    """Ten rounds: four uint32 from the counter (c0 .. c3) and the key (k0, k1), lowest words first."""
    c0, c1, c2, c3, k0, k1 = u32(c0), u32(c1), u32(c2), u32(c3), u32(k0), u32(k1)
    for _ in range(10):
        first, second = _product(c0, u32(0xD2511F53)), _product(c2, u32(0xCD9E8D57))
        c0, c1, c2, c3 = u32(second >> 32) ^ c1 ^ k0, u32(second), u32(first >> 32) ^ c3 ^ k1, u32(first)
        k0, k1 = u32(k0 + 0x9E3779B9), u32(k1 + 0xBB67AE85)  # wraps: in the simulator also in kernels of Numba's own jit
    return c0, c1, c2, c3


@device_function
def philox(seed, subsequence, offset):
    """The four uint32 number `offset` of a subsequence (integers of up to 64 bits)."""
    s, q, o = u64(seed), u64(subsequence), u64(offset)
    return philox_rounds(u32(o), u32(o >> 32), u32(q), u32(q >> 32), u32(s), u32(s >> 32))


@device_function
def stream_seed(seed, offset):
    """The seed of the draws of a call where the kernel itself counts the offsets: each offset of the call has its own, 0 has `seed`."""
    return u64(u64(seed) + u64(offset) * STREAMS)  # wraps


@functools.cache
def make_word(at_address):
    """Device function ``word_of(value)``: a seed or an offset, which is the value or, at an address, the number there."""
    @device_function
    def given(value):
        return value

    @device_function
    def loaded(value):
        return u64(value[0])
    return loaded if at_address else given


@functools.cache
def make_stream_seed(seed_array, offset_array):
    """Device function ``seed_of(seed, offset)``: `stream_seed` of both where one is at an address; of numbers it is the first already."""
    seed_of, offset_of = make_word(seed_array), make_word(offset_array)

    @device_function
    def given(seed, offset):
        return seed

    @device_function
    def loaded(seed, offset):
        return stream_seed(seed_of(seed), offset_of(offset))
    return loaded if seed_array or offset_array else given


@device_function
def uniform(word):
    """A float32 in (0, 1] from a uint32: its upper 24 bits plus one, over 2**24. Exact."""
    return f32(u32(u32(u32(word) >> u32(8)) + u32(1))) * f32(2.0**-24)


@device_function
def _minus_two_log(u):
    """-2 ln(u) of a float32 in [2**-24, 1], within 2 ulp: u = m 2**e with m in [0.7, 1.4), and a polynomial in m - 1."""
    bits = float_bits(u)
    e = i32(i32(bits - u32(0x3F3504F3)) >> i32(23))
    m = bits_float(u32(bits - u32(u32(e) << u32(23)))) - f32(1)
    p = fma(m, f32(7.0376836292e-2), f32(-1.1514610310e-1))
    p = fma(m, p, f32(1.1676998740e-1))
    p = fma(m, p, f32(-1.2420140846e-1))
    p = fma(m, p, f32(1.4249322787e-1))
    p = fma(m, p, f32(-1.6668057665e-1))
    p = fma(m, p, f32(2.0000714765e-1))
    p = fma(m, p, f32(-2.4999993993e-1))
    p = fma(m, p, f32(3.3333331174e-1))
    square = m * m
    tail = fma(f32(e), f32(-2.12194440e-4), square * fma(m, p, f32(-0.5)))
    return f32(-2) * fma(f32(e), f32(0.693359375), m + tail)


@device_function
def _cos_sin(u):
    """cos and sin of 2 pi u, u in [0, 1]: the nearest quarter turn, and polynomials within an eighth of one."""
    quarter = i32(fma(u, f32(4), f32(0.5)))
    x = fma(f32(quarter), f32(-0.25), u) * f32(6.283185307179586)
    square = x * x
    s = fma(square, f32(-1.9515295891e-4), f32(8.3321608736e-3))
    s = fma(square, s, f32(-1.6666654611e-1))
    s = fma(x * square, s, x)
    c = fma(square, f32(2.443315711809948e-5), f32(-1.388731625493765e-3))
    c = fma(square, c, f32(4.166664568298827e-2))
    c = fma(square, c, f32(-0.5))
    c = fma(square, c, f32(1))
    if quarter & 1:
        s, c = c, -s
    if quarter & 2:
        s, c = -s, -c
    return c, s


@device_function
def normal_pair(word0, word1):
    """Two independent standard normal float32 from two uint32, by Box and Muller; the largest possible is 5.8."""
    radius = _sqrt(_minus_two_log(uniform(word0)))
    c, s = _cos_sin(uniform(word1))
    return radius * c, radius * s
