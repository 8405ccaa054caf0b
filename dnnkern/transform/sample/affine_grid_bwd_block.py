"""One block per sample: threads walk the positions side by side, with a sum for each element of theta's gradient, and merge these at the
end."""
import functools

from ...device import cuda, i64, jit
from ...device.block import add, make_block_reduce
from ...device.convert import element
from ...device.fastmath import fma
from ...device.index import divide_remainder, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, memory_seconds, overlap
from ...engine.values import COMPUTE
from ...host.launch import Argument, Launch
from .affine_grid_naive import common_arguments, make_base

COST = constants("transform/affine_bwd")

THREADS, LIMIT = 512, 2 ** 31 - 2 ** 20
SCRATCH = THREADS // 16


def supports(problem):
    """Positions of a sample within 32 bits, and some of them."""
    if not 0 < problem.positions < LIMIT:
        return f"{problem.positions} positions of a grid; expected 1 to 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes, at the rate of as many multiprocessors as there are samples; a turn of a block."""
    samples = problem.theta.shape[0]
    share = min(1.0, samples / device.sms)
    return LAUNCH + Cost(waves=COST.sum) + overlap(memory=memory_seconds(problem.bytes, device) / share,
                                                   waits=problem.positions / THREADS * COST.turn)


@functools.cache
def kernel(dtype, dims):
    """All of theta's gradient for a sample."""
    load, store, compute = element(dtype).load, element(dtype).store, element(dtype).compute
    T, base, COLUMNS, reduce = COMPUTE[compute], make_base(compute, dims), dims + 1, make_block_reduce(add, THREADS)
    SUMS = dims * COLUMNS

    @jit(launch_bounds=THREADS)
    def affine_grid_block(dgrid, dtheta, positions, height, width, out, grid_stride, theta_stride, centres):
        scratch, sums = cuda.shared.array(SCRATCH, T), cuda.local.array(SUMS, T)
        thread, n = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        for s in range(SUMS):
            sums[s] = T(0)
        for i in range(thread, positions, THREADS):
            rest, w = divide_remainder(i, width)
            d, h = divide_remainder(rest, height)
            at = n * grid_stride.n + d * grid_stride.d + h * grid_stride.h + w * grid_stride.w
            for k in range(dims):
                g = T(load(dgrid, at + k * grid_stride.coordinate))
                for j in range(COLUMNS):
                    sums[k * COLUMNS + j] = fma(g, base(j, d, h, w, centres), sums[k * COLUMNS + j])
        for s in range(SUMS):
            total = reduce(sums[s], scratch, s & 1)
            if thread == 0:
                store(dtheta, n * theta_stride.n + (s // COLUMNS) * theta_stride.row + (s % COLUMNS) * theta_stride.column, total)
    return affine_grid_block


def build(problem, device, config):
    """One launch."""
    p, pointer = problem, element(problem.theta.dtype).pointer
    arguments = (Argument(pointer, "dgrid"), Argument(pointer, "dtheta"), Argument("int32", p.positions),
                 *(Argument("uint32x3", divisor(n)) for n in p.out[1:]), *common_arguments(p))
    return (Launch(kernel(p.theta.dtype, p.dims), (p.theta.shape[0], 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="affine_grid_bwd", name="block", supports=supports, workspace=workspace, estimate=estimate, build=build)
