"""One thread per element: a position of the grid in one channel, or a pixel's gradient, which looks through all positions of its image.

Nothing is shared between threads, and each sum has one order. Arbitrary strides, any number of elements; each coordinate costs a division
of 64-bit integers. The gradient by the grid is one thread per position, which walks through the channels.
"""
import functools
from dataclasses import dataclass
from typing import Callable, NamedTuple

from ...device import cuda, device_function, i32, i64, jit
from ...device.convert import element
from ...device.index import ceil_div
from ...device.index import divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import extents, grid_strides, image_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from ._grid import make_positions
from ._grid_problem import SAMPLES

COST = constants("transform/grid_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """What kernels are compiled for: types, modes, spatial dimensions."""
    dtype: str
    grid: str
    compute: str
    mode: str
    padding: str
    corners: bool
    dims: int


def config_of(problem):
    """The configuration of a problem."""
    p = problem
    return Config(p.x.dtype, p.grid.dtype, p.compute, p.mode, p.padding_mode, p.align_corners, p.dims)


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Loads and divisions; backward every pixel looks at every position of its image."""
    p = problem
    positions = max(1, p.grid.size // p.dims // max(1, p.x.shape[0]))
    issue = issue_seconds(p.outputs[0].size, COST.element if p.is_forward else COST.look * positions, device)
    return LAUNCH * (2 - p.is_forward) + overlap(issue=issue, memory=memory_seconds(p.bytes, device))


class Corners(NamedTuple):
    """Device functions of positions and of the pixels round them.

    where(grid, at, stride, sizes) -> three positions and three slopes, of w, h, d
    split, tent
        Those of `Positions`.
    pixel(x, at, stride, sizes, d, h, w)
        One of the image, 0 outside it.
    mix(a, b, share)
        Between two values.
    mixed(x, at, stride, sizes, d, d_share, h, h_share, w, w_share)
        The image at a position.
    """
    where: Callable
    split: Callable
    tent: Callable
    pixel: Callable
    mix: Callable
    mixed: Callable


@functools.cache
def make_corners(config) -> Corners:
    """The device functions of a configuration."""
    load, load_grid, T = element(config.dtype).load, element(config.grid).load, COMPUTE[config.compute]
    locate, split, tent = make_positions(config.mode, config.padding, config.corners, config.compute)
    DIMS, BILINEAR = config.dims, config.mode == "bilinear"

    @device_function
    def where(grid, at, stride, sizes):
        w, w_slope = locate(T(load_grid(grid, at)), sizes.w)
        h, h_slope = locate(T(load_grid(grid, at + stride.coordinate)), sizes.h)
        d, d_slope = T(0), T(0)
        if DIMS > 2:
            d, d_slope = locate(T(load_grid(grid, at + 2 * stride.coordinate)), sizes.d)
        return w, h, d, w_slope, h_slope, d_slope

    @device_function
    def pixel(x, at, stride, sizes, d, h, w):
        value = T(0)
        if w >= 0 and w < sizes.w and h >= 0 and h < sizes.h and d >= 0 and d < sizes.d:
            value = T(load(x, at + d * stride.d + h * stride.h + w * stride.w))
        return value

    @device_function
    def mix(a, b, share):
        return T(T(a * T(T(1) - share)) + T(b * share))

    @device_function
    def row(x, at, stride, sizes, d, h, w, w_share):
        value = pixel(x, at, stride, sizes, d, h, w)
        if BILINEAR:
            value = mix(value, pixel(x, at, stride, sizes, d, h, w + 1), w_share)
        return value

    @device_function
    def plane(x, at, stride, sizes, d, h, h_share, w, w_share):
        value = row(x, at, stride, sizes, d, h, w, w_share)
        if BILINEAR:
            value = mix(value, row(x, at, stride, sizes, d, h + 1, w, w_share), h_share)
        return value

    @device_function
    def mixed(x, at, stride, sizes, d, d_share, h, h_share, w, w_share):
        value = plane(x, at, stride, sizes, d, h, h_share, w, w_share)
        if BILINEAR and DIMS > 2:
            value = mix(value, plane(x, at, stride, sizes, d + 1, h, h_share, w, w_share), d_share)
        return value
    return Corners(where, split, tent, pixel, mix, mixed)


@functools.cache
def forward_kernel(config):
    """An element of the result a thread."""
    corners = make_corners(config)
    where, split, mixed = corners.where, corners.split, corners.mixed
    store = element(config.dtype).store

    @jit(launch_bounds=(THREADS, 2))
    def grid_sample_naive(x, grid, y, elements, channels, sizes, out, x_stride, grid_stride, y_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, q = divided(i, out.w)
            i, p = divided(i, out.h)
            i, o = divided(i, out.d)
            n, c = divided(i, channels)
            at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
            w, h, d, _, _, _ = where(grid, at, grid_stride, sizes)
            w0, w_share = split(w)
            h0, h_share = split(h)
            d0, d_share = split(d)
            value = mixed(x, n * x_stride.n + c * x_stride.c, x_stride, sizes, d0, d_share, h0, h_share, w0, w_share)
            store(y, n * y_stride.n + c * y_stride.c + o * y_stride.d + p * y_stride.h + q * y_stride.w, value)
    return grid_sample_naive


@functools.cache
def image_kernel(config):
    """A pixel of the image's gradient a thread: the sum over all positions of the grid, in their order."""
    where, tent = make_corners(config).where, make_corners(config).tent
    load, store, T, DIMS = element(config.dtype).load, element(config.dtype).store, COMPUTE[config.compute], config.dims

    @jit(launch_bounds=(THREADS, 2))
    def grid_sample_dx_naive(dy, grid, dx, elements, channels, sizes, out, dy_stride, grid_stride, dx_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, w = divided(i, sizes.w)
            i, h = divided(i, sizes.h)
            i, d = divided(i, sizes.d)
            n, c = divided(i, channels)
            total = T(0)
            for o in range(out.d):
                for p in range(out.h):
                    for q in range(out.w):
                        at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
                        there_w, there_h, there_d, _, _, _ = where(grid, at, grid_stride, sizes)
                        share = T(tent(there_w, i32(w)) * tent(there_h, i32(h)))
                        if DIMS > 2:
                            share = T(share * tent(there_d, i32(d)))
                        if share > T(0):
                            here = n * dy_stride.n + c * dy_stride.c + o * dy_stride.d + p * dy_stride.h + q * dy_stride.w
                            total = T(total + share * T(load(dy, here)))
            store(dx, n * dx_stride.n + c * dx_stride.c + d * dx_stride.d + h * dx_stride.h + w * dx_stride.w, total)
    return grid_sample_dx_naive


@functools.cache
def make_find(config, Int):
    """Device function ``find(offsets, inside, sizes, stride, d0, h0, w0)``: of the pixels round a position, from its first one on, where
    they lie in their image, and whether they do."""
    CORNERS = 2 ** config.dims if config.mode == "bilinear" else 1

    @device_function
    def find(offsets, inside, sizes, stride, d0, h0, w0):
        for k in range(CORNERS):
            w, h, d = w0 + (k & 1), h0 + (k >> 1 & 1), d0 + (k >> 2)
            inside[k] = i32(w >= 0 and w < sizes.w and h >= 0 and h < sizes.h and d >= 0 and d < sizes.d)
            offsets[k] = d * stride.d + h * stride.h + w * stride.w
    return find


@functools.cache
def grid_kernel(config):
    """The gradient of a position of the grid a thread: the sum over the channels, in their order."""
    corners = make_corners(config)
    where, split, pixel = corners.where, corners.split, corners.pixel
    load, store, T = element(config.dtype).load, element(config.grid).store, COMPUTE[config.compute]
    DIMS, BILINEAR = config.dims, config.mode == "bilinear"
    CORNERS = 2 ** config.dims

    @jit(launch_bounds=(THREADS, 2))
    def grid_sample_dgrid_naive(dy, x, grid, dgrid, positions, channels, sizes, out, dy_stride, x_stride, grid_stride, dgrid_stride):
        slopes = cuda.local.array(3, T)
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < positions:
            i, q = divided(i, out.w)
            i, p = divided(i, out.h)
            n, o = divided(i, out.d)
            slopes[0], slopes[1], slopes[2] = T(0), T(0), T(0)
            if BILINEAR:
                at = n * grid_stride.n + o * grid_stride.d + p * grid_stride.h + q * grid_stride.w
                w, h, d, w_slope, h_slope, d_slope = where(grid, at, grid_stride, sizes)
                w0, w_share = split(w)
                h0, h_share = split(h)
                d0, d_share = split(d)
                here = n * dy_stride.n + o * dy_stride.d + p * dy_stride.h + q * dy_stride.w
                for c in range(channels):
                    given, image = T(load(dy, here + c * dy_stride.c)), n * x_stride.n + c * x_stride.c
                    for k in range(CORNERS):
                        value = T(given * pixel(x, image, x_stride, sizes, d0 + (k >> 2), h0 + (k >> 1 & 1), w0 + (k & 1)))
                        in_w = w_share if k & 1 else T(T(1) - w_share)
                        in_h = h_share if k >> 1 & 1 else T(T(1) - h_share)
                        in_d = T(1)
                        if DIMS > 2:
                            in_d = d_share if k >> 2 else T(T(1) - d_share)
                            slopes[2] = T(slopes[2] + T(value * T(in_w * in_h)) * (T(1) if k >> 2 else T(-1)))
                        slopes[0] = T(slopes[0] + T(value * T(in_h * in_d)) * (T(1) if k & 1 else T(-1)))
                        slopes[1] = T(slopes[1] + T(value * T(in_w * in_d)) * (T(1) if k >> 1 & 1 else T(-1)))
                slopes[0], slopes[1], slopes[2] = T(slopes[0] * w_slope), T(slopes[1] * h_slope), T(slopes[2] * d_slope)
            to = n * dgrid_stride.n + o * dgrid_stride.d + p * dgrid_stride.h + q * dgrid_stride.w
            for k in range(DIMS):
                store(dgrid, to + k * dgrid_stride.coordinate, slopes[k])
    return grid_sample_dgrid_naive


def sizes_arguments(problem):
    """Kernel parameters `channels`, `sizes` and `out`."""
    p = problem
    return Argument("int64", p.channels), extents(p.image), extents(p.out)


def grid_launch(problem):
    """The launch of the gradient by the grid."""
    p = problem
    pointer, numbers, positions = element(p.x.dtype).pointer, element(p.grid.dtype).pointer, p.grid.size // p.dims
    strides = (image_strides(p.strides_of(p.dy)), image_strides(p.strides_of(p.x)), grid_strides(p.grid_strides(p.grid)),
               grid_strides(p.grid_strides(p.dgrid)))
    arguments = (Argument(pointer, "dy"), Argument(pointer, "x"), Argument(numbers, "grid"), Argument(numbers, "dgrid"),
                 Argument("int64", positions), *sizes_arguments(p), *strides)
    return Launch(grid_kernel(config_of(p)), (ceil_div(positions, THREADS), 1, 1), (THREADS, 1, 1), arguments)


def build(problem, device, config):
    """One launch; backward one for the image and one for the grid, each where it has elements."""
    p, config = problem, config_of(problem)
    pointer, numbers = element(p.x.dtype).pointer, element(p.grid.dtype).pointer
    given, result = (p.x, p.y) if p.is_forward else (p.dy, p.dx)
    names = ("x", "y") if p.is_forward else ("dy", "dx")
    strides = image_strides(p.strides_of(given)), grid_strides(p.grid_strides(p.grid)), image_strides(p.strides_of(result))
    arguments = (Argument(pointer, names[0]), Argument(numbers, "grid"), Argument(pointer, names[1]), Argument("int64", result.size),
                 *sizes_arguments(p), *strides)
    make = forward_kernel if p.is_forward else image_kernel
    launches = ()
    if result.size:
        launches += (Launch(make(config), (ceil_div(result.size, THREADS), 1, 1), (THREADS, 1, 1), arguments),)
    if not p.is_forward and p.dgrid.size:
        launches += (grid_launch(p),)
    return launches


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in SAMPLES)
