"""Rows cut into pieces, for rows of any length and for few of them: every row is read twice.

Blocks of a first launch leave in the workspace, for a piece of a row each, its maximum and its sum of exponentials (backward the sum).
Those of the second merge what the pieces of their row left, in the same order in every block, and write the results of a piece. `block`
and `cluster` read a row once, but hold it whole, and keep no more multiprocessors busy than there are rows or clusters.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_softmax
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import Held, make_row, make_row_places, row_arguments
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, narrow_rate, occupied, overlap, sector_waste
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import arithmetic
from ._rows import units

COST = constants("softmax/split")

THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20
SCRATCH = THREADS // 8  # two pairs a warp
BLOCKS = 8  # of a multiprocessor that are worth a piece


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for: `held` units a thread loads at once of each array."""
    dtype: str
    log: bool
    unit: int
    heads: bool
    dims: int
    held: int
    arrays: int

    @property
    def row(self):
        return Held(self.dtype, self.unit, THREADS, self.held, 0, self.heads, self.arrays == 2)


def supports(problem):
    """Rows and counters within 32 bits."""
    form = problem.form
    if form.length >= LIMIT or form.rows * THREADS >= LIMIT:
        return f"{form.rows} rows of {form.length} elements; expected rows of fewer than 2**31 - 2**20, fewer than 2**23 - 2**12 of them"
    return None


def _config(problem):
    unit, heads = problem.unit
    held = 4 // (len(problem.arrays) - 1) // (1 + (problem.compute == "float64"))
    return Config(problem.dtype, problem.log, unit, heads, max(1, len(problem.form.outer)), held, len(problem.arrays))


def _pieces(problem, device):
    """(pieces of a row, units of a piece): whole rounds of a block, and no more pieces than a block has threads to merge them."""
    count, turn = units(problem), THREADS * _config(problem).held
    wanted = max(1, min(THREADS, ceil_div(BLOCKS * device.sms, problem.form.rows), ceil_div(count, turn)))
    size = ceil_div(ceil_div(count, wanted), turn) * turn
    return ceil_div(count, size), size


def workspace(problem, device, config):
    """Two numbers a piece forward, one backward."""
    return problem.form.rows * _pieces(problem, device)[0] * ITEMSIZE[problem.compute] * (4 - len(problem.arrays))


def estimate(problem, device, config):
    """Inputs twice, the second time from the L2 where they fit it; two launches."""
    form, itemsize = problem.form, problem.arrays[0].itemsize
    pieces, _ = _pieces(problem, device)
    inputs, outputs = sum(t.nbytes for t in problem.arrays[:-1]), problem.outputs[0].nbytes
    again = COST.again if inputs + outputs < device.l2_bytes // 2 else 1.0
    share = occupied(form.rows * pieces * THREADS, COST.enough, device)
    idle = max(1.0, THREADS * _config(problem).held / units(problem)) ** 0.5
    strided = max(sector_waste(itemsize, itemsize) if abs(s) > 1 else 1 for s in form.steps)
    each = COST.element if len(problem.arrays) == 2 else COST.element_bwd
    issue = issue_seconds(outputs // itemsize * each + COST.thread * form.rows * pieces * THREADS, 1, device)
    moved = memory_seconds(inputs * (1 + again) + outputs, device) * strided / narrow_rate(problem.unit[0], itemsize)
    return 2 * LAUNCH + Cost(launch=COST.between) + overlap(memory=moved, issue=issue).slowed(idle=idle / share)


@functools.cache
def sum_kernel(config):
    """The maximum and the sum of a piece, forward; backward the sum alone."""
    held, compute = config.row, element(config.dtype).compute
    row, do = make_row(held), arithmetic(compute, config.log)
    span, load, load_rest, unpack = row.span, row.load, row.load_rest, row.unpack
    power, shift, product, Real, NOTHING = do.power, do.shift, do.product, held.real, -math.inf
    E, WORDS, REST, SINGLES, HELD = held.elements, held.words, held.rest, held.singles, config.held
    places, hold = make_row_places(config.dims, config.arrays), pin(WORDS)
    if config.arrays == 2:
        merge = make_block_reduce_pair(merge_softmax, THREADS)

        @jit(launch_bounds=(THREADS, 3))
        def softmax_fwd_pieces(x, partial, pieces, size, length, x_step, divisors, strides):
            scratch = cuda.shared.array(SCRATCH, Real)
            words, values = cuda.local.array(WORDS, u32), cuda.local.array(E, Real)
            rest, offsets = cuda.local.array(REST, Real), cuda.local.array(2, i64)
            lane = cuda.threadIdx.x
            number, piece = divide_remainder(cuda.blockIdx.x, pieces)
            places(number, divisors, strides, offsets)
            x = advance(x, offsets[0])
            head, units = span(x, length)
            m, total = Real(NOTHING), Real(0)
            if piece == 0:
                load_rest(rest, x, head, units, length, lane)
                for k in range(SINGLES):
                    m = maximum(m, rest[k])
                for k in range(SINGLES):
                    total = Real(total + power(Real(rest[k] - shift(m))))
            for first in range(piece * size, min(units, piece * size + size), THREADS * HELD):
                load(words, advance(x, i64(first) * E * x_step), head, units - first, lane, x_step)
                old = m
                for c in range(HELD):
                    unpack(values, words, c)
                    for e in range(E):
                        m = maximum(m, values[e])
                low = shift(m)
                total = Real(total * power(Real(old - low)))
                hold(words)
                for c in range(HELD):
                    unpack(values, words, c)
                    for e in range(E):
                        total = Real(total + power(Real(values[e] - low)))
            m, total = merge(m, total, Real(0), scratch, 0)
            if lane == 0:
                at = 2 * i64(cuda.blockIdx.x)
                partial[at] = m
                partial[at + 1] = total
        return softmax_fwd_pieces

    reduce = make_block_reduce(add, THREADS)

    @jit(launch_bounds=(THREADS, 3))
    def softmax_bwd_pieces(dy, y, partial, pieces, size, length, dy_step, y_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        a, b = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        rest, rest2, offsets = cuda.local.array(REST, Real), cuda.local.array(REST, Real), cuda.local.array(3, i64)
        lane = cuda.threadIdx.x
        number, piece = divide_remainder(cuda.blockIdx.x, pieces)
        places(number, divisors, strides, offsets)
        dy, y = advance(dy, offsets[0]), advance(y, offsets[1])
        head, units = span(dy, length)
        total = Real(0)
        if piece == 0:
            load_rest(rest, dy, head, units, length, lane)
            load_rest(rest2, y, head, units, length, lane)
            for k in range(SINGLES):
                total = Real(total + product(rest[k], rest2[k]))
        for first in range(piece * size, min(units, piece * size + size), THREADS * HELD):
            load(a, advance(dy, i64(first) * E * dy_step), head, units - first, lane, dy_step)
            load(b, advance(y, i64(first) * E * y_step), head, units - first, lane, y_step)
            for c in range(HELD):
                unpack(values, a, c)
                unpack(others, b, c)
                for e in range(E):
                    total = Real(total + product(values[e], others[e]))
        total = reduce(total, scratch, 0)
        if lane == 0:
            partial[cuda.blockIdx.x] = total
    return softmax_bwd_pieces


@functools.cache
def apply_kernel(config):
    """The results of a piece, from what all pieces of the row left."""
    held, compute = config.row, element(config.dtype).compute
    row, do = make_row(held), arithmetic(compute, config.log)
    span, load, load_rest, unpack, pack, store, store_rest = row[:7]
    finish, result, gradient, Real, NOTHING = do.finish, do.result, do.gradient, held.real, -math.inf
    E, WORDS, REST, SINGLES, HELD = held.elements, held.words, held.rest, held.singles, config.held
    places = make_row_places(config.dims, config.arrays)
    if config.arrays == 2:
        merge = make_block_reduce_pair(merge_softmax, THREADS)

        @jit(launch_bounds=(THREADS, 3))
        def softmax_fwd_apply(x, y, partial, pieces, size, length, x_step, y_step, divisors, strides):
            scratch = cuda.shared.array(SCRATCH, Real)
            words, values = cuda.local.array(WORDS, u32), cuda.local.array(E, Real)
            rest, offsets = cuda.local.array(REST, Real), cuda.local.array(2, i64)
            lane = cuda.threadIdx.x
            number, piece = divide_remainder(cuda.blockIdx.x, pieces)
            count = i32(pieces[0])
            m, total = Real(NOTHING), Real(0)
            if lane < count:
                at = 2 * (i64(number) * count + lane)
                m, total = partial[at], partial[at + 1]
            m, total = merge(m, total, Real(0), scratch, 0)
            z = finish(total)
            places(number, divisors, strides, offsets)
            x, y = advance(x, offsets[0]), advance(y, offsets[1])
            head, units = span(x, length)
            if piece == 0:
                load_rest(rest, x, head, units, length, lane)
                for k in range(SINGLES):
                    rest[k] = result(rest[k], m, z)
                store_rest(y, rest, head, units, length, lane)
            for first in range(piece * size, min(units, piece * size + size), THREADS * HELD):
                left = units - first
                load(words, advance(x, i64(first) * E * x_step), head, left, lane, x_step)
                for c in range(HELD):
                    unpack(values, words, c)
                    for e in range(E):
                        values[e] = result(values[e], m, z)
                    pack(words, c, values)
                    store(advance(y, i64(first) * E * y_step), words, c, head, left, lane, y_step)
        return softmax_fwd_apply

    reduce = make_block_reduce(add, THREADS)

    @jit(launch_bounds=(THREADS, 3))
    def softmax_bwd_apply(dy, y, dx, partial, pieces, size, length, dy_step, y_step, dx_step, divisors, strides):
        scratch = cuda.shared.array(SCRATCH, Real)
        a, b = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        rest, rest2, offsets = cuda.local.array(REST, Real), cuda.local.array(REST, Real), cuda.local.array(3, i64)
        lane = cuda.threadIdx.x
        number, piece = divide_remainder(cuda.blockIdx.x, pieces)
        count = i32(pieces[0])
        total = Real(0)
        if lane < count:
            total = partial[i64(number) * count + lane]
        total = reduce(total, scratch, 0)
        places(number, divisors, strides, offsets)
        dy, y, dx = advance(dy, offsets[0]), advance(y, offsets[1]), advance(dx, offsets[2])
        head, units = span(dy, length)
        if piece == 0:
            load_rest(rest, dy, head, units, length, lane)
            load_rest(rest2, y, head, units, length, lane)
            for k in range(SINGLES):
                rest[k] = gradient(rest[k], rest2[k], total)
            store_rest(dx, rest, head, units, length, lane)
        for first in range(piece * size, min(units, piece * size + size), THREADS * HELD):
            left = units - first
            load(a, advance(dy, i64(first) * E * dy_step), head, left, lane, dy_step)
            load(b, advance(y, i64(first) * E * y_step), head, left, lane, y_step)
            for c in range(HELD):
                unpack(values, a, c)
                unpack(others, b, c)
                for e in range(E):
                    values[e] = gradient(values[e], others[e], total)
                pack(a, c, values)
                store(advance(dx, i64(first) * E * dx_step), a, c, head, left, lane, dx_step)
    return softmax_bwd_apply


def build(problem, device, config):
    """Two launches."""
    config, form, p = _config(problem), problem.form, problem
    pieces, size = _pieces(problem, device)
    pointer, (divisors, strides) = element(p.dtype).pointer, row_arguments(form)
    inputs = [Argument(pointer, name) for name in (("x",) if config.arrays == 2 else ("dy", "y"))]
    output, partial = Argument(pointer, "y" if config.arrays == 2 else "dx"), Argument(f"{p.compute}*", "workspace")
    middle = partial, Argument("uint32x3", divisor(pieces)), Argument("int32", size), Argument("int32", form.length)
    steps = [Argument("int64", s) for s in form.steps]
    last = Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides)
    grid, block = (form.rows * pieces, 1, 1), (THREADS, 1, 1)
    return (Launch(sum_kernel(config), grid, block, (*inputs, *middle, *steps[:-1], *last)),
            Launch(apply_kernel(config), grid, block, (*inputs, output, *middle, *steps, *last)))


ALGORITHMS = tuple(Algorithm(op=op, name="split", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("softmax_fwd", "softmax_bwd"))
