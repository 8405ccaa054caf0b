"""One thread an element: a place of the resampled image from the pixels round it, or a pixel's gradient from the places it is a part of.

Nothing is shared between threads; the gradient is gathered, without atomics, place by place in their order. Any strides, any number of
elements; each coordinate costs a division of 64-bit integers.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i64, jit
from ...device.convert import element
from ...device.index import divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from ._filters import NORMALISED, axis_argument, inverse_argument, make_filter, sums_argument, sums_bytes, sums_launches
from ._resample_problem import RESAMPLES
from ._taps import axis_arguments, make_mix, make_reach, make_source, make_weight

COST = constants("transform/resample_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Direction, element type, what it is computed in, mode, spatial dimensions, whether channels are last."""
    forward: bool
    dtype: str
    compute: str
    mode: str
    dims: int
    last: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """What weights of a gradient are divided by."""
    return sums_bytes(problem) if problem.filter else 0


def estimate(problem, device, config):
    """Loads, and the divisions."""
    taps = 2 ** len(problem.window) if problem.pixels == "bilinear" else 1
    if problem.filter:
        taps = math.prod(max(4, 4 * axis.inner // max(axis.outer, 1)) for axis in problem.axes[-len(problem.window):])
    taps *= 1 if problem.is_forward else max(1, problem.y.size // max(problem.x.size, 1))
    an_element = COST.output + COST.tap * taps if problem.is_forward or problem.filter else COST.bwd + COST.bwd_tap * taps
    issue = issue_seconds(problem.outputs[0].size, an_element, device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.bytes, device))


@functools.cache
def make_coordinates(LAST):
    """Device function ``coordinates(i, sizes)`` -> (n, c, d, h, w) of element i; sizes are those of (c, d, h, w)."""
    @device_function
    def coordinates(i, sizes):
        c = i64(0)
        if LAST:
            i, c = divided(i, sizes[0])
        i, w = divided(i, sizes[3])
        i, h = divided(i, sizes[2])
        i, d = divided(i, sizes[1])
        if not LAST:
            i, c = divided(i, sizes[0])
        return i, c, d, h, w
    return coordinates


@functools.cache
def filter_kernel(forward, dtype, compute, kind, last):
    """y[...] or dx[...], an element a thread, in the modes that have a filter."""
    T, load, store, coordinates = COMPUTE[compute], element(dtype).load, element(dtype).store, make_coordinates(last)
    f = make_filter(kind, compute, True)
    taps, reach, weight, total, DIVIDED = f.taps, f.reach, f.weight, f.total, kind in NORMALISED

    @device_function
    def others(k, axis):
        if forward:
            return taps(k, axis)
        return reach(k, axis)

    @device_function
    def share(k, other, axis, inverse, sums):
        # of element `other`, which is read, in element k, which is made
        if forward:
            return weight(k, other, axis, inverse)
        w = weight(other, k, axis, inverse)
        return T(w / sums[other]) if DIVIDED else w

    @jit(launch_bounds=THREADS)
    def resample_filter_naive(given, made, elements, sizes, given_strides, strides, of_d, of_h, of_w, in_d, in_h, in_w, sums_d,
                              sums_h, sums_w):
        i = i64(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i < elements:
            n, c, d, h, w = coordinates(i, sizes)
            d0, d1 = others(d, of_d)
            h0, h1 = others(h, of_h)
            w0, w1 = others(w, of_w)
            value = T(0)
            for o in range(d0, d1):
                d_share = share(d, i64(o), of_d, in_d, sums_d)
                for p in range(h0, h1):
                    h_share = T(d_share * share(h, i64(p), of_h, in_h, sums_h))
                    at = i64(n * given_strides[0] + c * given_strides[1] + o * given_strides[2] + p * given_strides[3])
                    for q in range(w0, w1):
                        one = T(h_share * share(w, i64(q), of_w, in_w, sums_w))
                        if one != 0:
                            value = T(value + one * T(load(given, i64(at + q * given_strides[4]))))
            if forward:
                value = T(value / T(T(total(d, of_d, in_d) * total(h, of_h, in_h)) * total(w, of_w, in_w)))
            store(made, i64(n * strides[0] + c * strides[1] + d * strides[2] + h * strides[3] + w * strides[4]), value)
    return resample_filter_naive


@functools.cache
def kernel(config):
    """y[...] = resample(x)[...], or dx[...] = its gradient, an element a thread."""
    TAPS, BILINEAR = config.dims if config.mode == "bilinear" else 0, config.mode == "bilinear"
    T, load, store = COMPUTE[config.compute], element(config.dtype).load, element(config.dtype).store
    coordinates = make_coordinates(config.last)
    source, reach = make_source(config.mode, config.compute, True), make_reach(config.mode, True)
    weight, mix = make_weight(config.mode, config.compute, True), make_mix(config.compute)

    @device_function
    def row(x, at, step, w0, w1, share):
        one = T(load(x, at + w0 * step))
        return mix(one, T(load(x, at + w1 * step)), share) if BILINEAR else one

    @device_function
    def plane(x, at, steps, h0, h1, h_share, w0, w1, w_share):
        one = row(x, at + h0 * steps[3], steps[4], w0, w1, w_share)
        if TAPS > 1:
            return mix(one, row(x, at + h1 * steps[3], steps[4], w0, w1, w_share), h_share)
        return one

    if config.forward:
        @jit(launch_bounds=THREADS)
        def resample_naive(x, y, elements, sizes, x_strides, y_strides, lines, divisors, in_d, in_h, in_w):
            i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            inverses = in_d, in_h, in_w
            if i < elements:
                n, c, o, p, q = coordinates(i, sizes)
                at = n * x_strides[0] + c * x_strides[1]
                d0, d1, d_share = source(o, 0, lines, divisors, inverses)
                h0, h1, h_share = source(p, 1, lines, divisors, inverses)
                w0, w1, w_share = source(q, 2, lines, divisors, inverses)
                value = plane(x, at + d0 * x_strides[2], x_strides, h0, h1, h_share, w0, w1, w_share)
                if TAPS > 2:
                    value = mix(value, plane(x, i64(at + d1 * x_strides[2]), x_strides, h0, h1, h_share, w0, w1, w_share), d_share)
                store(y, n * y_strides[0] + c * y_strides[1] + o * y_strides[2] + p * y_strides[3] + q * y_strides[4], value)
    else:
        @jit(launch_bounds=THREADS)
        def resample_naive(dy, dx, elements, sizes, dy_strides, dx_strides, lines, divisors, in_d, in_h, in_w):
            i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            inverses = in_d, in_h, in_w
            if i < elements:
                n, c, d, h, w = coordinates(i, sizes)
                o0, o1 = reach(d, 0, lines, divisors)
                p0, p1 = reach(h, 1, lines, divisors)
                q0, q1 = reach(w, 2, lines, divisors)
                total = T(0)
                for o in range(o0, o1):
                    d_share = weight(o, d, 0, lines, divisors, inverses)
                    for p in range(p0, p1):
                        h_share = d_share * weight(p, h, 1, lines, divisors, inverses)
                        at = n * dy_strides[0] + c * dy_strides[1] + o * dy_strides[2] + p * dy_strides[3]
                        for q in range(q0, q1):
                            share = h_share * weight(q, w, 2, lines, divisors, inverses)
                            if share != 0:
                                total += share * T(load(dy, at + q * dy_strides[4]))
                store(dx, n * dx_strides[0] + c * dx_strides[1] + d * dx_strides[2] + h * dx_strides[3] + w * dx_strides[4], total)
    return resample_naive


def build(problem, device, config):
    """One launch."""
    forward, pointer = problem.is_forward, element(problem.x.dtype).pointer
    names, strides = ("x", "y"), (problem.x_strides, problem.y_strides)
    if not forward:
        names, strides = ("dy", "dx"), strides[::-1]
    sizes, elements = (problem.c, *(problem.out if forward else problem.image)), problem.outputs[0].size
    arguments = (*(Argument(pointer, name) for name in names), Argument("int64", elements), Argument("int64x4", sizes),
                 *(Argument("int64x5", s) for s in strides))
    grid, block, last = (-(-elements // THREADS), 1, 1), (THREADS, 1, 1), problem.layout == "NHWC"
    if problem.filter:
        arguments += (*(axis_argument(axis, True) for axis in problem.axes), *(inverse_argument(problem, axis) for axis in problem.axes),
                      *(sums_argument(problem, k) for k in range(3)))
        main = Launch(filter_kernel(forward, problem.x.dtype, problem.compute, problem.filter, last), grid, block, arguments)
        return *sums_launches(problem, range(3), True), main
    config = Config(forward, problem.x.dtype, problem.compute, problem.pixels, len(problem.window), last)
    return (Launch(kernel(config), grid, block, (*arguments, *axis_arguments(problem))),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in RESAMPLES)
