"""Tile schedulers: which tile of its work a block takes next, and where that tile is.

Persistent blocks take tile after tile. A `Scheduler` hands out their numbers, 0 to ``tiles - 1``::

    schedule = make_static()                                 # or make_dynamic()
    t = schedule.first()
    while t < tiles:
        row, column = locate_in_bands(t, per_band, rows, last_rows)
        ...
        t = schedule.next(t, counter)

============================  ================================================  ======================================================
scheduler                     tile after t                                      for
============================  ================================================  ======================================================
`make_static(cluster)`        t + blocks (or clusters) of the grid              tiles that take equally long; nothing to fetch
`make_dynamic()`              from a counter in memory, zero at the launch      tiles that do not: who is done first takes the next
============================  ================================================  ======================================================

With warps of their own for copies the producer asks the scheduler, and tells the consumers through a `Channel` of shared memory.

What a number means is the order of the tiles:

============================  ========================================================================================================
order                         neighbours in time
============================  ========================================================================================================
`locate_in_bands`             go down `BAND` rows of tiles, then along: they share rows and columns of operands in the L2
`locate_in_rows`              go along a row of tiles: blocks whose number is a multiple of a row's keep one column
`locate_slice`                split-K: the tiles of a slice of k; slice after slice, matrix after matrix
`locate_stream_k`             stream-K, hybrid: tiles of full waves over all of k, then slices of k of the tiles of the last wave
`make_longest_first(height)`  the last rows of some heads, then the rows before: with a causal mask the most work comes first
============================  ========================================================================================================

Sources: CUTLASS's tile schedulers, stream-K (Osama et al., 2023), FlashAttention-3's scheduler, for the ideas.

>>> per_band, rows, last_rows = in_bands(rows=20, columns=3)
>>> per_band.d, rows, last_rows.d
(24, 20, 4)
"""
import functools
from typing import Callable, NamedTuple

from . import cuda, device_function, i32, u32
from .atomic import fetch_add_u32
from .index import divide_remainder, divisor
from .pipeline import Pipeline, make_pipeline
from .vec import load_shared_4u32, store_shared_4u32

BAND = 8
"""Rows of tiles in a band, see `locate_in_bands`."""


# ---- schedulers

class Scheduler(NamedTuple):
    """Device functions that hand out tile numbers.

    first()
        The block's first tile, of a cluster that of all its blocks.
    next(t, counter)
        The one after tile t, by one thread that shares it, or by all who compute the same; `counter` is a uint32 in memory that was zero
        when the grid began, or anything where the scheduler is static.
    """
    first: Callable
    next: Callable


@functools.cache
def make_static(cluster=1) -> Scheduler:
    """Block (or cluster of so many blocks, a power of two) b takes tiles b, b + blocks, b + 2 blocks, ..."""
    LOG = cluster.bit_length() - 1  # a division would be one of 64 bits, out of the registers that a warp shares

    @device_function
    def first():
        return cuda.blockIdx.x >> LOG

    @device_function
    def next_tile(t, counter):
        return t + (cuda.gridDim.x >> LOG)
    return Scheduler(first, next_tile)


@functools.cache
def make_dynamic() -> Scheduler:
    """Blocks take their first tile by their number, and each further one from a counter."""
    @device_function
    def first():
        return cuda.blockIdx.x

    @device_function
    def next_tile(t, counter):
        return i32(fetch_add_u32(counter, u32(1))) + cuda.gridDim.x
    return Scheduler(first, next_tile)


class Channel(NamedTuple):
    """Shared memory through which a producer tells consumers their tiles; `base` is its address, a multiple of 16.

    bytes : int
        Of it.
    pipe : Pipeline
        For the states of both sides: ``pipe.producer_start()``, ``pipe.next(state)``.
    init(base)
        One thread, as `Pipeline.init`.
    send(base, state, t, a, b)
        One thread: tile t and two numbers more, int32; gives the next state.
    receive(base, state, lane)
        All lanes of each warp of consumers: (t, a, b), the same in all of them.
    """
    bytes: int
    pipe: Pipeline
    init: Callable
    send: Callable
    receive: Callable


@functools.cache
def make_channel(warps) -> Channel:
    """The `Channel` to so many warps of consumers, two tiles deep.

    >>> make_channel(8).bytes
    64
    """
    pipe = make_pipeline(2, consumers=warps)
    WORDS, BYTES = pipe.bytes, pipe.bytes + 32

    @device_function
    def init(base):
        pipe.init(pipe.barriers(base))

    @device_function
    def send(base, state, t, a, b):
        bars = pipe.barriers(base)
        pipe.producer_acquire(bars, state)
        store_shared_4u32(base + WORDS + 16 * state.stage, u32(t), u32(a), u32(b), u32(0))
        pipe.producer_commit(bars, state)
        return pipe.next(state)

    @device_function
    def receive(base, state, lane):
        bars = pipe.barriers(base)
        pipe.consumer_wait(bars, state)
        words = load_shared_4u32(base + WORDS + 16 * state.stage)
        cuda.syncwarp()
        pipe.consumer_release(bars, state, lane)
        return i32(words[0]), i32(words[1]), i32(words[2])
    return Channel(BYTES, pipe, init, send, receive)


# ---- orders of tiles

@device_function
def locate_in_bands(t, per_band, rows, last_rows):
    """(row, column) of tile t: down the rows of a band, then along it, so that blocks which run together share operands in the L2.

    Of a matrix of `rows` rows of tiles; `per_band` and `last_rows` are divisors: the tiles of a band, the rows of the last one
    (`in_bands`).
    """
    band, inside = divide_remainder(t, per_band)
    if (band + 1) * BAND <= rows:
        return band * BAND + (inside & (BAND - 1)), inside >> 3
    column, row = divide_remainder(inside, last_rows)
    return band * BAND + row, column


def in_bands(rows, columns):
    """What `locate_in_bands` takes of a matrix of tiles: (per_band, rows, last_rows). Host function."""
    return divisor(BAND * columns), rows, divisor(rows % BAND or BAND)


@device_function
def locate_in_rows(t, per_row, rows, last_rows):
    """(row, column) of tile t, row by row; the parameters, of which the last two are not needed, are `in_rows`'s."""
    return divide_remainder(t, per_row)


def in_rows(rows, columns):
    """What `locate_in_rows` takes of a matrix of tiles, as `in_bands` of `locate_in_bands`. Host function."""
    return divisor(columns), rows, divisor(1)


@device_function
def slice_of_k(s, steps, each):
    """(first step, the one after the last) of slice s of k: `each` of `steps`, fewer or none in the last ones."""
    first = min(s * each, steps)
    return first, min(first + each, steps)


@device_function
def locate_slice(t, per_matrix, slices):
    """(matrix, tile of it, slice of k) of number t: matrix after matrix, in each the tiles of one slice after those of another.

    `per_matrix` and `slices` are divisors: the tiles of a matrix, the slices of k of each.
    """
    rest, tile = divide_remainder(t, per_matrix)
    matrix, s = divide_remainder(rest, slices)
    return matrix, tile, s


@device_function
def locate_stream_k(t, whole, rest, steps, each):
    """(tile, slice of k or -1, number among the divided tiles, first step, the one after the last) of number t.

    The first `whole` tiles are computed over all `steps` of k, the others in slices of `each` steps; `rest` is the number of others, a
    divisor: slice by slice, in each all of them.
    """
    tile, s, divided, first, end = t, i32(-1), i32(0), i32(0), steps
    if t >= whole:
        s, divided = divide_remainder(t - whole, rest)
        tile = whole + divided
        first, end = slice_of_k(s, steps, each)
    return tile, s, divided, first, end


@functools.cache
def make_longest_first(height, by_head=False):
    """Device function ``locate(t, order)`` -> (image, head, head of k and v, first row) of tile t of attention, `height` rows each.

    `order` is (tiles of a section, heads of one, heads of the last, both divisors, number of the last section, heads or images of the
    inner dimension, heads that share k and v, both divisors, tiles of a head). A section is some heads whose keys and values fit the L2
    together. Its tiles come row of tiles by row of tiles, the last rows first, in each all of its heads. With sections of one head tiles
    come head by head. `by_head`: of each head in all images, instead of images with all heads.
    """
    @device_function
    def locate(t, order):
        per_section, several, rest, last, inner_of, group_of, tiles = order
        section, inside = divide_remainder(t, per_section)
        if section == last:
            below, place = divide_remainder(inside, rest)
        else:
            below, place = divide_remainder(inside, several)
        image, h = divide_remainder(section * i32(several[0]) + place, inner_of)
        if by_head:
            image, h = h, image
        g, _ = divide_remainder(h, group_of)
        return image, h, g, (tiles - 1 - below) * height
    return locate
