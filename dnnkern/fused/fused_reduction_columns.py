"""Columns: what is reduced lies apart, and its neighbours are other sums, as channels that are innermost, or a bias's gradient.

A thread has up to 16 bytes of neighbouring columns of a few rows, loaded together, and in registers a state for each column and reduction;
blocks have strips of the rows. A launch for each level stores what full results the level's reductions need not be known for, and the
states of its strips, which a second, small launch merges in a fixed order and finishes. Results that read the last reductions have a launch
of their own, which loads what it needs once more.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, jit, u32
from ..device.convert import SCALARS
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.pointwise import TYPES
from ..device.unroll import unrolled
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, flight_rate, issue_seconds, memory_seconds, narrow_rate, occupied, overlap
from ..engine.fold import make_meeting
from ..engine.form import WIDE, Dim
from ..engine.lanes import rows_refusal
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._arrays import coordinate_argument, make_coordinates, number_arguments, pointer_positions, stride_argument, struct_argument
from ._estimate import instructions
from ._levels import factor_argument, make_end, make_known, row_arguments, states_of, types_of
from ._moves import NUMBERS, Plan, all_loads, all_stores, all_takes, make_base, make_keep, make_values
from ._walks import THREADS, form_of, walks_of

COST = constants("fused/reduction_columns")

PER_MULTIPROCESSOR = (2, 8)  # blocks that are wanted
MOST_SPLITS = 1024
FINISHING = 128            # threads of a block that finishes columns, at least
STRETCH = 256              # rows that one thread adds up, at most


@dataclass(frozen=True)
class Config:
    """The walks, and into how many strips each divides the rows."""
    walks: tuple
    splits: tuple

    def __str__(self):
        first = self.walks[0]
        return (f"{first.lanes} x {first.chunks.elements} elements a load, {first.across} threads across, "
                f"{'/'.join(map(str, self.splits))} splits")


def supports(problem):
    """Columns that are contiguous in the results, and contiguous or one value in the inputs."""
    forms = problem.forms
    if problem.is_empty:
        return None
    if not forms.form.size:
        return "there are no elements to reduce"
    columns = forms.form.dims[forms.outer - 1].size
    if columns < 2:
        return "one column; expected neighbours that are reduced each"
    for step in problem.program.passes:
        form = form_of(forms, step)
        if reason := rows_refusal(form):
            return reason
        if all(s != 1 for s, a in zip(form.dims[-1].strides, form.arrays) if a.name):
            return "no array is contiguous along what is kept"
    if max(forms.length, forms.count * MOST_SPLITS) >= WIDE - 2 ** 24:
        return f"{forms.count} columns of {forms.length} elements; expected fewer than 2**21 of fewer than 2**31 - 2**24 each"
    return None


def workspace(problem, device, config):
    """The states of all strips of a level; the results of all reductions."""
    numbers = max(states.size * n for states, n in zip(states_of(problem.program), config.splits)) + len(problem.program.reductions)
    return numbers * ITEMSIZE[problem.program.compute] * problem.forms.count


def _column_blocks(walk, forms):
    """Blocks side by side, of all columns."""
    columns = forms.form.dims[forms.outer - 1].size
    return ceil_div(columns, walk.across * walk.chunks.elements), forms.count // columns


def configs(problem, device):
    """As many strips as fill the device, of `STRETCH` rows a thread at most."""
    forms, walks, found = problem.forms, walks_of(problem), {}

    def splits(walk, per):
        wanted = max(ceil_div(per * device.sms, math.prod(_column_blocks(walk, forms))), ceil_div(forms.length, STRETCH * walk.height))
        return max(1, min(wanted, ceil_div(forms.length, walk.height * walk.lanes), MOST_SPLITS))
    for per in PER_MULTIPROCESSOR:
        found[Config(walks, tuple(splits(walk, per) for walk in walks))] = None
    return list(found)


def estimate(problem, device, config):
    """Of each walk its arrays' bytes or its instructions, the states of strips written and read; the launches."""
    forms, total = problem.forms, (len(config.walks) + len(problem.program.stages.levels)) * (LAUNCH + Cost(launch=COST.alone))
    for walk, splits in zip(config.walks, config.splits):
        form = form_of(forms, walk.step)
        moved = sum(a.tensor.nbytes / narrow_rate(max(unit, 1), a.itemsize) for a, unit in zip(form.arrays, walk.chunks.units) if a.name)
        states = 2 * splits * forms.count * walk.states.size // walk.chunks.elements * ITEMSIZE[walk.staged.compute]
        rate = flight_rate(THREADS * walk.blocks * 4 * walk.words, COST.in_flight)
        rate *= occupied(math.prod(_column_blocks(walk, forms)) * splits * THREADS, 512, device)
        each = instructions(walk.step.program) + 2 * walk.step.reduced + COST.access / walk.chunks.elements * walk.arrays
        total = total + overlap(memory=memory_seconds(moved + states, device) / rate, issue=issue_seconds(form.size, each, device))
    return total


# ---- the kernels

@functools.cache
def make_chunk_coordinates(kept, rows):
    """Device function ``coordinates(batch, sizes, row, row_sizes, chunk)``: the coordinates of a chunk of columns."""
    outer, walk = make_coordinates(max(kept - 1, 1)), make_coordinates(rows)
    if kept > 1:
        @device_function
        def coordinates(batch, sizes, row, row_sizes, chunk):
            return outer(batch, sizes) + walk(row, row_sizes) + (chunk,)
    else:
        @device_function
        def coordinates(batch, sizes, row, row_sizes, chunk):
            return walk(row, row_sizes) + (chunk,)
    return coordinates


def _values_of_columns(config):
    """(for `make_values`: load number K; how many numbers of each type a thread has of its columns; ``put(kept, values, n)`` keeps them)"""
    types, length, counts, starts = tuple(TYPES), config.chunks.elements, dict.fromkeys(TYPES, 0), []
    for kind in types_of(config.staged, config.level):
        starts.append((types.index(kind), counts[kind]))
        counts[kind] += length
    put = device_function(_keeps_nothing)
    for k, (v, start) in enumerate(starts):
        put = _with_value(put, k, v, start)

    def number(K):
        V, START = starts[K]

        @device_function
        def value(values, e, n):
            return e[NUMBERS][V][START + n]
        return value
    return number, counts, put


def _keeps_nothing(kept, values, n):
    return


def _with_value(before, K, V, START):
    @device_function
    def put(kept, values, n):
        before(kept, values, n)
        kept[V][START + n] = values[K]
    return put


def make_lanes(config, plan, bases, number):
    """Device function ``lanes(words, numbers, e, shift, first, last)``: all elements that a thread has loaded, pushed to the states, or
    stored."""
    step, LENGTH = config.step, config.chunks.elements
    take, put = all_takes(config, plan), all_stores(config, plan, bases, config.partly)
    values_of, push, keep = make_values(step.program, plan, number), config.states.push, make_keep(plan, step.reduced)
    REDUCES, STORES = step.reduced > 0, keep is not None
    keep = keep or device_function(_keeps_nothing)
    A, B, C = (max(plan.values[t], 1) for t in TYPES)
    P, Q, R = (max(plan.stored[t], 1) for t in TYPES)
    T, U, V = TYPES.values()

    @device_function
    def one(n, s):
        values, stored, numbers, e = s
        made = values_of(values, e, n)
        if REDUCES:
            push(numbers, made, n)
        if STORES:
            keep(stored, made, n)
    elements = unrolled(LENGTH, one)

    @device_function
    def lane(k, s):
        words, numbers, e, shift, first, last = s
        if last[k] > 0:
            values = cuda.local.array(A, T), cuda.local.array(B, U), cuda.local.array(C, V)
            stored = cuda.local.array(P, T), cuda.local.array(Q, U), cuda.local.array(R, V)
            take(values, words, e, k, shift)
            elements(0, (values, stored, numbers, e))
            if STORES:
                put(stored, e, k, shift, first, last, LENGTH <= last[k])
    run = unrolled(config.lanes, lane)

    @device_function
    def lanes(words, numbers, e, shift, first, last):
        run(0, (words, numbers, e, shift, first, last))
    return lanes


def make_save(config):
    """(device function ``save(shared, states, partial, first, left, splits, plane)``, numbers of shared memory): the states of a block's
    threads merged, `left` columns of them to memory, that of the first one at number `first` of each plane."""
    states, compute, LENGTH, size = config.states, config.staged.compute, config.chunks.elements, 1
    save = device_function(_saves_nothing)
    for mode, f, start in zip(states.modes, states.folds, states.starts):
        gather, column, count = make_meeting(mode, compute, config.across, THREADS, LENGTH)
        save, size = _with_saved(save, f, start, gather, column, config.across * LENGTH, LENGTH, states.type), max(size, count * f.parts)
    return save, size


def _saves_nothing(shared, states, partial, first, left, splits, plane):
    return


def _with_saved(before, f, START, gather, column, WIDTH, LENGTH, T):
    OWN, FIRST, put = f.parts * LENGTH, START // LENGTH, f.put

    @device_function
    def save(shared, states, partial, first, left, splits, plane):
        before(shared, states, partial, first, left, splits, plane)
        own = cuda.local.array(OWN, T)
        for n in range(OWN):
            own[n] = states[START + n]
        cuda.syncthreads()
        gather(shared, shared, own, own)
        cuda.syncthreads()
        for c in range(cuda.threadIdx.x, min(WIDTH, left), THREADS):
            put(partial, partial, FIRST * plane + first + c * splits, plane, column(shared, shared, c))
    return save


@functools.cache
def kernel(config):
    """A walk: the states of strips to the workspace, and results of elements."""
    step, LENGTH, ACROSS, LANE_COUNT, HEIGHT = config.step, config.chunks.elements, config.across, config.lanes, config.height
    plan, (number, counts, put_values) = Plan(config, some=True), _values_of_columns(config)
    positions = pointer_positions(config.program)
    bases = [make_base(config, k, positions[k]) for k in range(config.arrays)]
    load_whole, load_part = (all_loads(config, plan, bases, whole) for whole in (True, False))
    lanes, (save, SHARED) = make_lanes(config, plan, bases, number), make_save(config)
    chunk_coordinates = make_chunk_coordinates(config.kept, config.rows)
    known, coordinates = make_known(config.staged, config.kept, config.level), make_coordinates(config.kept)
    states, WORDS, STATES = config.states, max(plan.words, 1), max(config.states.size, 1)
    begin, T, REDUCES, PARTLY = states.begin, SCALARS[config.staged.compute], step.reduced > 0, config.partly
    A, B, C = (max(counts[t], 1) for t in TYPES)
    REAL, DOUBLE, INTEGER = TYPES.values()
    SHIFT, WIDTH, SPAN = ACROSS.bit_length() - 1, ACROSS * LENGTH, LANE_COUNT * HEIGHT

    @jit(launch_bounds=(THREADS, config.blocks))
    def fused_reduction_columns(pointers, row_pointers, partial, found, rows, columns, count, per, blocks, splits, firsts, row_firsts,
                                sizes, batch_sizes, row_sizes, steps, strides, row_strides, numbers):
        shared, words, state = cuda.shared.array(SHARED, T), cuda.local.array(WORDS, u32), cuda.local.array(STATES, T)
        shift, first, last = cuda.local.array(LANE_COUNT, i32), cuda.local.array(LANE_COUNT, i32), cuda.local.array(LANE_COUNT, i32)
        kept = cuda.local.array(A, REAL), cuda.local.array(B, DOUBLE), cuda.local.array(C, INTEGER)

        # this thread's columns
        t = cuda.threadIdx.x
        rest, block = divide_remainder(cuda.blockIdx.x, blocks)
        batch, split = divide_remainder(rest, splits)
        chunk = block * ACROSS + (t & (ACROSS - 1))
        left = columns - chunk * LENGTH
        for n in range(LENGTH):
            column = batch * columns + min(chunk * LENGTH + n, columns - 1)
            at = coordinates(column, sizes)
            put_values(kept, known(row_pointers, row_firsts, row_strides, numbers, at, found, column, count), n)
        begin(state)

        # its rows of the strip
        end = min(split * per + per, rows)
        if left > 0:
            for row in range(split * per + (t >> SHIFT), end, SPAN):
                e = pointers, chunk_coordinates(batch, batch_sizes, i32(row), row_sizes, chunk), strides, firsts, steps, kept
                for k in range(LANE_COUNT):
                    shift[k], first[k] = 0, 0
                    last[k] = left if row + k * HEIGHT < end else 0
                if PARTLY and left < LENGTH:
                    load_part(words, e, shift, first, last)
                else:
                    load_whole(words, e, shift, first, last)
                lanes(words, state, e, shift, first, last)
        if REDUCES:
            start = block * WIDTH
            save(shared, state, partial, (batch * columns + start) * i32(splits[0]) + split, columns - start, i32(splits[0]),
                 count * i32(splits[0]))
    return fused_reduction_columns


@functools.cache
def finishing_kernel(staged, level, threads, kept):
    """The states of a column's strips merged, T threads per column; the results of reductions to the workspace, or after the last level the
    results of columns."""
    states, BLOCK = states_of(staged)[level], max(threads, FINISHING)
    SIZE, T, begin, absorb, meet, finish = states.size, states.type, states.begin, states.absorb(0), states.meet(threads), states.finish
    LAST, COLUMNS, LOG = level + 1 == len(staged.stages.levels), BLOCK // threads, threads.bit_length() - 1
    SCRATCH, first = max(SIZE * (threads // 32), 1), sum(len(stage.modes) for stage in staged.stages.levels[:level])
    known, coordinates, end = make_known(staged, kept, level + 1), make_coordinates(kept), make_end(staged, kept)
    put = device_function(_puts_nothing)
    for j in range(len(states.modes)):
        put = _with_put(put, j, first + j)

    @jit(launch_bounds=BLOCK)
    def fused_reduction_columns_end(row_pointers, partial, found, count, splits, row_firsts, sizes, row_strides, numbers, factor):
        scratch, state = cuda.shared.array(SCRATCH, T), cuda.local.array(SIZE, T)
        t = cuda.threadIdx.x
        column, lane = cuda.blockIdx.x * COLUMNS + (t >> LOG), t & (threads - 1)
        mine = column < count
        begin(state)
        if mine:
            for s in range(lane, splits, threads):
                absorb(partial, column * splits + s, count * splits, state)
        meet(state, scratch)
        if mine and lane == 0:
            put(found, finish(state, factor), column, count)
            if LAST:
                at = coordinates(column, sizes)
                end(known(row_pointers, row_firsts, row_strides, numbers, at, found, column, count), row_pointers, row_firsts, row_strides,
                    at)
    return fused_reduction_columns_end


def _puts_nothing(found, values, row, rows):
    return


def _with_put(before, J, PLANE):
    @device_function
    def put(found, values, row, rows):
        before(found, values, row, rows)
        found[PLANE * rows + row] = values[J]
    return put


def build(problem, device, config):
    """For each level its walk, and what finishes it; at last the walk of the results that read the last level's."""
    forms, program, found = problem.forms, problem.program, []
    compute, columns = program.compute, forms.form.dims[forms.outer - 1].size
    row_pointers, row_firsts, row_strides = row_arguments(forms)
    sizes = [d.size for d in forms.form.dims[:forms.outer]]
    walked = [d.size for d in forms.form.dims[forms.outer:]]
    reduced = len(program.reductions) * forms.count * ITEMSIZE[compute]
    results, partial = Argument(compute + "*", "workspace"), Argument(compute + "*", "workspace", reduced)
    count = Argument("int32", forms.count)
    for walk, splits in zip(config.walks, config.splits):
        form = form_of(forms, walk.step)
        pointers = [Argument(word_of(a.itemsize)[1] + "*", a.name) for a in form.arrays if a.name]
        blocks, batches = _column_blocks(walk, forms)
        span, length = walk.height * walk.lanes, walk.chunks.elements
        steps = tuple(s * walk.height if walk.lanes > 1 else 0 for s in form.dims[-2].strides)
        dims = (*form.dims[:-1], Dim(0, tuple(s * length for s in form.dims[-1].strides)))
        arguments = (struct_argument([a.type for a in pointers], pointers), row_pointers, partial, results, Argument("int32", forms.length),
                     Argument("int32", columns), count, Argument("int32", ceil_div(ceil_div(forms.length, splits), span) * span),
                     Argument("uint32x3", divisor(blocks)), Argument("uint32x3", divisor(splits)),
                     Argument(f"int64x{len(form.arrays)}", tuple(a.first for a in form.arrays)), row_firsts, coordinate_argument(sizes),
                     coordinate_argument(sizes[:-1] or [1]), coordinate_argument(walked), Argument(f"int64x{len(steps)}", steps),
                     stride_argument(dims, walk.wide), row_strides, number_arguments(problem))
        found.append(Launch(kernel(walk), (batches * blocks * splits, 1, 1), (THREADS, 1, 1), arguments))
        if walk.step.reduced:
            threads = min(THREADS, 1 << (splits - 1).bit_length())
            finish = finishing_kernel(program, walk.level, threads, forms.outer)
            arguments = (row_pointers, partial, results, count, Argument("int32", splits), row_firsts, coordinate_argument(sizes),
                         row_strides, number_arguments(problem), factor_argument(problem))
            block = max(threads, FINISHING)
            found.append(Launch(finish, (ceil_div(forms.count, block // threads), 1, 1), (block, 1, 1), arguments))
    return tuple(found)


ALGORITHM = Algorithm(op="fused_reduction", name="columns", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, programs=True, reductions=True)
