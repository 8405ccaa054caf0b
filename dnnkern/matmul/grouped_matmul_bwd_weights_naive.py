"""One thread per element of a gradient, which walks along the rows of its group. Arbitrary strides and offsets; the reference."""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, issue_seconds, overlap
from ..host.launch import Argument, Launch
from ._grouped_weights_problem import OP, rows_of
from .matmul_naive import make_dot

COST = constants("matmul/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element types, type of the sum."""
    dtype: str
    output: str
    accumulator: str


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Two loads a multiply-add, as in the naive matmul, after the divisions that tell a thread its element."""
    waves = -(-problem.db.size // (COST.resident * device.sms))
    chain = problem.likely_rows * COST.chain / device.clock_hz
    traffic = problem.flops * problem.a.itemsize / (COST.l1 * device.sms * device.clock_hz)
    divisions = issue_seconds(problem.db.size, COST.thread, device)
    return Cost(launch=COST.start, issue=divisions) + overlap(waits=waves * chain, l1=traffic, memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """db[g, k, n] = sum of a[row, k] * dy[row, n] over the rows of group g."""
    dot, store = make_dot(config.dtype, config.dtype, config.accumulator), element(config.output).store

    @jit(launch_bounds=THREADS)
    def grouped_matmul_bwd_weights_naive(a, b, y, offsets, offset_stride, y_group, rows, m, n, outputs, a_m, a_row, b_row, b_n, y_m, y_n):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            row = i // n
            column, group = i - row * n, row // m
            row = row - group * m
            first, end = rows_of(group, offsets, offset_stride, rows)
            total = dot(advance(a, first * a_row + row * a_m), a_row, advance(b, first * b_row + column * b_n), b_row, end - first, 0, 0,
                        None, None, None)
            store(y, group * y_group + row * y_m + column * y_n, total)
    return grouped_matmul_bwd_weights_naive


def build(problem, device, config):
    """One launch, 256 elements a block."""
    parts = problem.parts
    config = Config(problem.a.dtype, problem.db.dtype, problem.compute)
    numbers = (parts.m, parts.n, problem.db.size, *parts.a_strides, *parts.b_strides, *parts.y_strides)
    arguments = (*parts.operand_arguments(), Argument(element(problem.db.dtype).pointer, "db"), *problem.group_arguments(),
                 Argument("int32", problem.rows), *(Argument("int64", v) for v in numbers))
    return (Launch(kernel(config), (-(-problem.db.size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op=OP, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
