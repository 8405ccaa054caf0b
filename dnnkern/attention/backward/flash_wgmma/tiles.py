"""Which tile of keys a block takes, which rows pass it, and which tiles of keys a tile of rows passes (`sdpa_bwd_flash_wgmma`)."""
import functools
from typing import NamedTuple

from ....device import cuda, device_function, i32, u32
from ....device.index import divide_remainder, divisor
from ....device.scheduler import make_longest_first
from ....device.vec import load_shared_4u32, load_shared_u32, store_shared_4u32, store_shared_u32
from ..._scores import make_extent, make_terms, make_tile
from .dq import make_place


class Sizes(NamedTuple):
    """Queries and keys of an array, the queries of a head in the workspace, in how many tiles, and sequences."""
    rows: i32
    keys: i32
    padded: i32
    tiles: i32
    batch: i32


class Where(NamedTuple):
    """A block's tile: its sequence, head of k and v, first query head, first key; where the steps over its queries begin and end."""
    sequence: i32
    kv_head: i32
    head: i32
    start: i32
    begin: i32
    end: i32


@functools.cache
def make_ranges(kind, height, width):
    """Device functions ``rows_of(start, rows, keys, bounds)`` -> (first, behind the last) of the rows that pass the tile of keys from
    `start` on, the first one a multiple of `width`, and ``tiles_of(at, rows, keys, bounds)``: of the tiles of keys that the tile of rows
    from `at` on passes, which follow one another, the numbers of the first and the last."""
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
    def tiles_of(at, rows, keys, bounds):
        begin, _ = terms.key_range(at, rows, keys, bounds)
        _, seen = terms.key_range(min(at + width, rows) - 1, rows, keys, bounds)
        first, _ = divide_remainder(begin, BY_HEIGHT)
        last, _ = divide_remainder(min(seen, keys) - 1, BY_HEIGHT)
        return first, last
    return rows_of, tiles_of


@functools.cache
def make_tickets(config, down):
    """Device functions of a block's tile, which one thread finds by its number and leaves in shared memory, at `told`: ``tell(told, ticket,
    order, sequences, sizes)``, ``place_of(told, ...)``, ``extent_of(told, sequence, ...)``, ``work_of(told, ...)``; and `make_ranges`'s
    ``tiles_of``."""
    kind, height, width = config.kind, config.shape.height, config.shape.width
    terms, tile_of, extent = make_terms(kind), make_tile(kind.packed, height), make_extent(kind)
    locate = make_longest_first(1, config.by_head)
    (begin_of, _), (rows_of, tiles_of), BY_WIDTH = make_place(kind, width), make_ranges(kind, height, width), divisor(width)
    DOWN, PACKED = down, kind.packed

    @device_function
    def locate_tile(ticket, order, sequences, sizes):
        """(sequence, head of keys, first key) of the tile of this number; packed, one behind all keys where there is none."""
        image, own_head, _, tile = locate(ticket, order)
        if DOWN:
            tile = order.tiles - 1 - tile
        sequence, start = tile_of(image, tile, sequences.keys, sequences.key_step, sizes.batch, sizes.keys)
        if PACKED and (start < 0 or ticket >= cuda.gridDim.x):
            start = sizes.keys
        return sequence, own_head, start

    @device_function
    def tell(told, ticket, order, sequences, sizes):
        """Leaves the block's tile in shared memory: its number, or, of packed sequences, what takes a search."""
        if PACKED:
            sequence, own_head, start = locate_tile(ticket, order, sequences, sizes)
            first_row, rows, first_key, keys = extent(sequence, sequences, sizes.batch, sizes.rows, sizes.keys)
            if sequence == sizes.batch:  # behind the last sequence
                rows = 0
            store_shared_4u32(told, u32(sequence), u32(own_head), u32(start), u32(rows))
            store_shared_4u32(told + 16, u32(keys), u32(first_row), u32(first_key), u32(begin_of(sequence, first_row)))
        else:
            store_shared_u32(told, u32(ticket))

    @device_function
    def place_of(told, order, sequences, sizes):
        """(sequence, head of keys, first key) of the block's tile."""
        if PACKED:
            words = load_shared_4u32(told)
            return i32(words[0]), i32(words[1]), i32(words[2])
        return locate_tile(i32(load_shared_u32(told)), order, sequences, sizes)

    @device_function
    def extent_of(told, sequence, sequences, sizes):
        """(rows, keys, first row, first key, first row in the workspace) of its sequence."""
        if PACKED:
            words = load_shared_4u32(told + 16)
            return i32(load_shared_u32(told + 12)), i32(words[0]), i32(words[1]), i32(words[2]), i32(words[3])
        _, rows, _, keys = terms.lengths(sequence, sequences, sizes.rows, sizes.keys)
        return rows, keys, i32(0), i32(0), i32(0)

    @device_function
    def work_of(told, order, sequences, sizes, members, bounds):
        """(`Where` of the block's tile, (the sequence's first row and key, its first row in the workspace), rows, keys)."""
        sequence, own_head, start = place_of(told, order, sequences, sizes)
        rows, keys, first_row, first_key, place = extent_of(told, sequence, sequences, sizes)
        begin, end = rows_of(start, rows, keys, bounds)
        if DOWN:
            count, _ = divide_remainder(end - begin + (width - 1), BY_WIDTH)
            begin, end = begin + (count - 1) * width, begin - width
        where = Where(sequence, own_head, own_head * members, start, begin, end)
        return where, (first_row, first_key, place), rows, keys
    return tell, place_of, extent_of, work_of, tiles_of


@functools.cache
def make_walk(width, down):
    """Device functions ``is_left(at, end)`` and ``following(at, member, begin, end, members)`` of a block's steps."""
    DOWN, STEP = down, -width if down else width

    @device_function
    def is_left(at, end):
        """Whether there are rows between."""
        return at > end if DOWN else at < end

    @device_function
    def following(at, member, begin, end, members):
        """The next step, of another row of tiles or head of the group. Down all blocks of a group are at the same rows, and what one has to
        wait for is a step ahead: heads take turns at the same rows. Up the rows of a head come one after another: it is in the L2."""
        if DOWN:
            member = member + 1
            if member == members:
                at, member = at + STEP, i32(0)
        else:
            at = at + STEP
            if not is_left(at, end):
                at, member = begin, member + 1
        return at, member
    return is_left, following
