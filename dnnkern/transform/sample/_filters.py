"""Filters of resampled images: what a pixel counts in a place, for the modes in which that is more than two pixels in each dimension.

Place i lies at ``(i * a + b) / d``, as `_resample_problem` has it, and pixel j at j. All comparisons are of integers, so that forward and
backward agree about who takes part, and a weight that is 0 is exactly 0: 41 times 1 / 41 is less than 1 in float32.

================== ================================================ =====================================================
filter             pixels                                           weight
================== ================================================ =====================================================
area               that overlap with [i n / m, (i + 1) n / m)       1
bicubic            two to either side; those outside are the last   Keys' cubic with A = -3/4 of the distance
antialias-bilinear nearer than r = max(1, n / m)                    1 - distance / r
antialias-bicubic  nearer than 2 r                                  Keys' cubic with A = -1/2 of distance / r
================== ================================================ =====================================================

Weights are divided by their sum over a place's pixels, which is 1 for "bicubic". (Keys: Cubic Convolution Interpolation for Digital Image
Processing, 1981.)
"""
import functools
from typing import Callable, NamedTuple

from ...device import cuda, device_function, i32, i64, jit
from ...device.index import ceil_div
from ...engine.values import COMPUTE
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch

THREADS = 256
NORMALISED = ("area", "antialias-bilinear", "antialias-bicubic")
SUPPORT = {"bicubic": 2, "antialias-bilinear": 1, "antialias-bicubic": 2}


class Filter(NamedTuple):
    """Device functions of a filter; `axis` is (a, b, d, n, m) of a dimension and `inverse` the number of `inverses_of`.

    taps(i, axis)
        The pixels (first, past the last) that place i is made of.
    reach(j, axis)
        The places (first, past the last) that pixel j takes part in.
    weight(i, j, axis, inverse)
        What pixel j counts in place i.
    total(i, axis, inverse)
        What the weights of place i are divided by.
    """
    taps: Callable
    reach: Callable
    weight: Callable
    total: Callable


@functools.cache
def make_filter(kind, compute, any_size=False):
    """The `Filter` of a kind, with 64-bit integers for `any_size`."""
    T, Int = COMPUTE[compute], i64 if any_size else i32
    AREA, CLAMPED, S = kind == "area", kind == "bicubic", SUPPORT.get(kind, 0)
    A = -0.75 if CLAMPED else -0.5

    @device_function
    def quotient(n, d):
        # rounded down; 0 of what is negative
        return Int(n // d) if n > 0 else Int(0)

    @device_function
    def quotient_up(n, d):
        return quotient(Int(n + d - 1), d)

    @device_function
    def unit(axis):
        # what 1 is among the distances
        if CLAMPED:
            return Int(axis[2])
        return Int(axis[0] if axis[0] > axis[2] else axis[2])

    @device_function
    def radius(axis):
        return Int(S * unit(axis))

    @device_function
    def taps(i, axis):
        a, b, d, n, _ = axis
        at = Int(i * a + b)
        if AREA:
            first, end = quotient(at, d), quotient_up(Int(at + a), d)
        elif CLAMPED:
            middle = Int(quotient(Int(at + d), d) - 1)
            first, end = Int(middle - 1), Int(middle + 3)
        else:
            first, end = quotient(Int(at - radius(axis) + d), d), quotient_up(Int(at + radius(axis)), d)
        return first if first > 0 else Int(0), end if end < n else n

    @device_function
    def reach(j, axis):
        a, b, d, n, m = axis
        if n == 1:
            return Int(0), m
        at = Int(j * d - b)
        if AREA:
            first, end = quotient(at, a), quotient_up(Int(at + d), a)
        else:
            first, end = quotient(Int(at - radius(axis) + a), a), quotient_up(Int(at + radius(axis)), a)
        if CLAMPED and j == 0:
            first = Int(0)
        if CLAMPED and j == n - 1:
            end = m
        return first, end if end < m else m

    @device_function
    def linear(n, one, inverse):
        return T(T(1) - T(T(n) * inverse)) if n < one else T(0)

    @device_function
    def cubic(n, one, inverse):
        x = T(T(n) * inverse)
        if n < one:
            return T(T(T(T(T(A + 2) * x) - T(A + 3)) * x) * x + T(1))
        if one < n and n < Int(2 * one):
            y = T(x - T(2))
            return T(T(T(T(A) * T(x - T(1))) * y) * y)
        return T(0)

    profile = linear if kind == "antialias-bilinear" else cubic

    @device_function
    def at_distance(n, one, inverse):
        return profile(n if n > 0 else Int(-n), one, inverse)

    @device_function
    def weight(i, j, axis, inverse):
        if AREA:
            return T(1)
        a, b, d, n, _ = axis
        distance = Int(j * d - Int(i * a + b))
        one = unit(axis)
        w = at_distance(distance, one, inverse)
        if CLAMPED:
            if j == 0:
                w = T(w + T(at_distance(Int(distance - d), one, inverse) + at_distance(Int(distance - 2 * d), one, inverse)))
            if j == n - 1:
                w = T(w + T(at_distance(Int(distance + d), one, inverse) + at_distance(Int(distance + 2 * d), one, inverse)))
        return w

    @device_function
    def total(i, axis, inverse):
        if CLAMPED:
            return T(1)
        first, end = taps(i, axis)
        if AREA:
            return T(end - first)
        found = T(0)
        for j in range(first, end):
            found = T(found + weight(i, Int(j), axis, inverse))
        return found
    return Filter(taps, reach, weight, total)


# ---- what weights of a gradient are divided by, added up once for each place and not for every pixel

@functools.cache
def sums_kernel(kind, compute, any_size):
    """The sum of the weights of each place of a dimension, a place a thread."""
    total, Int = make_filter(kind, compute, any_size).total, i64 if any_size else i32

    @jit(launch_bounds=THREADS)
    def resample_sums(sums, axis, inverse):
        i = Int(Int(i64(cuda.blockIdx.x) * THREADS) + cuda.threadIdx.x)
        if i < axis[4]:
            sums[i] = total(i, axis, inverse)
    return resample_sums


def sums_bytes(problem):
    """Of the workspace; 0 where nothing is divided, and forward, where a place's own thread adds up."""
    if problem.is_forward or problem.filter not in NORMALISED:
        return 0
    return -(-sum(problem.out) * ITEMSIZE[problem.compute] // 256) * 256


def sums_argument(problem, k):
    """Where the sums of dimension k are."""
    return Argument(f"{problem.compute}*", "workspace", sum(problem.out[:k]) * ITEMSIZE[problem.compute])


def sums_launches(problem, dimensions, any_size=False):
    """The launches that add up the weights of these dimensions."""
    kernel, found = sums_kernel(problem.filter, problem.compute, any_size), []
    for k in dimensions if sums_bytes(problem) else ():
        axis = problem.axes[k]
        arguments = sums_argument(problem, k), axis_argument(axis, any_size), inverse_argument(problem, axis)
        if axis.outer:
            found.append(Launch(kernel, (ceil_div(axis.outer, THREADS), 1, 1), (THREADS, 1, 1), arguments))
    return tuple(found)


# ---- kernel parameters

def axis_argument(axis, any_size=False):
    """Kernel parameter `axis`."""
    return Argument("int64x5" if any_size else "int32x5", (axis.a, axis.b, axis.d, axis.inner, axis.outer))


def inverse_argument(problem, axis):
    """Kernel parameter `inverse`: what integer distances are multiplied by."""
    return Argument(problem.compute, 1 / (max(axis.a, axis.d) if problem.antialias else axis.d))
