"""One thread per output element; its group is found by bisection of the offsets.

Thread (row m, column n) looks for the group that has row m, log2(G) loads which the whole warp shares where it has one row, walks along k
of a[m, :] and b[g, :, n], and applies the epilogue to its sum. Rows of no group stay as they are. Arbitrary strides and offsets; it loads
2*M*N*K elements, and is the reference for the other algorithms.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ScaledParams, make_epilogue
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, issue_seconds, overlap
from ..host.launch import Argument, Launch
from ._groups import group_of
from ._parameters import AStrides, GroupStrides, YStrides
from .matmul_naive import make_dot

COST = constants("matmul/naive")


@dataclass(frozen=True)
class Config:
    """Element types of the operands, how they are scaled, epilogue."""
    dtype_a: str
    dtype_b: str
    scale_a: str | None
    scale_b: str | None
    epilogue: EpilogueSpec
    threads: int = 256


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Two loads a multiply-add, as in the naive matmul."""
    waves = -(-problem.m_total * problem.n // (COST.resident * device.sms))
    chain = problem.k * COST.chain / device.clock_hz
    traffic = problem.flops * problem.a.itemsize / (COST.l1 * device.sms * device.clock_hz)
    issue = issue_seconds(problem.m_total * problem.n, COST.thread, device)  # divisions of a thread's index
    return Cost(launch=COST.start) + overlap(issue=issue, waits=waves * chain, l1=traffic, memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """y[m, n] = epilogue(sum_k a[m, k] * b[g, k, n]) for the group g of row m."""
    THREADS = config.threads
    dot = make_dot(config.dtype_a, config.dtype_b, config.epilogue.accumulator, config.scale_a, config.scale_b)
    epilogue = make_epilogue(config.epilogue)

    @jit(launch_bounds=THREADS)
    def grouped_matmul_naive(a, b, offsets, offset_stride, y, N, K, groups, outputs, a_stride, b_stride, y_stride, scale_a, scale_b,
                             scale_stride, scale_group, alpha, bias, bias_group, bias_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            m = i32(i // N)
            n = i32(i - m * N)
            group = group_of(m, offsets, offset_stride, groups)
            if group < groups:
                g = i64(group)
                scale_b = advance(scale_b, g * scale_group)
                row_of_a, column_of_b = advance(a, m * a_stride.m), advance(b, g * b_stride.g + n * b_stride.n)
                acc = dot(row_of_a, a_stride.k, column_of_b, b_stride.k, K, m, n, scale_a, scale_b, scale_stride)
                bias = advance(bias, g * bias_group)
                e = ScaledParams(alpha, alpha, bias, bias_stride, bias, 0, 0, scale_a, scale_b, scale_stride.a_row,
                                 scale_stride.b_column, ())
                y[m * y_stride.m + n * y_stride.n] = epilogue(acc, m, n, e)
    return grouped_matmul_naive


def build(problem, device, config):
    """One launch, 256 outputs per block."""
    scales = problem.scales
    config = Config(problem.a.dtype, problem.b.dtype, scales.a, scales.b, problem.epilogue)
    outputs = problem.m_total * problem.n
    pointers = [Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))]
    strides = AStrides(*problem.a_strides), GroupStrides(*problem.b_strides, problem.b_group_stride), YStrides(*problem.y_strides)
    arguments = (*pointers[:2], *problem.offset_arguments(), pointers[2], Argument("int64", problem.n), Argument("int64", problem.k),
                 Argument("int32", problem.groups), Argument("int64", outputs), *(Argument(type(s), s) for s in strides),
                 *scales.arguments(), Argument("int64", problem.scale_group_stride), *problem.epilogue_arguments())
    return (Launch(kernel(config), (-(-outputs // config.threads), 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHM = Algorithm(op="grouped_matmul", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
