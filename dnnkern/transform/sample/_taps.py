"""Which pixels a place of a resampled image is made of, and which places a pixel takes part in: what all kernels of resampling share.

A dimension has an extent `inner` in the image and `outer` in the resampled one, and (a, b, d): see `_resample_problem`.
"""
import functools

from ...device import device_function, i32, i64
from ...device.index import divide, divide_remainder, divisor
from ...engine.values import COMPUTE
from ...host.launch import Argument


@functools.cache
def make_source(mode, compute, any_size=False):
    """Device function ``source(i, k, lines, divisors, inverses) -> (first, second, share)``: of dimension k, place i is ``(1 - share) *
    first + share * second``. With `any_size` in 64-bit integers, by division."""
    T, Int, NEAREST = COMPUTE[compute], i64 if any_size else i32, mode == "nearest"

    @device_function
    def source(i, k, lines, divisors, inverses):
        n = Int(Int(i) * Int(lines[4 * k]) + Int(lines[4 * k + 1]))
        n = n if n > 0 else Int(0)
        if any_size:
            first = Int(n // Int(divisors[6 * k]))
            rest = Int(n - first * Int(divisors[6 * k]))
        else:
            first, rest = divide_remainder(n, (divisors[6 * k], divisors[6 * k + 1], divisors[6 * k + 2]))
        if NEAREST:
            return first, first, T(0)
        second = Int(first + 1) if Int(first + 1) < Int(lines[4 * k + 2]) else first
        return first, second, T(T(rest) * inverses[k])
    return source


@functools.cache
def make_reach(mode, any_size=False):
    """Device function ``reach(j, k, lines, divisors) -> (first, end)``: the places of dimension k that pixel j may be a part of."""
    Int, BACK = i64 if any_size else i32, 0 if mode == "nearest" else 1

    @device_function
    def up(n, k, divisors):
        # n / a rounded up
        n = Int(n + Int(divisors[6 * k + 3]) - 1)
        n = n if n > 0 else Int(0)
        if any_size:
            return Int(n // Int(divisors[6 * k + 3]))
        return divide(n, (divisors[6 * k + 3], divisors[6 * k + 4], divisors[6 * k + 5]))

    @device_function
    def reach(j, k, lines, divisors):
        inner, outer = Int(lines[4 * k + 2]), Int(lines[4 * k + 3])
        if inner == 1:
            return Int(0), outer
        d, b = Int(divisors[6 * k]), Int(lines[4 * k + 1])
        first, end = up(Int(Int(j - BACK) * d - b), k, divisors), up(Int(Int(j + 1) * d - b), k, divisors)
        return first, end if end < outer else outer
    return reach


@functools.cache
def make_weight(mode, compute, any_size=False):
    """Device function ``weight(i, j, k, lines, divisors, inverses)``: the share of pixel j in place i, both along dimension k."""
    T, source, KNOWN = COMPUTE[compute], make_source(mode, compute, any_size), mode == "nearest" and not any_size

    @device_function
    def weight(i, j, k, lines, divisors, inverses):
        if KNOWN:  # all that `reach` names; plain loops over 64-bit places would be unrolled, and spill on sm_75
            return T(1)
        first, second, share = source(i, k, lines, divisors, inverses)
        w = T(1) - share if first == j else T(0)
        return w + share if second == j else w
    return weight


def axis_arguments(problem):
    """Kernel parameters `lines`, `divisors`, and the three `inverses` of these functions."""
    lines = tuple(v for axis in problem.axes for v in (axis.a, axis.b, axis.inner, axis.outer))
    divisors = tuple(v for axis in problem.axes for n in (axis.d, max(axis.a, 1)) for v in divisor(n))
    return (Argument("int32x12", lines), Argument("uint32x18", divisors),
            *(Argument(problem.compute, 1 / axis.d) for axis in problem.axes))


@functools.cache
def make_mix(compute):
    """Device function ``mix(one, other, share)``: between two values; one whose share is 0 does not count, whatever it is."""
    T = COMPUTE[compute]

    @device_function
    def mix(one, other, share):
        return one if share == 0 else T(T(1) - share) * one + share * other
    return mix
