"""Tiles of rows in shared memory, as float32 or float64, and their products in registers: what the algorithms on CUDA cores share.

A tile lies in shared memory row by row, each of `pitch` elements, an odd number of 16 bytes, so that threads that read neighbouring rows
meet no bank twice; columns and rows beyond the array are zeros. A warp has `lanes` threads side by side and 32 / lanes rows of threads: a
thread's rows are `rows` neighbours, its columns of a product of two tiles are `lanes` apart, and those of a product with a tile of values
come in groups of 16 bytes that are `lanes` groups apart.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, u32
from ..device.convert import element
from ..device.cp_async import copy_async16
from ..device.dot import make_outer
from ..device.groups import access_words, make_reader, make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import (address, advance, load_shared_2f64, load_shared_4f32, store_shared_2f64, store_shared_4f32)
from ._parameters import Strides
from ._scores import stride_of_key


@dataclass(frozen=True)
class Threads:
    """`lanes` x `lines` threads, each with `rows` x `columns` of a product of two tiles."""
    rows: int
    columns: int
    lanes: int
    lines: int

    @property
    def count(self):
        return self.lanes * self.lines

    @property
    def height(self):
        """Rows of the product."""
        return self.rows * self.lines

    @property
    def width(self):
        """Its columns."""
        return self.columns * self.lanes


class Sequence(NamedTuple):
    """Queries and keys of a sequence, how far queries are shifted among the keys, and the window."""
    rows: i32
    keys: i32
    shift: i32
    bounds: object


class Mask(NamedTuple):
    """A boolean mask, where the head's begins, its strides."""
    data: object
    at: i64
    strides: Strides


def item_of(dtype):
    """Bytes of an element in shared memory."""
    return 8 if dtype == "float64" else 4


def group_of(dtype):
    """Elements in 16 bytes of shared memory."""
    return 16 // item_of(dtype)


def padded(n, multiple):
    return max(ceil_div(n, multiple), 1) * multiple


def pitch_of(elements, dtype):
    """Elements from a row of a tile to the next one, for rows of so many."""
    group = group_of(dtype)
    groups = ceil_div(elements, group)
    return (groups + 1 - groups % 2) * group


@dataclass(frozen=True)
class Source:
    """How a tile is read: elements of a row, and `access`: "async", 16 bytes from global to shared memory, or the 32-bit words of an
    access through registers, of `chunk` elements, or 0: single elements of any stride."""
    dtype: str
    elements: int
    access: object
    chunk: int


def source_of(t, strides):
    """The source of tiles of a tensor, whose last stride is that of a row's elements."""
    group, n = group_of(t.dtype), t.shape[-1]
    wide = max(group, 16 // t.itemsize)
    for chunk in dict.fromkeys((wide, group)):
        words = access_words(t, chunk, strides[:-1])
        if strides[-1] == 1 and words and n % chunk == 0:
            return Source(t.dtype, n, "async" if words == 4 and t.itemsize >= 4 else words, chunk)
    return Source(t.dtype, n, 0, group)


@functools.cache
def make_loader(source, height, width, pitch, threads, row_at=stride_of_key):
    """Device function ``load(to, p, first, left, steps, thread)``: rows first, ... of the rows at p to the shared address `to`, `height` of
    `width` elements; those from row `left` on are zeros. `steps` are the strides of rows and elements; ``row_at(row, steps)`` are the
    elements before a row that is there."""
    T, GROUP, ITEM = (f64, 2, 8) if source.dtype == "float64" else (f32, 4, 4)
    CHUNK, ACCESS, ELEMENTS = source.chunk, source.access, source.elements
    CHUNKS = ceil_div(width, CHUNK)
    COUNT = height * CHUNKS
    TURNS, PARTIAL = ceil_div(COUNT, threads), COUNT % threads != 0
    SIZE, MULTIPLIER, SHIFT = divisor(CHUNKS)
    store_group = store_shared_2f64 if GROUP == 2 else store_shared_4f32
    if ACCESS == "async":
        @device_function
        def copy(to, p, row, column, there, steps):
            inside = there and column < ELEMENTS
            at = row_at(row, steps) + column if inside else i64(0)
            copy_async16(to, address(p, at), i64(0), u32(16) if inside else u32(0))
    elif ACCESS:
        RAW, LENGTH, fetch, unpack = make_reader(source.dtype, CHUNK, ACCESS)

        @device_function
        def copy(to, p, row, column, there, steps):
            raw, values = cuda.local.array(LENGTH, RAW), cuda.local.array(CHUNK, T)
            inside = there and column < ELEMENTS
            at = row_at(row, steps) + column if inside else i64(0)
            fetch(raw, 0, advance(p, at), 0, i32(inside))
            unpack(values, 0, raw, 0)
            for c in range(0, CHUNK, GROUP):
                put_group(to + u32(c * ITEM), values, c)
    else:
        load_one = element(source.dtype).load

        @device_function
        def copy(to, p, row, column, there, steps):
            values = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                values[c] = T(0)
                if there and column + c < ELEMENTS:
                    values[c] = T(load_one(p, row_at(row, steps) + (column + c) * steps[1]))
            put_group(to, values, 0)

    @device_function
    def put_group(to, values, c):
        if GROUP == 4:
            store_group(to, values[c], values[c + 1], values[c + 2], values[c + 3])
        else:
            store_group(to, values[c], values[c + 1])

    @device_function
    def load(to, p, first, left, steps, thread):
        for turn in range(TURNS):
            index = thread + turn * threads
            if not PARTIAL or index < COUNT:
                row, chunk = divide_remainder(index, (SIZE, MULTIPLIER, SHIFT))
                column = chunk * CHUNK
                copy(to + u32((row * pitch + column) * ITEM), p, first + row, column, first + row < left, steps)
    return load


@functools.cache
def make_products(threads, dtype):
    """Host functions ``transposed(first)`` and ``straight(width, first)``, which make device functions of a thread:

    ``product(sums, a, b, pitch, groups)`` adds to sums[first + r * columns + c] the product of row r from the shared address a on and row
    c * lanes from b on, over `groups` of 16 bytes;
    ``product(sums, a, a_pitch, b, b_pitch, height)`` adds to sums[first + r * n + c] the product of row r from a on and the thread's column
    c of `height` rows from b on, of which it has n of `width`, in groups of 16 bytes.
    """
    T, G, ITEM = (f64, 2, 8) if dtype == "float64" else (f32, 4, 4)
    ROWS, COLUMNS, LANES = threads.rows, threads.columns, threads.lanes
    A, B = G * ROWS, G * COLUMNS
    load = load_shared_2f64 if G == 2 else load_shared_4f32

    @device_function
    def spread(buffer, k, step, at):
        """Neighbours `step` apart."""
        if G == 4:
            buffer[k], buffer[k + step], buffer[k + 2 * step], buffer[k + 3 * step] = load(at)
        else:
            buffer[k], buffer[k + step] = load(at)

    def transposed(first):
        outer = make_outer(ROWS, COLUMNS, first=first)

        @device_function
        def product(sums, a, b, pitch, groups):
            of_a, of_b = cuda.local.array(A, T), cuda.local.array(B, T)
            for group in range(groups):
                for r in range(ROWS):
                    spread(of_a, r, ROWS, a + u32((r * pitch + group * G) * ITEM))
                for c in range(COLUMNS):
                    spread(of_b, c, COLUMNS, b + u32((c * LANES * pitch + group * G) * ITEM))
                for g in range(G):
                    outer(sums, of_a, g * ROWS, of_b, g * COLUMNS)
        return product

    def straight(width, first=0):
        COUNT = width // LANES
        outer = make_outer(ROWS, COUNT, first=first)

        @device_function
        def product(sums, a, a_pitch, b, b_pitch, height):
            of_a, of_b = cuda.local.array(A, T), cuda.local.array(COUNT, T)
            for group in range(height // G):
                for r in range(ROWS):
                    spread(of_a, r, ROWS, a + u32((r * a_pitch + group * G) * ITEM))
                for g in range(G):
                    for c in range(0, COUNT, G):
                        spread(of_b, c, 1, b + u32(((group * G + g) * b_pitch + c * LANES) * ITEM))
                    outer(sums, of_a, g * ROWS, of_b, 0)
        return product
    return transposed, straight


def words_of(t, strides):
    """32-bit words of a store of 16 bytes' elements of shared memory to rows of a tensor; 0: element by element."""
    group = group_of(t.dtype)
    return access_words(t, group, strides[:-1]) if strides[-1] == 1 and t.shape[-1] % group == 0 else 0


@functools.cache
def make_row_store(dtype, elements, words, lanes, count):
    """Device function ``store(row, step, lane, sums, k)``: sums[k:k+count], a thread's columns of a row, which is `elements` long."""
    GROUP, put, store_one = group_of(dtype), make_writer(dtype, group_of(dtype), words), element(dtype).store

    @device_function
    def store(row, step, lane, sums, k):
        for c in range(0, count, GROUP):
            column = lane * GROUP + c * lanes
            if words:
                if column < elements:
                    put(row, column, sums, k + c)
            else:
                for e in range(GROUP):
                    if column + e < elements:
                        store_one(row, (column + e) * step, sums[k + c + e])
    return store
