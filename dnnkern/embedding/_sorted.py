"""The positions of each row of the table, in order: two launches that sort all indices.

A block of the first sorts a tile of neighbouring positions by bucket, some neighbouring rows of the table, and leaves where each bucket
begins in it. A block of the second owns a bucket: it gathers its pieces of all tiles, and sorts them by row. What tiles have of lower
buckets is where its part of the sorted list begins, so that no block waits for another::

    tiles      a c a d|b a d b         a and b are rows of one bucket, c and d of the next
    by bucket  a a c d|b a b d         bucket 0 has 2 + 3, bucket 1 begins at 2 + 3
    by row     a a a b b|c d d

Sorting is stable (`_block_sort`), and nothing depends on the order in which threads come: the list depends on the indices alone.
"""
import functools
import math

from ..device import cuda, device_function, i32, i64, jit
from ..device.block import add, make_block_reduce
from ..device.index import ceil_div
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost
from ..host.launch import Argument, Launch
from ._block_sort import ITEMS, LAST, THREADS, TILE, TILE_BITS, WARPS, block_sums, make_sort

COST = constants("embedding/sorted_list")

MOST_SHIFT, RESIDENT = 12, 8


def shift_of(rows, device):
    """A bucket has 2**shift rows: as many buckets as blocks run at once, as far as a block's counters suffice."""
    return min(MOST_SHIFT, max(0, math.ceil(math.log2((rows + 1) / (RESIDENT * device.sms)))))


def _buckets(rows, device):
    """Of one row more than there are: where the last one ends."""
    return ceil_div(rows + 1, 1 << shift_of(rows, device))


def layout(problem, device):
    """[(name, bytes)] of what lies in the workspace: the sorted list, and what tiles leave."""
    rows, positions, tiles = problem.table.shape[0], problem.positions, ceil_div(problem.positions, TILE)
    return [("starts", 4 * (rows + 1)), ("order", 4 * positions), ("keys", 4 * positions), ("entries", 4 * TILE * tiles),
            ("bounds", 4 * tiles * (_buckets(rows, device) + 1))]


def seconds(problem, device):
    """Blocks of both launches, as many as there are in turns; a bucket takes what tiles left of it, and a frequent row's much of all."""
    tiles, buckets = ceil_div(problem.positions, TILE), _buckets(problem.table.shape[0], device)
    turns = ceil_div(tiles, RESIDENT * device.sms) + ceil_div(buckets, RESIDENT * device.sms)
    frequent = problem.positions * COST.frequent / TILE
    return 2 * LAUNCH + Cost(waits=turns * COST.block + frequent * COST.chunk)


@functools.cache
def make_key(index_dtype):
    """Device function ``key(indices, i, positions, step, rows, padding)``: the row of position i; -1 past the end, for an index that is no
    row, and for the padding row."""
    Index = i64 if index_dtype == "int64" else i32

    @device_function
    def key(indices, i, positions, step, rows, padding):
        found = Index(-1)
        if i < positions:
            found = indices[i * step]
        return i32(found) if found >= 0 and found < rows and found != padding else -1
    return key


@device_function
def _begin_of(entries, least):
    """How many of TILE sorted entries are less."""
    at = 0
    for s in range(TILE_BITS):
        half = TILE >> (s + 1)
        if entries[at + half - 1] < least:
            at = at + half
    if entries[at] < least:
        at = at + 1
    return at


@functools.cache
def tiles_kernel(index_dtype, shift, bits, dependent):
    """Of a tile: its positions by bucket, each with its row in that, and where buckets begin."""
    key, sort, begin, LOW = make_key(index_dtype), make_sort(TILE_BITS, bits), make_follow(dependent), (1 << shift) - 1

    @jit(launch_bounds=THREADS)
    def embedding_tiles(indices, entries, bounds, positions, rows, padding, step, buckets):
        begin()
        tile, counters, totals = cuda.shared.array(TILE, i32), cuda.shared.array(TILE, i32), cuda.shared.array(WARPS, i32)
        keys, found = cuda.shared.array(TILE, i32), cuda.local.array(ITEMS, i32)
        thread, first = cuda.threadIdx.x, cuda.blockIdx.x * TILE
        for k in range(ITEMS):
            found[k] = key(indices, first + k * THREADS + thread, positions, step, rows, padding)
        for k in range(ITEMS):
            i = k * THREADS + thread
            keys[i] = found[k]
            tile[i] = (found[k] >> shift if found[k] >= 0 else buckets) << TILE_BITS | i
        sort(tile, counters, totals)
        for b in range(thread, buckets + 1, THREADS):
            bounds[cuda.blockIdx.x * (buckets + 1) + b] = _begin_of(tile, b << TILE_BITS)
        for k in range(ITEMS):
            i = tile[k * THREADS + thread] & (TILE - 1)
            entries[first + k * THREADS + thread] = (keys[i] & LOW) << TILE_BITS | i
    return embedding_tiles


@device_function
def _pieces(bounds, first, tiles, buckets, begins, froms, totals):
    """Of this block's bucket in THREADS tiles: where each piece begins in them all, and from where it comes; how many they are."""
    t, begin, count = first + cuda.threadIdx.x, 0, 0
    if t < tiles:
        at = t * (buckets + 1) + cuda.blockIdx.x
        begin = bounds[at]
        count = bounds[at + 1] - begin
    earlier, whole = block_sums(count, totals)
    begins[cuda.threadIdx.x] = earlier
    froms[cuda.threadIdx.x] = t * TILE + begin - earlier
    cuda.syncthreads()
    return whole


@device_function
def _take(entries, first, base, whole, begins, froms, listed, numbers):
    """A chunk of pieces: the row in the bucket and the index in the chunk, and the position."""
    for k in range(ITEMS):
        i = k * THREADS + cuda.threadIdx.x
        e, t, entry = base + i, 0, LAST
        if e < whole:
            for s in range(8):
                half = THREADS >> (s + 1)
                if begins[t + half] <= e:
                    t = t + half
            found = entries[froms[t] + e]
            numbers[i] = (first + t) * TILE + (found & (TILE - 1))
            entry = found >> TILE_BITS << TILE_BITS | i
        listed[i] = entry


@functools.cache
def kernel(shift, dependent):
    """Where rows begin in the sorted list; its positions and their rows."""
    ROWS, begin, reduce, TOTALS = 1 << shift, make_follow(dependent), make_block_reduce(add, THREADS), 2 * WARPS
    sort = make_sort(TILE_BITS, shift)

    @jit(launch_bounds=(THREADS, 5))
    def embedding_sort(entries, bounds, starts, order, keys, tiles, buckets, rows):
        begin()
        rows_at, firsts, totals = cuda.shared.array(ROWS, i32), cuda.shared.array(ROWS, i32), cuda.shared.array(TOTALS, i32)
        begins, froms = cuda.shared.array(THREADS, i32), cuda.shared.array(THREADS, i32)
        listed, numbers, counters = cuda.shared.array(TILE, i32), cuda.shared.array(TILE, i32), cuda.shared.array(TILE, i32)
        thread, low, below = cuda.threadIdx.x, cuda.blockIdx.x << shift, 0
        for r in range(thread, ROWS, THREADS):
            rows_at[r] = 0
        for t in range(thread, tiles, THREADS):
            below = below + bounds[t * (buckets + 1) + cuda.blockIdx.x]
        carry = reduce(below, totals, 0)
        cuda.syncthreads()
        # count the positions of each row
        for first in range(0, tiles, THREADS):
            whole = _pieces(bounds, first, tiles, buckets, begins, froms, totals)
            for base in range(0, whole, TILE):
                _take(entries, first, base, whole, begins, froms, listed, numbers)
                for k in range(ITEMS):
                    i = k * THREADS + thread
                    if base + i < whole:
                        cuda.atomic.add(rows_at, listed[i] >> TILE_BITS, 1)
            cuda.syncthreads()
        # counts become where rows begin
        for r in range(thread, ROWS + thread, THREADS):
            count = 0
            if r < ROWS:
                count = rows_at[r]
            earlier, whole = block_sums(count, totals)
            if r < ROWS:
                rows_at[r] = carry + earlier
                if low + r <= rows:
                    starts[low + r] = carry + earlier
            carry = carry + whole
        # positions to their rows, in order
        for first in range(0, tiles, THREADS):
            whole = _pieces(bounds, first, tiles, buckets, begins, froms, totals)
            for base in range(0, whole, TILE):
                _take(entries, first, base, whole, begins, froms, listed, numbers)
                sort(listed, counters, totals)
                cuda.syncthreads()
                count = min(TILE, whole - base)
                for k in range(ITEMS):
                    i = k * THREADS + thread
                    if i < count:
                        row = listed[i] >> TILE_BITS
                        if i == 0 or listed[max(i - 1, 0)] >> TILE_BITS != row:
                            firsts[row] = i
                cuda.syncthreads()
                for k in range(ITEMS):
                    i = k * THREADS + thread
                    if i < count:
                        row = listed[i] >> TILE_BITS
                        to = rows_at[row] + i - firsts[row]
                        order[to] = numbers[listed[i] & (TILE - 1)]
                        keys[to] = low + row
                cuda.syncthreads()
                if base + TILE < whole or first + THREADS < tiles:
                    for k in range(ITEMS):
                        i = k * THREADS + thread
                        if i < count:
                            row = listed[i] >> TILE_BITS
                            if i == count - 1 or listed[min(i + 1, TILE - 1)] >> TILE_BITS != row:
                                rows_at[row] = rows_at[row] + i + 1 - firsts[row]
                    cuda.syncthreads()
    return embedding_sort


def launches(problem, device, at):
    """Both launches; `at`: {name: the argument} of `layout`."""
    rows, shift, dependent = problem.table.shape[0], shift_of(problem.table.shape[0], device), device.capability >= (9, 0)
    buckets, tiles = _buckets(rows, device), ceil_div(problem.positions, TILE)
    first = (Argument(f"{problem.indices.dtype}*", "indices"), at["entries"], at["bounds"], Argument("int32", problem.positions),
             Argument("int32", rows), Argument("int32", problem.padding_idx), Argument("int64", problem.steps[0]),
             Argument("int32", buckets))
    second = (at["entries"], at["bounds"], at["starts"], at["order"], at["keys"], Argument("int32", tiles), Argument("int32", buckets),
              Argument("int32", rows))
    return (Launch(tiles_kernel(problem.indices.dtype, shift, buckets.bit_length(), dependent), (tiles, 1, 1), (THREADS, 1, 1), first,
                   dependent=dependent),
            Launch(kernel(shift, dependent), (buckets, 1, 1), (THREADS, 1, 1), second, dependent=dependent))
