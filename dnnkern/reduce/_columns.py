"""Reductions across contiguous elements: the columns of a matrix, each reduced; neighbouring threads have neighbouring columns.

A thread has up to 16 bytes of neighbouring columns, a state for each, and four loads in flight, one per row. The threads of a block that
share columns take every so many-th row; their states are merged by shuffles within a warp, else through shared memory, from where results
are stored in order. Kept dimensions outside the columns are further blocks.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit
from ..device.convert import SCALARS
from ..device.groups import make_flight
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..engine.ahead import make_follow
from ..engine.fold import IGNORES_ZEROS, NOWHERE, make_fold, make_meeting
from ..engine.offsets import make_offsets, offset_arguments
from ..host.canonical import Dim
from ..host.launch import Argument, Launch
from ._rows import FLIGHT, FLIGHT_OF_ELEMENTS, per_load
from ._stages import LIMIT, THREADS, factor_argument, kept_arguments, make_store, target_arguments, x_argument


@dataclass(frozen=True)
class Columns:
    """How columns are read.

    Attributes
    ----------
    words : int
        32-bit words of a load; 0 for single elements.
    across : int
        Threads of a block side by side; the others divide the rows.
    splits : int
        Parts of the rows that go to different blocks.
    """
    words: int
    across: int
    splits: int = 1

    def __str__(self):
        load = f"{4 * self.words} bytes" if self.words else "single elements"
        return f"{self.across} threads across, {load}" + f", {self.splits} splits" * (self.splits > 1)


def words_of(problem):
    """Words of a load: as many as columns, rows and the array are aligned to."""
    form, size = problem.form, problem.x.itemsize
    steps = [d.x for d in (*form.kept[:-1], *form.reduced)] + [form.kept[-1].size]
    fits = (w for w in (4, 2, 1) if 4 * w > size and problem.x_alignment >= 4 * w and not any(s * size % (4 * w) for s in steps))
    return next(fits, 0)


def columns_refusal(problem):
    """Why columns cannot be read so; None if they can."""
    form = problem.form
    if not form.length:
        return "there are no elements to reduce"
    if form.kept[-1].x != 1:
        return f"the innermost dimension that is kept has stride {form.kept[-1].x} in x; expected 1"
    if max(form.outputs, form.length) >= LIMIT:
        return f"{form.outputs} results of {form.length} elements each; expected fewer than 2**31 - 2**20 of either"
    return None


@functools.cache
def columns_kernel(fold, dtype, out, compute, words, across, kept, reduced, wide, partial, dependent):
    """The states of columns, stored as results or, `partial`, in the workspace"""
    f, T = make_fold(fold, compute), SCALARS[compute]
    begin, push, put, get = f.begin, f.push, f.put, f.get
    COUNT = FLIGHT if words else FLIGHT_OF_ELEMENTS
    flight = make_flight(dtype, words, COUNT, compute)
    BUFFER, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values
    STATES, POSITIONS = VECTOR * f.parts, VECTOR if f.indexed else 1
    WIDTH, HEIGHT, SHIFT = across * VECTOR, THREADS // across, across.bit_length() - 1
    gather, column, SIZE = make_meeting(fold, compute, across, THREADS, VECTOR)
    SHARED, SHARED_PLACES = SIZE * f.parts, SIZE if f.indexed else 1
    offsets, walk, ONE = make_offsets(kept - 1, True), make_offsets(reduced, wide), reduced == 1
    ALWAYS = fold in IGNORES_ZEROS
    store, wait = make_store(fold, out, compute, kept, partial), make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def reduce_columns(x, numbers, positions, outputs, columns, rows, per, blocks, splits, walk_divisors, walk_strides, divisors, x_strides,
                       kept_divisors, y_strides, factor):
        wait()
        all_numbers, all_positions = cuda.shared.array(SHARED, T), cuda.shared.array(SHARED_PLACES, i32)
        buffer, some = cuda.local.array(LENGTH, BUFFER), cuda.local.array(VECTOR, T)
        own_numbers, own_positions = cuda.local.array(STATES, T), cuda.local.array(POSITIONS, i32)
        t = cuda.threadIdx.x
        rest, block = divide_remainder(cuda.blockIdx.x, blocks)
        batch, split = divide_remainder(rest, splits)
        x_at, _ = offsets(batch, divisors, x_strides)
        left = block * WIDTH
        mine = left + (t & (across - 1)) * VECTOR
        start = advance(x, x_at + mine)
        first = split * per + (t >> SHIFT)
        last = split * per + per
        if last > rows:
            last = rows
        if mine >= columns:
            last = 0
        for v in range(VECTOR):
            put(own_numbers, own_positions, v, VECTOR, begin(first if first < last else NOWHERE))
        for n in range(first, last, COUNT * HEIGHT):
            for u in range(COUNT):
                k = n + u * HEIGHT
                ok = k < last
                if ONE:
                    at = k * walk_strides[0]
                else:
                    at = i64(walk(k if ok else n, walk_divisors, walk_strides)[0])
                fetch(buffer, u, start, at, ok)
            for u in range(COUNT):
                if ALWAYS or n + u * HEIGHT < last:
                    values(some, buffer, u)
                    for v in range(VECTOR):
                        state = push(get(own_numbers, own_positions, v, VECTOR), some[v], n + u * HEIGHT)
                        put(own_numbers, own_positions, v, VECTOR, state)
        gather(all_numbers, all_positions, own_numbers, own_positions)
        cuda.syncthreads()
        for c in range(t, WIDTH, THREADS):
            if left + c < columns:
                store(numbers, positions, batch * columns + left + c, split, outputs, i32(splits[0]), kept_divisors, y_strides, factor,
                      column(all_numbers, all_positions, c))
    return reduce_columns


def columns_launch(problem, how, dependent):
    """The launch that reads x."""
    form, words = problem.form, how.words
    columns, walk = form.kept[-1].size, [Dim(d.size, d.x, 0) for d in form.reduced]
    wide = len(walk) == 1 or form.is_wide
    kernel = columns_kernel(problem.fold, problem.x.dtype, problem.outputs[0].dtype, problem.compute, words, how.across, len(form.kept),
                            len(walk), wide, how.splits > 1, dependent)
    blocks = ceil_div(columns, how.across * per_load(problem, words))
    kept_divisors, _, y_strides = kept_arguments(form)
    arguments = (x_argument(problem), *target_arguments(problem, how.splits), Argument("int32", form.outputs), Argument("int32", columns),
                 Argument("int32", form.length), Argument("int32", ceil_div(form.length, how.splits)),
                 Argument("uint32x3", divisor(blocks)), Argument("uint32x3", divisor(how.splits)), *offset_arguments(walk, wide),
                 *offset_arguments([Dim(d.size, d.x, 0) for d in form.kept[:-1]], True), kept_divisors, y_strides,
                 factor_argument(problem))
    return Launch(kernel, (form.outputs // columns * blocks * how.splits, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
