"""One thread an output element, straight from the definition.

Thread (row m, column n) of matrix z walks along k, reads a[z, m, k] and b[z, k, n] from global memory, and applies the epilogue to its
sum. Neighbouring threads have neighbouring columns: rows of a packed b are read coalesced, a is broadcast within the warp. Every operand
may have any strides, signs included; nothing has to be aligned or divisible. It reads 2*M*N*K elements where M*K + K*N would do, and is
the ground the other algorithms stand on: always applicable, deterministic, easy to check. Best for products of a few thousand elements.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, make_epilogue
from ..device.vec import advance
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._batch import make_batch_offsets


@dataclass(frozen=True)
class Config:
    """Element type of the operands, number of merged batch dimensions, epilogue."""
    dtype: str
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
    waves = -(-outputs // (2048 * device.sms))
    chain = problem.k * 30 / device.clock_hz  # dependent load latency, partly hidden by the other warps
    traffic = problem.flops * problem.a.itemsize / (16 * device.sms * device.clock_hz)
    return 4e-6 + max(waves * chain, traffic, problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """y[z, m, n] = epilogue(sum_k a[z, m, k] * b[z, k, n])."""
    THREADS = config.threads
    exact_integers, double = config.epilogue.accumulator == "int32", config.epilogue.accumulator == "float64"
    Accumulator = i32 if exact_integers else f64 if double else f32
    operand = element(config.dtype)
    load = _load_integer if exact_integers else operand.load
    epilogue = make_epilogue(config.epilogue)
    batch_offsets = make_batch_offsets(config.batch_dims)

    @cuda.jit(launch_bounds=THREADS)
    def matmul_naive(a, b, y, M, N, K, outputs, sam, sak, sbk, sbn, sym, syn, sizes, strides,
                     alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            row = i64(i // N)
            n = i32(i - row * N)
            z = i64(row // M)
            m = i32(row - z * M)
            a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
            a_at = i64(a_at + m * sam)
            b_at = i64(b_at + n * sbn)
            acc = Accumulator(0)
            for k in range(K):
                acc = Accumulator(acc + load(a, i64(a_at + k * sak)) * load(b, i64(b_at + k * sbk)))
            e = (alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride)
            y[i64(y_at + m * sym + n * syn)] = epilogue(acc, m, n, e)
    return matmul_naive


@device_function
def _load_integer(p, i):
    return i32(p[i])


def build(problem, device, config):
    """One launch, 256 outputs a block."""
    config = Config(problem.a.dtype, len(problem.batch), problem.epilogue)
    outputs = problem.batch_size * problem.m * problem.n
    pointer = element(problem.a.dtype).pointer
    arguments = (Argument(pointer, "a"), Argument(pointer, "b"), Argument(element(problem.y.dtype).pointer, "y"),
                 Argument("int64", problem.m), Argument("int64", problem.n), Argument("int64", problem.k), Argument("int64", outputs),
                 *(Argument("int64", s) for s in problem.a_strides + problem.b_strides + problem.y_strides),
                 *problem.batch_arguments(), *problem.epilogue_arguments())
    return (Launch(kernel(config), (-(-outputs // config.threads), 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHM = Algorithm(op="matmul", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
