"""The kernel of rows that begin anywhere: 16 bytes of y a thread and chunk, whatever they are in x, and what is beyond x's borders.

Along the last dimension of y, in which it is contiguous, `before` elements precede those of x, and `inner` are x's; those of other rows may
be beyond a border altogether. Without a mode there are no borders: `before` is 0 and `inner` the whole row.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, f64, i32, i64, jit, u32, u64
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import Cost, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.values import COMPUTE, element, make_words
from ...engine.vectors import make_unit_moves, word_of
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._borders import border_arguments, make_inside_offsets, make_locate
from ._shift import WORDS, make_lead, make_shift

COST = constants("transform/rows")

THREADS = 256
WITHOUT_ARITHMETIC = ("int16", "uint16", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class Config:
    """Bytes of an element, its type where there is something to fill in, whether rows are contiguous in x, chunks per thread, what is
    beyond borders, dimensions, 64-bit offsets."""
    itemsize: int
    filled: str | None
    dense: bool
    chunks: int
    mode: str | None
    dims: int
    wide: bool

    @property
    def elements(self):
        """Elements of a chunk."""
        return 16 // self.itemsize

    def __str__(self):
        return f"{self.chunks} chunk{'s' * (self.chunks > 1)}"


def chunks_of_row(form, alignment):
    """Chunks of a row of y, whose first element is aligned to `alignment` bytes: one more where rows may begin anywhere."""
    *outer, row = form.dims
    side = 16 // form.itemsize
    anywhere = alignment < 16 or any(d.y % side for d in outer)
    return ceil_div(row.size + (side - 1 if anywhere else 0), side)


def chunk_count(form, alignment):
    """Chunks of all rows of y."""
    return math.prod(d.size for d in form.dims[:-1]) * chunks_of_row(form, alignment)


def rows_refusal(form, alignment):
    """Why the rows of a form cannot be cut into chunks; None if they can."""
    row = form.dims[-1]
    if row.y != 1:
        return f"no dimension is contiguous in y: the least stride is {row.y}"
    if max(chunk_count(form, alignment), row.size + 32) >= LIMIT - 2 ** 20:
        return f"{chunk_count(form, alignment)} chunks, rows of {row.size} elements; expected fewer than 2**31 - 2**20 of either"
    return None


def rows_seconds(form, alignment, config, read_bytes, device):
    """Predicted time, where so many bytes of x are read: sectors, instructions of chunks, and chunks that are gathered, for whose slowest
    lane of a warp waits: at the two ends of a row, and everywhere if x is not contiguous; each of their elements is a load."""
    row, of_row, size = form.dims[-1], chunks_of_row(form, alignment), config.itemsize
    rows = math.prod([d.size for d in form.dims[:-1]])
    count, written = rows * of_row, rows * row.size * size
    waste = sector_waste(row.size * size, size)
    spread = 1 if config.dense else min(max(abs(row.x), 1) * size, 32) / size
    moved = memory_seconds(read_bytes * max(spread, waste) + written * waste, device) * (COST.one_chunk if config.chunks == 1 else 1.0)
    gathered = min(count, COST.gathered * rows) if config.dense else count
    issue = issue_seconds(count, COST.chunk + COST.dimension * config.dims, device)
    ends = issue_seconds(gathered, COST.element * config.elements, device)
    issue += ends
    lines = 0 if config.dense else count * config.elements / COST.l1 / (device.sms * device.clock_hz)
    work = overlap(memory=moved, issue=issue, l1=lines).slowed(tail=tail(ceil_div(count, THREADS * config.chunks), COST.blocks, device))
    if config.dense and config.elements > 4 and of_row * config.elements != row.size:
        # loaded and stored after the whole chunks of their warps, which shows where most warps have some
        share = gathered / max(count, 1)
        work += Cost(waits=COST.ends * ends * max(0.0, (share - COST.most) / (1 - COST.most)))
    return work + Cost(waves=COST.late * config.chunks)


def value_type(dtype):
    """The type of the number that elements of a dtype are filled with."""
    return "float64" if dtype in WITHOUT_ARITHMETIC else element(dtype).compute


@functools.cache
def make_fill(dtype):
    """Device function ``fill(words, value)``: words[0:4] = 16 bytes of elements of that value, rounded as `cast` rounds."""
    size = ITEMSIZE[dtype]
    COPIES = {1: 0x01010101, 2: 0x00010001}.get(size, 1)
    MASK = 2 ** (8 * min(size, 4)) - 1
    if dtype in WITHOUT_ARITHMETIC:
        @device_function
        def bits(words, value):
            whole = i64(f64(value))
            words[0] = u32(u64(whole) & u64(0xFFFFFFFF))
            words[1] = u32(u64(whole) >> u64(32))
    else:
        _, narrow = make_words(dtype, size)
        T = COMPUTE[element(dtype).compute]

        @device_function
        def bits(words, value):
            values = cuda.local.array(1, T)
            values[0] = T(value)
            narrow(words, values)

    @device_function
    def fill(words, value):
        bits(words, value)
        first = (words[0] & MASK) * COPIES
        second = words[1] if size == 8 else first
        words[0], words[1], words[2], words[3] = first, second, first, second
    return fill


@functools.cache
def make_move(config):
    """Device function for the `chunks` chunks of a thread, y[...] = x[...], from number `index0` of `count` on, a block's threads apart::

        move(x, y, index0, count, row, chunks, before, inner, step, low, high, divisors, borders, strides, value)

    Rows have `row` elements, and `chunks` chunks, a divisor. Along a row x has the stride `step`; its elements from `low` to `high` may be
    read. The last three tuples are those of `border_arguments`.
    """
    size, N, V, DENSE, FILLED = config.itemsize, config.chunks, config.elements, config.dense, config.filled is not None
    SCALE, lead = word_of(size)[2], make_lead(size)
    load_one, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, _ = make_unit_moves(16, size)
    fetch, shift = make_shift(size)
    pack, _ = make_pack(size, V)
    fill = make_fill(config.filled) if FILLED else None
    offsets, locate, Int = make_inside_offsets(config.dims, config.wide, config.mode), make_locate(config.mode), i64 if config.wide else i32
    HELD, PARTS, MASK = N * WORDS, V * ONE, 2 ** (8 * min(size, 4)) - 1

    @device_function
    def move(x, y, index0, count, row, chunks, before, inner, step, low, high, divisors, borders, strides, value):
        words, skews, pattern = cuda.local.array(HELD, u32), cuda.local.array(N, i32), cuda.local.array(4, u32)
        begins, inners = cuda.local.array(N, i32), cuda.local.array(N, i32)
        x_ats, y_ats = cuda.local.array(N, Int), cuda.local.array(N, Int)
        for n in range(N):
            index = index0 + n * THREADS
            there, x_at, y_at = offsets(index, divisors, borders, strides)
            _, chunk = divide_remainder(index, chunks)
            begin = chunk * V - lead(advance(y, Int(y_at * SCALE)))
            begins[n], inners[n], x_ats[n], y_ats[n] = begin if index < count else row, inner if there else 0, x_at, y_at
            skews[n] = -1
            if DENSE:
                j = begin - before
                at = i64(x_at) + j
                skews[n] = fetch(words, n * WORDS, advance(x, at * SCALE), at - low, high - at,
                                 index < count and begin >= 0 and begin + V <= row and j >= 0 and j + V <= inners[n])
        if FILLED:
            fill(pattern, value)
        for n in range(N):
            begin, inner_here, x_at = begins[n], inners[n], x_ats[n]
            y_here = advance(y, (i64(y_ats[n]) + begin) * SCALE)
            whole = begin >= 0 and begin + V <= row
            if skews[n] >= 0:
                shift(words, n * WORDS, skews[n])
                store(y_here, words, n * WORDS)
            elif FILLED and whole and (begin - before + V <= 0 or begin - before >= inner_here):
                store(y_here, pattern, 0)
            elif begin < row:
                parts = cuda.local.array(PARTS, u32)
                for v in range(V):
                    i = begin + v
                    inside, j = locate(i, before, inner_here)
                    inside = inside and i >= 0 and i < row
                    load_one(parts, v * ONE, advance(x, Int(Int(x_at + Int(j) * step) * SCALE)), i32(inside))
                    if FILLED:
                        for k in range(ONE):
                            parts[v * ONE + k] = parts[v * ONE + k] if inside else pattern[k] & MASK
                if whole:
                    pack(parts, words)
                    store(y_here, words, 0)
                else:
                    for v in range(V):
                        if begin + v >= 0 and begin + v < row:
                            store_one(advance(y_here, v * SCALE), parts, v * ONE)
    return move


@functools.cache
def kernel(config, dependent):
    """y[...] = x[...], `chunks` chunks per thread."""
    move, SPAN, SCALE = make_move(config), THREADS * config.chunks, word_of(config.itemsize)[2]

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 4))
    def move_rows(x, y, count, row, chunks, before, inner, step, low, high, x_first, y_first, divisors, borders, strides, value):
        wait()
        index0 = cuda.blockIdx.x * SPAN + cuda.threadIdx.x
        move(advance(x, x_first * SCALE), advance(y, y_first * SCALE), index0, count, row, chunks, before, inner, step, low, high,
             divisors, borders, strides, value)
    return move_rows


def rows_launch(config, device, form, alignment, extent, last, value, source, target):
    """The launch for a form with `dims`, `x_first` and `y_first`, `alignment` being that of y's first element.

    `extent` are the bytes of x that may be read, from its element 0; `last` is (before, inner) of the last dimension, `value` the argument
    that is filled in. `source` and `target` are the names of the two pointers and byte offsets to them.
    """
    *outer, row = form.dims
    _, name, _ = word_of(form.itemsize)
    low, high = (v // form.itemsize - form.x_first for v in extent)
    count, chunks = chunk_count(form, alignment), chunks_of_row(form, alignment)
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", count), Argument("int32", row.size), Argument("uint32x3", divisor(chunks)),
                 *(Argument("int32", v) for v in last),
                 Argument("int64" if config.wide else "int32", row.x), Argument("int64", low), Argument("int64", high),
                 Argument("int64", form.x_first), Argument("int64", form.y_first),
                 *border_arguments(outer, chunks, config.wide), value)
    dependent = device.capability >= (9, 0)
    return Launch(kernel(config, dependent), (ceil_div(count, THREADS * config.chunks), 1, 1), (THREADS, 1, 1), arguments,
                  dependent=dependent)
