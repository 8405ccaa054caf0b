"""Reductions along contiguous elements: a part of a warp, a warp or a block reduces a row, or a split of one.

    16-byte loads, four in flight per thread -> a state per element of a load -> merged in the thread -> shuffles -> shared memory (a block)

Unaligned elements at the beginning and the end of a row are loaded one by one. Rows of several dimensions are walked as one, with a
division by an invariant per load; their loads are as wide as all their pieces are aligned. Strides other than 1 are walked by elements.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit
from ..device.convert import SCALARS, element
from ..device.groups import make_flight
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import address, advance
from ..engine.ahead import make_follow
from ..engine.fold import IGNORES_ZEROS, NOWHERE, make_absorb, make_fold
from ..engine.offsets import make_offsets, offset_arguments
from ..host.canonical import Dim
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._stages import LIMIT, THREADS, factor_argument, kept_arguments, make_store, target_arguments, x_argument

FLIGHT, FLIGHT_OF_ELEMENTS = 4, 8
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Rows:
    """How rows are read.

    Attributes
    ----------
    words : int
        32-bit words of a load; 0 for single elements.
    ragged : bool
        Rows begin or end off multiples of a load.
    width : int
        Threads of a row.
    splits : int
        Parts of a row that go to different blocks.
    """
    words: int
    ragged: bool
    width: int
    splits: int = 1

    @property
    def threads(self):
        """Threads of a block."""
        return max(self.width, THREADS) if self.width <= 32 else self.width

    def __str__(self):
        load = f"{4 * self.words} bytes" if self.words else "single elements"
        return f"{self.width} threads, {load}" + f", {self.splits} splits" * (self.splits > 1)


def loads_of(problem):
    """(words of a load, whether rows are ragged)."""
    form, size = problem.form, problem.x.itemsize
    last = form.reduced[-1]
    if last.x != 1:
        return 0, False
    steps = [d.x for d in (*form.kept, *form.reduced[:-1])] + [last.size]
    for words in (4, 2, 1):
        if 4 * words > size and problem.x_alignment >= 4 * words and not any(s * size % (4 * words) for s in steps):
            if words < 4 and len(form.reduced) == 1 and last.size * size >= 32:
                break
            return words, False
    if len(form.reduced) == 1 and last.size * size >= 32:
        return 4, True
    return 0, False


def per_load(problem, words):
    """Elements of a load."""
    return max(1, 4 * words // problem.x.itemsize)


def rows_refusal(problem):
    """Why rows cannot be read so; None if they can."""
    form, units = problem.form, problem.form.length // per_load(problem, loads_of(problem)[0])
    if not form.length:
        return "there are no elements to reduce"
    if max(form.outputs, units) >= LIMIT:
        return f"{form.outputs} results of {units} loads each; expected fewer than 2**31 - 2**20 of either"
    return None


@functools.cache
def rows_kernel(fold, dtype, out, compute, words, ragged, width, threads, kept, reduced, wide, contiguous, partial, dependent):
    """The states of rows, stored as results or, `partial`, in the workspace"""
    f, T = make_fold(fold, compute), SCALARS[compute]
    begin, lift, merge, settle, put, get, swap = f.begin, f.lift, f.merge, f.settle, f.put, f.get, f.swap
    COUNT = FLIGHT if words else FLIGHT_OF_ELEMENTS
    flight = make_flight(dtype, words, COUNT, compute)
    BUFFER, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values
    STATES, absorb = make_absorb(fold, compute, VECTOR)
    NUMBERS, POSITIONS = STATES * f.parts, STATES if f.indexed else 1
    ROWS, SHIFT, WARPS = threads // width, width.bit_length() - 1, threads // 32
    SHARED, SHARED_POSITIONS = WARPS * f.parts, WARPS if f.indexed else 1
    IN_WARP, ACROSS, BETWEEN = min(SHIFT, 5), max(0, SHIFT - 5), width > 32
    ALWAYS = fold in IGNORES_ZEROS
    SIZE_SHIFT, VECTOR_SHIFT = ITEMSIZE[dtype].bit_length() - 1, VECTOR.bit_length() - 1
    HALF = min(width, 32) // 2
    load, offsets = element(dtype, compute).load, make_offsets(kept, True)
    walk, ONE = make_offsets(reduced, wide), reduced == 1
    store, wait = make_store(fold, out, compute, kept, partial), make_follow(dependent)

    @jit(launch_bounds=threads)
    def reduce_rows(x, numbers, positions, outputs, length, units, per, splits, walk_divisors, walk_strides, divisors, x_strides, y_strides,
                    factor):
        wait()
        buffer, some = cuda.local.array(LENGTH, BUFFER), cuda.local.array(VECTOR, T)
        own_numbers, own_positions = cuda.local.array(NUMBERS, T), cuda.local.array(POSITIONS, i32)
        t = cuda.threadIdx.x
        group, split = divide_remainder(cuda.blockIdx.x, splits)
        lane, row = t & (width - 1), group * ROWS + (t >> SHIFT)
        mine = row < outputs
        x_at, _ = offsets(row if mine else 0, divisors, x_strides)
        row_start, head = advance(x, x_at), i32(0)
        if ragged:
            low = i32(i64(address(row_start, 0)) & 15)
            head = ((16 - low) & 15) >> SIZE_SHIFT
            units = i32((length - head) >> VECTOR_SHIFT)
        start = advance(row_start, head)
        # walk
        first = split * per + lane
        last = split * per + per
        if last > units:
            last = units
        for v in range(STATES):
            put(own_numbers, own_positions, v, STATES, begin(first if first < last else NOWHERE))
        for n in range(first, last, COUNT * width):
            for u in range(COUNT):
                k = n + u * width
                ok = k < last
                if ONE:
                    at = i64(k) * VECTOR if contiguous else k * walk_strides[0]
                else:
                    at = i64(walk(k if ok else n, walk_divisors, walk_strides)[0])
                fetch(buffer, u, start, at, ok)
            for u in range(COUNT):
                if ALWAYS or n + u * width < last:
                    values(some, buffer, u)
                    absorb(own_numbers, own_positions, some, n + u * width)
        # states of the thread, elements at the ends, states of the row
        state = settle(get(own_numbers, own_positions, 0, STATES), VECTOR, head)
        for v in range(1, STATES):
            state = merge(state, settle(get(own_numbers, own_positions, v, STATES), VECTOR, head + v))
        if ragged:
            if split == 0:
                for e in range(lane, head, width):
                    state = merge(state, lift(load(row_start, e), e))
            if split + 1 == i32(splits[0]):
                for e in range(head + (i64(units) << VECTOR_SHIFT) + lane, length, i64(width)):
                    state = merge(state, lift(load(row_start, e), i32(e)))
        for s in range(IN_WARP):
            state = merge(state, swap(state, HALF >> s))
        if BETWEEN:
            shared, shared_positions = cuda.shared.array(SHARED, T), cuda.shared.array(SHARED_POSITIONS, i32)
            if t & 31 == 0:
                put(shared, shared_positions, t >> 5, WARPS, state)
            cuda.syncthreads()
            state = get(shared, shared_positions, t & (WARPS - 1), WARPS)
            for s in range(ACROSS):
                state = merge(state, swap(state, WARPS >> s + 1))
        if lane == 0 and mine:
            store(numbers, positions, row, split, outputs, i32(splits[0]), divisors, y_strides, factor, state)
    return reduce_rows


def rows_launch(problem, how, dependent):
    """The launch that reads x."""
    form = problem.form
    vector, last = per_load(problem, how.words), form.reduced[-1]
    units = form.length // vector
    walk = [Dim(d.size, d.x, 0) for d in form.reduced[:-1]] + [Dim(last.size // vector, last.x * vector, 0)]
    wide = len(walk) == 1 or form.is_wide
    steps = offset_arguments([Dim(1, walk[0].x, 0)] if len(walk) == 1 else walk, wide)
    kernel = rows_kernel(problem.fold, problem.x.dtype, problem.outputs[0].dtype, problem.compute, how.words, how.ragged, how.width,
                         how.threads, len(form.kept), len(walk), wide, last.x == 1, how.splits > 1, dependent)
    groups = ceil_div(form.outputs, how.threads // how.width)
    arguments = (x_argument(problem), *target_arguments(problem, how.splits), Argument("int32", form.outputs),
                 Argument("int64", form.length), Argument("int32", units), Argument("int32", max(1, ceil_div(units, how.splits))),
                 Argument("uint32x3", divisor(how.splits)), *steps, *kept_arguments(form), factor_argument(problem))
    return Launch(kernel, (groups * how.splits, 1, 1), (how.threads, 1, 1), arguments, dependent=dependent)
