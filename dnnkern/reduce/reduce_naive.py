"""One thread per result, straight from the definition.

The thread walks over the elements of its result, 256 at a time: each stretch is summed by itself first, which loses less to rounding.
Arbitrary strides, any number of elements; each coordinate costs a division of 64-bit integers. For few elements per result.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..engine.fold import make_fold
from ..engine.offsets import make_offsets64, offset_arguments64
from ..host.canonical import Dim
from ..host.launch import Argument, Launch
from ._stages import factor_argument, target_arguments, x_argument

COST = constants("reduce/naive")

THREADS = 128
STRETCH = 256


@dataclass(frozen=True)
class Config:
    """What is done, types of elements, of results and of the sums, numbers of kept and of reduced dimensions."""
    fold: str
    dtype: str
    out: str
    compute: str
    kept: int
    reduced: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A load at a time in each thread, and the divisions."""
    form = problem.form
    instructions = COST.thread + COST.dimension * len(form.reduced)
    waves = ceil_div(max(1, form.outputs), 2048 * device.sms)
    spread = min(32, max(abs(form.kept[-1].x), 1) * problem.x.itemsize) // problem.x.itemsize
    return LAUNCH + overlap(waits=waves * form.length * (COST.load + COST.alone * instructions) / device.clock_hz,
                            memory=memory_seconds(problem.bytes * spread, device),
                            issue=issue_seconds(form.outputs * form.length, instructions, device))


@functools.cache
def kernel(config):
    """numbers[output], positions[output] = a result, one thread each."""
    f = make_fold(config.fold, config.compute)
    empty, lift, merge, finish, indexed = f.empty, f.lift, f.merge, f.finish, f.indexed
    load, narrow = element(config.dtype, config.compute).load, element(config.out, config.compute).store
    kept, reduced = make_offsets64(config.kept), make_offsets64(config.reduced)

    @jit(launch_bounds=THREADS)
    def reduce_naive(x, numbers, positions, outputs, length, sizes, x_strides, y_strides, walk_sizes, walk_strides, factor):
        output = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if output < outputs:
            x_at, _ = kept(output, sizes, x_strides)
            y_at, index_at = kept(output, sizes, y_strides)
            total = empty()
            for first in range(i64(0), length, i64(STRETCH)):
                part = empty()
                for k in range(first, min(first + STRETCH, length)):
                    at, _ = reduced(k, walk_sizes, walk_strides)
                    part = merge(part, lift(load(x, x_at + at), k))
                total = merge(total, part)
            narrow(numbers, y_at, finish(total, factor))
            if indexed:
                positions[index_at] = total[1]
    return reduce_naive


def build(problem, device, config):
    """One launch."""
    form = problem.form
    config = Config(problem.fold, problem.x.dtype, problem.outputs[0].dtype, problem.compute, len(form.kept), len(form.reduced))
    sizes, x_strides = offset_arguments64([Dim(d.size, d.x, 0) for d in form.kept])
    _, y_strides = offset_arguments64([Dim(d.size, d.y, d.index) for d in form.kept])
    arguments = (x_argument(problem), *target_arguments(problem, 1), Argument("int64", form.outputs), Argument("int64", form.length), sizes,
                 x_strides, y_strides, *offset_arguments64([Dim(d.size, d.x, 0) for d in form.reduced]), factor_argument(problem))
    return (Launch(kernel(config), (ceil_div(form.outputs, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("reduce", "argreduce"))
