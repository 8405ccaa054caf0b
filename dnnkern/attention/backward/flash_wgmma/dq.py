"""What gradients by tiles of keys need beside their kernel: levels and deltas of rows before it; after it dq, from what it added up.

The workspace has, for each head of each image, rows up to a whole number of tiles (`pad_of`), those of each packed sequence
(`make_place`)::

    numbers      float32, of each tile of rows their levels, then their deltas: what probabilities and their slopes take (`_dscores`); of
                 rows that are not there, what gives 0
    sums         float32, dq but for the scale: blocks of 64 rows by 8 columns, of 2 KB, by rows and columns; in a block the
                 four floats of each thread of a warpgroup as wgmma leaves them (`device.wgmma.accumulator_place`)
    counts       uint32, of each tile of rows how many tiles of keys have been added to it
    ticket       uint32, how many tiles of keys have been taken

So a warpgroup's fragment goes to memory as it lies in registers, 16 bytes a thread; four lanes' pieces are eight neighbours of two rows.

Tiles of fewer rows than a product has, 64, are *turned*: fragments of columns by rows. A block is what a warp has of one, 16 columns by 8
rows, of 512 bytes; those of the first columns come first. Of eight lanes' pieces 8 bytes each are eight neighbours of two rows.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.convert import element
from ....device.groups import access_words, make_reader, make_writer
from ....device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ....device.vec import advance, load2_if, store4
from ....device.warp import any_lane
from ....host.launch import Argument, Launch
from ..._flash import tiles_of
from ..._parameters import RowStrides, Sequences, Strides, kind_of, sequence_arguments, softmax_scale
from ..._scores import between, make_extent, make_tile
from .._delta import THREADS, TURNS, dots_of
from .._dscores import row_level

MOST_ROWS = 128     # of a tile
CONVERTERS = 256    # threads of a block that converts
NO_TILES = 1 << 30  # a ticket behind all tiles


class RowSizes(NamedTuple):
    """Queries and keys of an array, the queries of a head in the workspace, elements of a row of what is read or written, and sequences."""
    rows: i32
    keys: i32
    padded: i32
    columns: i32
    batch: i32


@dataclass(frozen=True)
class Space:
    """Where the workspace has what, in bytes; tiles of rows have `width`. Sums begin from zero unless the first tile of keys is `stored`.
    """
    lines: int
    rows: int
    columns: int
    width: int
    stored: bool

    @property
    def tiles(self):
        """Of rows of a head."""
        return self.rows // self.width

    @property
    def turned(self):
        return self.width < 64

    @property
    def sums(self):
        """Behind the numbers."""
        return 8 * self.lines * self.rows

    @property
    def counts(self):
        return self.sums + 4 * self.lines * self.rows * self.columns

    @property
    def ticket(self):
        return self.counts + 4 * ceil_div(self.lines * self.tiles, 4) * 4

    @property
    def bytes(self):
        return self.ticket + 16

    @property
    def cleared(self):
        """(first byte, units of 16 bytes) of what is zero before the kernel begins."""
        begin = self.counts if self.stored else self.sums
        return begin, (self.bytes - begin) // 16


def space_of(problem, width, stored):
    """The space of a problem."""
    p = problem
    pad = pad_of(width)
    return Space(p.images * p.heads, tiles_of(p, p.rows, pad) * pad, columns_of(p.d, width), width, stored)


def pad_of(width):
    """What rows of a head are a multiple of: those of a tile, and of a block of sums."""
    return max(width, 64)


def columns_of(d, width):
    """Columns of the sums of heads of d elements: whole blocks."""
    block = 16 if width < 64 else 8
    return ceil_div(d, block) * block


def countable(problem):
    """Why the sums cannot be counted by 32-bit integers, or None."""
    p = problem
    units = p.images * p.heads * tiles_of(p, p.rows, MOST_ROWS) * MOST_ROWS * (columns_of(p.d, 32) // 8)
    return None if units < LIMIT else f"dq of {units} groups of 8 elements; expected fewer than 2**31"


@functools.cache
def make_place(kind, width):
    """Device functions ``begin(sequence, first_row)``: which of the workspace's rows is the first one of a sequence, and ``find(image,
    place, sequences, batch, rows, keys)`` -> (the sequence's first row, its number in the sequence, rows of the sequence) of one of them.
    Numbers of those that are no row are beyond.

    Packed sequences are tiles of `pad_of` rows there as `make_tile` counts them, those behind the last sequence too.
    """
    PACKED, PAD, extent = kind.packed, pad_of(width), make_extent(kind)
    sequence_of, LOG_PAD = make_tile(True, PAD), PAD.bit_length() - 1

    @device_function
    def begin(sequence, first_row):
        return (first_row & -PAD) + sequence * PAD if PACKED else i32(0)

    @device_function
    def find(image, place, sequences, batch, rows, keys):
        sequence, row = image, place
        if PACKED:
            sequence, row = sequence_of(image, place >> LOG_PAD, sequences.rows, sequences.row_step, batch, rows)
            row = row + (place & (PAD - 1))
        first, count, _, _ = extent(sequence, sequences, batch, rows, keys)
        if PACKED and row < 0:  # before the first sequence
            row = count
        return first, row, count
    return begin, find


def numbers_launch(problem, space):
    """The launch that leaves levels and deltas, and clears what is added to."""
    p, dots, pointer = problem, dots_of(problem), element(problem.dtype).pointer
    tiles = ceil_div(space.rows, dots.per_block)
    first, units = space.cleared
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument("float32*", "lse"),
                 Argument("float32*", "workspace"), Argument("uint32*", "workspace", first), Argument("int64", units),
                 Argument("int32", ceil_div(units, tiles * space.lines * THREADS)),
                 Argument(RowSizes, (p.rows, p.keys, space.rows, p.dv, p.batch)), Argument(Divisor, divisor(tiles)),
                 Argument(Divisor, divisor(p.heads)), *(Argument(Strides, p.strides(t)) for t in (p.do, p.o)),
                 Argument(RowStrides, p.lse_strides), *sequence_arguments(p))
    return Launch(numbers_kernel(kind_of(p), dots, space.width), (tiles * space.lines, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def numbers_kernel(kind, dots, width):
    """Rows of one head a block. Where packed sequences' offsets decrease, tiles of keys are not what rows wait for: there are none then."""
    LANES, total, (_, find), PACKED = dots.lanes, dots.total, make_place(kind, width), kind.packed
    ROWS = THREADS // LANES

    @device_function
    def decrease(offsets, step, batch, count):
        """Whether offsets do, in some lane."""
        found = False
        for b in range(cuda.threadIdx.x, batch, 32):
            if between(offsets[b * step], 0, count) > between(offsets[(i64(b) + 1) * step], 0, count):
                found = True
        return any_lane(found)

    @jit(launch_bounds=(THREADS, 4))
    def sdpa_bwd_numbers(do, o, lse, numbers, cleared, units, clears, sizes, tiles, heads_of, do_strides, o_strides, lse_strides, of_rows,
                         of_keys, row_step, key_step):
        place, tile = divide_remainder(cuda.blockIdx.x, tiles)
        image, h = divide_remainder(place, heads_of)
        all_rows, all_keys, batch = sizes.rows, sizes.keys, sizes.batch
        padded, elements, last = sizes.padded, sizes.columns, units - PACKED
        lane, line = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
        for turn in range(clears):
            unit = (turn * i64(cuda.gridDim.x) + cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if unit < last:
                store4(cleared, 4 * unit, (u32(0), u32(0), u32(0), u32(0)))
        if PACKED and cuda.blockIdx.x == 0 and cuda.threadIdx.x < 32:
            wrong_rows, wrong_keys = decrease(of_rows, row_step, batch, all_rows), decrease(of_keys, key_step, batch, all_keys)
            ticket = u32(NO_TILES) if wrong_rows or wrong_keys else u32(0)
            if cuda.threadIdx.x == 0:
                store4(cleared, 4 * last, (ticket, ticket, u32(0), u32(0)))
        of_do = advance(do, image * do_strides.batch + h * do_strides.head)
        of_o = advance(o, image * o_strides.batch + h * o_strides.head)
        of_lse = image * lse_strides.batch + h * lse_strides.head
        for turn in range(TURNS):
            i = (tile * TURNS + turn) * ROWS + line
            first, row, rows = find(image, i, Sequences(of_rows, of_keys, row_step, key_step), batch, all_rows, all_keys)
            delta = total(of_do, of_o, first + row, row < rows, elements, do_strides, o_strides, lane)
            if lane == 0 and i < padded:
                at = (place * i64(padded) + (i & -width)) * 2 + (i & (width - 1))
                numbers[at] = row_level(lse, of_lse + (first + row) * lse_strides.row, row < rows)
                numbers[at + width] = delta
    return sdpa_bwd_numbers


def dq_launch(problem, space):
    """The launch that rounds the sums, times the scale, to dq."""
    p, t = problem, problem.dq
    groups = space.columns // (16 if space.turned else 8)
    words = access_words(t, 8, p.strides(t)[:-1]) if p.strides(t)[-1] == 1 and p.d % 8 == 0 else 0
    per_block = divisor(ceil_div(4 * space.columns, CONVERTERS))
    blocks_of_a_line = (space.rows if p.packed else ceil_div(p.rows, 64) * 64) // 64
    blocks = space.lines * blocks_of_a_line * per_block[0]
    arguments = (Argument("float32*", "workspace", space.sums), Argument("uint32*", "workspace", space.counts),
                 Argument(element(t.dtype).pointer, "dq"), Argument(Strides, p.strides(t)),
                 Argument(RowSizes, (p.rows, p.keys, space.rows, p.d, p.batch)), Argument("uint32x3", per_block),
                 Argument(Divisor, divisor(groups)), Argument(Divisor, divisor(blocks_of_a_line)),
                 Argument(Divisor, divisor(p.heads)), *sequence_arguments(p), Argument("float32", softmax_scale(p)))
    return Launch(dq_kernel(kind_of(p), words, space.width, space.stored), (blocks, 1, 1), (CONVERTERS, 1, 1), arguments)


@functools.cache
def dq_kernel(kind, words, width, stored):
    """A thread eight neighbours of two rows, or single elements where they are no group of whole words."""
    RAW, LENGTH, fetch, unpack = make_reader("float32", 16, 4, constant=False)
    put, store, (_, find), PACKED = make_writer(kind.dtype, 8, words), element(kind.dtype).store, make_place(kind, width), kind.packed
    TURNED, APART, LOG_WIDTH = width < 64, 1 if width < 64 else 8, width.bit_length() - 1  # a thread's two rows are so far apart

    @device_function
    def write(dq, strides, row, column, elements, values, scale):
        for c in range(8):
            values[c] = values[c] * scale
        if words:
            if column < elements:
                put(advance(dq, row * strides.row + column), 0, values, 0)
        else:
            for c in range(8):
                if column + c < elements:
                    store(dq, row * strides.row + (column + c) * strides.column, values[c])

    @device_function
    def place_of(index, groups):
        """(the first row of 64, the first column) of a thread."""
        if TURNED:
            eight, group = divide_remainder(i32(index >> 3), groups)
            return i32(eight * 8 + (index >> 1 & 3) * 2), i32(group * 16 + (index & 1) * 8)
        pair, group = divide_remainder(index, groups)
        return (pair >> 3) * 16 + (pair & 7), group * 8

    @device_function
    def tile_of(own, row):
        """The tile of a row of block `own` of 64 rows."""
        return (own * 64 + row) >> LOG_WIDTH

    @device_function
    def read(upper, lower, sums, own, row, column, groups, there):
        if TURNED:
            block = i64(tile_of(own, row) * i64(groups) + i64(column >> 4))
            at = i64(block * i64(16 * width) + i64(i32(((row & (width - 1)) >> 3) * 128) + i32((row & 6) * 2) + i32((column & 8) >> 2)))
            for c in range(8):
                upper[c], lower[c] = load2_if(sums, i64(at + i64(16 * c)), there)
        else:
            raw, values = cuda.local.array(LENGTH, RAW), cuda.local.array(16, f32)
            at = (own * groups + (column >> 3)) * 512 + ((row >> 4) * 128 + (row & 7) * 16)
            fetch(raw, 0, advance(sums, at), 0, there)
            unpack(values, 0, raw, 0)
            for lane in range(4):
                for e in range(2):
                    upper[2 * lane + e], lower[2 * lane + e] = values[4 * lane + e], values[4 * lane + 2 + e]

    @jit(launch_bounds=(CONVERTERS, 2))
    def sdpa_bwd_dq(sums, counts, dq, dq_strides, sizes, per_block, groups_of, blocks_of, heads_of, of_rows, of_keys, row_step, key_step,
                    scale):
        place, part = divide_remainder(cuda.blockIdx.x, per_block)
        line, block = divide_remainder(place, blocks_of)
        image, h = divide_remainder(line, heads_of)
        first, column = place_of(part * CONVERTERS + cuda.threadIdx.x, groups_of)
        if first < 64:
            own = line * i64(sizes.padded >> 6) + block
            first_row, row, rows = find(image, block * 64 + first, Sequences(of_rows, of_keys, row_step, key_step), sizes.batch,
                                        sizes.rows, sizes.keys)
            written = rows if PACKED else sizes.rows
            there = 1
            if stored:
                there = i32(counts[tile_of(own, first)] > 0)
            upper, lower = cuda.local.array(8, f32), cuda.local.array(8, f32)
            read(upper, lower, sums, own, first, column, groups_of[0], there)
            for c in range(8):
                upper[c] = upper[c] if row < rows else f32(0)
                lower[c] = lower[c] if row + APART < rows else f32(0)
            to = advance(dq, image * dq_strides.batch + h * dq_strides.head + first_row * dq_strides.row)
            if row < written:
                write(to, dq_strides, i64(row), column, sizes.columns, upper, scale)
            if row + APART < written:
                write(to, dq_strides, row + i64(APART), column, sizes.columns, lower, scale)
    return sdpa_bwd_dq
