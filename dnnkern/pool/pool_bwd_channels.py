"""Channels side by side: a thread takes up to 16 bytes of channels of a patch of pixels, and gathers from the places that see it.

A patch has as many pixels each way as the window steps, two at most: windows of 3x3 with a stride of 2 have four places for four pixels,
where each pixel on its own would look at up to four. A thread walks over the rows of these places; of a row it has several places in
flight, gradients and, for a maximum, indices. Of a maximum a pixel takes the gradients whose index it is; of an average those whose window
it is in, divided by what that window counts, which costs a place a reciprocal and no element a division. Every pixel is written once, in
whole chunks, without atomics, and the sums are made in the order of the places.

Indices are four bytes an element, two thirds of what a maximum of 16-bit types reads. Dilated averages are `naive`'s.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.convert import element
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, arguments, blocks, chunk_of, is_wide, make_coordinates, numbers_refusal, offset
from ._chunks import refusal as chunk_refusal
from ._windows import make_counted, make_reciprocal, make_seen_by, make_window

COST = constants("pool/bwd_channels")

THREADS = 256
MOST_WORDS, MOST_PLACES = 24, 8  # of gradients and indices under way at once, and of places


@dataclass(frozen=True)
class Config:
    """What it is the gradient of and of what type, whether the width is faster than channels, channels of a chunk, accesses, the patch,
    places at once, and what windows are like."""
    maximum: bool
    dtype: str
    first: bool
    channels: int
    access: Access
    rows: int
    columns: int
    places: int
    adaptive: bool
    wide: bool

    def __str__(self):
        return f"{self.channels} channels of {self.rows}x{self.columns} pixels, {self.places} places"


def _patches(problem, rows, columns):
    """Extents of the image in patches."""
    d, h, w = problem.image
    return d, ceil_div(h, rows), ceil_div(w, columns)


def places_of(problem, axis, pixels):
    """How many places along an axis may see a run of so many pixels, at most."""
    n, m, step = problem.image[axis], problem.out[axis], problem.steps[axis]
    if problem.adaptive:
        return min(m, -(-pixels * m // n) + 1)
    return min(m, (problem.dilations[axis] * (problem.taps[axis] - 1) + pixels - 1) // step + 1)


def dilated_refusal(problem):
    """Why averages are not its own."""
    if not problem.is_max and set(problem.dilations) != {1}:
        return f"averages with dilation {'x'.join(map(str, problem.dilation))}; expected 1"
    return None


def supports(problem):
    """Channels side by side; averages without dilation."""
    return dilated_refusal(problem) or chunk_refusal(problem) or numbers_refusal(problem, problem.x.size // chunk_of(problem))


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Patches of one pixel, of two, and of four."""
    return patches(problem, chunk_of(problem), False)


def patches(problem, channels, first):
    """Configurations of so many channels a thread."""
    words = max(channels * problem.x.itemsize // 4, 1) + (channels if problem.is_max else 0)
    found = []
    for rows, columns in ((1, 1), (1, 2), (2, 2)):
        if rows <= problem.image[1] and columns <= problem.image[2]:
            places = places_of(problem, 2, columns)
            places = ceil_div(places, ceil_div(places, max(1, min(MOST_PLACES, MOST_WORDS // words))))
            found.append(Config(problem.is_max, problem.x.dtype, first, channels, access_of(problem, channels), rows, columns, places,
                                problem.adaptive, is_wide(problem)))
    return found


def _units(problem, config):
    return problem.n * (problem.c // config.channels) * math.prod(_patches(problem, config.rows, config.columns))


def estimate(problem, device, config):
    """That of chunks."""
    return seconds(problem, config, 16, device)


def seconds(problem, config, lines, device):
    """What a thread for a patch takes: instructions of each output, and of each of its channels and pixels of the patch, and for either
    array `lines` bytes of the L1's time a thread. Overlapped times show in part."""
    units, pixels = _units(problem, config), config.rows * config.columns
    row = ceil_div(places_of(problem, 2, config.columns), config.places) * config.places
    seen = places_of(problem, 0, 1) * places_of(problem, 1, config.rows) * row
    base, pixel = (COST.maximum, COST.maximum_pixel) if problem.is_max else (COST.average, COST.average_pixel)
    each = base + COST.pixel * pixels + seen * (COST.output + config.channels * (1 + pixel * pixels))
    accesses = 1 + (ceil_div(config.channels, 4) if problem.is_max else 0)
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * seen * accesses * lines / (COST.l1 * device.sms * device.clock_hz))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """dx[n, d, h, w, c] = the sum of the gradients that are its own."""
    Total, V, ROWS, COLUMNS, PLACES = scalar_of(config.dtype), config.channels, config.rows, config.columns, config.places
    MAX, Int, coordinates = config.maximum, i64 if config.wide else i32, make_coordinates(config.first)
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.y)
    _, _, fetch_index, _ = make_reader("float32", V, config.access.index)
    put = make_writer(config.dtype, V, config.access.x)
    window_d, window_h, window_w = (make_window(axis, config.adaptive, False) for axis in range(3))
    counted_d, counted_h, counted_w = (make_counted(axis, False, False) for axis in range(3))
    seen_d, seen_h, seen_w = (make_seen_by(axis, config.adaptive, False) for axis in range(3))
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    BUFFER, INDICES, TOTALS = PLACES * LENGTH, PLACES * V if MAX else 1, ROWS * COLUMNS * V

    @jit(launch_bounds=(THREADS, 3))
    def pool_bwd_channels(dy, index, dx, count, divisors, g, x_strides, y_strides, index_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            raw, indices = cuda.local.array(BUFFER, Raw), cuda.local.array(INDICES, u32)
            values, total = cuda.local.array(V, Total), cuda.local.array(TOTALS, Total)
            n, chunk, d, h, w = coordinates(i, divisors)
            h, w, c = h * ROWS, w * COLUMNS, i64(chunk * V)
            pixel = (d * g[1] + h) * g[2] + w
            for v in range(TOTALS):
                total[v] = Total(0)
            gradients = advance(dy, n * y_strides[0] + c * y_strides[1])
            where = advance(index, n * index_strides[0] + c * index_strides[1])
            first_o, end_o = seen_d(d, d, g)
            first_p, end_p = seen_h(h, h + ROWS - 1, g)
            first_q, end_q = seen_w(w, w + COLUMNS - 1, g)
            for o in range(first_o, end_o):
                for p in range(first_p, end_p):
                    for q0 in range(first_q, end_q, PLACES):
                        # load places
                        for k in range(PLACES):
                            q, ok = q0 + k, i32(q0 + k < end_q)
                            fetch(raw, k * LENGTH, gradients,
                                  Int(Int(o) * Int(y_strides[2]) + Int(p) * Int(y_strides[3]) + Int(q) * Int(y_strides[4])), ok)
                            if MAX:
                                fetch_index(indices, k * V, where, Int(Int(o) * Int(index_strides[2]) + Int(p) * Int(index_strides[3])
                                                                       + Int(q) * Int(index_strides[4])), ok)
                        # add what is the pixels' own
                        for k in range(PLACES):
                            unpack(values, 0, raw, k * LENGTH)
                            if MAX:
                                for r in range(ROWS):
                                    for s in range(COLUMNS):
                                        own = u32(pixel + r * g[2] + s)
                                        for v in range(V):
                                            more = values[v] if indices[k * V + v] == own else Total(0)
                                            total[(r * COLUMNS + s) * V + v] = Total(total[(r * COLUMNS + s) * V + v] + more)
                            else:
                                first_d, taps_d = window_d(o, g)
                                first_h, taps_h = window_h(p, g)
                                first_w, taps_w = window_w(q0 + k, g)
                                factor = reciprocal(i32(counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g)
                                                        * counted_w(first_w, taps_w, g)))
                                for v in range(V):
                                    values[v] = Total(values[v] * factor)
                                for r in range(ROWS):
                                    for s in range(COLUMNS):
                                        inside_h, inside_w = h + r - first_h, w + s - first_w
                                        inside = (inside_h >= 0) & (inside_h < taps_h) & (inside_w >= 0) & (inside_w < taps_w)
                                        for v in range(V):
                                            more = values[v] if inside else Total(0)
                                            total[(r * COLUMNS + s) * V + v] = Total(total[(r * COLUMNS + s) * V + v] + more)
            for r in range(ROWS):
                for s in range(COLUMNS):
                    if h + r < g[1] and w + s < g[2]:
                        put(advance(dx, offset(n, c, d, h + r, w + s, x_strides)), 0, total, (r * COLUMNS + s) * V)
    return pool_bwd_channels


def build(problem, device, config):
    """One launch. Without an index its pointer is dy's, which nothing reads through it."""
    pointer = element(problem.x.dtype).pointer
    units = _units(problem, config)
    index = Argument("float32*", "index") if config.maximum else Argument(pointer, "dy")
    given = (Argument(pointer, "dy"), index, Argument(pointer, "dx"), Argument("int32", units),
             *arguments(problem, _patches(problem, config.rows, config.columns), problem.c // config.channels))
    return (Launch(kernel(config), blocks(units, THREADS), (THREADS, 1, 1), given),)


ALGORITHMS = tuple(Algorithm(op=op, name="channels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_bwd", "avg_pool_bwd"))
