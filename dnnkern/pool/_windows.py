"""Which pixels a place sees, which places see a pixel, and how many an average counts: device functions for one of the three axes.

`g` is the tuple of `PoolProblem.geometry`, 32 or 64 bits wide as the kernel has it.
"""
import functools

from ..device import device_function, f32, f64, i32, i64
from ..device.fastmath import fma, rcp
from ..device.index import quotient

MINUS_INFINITY = float("-inf")
IMAGE, OUT, TAPS, STEP, DILATION, BEFORE, LOW, HIGH = range(0, 24, 3)  # where in the geometry each axis has its own


@functools.cache
def make_divide(wide):
    """``divide(a, b)``, rounded down, of a >= 0 and b > 0; `ceil` of any a, which is 0 for negative ones."""
    Int = i64 if wide else i32
    if wide:
        @device_function
        def divide(a, b):
            return i64(a // b)
    else:
        divide = quotient

    @device_function
    def ceil(a, b):
        return Int(divide(Int(a + b - 1), b)) if a > 0 else Int(0)
    return divide, ceil


@functools.cache
def make_window(axis, adaptive, wide):
    """``window(place, g) -> (first pixel, taps)``; the first may lie in the padding."""
    divide, ceil = make_divide(wide)
    Int = i64 if wide else i32
    N, M, T, S, B = (field + axis for field in (IMAGE, OUT, TAPS, STEP, BEFORE))

    @device_function
    def window(place, g):
        if adaptive:
            first = Int(divide(Int(place * g[N]), g[M]))
            return first, Int(ceil(Int(Int(place + 1) * g[N]), g[M]) - first)
        return Int(place * g[S] - g[B]), Int(g[T])
    return window


@functools.cache
def make_seen_by(axis, adaptive, wide):
    """``seen_by(first pixel, last pixel, g) -> (first place, end of the places)`` whose windows' spans meet the pixels."""
    divide, ceil = make_divide(wide)
    Int = i64 if wide else i32
    N, M, T, S, D, B = (field + axis for field in (IMAGE, OUT, TAPS, STEP, DILATION, BEFORE))

    @device_function
    def seen_by(pixel, last, g):
        if adaptive:
            return Int(divide(Int(pixel * g[M]), g[N])), Int(ceil(Int(Int(last + 1) * g[M]), g[N]))
        first = Int(ceil(Int(pixel + g[B] - Int(g[T] - 1) * g[D]), g[S]))
        return first, min(Int(divide(Int(last + g[B]), g[S]) + 1), Int(g[M]))
    return seen_by


@functools.cache
def make_inside(axis, dilated, wide):
    """``inside(first pixel, taps, g) -> (first tap, end of the taps)`` that are in the image."""
    _, ceil = make_divide(wide)
    Int = i64 if wide else i32
    N, D = IMAGE + axis, DILATION + axis

    @device_function
    def inside(first, taps, g):
        low, high = Int(-first), Int(g[N] - first)
        if dilated:
            low, high = ceil(low, g[D]), ceil(high, g[D])
        return max(low, Int(0)), min(high, taps)
    return inside


@functools.cache
def make_counted(axis, dilated, wide):
    """``counted(first pixel, taps, g)``: how many of a window's taps an average counts."""
    _, ceil = make_divide(wide)
    Int = i64 if wide else i32
    D, L, H = DILATION + axis, LOW + axis, HIGH + axis

    @device_function
    def counted(first, taps, g):
        low, high = Int(g[L] - first), Int(g[H] - first)
        if dilated:
            low, high = ceil(low, g[D]), ceil(high, g[D])
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
