"""One thread per position: theta is read once for all coordinates, which are written side by side; indices are 32-bit numbers."""
import functools

from ...device import cuda, jit
from ...device.convert import element
from ...device.fastmath import fma
from ...device.index import ceil_div, divide_remainder, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from .affine_grid_naive import common_arguments, make_base

COST = constants("transform/affine_fwd")

THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20


def supports(problem):
    """Positions within 32 bits."""
    if problem.grid.size >= LIMIT:
        return f"{problem.grid.size} coordinates; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes written, and a few instructions a coordinate."""
    blocks = ceil_div(problem.grid.size // problem.dims, THREADS)
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(problem.grid.size, COST.coordinate, device))
    return LAUNCH + work.slowed(tail=tail(blocks, COST.blocks, device))


@functools.cache
def kernel(dtype, dims):
    """All coordinates of a position."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS = COMPUTE[compute], make_base(compute, dims), dims + 1

    @jit(launch_bounds=THREADS)
    def affine_grid_positions(theta, grid, positions, depth, height, width, out, theta_stride, grid_stride, centres):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < positions:
            rest, w = divide_remainder(i, width)
            rest, h = divide_remainder(rest, height)
            n, d = divide_remainder(rest, depth)
            to = n * grid_stride.n + d * grid_stride.d + h * grid_stride.h + w * grid_stride.w
            for k in range(dims):
                at, value = n * theta_stride.n + k * theta_stride.row, T(0)
                for j in range(COLUMNS):
                    value = fma(T(load(theta, at + j * theta_stride.column)), base(j, d, h, w, centres), value)
                store(grid, to + k * grid_stride.coordinate, value)
    return affine_grid_positions


def build(problem, device, config):
    """One launch."""
    p, pointer, positions = problem, element(problem.theta.dtype).pointer, problem.grid.size // problem.dims
    arguments = (Argument(pointer, "theta"), Argument(pointer, "grid"), Argument("int32", positions),
                 *(Argument("uint32x3", divisor(n)) for n in p.out), *common_arguments(p))
    return (Launch(kernel(p.theta.dtype, p.dims), (ceil_div(positions, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="affine_grid_fwd", name="places", supports=supports, workspace=workspace, estimate=estimate, build=build)
