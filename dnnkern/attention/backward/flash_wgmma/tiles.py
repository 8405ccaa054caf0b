"""Which tile of keys a block takes, which tiles of queries pass it, and where the workspace has a query (`flash_wgmma`)."""
import functools
from typing import Callable, NamedTuple

from ....device import cuda, device_function, i32, u32
from ....device.grid import load_acquired
from ....device.index import divide_remainder, divisor
from ....device.mbarrier import fence_async_global
from ....device.scheduler import make_longest_first
from ....device.vec import load_shared_4u32, load_shared_u32, store_shared_4u32, store_shared_u32
from ....engine.document_blocks import make_is_tile_there
from ..._scores import make_extent, make_terms, make_tile
from .parameters import Tile


def padding(width):
    """What queries of a head are a multiple of in the workspace: those of a tile, and of a block of dq."""
    return max(width, 64)


class Rows(NamedTuple):
    """Device functions of the workspace's queries.

    begin(sequence, first_row)
        Which of them is the first one of a sequence.
    find(image, padded, sequences, batch, rows, keys)
        (the sequence's first row, its number in the sequence, rows of the sequence) of one of them. RowStats of those that are no row are
        past the end.
    """
    begin: Callable
    find: Callable


@functools.cache
def make_rows(kind, width) -> Rows:
    """Packed sequences are tiles of `padding` rows in the workspace as `make_tile` counts them, those after the last sequence too."""
    PACKED, PAD, extent = kind.packed, padding(width), make_extent(kind)
    sequence_of, LOG_PAD = make_tile(True, PAD), PAD.bit_length() - 1

    @device_function
    def begin(sequence, first_row):
        return (first_row & -PAD) + sequence * PAD if PACKED else i32(0)

    @device_function
    def find(image, padded, sequences, batch, rows, keys):
        sequence, row = image, padded
        if PACKED:
            sequence, row = sequence_of(image, padded >> LOG_PAD, sequences.rows, sequences.row_step, batch, rows)
            row = row + (padded & (PAD - 1))
        first, count, _, _ = extent(sequence, sequences, batch, rows, keys)
        if PACKED and row < 0:  # before the first sequence
            row = count
        return first, row, count
    return Rows(begin, find)


@functools.cache
def make_ranges(kind, height, width):
    """Device functions ``rows_of(start, rows, keys, bounds)`` -> (first, end) of the queries that attend to the tile of keys from `start`
    on, the first one a multiple of `width`, and ``key_tiles(row, rows, keys, bounds)``: of the tiles of keys that the tile of queries from
    `row` on attends to, which follow one another, the numbers of the first and the last."""
    terms, BY_WIDTH, BY_HEIGHT = make_terms(kind), divisor(width), divisor(height)

    @device_function
    def rows_of(start, rows, keys, bounds):
        first, _ = terms.query_range(start, rows, keys, bounds)
        _, last = terms.query_range(min(start + height, keys) - 1, rows, keys, bounds)
        last = min(last, rows)
        tile, _ = divide_remainder(first, BY_WIDTH)
        if start < keys and first < last:
            return tile * width, last
        return i32(0), i32(0)

    @device_function
    def key_tiles(row, rows, keys, bounds):
        begin, _ = terms.key_range(row, rows, keys, bounds)
        _, end = terms.key_range(min(row + width, rows) - 1, rows, keys, bounds)
        first, _ = divide_remainder(begin, BY_HEIGHT)
        last, _ = divide_remainder(min(end, keys) - 1, BY_HEIGHT)
        return first, last
    return rows_of, key_tiles


@functools.cache
def make_turns(config, down):
    """Device function ``wait_for_turn(count, row, tile, mine, work)``: wait until the tiles of keys whose turn is before that of number
    `mine` have been added to a tile of queries; whether there are any."""
    kind, HEIGHT, WIDTH, DOWN = config.kind, config.shape.height, config.shape.width, down
    (_, key_tiles), SKIPS = make_ranges(kind, HEIGHT, WIDTH), kind.documents >= 0
    is_there = make_is_tile_there(kind.documents, WIDTH, HEIGHT)

    @device_function
    def wait_for_turn(count, row, tile, mine, work):
        low, high = key_tiles(row, tile.rows, tile.keys, work.bounds)
        before = mine - low if DOWN else high - mine
        if SKIPS:
            before = 0
            for n in range(low if DOWN else mine + 1, mine if DOWN else high + 1):
                if is_there(work.operands, tile.sequence, row, n * HEIGHT):
                    before = before + 1
        while load_acquired(count) != u32(before):
            pass
        fence_async_global()
        return before != 0
    return wait_for_turn


@device_function
def signed(words):
    a, b, c, d = words
    return i32(a), i32(b), i32(c), i32(d)


class Tiles(NamedTuple):
    """Device functions of a block's tile and of its steps.

    publish(to, ticket, work)
        One thread finds the tile by its number, and leaves in shared memory what finding it again takes.
    locate(at, work)
        (sequence, head of k and v, first key) of the tile.
    extent(at, sequence, work)
        (rows, keys, first row, first key, first of the workspace's queries) of its sequence.
    read(at, work)
        The whole `Tile`.
    is_left(row, tile)
        Whether there is a tile of queries at `row`.
    next(row, member, tile, at, work)
        The next step, of another tile of queries or head of the group.
    """
    publish: Callable
    locate: Callable
    extent: Callable
    read: Callable
    is_left: Callable
    next: Callable


@functools.cache
def make_tiles(config, down) -> Tiles:
    """Of a configuration, from the last keys to the first or `down` the other way round."""
    kind, height, width = config.kind, config.shape.height, config.shape.width
    terms, tile_of, extent_of = make_terms(kind), make_tile(kind.packed, height), make_extent(kind)
    position_of = make_longest_first(1, config.by_head)
    begin_of, (rows_of, _), BY_WIDTH = make_rows(kind, width).begin, make_ranges(kind, height, width), divisor(width)
    DOWN, PACKED, STEP, SKIPS = down, kind.packed, -width if down else width, kind.documents >= 0
    is_there = make_is_tile_there(kind.documents, width, height)

    @device_function
    def find_tile(ticket, work):
        """(sequence, head of k and v, first key) of the tile of this number; packed, a key past the end where there is none."""
        image, kv_head, _, tile = position_of(ticket, work.order)
        if DOWN:
            tile = work.order.tiles - 1 - tile
        sequence, key = tile_of(image, tile, work.sequences.keys, work.sequences.key_step, work.sizes.batch, work.sizes.keys)
        if PACKED and (key < 0 or ticket >= cuda.gridDim.x):
            key = work.sizes.keys
        return sequence, kv_head, key

    @device_function
    def publish(to, ticket, work):
        if PACKED:  # takes a search
            sequence, kv_head, key = find_tile(ticket, work)
            first_row, rows, first_key, keys = extent_of(sequence, work.sequences, work.sizes.batch, work.sizes.rows, work.sizes.keys)
            if sequence == work.sizes.batch:  # after the last sequence
                rows = 0
            store_shared_4u32(to, u32(sequence), u32(kv_head), u32(key), u32(rows))
            store_shared_4u32(to + 16, u32(keys), u32(first_row), u32(first_key), u32(begin_of(sequence, first_row)))
        else:
            store_shared_u32(to, u32(ticket))

    @device_function
    def locate(at, work):
        if PACKED:
            sequence, kv_head, key, _ = signed(load_shared_4u32(at))
            return sequence, kv_head, key
        return find_tile(i32(load_shared_u32(at)), work)

    @device_function
    def extent(at, sequence, work):
        if PACKED:
            keys, first_row, first_key, first_padded = signed(load_shared_4u32(at + 16))
            return i32(load_shared_u32(at + 12)), keys, first_row, first_key, first_padded
        _, rows, _, keys = terms.lengths(sequence, work.sequences, work.sizes.rows, work.sizes.keys)
        return rows, keys, i32(0), i32(0), i32(0)

    @device_function
    def next_there(row, end, at, work):
        """The first tile of queries from this one on whose documents may be those of the keys, or where there is none left. That is located
        again: nothing of it is kept in registers from step to step."""
        sequence, _, key = locate(at, work)
        while (row > end if DOWN else row < end) and not is_there(work.operands, sequence, row, key):
            row = row + STEP
        return row

    @device_function
    def read(at, work):
        sequence, kv_head, key = locate(at, work)
        rows, keys, first_row, first_key, first_padded = extent(at, sequence, work)
        begin, end = rows_of(key, rows, keys, work.bounds)
        if DOWN:
            count, _ = divide_remainder(end - begin + (width - 1), BY_WIDTH)
            begin, end = begin + (count - 1) * width, begin - width
        if SKIPS:
            begin = next_there(begin, end, at, work)
        return Tile(sequence, kv_head, kv_head * work.heads.group, key, begin, end, rows, keys, first_row, first_key, first_padded)

    @device_function
    def is_left(row, tile):
        return row > tile.end if DOWN else row < tile.end

    @device_function
    def following(row, member, tile, at, work):
        """Down all blocks of a group are at the same rows, and what one has to wait for is a step ahead: heads take turns at the same rows.
        Up the rows of a head come one after another: it is in the L2."""
        if DOWN:
            member = member + 1
            if member == work.heads.group:
                row, member = row + STEP, 0
                if SKIPS:
                    row = next_there(row, tile.end, at, work)
        else:
            row = row + STEP
            if SKIPS:
                row = next_there(row, tile.end, at, work)
            if not is_left(row, tile):
                row, member = tile.begin, member + 1
        return row, member
    return Tiles(publish, locate, extent, read, is_left, following)
