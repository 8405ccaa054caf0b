"""Rows of dx, 16 bytes per thread and chunk: a copy of dy, and near the borders the sum of what was copied there.

The rows are those of `transpose_rows`, cut at dx's multiples of 16 bytes; a chunk is two aligned loads, shifted in registers. Where each
element of a chunk has one copy, which is nearly everywhere, these bits are stored::

    row of dy    | before |            elements             | after |
    edge         +++++++++v0                               vn++++++++    "+" is added to the first and to the last element of the row
    reflect      c b a  .  a b c                      c b a .  a b c     each letter is added to its mirror image

Else a thread adds up in float32 (float64 of float64): the same chunk of each row of dy that is a copy of its own row, and for the elements
near an end of the row those that are copies of them, one by one. Each sum has one owner and one order: no atomics. Where neighbours of dx
are apart in dy, chunks are gathered by elements.

Nearly every warp has a chunk that ends a row, for whose sum its other lanes wait. So with four chunks per thread a block writes down which
of its chunks are sums, and adds those up at its end, by as few warps as there are lists of 32. Short rows, which have little else, are
better added up at once. Which thread adds up a chunk changes no sum.
"""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.index import ceil_div, divide, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT
from ...engine.values import COMPUTE, make_words
from ...engine.vectors import make_unit_moves, word_of
from ...host.canonical import aligned_to
from ...host.dtypes import ITEMSIZE, compute_dtype
from ...host.launch import Argument, Launch
from ._borders import copy_arguments, make_locate, make_reach, make_row_copies
from ._pad_problem import Border
from ._shift import WORDS, make_lead, make_shift

COST = constants("transform/pad_bwd_rows")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element type, what is beyond borders, whether rows are contiguous in dy, chunks per thread, dimensions of rows, 64-bit offsets."""
    dtype: str
    mode: str
    dense: bool
    chunks: int
    dims: int
    wide: bool

    @property
    def elements(self):
        """Elements of a chunk."""
        return 16 // ITEMSIZE[self.dtype]

    @property
    def listed(self):
        """Whether a block sets chunks that are sums aside."""
        return self.chunks > 1

    @property
    def blocks(self):
        """Resident blocks per multiprocessor that registers are to allow."""
        return 3 if self.listed else 4

    def __str__(self):
        return f"{self.chunks} chunks, listed" if self.listed else "1 chunk"


class Line(NamedTuple):
    """Of each row: elements in dx; leading border, elements with borders and stride in dy; elements before `head` and from `tail` on may
    have several copies."""
    elements: i32
    before: i32
    whole: i32
    head: i32
    tail: i32
    step: i64


def _chunks_of_row(problem):
    """Chunks of a row of dx: one more where rows may begin anywhere."""
    *outer, row = problem.form.dims
    side = 16 // problem.form.itemsize
    anywhere = aligned_to(problem.dx, problem.form.x_first, problem.form.itemsize) < 16 or any(d.x % side for d in outer)
    return ceil_div(row.inner + (side - 1 if anywhere else 0), side)


def _chunk_count(problem):
    """Chunks of all rows of dx."""
    return math.prod(d.inner for d in problem.form.dims[:-1]) * _chunks_of_row(problem)


def supports(problem):
    """Rows that are contiguous in dx."""
    *outer, row = problem.form.dims
    if row.x != 1:
        return f"along the dimension of the least stride in dy, dx has the stride {row.x}; expected 1"
    rows = math.prod(d.size for d in outer)
    if max(_chunk_count(problem), rows, row.size + 32) >= LIMIT - 2 ** 20:
        return f"{_chunk_count(problem)} chunks, {rows} rows of dy with {row.size} elements; expected fewer than 2**31 - 2**20 of each"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """One chunk per thread; four with lists, where a chunk is two loads and the dimensions leave registers for them."""
    form = problem.form
    dense = form.dims[-1].y == 1
    some = (4, 1) if dense and len(form.dims) <= 5 and not device.is_processor else (1,)  # a processor's barriers take long
    return [Config(problem.dtype, problem.mode, dense, n, max(len(form.dims) - 1, 1), form.is_wide) for n in some]


def estimate(problem, device, config):
    """Sectors, or instructions: of chunks, of the sums at the two ends of rows, and of elements that are gathered."""
    row, count, size = problem.form.dims[-1], _chunk_count(problem), problem.form.itemsize
    waste = 1.0 if problem.dy.is_packed and problem.dx.is_packed else sector_waste(row.inner * size, size)
    spread = 1 if config.dense else min(row.y * size, 32) / size
    read = problem.bytes - problem.dx.nbytes
    moved = memory_seconds(read * max(spread, waste) + problem.dx.nbytes * waste, device)
    ends = config.mode != "constant" and row.size > row.inner or _chunks_of_row(problem) * config.elements > row.inner
    chunk, end = COST.chunk, COST.mirrored_end if config.mode == "reflect" else COST.end
    if config.listed:
        chunk, end = COST.listed_chunk + COST.outer * max(0, config.dims - 2), COST.listed_end
    issue = issue_seconds(count, chunk + ends * end / _chunks_of_row(problem), device)
    if not config.dense:
        issue += issue_seconds(count, COST.element * config.elements, device)
    work = overlap(memory=moved, issue=issue).slowed(tail=tail(ceil_div(count, THREADS * config.chunks), COST.blocks, device))
    return LAUNCH + work + Cost(waves=COST.late * config.chunks)


@functools.cache
def make_add(config):
    """Device function that adds a chunk of a row of dy, and what is copied to it, to the values of a chunk of dx::

        add(values, words, k, skew, y, begin, line)

    The chunk lies in words[k:k+4], or in memory alone where `skew` is -1; its first element is number `begin` of those of `line`, a `Line`,
    and y points to the first element of the row of dy.
    """
    size, V, T = ITEMSIZE[config.dtype], config.elements, COMPUTE[compute_dtype(config.dtype)]
    SCALE, BORDERS = word_of(size)[2], config.mode != "constant"
    load_one, _, _, _, ONE = make_unit_moves(size, size)
    widen, _ = make_words(config.dtype, 16)
    widen_one, _ = make_words(config.dtype, size)
    locate, reach = make_locate(config.mode), make_reach(config.mode, V)

    @device_function
    def value(y, i, step, ok):
        parts, one = cuda.local.array(ONE, u32), cuda.local.array(1, T)
        load_one(parts, 0, advance(y, i * step * SCALE), ok)
        widen_one(one, parts, 0)
        return one[0]

    @device_function
    def add(values, words, k, skew, y, begin, line):
        row, before, whole, head, tail, step = line
        more = cuda.local.array(V, T)
        if skew >= 0:
            widen(more, words, k)
        else:
            for v in range(V):
                more[v] = value(y, before + begin + v, step, 1 if begin + v >= 0 and begin + v < row else 0)
        for v in range(V):
            values[v] += more[v]
        if BORDERS and (begin < head or begin + V > tail):
            first, after, second, end = reach(begin, before, row, whole)
            for k in range(after - first + end - second):
                i = first + k if k < after - first else second + k - (after - first)
                _, j = locate(i, before, row)
                more[0] = value(y, i, step, 1)
                for v in range(V):
                    if begin + v == j:
                        values[v] += more[0]
    return add


@functools.cache
def kernel(config, dependent):
    """dx[j] = the sum of the elements of dy that are copies of x[j], `chunks` chunks per thread."""
    size, N, V, DENSE, MODE = ITEMSIZE[config.dtype], config.chunks, config.elements, config.dense, config.mode
    T, SCALE, Int, Wide = COMPUTE[compute_dtype(config.dtype)], word_of(size)[2], i64 if config.wide else i32, i64
    _, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, _ = make_unit_moves(16, size)
    fetch, shift = make_shift(size)
    lead, add, wait = make_lead(size), make_add(config), make_follow(dependent)
    row_of, copy_of_row = make_row_copies(config.dims, config.wide, MODE)
    _, narrow = make_words(config.dtype, 16)
    LISTED, HELD, SPAN, LATE = config.listed, N * WORDS, THREADS * N, THREADS * N if config.listed else 1
    PER, BITS = max(4 // size, 1), 8 * size

    @device_function
    def store_some(p, words, begin, row):
        part = cuda.local.array(ONE, u32)
        for v in range(V):
            if begin + v >= 0 and begin + v < row:
                for k in range(ONE):
                    part[k] = words[v * ONE // PER + k] >> (v % PER * BITS)
                store_one(advance(p, v * SCALE), part, 0)

    @device_function
    def locate_chunk(index, s):
        """(number of the first element, offsets of the row in dx and in dy, copies of the row) of a chunk."""
        x, _, _, _, _, chunks, outer = s
        divisors, borders, strides = outer
        number, chunk = divide_remainder(index, chunks)
        x_at, y_at, copies = row_of(number, divisors, borders, strides)
        return chunk * V - lead(advance(x, x_at * SCALE)), x_at, y_at, copies

    @device_function
    def fetch_chunk(words, k, y_at, begin, wanted, s):
        _, y, line, low, high, _, _ = s
        at = Int(y_at + (line.before + begin))
        return fetch(words, k, advance(y, at * SCALE), at - low, high - at, wanted)

    @device_function
    def add_up(words, k, skew, index, begin, x_at, y_at, copies, s):
        """Store a chunk of sums; what is in words[k:k+4] unless `skew` is -1 is the chunk of the row that has no other copy."""
        x, y, line, _, _, chunks, outer = s
        divisors, borders, strides = outer
        values, packed, number = cuda.local.array(V, T), cuda.local.array(4, u32), divide(index, chunks)
        for v in range(V):
            values[v] = T(0)
        for c in range(copies):
            if copies > 1:
                y_at = copy_of_row(c, number, divisors, borders, strides)
                if DENSE:
                    skew = fetch_chunk(words, k, y_at, begin, True, s)
                    if skew >= 0:
                        shift(words, k, skew)
            add(values, words, k, skew, advance(y, y_at * SCALE), begin, line)
        narrow(packed, values)
        to = advance(x, (Wide(x_at) + begin) * SCALE)
        if begin >= 0 and begin + V <= line.elements:
            store(to, packed, 0)
        else:
            store_some(to, packed, begin, line.elements)

    @device_function
    def finish(n, state):
        """Store chunk n of a thread, which was loaded if its part of `skews` is not -1, if each of its elements has one copy."""
        words, skews, begins, copies, x_ats, y_ats, held, late, s = state
        x, _, line, _, _, _, _ = s
        begin = begins[n]
        if skews[n] >= 0:
            shift(words, n * WORDS, skews[n])
        if skews[n] >= 0 and copies[n] == 1 and begin >= line.head and begin + V <= line.tail:
            store(advance(x, (Wide(x_ats[n]) + begin) * SCALE), words, n * WORDS)
        elif begin < line.elements:
            if LISTED:
                late[cuda.atomic.add(held, 0, 1)] = cuda.threadIdx.x + n * THREADS
            else:
                add_up(words, n * WORDS, skews[n], cuda.blockIdx.x * SPAN + cuda.threadIdx.x + n * THREADS, begin, x_ats[n], y_ats[n],
                       copies[n], s)

    finish_all = unrolled(N, finish)

    @jit(launch_bounds=(THREADS, config.blocks))
    def pad_bwd_rows(dy, dx, count, chunks, line, low, high, x_first, y_first, divisors, borders, strides):
        wait()
        words, skews, begins = cuda.local.array(HELD, u32), cuda.local.array(N, i32), cuda.local.array(N, i32)
        copies, x_ats, y_ats = cuda.local.array(N, i32), cuda.local.array(N, Int), cuda.local.array(N, Int)
        held, late = cuda.shared.array(1, i32), cuda.shared.array(LATE, i32)
        x, y, first = advance(dx, x_first * SCALE), advance(dy, y_first * SCALE), cuda.blockIdx.x * SPAN
        s = x, y, line, low, high, chunks, (divisors, borders, strides)
        if LISTED:
            if cuda.threadIdx.x == 0:
                held[0] = 0
            cuda.syncthreads()
        # load chunks
        for n in range(N):
            index = first + cuda.threadIdx.x + n * THREADS
            begins[n], x_ats[n], y_ats[n], copies[n] = locate_chunk(index, s)
            begins[n], skews[n] = begins[n] if index < count else line.elements, -1
            if DENSE:
                skews[n] = fetch_chunk(words, n * WORDS, y_ats[n], begins[n], begins[n] < line.elements, s)
        # store those that are copies, and sums
        finish_all(0, (words, skews, begins, copies, x_ats, y_ats, held, late, s))
        if LISTED:
            cuda.syncthreads()
            for e in range(cuda.threadIdx.x, held[0], THREADS):
                index, skew = first + late[e], -1
                begin, x_at, y_at, rows = locate_chunk(index, s)
                if DENSE:
                    skew = fetch_chunk(words, 0, y_at, begin, True, s)
                    if skew >= 0:
                        shift(words, 0, skew)
                add_up(words, 0, skew, index, begin, x_at, y_at, rows, s)
    return pad_bwd_rows


def build(problem, device, config):
    """One launch."""
    form = problem.form
    *outer, row = form.dims
    _, name, _ = word_of(form.itemsize)
    low, high = (v // form.itemsize - form.y_first for v in problem.dy.extent)
    after, count = row.size - row.before - row.inner, _chunk_count(problem)
    # elements of a row before `head`, and from `tail` on, may have several copies
    head = {"edge": min(row.before, 1), "reflect": row.before + 1 if row.before else 0}.get(config.mode, 0)
    end = {"edge": min(after, 1), "reflect": after + 1 if after else 0}.get(config.mode, 0)
    arguments = (Argument(name + "*", "dy"), Argument(name + "*", "dx"), Argument("int32", count),
                 Argument("uint32x3", divisor(_chunks_of_row(problem))),
                 Argument(Line, Line(row.inner, row.before, row.size, head, row.inner - end, row.y)),
                 *(Argument("int64" if config.wide else "int32", v) for v in (low, min(high, LIMIT - 1 if not config.wide else high))),
                 Argument("int64", form.x_first), Argument("int64", form.y_first),
                 *copy_arguments(outer or [Border(1, 0, 0, 0, 1)], config.wide))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(count, THREADS * config.chunks), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="pad_bwd", name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
