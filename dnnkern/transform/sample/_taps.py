"""Which pixels a resampled position is made of, and which positions a pixel takes part in: what all kernels of resampling share.

Along a dimension position i of the resampled image lies at ``(i * a + b) / d`` of the image: see `_resample_problem`.
"""
import functools
from typing import NamedTuple

from ...device import device_function, i32, i64
from ...device.index import Divisor, divide, divide_remainder, divisor
from ...engine.values import COMPUTE
from ...host.launch import Argument


class Axis(NamedTuple):
    """A dimension: a and b, the extent of the image and that of the resampled one, and d and a to divide by. In this order multiplier and
    shift of a divisor lie at a multiple of 8 bytes, and one instruction loads both."""
    a: i32
    b: i32
    inner: i32
    by_d: Divisor
    outer: i32
    by_a: Divisor


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


@functools.cache
def make_source(mode, compute, any_size=False):
    """``source(i, axis, inverse) -> (first, second, share)``: position i is ``(1 - share) * first + share * second``; `inverse` is 1 / d.
    With `any_size` in 64-bit integers, by division."""
    T, Int, NEAREST = COMPUTE[compute], i64 if any_size else i32, mode == "nearest"

    @device_function
    def source(i, axis, inverse):
        n = Int(i) * axis.a + axis.b
        n = n if n > 0 else Int(0)
        if any_size:
            first = n // Int(axis.by_d.d)
            rest = n - first * Int(axis.by_d.d)
        else:
            first, rest = divide_remainder(n, axis.by_d)
        if NEAREST:
            return first, first, T(0)
        second = first + 1 if first + 1 < axis.inner else first
        return first, second, T(rest) * inverse
    return source


@functools.cache
def make_reach(mode, any_size=False):
    """``reach(j, axis) -> (first, end)``: the positions that pixel j may be a part of."""
    Int, BACK = i64 if any_size else i32, 0 if mode == "nearest" else 1

    @device_function
    def divide_up(n, by):
        n = n + Int(by.d) - 1
        n = n if n > 0 else Int(0)
        if any_size:
            return n // Int(by.d)
        return divide(n, by)

    @device_function
    def reach(j, axis):
        outer = Int(axis.outer)
        if axis.inner == 1:
            return Int(0), outer
        d = Int(axis.by_d.d)
        first, end = divide_up((j - BACK) * d - axis.b, axis.by_a), divide_up((j + 1) * d - axis.b, axis.by_a)
        return first, end if end < outer else outer
    return reach


@functools.cache
def make_weight(mode, compute, any_size=False):
    """``weight(i, j, axis, inverse)``: the share of pixel j in position i."""
    T, source, KNOWN = COMPUTE[compute], make_source(mode, compute, any_size), mode == "nearest" and not any_size

    @device_function
    def weight(i, j, axis, inverse):
        if KNOWN:  # all that `reach` names; plain loops over 64-bit positions would be unrolled, and spill on sm_75
            return T(1)
        first, second, share = source(i, axis, inverse)
        w = T(1) - share if first == j else T(0)
        return w + share if second == j else w
    return weight


def axes_arguments(problem):
    """Kernel parameters: the axes and the three inverses of these functions."""
    axes = Axes(*(Axis(axis.a, axis.b, axis.inner, divisor(axis.d), axis.outer, divisor(max(axis.a, 1))) for axis in problem.axes))
    return Argument(Axes, axes), *(Argument(problem.compute, 1 / axis.d) for axis in problem.axes)


class Extents(NamedTuple):
    """The four extents after that of the images, in the order of memory."""
    e0: Divisor
    e1: Divisor
    e2: Divisor
    e3: Divisor


def extents_argument(sizes):
    """Kernel parameter: four extents to divide by."""
    return Argument(Extents, Extents(*map(divisor, sizes)))


@device_function
def unflatten(index, extents):
    """(image, e0, e1, e2, e3) of a thread's index."""
    rest, e3 = divide_remainder(index, extents.e3)
    rest, e2 = divide_remainder(rest, extents.e2)
    rest, e1 = divide_remainder(rest, extents.e1)
    n, e0 = divide_remainder(rest, extents.e0)
    return n, e0, e1, e2, e3


@functools.cache
def make_mix(compute):
    """``mix(one, other, share)``: between two values; one whose share is 0 does not count, whatever it is."""
    T = COMPUTE[compute]

    @device_function
    def mix(one, other, share):
        return one if share == 0 else (T(1) - share) * one + share * other
    return mix
