"""The tile of queries of a block, and its keys: what the kernels forward without Hopper's tensor cores share.

A block has one tile. Those of the last queries come first: with a causal mask they attend to the most keys.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, i32
from ...device.index import Divisor, divide_remainder
from .._scores import make_extent, make_terms, make_tile


class Grid(NamedTuple):
    """How blocks are numbered: query heads of all images, those of an image, tiles of a head, query heads per head of k and v; sequences,
    queries and keys of an array."""
    lines: Divisor
    heads: Divisor
    tiles: i32
    group: Divisor
    sizes: object


class Tile(NamedTuple):
    """Image, query head, head of k and v, query head of all sequences; first query, and how many are written, of a sequence that begins
    with `first_row` and `first_key` of the arrays, has `rows` and `keys`, and whose query i has position ``i + shift``."""
    image: i32
    h: i32
    kv_head: i32
    head: i32
    i0: i32
    written: i32
    first_row: i32
    first_key: i32
    rows: i32
    keys: i32
    shift: i32


class Keys(NamedTuple):
    """Those that a tile attends to, from `begin` to `end`; all its queries attend to those from `full_begin` to `full_end`."""
    begin: i32
    end: i32
    full_begin: i32
    full_end: i32


@functools.cache
def make_locate(kind, height, multiple=1):
    """Device functions ``locate(grid, sequences)`` -> the block's `Tile`, and ``keys_of(tile, bounds)`` -> its `Keys`, which begin with a
    multiple of `multiple`. Only where 0 <= i0 < written there is such a tile."""
    terms, extent, tile_of, PACKED = make_terms(kind), make_extent(kind), make_tile(kind.packed, height), kind.packed

    @device_function
    def locate(grid, sequences):
        batch, all_rows, all_keys = grid.sizes
        rank, line = divide_remainder(cuda.blockIdx.x, grid.lines)
        image, h = divide_remainder(line, grid.heads)
        kv_head, _ = divide_remainder(h, grid.group)
        b, i0 = tile_of(image, grid.tiles - 1 - rank, sequences.rows, sequences.row_step, batch, all_rows)
        first_row, rows, first_key, keys = extent(b, sequences, batch, all_rows, all_keys)
        if PACKED and b == batch:
            first_key, keys = i32(0), i32(0)
        return Tile(image, h, kv_head, b * i32(grid.heads.d) + h, i0, rows if PACKED else all_rows, first_row, first_key, rows, keys,
                    terms.shift(rows, keys))

    @device_function
    def keys_of(tile, bounds):
        begin, full_end = terms.key_range(tile.i0, tile.rows, tile.keys, bounds)
        full_begin, end = terms.key_range(min(tile.i0 + height, tile.rows) - 1, tile.rows, tile.keys, bounds)
        if tile.i0 >= tile.rows:
            end = begin
        return Keys(begin & -multiple, end, full_begin, full_end)
    return locate, keys_of
