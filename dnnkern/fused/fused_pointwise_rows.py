"""Chunks of rows: a chunk of neighbours of a few rows a thread, loaded and stored by 16 bytes.

The innermost dimension, which is contiguous in the results, is cut into chunks. A thread takes the same chunk of one, two or four rows
that follow each other and loads all of it before it computes: an offset costs one multiplication per dimension and array, an input that is
the same for these rows is loaded once, and one that has a single value a row is one load. Where all arrays are one run of memory, it is cut
into as many rows as a thread takes. All values of an element are registers, however long the program is.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, jit, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.pointwise import TYPES
from ..device.program import Program
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ..engine.form import WIDE, Dim, Form
from ..engine.lanes import Chunks, make_chunks, make_lead, rows_refusal
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._arrays import coordinate_argument, make_coordinates, number_arguments, pointer_positions, stride_argument, struct_argument
from ._estimate import instructions
from ._moves import Plan, all_loads, all_stores, all_takes, dtypes_of, make_base, make_each

COST = constants("fused/rows")

THREADS = 256
MOST_HELD = 100  # of `_held`, with several rows a thread: more is spilled


@dataclass(frozen=True)
class Config:
    """The program, the chunks of a thread, the form's dimensions, 64-bit offsets, and whether an output is an input."""
    program: Program
    chunks: Chunks
    lanes: int
    dims: int
    wide: bool
    plain: bool
    indices: tuple  # of each array, its stride along the row if it is an index, else None

    def __str__(self):
        return f"{self.lanes} row{'s' * (self.lanes > 1)}"

    @property
    def arrays(self):
        return len(self.chunks.units)


def supports(problem):
    """Rows that are contiguous in the results, and contiguous or one value in the inputs."""
    form = problem.form
    if reason := rows_refusal(form):
        return reason
    threads = _threads(_rows(form, 1), _chunks(problem, 1))
    if max(threads, form.dims[-1].size) >= WIDE - 2 ** 20:
        return f"{threads} chunks of rows of {form.dims[-1].size} elements; expected fewer than 2**31 - 2**20 of either"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _rows(form, lanes) -> Form:
    """The form, with one run of memory cut into rows for the lanes."""
    if len(form.dims) > 1:
        return form
    (run,) = form.dims
    part = run.size // lanes
    return Form((Dim(lanes, tuple(s * part for s in run.strides)), Dim(part, run.strides)), form.arrays, form.inputs)


def _chunks(problem, lanes):
    form = _rows(problem.form, lanes)
    return make_chunks(form, problem.in_place, form.dims[-2].strides)


def configs(problem, device):
    """One, two and four rows a thread, as far as there are that many, and registers; a run of memory is cut where its parts are whole
    chunks."""
    form, found = problem.form, []
    for lanes in (1, 2, 4):
        chunks = _chunks(problem, lanes) if lanes == 1 or len(form.dims) > 1 or not form.size % (lanes * 16) else None
        if lanes > 1 and chunks is not None and _held(problem.program, chunks, lanes) > MOST_HELD:
            continue
        if chunks is not None and (len(form.dims) == 1 or lanes == 1 or form.dims[-2].size >= lanes):
            rows = _rows(form, lanes)
            indices = tuple(None if a.name else s for a, s in zip(form.arrays, form.dims[-1].strides))
            found.append(Config(problem.program, chunks, lanes, len(rows.dims), form.is_wide, bool(problem.in_place), indices))
    return found


def _counted(form, chunks, lanes):
    """The dimensions of the grid's threads: groups of rows instead of rows, chunks instead of elements."""
    *outer, row, last = form.dims
    count = ceil_div(last.size + max(chunks.align - 1, 0), chunks.elements)
    return (*outer, Dim(ceil_div(row.size, lanes), tuple(s * lanes for s in row.strides)),
            Dim(count, tuple(s * chunks.elements for s in last.strides)))


def _threads(form, chunks, lanes=1):
    return math.prod(d.size for d in _counted(form, chunks, lanes))


def estimate(problem, device, config):
    """Sectors, with as much of them on their way as threads wait for, and the instructions of chunks."""
    form, chunks, lanes = _rows(problem.form, config.lanes), config.chunks, config.lanes
    threads, row, total, waited = _threads(form, chunks, lanes), form.dims[-1].size, 0, 0
    for k, (a, unit) in enumerate(zip(form.arrays, chunks.units)):
        total += a.tensor.nbytes * (sector_waste(row * a.itemsize, unit) if unit and len(problem.form.dims) > 1 else 1.0) * bool(a.name)
        if k < form.inputs and unit:
            waited += chunks.elements * a.itemsize * (1 if chunks.once[k] else lanes)
    held = THREADS * _blocks(config) * waited
    moved = memory_seconds(total, device) * max(1.0, (COST.enough / max(held, 1)) ** 0.5 if waited else 1.0)
    accesses = sum(chunks.elements * a.itemsize / unit for a, unit in zip(form.arrays, chunks.units) if unit)
    a_thread = (COST.thread + config.dims * (COST.dimension + COST.array * len(form.arrays))
                + lanes * (COST.access * accesses + chunks.elements * instructions(problem.program)))
    few = {2: COST.two_blocks, 3: COST.three_blocks}.get(_blocks(config), 1.0)
    busy = overlap(memory=moved, issue=few * issue_seconds(threads, a_thread, device), waits=a_thread * COST.alone / device.clock_hz)
    return LAUNCH + busy.slowed(tail=tail(ceil_div(threads, THREADS), COST.blocks, device))


def _blocks(config):
    """Blocks a multiprocessor that registers are bounded for."""
    wide, held = any(step.compute == "float64" for step in config.program.steps), _held(config.program, config.chunks, config.lanes)
    return 2 if wide or held > 66 else 3 if held > 56 else 4 if held > 24 else 6


def _held(program, chunks, lanes):
    """Registers of a thread, nearly: the words of its loads, and the values of a chunk."""
    words = sum(lanes * chunks.elements * ITEMSIZE[dtype] // 4 for dtype, access in program.loads if access == "matrix")
    return words + 2 * chunks.elements + 2 * len(program.loads)


# ---- the kernel

@functools.cache
def _make_lanes(config):
    """Device function ``run(e, shift, first, last)``: the whole work of a thread.

    Lane k's chunk of an array begins ``k * step + shift[k]`` elements after its offset; elements ``first[k]`` to ``last[k] - 1`` of it
    exist.
    """
    plan, program, length, LANES = Plan(config), config.program, config.chunks.elements, config.lanes
    WORDS = max(plan.words, 1)
    A, B, C = (max(plan.values[t], 1) for t in TYPES)
    P, Q, R = (max(plan.stored[t], 1) for t in TYPES)
    T, U, V = TYPES.values()
    positions = pointer_positions(program)
    bases = [make_base(config, k, positions[k]) for k in range(config.arrays)]
    load_whole, load_part = (all_loads(config, plan, bases, whole) for whole in (True, False))
    take, each, put = all_takes(config, plan), make_each(config, plan), all_stores(config, plan, bases)

    def of_lane(K):
        @device_function
        def lane(words, e, shift, first, last, whole):
            values = cuda.local.array(A, T), cuda.local.array(B, U), cuda.local.array(C, V)
            stored = cuda.local.array(P, T), cuda.local.array(Q, U), cuda.local.array(R, V)
            take(values, words, e, K, shift)
            each(values, stored, e)
            put(stored, e, K, shift, first, last, whole)
        return lane

    def of_lanes(start, count):
        if count == 1:
            return of_lane(start)
        low, high = of_lanes(start, count // 2), of_lanes(start + count // 2, count - count // 2)

        @device_function
        def both(words, e, shift, first, last, whole):
            low(words, e, shift, first, last, whole)
            high(words, e, shift, first, last, whole)
        return both
    lanes = of_lanes(0, LANES)

    @device_function
    def run(e, shift, first, last):
        words = cuda.local.array(WORDS, u32)
        whole = first[0] <= 0 and last[0] >= length  # not True: what is called with it would be compiled for that type as well
        for k in range(1, LANES):
            whole = whole and first[k] <= 0 and last[k] >= length
        if whole:
            load_whole(words, e, shift, first, last)
        else:
            load_part(words, e, shift, first, last)
        lanes(words, e, shift, first, last, whole)
    return run


@functools.cache
def kernel(config):
    """y0[...], y1[...] = program(x0[...], x1[...]), a chunk of some rows a thread."""
    chunks, program = config.chunks, config.program
    LANES, LENGTH, LED = config.lanes, chunks.elements, chunks.align > 0
    LEADER = config.arrays - len(program.stores)
    run, coordinates = _make_lanes(config), make_coordinates(config.dims)
    leader, itemsize = make_base(config, LEADER, pointer_positions(program)[LEADER]), ITEMSIZE[dtypes_of(program)[LEADER]]
    lead_of, SCALE = make_lead(itemsize, chunks.align), word_of(itemsize)[2]

    @jit(launch_bounds=(THREADS, _blocks(config)))
    def fused_pointwise_rows(pointers, threads, row, rows, chunks, groups, firsts, steps, sizes, strides, numbers):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            group_index, chunk = divide_remainder(index, chunks)
            _, group = divide_remainder(group_index, groups)
            e = pointers, coordinates(index, sizes), strides, firsts, steps, numbers
            position, left = chunk * LENGTH, rows - group * LANES
            shift, first, last = cuda.local.array(LANES, i32), cuda.local.array(LANES, i32), cuda.local.array(LANES, i32)
            for k in range(LANES):
                lead = 0
                if LED:
                    lead = lead_of(advance(leader(e), (k * steps[LEADER] - position) * SCALE))
                shift[k] = -lead
                first[k] = lead - position
                last[k] = row - position + lead if k < left else first[k]
            run(e, shift, first, last)
    return fused_pointwise_rows


def build(problem, device, config):
    """One launch."""
    form, chunks, lanes = _rows(problem.form, config.lanes), config.chunks, config.lanes
    dims, threads, (*_, row, last) = _counted(form, chunks, lanes), _threads(form, chunks, lanes), form.dims
    pointers = [Argument(word_of(a.itemsize)[1] + "*", a.name) for a in form.arrays if a.name]
    count = len(form.arrays)
    arguments = (struct_argument([a.type for a in pointers], pointers), Argument("int32", threads), Argument("int32", last.size),
                 Argument("int32", row.size), Argument("uint32x3", divisor(dims[-1].size)), Argument("uint32x3", divisor(dims[-2].size)),
                 Argument(f"int64x{count}", tuple(a.first for a in form.arrays)), Argument(f"int64x{count}", tuple(row.strides)),
                 coordinate_argument([d.size for d in dims]), stride_argument(dims, config.wide), number_arguments(problem))
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="fused_pointwise", name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, programs=True)
