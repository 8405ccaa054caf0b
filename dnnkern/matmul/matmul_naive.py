"""One thread an output element, straight from the definition.

Thread (row m, column n) of matrix z walks along k, reads a[z, m, k] and b[z, k, n] from global memory, and applies the epilogue to its sum.
Neighbouring threads have neighbouring columns: rows of a packed b are read coalesced, a is broadcast within the warp. Every operand may
have any strides, signs included; nothing has to be aligned or divisible. Scales by block multiply the sum over each block of k. It reads
2*M*N*K elements where M*K + K*N would do, and is the ground the other algorithms stand on: always applicable, deterministic, easy to check.
Best for products of a few thousand elements.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit
from ..device.convert import element
from ..device.epilogue import AllParams, EpilogueSpec, make_epilogue
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.batch import make_batch_offsets
from ..host.launch import Argument, Launch
from ._dot import make_dot

COST = constants("matmul/naive")


@dataclass(frozen=True)
class Config:
    """Element types of the operands, how they are scaled, number of merged batch dimensions, epilogue."""
    dtype_a: str
    dtype_b: str
    scale_a: str | None
    scale_b: str | None
    batch_dims: int
    epilogue: EpilogueSpec
    threads: int = 256


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Two loads a multiply-add, served by the L1 at about 16 bytes a clock and multiprocessor for a warp's mix of broadcast and row."""
    outputs = problem.batch_size * problem.m * problem.n
    waves = -(-outputs // (COST.resident * device.sms))
    chain = problem.k * COST.chain / device.clock_hz  # dependent load latency, partly hidden by the other warps
    traffic = problem.flops * problem.a.itemsize / (COST.l1 * device.sms * device.clock_hz)
    return Cost(launch=COST.start) + overlap(waits=waves * chain, l1=traffic, memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """y[z, m, n] = epilogue(sum_k a[z, m, k] * b[z, k, n])."""
    THREADS = config.threads
    dot = make_dot(config.dtype_a, config.dtype_b, config.epilogue.accumulator, config.scale_a, config.scale_b)
    epilogue = make_epilogue(config.epilogue)
    batch_offsets = make_batch_offsets(config.batch_dims)

    @jit(launch_bounds=THREADS)
    def matmul_naive(a, b, y, M, N, K, outputs, sam, sak, sbk, sbn, sym, syn, sizes, strides, scale_a, scale_b, scale_strides,
                     alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, bias_strides, bias_row_stride, bias_column_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            row = i // N
            n = i32(i - row * N)
            z = row // M
            m = i32(row - z * M)
            a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
            acc = dot(advance(a, a_at + m * sam), sak, advance(b, b_at + n * sbn), sbk, K, m, n, (scale_a, scale_b, scale_strides))
            bias_at = batch_offsets(z, sizes, bias_strides)[2]
            e = AllParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, advance(bias, bias_at),
                          bias_row_stride, bias_column_stride, scale_a, scale_b, scale_strides.a_row, scale_strides.b_column)
            y[y_at + m * sym + n * syn] = epilogue(acc, m, n, e)
    return matmul_naive


def build(problem, device, config):
    """One launch, 256 outputs a block."""
    scales = problem.scales
    config = Config(problem.a.dtype, problem.b.dtype, scales.a, scales.b, len(problem.batch), problem.epilogue)
    outputs = problem.batch_size * problem.m * problem.n
    # a bias for each matrix, beside c
    offset, (row, column) = "int64" if problem.is_wide else "int32", problem.bias_strides[0] if problem.has_two_addends else (0, 0)
    others = tuple(s for d in problem.batch for s in (0, 0, d.bias, 0)) or (0, 0, 0, 0)
    other = Argument(f"int64x{len(others)}", others), Argument(offset, row), Argument(offset, column)
    arguments = (*(Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))),
                 Argument("int64", problem.m), Argument("int64", problem.n), Argument("int64", problem.k), Argument("int64", outputs),
                 *(Argument("int64", s) for s in problem.a_strides + problem.b_strides + problem.y_strides),
                 *problem.batch_arguments(), *scales.arguments(), *problem.epilogue_arguments(), *other)
    return (Launch(kernel(config), (-(-outputs // config.threads), 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHM = Algorithm(op="matmul", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
