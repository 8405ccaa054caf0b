"""Filters of resampled images: what a pixel counts in a position, for the modes in which that is more than two pixels in each dimension.

Position i lies at ``(i * a + b) / d``, as `_resample_problem` has it, and pixel j at j. All comparisons are of integers, so that forward
and backward agree about who takes part, and a weight that is 0 is exactly 0: 41 times 1 / 41 is less than 1 in float32.

================== ================================================ =====================================================
filter             pixels                                           weight
================== ================================================ =====================================================
area               that overlap with [i n / m, (i + 1) n / m)       1
bicubic            two to either side; those outside are the last   Keys' cubic with A = -3/4 of the distance
antialias-bilinear nearer than r = max(1, n / m)                    1 - distance / r
antialias-bicubic  nearer than 2 r                                  Keys' cubic with A = -1/2 of distance / r
================== ================================================ =====================================================

Weights are divided by their sum over a position's pixels, which is 1 for "bicubic". (Keys: Cubic Convolution Interpolation for Digital
Image Processing, 1981.)
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


class FilterAxis(NamedTuple):
    """A dimension: a, b and d, the extent of the image and that of the resampled one."""
    a: i64
    b: i64
    d: i64
    inner: i64
    outer: i64


class FilterAxis32(NamedTuple):
    """`FilterAxis` in 32 bits."""
    a: i32
    b: i32
    d: i32
    inner: i32
    outer: i32


class Filter(NamedTuple):
    """Device functions of a filter; `axis` is a `FilterAxis` and `inverse` the number of `inverses_of`.

    taps(i, axis)
        The pixels (first, past the last) that position i is made of.
    reach(j, axis)
        The positions (first, past the last) that pixel j takes part in.
    weight(i, j, axis, inverse)
        What pixel j counts in place i.
    total(i, axis, inverse)
        What the weights of position i are divided by.
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
        return n // d if n > 0 else Int(0)

    @device_function
    def quotient_up(n, d):
        return quotient(n + d - 1, d)

    @device_function
    def unit(axis):
        # what 1 is among the distances
        if CLAMPED:
            return axis.d
        return axis.a if axis.a > axis.d else axis.d

    @device_function
    def radius(axis):
        return S * unit(axis)

    @device_function
    def taps(i, axis):
        a, d = axis.a, axis.d
        at = i * a + axis.b
        if AREA:
            first, end = quotient(at, d), quotient_up(at + a, d)
        elif CLAMPED:
            middle = quotient(at + d, d) - 1
            first, end = middle - 1, middle + 3
        else:
            first, end = quotient(at - radius(axis) + d, d), quotient_up(at + radius(axis), d)
        return first if first > 0 else Int(0), end if end < axis.inner else axis.inner

    @device_function
    def reach(j, axis):
        a, d = axis.a, axis.d
        if axis.inner == 1:
            return Int(0), axis.outer
        at = j * d - axis.b
        if AREA:
            first, end = quotient(at, a), quotient_up(at + d, a)
        else:
            first, end = quotient(at - radius(axis) + a, a), quotient_up(at + radius(axis), a)
        if CLAMPED and j == 0:
            first = Int(0)
        if CLAMPED and j == axis.inner - 1:
            end = axis.outer
        return first, end if end < axis.outer else axis.outer

    @device_function
    def linear(n, one, inverse):
        return T(T(1) - T(T(n) * inverse)) if n < one else T(0)

    @device_function
    def cubic(n, one, inverse):
        x = T(T(n) * inverse)
        if n < one:
            return T(T(T(T(T(A + 2) * x) - T(A + 3)) * x) * x + T(1))
        if one < n and n < 2 * one:
            y = T(x - T(2))
            return T(T(T(T(A) * T(x - T(1))) * y) * y)
        return T(0)

    profile = linear if kind == "antialias-bilinear" else cubic

    @device_function
    def at_distance(n, one, inverse):
        return profile(n if n > 0 else -n, one, inverse)

    @device_function
    def weight(i, j, axis, inverse):
        if AREA:
            return T(1)
        d = axis.d
        distance = j * d - (i * axis.a + axis.b)
        one = unit(axis)
        w = at_distance(distance, one, inverse)
        if CLAMPED:
            if j == 0:
                w = T(w + T(at_distance(distance - d, one, inverse) + at_distance(distance - 2 * d, one, inverse)))
            if j == axis.inner - 1:
                w = T(w + T(at_distance(distance + d, one, inverse) + at_distance(distance + 2 * d, one, inverse)))
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
            found = T(found + weight(i, j, axis, inverse))
        return found
    return Filter(taps, reach, weight, total)


# ---- what weights of a gradient are divided by, added up once for each position and not for every pixel

@functools.cache
def sums_kernel(kind, compute, any_size):
    """The sum of the weights of each position of a dimension, one thread per position."""
    total, Int = make_filter(kind, compute, any_size).total, i64 if any_size else i32

    @jit(launch_bounds=THREADS)
    def resample_sums(sums, axis, inverse):
        i = Int(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < axis.outer:
            sums[i] = total(i, axis, inverse)
    return resample_sums


def sums_bytes(problem):
    """Of the workspace; 0 where nothing is divided, and forward, where a position's own thread adds up."""
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
    kind = FilterAxis if any_size else FilterAxis32
    return Argument(kind, kind(axis.a, axis.b, axis.d, axis.inner, axis.outer))


def inverse_argument(problem, axis):
    """Kernel parameter `inverse`: what integer distances are multiplied by."""
    return Argument(problem.compute, 1 / (max(axis.a, axis.d) if problem.antialias else axis.d))
