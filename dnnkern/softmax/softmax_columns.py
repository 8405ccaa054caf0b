"""Axes that are not innermost: threads along the contiguous dimension, each with 16 bytes of columns.

`width` threads of a block have neighbouring columns, and its `height` rows of threads divide the axis; each thread keeps a maximum and a
sum for each of its columns, which the rows of threads merge through shared memory. An axis short enough stays in registers between its
statistics and the results and is read once; a longer one is read twice, with the sum following the growing maximum. A unit is 16 bytes
where columns are aligned to that in all arrays, else an element.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i64, jit, u32
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import Held, RowForm, make_row, make_row_places, row_arguments
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
    unit : int
        Bytes.
    dims : int
        Dimensions besides the axis and the columns, 1 at least.
    width, height : int
        Threads of a block along columns and along the axis.
    held : int
        Units that a thread loads at once, of each array.
    whole : bool
        That is all of the axis.
    arrays : int
    """
    dtype: str
    log: bool
    unit: int
    dims: int
    width: int
    height: int
    held: int
    whole: bool
    arrays: int

    @property
    def threads(self):
        return self.width * self.height

    @property
    def row(self):
        """A unit at a time."""
        return Held(self.dtype, self.unit, 1, self.held)

    def __str__(self):
        return f"{self.width} x {self.height} threads, {self.held} x {self.unit} bytes" + ", read once" * self.whole


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


def _groups(problem, unit):
    return _columns(problem).size * problem.arrays[0].itemsize // unit


def configs(problem, device):
    """Narrow blocks for long axes, wide ones for short axes."""
    unit, form, found = _unit(problem), problem.form, []
    groups = _groups(problem, unit)
    most = 8 // (len(problem.arrays) - 1) // (1 + (problem.compute == "float64"))
    for width in WIDTHS:
        width = min(width, 1 << (groups - 1).bit_length())
        height = min(MOST_THREADS // width, 1 << (ceil_div(form.length, most) - 1).bit_length())
        width = max(width, LEAST_THREADS // height)
        held = min(most, ceil_div(form.length, height))
        found.append(Config(problem.dtype, problem.log, unit, max(1, len(form.outer) - 1), width, height, held,
                            held * height >= form.length, len(problem.arrays)))
    return list(dict.fromkeys(found))


def _blocks(problem, config):
    """(blocks along the columns of one batch, all blocks)."""
    columns = _columns(problem).size
    across = ceil_div(columns * problem.arrays[0].itemsize, config.unit * config.width)
    return across, across * (problem.form.rows // columns)


def estimate(problem, device, config):
    """Bytes, twice read where the axis does not fit; short runs of columns; idle threads; merges."""
    itemsize, columns = problem.arrays[0].itemsize, _columns(problem).size
    across, blocks = _blocks(problem, config)
    read = 1 if config.whole else COST.again
    waste = sector_waste(min(config.width * config.unit, columns * itemsize), config.unit)
    nbytes = problem.outputs[0].nbytes * ((config.arrays - 1) * read + 1) * waste
    idle = across * config.width * config.unit / (columns * itemsize)
    rate = flight_rate(config.held * config.unit * (config.arrays - 1), COST.in_flight)
    share = occupied(blocks * config.threads, COST.enough, device)
    merges = blocks * config.threads * config.height * (config.unit // itemsize) * (config.height > 1)
    each = COST.element if config.arrays == 2 else COST.element_bwd
    issue = issue_seconds((problem.outputs[0].size * idle * each + COST.merge * merges) / share, 1, device)
    work = overlap(memory=memory_seconds(nbytes, device) / (rate * share), issue=issue)
    return LAUNCH + work.slowed(tail=tail(blocks, COST.blocks, device))


@functools.cache
def forward_kernel(config):
    """y = softmax(x) along columns."""
    row, compute = config.row, element(config.dtype).compute
    functions, do = make_row(row), arithmetic(compute, config.log)
    unpack, pack, read, write = functions.unpack, functions.pack, functions.read, functions.write
    power, shift, finish, result = do.power, do.shift, do.finish, do.result
    Real, E, WORDS, NOTHING = row.real, row.elements, row.words, -math.inf
    WIDTH, HEIGHT, HELD, WHOLE, THREADS = config.width, config.height, config.held, config.whole, config.threads
    LOG, STEP, SPAN = WIDTH.bit_length() - 1, HELD * HEIGHT, WIDTH * E
    SHARED = SPAN * HEIGHT if HEIGHT > 1 else 1
    places, hold = make_row_places(config.dims, 2), pin(WORDS)

    @device_function
    def fetch(words, x, first, length, step):
        for k in range(HELD):
            at = first + k * HEIGHT
            read(words, k, advance(x, at * step), 0, i64(1), at < length)

    @jit(launch_bounds=(THREADS, 2))
    def softmax_fwd_columns(x, y, length, batches, groups, across, x_step, y_step, divisors, strides):
        maxima, sums = cuda.shared.array(SHARED, Real), cuda.shared.array(SHARED, Real)
        words = cuda.local.array(WORDS, u32)
        values, low = cuda.local.array(E, Real), cuda.local.array(E, Real)
        m, total = cuda.local.array(E, Real), cuda.local.array(E, Real)
        offsets = cuda.local.array(2, i64)
        thread = cuda.threadIdx.x
        across_thread, down = thread & (WIDTH - 1), thread >> LOG
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * WIDTH + across_thread
        n = length if group < groups else 0
        places(batch, divisors, strides, offsets)
        column = i64(group if n > 0 else 0) * E
        x, y = advance(x, offsets[0] + column), advance(y, offsets[1] + column)
        for e in range(E):
            m[e] = Real(NOTHING)
            total[e] = Real(0)
        for b in range(1 if WHOLE else batches):
            first = down + b * STEP
            fetch(words, x, first, n, x_step)
            for e in range(E):
                low[e] = m[e]
            for k in range(HELD):
                if first + k * HEIGHT < n:
                    unpack(values, words, k)
                    for e in range(E):
                        m[e] = maximum(m[e], values[e])
            for e in range(E):
                now = shift(m[e])
                total[e] = Real(total[e] * power(Real(low[e] - now)))
                low[e] = now
            hold(words)
            for k in range(HELD):
                if first + k * HEIGHT < n:
                    unpack(values, words, k)
                    for e in range(E):
                        total[e] = Real(total[e] + power(Real(values[e] - low[e])))
        if HEIGHT > 1:
            for e in range(E):
                at = down * SPAN + e * WIDTH + across_thread
                maxima[at] = m[e]
                sums[at] = total[e]
            cuda.syncthreads()
            for e in range(E):
                at = e * WIDTH + across_thread
                top = maxima[at]
                for k in range(1, HEIGHT):
                    top = maximum(top, maxima[at + k * SPAN])
                base, whole = shift(top), Real(0)
                for k in range(HEIGHT):
                    whole = Real(whole + sums[at + k * SPAN] * power(Real(maxima[at + k * SPAN] - base)))
                m[e] = top
                total[e] = whole
        for e in range(E):
            total[e] = finish(total[e])
        hold(words)
        for b in range(1 if WHOLE else batches):
            first = down + b * STEP
            if not WHOLE:
                fetch(words, x, first, n, x_step)
            for k in range(HELD):
                at = first + k * HEIGHT
                if at < n:
                    unpack(values, words, k)
                    for e in range(E):
                        values[e] = result(values[e], m[e], total[e])
                    pack(words, k, values)
                    write(advance(y, at * y_step), 0, i64(1), words, k)
    return softmax_fwd_columns


@functools.cache
def backward_kernel(config):
    """dx from dy and y along columns."""
    row, compute = config.row, element(config.dtype).compute
    functions, do = make_row(row), arithmetic(compute, config.log)
    unpack, pack, read, write, product, gradient = (functions.unpack, functions.pack, functions.read, functions.write, do.product,
                                                    do.gradient)
    Real, E, WORDS = row.real, row.elements, row.words
    WIDTH, HEIGHT, HELD, WHOLE, THREADS = config.width, config.height, config.held, config.whole, config.threads
    LOG, STEP, SPAN = WIDTH.bit_length() - 1, HELD * HEIGHT, WIDTH * E
    SHARED = SPAN * HEIGHT if HEIGHT > 1 else 1
    places, hold = make_row_places(config.dims, 3), pin(WORDS)

    @device_function
    def fetch(a, b, dy, y, first, length, dy_step, y_step):
        for k in range(HELD):
            at = first + k * HEIGHT
            read(a, k, advance(dy, at * dy_step), 0, i64(1), at < length)
            read(b, k, advance(y, at * y_step), 0, i64(1), at < length)

    @jit(launch_bounds=(THREADS, 2))
    def softmax_bwd_columns(dy, y, dx, length, batches, groups, across, dy_step, y_step, dx_step, divisors, strides):
        sums = cuda.shared.array(SHARED, Real)
        a, b = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        values, others, total = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        offsets = cuda.local.array(3, i64)
        thread = cuda.threadIdx.x
        across_thread, down = thread & (WIDTH - 1), thread >> LOG
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * WIDTH + across_thread
        n = length if group < groups else 0
        places(batch, divisors, strides, offsets)
        column = i64(group if n > 0 else 0) * E
        dy, y = advance(dy, offsets[0] + column), advance(y, offsets[1] + column)
        dx = advance(dx, offsets[2] + column)
        for e in range(E):
            total[e] = Real(0)
        for k in range(1 if WHOLE else batches):
            fetch(a, b, dy, y, down + k * STEP, n, dy_step, y_step)
            for c in range(HELD):
                unpack(values, a, c)
                unpack(others, b, c)
                for e in range(E):
                    total[e] = Real(total[e] + product(values[e], others[e]))
        if HEIGHT > 1:
            for e in range(E):
                sums[down * SPAN + e * WIDTH + across_thread] = total[e]
            cuda.syncthreads()
            for e in range(E):
                whole = Real(0)
                for k in range(HEIGHT):
                    whole = Real(whole + sums[k * SPAN + e * WIDTH + across_thread])
                total[e] = whole
        hold(a)
        hold(b)
        for k in range(1 if WHOLE else batches):
            first = down + k * STEP
            if not WHOLE:
                fetch(a, b, dy, y, first, n, dy_step, y_step)
            for c in range(HELD):
                at = first + c * HEIGHT
                if at < n:
                    unpack(values, a, c)
                    unpack(others, b, c)
                    for e in range(E):
                        values[e] = gradient(values[e], others[e], total[e])
                    pack(a, c, values)
                    write(advance(dx, at * dx_step), 0, i64(1), a, c)
    return softmax_bwd_columns


def build(problem, device, config):
    """One launch."""
    form, names = problem.form, ("x", "y") if config.arrays == 2 else ("dy", "y", "dx")
    across, blocks = _blocks(problem, config)
    divisors, strides = row_arguments(RowForm(form.row, form.outer[:-1]))
    arguments = (*(Argument(element(problem.dtype).pointer, name) for name in names), Argument("int32", form.length),
                 Argument("int32", ceil_div(form.length, config.held * config.height)), Argument("int32", _groups(problem, config.unit)),
                 Argument("uint32x3", divisor(across)), *(Argument("int64", s) for s in form.steps),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    kernel = (forward_kernel if config.arrays == 2 else backward_kernel)(config)
    return (Launch(kernel, (blocks, 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="columns", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("softmax_fwd", "softmax_bwd"))
