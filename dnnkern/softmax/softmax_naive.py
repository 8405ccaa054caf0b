"""One thread per row, three passes over it: the maximum, the sum, the results.

Straight from the definition, with arbitrary strides and any number of rows. Neighbouring threads read neighbouring rows, so loads are
coalesced only where rows are not contiguous themselves. The gradient takes two passes. The sum is of partial sums of 256 elements, which
loses less to rounding. Wins only where nothing else applies: it waits for memory at every element.
"""
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..device import cuda, f32, f64, i64, jit
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.program_batches import make_placed
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._math import arithmetic

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("softmax/naive")

THREADS = 128
CHUNK = 256


@dataclass(frozen=True)
class Config:
    """Element type, whether of the logarithm, number of dimensions besides the axis; the result's type, "" where it is the operands'; the
    program, all dimensions beside it, whether its operands have 64-bit strides."""
    dtype: str
    log: bool
    dims: int
    result: str = ""
    program: "Program | None" = None
    all_dims: int = 0
    wide: bool = False


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load; few rows keep few threads busy, each waiting for memory at every element."""
    form, walks = problem.form, 4 if problem.op == "softmax_fwd" else 5
    moved = memory_seconds(walks * problem.outputs[0].size * SECTOR, device)
    waves = -(-form.rows // (COST.resident * device.sms))
    issue = issue_seconds(problem.outputs[0].size, COST.element * walks, device)
    return LAUNCH + overlap(memory=moved, issue=issue, waits=waves * walks * form.length * COST.wait)


@functools.cache
def forward_kernel(config):
    """y = softmax(x), one thread per row."""
    load, store = element(config.dtype).load, element(config.result or config.dtype).store
    compute = element(config.dtype).compute
    Real, softmax = f64 if compute == "float64" else f32, arithmetic(compute, config.log)
    row_offsets = make_row_offsets64(config.dims, ("x", "y"))
    PROGRAM, placed = config.program is not None, make_placed(config.program, config.all_dims)
    function = None
    if PROGRAM:  # a first call without one imports nothing for it
        from ..engine.row_program import make_functions
        function, _ = make_functions(config.program, compute, config.result or config.dtype, 1)

    @jit(launch_bounds=THREADS)
    def softmax_fwd_naive(x, y, rows, length, x_step, y_step, sizes, strides, shape, operands):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            offsets = row_offsets(row, sizes, strides)
            row_max, row_sum = load(x, offsets.x), Real(0)
            for i in range(1, length):
                row_max = maximum(row_max, load(x, offsets.x + i * x_step))
            for first in range(0, length, CHUNK):
                part = Real(0)
                for i in range(first, min(first + CHUNK, length)):
                    part += softmax.exp(load(x, offsets.x + i * x_step) - row_max)
                row_sum += part
            norm = softmax.normaliser(row_sum)
            for i in range(length):
                if PROGRAM:
                    value = softmax.result(load(x, offsets.x + i * x_step), row_max, norm)
                    store(y, offsets.y + i * y_step, function(value, 0, 0, placed(operands, row * length + i, shape)))
                else:
                    store(y, offsets.y + i * y_step, softmax.result(load(x, offsets.x + i * x_step), row_max, norm))
    return softmax_fwd_naive


@functools.cache
def backward_kernel(config):
    """dx from dy and y, one thread per row."""
    load, store = element(config.dtype).load, element(config.dtype).store
    compute = element(config.dtype).compute
    Real, softmax = f64 if compute == "float64" else f32, arithmetic(compute, config.log)
    row_offsets = make_row_offsets64(config.dims, ("dy", "y", "dx"))

    @jit(launch_bounds=THREADS)
    def softmax_bwd_naive(dy, y, dx, rows, length, dy_step, y_step, dx_step, sizes, strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            offsets = row_offsets(row, sizes, strides)
            row_sum = Real(0)
            for first in range(0, length, CHUNK):
                part = Real(0)
                for i in range(first, min(first + CHUNK, length)):
                    part += softmax.product(load(dy, offsets.dy + i * dy_step), load(y, offsets.y + i * y_step))
                row_sum += part
            for i in range(length):
                value = softmax.gradient(load(dy, offsets.dy + i * dy_step), load(y, offsets.y + i * y_step), row_sum)
                store(dx, offsets.dx + i * dx_step, value)
    return softmax_bwd_naive


def build(problem, device, config):
    """One launch."""
    form, names = problem.form, ("x", "y") if problem.op == "softmax_fwd" else ("dy", "y", "dx")
    sizes, strides = row_arguments64(form.outer, len(names))
    arguments = (*(Argument(element(t.dtype).pointer, name) for t, name in zip(problem.arrays, names)), Argument("int64", form.rows),
                 Argument("int64", form.length), *(Argument("int64", s) for s in form.steps),
                 Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
    config = Config(problem.dtype, problem.log, len(sizes), problem.result)
    if problem.op == "softmax_fwd":
        config = replace(config, program=problem.program, all_dims=problem.element_dims, wide=problem.wide)
        arguments += problem.element_arguments()
    kernel = (forward_kernel if problem.op == "softmax_fwd" else backward_kernel)(config)
    return (Launch(kernel, (-(-form.rows // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=op == "softmax_fwd")
                   for op in ("softmax_fwd", "softmax_bwd"))
