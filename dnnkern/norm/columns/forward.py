"""Kernels of channels that lie side by side: moments of columns of values, and the elementwise pass that uses them.

A block has `across` threads along channels, each with 16 bytes of them, and `height` rows of threads that divide the values. See
`channel_norm_columns`.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.epilogue import Activation, activation_function
from ...device.groups import make_reader, make_writer, scalar_of
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import advance
from .._channel_vectors import make_rows
from .._moments import make_inverses, make_merge

if TYPE_CHECKING:
    from ...device.program import Program

THREADS = 256
BLOCKS = 3  # on a multiprocessor, of those that take moments


@dataclass(frozen=True)
class Columns:
    """How columns are read.

    Attributes
    ----------
    dtype : str
    vector : int
        Channels of a thread.
    words : int
        32-bit words of an access; 0: element by element.
    across : int
        Threads along channels.
    dependent : bool
        Launches after the first begin while the one before them ends.
    """
    dtype: str
    vector: int
    words: int
    across: int
    dependent: bool = False

    def __str__(self):
        loads = f"{4 * self.words} bytes" if self.words else "single elements"
        return f"{self.across} x {self.height} threads, {self.vector} channels each, {loads}"

    @property
    def height(self):
        """Rows of threads."""
        return THREADS // self.across

    @property
    def span(self):
        """Channels of a block."""
        return self.across * self.vector

    @property
    def flight(self):
        """Values of each channel that a thread has in flight, where it reads one array."""
        return 8 if self.words else 4

    @property
    def tile(self):
        """Values that a block takes at a time."""
        return self.flight * self.height


@dataclass(frozen=True)
class Apply:
    """What the elementwise pass is compiled for: dtypes of gamma, beta, mean and of rstd or the variance, "" where there is none; y's,
    and 32-bit words of an access to it, where it is another than x's; what becomes of each element after the activation, along
    how many dimensions of values its operands have strides, and those of them that are loaded by vectors."""
    columns: Columns
    gamma: str
    beta: str
    mean: str
    deviation: str
    variance: bool
    residual: bool
    activation: Activation
    batches: int
    result: str = ""
    result_words: int = 0
    program: "Program | None" = None
    pixels: int = 0
    vectors: tuple = ()

    @property
    def blocks(self):
        """Blocks that a multiprocessor should hold."""
        return 1 if self.residual or self.vectors else 2 if self.program else 4

    @property
    def flight(self):
        return 4 if self.columns.words else 2

    @property
    def rows(self):
        """Values of each channel that a block takes."""
        return self.columns.height * self.flight * self.batches


def make_position(columns):
    """Device function ``position(block, across_blocks, parts) -> (image, part, first channel of the thread, row of the thread, thread along
    channels)``: blocks of neighbouring channels are neighbours, parts of one image follow."""
    ACROSS, LOG, SPAN, VECTOR = columns.across, columns.across.bit_length() - 1, columns.span, columns.vector

    @device_function
    def position(block, across_blocks, parts):
        rest, strip = divide_remainder(block, across_blocks)
        image, part = divide_remainder(rest, parts)
        thread = cuda.threadIdx.x
        tx = thread & (ACROSS - 1)
        return image, part, strip * SPAN + tx * VECTOR, thread >> LOG, tx
    return position


@functools.cache
def moments_kernel(columns):
    """The mean and the squared distances to it of each channel of a slab.

    A thread has the mean of the values in flight, then the distances to that, and merges them into those it has: two levels, so that
    neither large means nor a first value far from the others costs digits.
    """
    Real, E, UNITS, HEIGHT, TILE = scalar_of(columns.dtype), columns.vector, columns.flight, columns.height, columns.tile
    SCALAR, LENGTH, fetch, _ = make_reader(columns.dtype, E, columns.words)
    PART = max(1, 4 // element(columns.dtype).storage.itemsize) if columns.words else 1
    _, WORD, _, unpack = make_reader(columns.dtype, PART, 1 if columns.words else 0)
    PARTS = E // PART
    RAW, SHARED, STEPS, LOG = UNITS * LENGTH, THREADS * E, HEIGHT.bit_length() - 1, HEIGHT.bit_length() - 1
    (inverse, _), merge, position, DEPENDENT = make_inverses(Real), make_merge(Real), make_position(columns), columns.dependent

    @jit(launch_bounds=(THREADS, BLOCKS))
    def channel_norm_moments(x, first, second, rows, channels, image_stride, step, tiles, slabs, across_blocks, channel_items, image_items):
        means, squares, counts = cuda.shared.array(SHARED, Real), cuda.shared.array(SHARED, Real), cuda.shared.array(THREADS, Real)
        raw, values, part = cuda.local.array(RAW, SCALAR), cuda.local.array(PART, Real), cuda.local.array(PART, Real)
        a, b = cuda.local.array(E, Real), cuda.local.array(E, Real)
        image, slab, channel, ty, tx = position(cuda.blockIdx.x, across_blocks, slabs)
        inside = channel < channels
        x = advance(x, image * image_stride + (channel if inside else 0))
        n, jump, end = Real(0), HEIGHT * step, rows if inside else 0
        for e in range(E):
            a[e] = Real(0)
            b[e] = Real(0)
        tile = slab
        while tile < tiles:
            row = tile * TILE + ty
            tile = tile + i32(slabs[0])
            k = (end - row + (HEIGHT - 1)) >> LOG  # values in flight, at most
            p = advance(x, row * step)
            for u in range(UNITS):
                fetch(raw, u * LENGTH, p, 0, u < k)
                p = advance(p, jump)
            if k < 0:
                k = 0
            if k > UNITS:
                k = UNITS
            count = Real(k)
            share = inverse(count) if k > 0 else Real(0)
            total = n + count
            weight = count * inverse(total) if k > 0 else Real(0)
            both = n * weight
            n = total
            # a word of channels at a time: few numbers live
            for w in range(PARTS):
                for v in range(PART):
                    part[v] = Real(0)
                for u in range(UNITS):
                    unpack(values, 0, raw, u * LENGTH + w * WORD)
                    for v in range(PART):
                        part[v] += values[v]
                for v in range(PART):
                    part[v] = part[v] * share
                    e = w * PART + v
                    d = part[v] - a[e]
                    a[e] += d * weight
                    b[e] += d * d * both
                for u in range(UNITS):
                    if u < k:
                        unpack(values, 0, raw, u * LENGTH + w * WORD)
                        for v in range(PART):
                            d = values[v] - part[v]
                            b[w * PART + v] += d * d
        if DEPENDENT:
            launch_dependent_grids()
        # rows of threads: the upper half brings its moments to the lower one
        thread = cuda.threadIdx.x
        for s in range(STEPS):
            half = HEIGHT >> (s + 1)
            if ty >= half and ty < 2 * half:
                counts[thread] = n
                for e in range(E):
                    means[e * THREADS + thread] = a[e]
                    squares[e * THREADS + thread] = b[e]
            cuda.syncthreads()
            if ty < half:
                other = thread + half * (THREADS // HEIGHT)
                m = counts[other]
                for e in range(E):
                    a[e], b[e], total = merge(a[e], b[e], n, means[e * THREADS + other], squares[e * THREADS + other], m)
                n = n + m
        if ty == 0 and inside:
            for e in range(E):
                at = (channel + e) * channel_items + image * image_items + slab
                first[at] = a[e]
                second[at] = b[e]
    return channel_norm_moments


@functools.cache
def apply_kernel(config):
    """y from x, statistics and weights, from the last values to the first: what was read last is still in the cache."""
    c = config.columns
    Real, E, UNITS, HEIGHT, ROWS, BATCHES = scalar_of(c.dtype), c.vector, config.flight, c.height, config.rows, config.batches
    SCALAR, LENGTH, fetch, unpack = make_reader(c.dtype, E, c.words)
    put = make_writer(config.result or c.dtype, E, config.result_words if config.result else c.words)
    position = make_position(c)
    act = activation_function(config.activation, element(c.dtype).compute)
    RAW, SPAN, ACROSS = UNITS * LENGTH, c.span, c.across
    MORE = RAW if config.residual else 1
    RESIDUAL, SCALED, SHIFTED, VARIANCE = config.residual, config.gamma != "", config.beta != "", config.variance
    DEPENDENT = c.dependent and not VARIANCE
    load_gamma, load_beta = element(config.gamma or c.dtype).load, element(config.beta or c.dtype).load
    load_mean, load_deviation, (_, inverse_root) = element(config.mean).load, element(config.deviation).load, make_inverses(Real)
    COLUMNS, TABLE, E_LOG, BLOCKS_APPLY = -(-SPAN // THREADS), 3 * SPAN, E.bit_length() - 1, config.blocks
    PROGRAM = config.program is not None
    made = make_rows(config.program, config.vectors, element(c.dtype).compute, config.result or c.dtype, E, UNITS, HEIGHT, config.pixels)
    BESIDE, fetch_program, run_program = made.length, made.fetch, made.run

    @device_function
    def read(raw, more, x, residual, row, rows, inside, step, residual_step):
        p, q = advance(x, row * step), advance(residual, row * residual_step)
        for u in range(UNITS):
            fetch(raw, u * LENGTH, advance(p, u * HEIGHT * step), 0, inside and row + u * HEIGHT < rows)
        if RESIDUAL:
            for u in range(UNITS):
                fetch(more, u * LENGTH, advance(q, u * HEIGHT * residual_step), 0, inside and row + u * HEIGHT < rows)

    @device_function
    def write(u, s):
        """y of row u in flight."""
        y, step, values, others, raw, more, beside, image, row, rows, channel, means, scales, shifts, operands, extents = s
        if row + u * HEIGHT < rows:
            unpack(values, 0, raw, u * LENGTH)
            if RESIDUAL:
                unpack(others, 0, more, u * LENGTH)
            for e in range(E):
                value = (values[e] - means[e]) * scales[e] + shifts[e]
                if RESIDUAL:
                    value += others[e]
                values[e] = act(value)
            if PROGRAM:
                run_program(values, beside, u, image, row + u * HEIGHT, channel, operands, extents)
            put(advance(y, u * HEIGHT * step), 0, values, 0)
    write_all = unrolled(UNITS, write)

    @jit(launch_bounds=(THREADS, BLOCKS_APPLY))
    def channel_norm_apply(x, residual, y, gamma, beta, mean, deviation, eps, rows, channels, parts, across_blocks, per, image_strides,
                           row_strides, gamma_step, beta_step, mean_strides, deviation_strides, operands, extents):
        table = cuda.shared.array(TABLE, Real)
        raw, more, values = cuda.local.array(RAW, SCALAR), cuda.local.array(MORE, SCALAR), cuda.local.array(E, Real)
        others, beside = cuda.local.array(E, Real), cuda.local.array(BESIDE, u32)
        means, scales, shifts = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        image, part, channel, ty, tx = position(cuda.gridDim.x - cuda.blockIdx.x - 1, across_blocks, parts)
        inside = channel < channels
        start = i64(channel if inside else 0)
        x = advance(x, image * image_strides.x + start)
        residual, y = advance(residual, image * image_strides.residual + start), advance(y, image * image_strides.y + start)
        row = part * ROWS + ty
        read(raw, more, x, residual, row, rows, inside, row_strides.x, row_strides.residual)
        if PROGRAM:
            fetch_program(beside, image, row, channel, rows if inside else 0, operands)
        if DEPENDENT:
            wait_for_previous_grid()
        # each column's numbers, by a thread of its own
        first = channel - tx * E
        for k in range(COLUMNS):
            j = cuda.threadIdx.x + k * THREADS
            at = first + j
            if j < SPAN and at < channels:
                group, _ = divide_remainder(at, per)
                m = Real(load_mean(mean, image * mean_strides.image + group * mean_strides.group))
                r = Real(load_deviation(deviation, image * deviation_strides.image + group * deviation_strides.group))
                if VARIANCE:
                    r = inverse_root(r + eps)
                shift = Real(0)
                if SCALED:
                    r = r * load_gamma(gamma, at * gamma_step)
                if SHIFTED:
                    shift = Real(load_beta(beta, at * beta_step))
                to = (j & (E - 1)) * ACROSS + (j >> E_LOG)
                table[to] = m
                table[to + SPAN] = r
                table[to + 2 * SPAN] = shift
        cuda.syncthreads()
        if inside:
            for e in range(E):
                to = e * ACROSS + tx
                means[e], scales[e], shifts[e] = table[to], table[to + SPAN], table[to + 2 * SPAN]
            for k in range(BATCHES):
                if k > 0:
                    row = row + UNITS * HEIGHT
                    read(raw, more, x, residual, row, rows, inside, row_strides.x, row_strides.residual)
                    if PROGRAM:
                        fetch_program(beside, image, row, channel, rows, operands)
                q = advance(y, row * row_strides.y)
                write_all(0, (q, row_strides.y, values, others, raw, more, beside, image, row, rows, channel, means, scales, shifts,
                              operands, extents))
    return channel_norm_apply
