"""Kernels of gradients where channels lie side by side: sums of columns, and the elementwise pass that gives dx. See `forward`."""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.activation import Activation, activation_gradient
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.groups import make_reader, make_writer, scalar_of
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import advance
from .._channel_problem import gradient_source
from .._channel_vectors import make_rows
from .forward import THREADS, Columns, make_position

if TYPE_CHECKING:
    from ...device.program import Program


@dataclass(frozen=True)
class Gradient:
    """What the kernels are compiled for: dtypes of gamma and beta, "" where there is none; whether dresidual is written; whether the
    statistics are constants; what becomes of each element of dy first, along how many dimensions of values its operands have
    strides, and those of them that are loaded by vectors."""
    columns: Columns
    gamma: str
    residual: bool
    activation: Activation
    batches: int
    beta: str = ""
    frozen: bool = False
    program: "Program | None" = None
    pixels: int = 0
    vectors: tuple = ()

    @property
    def source(self):
        """What the activation's gradient is found from."""
        return gradient_source(self.activation)

    @property
    def blocks(self):
        """Blocks on a multiprocessor, of those that make sums."""
        return 3 if self.source is None and self.program is None else self.pairs

    @property
    def pairs(self):
        """Blocks on a multiprocessor, of those that give dx: one where a program takes the registers of two."""
        is_long = self.program is not None and (self.source is not None or len(self.program.steps) > 4)
        return 1 if is_long else 2

    @property
    def flight(self):
        """Values of each channel in flight."""
        return 4 if self.columns.words else 2

    @property
    def tile(self):
        """Values that a block takes at a time for sums."""
        return self.flight * self.columns.height

    @property
    def rows(self):
        """Values of each channel that a block of the elementwise pass takes."""
        return self.tile * self.batches


def _make_load(config):
    """(type and extent of a raw buffer, that of y's, the `Rows` of the program, device functions ``load`` and ``take``): dy, x and y in
    flight."""
    c, UNITS, BY_Y, BY_X = config.columns, config.flight, config.source == "y", config.source == "x"
    SCALAR, LENGTH, fetch, unpack = make_reader(c.dtype, c.vector, c.words)
    compute, E, HEIGHT, Real = element(c.dtype).compute, c.vector, c.height, scalar_of(c.dtype)
    gradient, PROGRAM = activation_gradient(config.activation, compute), config.program is not None
    made = make_rows(config.program, config.vectors, compute, compute, E, UNITS, HEIGHT, config.pixels)
    run_program = made.run

    @device_function
    def load(raw, more, dy, x, y, row, end, row_strides):
        """Rows from `row` on, `height` apart, that are before `end`."""
        p, q, r = advance(dy, row * row_strides.dy), advance(x, row * row_strides.x), advance(y, row * row_strides.y)
        for u in range(UNITS):
            ok = row + u * HEIGHT < end
            fetch(raw, 2 * u * LENGTH, p, 0, ok)
            fetch(raw, (2 * u + 1) * LENGTH, q, 0, ok)
            if BY_Y:
                fetch(more, u * LENGTH, r, 0, ok)
                r = advance(r, HEIGHT * row_strides.y)
            p, q = advance(p, HEIGHT * row_strides.dy), advance(q, HEIGHT * row_strides.x)

    @device_function
    def take(dz, values, raw, more, beside, u, ok, means, scales, offsets, image, row, channel, operands, extents):
        """dy past the program and the activation, and x, of row u in flight, which is none unless `ok`; `values` is y's meanwhile."""
        unpack(dz, 0, raw, 2 * u * LENGTH)
        if PROGRAM and ok:
            run_program(dz, beside, u, image, row, channel, operands, extents)
        if BY_Y:
            unpack(values, 0, more, u * LENGTH)
            for e in range(E):
                dz[e] = Real(gradient(dz[e], values[e]))
        unpack(values, 0, raw, (2 * u + 1) * LENGTH)
        if BY_X and ok:
            for e in range(E):
                dz[e] = Real(gradient(dz[e], (values[e] - means[e]) * scales[e] + offsets[e]))
    return SCALAR, 2 * UNITS * LENGTH, UNITS * LENGTH if BY_Y else 1, made, load, take


@functools.cache
def sums_kernel(config):
    """``sum(dz)`` and ``sum(dz * (x - mean)) * rstd`` of each channel of a slab."""
    c = config.columns
    Real, E, UNITS, HEIGHT, TILE = scalar_of(c.dtype), c.vector, config.flight, c.height, config.tile
    SCALAR, RAW, MORE, made, load, take = _make_load(config)
    PROGRAM, BESIDE, fetch_program = config.program is not None, made.length, made.fetch
    position, SHARED, STEPS, DEPENDENT = make_position(c), THREADS * E, HEIGHT.bit_length() - 1, c.dependent
    BY_X, SCALED, SHIFTED = config.source == "x", config.gamma != "", config.beta != ""
    KEPT = E if BY_X else 1
    load_gamma, load_beta = element(config.gamma or c.dtype).load, element(config.beta or c.dtype).load

    @device_function
    def add_row(u, s):
        """Add row u in flight to the sums."""
        a, b, dz, values, raw, more, beside, means, scales, offsets, image, row, end, channel, operands, extents = s
        at = row + u * HEIGHT
        take(dz, values, raw, more, beside, u, at < end, means, scales, offsets, image, at, channel, operands, extents)
        for e in range(E):
            a[e] += dz[e]
            b[e] += dz[e] * (values[e] - means[e])
    add_rows = unrolled(UNITS, add_row)

    @jit(launch_bounds=(THREADS, config.blocks))
    def channel_norm_sums(dy, x, y, mean, rstd, first, second, rows, channels, image_strides, row_strides, mean_strides,
                          rstd_strides, tiles, slabs,
                          across_blocks, per, channel_items, image_items, gamma, beta, gamma_step, beta_step, operands, extents):
        ones, twos = cuda.shared.array(SHARED, Real), cuda.shared.array(SHARED, Real)
        raw, more = cuda.local.array(RAW, SCALAR), cuda.local.array(MORE, SCALAR)
        beside = cuda.local.array(BESIDE, u32)
        dz, values, means = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        a, b = cuda.local.array(E, Real), cuda.local.array(E, Real)
        scales, offsets = cuda.local.array(KEPT, Real), cuda.local.array(KEPT, Real)
        image, slab, channel, ty, tx = position(cuda.blockIdx.x, across_blocks, slabs)
        inside = channel < channels
        start, end = i64(channel if inside else 0), rows if inside else 0
        dy, x = advance(dy, image * image_strides.dy + start), advance(x, image * image_strides.x + start)
        y = advance(y, image * image_strides.y + start)
        for e in range(E):
            a[e] = Real(0)
            b[e] = Real(0)
            means[e] = Real(0)
            if inside:
                group, _ = divide_remainder(channel + e, per)
                means[e] = mean[image * mean_strides.image + group * mean_strides.group]
                if BY_X:
                    scales[e], offsets[e] = rstd[image * rstd_strides.image + group * rstd_strides.group], Real(0)
                    if SCALED:
                        scales[e] = scales[e] * load_gamma(gamma, (channel + e) * gamma_step)
                    if SHIFTED:
                        offsets[e] = Real(load_beta(beta, (channel + e) * beta_step))
        tile = slab
        while tile < tiles:
            row = tile * TILE + ty
            tile = tile + i32(slabs[0])
            load(raw, more, dy, x, y, row, end, row_strides)
            if PROGRAM:
                fetch_program(beside, image, row, channel, end, operands)
            add_rows(0, (a, b, dz, values, raw, more, beside, means, scales, offsets, image, row, end, channel, operands, extents))
        if DEPENDENT:
            launch_dependent_grids()
        thread = cuda.threadIdx.x
        for s in range(STEPS):
            half = HEIGHT >> (s + 1)
            if ty >= half and ty < 2 * half:
                for e in range(E):
                    ones[e * THREADS + thread] = a[e]
                    twos[e * THREADS + thread] = b[e]
            cuda.syncthreads()
            if ty < half:
                other = thread + half * (THREADS // HEIGHT)
                for e in range(E):
                    a[e] += ones[e * THREADS + other]
                    b[e] += twos[e * THREADS + other]
        if ty == 0 and inside:
            for e in range(E):
                group, _ = divide_remainder(channel + e, per)
                r = rstd[image * rstd_strides.image + group * rstd_strides.group]
                at = (channel + e) * channel_items + image * image_items + slab
                first[at] = a[e]
                second[at] = b[e] * r
    return channel_norm_sums


@functools.cache
def gradient_kernel(config):
    """``dx = rstd * (dz * gamma - one - n * two)`` with averages one and two, and ``dresidual = dz``; from the last values to the first.
    Of constant statistics there are no averages."""
    c = config.columns
    Real, E, UNITS, HEIGHT, ROWS, BATCHES = scalar_of(c.dtype), c.vector, config.flight, c.height, config.rows, config.batches
    SCALAR, RAW, MORE, made, load, take = _make_load(config)
    PROGRAM, BESIDE, fetch_program = config.program is not None, made.length, made.fetch
    put, position, load_gamma = make_writer(c.dtype, E, c.words), make_position(c), element(config.gamma or c.dtype).load
    SCALED, SHIFTED, RESIDUAL, DEPENDENT = config.gamma != "", config.beta != "", config.residual, c.dependent
    SPAN, ACROSS, E_LOG, COLUMNS = c.span, c.across, E.bit_length() - 1, -(-c.span // THREADS)
    TABLE, KEPT, load_beta = (5 if SHIFTED else 4) * c.span, E if config.source == "x" else 1, element(config.beta or c.dtype).load
    BY_X, FROZEN, BLOCKS_APPLY = config.source == "x", config.frozen, config.pairs

    @device_function
    def write_row(u, s):
        """dx and dresidual of row u in flight."""
        (dx, dresidual, dz, values, raw, more, beside, means, outer, inner, shifts, offsets, image, row, end, row_strides, channel,
         operands, extents) = s
        at = row + u * HEIGHT
        if at < end:
            take(dz, values, raw, more, beside, u, True, means, outer, offsets, image, at, channel, operands, extents)
            if RESIDUAL:
                put(advance(dresidual, at * row_strides.dresidual), 0, dz, 0)
            for e in range(E):
                if FROZEN:
                    values[e] = dz[e] * outer[e]
                else:
                    values[e] = dz[e] * outer[e] + ((values[e] - means[e]) * inner[e] + shifts[e])
            put(advance(dx, at * row_strides.dx), 0, values, 0)
    write_rows = unrolled(UNITS, write_row)

    @jit(launch_bounds=(THREADS, BLOCKS_APPLY))
    def channel_norm_gradient(dy, x, y, dx, dresidual, gamma, mean, rstd, one, two, rows, channels, parts, across_blocks, per, groups,
                              image_strides, row_strides, gamma_step, mean_strides, rstd_strides, beta, beta_step, operands, extents):
        table = cuda.shared.array(TABLE, Real)
        raw, more = cuda.local.array(RAW, SCALAR), cuda.local.array(MORE, SCALAR)
        beside = cuda.local.array(BESIDE, u32)
        dz, values, means = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        outer, inner, shifts = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        offsets = cuda.local.array(KEPT, Real)
        image, part, channel, ty, tx = position(cuda.gridDim.x - cuda.blockIdx.x - 1, across_blocks, parts)
        inside = channel < channels
        start, end = i64(channel if inside else 0), rows if inside else 0
        dy, x = advance(dy, image * image_strides.dy + start), advance(x, image * image_strides.x + start)
        y, dx = advance(y, image * image_strides.y + start), advance(dx, image * image_strides.dx + start)
        dresidual = advance(dresidual, image * image_strides.dresidual + start)
        row = part * ROWS + ty
        load(raw, more, dy, x, y, row, end, row_strides)
        if PROGRAM:
            fetch_program(beside, image, row, channel, end, operands)
        if DEPENDENT:
            wait_for_previous_grid()
        # each column's numbers, by a thread of its own: dx = outer * dz + inner * (x - mean) + shift; the activation's argument, where it
        # is needed, is outer * (x - mean) + beta
        first = channel - tx * E
        for k in range(COLUMNS):
            j = cuda.threadIdx.x + k * THREADS
            at = first + j
            if j < SPAN and at < channels:
                group, _ = divide_remainder(at, per)
                m = mean[image * mean_strides.image + group * mean_strides.group]
                r = rstd[image * rstd_strides.image + group * rstd_strides.group]
                statistic = image * i64(groups) + group
                scale = r
                if SCALED:
                    scale = r * load_gamma(gamma, at * gamma_step)
                to = (j & (E - 1)) * ACROSS + (j >> E_LOG)
                table[to] = m
                table[to + SPAN] = scale
                if not FROZEN:
                    table[to + 2 * SPAN] = Real(-r) * (r * two[statistic])
                    table[to + 3 * SPAN] = Real(-r) * one[statistic]
                if SHIFTED:
                    table[to + 4 * SPAN] = Real(load_beta(beta, at * beta_step))
        cuda.syncthreads()
        if inside:
            for e in range(E):
                to = e * ACROSS + tx
                means[e], outer[e] = table[to], table[to + SPAN]
                if not FROZEN:
                    inner[e], shifts[e] = table[to + 2 * SPAN], table[to + 3 * SPAN]
                if BY_X:
                    offsets[e] = table[to + 4 * SPAN] if SHIFTED else Real(0)
            for k in range(BATCHES):
                if k > 0:
                    row = row + UNITS * HEIGHT
                    load(raw, more, dy, x, y, row, end, row_strides)
                    if PROGRAM:
                        fetch_program(beside, image, row, channel, end, operands)
                write_rows(0, (dx, dresidual, dz, values, raw, more, beside, means, outer, inner, shifts, offsets, image, row, end,
                               row_strides, channel, operands, extents))
    return channel_norm_gradient
