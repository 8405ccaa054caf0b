"""What kernels of the bias's gradient have in common: the items that share a tile of it, and how the tile leaves.

*Items* are the pairs of a tile of queries and a tile of keys, of the images and heads that share the tile of the gradient; with a bias that
is the same for all queries, or keys, of all tiles of queries, or keys, too. Those in which no query attends to a key are left out.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, u32
from ...device.convert import element
from ...device.groups import make_writer
from ...device.index import divide_remainder
from ...device.vec import advance, load_shared_4f32, load_shared_f32, store_shared_f32
from .._scores import make_terms

GROUP = 8  # neighbours of a row that a thread stores


class Extent(NamedTuple):
    """Rows and keys of the gradient."""
    rows: i32
    keys: i32


class Items(NamedTuple):
    """Of a tile: how many a block takes, and how many there are."""
    each: i32
    count: i32


class Work(NamedTuple):
    """What locates an item by its number: the first image and head that share the tile, its tile of queries and of keys; items along keys,
    queries and heads, as divisors; lengths of sequences, queries and keys of an array, window."""
    batch: i32
    head: i32
    row_tile: i32
    key_tile: i32
    key_items: object
    row_items: object
    head_items: object
    sequences: object
    rows: i32
    keys: i32
    bounds: object


@functools.cache
def make_items(kind, height, width, skips):
    """Device functions ``locate(item, work)``, ``key_bounds(i0, rows, keys, bounds)`` and ``next_item(item, end, work)``, of tiles of so
    many queries and keys; `skips`: whether there may be items in which no query attends to a key."""
    terms = make_terms(kind)

    @device_function
    def locate(item, work):
        """(image, head, first row, first key) of an item."""
        rest, key_tile = divide_remainder(item, work.key_items)
        rest, row_tile = divide_remainder(rest, work.row_items)
        b, h = divide_remainder(rest, work.head_items)
        return work.batch + b, work.head + h, (work.row_tile + row_tile) * height, (work.key_tile + key_tile) * width

    @device_function
    def key_bounds(i0, rows, keys, bounds):
        """Keys that some query of a tile attends to, first and end, and those that all of them attend to."""
        first, first_end = terms.key_range(i0, rows, keys, bounds)
        last_begin, last = terms.key_range(min(i0 + height, rows) - 1, rows, keys, bounds)
        return first, min(last, keys), last_begin, first_end

    @device_function
    def next_item(item, end, work):
        """The first item from this one on in which a query attends to a key."""
        if skips:
            masked = item < end
            while masked:
                b, _, i0, j0 = locate(item, work)
                _, rows, _, keys = terms.lengths(b, work.sequences, work.rows, work.keys)
                first, last, _, _ = key_bounds(i0, rows, keys, work.bounds)
                masked = i0 >= rows or max(first, j0) >= min(last, j0 + width)
                if masked:
                    item = item + 1
                    masked = item < end
        return item
    return locate, key_bounds, next_item


@functools.cache
def make_store_tile(out, words, shape, over_rows, over_keys):
    """Device function ``store(base, to, strides, i0, j0, rows, keys, thread)``: the tile in shared memory to a result of so many rows and
    keys, summed up over what that is the same for."""
    HEIGHT, WIDTH, PITCH, COUNT = shape.height, shape.width, 4 * shape.pitch, shape.count
    put, store = make_writer(out, GROUP, words), element(out).store
    GROUPS = WIDTH // GROUP

    @device_function
    def along(base, count, step):
        total = f32(0)
        for k in range(count):
            total = f32(total + load_shared_f32(base + u32(k * step)))
        return total

    @device_function
    def store_sums(base, to, strides, i0, j0, rows, keys, thread):
        if over_rows:
            if thread < WIDTH:
                total = along(base + u32(thread * 4), HEIGHT, PITCH)
                if over_keys:
                    store_shared_f32(base + u32(thread * 4), total)
                elif i32(j0 + thread) < keys:
                    store(to, i32(j0 + thread) * strides.column, total)
            if over_keys:
                cuda.syncthreads()
                if thread == 0:
                    store(to, i64(0), along(base, WIDTH, 4))
        elif thread < HEIGHT and i32(i0 + thread) < rows:
            store(to, i32(i0 + thread) * strides.row, along(base + u32(thread * PITCH), WIDTH, 4))

    @device_function
    def store_rows(base, to, strides, i0, j0, rows, keys, thread):
        values = cuda.local.array(GROUP, f32)
        for index in range(thread, HEIGHT * GROUPS, COUNT):
            row, column = index // GROUPS, index % GROUPS * GROUP
            i, j, source = i0 + row, j0 + column, base + u32(row * PITCH) + u32(column * 4)
            if i < rows and j < keys:
                values[0], values[1], values[2], values[3] = load_shared_4f32(source)
                values[4], values[5], values[6], values[7] = load_shared_4f32(source + 16)
                at = advance(to, i * strides.row)
                if words:
                    put(at, j, values, 0)
                else:
                    for e in range(GROUP):
                        if j + e < keys:
                            store(at, (j + e) * strides.column, values[e])
    return store_sums if over_rows or over_keys else store_rows
