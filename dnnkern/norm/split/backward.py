"""Rows cut into pieces, backward: blocks leave two sums of each piece, and those of a second launch go down strips of columns.

A block of the second launch has a strip of columns and a range of the rows. It adds what the pieces of these rows left, a row a thread,
and then reads dy and x once more: dx can be written, and the columns' sums for dgamma and dbeta stay in registers to the end of the range.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit, u32
from ...device.block import make_block_reduce_pair, merge_sums
from ...device.groups import make_writer
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.rows import Dim, RowLayout, RowForm, make_row, make_row_offsets, row_arguments
from ...device.vec import advance, pin
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, memory_seconds, narrow_rate, occupied
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._sums import sums_launch
from .._weights import make_weights, weight_words
from ..block.backward_config import layout, vectors
from ..block.forward import pointers

COST = constants("norm/split_backward")

THREADS, BLOCKS = 256, 6  # of a block; blocks of a multiprocessor that are worth a piece
SCRATCH = THREADS // 8
OFFSETS = "dy", "x", "dx", "mean", "rstd", "dsummed"  # names of the arrays that a row has offsets in


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for; attributes as `block`'s. `registers` are vectors per thread and input at once."""
    dtype: str
    gamma: str
    layer: bool
    scaled: bool
    shifted: bool
    words: int
    vector_bytes: int
    dims: int
    registers: int
    added: bool = False

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, THREADS, self.registers)

    @property
    def sums(self):
        return 1 + self.shifted


@functools.lru_cache(maxsize=256)
def config_of(problem):
    """The configuration of a problem."""
    p, (form, vector_bytes), order = problem, layout(problem), [name for name, _, _ in problem.arrays]
    words = weight_words(p.gamma, p.form.steps[order.index("gamma")], vector_bytes // p.x.itemsize, False)
    dtype = p.dtype if p.gamma is None else p.gamma.dtype
    return Config(p.dtype, dtype, p.op == "layer_norm_bwd", p.gamma is not None, p.dbeta is not None, words, vector_bytes,
                  max(1, len(form.outer)) if form.rows else 1, 1 if p.compute == "float64" else 2, p.dsummed is not None)


@functools.lru_cache(maxsize=256)
def plan(problem, device):
    """(pieces of a row, vectors of a piece, strips of columns, ranges of rows, rows of a range)."""
    config, form, count = config_of(problem), problem.form, vectors(problem)
    turn = THREADS * config.registers
    strips, most = ceil_div(count, turn), BLOCKS * device.sms
    size = ceil_div(ceil_div(count, max(1, min(strips, ceil_div(most, max(1, form.rows))))), turn) * turn
    per = min(THREADS, ceil_div(form.rows, max(1, most // strips))) or 1
    return ceil_div(count, size), size, strips, max(1, ceil_div(form.rows, per)), per


def _columns_bytes(problem, device):
    """Of the columns' partial sums, padded to 16: they come first in the workspace."""
    *_, ranges, _ = plan(problem, device)
    size = ranges * config_of(problem).sums * problem.form.length * ITEMSIZE[problem.compute]
    return ceil_div(size, 16) * 16


def workspace(problem, device, config):
    """The columns' sums of each range of rows, and two sums of each piece."""
    return _columns_bytes(problem, device) + 2 * problem.form.rows * plan(problem, device)[0] * ITEMSIZE[problem.compute]


def seconds(problem, device, config):
    """dy and x twice, the second time from the L2 where they fit it; three launches."""
    pieces, _, strips, ranges, _ = plan(problem, device)
    again = COST.again if problem.bytes < device.l2_bytes // 2 else 1.0
    share = occupied(strips * ranges * THREADS, COST.enough, device)
    rate = narrow_rate(layout(problem)[1], problem.x.itemsize)
    idle = max(1.0, THREADS * config_of(problem).registers / vectors(problem))
    moved = problem.bytes + 2 * again * problem.x.nbytes + 2 * workspace(problem, device, config)
    memory = Cost(memory=memory_seconds(moved, device) / (COST.rate * rate))
    return 3 * LAUNCH + Cost(launch=COST.between) + memory.slowed(idle=idle / share)


@functools.cache
def pieces_kernel(config):
    """The sums of ``g`` and of ``g * n`` over a piece."""
    layout = config.layout
    vec, Real = make_row(layout), layout.real
    E, WORDS, REGISTERS, TURN = layout.elements, layout.words, config.registers, THREADS * config.registers
    LAYER, SCALED = config.layer, config.scaled
    GAMMA, LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.words)
    GAMMAS, reduce, row_offsets = LENGTH * REGISTERS, make_block_reduce_pair(merge_sums, THREADS), make_row_offsets(config.dims, OFFSETS)

    @jit(launch_bounds=(THREADS, 3))
    def norm_bwd_pieces(dy, x, gamma, mean, rstd, partial, pieces, size, vectors, length, dy_step, x_step, gamma_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        a, b, gammas = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(GAMMAS, GAMMA)
        values, others, scales = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        lane = cuda.threadIdx.x
        number, piece = divide_remainder(cuda.blockIdx.x, pieces)
        offsets = row_offsets(number, divisors, strides)
        dy, x = advance(dy, offsets.dy), advance(x, offsets.x)
        m, r = Real(0), Real(rstd[offsets.rstd])
        if LAYER:
            m = Real(mean[offsets.mean])
        average, slope = Real(0), Real(0)
        for first in range(piece * size, min(vectors, piece * size + size), TURN):
            left = vectors - first
            vec.load(a, advance(dy, i64(first) * E * dy_step), 0, left, lane, dy_step)
            vec.load(b, advance(x, i64(first) * E * x_step), 0, left, lane, x_step)
            if SCALED:
                for c in range(REGISTERS):
                    i = lane + c * THREADS
                    fetch_gamma(gammas, c * LENGTH, gamma, (first + i) * E, gamma_step, i < left)
            for c in range(REGISTERS):
                vec.unpack(values, a, c)
                vec.unpack(others, b, c)
                if SCALED:
                    unpack_gamma(scales, gammas, c * LENGTH)
                for e in range(E):
                    d, n = values[e], others[e]
                    if LAYER:
                        n = n - m
                    if SCALED:
                        d = d * scales[e]
                    average += d
                    slope += d * (n * r)
        average, slope = reduce(average, slope, Real(0), scratch, 0)
        if lane == 0:
            at = 2 * i64(cuda.blockIdx.x)
            partial[at] = average
            partial[at + 1] = slope
    return norm_bwd_pieces


@functools.cache
def strips_kernel(config):
    """dx of a strip of columns and a range of rows, and the columns' sums over the range."""
    layout = config.layout
    vec, Real = make_row(layout), layout.real
    E, WORDS, REGISTERS, TURN = layout.elements, layout.words, config.registers, THREADS * config.registers
    LAYER, SCALED, SHIFTED, SUMS, COLUMNS, TOTALS = config.layer, config.scaled, config.shifted, config.sums, E * REGISTERS, 2 * THREADS
    GAMMA, LENGTH, fetch_gamma, unpack_gamma = make_weights(config.gamma, E, config.words)
    GAMMAS, row_offsets, hold, hold_gamma = LENGTH * REGISTERS, make_row_offsets(config.dims, OFFSETS), pin(WORDS), pin(LENGTH * REGISTERS)
    real, itemsize = ("float64", 8) if config.dtype == "float64" else ("float32", 4)
    put = make_writer(real, E, 4 if E * itemsize % 16 == 0 else 0)
    ADDED, MORE = config.added, WORDS if config.added else 1

    @jit(launch_bounds=(THREADS, 2))
    def norm_bwd_strips(dy, x, gamma, mean, rstd, dx, partial, columns, strips, pieces, per, rows, vectors, length, inverse, dy_step,
                        x_step, dx_step, gamma_step, divisors, strides, dsummed, dsummed_step):
        totals = cuda.shared.array(TOTALS, Real)
        a, b, gammas = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(GAMMAS, GAMMA)
        gains, shifts = cuda.local.array(COLUMNS, Real), cuda.local.array(COLUMNS, Real)
        values, others, scales = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        more, added = cuda.local.array(MORE, u32), cuda.local.array(E, Real)
        lane = cuda.threadIdx.x
        split, strip = divide_remainder(cuda.blockIdx.x, strips)
        begin = split * per
        end = begin + per
        if end > rows:
            end = rows
        average, slope = Real(0), Real(0)
        if begin + lane < end:
            for piece in range(pieces):
                at = 2 * (i64(begin + lane) * pieces + piece)
                average += partial[at]
                slope += partial[at + 1]
        totals[lane] = average * inverse
        totals[lane + THREADS] = slope * inverse
        cuda.syncthreads()
        first = strip * TURN
        left = vectors - first
        for j in range(COLUMNS):
            gains[j], shifts[j] = Real(0), Real(0)
        if SCALED:
            for c in range(REGISTERS):
                i = lane + c * THREADS
                fetch_gamma(gammas, c * LENGTH, gamma, (first + i) * E, gamma_step, i < left)
        for row in range(begin, end):
            offsets = row_offsets(row, divisors, strides)
            vec.load(a, advance(dy, offsets.dy + i64(first) * E * dy_step), 0, left, lane, dy_step)
            vec.load(b, advance(x, offsets.x + i64(first) * E * x_step), 0, left, lane, x_step)
            if ADDED:
                vec.load(more, advance(dsummed, offsets.dsummed + i64(first) * E * dsummed_step), 0, left, lane, dsummed_step)
            m, r = Real(0), Real(rstd[offsets.rstd])
            if LAYER:
                m = Real(mean[offsets.mean])
            average, slope = totals[row - begin], totals[row - begin + THREADS]
            hold_gamma(gammas)
            for c in range(REGISTERS):
                vec.unpack(values, a, c)
                vec.unpack(others, b, c)
                if SCALED:
                    unpack_gamma(scales, gammas, c * LENGTH)
                for e in range(E):
                    d, n = values[e], others[e]
                    if LAYER:
                        n = n - m
                    n = n * r
                    gains[c * E + e] += d * n
                    if SHIFTED:
                        shifts[c * E + e] += d
                    if SCALED:
                        d = d * scales[e]
                    if LAYER:
                        d = d - average
                    values[e] = (d - n * slope) * r
                if ADDED:
                    vec.unpack(added, more, c)
                    for e in range(E):
                        values[e] += added[e]
                vec.pack(a, c, values)
                vec.store(advance(dx, offsets.dx + i64(first) * E * dx_step), a, c, 0, left, lane, dx_step)
            hold(a)
        to = advance(columns, split * (i64(length) * SUMS))
        for c in range(REGISTERS):
            i = lane + c * THREADS
            if i < left:
                put(to, (first + i) * E, gains, c * E)
                if SHIFTED:
                    put(advance(to, length), (first + i) * E, shifts, c * E)
    return norm_bwd_strips


def build(problem, device, config):
    """Three launches, two where there are no rows."""
    p, form, config = problem, problem.form, config_of(problem)
    pieces, size, strips, ranges, per = plan(p, device)
    order = {name: k for k, (name, _, _) in enumerate(p.arrays)}
    outer = tuple(Dim(d.size, tuple(d.strides[order.get(n, 0)] for n in OFFSETS)) for d in form.outer if form.rows)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(OFFSETS)),), outer))
    last = Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides)
    columns = Argument(f"{p.compute}*", "workspace")
    partial = Argument(f"{p.compute}*", "workspace", _columns_bytes(p, device))
    inputs = pointers(p, ("dy", "x", "gamma", "mean", "rstd"), {"gamma": "x", "mean": "rstd"})
    extents = Argument("int32", vectors(p)), Argument("int32", form.length)

    def steps(*names):
        return tuple(Argument("int64", form.steps[order.get(name, 0)]) for name in names)
    first = (*inputs, partial, Argument("uint32x3", divisor(pieces)), Argument("int32", size), *extents, *steps("dy", "x", "gamma"), *last)
    second = (*inputs, *pointers(p, ("dx",), {}), partial, columns, Argument("uint32x3", divisor(strips)), Argument("int32", pieces),
              Argument("int32", per), Argument("int32", form.rows), *extents, Argument(p.compute, 1 / form.length),
              *steps("dy", "x", "dx", "gamma"), *last, *pointers(p, ("dsummed",), {"dsummed": "x"}), *steps("dsummed"))
    sums = (Launch(pieces_kernel(config), (form.rows * pieces, 1, 1), (THREADS, 1, 1), first),) if form.rows else ()
    return (*sums, Launch(strips_kernel(config), (strips * ranges, 1, 1), (THREADS, 1, 1), second),
            sums_launch(p, ranges, [form.steps[order.get(name, 0)] for name in ("dgamma", "dbeta")], False))
