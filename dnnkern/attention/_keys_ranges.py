"""Which rows a tile of keys is passed by, and which tiles of keys a tile of rows passes (`sdpa_bwd_flash_wgmma`)."""
import functools

from ..device import device_function, i32
from ..device.index import divide_remainder, divisor
from ._scores import make_terms


@functools.cache
def make_ranges(kind, height, width):
    """Device functions ``rows_of(start, rows, keys, bounds)`` -> (first, behind the last) of the rows that pass the tile of keys from
    `start` on, the first one a multiple of `width`, and ``tiles_of(at, rows, keys, bounds)``: of the tiles of keys that the tile of rows
    from `at` on passes, which follow one another, the numbers of the first and the last."""
    terms, BY_WIDTH, BY_HEIGHT = make_terms(kind), divisor(width), divisor(height)

    @device_function
    def rows_of(start, rows, keys, bounds):
        first, _ = terms.column(start, rows, keys, bounds)
        _, last = terms.column(i32(min(i32(start + height), keys) - 1), rows, keys, bounds)
        last = i32(min(last, rows))
        tile, _ = divide_remainder(first, BY_WIDTH)
        if start < keys and first < last:
            return i32(tile * width), last
        return i32(0), i32(0)

    @device_function
    def tiles_of(at, rows, keys, bounds):
        begin, _ = terms.span(at, rows, keys, bounds)
        _, seen = terms.span(i32(min(i32(at + width), rows) - 1), rows, keys, bounds)
        first, _ = divide_remainder(begin, BY_HEIGHT)
        last, _ = divide_remainder(i32(min(seen, keys) - 1), BY_HEIGHT)
        return first, last
    return rows_of, tiles_of
