"""A row is held in the registers of a part of a warp, a warp or a block: every array is read once, every result written once.

Lanes t, t + T, t + 2T, ... of the T threads of a row hold its chunks (`engine.lanes`): packed words of all inputs, loaded together. Each
level walks over the chunks: words to values, the level's functions, states of its reductions; the threads' states meet by shuffles, and
of more than a warp in shared memory after one barrier. The last walk stores the full results, 16 bytes at a time. Between levels it is
words that stay in registers: values that two levels need are computed twice where there are many, as the softmax and the norms do.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, jit, u32
from ..device.index import ceil_div
from ..device.pointwise import TYPES
from ..device.unroll import unrolled
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, contend, flight_rate, issue_seconds, memory_seconds, tail
from ..engine.form import WIDE, Dim, Form, Operand
from ..engine.lanes import Chunks, make_chunks, make_lead, rows_refusal
from ..engine.vectors import word_of
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._arrays import coordinate_argument, make_coordinates, number_arguments, pointer_positions, stride_argument, struct_argument
from ._levels import element_instructions, factor_argument, make_end, make_next, make_start, row_arguments, states_of
from ._moves import Plan, all_loads, all_stores, all_takes, dtypes_of, make_base, make_each, make_values
from ._staged import StagedProgram

COST = constants("fused/reduction_rows")

BLOCK = 128                # threads of a block of several rows
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST_WORDS = 48            # of a thread's inputs; of 1024 threads a third
MOST_LANES = 16
KEPT = 32                  # elements of a thread up to which values stay in registers between levels


@dataclass(frozen=True)
class Config:
    """The program, its chunks, how many of them a thread has, the threads that share a row, dimensions that number rows, 64-bit offsets.

    ``cover``: "even", the threads' chunks are exactly the row; "whole", there may be fewer, each whole; "parts", some elements of a chunk
    may not exist, or rows begin anywhere.
    """
    staged: StagedProgram
    chunks: Chunks
    lanes: int
    threads: int
    outer: int
    wide: bool
    cover: str
    leader: int
    indices: tuple
    plain, inner = False, 1

    @property
    def program(self):
        """What `_moves` asks for: its loads and stores are the arrays."""
        return self.staged.stages.final

    @property
    def dims(self):
        return self.outer + self.inner

    @property
    def arrays(self):
        return len(self.indices)

    @property
    def block(self):
        return max(self.threads, BLOCK) if self.threads <= 32 else self.threads

    @property
    def words(self):
        """Of a thread's inputs, nearly."""
        loads = [dtype for dtype, access in self.program.loads if access in ("matrix", "index")]
        return sum(self.lanes * self.chunks.elements * ITEMSIZE[dtype] // 4 for dtype, unit in zip(loads, self.chunks.units) if unit)

    @property
    def registers(self):
        """Of a thread, nearly."""
        wide = 2 if self.staged.compute == "float64" else 1
        kept = self.lanes * self.chunks.elements if self.keeps else 0
        return min(255, 24 + self.words + wide * (2 * self.chunks.elements + kept) + 3 * self.arrays)

    @property
    def keeps(self):
        """Whether the compiler may keep values from level to level."""
        return self.lanes * self.chunks.elements <= KEPT

    @property
    def blocks(self):
        """Of a multiprocessor: the compiler's bound on registers."""
        return max(1, min(16, 2048 // self.block, 65536 // (-(-self.registers // 8) * 8 * self.block)))

    def __str__(self):
        return f"{self.threads} thread{'s' * (self.threads > 1)} per row, {self.lanes} x {self.chunks.elements} elements" + (
            f", {self.cover}" * (self.cover != "even"))


def leader_of(forms):
    """The array whose rows chunks are aligned to: the first result, or the first input that is contiguous along the row."""
    form = forms.form
    if len(form.arrays) > form.inputs:
        return form.inputs
    return next((k for k, (a, s) in enumerate(zip(form.arrays, form.dims[-1].strides)) if a.name and s), 0)


def _led(forms):
    """The form with one result at least: the leader once more, where there is none."""
    form, k = forms.form, leader_of(forms)
    if len(form.arrays) > form.inputs:
        return form
    dims = tuple(Dim(d.size, (*d.strides, d.strides[k])) for d in form.dims)
    return Form(dims, (*form.arrays, Operand("", form.arrays[k].tensor, form.arrays[k].first)), form.inputs)


def refusal(problem):
    """Why the rows of a problem that is not empty cannot be cut into chunks, or None."""
    forms = problem.forms
    if not forms.form.size:
        return "there are no elements to reduce"
    return rows_refusal(_led(forms))


def supports(problem):
    """Rows of one dimension that the registers of a block hold."""
    forms = problem.forms
    if problem.is_empty:
        return None
    reason = refusal(problem)
    if reason:
        return reason
    if len(forms.form.dims) - forms.outer > 1:
        return f"a row has {len(forms.form.dims) - forms.outer} dimensions that do not merge in all arrays; expected one"
    if forms.count >= WIDE // WIDTHS[-1]:
        return f"{forms.count} rows; expected fewer than 2**21"
    if not _choices(problem):
        inputs = sum(bool(a.name) for a in forms.form.arrays[:forms.form.inputs])
        return f"rows of {forms.length} elements of {inputs} inputs; they exceed a block's registers"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def chunks_of(forms):
    """(chunks of the arrays of elements, how many the innermost dimension has, whether some are parts)"""
    chunks, length = make_chunks(_led(forms)), forms.form.dims[-1].size
    count = ceil_div(length + max(chunks.align - 1, 0), chunks.elements)
    parts = chunks.align > 0 or length % chunks.elements > 0
    return Chunks(chunks.units[:len(forms.form.arrays)], chunks.once, chunks.elements, chunks.align), count, parts


def indices_of(form):
    """Of each array its stride along the row if it is an index, else None."""
    return tuple(None if a.name else s for a, s in zip(form.arrays, form.dims[-1].strides))


@functools.lru_cache(maxsize=256)
def _choices(problem):
    forms, found = problem.forms, []
    chunks, count, parts = chunks_of(forms)
    for threads in WIDTHS:
        lanes = ceil_div(count, threads)
        if lanes > MOST_LANES or count <= threads // 2 and threads > 1:
            continue
        cover = "parts" if parts else "even" if threads * lanes == count else "whole"
        config = Config(problem.program, chunks, lanes, threads, forms.outer, forms.form.is_wide, cover, leader_of(forms),
                        indices_of(forms.form))
        if config.words <= (MOST_WORDS // 3 if threads == 1024 else MOST_WORDS):
            found.append(config)
    return tuple(found)


def configs(problem, device):
    """From one thread to a block that hold a row, of which at least half the threads have work."""
    return _choices(problem)


def estimate(problem, device, config):
    """Bytes, or instructions, and the grid's last blocks; or what resident blocks wait for one after another."""
    forms = problem.forms
    grid = ceil_div(forms.count, config.block // config.threads)
    resident, passes = config.blocks, len(problem.program.stages.levels)
    elements, slower = config.lanes * config.chunks.elements, COST.parts if config.cover == "parts" else 1.0
    fill = forms.length / (config.threads * elements)
    flight = config.block * resident * 4 * config.words * fill
    each = element_instructions(problem.program, config.keeps) + COST.access / config.chunks.elements * config.arrays
    each *= slower
    issue = issue_seconds(forms.count * config.threads, COST.thread * passes + elements * each, device)
    work = contend(COST.power_issue, memory=slower * memory_seconds(problem.bytes, device) / flight_rate(flight, COST.in_flight),
                   issue=issue).slowed(tail=tail(grid, resident, device))
    wait = COST.alone + COST.level * passes + COST.element * elements + COST.block * (config.threads > 32) * config.threads
    # alone on its multiprocessor, a block moves nothing while it waits
    alone = max(1, min(2048 // config.block, int(65536 / (COST.registers * config.registers * config.block))))
    return LAUNCH + contend(COST.power, work, waits=wait * max(1.0, grid / (device.sms * alone)) + float(work) / alone)


# ---- the kernel

def steps_of(config):
    """Of each array, elements from a thread's chunk to its next one."""
    return tuple(config.threads * config.chunks.elements * (int(unit > 0) if s is None else s)
                 for unit, s in zip(config.chunks.units, config.indices))


def make_extents(config):
    """Device function ``extents(arrays, c, length, shift, first, last)``: where the chunks of a thread are, the first of which is number c
    of the row, and which elements of them exist; see `make_walks`."""
    THREADS, LANES, LENGTH, LEADER = config.threads, config.lanes, config.chunks.elements, config.leader
    leader = make_base(config, LEADER, pointer_positions(config.program)[LEADER])
    itemsize = ITEMSIZE[dtypes_of(config.program)[LEADER]]
    lead_of, SCALE, LED = make_lead(itemsize, config.chunks.align), word_of(itemsize)[2], config.chunks.align > 0

    @device_function
    def extents(arrays, c, length, shift, first, last):
        lead = 0
        if LED:
            lead = lead_of(advance(leader(arrays), -(c * LENGTH) * SCALE))
        for k in range(LANES):
            position = (c + k * THREADS) * LENGTH
            shift[k] = -lead
            first[k] = lead - position
            last[k] = length - position + lead
    return extents


@functools.cache
def make_walks(config):
    """(words of a thread, [device function ``level(words, numbers, e, shift, first, last)`` of each level], ``final(words, e, shift, first,
    last)``, device function ``load(words, e, shift, first, last)``)

    Chunk k of a thread begins ``k * step + shift[k]`` elements after an array's offset; elements ``first[k]`` to ``last[k] - 1`` exist.
    """
    stages, LENGTH, LANES = config.staged.stages, config.chunks.elements, config.lanes
    EVEN, PARTS = config.cover == "even", config.cover == "parts"
    plan = Plan(config, some=not EVEN)
    positions = pointer_positions(config.program)
    bases = [make_base(config, k, positions[k]) for k in range(config.arrays)]
    take, put = all_takes(config, plan), all_stores(config, plan, bases, PARTS)
    A, B, C = (max(plan.values[t], 1) for t in TYPES)
    P, Q, R = (max(plan.stored[t], 1) for t in TYPES)
    T, U, V = TYPES.values()
    load_whole, load_part = (all_loads(config, plan, bases, whole) for whole in (True, False))

    def walk_of(stage, states):
        values_of, push = make_values(stage.element, plan), states.push

        @device_function
        def one(n, s):
            values, numbers, e, low, high = s
            if PARTS:
                if low <= n and n < high:
                    push(numbers, values_of(values, e, n), 0)
            else:
                push(numbers, values_of(values, e, n), 0)
        elements = unrolled(LENGTH, one)

        @device_function
        def lane(k, s):
            words, numbers, e, shift, first, last = s
            if EVEN or last[k] > 0:
                values = cuda.local.array(A, T), cuda.local.array(B, U), cuda.local.array(C, V)
                take(values, words, e, k, shift)
                elements(0, (values, numbers, e, first[k], last[k]))
        lanes = unrolled(LANES, lane)

        @device_function
        def level(words, numbers, e, shift, first, last):
            lanes(0, (words, numbers, e, shift, first, last))
        return level
    levels = [walk_of(stage, states) for stage, states in zip(stages.levels, states_of(config.staged))]

    each = make_each(config, plan) if config.program.stores else None

    @device_function
    def last_lane(k, s):
        words, e, shift, first, last = s
        if EVEN or last[k] > 0:
            values = cuda.local.array(A, T), cuda.local.array(B, U), cuda.local.array(C, V)
            stored = cuda.local.array(P, T), cuda.local.array(Q, U), cuda.local.array(R, V)
            take(values, words, e, k, shift)
            each(values, stored, e)
            put(stored, e, k, shift, first, last, first[k] <= 0 and LENGTH <= last[k])
    lanes = unrolled(LANES, last_lane)

    @device_function
    def final(words, e, shift, first, last):
        lanes(0, (words, e, shift, first, last))

    @device_function
    def load(words, e, shift, first, last):
        partly = 0
        if PARTS:
            for k in range(LANES):
                if 0 < last[k] and (first[k] > 0 or last[k] < LENGTH):
                    partly = 1
        if partly:
            load_part(words, e, shift, first, last)
        else:
            load_whole(words, e, shift, first, last)
    return max(plan.words, 1), levels, final, load


@functools.cache
def kernel(config):
    """All results of a row, by T threads."""
    staged = config.staged
    THREADS, LANES, BLOCK_THREADS = config.threads, config.lanes, config.block
    ROWS, LOG, FULL = BLOCK_THREADS // THREADS, THREADS.bit_length() - 1, len(config.program.stores) > 0
    words_count, walks, final, load = make_walks(config)
    run, scratch_size = device_function(_nothing), 0
    hold = pin(words_count) if not config.keeps else device_function(_as_it_is)
    for level, (states, walk) in enumerate(zip(states_of(staged), walks)):
        run = _with_level(run, states, walk, states.meet(THREADS, scratch_size), make_next(staged, level), hold)
        scratch_size += states.size * max(THREADS // 32, 1)
    SCRATCH, REAL = scratch_size if THREADS > 32 else 1, states_of(staged)[0].type
    coordinates, start, end = make_coordinates(config.outer), make_start(staged, config.outer), make_end(staged, config.outer)
    STEPS, extents = steps_of(config), make_extents(config)

    @jit(launch_bounds=(BLOCK_THREADS, config.blocks))
    def fused_reduction_rows(pointers, row_pointers, rows, length, firsts, row_firsts, sizes, strides, row_strides, numbers, factor):
        scratch, words = cuda.shared.array(SCRATCH, REAL), cuda.local.array(words_count, u32)
        shift, first, last = cuda.local.array(LANES, i32), cuda.local.array(LANES, i32), cuda.local.array(LANES, i32)

        # the row of this group of threads, and this thread's chunks of it
        thread = cuda.threadIdx.x
        t = thread & (THREADS - 1)
        row = cuda.blockIdx.x * ROWS + (thread >> LOG)
        mine = row < rows
        at = coordinates(row if mine else 0, sizes)
        of_row = start(row_pointers, row_firsts, row_strides, numbers, at)
        arrays = pointers, at + (t,), strides, firsts, STEPS
        extents(arrays, t, length, shift, first, last)
        load(words, arrays, shift, first, last)

        # levels, results
        of_row = run(of_row, words, scratch, arrays, shift, first, last, factor)
        if mine:
            if FULL:
                final(words, arrays + (of_row,), shift, first, last)
            if t == 0:
                end(of_row, row_pointers, row_firsts, row_strides, at)
    return fused_reduction_rows


def _nothing(of_row, words, scratch, arrays, shift, first, last, factor):
    return of_row


def _as_it_is(words):
    return


def _with_level(before, states, walk, meet, next_rows, hold):
    SIZE, T, begin = states.size, states.type, states.begin

    @device_function
    def run(of_row, words, scratch, arrays, shift, first, last, factor):
        of_row = before(of_row, words, scratch, arrays, shift, first, last, factor)
        numbers = cuda.local.array(SIZE, T)
        begin(numbers)
        walk(words, numbers, arrays + (of_row,), shift, first, last)
        meet(numbers, scratch)
        hold(words)
        return next_rows(of_row, numbers, factor)
    return run


def arguments_of(problem, config):
    """(parameters `pointers` and `row_pointers`, those from `firsts` on) of kernels that walk over chunks."""
    forms, length = problem.forms, config.chunks.elements
    form = forms.form
    dims = (*form.dims[:-1], Dim(0, tuple(s * length for s in form.dims[-1].strides)))
    pointers = [Argument(word_of(a.itemsize)[1] + "*", a.name) for a in form.arrays if a.name]
    row_pointers, row_firsts, row_strides = row_arguments(forms)
    return (struct_argument([a.type for a in pointers], pointers), row_pointers), (
        Argument(f"int64x{len(form.arrays)}", tuple(a.first for a in form.arrays)), row_firsts,
        coordinate_argument([d.size for d in form.dims[:forms.outer]]), stride_argument(dims, config.wide), row_strides,
        number_arguments(problem), factor_argument(problem))


def build(problem, device, config):
    """One launch."""
    forms, (pointers, others) = problem.forms, arguments_of(problem, config)
    arguments = (*pointers, Argument("int32", forms.count), Argument("int32", forms.length), *others)
    grid = ceil_div(forms.count, config.block // config.threads)
    return (Launch(kernel(config), (grid, 1, 1), (config.block, 1, 1), arguments),)


ALGORITHM = Algorithm(op="fused_reduction", name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, programs=True, reductions=True)
