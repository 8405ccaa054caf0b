"""Channels side by side: a thread takes up to 16 bytes of channels of a place, and has a row or several of its window's taps in flight.

Threads of a warp have neighbouring chunks, then neighbouring places, so all accesses are coalesced, and windows that overlap find each
other's pixels in the L1 and L2: from memory x comes once. A thread issues the loads of up to nine taps before it looks at the first, as
words, which it takes apart when it is their turn. For a maximum, taps outside the image are replaced by the nearest ones within, which
changes neither it nor where it is first; for an average they load nothing and are 0. Larger windows go in batches of such taps; adaptive
windows differ in their ends alone. Where a maximum turns out to be NaN, which is rare, the taps are looked through again for the first one:
an element then costs three instructions instead of four.

A window of 3x3 takes 9 accesses to the L1 for one of memory's; where windows overlap much more than that, the L1 is what bounds it.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import make_reader, make_word_writer, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance, as_u32
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, arguments, blocks, chunk_of, is_wide, make_coordinates, numbers_refusal, offset
from ._chunks import refusal as chunk_refusal
from ._windows import MINUS_INFINITY, make_counted, make_inside, make_reciprocal, make_window

COST = constants("pool/fwd_channels")

THREADS = 256

MOST_LOADS = 9  # of 16 bytes under way at once: four registers each


@dataclass(frozen=True)
class Config:
    """What it computes and of what, whether the width is faster than channels, channels of a chunk, accesses, taps at once, and what
    windows are like."""
    maximum: bool
    index: bool
    dtype: str
    first: bool
    channels: int
    access: Access
    rows: int
    columns: int
    adaptive: bool
    dilated: bool
    wide: bool

    def __str__(self):
        return f"{self.channels} channels, {self.rows}x{self.columns} taps"


def supports(problem):
    """Channels side by side."""
    return chunk_refusal(problem) or numbers_refusal(problem, problem.y.size // chunk_of(problem))


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """That of chunks."""
    return seconds(problem, chunk_of(problem), 16, device)


def seconds(problem, channels, lines, device):
    """What a thread takes for so many channels of an output: instructions of each tap and its channels, and `lines` bytes of the L1's time
    a thread; few threads leave memory idle. Overlapped times show in part. A thread that has a whole image for a window waits for each of
    its taps.
    """
    units = problem.y.size // channels
    each = COST.thread + problem.tap_count * (COST.tap + channels * (COST.channel_index if problem.index else COST.channel))
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * problem.tap_count * lines / (COST.l1 * device.sms * device.clock_hz))
    work = work.slowed(idle=1 / max(occupied(units, COST.enough, device), COST.least_share),
                       tail=tail(ceil_div(units, THREADS), COST.blocks, device))
    return LAUNCH + overlap(work, waits=problem.tap_count * COST.tap_alone)


def taps_at_once(taps):
    """(rows, columns) of a window's taps that are loaded together."""
    columns = ceil_div(taps[2], ceil_div(taps[2], MOST_LOADS))
    return max(1, min(taps[1], MOST_LOADS // columns)), columns


@functools.cache
def kernel(config):
    """y[n, o, p, q, c] = the maximum or the average of x over the window."""
    Total, V, ROWS, COLUMNS = scalar_of(config.dtype), config.channels, config.rows, config.columns
    coordinates = make_coordinates(config.first)
    MAX, INDEX, Int = config.maximum, config.index, i64 if config.wide else i32
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.x)
    put, put_words = make_writer(config.dtype, V, config.access.y), make_word_writer(V, max(config.access.index, 1))
    window_d, window_h, window_w = (make_window(axis, config.adaptive, False) for axis in range(3))
    inside_d, inside_h, inside_w = (make_inside(axis, config.dilated, False) for axis in range(3))
    counted_d, counted_h, counted_w = (make_counted(axis, config.dilated, False) for axis in range(3))
    reciprocal, BUFFER = make_reciprocal("float64" if config.dtype == "float64" else "float32"), ROWS * COLUMNS * LENGTH
    START = MINUS_INFINITY if MAX else 0.0

    @jit(launch_bounds=(THREADS, 3))
    def pool_fwd_channels(x, y, index, count, divisors, g, x_strides, y_strides, index_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            raw = cuda.local.array(BUFFER, Raw)
            values, total = cuda.local.array(V, Total), cuda.local.array(V, Total)
            where = cuda.local.array(V, u32)
            n, chunk, o, p, q = coordinates(i, divisors)
            c = i64(chunk * V)
            first_d, taps_d = window_d(o, g)
            first_h, taps_h = window_h(p, g)
            first_w, taps_w = window_w(q, g)
            low_d, high_d = inside_d(first_d, taps_d, g)
            low_h, high_h = inside_h(first_h, taps_h, g)
            low_w, high_w = inside_w(first_w, taps_w, g)
            image = advance(x, n * x_strides[0] + c * x_strides[1])
            start = u32(0xFFFFFFFF)
            if low_d < high_d and low_h < high_h and low_w < high_w:
                d, h, w = first_d + low_d * g[12], first_h + low_h * g[13], first_w + low_w * g[14]
                start = u32((d * g[1] + h) * g[2] + w)
            for v in range(V):
                total[v] = Total(START)
                where[v] = start
            for t in range(low_d, high_d):
                d = first_d + t * g[12]
                for row in range(low_h, high_h, ROWS):
                    for column in range(low_w, high_w, COLUMNS):
                        # load taps
                        for r in range(ROWS):
                            for s in range(COLUMNS):
                                h = first_h + min(row + r, high_h - 1) * g[13]
                                w = first_w + min(column + s, high_w - 1) * g[14]
                                at = Int(Int(d) * Int(x_strides[2]) + Int(h) * Int(x_strides[3]) + Int(w) * Int(x_strides[4]))
                                fetch(raw, (r * COLUMNS + s) * LENGTH, image, at,
                                      1 if MAX else i32(row + r < high_h and column + s < high_w))
                        # add them up
                        for r in range(ROWS):
                            for s in range(COLUMNS):
                                unpack(values, 0, raw, (r * COLUMNS + s) * LENGTH)
                                if INDEX:
                                    h = first_h + min(row + r, high_h - 1) * g[13]
                                    w = first_w + min(column + s, high_w - 1) * g[14]
                                    position = u32((d * g[1] + h) * g[2] + w)
                                    for v in range(V):
                                        where[v] = position if values[v] > total[v] else where[v]
                                if MAX:
                                    for v in range(V):
                                        total[v] = maximum(total[v], values[v])
                                else:
                                    for v in range(V):
                                        total[v] = Total(total[v] + values[v])
            if INDEX:
                broken = False
                for v in range(V):
                    broken = broken | (total[v] != total[v])
                if broken:  # the first NaN, from the last tap to the first
                    for t in range(high_d - low_d):
                        d = first_d + (high_d - 1 - t) * g[12]
                        for row in range(high_h - low_h):
                            h = first_h + (high_h - 1 - row) * g[13]
                            for column in range(high_w - low_w):
                                w = first_w + (high_w - 1 - column) * g[14]
                                at = Int(Int(d) * Int(x_strides[2]) + Int(h) * Int(x_strides[3]) + Int(w) * Int(x_strides[4]))
                                fetch(raw, 0, image, at, 1)
                                unpack(values, 0, raw, 0)
                                for v in range(V):
                                    where[v] = u32((d * g[1] + h) * g[2] + w) if values[v] != values[v] else where[v]
            if not MAX:
                factor = reciprocal(counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g) * counted_w(first_w, taps_w, g))
                for v in range(V):
                    total[v] = Total(total[v] * factor)
            put(advance(y, offset(n, c, o, p, q, y_strides)), 0, total, 0)
            if INDEX:
                put_words(as_u32(advance(index, offset(n, c, o, p, q, index_strides))), where)
    return pool_fwd_channels


def launches(problem, channels, first):
    """The launch, with so many channels a thread. Without an index its pointer is y's, which nothing reads or writes through it."""
    pointer, units, (rows, columns) = element(problem.x.dtype).pointer, problem.y.size // channels, taps_at_once(problem.taps)
    config = Config(problem.is_max, problem.index is not None, problem.x.dtype, first, channels, access_of(problem, channels), rows,
                    columns, problem.adaptive, set(problem.dilations) != {1}, is_wide(problem))
    index = Argument("int32*", "index") if config.index else Argument(pointer, "y")
    given = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("int32", units),
             *arguments(problem, problem.out, problem.c // channels))
    return (Launch(kernel(config), blocks(units, THREADS), (THREADS, 1, 1), given),)


def build(problem, device, config):
    """One launch."""
    return launches(problem, chunk_of(problem), False)


ALGORITHMS = tuple(Algorithm(op=op, name="channels", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
