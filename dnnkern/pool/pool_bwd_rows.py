"""Channels first: a thread owns neighbouring pixels of up to two rows, and gathers from the stretch of places that see any of them.

The pixels are those that a group of places steps over: 8 of 16-bit types for 4 places and a step of 2. So which place sees which pixel by
which tap of a row is the same for every thread, and written out: 12 pairs for 8 pixels and 3 taps, instead of a look from each pixel at
every place. Of each row of places a thread loads the groups of gradients, and for a maximum of indices, that its stretch lies in, before it
uses the first. A pixel takes the gradients whose index it is, or its part of all. Groups of places lie at multiples of their size, so one
is within y or without; what is without is 0. Without atomics, in the order of the places.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.convert import element
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import arguments, blocks, is_wide, make_coordinates, numbers_refusal, offset, rows_refusal
from ._windows import make_counted, make_reciprocal, make_seen_by, make_window
from .pool_bwd_channels import dilated_refusal, places_of

COST = constants("pool/bwd_rows")

THREADS = 256
MOST_LOADED = 24  # places a row of them, gradients and indices each a register or a half
MOST_PIXELS = 32


@dataclass(frozen=True)
class Config:
    """What it is the gradient of and of what type; places of a group, words of an access to y, the index and x; a row's taps, its step, the
    padding before; rows of pixels; whether pixels fill rows; 64-bit offsets."""
    maximum: bool
    dtype: str
    places: int
    y_words: int
    index_words: int
    x_words: int
    taps: int
    step: int
    before: int
    rows: int
    whole: bool
    wide: bool

    @property
    def pixels(self):
        """Pixels of a row that a thread owns."""
        return self.places * self.step

    @property
    def first(self):
        """The first place that sees them, counted from the thread's own first place."""
        return -(-(self.before - self.taps + 1) // self.step)

    @property
    def skip(self):
        """Places of the first group before that one."""
        return self.first % self.places

    @property
    def groups(self):
        """Groups of a row of places that are loaded."""
        return ceil_div(self.skip + (self.pixels - 1 + self.before) // self.step - self.first + 1, self.places)

    def __str__(self):
        return f"{self.rows}x{self.pixels} pixels, {self.groups} groups of {self.places} places"


def _words(tensor, strides, count):
    return access_words(tensor, count, strides[:4])


def _configs(problem):
    """One for each number of rows, of the longest group of up to 16 bytes of pixels to which rows of y are aligned."""
    step, itemsize = problem.steps[2], problem.x.itemsize
    places = math.gcd(1 << max(0, (16 // itemsize // step).bit_length() - 1), problem.out[2])
    found = []
    for rows in (1, 2):
        pixels = places * step
        index = _words(problem.index, problem.index_strides, places) if problem.is_max else 1
        found.append(Config(problem.is_max, problem.x.dtype, places, _words(problem.y, problem.y_strides, places), index,
                            _words(problem.x, problem.x_strides, pixels), problem.taps[2], step, problem.before[2], rows,
                            problem.image[2] % pixels == 0, is_wide(problem)))
    return found


def _fits(config):
    return config.groups * config.places <= MOST_LOADED and config.pixels * config.rows <= MOST_PIXELS


def configs(problem, device):
    """One row of pixels a thread, and two."""
    return [c for c in _configs(problem) if _fits(c) and c.rows <= problem.image[1]]


def supports(problem):
    """Ordinary windows on rows of contiguous elements."""
    if reason := rows_refusal(problem):
        return reason
    config = _configs(problem)[0]
    if not _fits(config):
        return f"{config.groups * config.places} places for {config.pixels} pixels; expected {MOST_LOADED} and {MOST_PIXELS} at most"
    return dilated_refusal(problem) or numbers_refusal(problem, problem.x.size)


def workspace(problem, device, config):
    """None."""
    return 0


def _extents(problem, config):
    return problem.image[0], ceil_div(problem.image[1], config.rows), ceil_div(problem.image[2], config.pixels)


def estimate(problem, device, config):
    """Instructions of groups of outputs, and of each pair of a pixel and an output. Overlapped times show in part."""
    units = problem.n * problem.c * math.prod(_extents(problem, config))
    rows = places_of(problem, 0, 1) * places_of(problem, 1, config.rows)
    pairs = ceil_div(config.pixels * config.taps, config.step)
    both = 2 if config.maximum else 1
    each = COST.thread + rows * (config.groups * both * (COST.group + config.places)
                                 + config.rows * pairs * (COST.maximum if config.maximum else COST.average))
    each += COST.pixel * config.rows * config.pixels * (1 if config.whole else COST.ragged)
    loaded = rows * config.groups * max(8, config.places * (problem.x.itemsize + (4 if config.maximum else 0)))
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * loaded / (COST.l1 * device.sms * device.clock_hz))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """dx[n, c, d, h:h + rows, w:w + pixels] = the sum of the gradients that are its own."""
    Total, V, ROWS, PIXELS, STEP = scalar_of(config.dtype), config.places, config.rows, config.pixels, config.step
    MAX, WHOLE, Int, coordinates = config.maximum, config.whole, i64 if config.wide else i32, make_coordinates(True)
    GROUPS, SKIP, FIRST, TAPS, BEFORE = config.groups, config.skip, config.first, config.taps, config.before
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.y_words)
    _, _, fetch_index, _ = make_reader("float32", V, config.index_words)
    put, store = make_writer(config.dtype, PIXELS, config.x_words), make_writer(config.dtype, 1, 0)
    window_d, window_h, window_w = (make_window(axis, False, False) for axis in range(3))
    counted_d, counted_h, counted_w = (make_counted(axis, False, False) for axis in range(3))
    seen_d, seen_h = (make_seen_by(axis, False, False) for axis in range(2))
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    BUFFER, STRETCH, TOTALS = GROUPS * LENGTH, GROUPS * V, ROWS * PIXELS
    INDICES = STRETCH if MAX else 1

    @jit(launch_bounds=(THREADS, 3))
    def pool_bwd_rows(dy, index, dx, count, divisors, g, x_strides, y_strides, index_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            raw, indices = cuda.local.array(BUFFER, Raw), cuda.local.array(INDICES, u32)
            values, total = cuda.local.array(STRETCH, Total), cuda.local.array(TOTALS, Total)
            n, c, d, h, w = coordinates(i, divisors)
            base = w * V + FIRST - SKIP
            h, w = h * ROWS, w * PIXELS
            pixel = (d * g[1] + h) * g[2] + w
            for k in range(TOTALS):
                total[k] = Total(0)
            gradients = advance(dy, n * y_strides[0] + c * y_strides[1])
            where = advance(index, n * index_strides[0] + c * index_strides[1])
            first_o, end_o = seen_d(d, d, g)
            first_p, end_p = seen_h(h, h + ROWS - 1, g)
            for o in range(first_o, end_o):
                for p in range(first_p, end_p):
                    # load a row of places
                    for k in range(GROUPS):
                        q = base + k * V
                        ok = i32((q >= 0) & (q < g[5]))
                        fetch(raw, k * LENGTH, gradients, Int(Int(o) * Int(y_strides[2]) + Int(p) * Int(y_strides[3]) + Int(q)), ok)
                        if MAX:
                            fetch_index(indices, k * V, where,
                                        Int(Int(o) * Int(index_strides[2]) + Int(p) * Int(index_strides[3]) + Int(q)), ok)
                    for k in range(GROUPS):
                        unpack(values, k * V, raw, k * LENGTH)
                    first_h, taps_h = window_h(p, g)
                    if not MAX:
                        first_d, taps_d = window_d(o, g)
                        rows = counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g)
                        for k in range(STRETCH):
                            first_w, taps_w = window_w(base + k, g)
                            values[k] = Total(values[k] * reciprocal(rows * counted_w(first_w, taps_w, g)))
                    # each pixel's own
                    for r in range(ROWS):
                        inside = (h + r >= first_h) & (h + r < first_h + taps_h)
                        for k in range(STRETCH):
                            for s in range(TAPS):
                                at = (k - SKIP + FIRST) * STEP - BEFORE + s
                                if at >= 0 and at < PIXELS:
                                    if MAX:
                                        own = indices[k] == u32(pixel + r * g[2] + at)
                                    else:
                                        own = inside
                                    more = values[k] if own else Total(0)
                                    total[r * PIXELS + at] = Total(total[r * PIXELS + at] + more)
            for r in range(ROWS):
                if h + r < g[1]:
                    to = advance(dx, offset(n, c, d, h + r, w, x_strides))
                    if WHOLE:
                        put(to, 0, total, r * PIXELS)
                    else:
                        for v in range(PIXELS):
                            if w + v < g[2]:
                                store(to, v, total, r * PIXELS + v)
    return pool_bwd_rows


def build(problem, device, config):
    """One launch. Without an index its pointer is dy's, which nothing reads through it."""
    pointer, extents = element(problem.x.dtype).pointer, _extents(problem, config)
    units = problem.n * problem.c * math.prod(extents)
    index = Argument("float32*", "index") if config.maximum else Argument(pointer, "dy")
    given = (Argument(pointer, "dy"), index, Argument(pointer, "dx"), Argument("int32", units), *arguments(problem, extents, problem.c))
    return (Launch(kernel(config), blocks(units, THREADS), (THREADS, 1, 1), given),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("max_pool_bwd", "avg_pool_bwd"))
