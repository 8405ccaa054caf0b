"""Contiguous channels: a thread computes one output position of up to 16 bytes of channels, with several taps of its window in flight.

Threads of a warp have neighbouring chunks of channels, then neighbouring output positions. So all accesses are coalesced, and windows that
overlap find each other's pixels in the L1 and L2: x is read from memory once. A thread issues the loads of up to nine taps before it uses
the first; they stay packed in registers until then. Larger windows go in batches of such taps.

Taps outside the image: for a maximum they are replaced by the nearest taps within, which changes neither the maximum nor its first
position; for an average they load nothing and count as 0. If a maximum turns out to be NaN, which is rare, the taps are read again to find
the first NaN. That keeps the loop at three instructions per element instead of four. Where all taps of a window are one batch, there is no
loop, and the best tap's number is kept, a constant, and its pixel worked out at the end.

A 3x3 window takes 9 accesses to the L1 for each one to memory. It loses where windows overlap much more than that: the L1 is the limit.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import (Access, access_of, arguments, blocks, chunk_of, is_wide, make_coordinates, make_pixel_offset, numbers_refusal,
                      offset)
from ._chunks import refusal as chunk_refusal
from ._index import make_index_writer, make_pixel_of_tap
from ._programs import make_functions, program_argument
from ._windows import MINUS_INFINITY, make_counted, make_inside, make_reciprocal, make_window, pixel_number

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("pool/fwd_channels")

THREADS = 256

MOST_LOADS = 9  # of 16 bytes in flight: four registers each


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; whether threads run along the width or along channels; channels per thread,
    accesses, rows and columns of taps in flight; the kind of windows; one divisor of averages; 64-bit
    offsets; the result's type where it is another, the program, 64-bit strides of its operands; whether a window is flat and one batch."""
    maximum: bool
    index: str | None
    dtype: str
    width_fastest: bool
    channels: int
    access: Access
    rows: int
    columns: int
    adaptive: bool
    dilated: bool
    divided: bool
    wide: bool
    result: str = ""
    program: "Program | None" = None
    wide_operands: bool = False
    flat: bool = False

    def __str__(self):
        return f"{self.channels} channels, {self.rows}x{self.columns} taps"


def supports(problem):
    """Contiguous channels."""
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
    """(rows, columns) of taps that are in flight together."""
    columns = ceil_div(taps[2], ceil_div(taps[2], MOST_LOADS))
    return max(1, min(taps[1], MOST_LOADS // columns)), columns


@functools.cache
def kernel(config, dependent):
    """y[n, o, p, q, c] = the maximum or the average of x over the window."""
    Total, V, ROWS, COLUMNS = scalar_of(config.dtype), config.channels, config.rows, config.columns
    MAX, INDEX = config.maximum, config.index is not None
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.x)
    put, put_index = make_writer(config.result or config.dtype, V, config.access.y), make_index_writer(config.index, V, config.access.index)
    coordinates, pixel_offset = make_coordinates(config.width_fastest), make_pixel_offset(config.wide)
    window, inside, counted = make_window(config.adaptive), make_inside(config.dilated), make_counted(config.dilated, config.divided)
    reciprocal, BUFFER = make_reciprocal("float64" if config.dtype == "float64" else "float32"), ROWS * COLUMNS * LENGTH
    _, of_channels = make_functions(config.program, "float64" if config.dtype == "float64" else "float32", config.result or config.dtype, V)
    PROGRAM = config.program is not None
    START, NO_PIXEL = MINUS_INFINITY if MAX else 0.0, -1
    FLAT, pixel_of_tap, hold = config.flat, make_pixel_of_tap(ROWS * COLUMNS, COLUMNS), pin(BUFFER)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 3))
    def pool_fwd_channels(x, y, index, threads, chunks, axes, extents, x_stride, y_stride, index_stride, operands):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            raw = cuda.local.array(BUFFER, Raw)
            values, total = cuda.local.array(V, Total), cuda.local.array(V, Total)
            best_pixel = cuda.local.array(V, i32)
            n, chunk, o, p, q = coordinates(i, chunks, extents)
            c = i64(chunk * V)
            first_d, taps_d = window(o, axes.d)
            first_h, taps_h = window(p, axes.h)
            first_w, taps_w = window(q, axes.w)
            low_d, high_d = inside(first_d, taps_d, axes.d)
            low_h, high_h = inside(first_h, taps_h, axes.h)
            low_w, high_w = inside(first_w, taps_w, axes.w)
            image = advance(x, n * x_stride.n + c * x_stride.c)
            start = NO_PIXEL
            if low_d < high_d and low_h < high_h and low_w < high_w:
                d, h, w = first_d + low_d * axes.d.dilation, first_h + low_h * axes.h.dilation, first_w + low_w * axes.w.dilation
                start = pixel_number(d, h, w, axes)
            for v in range(V):
                total[v] = Total(START)
                best_pixel[v] = 0 if FLAT else start
            if FLAT:
                # one batch: no loops
                covers = (low_d < high_d) & (low_h < high_h) & (low_w < high_w)
                for r in range(ROWS):
                    for s in range(COLUMNS):
                        h = first_h + min(low_h + r, high_h - 1) * axes.h.dilation
                        w = first_w + min(low_w + s, high_w - 1) * axes.w.dilation
                        inside_it = covers if MAX else covers & (low_h + r < high_h) & (low_w + s < high_w)
                        fetch(raw, (r * COLUMNS + s) * LENGTH, image, pixel_offset(first_d, h, w, x_stride), inside_it)
                hold(raw)
                unpack(total, 0, raw, 0)
                for k in range(1, ROWS * COLUMNS):
                    unpack(values, 0, raw, k * LENGTH)
                    if INDEX:
                        for v in range(V):
                            best_pixel[v] = k if values[v] > total[v] else best_pixel[v]
                    for v in range(V):
                        total[v] = maximum(total[v], values[v]) if MAX else total[v] + values[v]
                for v in range(V):
                    total[v] = total[v] if covers else Total(START)
            for t in range(low_d, low_d if FLAT else high_d):
                d = first_d + t * axes.d.dilation
                for row in range(low_h, high_h, ROWS):
                    for column in range(low_w, high_w, COLUMNS):
                        # load a batch of taps
                        for r in range(ROWS):
                            for s in range(COLUMNS):
                                h = first_h + min(row + r, high_h - 1) * axes.h.dilation
                                w = first_w + min(column + s, high_w - 1) * axes.w.dilation
                                fetch(raw, (r * COLUMNS + s) * LENGTH, image, pixel_offset(d, h, w, x_stride),
                                      MAX or row + r < high_h and column + s < high_w)
                        # combine them
                        for r in range(ROWS):
                            for s in range(COLUMNS):
                                unpack(values, 0, raw, (r * COLUMNS + s) * LENGTH)
                                if INDEX:
                                    h = first_h + min(row + r, high_h - 1) * axes.h.dilation
                                    w = first_w + min(column + s, high_w - 1) * axes.w.dilation
                                    pixel = pixel_number(d, h, w, axes)
                                    for v in range(V):
                                        best_pixel[v] = pixel if values[v] > total[v] else best_pixel[v]
                                if MAX:
                                    for v in range(V):
                                        total[v] = maximum(total[v], values[v])
                                else:
                                    for v in range(V):
                                        total[v] += values[v]
            if INDEX:
                if FLAT:
                    for v in range(V):
                        best_pixel[v] = pixel_of_tap(best_pixel[v], start, axes.h.dilation * axes.w.extent, axes.w.dilation)
                any_nan = False
                for v in range(V):
                    any_nan = any_nan | (total[v] != total[v])
                if any_nan:
                    # find the first NaN, from the last tap to the first
                    for t in range(high_d - low_d):
                        d = first_d + (high_d - 1 - t) * axes.d.dilation
                        for row in range(high_h - low_h):
                            h = first_h + (high_h - 1 - row) * axes.h.dilation
                            for column in range(high_w - low_w):
                                w = first_w + (high_w - 1 - column) * axes.w.dilation
                                fetch(raw, 0, image, pixel_offset(d, h, w, x_stride), True)
                                unpack(values, 0, raw, 0)
                                for v in range(V):
                                    best_pixel[v] = pixel_number(d, h, w, axes) if values[v] != values[v] else best_pixel[v]
            # write back
            if not MAX:
                factor = reciprocal(counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h) * counted(first_w, taps_w, axes.w))
                for v in range(V):
                    total[v] *= factor
            if PROGRAM:
                of_channels(total, operands, (n, c, o, p, q))
            put(advance(y, offset(n, c, o, p, q, y_stride)), 0, total, 0)
            if INDEX:
                put_index(advance(index, offset(n, c, o, p, q, index_stride)), best_pixel)
    return pool_fwd_channels


def launches(problem, channels, width_fastest, device):
    """The launch, with so many channels per thread. Without an index, its pointer is that of y, and is not used."""
    pointer, units, (rows, columns) = element(problem.x.dtype).pointer, problem.y.size // channels, taps_at_once(problem.taps)
    config = Config(problem.is_max, problem.index_dtype, problem.x.dtype, width_fastest, channels, access_of(problem, channels), rows,
                    columns, problem.adaptive, set(problem.dilations) != {1}, problem.divisor is not None, is_wide(problem),
                    problem.y.dtype if problem.y.dtype != problem.x.dtype else "", problem.program, problem.wide,
                    problem.taps[0] == 1 and not problem.adaptive and (rows, columns) == tuple(problem.taps[1:]))
    index = Argument(f"{config.index}*", "index") if config.index else Argument(element(problem.y.dtype).pointer, "y")
    given = (Argument(pointer, "x"), Argument(element(problem.y.dtype).pointer, "y"), index, Argument("int32", units),
             *arguments(problem, problem.out, problem.c // channels), program_argument(problem))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), blocks(units, THREADS), (THREADS, 1, 1), given, dependent=dependent),)


def build(problem, device, config):
    """One launch."""
    return launches(problem, chunk_of(problem), False, device)


ALGORITHMS = tuple(Algorithm(op=op, name="channels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=True)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
