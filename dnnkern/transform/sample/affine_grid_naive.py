"""One thread per element: a coordinate of a position, or an element of theta's gradient, which adds up all positions in their order.

Arbitrary strides, any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i64, jit
from ...device.convert import element
from ...device.fastmath import fma
from ...device.index import ceil_div
from ...device.index import divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import extents, grid_strides
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from ._grid_problem import AFFINES

COST = constants("transform/affine_naive")

THREADS = 128


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Divisions; backward the walk of few threads."""
    walk = 0.0 if problem.is_forward else problem.positions * COST.walk
    return LAUNCH + overlap(waits=walk, issue=issue_seconds(problem.grid.size, COST.coordinate, device),
                            memory=memory_seconds(problem.bytes, device))


class ThetaStrides(NamedTuple):
    """Of theta[n, row, column]."""
    n: i64
    row: i64
    column: i64


class Centres(NamedTuple):
    """Pixel centres along d, h and w: that of the first pixel, and the step to the next."""
    d_step: f32
    d_first: f32
    h_step: f32
    h_first: f32
    w_step: f32
    w_first: f32


class Centres64(NamedTuple):
    """`Centres` in float64."""
    d_step: f64
    d_first: f64
    h_step: f64
    h_first: f64
    w_step: f64
    w_first: f64


@functools.cache
def make_base(compute, dims):
    """Device function ``base(j, d, h, w, centres)``: number j of (x, y[, z], 1) at a position."""
    T = COMPUTE[compute]

    @device_function
    def base(j, d, h, w, centres):
        value = T(1)
        if j == 0:
            value = fma(T(w), centres.w_step, centres.w_first)
        elif j == 1:
            value = fma(T(h), centres.h_step, centres.h_first)
        elif dims > 2 and j == 2:
            value = fma(T(d), centres.d_step, centres.d_first)
        return value
    return base


@functools.cache
def forward_kernel(dtype, dims):
    """A coordinate a thread."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS = COMPUTE[compute], make_base(compute, dims), dims + 1

    @jit(launch_bounds=THREADS)
    def affine_grid_naive(theta, grid, elements, out, theta_stride, grid_stride, centres):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, k = divided(i, dims)
            i, w = divided(i, out.w)
            i, h = divided(i, out.h)
            n, d = divided(i, out.d)
            at, value = n * theta_stride.n + k * theta_stride.row, T(0)
            for j in range(COLUMNS):
                value = fma(T(load(theta, at + j * theta_stride.column)), base(j, d, h, w, centres), value)
            to = n * grid_stride.n + d * grid_stride.d + h * grid_stride.h + w * grid_stride.w
            store(grid, to + k * grid_stride.coordinate, value)
    return affine_grid_naive


@functools.cache
def backward_kernel(dtype, dims):
    """An element of theta's gradient a thread."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS = COMPUTE[compute], make_base(compute, dims), dims + 1

    @jit(launch_bounds=THREADS)
    def affine_grid_bwd_naive(dgrid, dtheta, elements, out, grid_stride, theta_stride, centres):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, j = divided(i, COLUMNS)
            n, k = divided(i, dims)
            total = T(0)
            for d in range(out.d):
                for h in range(out.h):
                    at, row = n * grid_stride.n + d * grid_stride.d + h * grid_stride.h + k * grid_stride.coordinate, T(0)
                    for w in range(out.w):
                        row = fma(T(load(dgrid, at + w * grid_stride.w)), base(j, d, h, w, centres), row)
                    total = T(total + row)
            store(dtheta, n * theta_stride.n + k * theta_stride.row + j * theta_stride.column, total)
    return affine_grid_bwd_naive


def common_arguments(problem):
    """Kernel parameters `out`, the strides of what is read and of what is written, and the pixel centres."""
    p = problem
    theta, grid = Argument(ThetaStrides, ThetaStrides(*p.theta.strides)), grid_strides(p.grid_strides)
    strides = (theta, grid) if p.is_forward else (grid, theta)
    kind = Centres64 if p.compute == "float64" else Centres
    return extents(p.out), *strides, Argument(kind, kind(*p.bases))


def build(problem, device, config):
    """One launch."""
    p, pointer, (result,) = problem, element(problem.theta.dtype).pointer, problem.outputs
    names = ("theta", "grid") if p.is_forward else ("dgrid", "dtheta")
    kernel = (forward_kernel if p.is_forward else backward_kernel)(p.theta.dtype, p.dims)
    arguments = (*(Argument(pointer, name) for name in names), Argument("int64", result.size), *common_arguments(p))
    return (Launch(kernel, (ceil_div(result.size, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in AFFINES)
