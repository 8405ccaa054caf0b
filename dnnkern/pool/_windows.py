"""Which pixels a place sees, which places see a pixel, and how many an average counts: device functions for one of the three axes.

`g` is the tuple of `PoolProblem.geometry`, or in kernels with 32-bit numbers that of `geometry32`.
"""
import functools

from ..device import device_function, f32, f64, i32, i64
from ..device.fastmath import fma, rcp
from ..device.index import divide as index_divide
from ..device.index import divisor
from ..host.launch import Argument

MINUS_INFINITY = float("-inf")
# Where in the geometry the three axes' numbers begin; how many there are, and how many from the first on are divided by.
IMAGE, OUT, TAPS, STEP, DILATION, BEFORE, LOW, HIGH = range(0, 24, 3)
NUMBERS, DIVISORS = 24, DILATION + 3


@functools.cache
def make_divide(field, wide):
    """``divide(a, g)`` by the geometry's number `field`, rounded down, of a >= 0, and ``ceil(a, g)`` of any a, 0 for negative ones.

    64-bit numbers are divided; 32-bit ones are multiplied by what follows the geometry (`geometry32`).
    """
    Int, MULTIPLIER = i64 if wide else i32, NUMBERS + 2 * field
    if wide:
        @device_function
        def divide(a, g):
            return a // g[field]
    else:
        @device_function
        def divide(a, g):
            return index_divide(a, (g[field], g[MULTIPLIER], g[MULTIPLIER + 1]))

    @device_function
    def ceil(a, g):
        return Int(divide(Int(a + g[field] - 1), g)) if a > 0 else Int(0)
    return divide, ceil


def geometry32(problem) -> Argument:
    """The geometry in 32 bits, and behind it multiplier and shift for each number that something is divided by."""
    (whole,) = problem.geometry()
    divisors = [v - 2 ** 32 if v >= 2 ** 31 else v for n in whole.value[:DIVISORS] for v in divisor(max(n, 1))[1:]]
    return Argument(f"int32x{NUMBERS + 2 * DIVISORS}", (*whole.value, *divisors))


@functools.cache
def make_window(axis, adaptive, wide):
    """``window(place, g) -> (first pixel, taps)``; the first may lie in the padding."""
    divide, ceil = make_divide(OUT + axis, wide)
    Int = i64 if wide else i32
    N, T, S, B = (field + axis for field in (IMAGE, TAPS, STEP, BEFORE))

    @device_function
    def window(place, g):
        if adaptive:
            first = Int(divide(Int(place * g[N]), g))
            return first, Int(ceil(Int(Int(place + 1) * g[N]), g) - first)
        return Int(place * g[S] - g[B]), Int(g[T])
    return window


@functools.cache
def make_seen_by(axis, adaptive, wide):
    """``seen_by(first pixel, last pixel, g) -> (first place, end of the places)`` whose windows' spans meet the pixels, the
    first of which is in the image."""
    divide, ceil = make_divide((IMAGE if adaptive else STEP) + axis, wide)
    Int = i64 if wide else i32
    M, T, D, B = (field + axis for field in (OUT, TAPS, DILATION, BEFORE))

    @device_function
    def seen_by(pixel, last, g):
        if adaptive:
            return Int(divide(Int(pixel * g[M]), g)), min(Int(ceil(Int(Int(last + 1) * g[M]), g)), Int(g[M]))
        first = Int(ceil(Int(pixel + g[B] - Int(g[T] - 1) * g[D]), g))
        return first, min(Int(divide(Int(last + g[B]), g) + 1), Int(g[M]))
    return seen_by


@functools.cache
def make_inside(axis, dilated, wide):
    """``inside(first pixel, taps, g) -> (first tap, end of the taps)`` that are in the image."""
    _, ceil = make_divide(DILATION + axis, wide)
    Int = i64 if wide else i32
    N = IMAGE + axis

    @device_function
    def inside(first, taps, g):
        low, high = Int(-first), Int(g[N] - first)
        if dilated:
            low, high = ceil(low, g), ceil(high, g)
        return max(low, Int(0)), min(high, taps)
    return inside


@functools.cache
def make_counted(axis, dilated, wide):
    """``counted(first pixel, taps, g)``: how many of a window's taps an average counts."""
    _, ceil = make_divide(DILATION + axis, wide)
    Int = i64 if wide else i32
    L, H = LOW + axis, HIGH + axis

    @device_function
    def counted(first, taps, g):
        low, high = Int(g[L] - first), Int(g[H] - first)
        if dilated:
            low, high = ceil(low, g), ceil(high, g)
        return max(Int(min(high, taps) - max(low, Int(0))), Int(0))
    return counted


@functools.cache
def make_reciprocal(compute):
    """``reciprocal(count)``: 1 / count rounded, 0 for 0; without the subroutine that a division is."""
    if compute == "float64":
        @device_function
        def reciprocal(count):
            n = f64(count)
            r = f64(rcp(f32(count)))
            for _ in range(3):
                r = fma(r, fma(-n, r, f64(1)), r)
            return r if count > 0 else f64(0)
    else:
        @device_function
        def reciprocal(count):
            n = f32(count)
            r = rcp(n)
            return fma(r, fma(-n, r, f32(1)), r) if count > 0 else f32(0)
    return reciprocal
