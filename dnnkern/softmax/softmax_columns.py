"""Softmax along an axis that is not innermost: threads along the contiguous dimension, 16 bytes of columns each.

::

                    columns (contiguous)
            x thread 0 | x thread 1 | ...  width
    axis    y thread 0 |            |               a thread has `registers` vectors of each of its columns in flight,
      |     y thread 1 |            |               `height` elements of the axis apart
      v     height     |            |

A thread keeps a maximum and a sum for each of its columns; the rows of threads merge these through shared memory. A short axis stays in
registers between its statistics and the results and is read once; a longer one is read twice, and the sum is rescaled whenever the maximum
grows. A vector is 16 bytes where columns are aligned to that in all arrays, else an element. Wins for every axis but the innermost.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i64, jit, u32
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import RowLayout, RowForm, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, flight_rate, issue_seconds, memory_seconds, occupied, overlap, sector_waste, tail
from ..host.launch import Argument, Launch
from ._math import arithmetic

COST = constants("softmax/columns")

WIDTHS, MOST_THREADS, LEAST_THREADS = (8, 32, 128), 256, 64


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for.

    Attributes
    ----------
    dtype, log
    vector : int
        Bytes.
    dims : int
        Dimensions besides the axis and the columns, 1 at least.
    width, height : int
        Threads of a block along columns and along the axis.
    registers : int
        Vectors that a thread loads at once, of each array.
    whole : bool
        That is all of the axis.
    arrays : int
    result : str
        The result's dtype, "" where it is the operands'.
    """
    dtype: str
    log: bool
    vector_bytes: int
    dims: int
    width: int
    height: int
    registers: int
    whole: bool
    arrays: int
    result: str = ""

    @property
    def threads(self):
        return self.width * self.height

    @property
    def layout(self):
        """A vector at a time."""
        return RowLayout(self.dtype, self.vector_bytes, 1, self.registers, result=self.result)

    def __str__(self):
        return f"{self.width} x {self.height} threads, {self.registers} x {self.vector_bytes} bytes" + ", read once" * self.whole + (
            f", to {self.result}" * bool(self.result))


def _columns(problem):
    """The dimension that is contiguous in all arrays, or None; it is the last one if there is one."""
    outer = problem.form.outer
    return outer[-1] if outer and set(outer[-1].strides) == {1} else None


def supports(problem):
    """A dimension besides the axis that is contiguous in all arrays."""
    form = problem.form
    if _columns(problem) is None:
        return "no dimension besides the axis is contiguous in all arrays"
    if form.length >= 2 ** 30 or _columns(problem).size >= 2 ** 30 or form.rows >= 2 ** 31 - 2 ** 20:
        return f"an axis of {form.length}, {_columns(problem).size} columns, {form.rows} rows; counters end at 2**30 and 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _unit(problem):
    itemsize = problem.arrays[0].itemsize
    per, form = 16 // itemsize, problem.form
    strides = [s for d in (*form.row, *form.outer[:-1]) for s in d.strides]
    fits = all(t.alignment >= 16 for t in problem.arrays) and not any(v % per for v in (*strides, _columns(problem).size))
    return 16 if fits else itemsize


def _groups(problem, vector_bytes):
    return _columns(problem).size * problem.arrays[0].itemsize // vector_bytes


def configs(problem, device):
    """Narrow blocks for long axes, wide ones for short axes."""
    vector_bytes, form, found = _unit(problem), problem.form, []
    groups = _groups(problem, vector_bytes)
    most = 8 // (len(problem.arrays) - 1) // (1 + (problem.compute == "float64"))
    for width in WIDTHS:
        width = min(width, 1 << (groups - 1).bit_length())
        height = min(MOST_THREADS // width, 1 << (ceil_div(form.length, most) - 1).bit_length())
        width = max(width, LEAST_THREADS // height)
        registers = min(most, ceil_div(form.length, height))
        found.append(Config(problem.dtype, problem.log, vector_bytes, max(1, len(form.outer) - 1), width, height, registers,
                            registers * height >= form.length, len(problem.arrays), problem.result))
    return list(dict.fromkeys(found))


def _blocks(problem, config):
    """(blocks along the columns of one batch, all blocks)."""
    columns = _columns(problem).size
    across = ceil_div(columns * problem.arrays[0].itemsize, config.vector_bytes * config.width)
    return across, across * (problem.form.rows // columns)


def estimate(problem, device, config):
    """Bytes, twice read where the axis does not fit; short runs of columns; idle threads; merges."""
    itemsize, columns = problem.arrays[0].itemsize, _columns(problem).size
    across, blocks = _blocks(problem, config)
    read = 1 if config.whole else COST.again
    waste = sector_waste(min(config.width * config.vector_bytes, columns * itemsize), config.vector_bytes)
    nbytes = problem.outputs[0].nbytes * ((config.arrays - 1) * read + 1) * waste
    idle = across * config.width * config.vector_bytes / (columns * itemsize)
    rate = flight_rate(config.registers * config.vector_bytes * (config.arrays - 1), COST.in_flight)
    share = occupied(blocks * config.threads, COST.enough, device)
    merges = blocks * config.threads * config.height * (config.vector_bytes // itemsize) * (config.height > 1)
    each, merge = (COST.element, COST.merge) if config.arrays == 2 else (COST.element_bwd, COST.merge_bwd)
    issue = issue_seconds((problem.outputs[0].size * idle * each + merge * merges) / share, 1, device)
    work = overlap(memory=memory_seconds(nbytes, device) / (rate * share), issue=issue)
    return LAUNCH + work.slowed(tail=tail(blocks, COST.blocks, device))


@functools.cache
def forward_kernel(config):
    """y = softmax(x) along columns."""
    layout, compute = config.layout, element(config.dtype).compute
    vec, softmax = make_row(layout), arithmetic(compute, config.log)
    Real, E, WORDS, NOTHING = layout.real, layout.elements, layout.words, -math.inf
    WIDTH, HEIGHT, REGISTERS, WHOLE, THREADS = config.width, config.height, config.registers, config.whole, config.threads
    LOG, STEP, SPAN = WIDTH.bit_length() - 1, REGISTERS * HEIGHT, WIDTH * E
    SHARED = SPAN * HEIGHT if HEIGHT > 1 else 1
    row_offsets, hold = make_row_offsets(config.dims, ("x", "y")), pin(WORDS)

    @device_function
    def fetch(words, x, first, length, step):
        for k in range(REGISTERS):
            at = first + k * HEIGHT
            vec.load_vector(words, k, advance(x, at * step), 0, 1, at < length)

    @jit(launch_bounds=(THREADS, 2))
    def softmax_fwd_columns(x, y, length, batches, groups, across, x_step, y_step, divisors, strides):
        maxima, sums = cuda.shared.array(SHARED, Real), cuda.shared.array(SHARED, Real)
        words = cuda.local.array(WORDS, u32)
        values, old_max = cuda.local.array(E, Real), cuda.local.array(E, Real)
        row_max, row_sum = cuda.local.array(E, Real), cuda.local.array(E, Real)
        # the columns of this thread, and its part of the axis
        thread = cuda.threadIdx.x
        x_thread, y_thread = thread & (WIDTH - 1), thread >> LOG
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * WIDTH + x_thread
        n = length if group < groups else 0
        offsets = row_offsets(batch, divisors, strides)
        column = i64(group if n > 0 else 0) * E
        x, y = advance(x, offsets.x + column), advance(y, offsets.y + column)
        # online softmax: maximum, and sum of exponentials below it
        for e in range(E):
            row_max[e] = Real(NOTHING)
            row_sum[e] = Real(0)
        for b in range(1 if WHOLE else batches):
            first = y_thread + b * STEP
            fetch(words, x, first, n, x_step)
            for e in range(E):
                old_max[e] = row_max[e]
            for k in range(REGISTERS):
                if first + k * HEIGHT < n:
                    vec.unpack(values, words, k)
                    for e in range(E):
                        row_max[e] = maximum(row_max[e], values[e])
            for e in range(E):
                now = softmax.finite_max(row_max[e])
                row_sum[e] = row_sum[e] * softmax.exp(old_max[e] - now)
                old_max[e] = now
            hold(words)
            for k in range(REGISTERS):
                if first + k * HEIGHT < n:
                    vec.unpack(values, words, k)
                    for e in range(E):
                        row_sum[e] += softmax.exp(values[e] - old_max[e])
        # merge the rows of threads
        if HEIGHT > 1:
            for e in range(E):
                at = y_thread * SPAN + e * WIDTH + x_thread
                maxima[at] = row_max[e]
                sums[at] = row_sum[e]
            cuda.syncthreads()
            for e in range(E):
                at = e * WIDTH + x_thread
                merged_max = maxima[at]
                for k in range(1, HEIGHT):
                    merged_max = maximum(merged_max, maxima[at + k * SPAN])
                base, merged_sum = softmax.finite_max(merged_max), Real(0)
                for k in range(HEIGHT):
                    merged_sum += sums[at + k * SPAN] * softmax.exp(maxima[at + k * SPAN] - base)
                row_max[e] = merged_max
                row_sum[e] = merged_sum
        # normalise and store
        for e in range(E):
            row_sum[e] = softmax.normaliser(row_sum[e])
        hold(words)
        for b in range(1 if WHOLE else batches):
            first = y_thread + b * STEP
            if not WHOLE:
                fetch(words, x, first, n, x_step)
            for k in range(REGISTERS):
                at = first + k * HEIGHT
                if at < n:
                    vec.unpack(values, words, k)
                    for e in range(E):
                        values[e] = softmax.result(values[e], row_max[e], row_sum[e])
                    vec.write_vector(advance(y, at * y_step), 0, 1, words, k, values)
    return softmax_fwd_columns


@functools.cache
def backward_kernel(config):
    """dx from dy and y along columns."""
    layout, compute = config.layout, element(config.dtype).compute
    vec, softmax = make_row(layout), arithmetic(compute, config.log)
    Real, E, WORDS = layout.real, layout.elements, layout.words
    WIDTH, HEIGHT, REGISTERS, WHOLE, THREADS = config.width, config.height, config.registers, config.whole, config.threads
    LOG, STEP, SPAN = WIDTH.bit_length() - 1, REGISTERS * HEIGHT, WIDTH * E
    SHARED = SPAN * HEIGHT if HEIGHT > 1 else 1
    row_offsets, hold = make_row_offsets(config.dims, ("dy", "y", "dx")), pin(WORDS)

    @device_function
    def fetch(dy_words, y_words, dy, y, first, length, dy_step, y_step):
        for k in range(REGISTERS):
            at = first + k * HEIGHT
            vec.load_vector(dy_words, k, advance(dy, at * dy_step), 0, 1, at < length)
            vec.load_vector(y_words, k, advance(y, at * y_step), 0, 1, at < length)

    @jit(launch_bounds=(THREADS, 2))
    def softmax_bwd_columns(dy, y, dx, length, batches, groups, across, dy_step, y_step, dx_step, divisors, strides):
        sums = cuda.shared.array(SHARED, Real)
        dy_words, y_words = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        dy_values, y_values, row_sum = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        # the columns of this thread, and its part of the axis
        thread = cuda.threadIdx.x
        x_thread, y_thread = thread & (WIDTH - 1), thread >> LOG
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * WIDTH + x_thread
        n = length if group < groups else 0
        offsets = row_offsets(batch, divisors, strides)
        column = i64(group if n > 0 else 0) * E
        dy, y = advance(dy, offsets.dy + column), advance(y, offsets.y + column)
        dx = advance(dx, offsets.dx + column)
        # sum of y * dy
        for e in range(E):
            row_sum[e] = Real(0)
        for k in range(1 if WHOLE else batches):
            fetch(dy_words, y_words, dy, y, y_thread + k * STEP, n, dy_step, y_step)
            for c in range(REGISTERS):
                vec.unpack(dy_values, dy_words, c)
                vec.unpack(y_values, y_words, c)
                for e in range(E):
                    row_sum[e] += softmax.product(dy_values[e], y_values[e])
        # merge the rows of threads
        if HEIGHT > 1:
            for e in range(E):
                sums[y_thread * SPAN + e * WIDTH + x_thread] = row_sum[e]
            cuda.syncthreads()
            for e in range(E):
                merged_sum = Real(0)
                for k in range(HEIGHT):
                    merged_sum += sums[k * SPAN + e * WIDTH + x_thread]
                row_sum[e] = merged_sum
        # gradient
        hold(dy_words)
        hold(y_words)
        for k in range(1 if WHOLE else batches):
            first = y_thread + k * STEP
            if not WHOLE:
                fetch(dy_words, y_words, dy, y, first, n, dy_step, y_step)
            for c in range(REGISTERS):
                at = first + c * HEIGHT
                if at < n:
                    vec.unpack(dy_values, dy_words, c)
                    vec.unpack(y_values, y_words, c)
                    for e in range(E):
                        dy_values[e] = softmax.gradient(dy_values[e], y_values[e], row_sum[e])
                    vec.pack(dy_words, c, dy_values)
                    vec.store_vector(advance(dx, at * dx_step), 0, 1, dy_words, c)
    return softmax_bwd_columns


def build(problem, device, config):
    """One launch."""
    form, names = problem.form, ("x", "y") if config.arrays == 2 else ("dy", "y", "dx")
    across, blocks = _blocks(problem, config)
    divisors, strides = row_arguments(RowForm(form.row, form.outer[:-1]))
    arguments = (*(Argument(element(t.dtype).pointer, name) for t, name in zip(problem.arrays, names)), Argument("int32", form.length),
                 Argument("int32", ceil_div(form.length, config.registers * config.height)),
                 Argument("int32", _groups(problem, config.vector_bytes)),
                 Argument("uint32x3", divisor(across)), *(Argument("int64", s) for s in form.steps),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if config.arrays == 2 else backward_kernel)(config)
    return (Launch(kernel, (blocks, 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="columns", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("softmax_fwd", "softmax_bwd"))
