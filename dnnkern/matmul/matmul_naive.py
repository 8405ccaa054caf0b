"""One thread per output element, straight from the definition.

Thread (row m, column n) of matrix z walks along k, reads a[z, m, k] and b[z, k, n] from global memory, and applies the epilogue to its sum.
Neighbouring threads have neighbouring columns: rows of a packed b are read coalesced, a is broadcast within the warp. Operands may have
arbitrary strides, negative ones too; nothing has to be aligned or divisible. Scales by block multiply the sum over each block of k.

It loads 2*M*N*K elements where M*K + K*N would do. It is the reference for the other algorithms: always applicable, deterministic, easy to
check. Best for products of a few thousand elements.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.epilogue import AllParams, EpilogueSpec, make_epilogue
from ..device.program_batches import make_placed
from ..device.program_operands import operands_class
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.batch import make_batch_offsets
from ..engine.constants import constants
from ..engine.cost import Cost, issue_seconds, overlap
from ..engine.programs import NOTHING, program_argument
from ..engine.roles import has_row_steps, roles
from ..engine.scales import BLOCK, make_block_factor
from ..engine.tile_states import reduces, single_states, states_seconds, states_argument, states_bytes, states_refusal, with_finish
from ..host.launch import Argument, Launch
from ._parameters import AStrides, BStrides, YStrides

if TYPE_CHECKING:
    from ..engine.prologues import Made

COST = constants("matmul/naive")


@dataclass(frozen=True)
class Config:
    """Element types of the operands, how they are scaled, number of merged batch dimensions, epilogue, what operands are made of, whether
    there is a second right operand."""
    dtype_a: str
    dtype_b: str
    scale_a: str | None
    scale_b: str | None
    batch_dims: int
    epilogue: EpilogueSpec
    made_a: "Made | None" = None
    made_b: "Made | None" = None
    dual: bool = False
    threads: int = 256


def supports(problem):
    """Everything but reductions of more elements than can be counted."""
    return states_refusal(roles(problem), 1, 1)


def workspace(problem, device, config):
    """Partial reductions, of each element."""
    return states_bytes(roles(problem), 1, 1)


def estimate(problem, device, config):
    """Two loads a multiply-add, served by the L1 at about 16 bytes a clock and multiprocessor for a warp's mix of broadcast and row."""
    outputs = problem.batch_size * problem.m * problem.n
    waves = -(-outputs // (COST.resident * device.sms))
    chain = problem.k * COST.chain / device.clock_hz  # dependent load latency, partly hidden by the other warps
    traffic = problem.flops * problem.a.itemsize / (COST.l1 * device.sms * device.clock_hz)
    issue = issue_seconds(outputs, COST.thread, device)  # divisions of a thread's index
    cost = Cost(launch=COST.start) + overlap(issue=issue, waits=waves * chain, l1=traffic, memory=problem.bytes / device.bandwidth)
    if has_row_steps(problem.epilogue):  # a thread has a row, and computes each element in every walk
        from ..engine.row_levels import walks_of
        walks = len(walks_of(problem.epilogue.program, problem.epilogue.compute))
        waves = -(-problem.batch_size * problem.m // (COST.resident * device.sms))
        cost = Cost(launch=COST.start) + overlap(waits=waves * walks * problem.n * chain, l1=walks * traffic)
    states = workspace(problem, device, config)
    return cost + states_seconds(states, device)


def _load_integer(p, i):
    return i32(p[i])


@functools.cache
def make_dot(dtype_a, dtype_b, accumulator, scale_a=None, scale_b=None):
    """Device function ``dot(a, a_step, b, b_step, K, m, n, scale_a, scale_b, scale_stride)``: the sum of a[k*a_step] * b[k*b_step], k < K.

    Types by name, scales as in `engine.scales.Scales`. Row `m` and column `n` of the element select the scales of blocks of k.
    """
    Acc = {"int32": i32, "float64": f64, "float32": f32}[accumulator]
    load_a, load_b = (device_function(_load_integer) if accumulator == "int32" else element(d).load for d in (dtype_a, dtype_b))
    by_block = "block" in (scale_a, scale_b)
    factor = make_block_factor(scale_a, scale_b) if by_block else None

    @device_function
    def sum_over(a, a_step, b, b_step, k_begin, k_end):
        acc = Acc(0)
        for k in range(k_begin, k_end):
            acc += load_a(a, k * a_step) * load_b(b, k * b_step)
        return acc

    @device_function
    def dot(a, a_step, b, b_step, K, m, n, scale_a, scale_b, scale_stride):
        if not by_block:
            return sum_over(a, a_step, b, b_step, i64(0), K)
        acc = Acc(0)
        for k in range(0, K, BLOCK):
            part = sum_over(a, a_step, b, b_step, k, min(k + BLOCK, K))
            acc += part * factor(m, n, k >> 7, scale_a, scale_b, scale_stride)
        return acc
    return dot


@functools.cache
def _dot_of(config):
    """Device function `dot` of `make_dot`, with the operands of both prologues after its arguments."""
    accumulator = config.epilogue.accumulator
    if config.made_a is None and config.made_b is None:
        plain = make_dot(config.dtype_a, config.dtype_b, accumulator, config.scale_a, config.scale_b)
        return device_function(lambda a, a_step, b, b_step, K, m, n, scale_a, scale_b, scale_stride, made_a, made_b:
                               plain(a, a_step, b, b_step, K, m, n, scale_a, scale_b, scale_stride))
    Acc = {"int32": i32, "float32": f32}[accumulator]
    load_a, load_b = (_made_load(dtype, accumulator, made) for dtype, made in ((config.dtype_a, config.made_a),
                                                                               (config.dtype_b, config.made_b)))

    @device_function
    def dot(a, a_step, b, b_step, K, m, n, scale_a, scale_b, scale_stride, made_a, made_b):
        acc = Acc(0)
        for k in range(K):
            acc += load_a(a, k * a_step, m, k, made_a) * load_b(b, k * b_step, n, k, made_b)
        return acc
    return dot


def _made_load(dtype, accumulator, made):
    """Device function ``load(p, i, row, k, operands)``: an element as products take it."""
    if made is None:
        load = device_function(_load_integer) if accumulator == "int32" else element(dtype).load
        return device_function(lambda p, i, row, k, operands: load(p, i))
    from ..engine.prologue_loader import make_made_load  # programs are imported where there is one
    return make_made_load(made, accumulator)


def _make_sums(config):
    """Device function ``sums(acc, a, a_step, b_at, b_dual, K, m, n)``: what the epilogue takes, the sum by b and that by b_dual at element
    `b_at`."""
    if not config.dual:
        return device_function(lambda acc, a, a_step, b_at, b_dual, K, m, n: acc)
    plain = make_dot(config.dtype_a, config.dtype_b, config.epilogue.accumulator)

    @device_function
    def sums(acc, a, a_step, b_at, b_dual, K, m, n):
        p, stride_k, stride_n = b_dual
        return acc, plain(a, a_step, advance(p, b_at + n * stride_n), stride_k, K, m, n, p, p, stride_k)
    return sums


@functools.cache
def kernel(config):
    """y[z, m, n] = epilogue(sum_k a[z, m, k] * b[z, k, n])."""
    THREADS = config.threads
    dot = _dot_of(config)
    sums = _make_sums(config)
    placed_a, placed_b = (make_placed(made and made.program, config.batch_dims) for made in (config.made_a, config.made_b))
    epilogue, REDUCES, leave = make_epilogue(config.epilogue), reduces(config.epilogue), single_states(config.epilogue)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)

    @jit(launch_bounds=THREADS)
    def matmul_naive(a, b, y, M, N, K, outputs, a_stride, b_stride, y_stride, batch_sizes, batch_strides, scale_a, scale_b, scale_stride,
                     alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride,
                     other_batch_strides, bias_row_stride, bias_column_stride, extras, made_a, made_b, b_dual, states):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            row = i // N
            n = i32(i - row * N)
            z = row // M
            m = i32(row - z * M)
            a_at, b_at, c_at, y_at = batch_offsets(z, batch_sizes, batch_strides)
            row_of_a, column_of_b = advance(a, a_at + m * a_stride.m), advance(b, b_at + n * b_stride.n)
            acc = dot(row_of_a, a_stride.k, column_of_b, b_stride.k, K, m, n, scale_a, scale_b, scale_stride,
                      placed_a(made_a, z, batch_sizes), placed_b(made_b, z, batch_sizes))
            _, b_dual_at, bias_at, _ = batch_offsets(z, batch_sizes, other_batch_strides)
            total = sums(acc, row_of_a, a_stride.k, b_dual_at, b_dual, K, m, n)
            e = AllParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, advance(bias, bias_at),
                          bias_row_stride, bias_column_stride, scale_a, scale_b, scale_stride.a_row, scale_stride.b_column,
                          placed(extras, z, batch_sizes))
            if REDUCES:
                leave(total, m, n, e, (m, n, z, N), states)
            y[y_at + m * y_stride.m + n * y_stride.n] = epilogue(total, m, n, e)
    return matmul_naive


def build(problem, device, config):
    """One launch, 256 outputs per block."""
    scales = problem.scales
    parts = roles(problem)
    making = parts.making
    config = Config(problem.dtype_a, problem.dtype_b, scales.a, scales.b, len(problem.batch), problem.epilogue,
                    *(of and of.made for of in making), problem.b_dual is not None)
    outputs = problem.batch_size * problem.m * problem.n
    # a bias for each matrix, beside c; the second right operand
    offset, (row, column) = "int64" if problem.is_wide else "int32", problem.bias_strides[0] if problem.has_two_addends else (0, 0)
    others = tuple(s for d in problem.batch for s in (0, d.b_dual, d.bias, 0)) or (0, 0, 0, 0)
    other = Argument(f"int64x{len(others)}", others), Argument(offset, row), Argument(offset, column)
    arguments = (*(Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))),
                 Argument("int64", problem.m), Argument("int64", problem.n), Argument("int64", problem.k), Argument("int64", outputs),
                 Argument(AStrides, AStrides(*problem.a_strides)), Argument(BStrides, BStrides(*problem.b_strides)),
                 Argument(YStrides, YStrides(*problem.y_strides)),
                 *problem.batch_arguments(), *scales.arguments(), *problem.epilogue_arguments(), *other,
                 program_argument(problem, len(problem.batch)),
                 *(NOTHING if of is None else of.argument(len(problem.batch)) for of in making), _dual_argument(problem),
                 states_argument(parts, 1, 1))
    if has_row_steps(problem.epilogue):
        from ._naive_rows import row_kernel  # programs are imported where there is one
        rows = problem.batch_size * problem.m
        arguments = (*arguments[:6], Argument("int64", rows), *arguments[7:-2])
        return (Launch(row_kernel(config, _dot_of(config)), (-(-rows // config.threads), 1, 1), (config.threads, 1, 1), arguments),)
    return with_finish((Launch(kernel(config), (-(-outputs // config.threads), 1, 1), (config.threads, 1, 1), arguments),), parts, 1, 1)


def _dual_argument(problem):
    """The kernel parameter of the second right operand: pointer, strides along k and the columns."""
    if problem.b_dual is None:
        return NOTHING
    members = (Argument(element(problem.b_dual.dtype).pointer, "b_dual"), *(Argument("int64", s) for s in problem.b_dual_strides))
    kind = operands_class(tuple(a.type for a in members))
    return Argument(kind, kind(*members))


ALGORITHM = Algorithm(op="matmul", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build, programs=True,
                      prologues=True, reductions=True, rows=True, dual=True)
