"""One thread per element: a position of the resampled image from the pixels round it, or a pixel's gradient from the positions it is a
part of.

Nothing is shared between threads; the gradient is gathered, without atomics, position by position in their order. Arbitrary strides, any
number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i64, jit
from ...device.convert import element
from ...device.index import divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import image_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from ._filters import NORMALISED, axis_argument, inverse_argument, make_filter, sums_argument, sums_bytes, sums_launches
from ._resample_problem import RESAMPLES
from ._taps import axes_arguments, make_mix, make_reach, make_source, make_weight

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
    an_element = COST.output + COST.tap * taps if problem.is_forward else COST.bwd + COST.bwd_tap * taps
    an_element = COST.output + COST.filter_tap * taps if problem.filter else an_element
    issue = issue_seconds(problem.outputs[0].size, an_element, device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.bytes, device))


class Sizes(NamedTuple):
    """Channels and extents of what is computed."""
    c: i64
    d: i64
    h: i64
    w: i64


@functools.cache
def make_coordinates(LAST):
    """Device function ``coordinates(i, sizes)`` -> (n, c, d, h, w) of element i; sizes are those of (c, d, h, w)."""
    @device_function
    def coordinates(i, sizes):
        c = i64(0)
        if LAST:
            i, c = divided(i, sizes.c)
        i, w = divided(i, sizes.w)
        i, h = divided(i, sizes.h)
        i, d = divided(i, sizes.d)
        if not LAST:
            i, c = divided(i, sizes.c)
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
    def resample_filter_naive(given, made, elements, sizes, given_stride, stride, axis_d, axis_h, axis_w, inverse_d, inverse_h, inverse_w,
                              sums_d, sums_h, sums_w):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            n, c, d, h, w = coordinates(i, sizes)
            d0, d1 = others(d, axis_d)
            h0, h1 = others(h, axis_h)
            w0, w1 = others(w, axis_w)
            value = T(0)
            for o in range(d0, d1):
                d_share = share(d, o, axis_d, inverse_d, sums_d)
                for p in range(h0, h1):
                    h_share = T(d_share * share(h, p, axis_h, inverse_h, sums_h))
                    at = n * given_stride.n + c * given_stride.c + o * given_stride.d + p * given_stride.h
                    for q in range(w0, w1):
                        one = T(h_share * share(w, q, axis_w, inverse_w, sums_w))
                        if one != 0:
                            value = T(value + one * T(load(given, at + q * given_stride.w)))
            if forward:
                value = T(value / T(T(total(d, axis_d, inverse_d) * total(h, axis_h, inverse_h)) * total(w, axis_w, inverse_w)))
            store(made, n * stride.n + c * stride.c + d * stride.d + h * stride.h + w * stride.w, value)
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
    def plane(x, at, stride, h0, h1, h_share, w0, w1, w_share):
        one = row(x, at + h0 * stride.h, stride.w, w0, w1, w_share)
        if TAPS > 1:
            return mix(one, row(x, at + h1 * stride.h, stride.w, w0, w1, w_share), h_share)
        return one

    if config.forward:
        @jit(launch_bounds=THREADS)
        def resample_naive(x, y, elements, sizes, x_stride, y_stride, axes, inverse_d, inverse_h, inverse_w):
            i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if i < elements:
                n, c, o, p, q = coordinates(i, sizes)
                at = n * x_stride.n + c * x_stride.c
                d0, d1, d_share = source(o, axes.d, inverse_d)
                h0, h1, h_share = source(p, axes.h, inverse_h)
                w0, w1, w_share = source(q, axes.w, inverse_w)
                value = plane(x, at + d0 * x_stride.d, x_stride, h0, h1, h_share, w0, w1, w_share)
                if TAPS > 2:
                    value = mix(value, plane(x, at + d1 * x_stride.d, x_stride, h0, h1, h_share, w0, w1, w_share), d_share)
                store(y, n * y_stride.n + c * y_stride.c + o * y_stride.d + p * y_stride.h + q * y_stride.w, value)
    else:
        @jit(launch_bounds=THREADS)
        def resample_naive(dy, dx, elements, sizes, dy_stride, dx_stride, axes, inverse_d, inverse_h, inverse_w):
            i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if i < elements:
                n, c, d, h, w = coordinates(i, sizes)
                o0, o1 = reach(d, axes.d)
                p0, p1 = reach(h, axes.h)
                q0, q1 = reach(w, axes.w)
                total = T(0)
                for o in range(o0, o1):
                    d_share = weight(o, d, axes.d, inverse_d)
                    for p in range(p0, p1):
                        h_share = d_share * weight(p, h, axes.h, inverse_h)
                        at = n * dy_stride.n + c * dy_stride.c + o * dy_stride.d + p * dy_stride.h
                        for q in range(q0, q1):
                            share = h_share * weight(q, w, axes.w, inverse_w)
                            if share != 0:
                                total += share * T(load(dy, at + q * dy_stride.w))
                store(dx, n * dx_stride.n + c * dx_stride.c + d * dx_stride.d + h * dx_stride.h + w * dx_stride.w, total)
    return resample_naive


def build(problem, device, config):
    """One launch."""
    forward, pointer = problem.is_forward, element(problem.x.dtype).pointer
    names, strides = ("x", "y"), (problem.x_strides, problem.y_strides)
    if not forward:
        names, strides = ("dy", "dx"), strides[::-1]
    sizes, elements = (problem.c, *(problem.out if forward else problem.image)), problem.outputs[0].size
    arguments = (*(Argument(pointer, name) for name in names), Argument("int64", elements), Argument(Sizes, Sizes(*sizes)),
                 *map(image_strides, strides))
    grid, block, last = (-(-elements // THREADS), 1, 1), (THREADS, 1, 1), problem.layout == "NHWC"
    if problem.filter:
        arguments += (*(axis_argument(axis, True) for axis in problem.axes), *(inverse_argument(problem, axis) for axis in problem.axes),
                      *(sums_argument(problem, k) for k in range(3)))
        main = Launch(filter_kernel(forward, problem.x.dtype, problem.compute, problem.filter, last), grid, block, arguments)
        return *sums_launches(problem, range(3), True), main
    config = Config(forward, problem.x.dtype, problem.compute, problem.pixels, len(problem.window), last)
    return (Launch(kernel(config), grid, block, (*arguments, *axes_arguments(problem))),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in RESAMPLES)
