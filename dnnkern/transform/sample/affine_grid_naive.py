"""One thread an element: a coordinate of a place, or an element of theta's gradient, which adds up all places in their order.

Any strides, any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools

from ...device import cuda, device_function, i64, jit
from ...device.convert import element
from ...device.fastmath import fma
from ...device.index import ceil_div
from ...device.index import divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
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
    walk = 0.0 if problem.is_forward else problem.places * COST.walk
    return LAUNCH + overlap(waits=walk, issue=issue_seconds(problem.grid.size, COST.coordinate, device),
                            memory=memory_seconds(problem.bytes, device))


@functools.cache
def make_base(compute, dims):
    """Device function ``base(j, d, h, w, bases)``: number j of (x, y[, z], 1) at a place."""
    T = COMPUTE[compute]

    @device_function
    def base(j, d, h, w, bases):
        value = T(1)
        if j == 0:
            value = fma(T(w), bases[4], bases[5])
        elif j == 1:
            value = fma(T(h), bases[2], bases[3])
        elif dims > 2 and j == 2:
            value = fma(T(d), bases[0], bases[1])
        return value
    return base


@functools.cache
def forward_kernel(dtype, dims):
    """A coordinate a thread."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS = COMPUTE[compute], make_base(compute, dims), dims + 1

    @jit(launch_bounds=THREADS)
    def affine_grid_naive(theta, grid, elements, out, theta_strides, grid_strides, d_step, d_first, h_step, h_first, w_step,
                          w_first):
        bases = d_step, d_first, h_step, h_first, w_step, w_first
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, k = divided(i, i64(dims))
            i, w = divided(i, out[2])
            i, h = divided(i, out[1])
            n, d = divided(i, out[0])
            at, value = n * theta_strides[0] + k * theta_strides[1], T(0)
            for j in range(COLUMNS):
                value = fma(T(load(theta, at + j * theta_strides[2])), base(j, d, h, w, bases), value)
            to = n * grid_strides[0] + d * grid_strides[1] + h * grid_strides[2] + w * grid_strides[3]
            store(grid, to + k * grid_strides[4], value)
    return affine_grid_naive


@functools.cache
def backward_kernel(dtype, dims):
    """An element of theta's gradient a thread."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS = COMPUTE[compute], make_base(compute, dims), dims + 1

    @jit(launch_bounds=THREADS)
    def affine_grid_bwd_naive(dgrid, dtheta, elements, out, grid_strides, theta_strides, d_step, d_first, h_step, h_first, w_step,
                              w_first):
        bases = d_step, d_first, h_step, h_first, w_step, w_first
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            i, j = divided(i, i64(COLUMNS))
            n, k = divided(i, i64(dims))
            total = T(0)
            for d in range(out[0]):
                for h in range(out[1]):
                    at, row = n * grid_strides[0] + d * grid_strides[1] + h * grid_strides[2] + k * grid_strides[4], T(0)
                    for w in range(out[2]):
                        row = fma(T(load(dgrid, at + w * grid_strides[3])), base(j, d, h, w, bases), row)
                    total = T(total + row)
            store(dtheta, n * theta_strides[0] + k * theta_strides[1] + j * theta_strides[2], total)
    return affine_grid_bwd_naive


def common_arguments(problem):
    """Kernel parameters `out`, the strides of what is read and of what is written, and steps and firsts along d, h, w."""
    p = problem
    theta, grid = Argument("int64x3", p.theta.strides), Argument("int64x5", p.grid_strides)
    strides = (theta, grid) if p.is_forward else (grid, theta)
    return Argument("int64x3", p.out), *strides, *(Argument(p.compute, number) for number in p.bases)


def build(problem, device, config):
    """One launch."""
    p, pointer, (result,) = problem, element(problem.theta.dtype).pointer, problem.outputs
    names = ("theta", "grid") if p.is_forward else ("dgrid", "dtheta")
    kernel = (forward_kernel if p.is_forward else backward_kernel)(p.theta.dtype, p.dims)
    arguments = (*(Argument(pointer, name) for name in names), Argument("int64", result.size), *common_arguments(p))
    return (Launch(kernel, (ceil_div(result.size, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in AFFINES)
