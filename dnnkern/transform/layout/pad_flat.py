"""All of y as one run of 16-byte vectors, wherever its rows begin: rows may be shorter than a vector, such as three channels made four.

Where y is packed, a thread stores a vector that may be parts of several rows. It finds the row and the column of its first element by a
division for each dimension, and walks on from there: the column counts up, and at its end the next row is looked up::

    x    a0 a1 a2 b0 b1 b2 c0 c1 c2 d0 d1 d2           rows of 3, contiguous
    y    a0 a1 a2 .  b0 b1 b2 .  c0 c1 c2 .  d0 ...    rows of 4
         [------- one vector ------]

Elements come from x one by one. Where x's rows follow each other, a block first copies what it needs, a contiguous stretch of x, to shared
memory, in vectors too (`staged`); else they come through the L1. Where rows are longer than a vector, most vectors lie within one, and are
two aligned loads of x, shifted in registers, as those of `rows` (`dense`), which has more vectors, and incomplete ones at both ends of each
row, but does not need a packed y.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import Divisor, ceil_div, divide, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, shared_address
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.vectors import make_unit_moves, word_of
from ...host.launch import Argument, Launch
from ._borders import border_arguments, make_inside_offsets, make_locate
from ._pad_problem import Border
from ._rows import make_fill
from ._shift import WORDS, make_lead, make_shift

COST = constants("transform/pad_flat")

THREADS, WARP = 256, 32
MOST_STAGED = 256  # bytes of a row of x: a block stages two rows more than it has vectors


@dataclass(frozen=True)
class Config:
    """Bytes of an element, its type where there is something to fill in, what is beyond borders; whether x is copied to shared memory,
    whether vectors may lie within a row of x; vectors per thread, dimensions of rows, whether they have borders, 64-bit offsets; where a
    vector is a number of staged rows: their size, border and elements; whether a block sets vectors that are gathered aside."""
    itemsize: int
    filled: str | None
    mode: str
    staged: bool
    dense: bool
    chunks: int
    dims: int
    bordered: bool
    wide: bool
    row: tuple = ()
    listed: bool = False

    @property
    def elements(self):
        """Elements of a vector."""
        return 16 // self.itemsize

    @property
    def turns(self):
        """Vectors that a thread stages at most: those of the block's part of y, two rows of x, and what alignment takes."""
        return ceil_div(16 * THREADS * self.chunks + 2 * MOST_STAGED + 32, 16 * THREADS)

    def __str__(self):
        return f"{self.chunks} vector{'s' * (self.chunks > 1)}{', staged' * self.staged}{', listed' * self.listed}"


class Line(NamedTuple):
    """Of each row: elements in y, also as a divisor; leading border, elements in x."""
    size: i32
    by_size: Divisor
    before: i32
    inner: i32


def _count(problem):
    """Vectors of y: one more if y does not begin at 16 bytes."""
    side = 16 // problem.form.itemsize
    return ceil_div(problem.y.size + (side - 1 if problem.alignment < 16 else 0), side)


def supports(problem):
    """A y without gaps."""
    stride = 1
    for d in reversed(problem.form.dims):
        if d.y != stride:
            return f"y has the stride {d.y} after {stride} elements; expected none between them"
        stride *= d.size
    return None if problem.y.size < LIMIT - 2 ** 20 else f"{problem.y.size} elements; expected fewer than 2**31 - 2**20"


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Where rows of x are short and follow each other, four vectors per thread, staged; else one, or two that mostly lie within a row."""
    form = problem.form
    *outer, row = form.dims
    bordered = any((d.before, d.inner) != (0, d.size) for d in outer)
    stretch = len(outer) == 1 and not bordered and (outer[0].x, row.x) == (row.inner, 1) and 0 < row.inner * form.itemsize <= MOST_STAGED
    dense, whole = row.x == 1 and row.inner * form.itemsize >= 16, problem.alignment == 16 and 16 // form.itemsize % row.size == 0
    some = [(2 if dense else 1, False, False)]
    if not device.is_processor:  # where barriers take long
        some += [(4, True, False)] * stretch + [(2, False, True)] * dense
    return [Config(form.itemsize, problem.filled, problem.mode, staged, dense and not staged, n, max(len(outer), 1), bordered, form.is_wide,
                   (row.size, row.before, row.inner) if staged and whole else (), listed) for n, staged, listed in some]


def estimate(problem, device, config):
    """The bytes, or the instructions: of vectors, and of elements that are gathered, for which their warps wait; and the L1's accesses."""
    row, count = problem.form.dims[-1], _count(problem)
    spread = 1 if abs(row.x) <= 1 else min(abs(row.x) * config.itemsize, 32) / config.itemsize
    moved = memory_seconds(problem.read_bytes * spread + problem.y.nbytes, device)
    rows = min(config.elements, config.elements / row.size)  # that a vector goes on to
    if config.staged:
        vector, share, element = COST.staged, 1.0, COST.from_shared
    elif config.listed:
        vector, share, element = COST.listed, COST.ends * rows, COST.listed_byte if config.itemsize == 1 else COST.element
    elif config.dense:
        vector, share = COST.dense + COST.outer * max(0, config.dims - 2), WARP * rows
        element = COST.beside_filled if config.filled else COST.beside_mirrored if config.mode == "reflect" else COST.beside
    else:
        vector, share, element = COST.vector + config.dims * (COST.dimension + COST.row * (1 + rows)), 1.0, COST.element
    gathered = count * min(1.0, share)
    issue = issue_seconds(count, vector, device) + issue_seconds(gathered, element * config.elements, device)
    lines = 0 if config.staged else gathered * config.elements / COST.l1 / (device.sms * device.clock_hz)
    work = overlap(memory=moved, issue=issue, l1=lines).slowed(tail=tail(ceil_div(count, THREADS * config.chunks), COST.blocks, device))
    return LAUNCH + work + Cost(waves=COST.late * config.chunks)


@functools.cache
def make_stage(config):
    """Device function that copies the part of x that a block needs to shared memory, and returns which element of x lies there first::

        start = stage(memory, base, x, first, after)

    `x` has no gaps between rows; the block needs its elements from `first` on before `after`, of `count` in all.
    """
    size, V, TURNS = config.itemsize, config.elements, config.turns
    SCALE, lead = word_of(size)[2], make_lead(size)
    load, _, _, store, WORDS_16 = make_unit_moves(16, size)
    load_one, _, _, store_one, ONE = make_unit_moves(size, size)
    HELD = TURNS * WORDS_16

    @device_function
    def stage(memory, base, x, first, after, count):
        words, one = cuda.local.array(HELD, u32), cuda.local.array(ONE, u32)
        start = first - lead(advance(x, first * SCALE))
        for t in range(TURNS):
            at = start + (cuda.threadIdx.x + t * THREADS) * V
            load(words, t * WORDS_16, advance(x, at * SCALE), 1 if at < after and at >= 0 and at + V <= count else 0)
        for t in range(TURNS):
            at = start + (cuda.threadIdx.x + t * THREADS) * V
            if at < after and at >= 0 and at + V <= count:
                store(memory, base, (at - start) * size, words, t * WORDS_16)
            elif at < after:
                for i in range(at, at + V):
                    if i >= 0 and i < count:
                        load_one(one, 0, advance(x, i * SCALE), 1)
                        store_one(memory, base, (i - start) * size, one, 0)
        cuda.syncthreads()
        return start
    return stage


@functools.cache
def make_take(config):
    """Device function ``take(v, s)``: element v of a vector into its parts, and on to the next one. Part of `s`: row, column and whether
    the row is one of x, as `walk`, and where it begins in x, or in shared memory."""
    size, V, STAGED, FILLED = config.itemsize, config.elements, config.staged, config.filled is not None
    load_one, _, load_staged, _, ONE = make_unit_moves(size, size)
    locate, Int = make_locate(config.mode), i64 if config.wide else i32
    look_up, measure, SCALE, MASK = make_rows(config), make_measure(config), word_of(size)[2], 2 ** (8 * min(size, 4)) - 1

    @device_function
    def take(v, s):
        parts, pattern, walk, x_rows, x, memory, base, line, step, outer = s
        row, before, inner = measure(line)
        inside, j = locate(walk[1], before, inner)
        there = inside and walk[2] != 0
        if STAGED:
            load_staged(parts, v * ONE, memory, base, (x_rows[0] + j) * size)
        else:
            load_one(parts, v * ONE, advance(x, Int(x_rows[0] + Int(j) * step) * SCALE), 1 if there else 0)
        if FILLED:
            for k in range(ONE):
                parts[v * ONE + k] = parts[v * ONE + k] if there else pattern[k] & MASK
        walk[1] += 1
        if v < V - 1 and walk[1] == row:
            walk[0] += 1
            walk[1] = 0
            if STAGED:
                x_rows[0] += inner
            else:
                look_up(walk, x_rows, walk[0], outer)
    return take


@functools.cache
def make_measure(config):
    """Device function ``measure(line)``: size, leading border and elements of a row, constants where the configuration has them."""
    if config.row:
        SIZE, BEFORE, INNER = config.row

        @device_function
        def measure(line):
            return SIZE, BEFORE, INNER
    else:
        @device_function
        def measure(line):
            return line.size, line.before, line.inner
    return measure


@functools.cache
def make_rows(config):
    """Device function ``look_up(walk, x_rows, row, outer)``: where a row begins in x, and as walk[2] whether it is one of x."""
    offsets = make_inside_offsets(config.dims, config.wide, config.mode if config.bordered else None)

    @device_function
    def look_up(walk, x_rows, row, outer):
        divisors, borders, strides = outer
        there, x_rows[0], _ = offsets(row, divisors, borders, strides)
        walk[2] = 1 if there else 0
    return look_up


@functools.cache
def kernel(config, dependent):
    """y[...] = x[...], `chunks` vectors per thread."""
    size, N, V, STAGED, DENSE, FILLED = (config.itemsize, config.chunks, config.elements, config.staged, config.dense,
                                         config.filled is not None)
    Word, _, SCALE = word_of(size)
    _, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, _ = make_unit_moves(16, size)
    fetch, shift = make_shift(size)
    pack, _ = make_pack(size, V)
    fill, lead, wait, look_up = make_fill(config.filled) if FILLED else None, make_lead(size), make_follow(dependent), make_rows(config)
    stage, take = make_stage(config), make_take(config)
    take_all = unrolled(V, take)
    Int, HELD, PARTS, SPAN = i64 if config.wide else i32, N * WORDS, V * ONE, THREADS * N * V
    WHOLE, LISTED, LATE = bool(config.row), config.listed, THREADS * N if config.listed else 1
    SHARED = 16 * THREADS * config.turns * SCALE // size if STAGED else 1

    @device_function
    def gather(begin, s):
        """Store the vector of elements from number `begin` on, or those of them that there are, each loaded by itself."""
        pattern, x, y, total, memory, base, start, line, step, outer = s
        to, at = advance(y, Int(begin) * SCALE), begin if begin >= 0 else 0
        parts, packed = cuda.local.array(PARTS, u32), cuda.local.array(4, u32)
        walk, x_rows = cuda.local.array(3, i32), cuda.local.array(1, Int)
        walk[0], walk[1] = divide_remainder(at, line.by_size)
        walk[2] = 1
        if WHOLE:
            walk[1] = 0
        if STAGED:
            x_rows[0] = walk[0] * line.inner - start
        else:
            look_up(walk, x_rows, walk[0], outer)
        state = parts, pattern, walk, x_rows, x, memory, base, line, step, outer
        if begin >= 0 and begin + V <= total:
            take_all(0, state)
            pack(parts, packed)
            store(to, packed, 0)
        else:
            for i in range(at, begin + V if begin + V < total else total):
                take(0, state)
                store_one(advance(to, (i - begin) * SCALE), parts, 0)

    @device_function
    def finish(n, state):
        """Store vector n of a thread, which is loaded if its part of `skews` is not -1."""
        words, skews, first, held, late, s = state
        _, _, y, total, _, _, _, _, _, _ = s
        begin = first + n * THREADS * V
        if skews[n] >= 0:
            shift(words, n * WORDS, skews[n])
            store(advance(y, Int(begin) * SCALE), words, n * WORDS)
        elif begin < total and begin + V > 0:
            if LISTED:
                late[cuda.atomic.add(held, 0, 1)] = begin
            else:
                gather(begin, s)

    finish_all = unrolled(N, finish)

    @jit(launch_bounds=(THREADS, 4))
    def pad_flat(x, y, total, line, step, low, high, x_first, y_first, divisors, borders, strides, value):
        wait()
        words, skews, pattern = cuda.local.array(HELD, u32), cuda.local.array(N, i32), cuda.local.array(4, u32)
        memory, start = cuda.shared.array(SHARED, Word, alignment=16), 0
        held, late = cuda.shared.array(1, i32), cuda.shared.array(LATE, i32)
        base = shared_address(memory, 0)
        x, y, outer = advance(x, x_first * SCALE), advance(y, y_first * SCALE), (divisors, borders, strides)
        block = cuda.blockIdx.x * SPAN - lead(y)
        first = block + cuda.threadIdx.x * V
        if LISTED:
            if cuda.threadIdx.x == 0:
                held[0] = 0
            cuda.syncthreads()
        if FILLED:
            fill(pattern, value)
        if STAGED:
            after = block + SPAN if block + SPAN < total else total
            start = stage(memory, base, x, divide(block if block >= 0 else 0, line.by_size) * line.inner,
                          (divide(after - 1, line.by_size) + 1) * line.inner, high)
        # load vectors that lie within a row
        for n in range(N):
            skews[n] = -1
            if DENSE:
                begin = first + n * THREADS * V
                whole = begin >= 0 and begin + V <= total
                walk, x_rows = cuda.local.array(3, i32), cuda.local.array(1, Int)
                walk[0], walk[1] = divide_remainder(begin if whole else 0, line.by_size)
                look_up(walk, x_rows, walk[0], outer)
                j = walk[1] - line.before
                at = Int(x_rows[0] + j)
                skews[n] = fetch(words, n * WORDS, advance(x, at * SCALE), at - low, high - at,
                                 whole and walk[2] != 0 and j >= 0 and j + V <= line.inner)
        # store them, and gather the others
        s = pattern, x, y, total, memory, base, start, line, step, outer
        finish_all(0, (words, skews, first, held, late, s))
        if LISTED:
            cuda.syncthreads()
            for e in range(cuda.threadIdx.x, held[0], THREADS):
                gather(late[e], s)
    return pad_flat


def build(problem, device, config):
    """One launch."""
    form = problem.form
    *outer, row = form.dims
    _, name, _ = word_of(form.itemsize)
    low, high = (v // form.itemsize - form.x_first for v in problem.x.extent)
    line = Line(row.size, divisor(row.size), row.before, row.inner)
    arguments = (Argument(name + "*", "x"), Argument(name + "*", "y"), Argument("int32", problem.y.size), Argument(Line, line),
                 Argument("int64" if config.wide else "int32", row.x),
                 *(Argument("int64" if config.wide else "int32", v) for v in (low, min(high, LIMIT - 1))),
                 Argument("int64", form.x_first), Argument("int64", form.y_first),
                 *border_arguments(outer or [Border(1, 0, 0, 0, 1)], row.size, config.wide), Argument(problem.scalar_type, "value"))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(_count(problem), THREADS * config.chunks), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="pad", name="flat", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
