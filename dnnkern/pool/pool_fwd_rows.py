"""Channels first: a thread makes neighbouring places of a row, out of the stretch of each row of the image that they see together.

A thread has as many places as step over one group of up to 16 bytes, or over two: 4 or 8 of 16-bit types with a step of 2. Of each row of
its windows it loads the groups that its stretch lies in, all rows of a window of 3x3 at once, and combines them in registers: with that
window and step 4 places take 6 loads of 16 bytes where `elements` takes 36 of an element. Groups lie at multiples of their size, so one is
within the image or without; those without are -inf to a maximum and 0 to an average. Rows above and below the image are replaced by the
nearest one within for a maximum, and are 0 for an average.

It needs rows whose length is a multiple of 4 bytes at least; the longer the unit that divides them, the better.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import access_words, make_reader, make_word_writer, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance, as_u32
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, arguments, blocks, is_wide, make_coordinates, numbers_refusal, offset, rows_refusal
from ._windows import MINUS_INFINITY, make_counted, make_inside, make_reciprocal, make_window

COST = constants("pool/fwd_rows")

THREADS = 256
MOST_WORDS = 36  # of a thread's loads under way at once
MOST_TERMS = 64  # taps of a row times places, which are written out
NOTHING = {"float64": (0, 0xFFF00000), "float32": (0xFF800000,) * 2, "float16": (0xFC00FC00,) * 2, "bfloat16": (0xFF80FF80,) * 2}


@dataclass(frozen=True)
class Config:
    """What it computes and of what; elements of a group, places, accesses to x, y and index; a row's taps, its step, elements of the first
    group before the stretch, groups; rows at once; whether places fill groups; whether rows are dilated; 64-bit offsets."""
    maximum: bool
    index: bool
    dtype: str
    elements: int
    places: int
    access: Access
    taps: int
    step: int
    skip: int
    rows: int
    whole: bool
    dilated: bool
    wide: bool

    @property
    def groups(self):
        return ceil_div(self.skip + (self.places - 1) * self.step + self.taps, self.elements)

    def __str__(self):
        return f"{self.places} places, {self.rows}x{self.groups} loads of {self.elements}"


def _elements(problem):
    """Elements of a group: the longest of up to 16 bytes to which every row of x is aligned."""
    count = math.gcd(16 // problem.x.itemsize, problem.image[2])
    steps = [s for s, n in zip(problem.x_strides[:4], (problem.n, problem.c, *problem.image)) if n > 1]
    while count > 1 and access_words(problem.x, count, steps) * 4 < count * problem.x.itemsize:
        count //= 2
    return count


def _config(problem, factor=1):
    elements, step, taps = _elements(problem), problem.steps[2], problem.taps[2]
    places = factor * elements // math.gcd(elements, step)
    width = elements * problem.x.itemsize // 4
    found = Config(problem.is_max, problem.index is not None, problem.x.dtype, elements, places, Access(width, 0, 0), taps, step,
                   -problem.before[2] % elements, 1, problem.out[2] % places == 0, set(problem.dilations) != {1}, is_wide(problem))
    rows = max(1, min(problem.taps[1], MOST_WORDS // max(1, found.groups * width)))
    group = access_of(problem, places, 4)
    return Config(**{**vars(found), "rows": rows, "access": Access(width, group.y, group.index)})


def _fits(config):
    return config.taps * config.places <= MOST_TERMS and config.groups * config.access.x <= MOST_WORDS


def configs(problem, device):
    """Places that step over one group, and over two."""
    found = [_config(problem, factor) for factor in (1, 2)]
    return [c for c in found if _fits(c) and (c is found[0] or c.places <= problem.out[2])]


def supports(problem):
    """Ordinary windows on rows of contiguous elements, as many as fill words."""
    if reason := rows_refusal(problem):
        return reason
    config = _config(problem)
    if config.elements * problem.x.itemsize < 4:
        return f"rows of x are aligned to {config.elements * problem.x.itemsize} bytes; expected 4"
    if not _fits(config):
        return f"{config.places} places of {config.taps} taps, {config.groups} loads a row; expected {MOST_TERMS} taps and " \
               f"{MOST_WORDS // config.access.x} loads at most"
    return numbers_refusal(problem, problem.y.size)


def workspace(problem, device, config):
    """None."""
    return 0


def _units(problem, config):
    return problem.n * problem.c * problem.out[0] * problem.out[1] * ceil_div(problem.out[2], config.places)


def estimate(problem, device, config):
    """Instructions of loads and their elements, and of an output's taps, more with an index. Overlapped times show in part."""
    units, rows = _units(problem, config), problem.taps[0] * problem.taps[1]
    each = COST.thread + rows * (config.groups * (COST.load + config.elements)
                                 + config.taps * config.places * (COST.tap_index if config.index else COST.tap))
    each += COST.output * config.places * (1 if config.whole else COST.ragged)
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * rows * config.groups * 4 * config.access.x / (COST.l1 * device.sms * device.clock_hz))
    return LAUNCH + work.slowed(idle=1 / max(occupied(units, COST.enough, device), COST.least_share),
                                tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """y[n, c, o, p, q:q + places] = the maximum or the average of x over each window."""
    Total, E, V, ROWS, TAPS = scalar_of(config.dtype), config.elements, config.places, config.rows, config.taps
    MAX, INDEX, WHOLE, Int = config.maximum, config.index, config.whole, i64 if config.wide else i32
    GROUPS, SKIP, STEP, (EVEN, ODD) = config.groups, config.skip, config.step, NOTHING[config.dtype]
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, E, config.access.x)
    put, put_words = make_writer(config.dtype, V, config.access.y), make_word_writer(V, max(1, config.access.index))
    store, coordinates = make_writer(config.dtype, 1, 0), make_coordinates(True)
    window_d, window_h, window_w = (make_window(axis, False, False) for axis in range(3))
    inside_d, inside_h = (make_inside(axis, config.dilated, False) for axis in range(2))
    counted_d, counted_h, counted_w = (make_counted(axis, config.dilated, False) for axis in range(3))
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    START, BUFFER, STRETCH, GROUPED = MINUS_INFINITY if MAX else 0.0, ROWS * GROUPS * LENGTH, GROUPS * E, GROUPS * LENGTH

    @jit(launch_bounds=(THREADS, 3))
    def pool_fwd_rows(x, y, index, count, divisors, g, x_strides, y_strides, index_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < count:
            raw, values = cuda.local.array(BUFFER, u32), cuda.local.array(STRETCH, Total)
            total, where = cuda.local.array(V, Total), cuda.local.array(V, u32)
            n, c, o, p, q = coordinates(i, divisors)
            q = q * V
            first_d, taps_d = window_d(o, g)
            first_h, taps_h = window_h(p, g)
            first_w, taps_w = window_w(q, g)
            low_d, high_d = inside_d(first_d, taps_d, g)
            low_h, high_h = inside_h(first_h, taps_h, g)
            row = (first_d + low_d * g[12]) * g[1] + (first_h + low_h * g[13])
            for v in range(V):
                total[v] = Total(START)
                w = first_w + v * STEP
                seen = (low_d < high_d) & (low_h < high_h) & (w < g[2]) & (w + TAPS > 0)
                where[v] = u32(row * g[2] + max(w, 0)) if seen else u32(0xFFFFFFFF)
            image = advance(x, n * x_strides[0] + c * x_strides[1])
            base = first_w - SKIP
            for t in range(low_d, high_d):
                d = first_d + t * g[12]
                for r0 in range(low_h, high_h, ROWS):
                    # load the rows' stretches
                    for r in range(ROWS):
                        h = first_h + min(r0 + r, high_h - 1) * g[13]
                        start = Int(Int(d) * Int(x_strides[2]) + Int(h) * Int(x_strides[3]) + Int(base))
                        for k in range(GROUPS):
                            w = base + k * E
                            ok = (w >= 0) & (w < g[2])
                            if not MAX:
                                ok = ok & (r0 + r < high_h)
                            fetch(raw, r * GROUPED + k * LENGTH, image, Int(start + k * E), i32(ok))
                    # combine them
                    for r in range(ROWS):
                        for k in range(GROUPS):
                            if MAX:
                                w = base + k * E
                                ok = (w >= 0) & (w < g[2])
                                for j in range(LENGTH):
                                    at = r * GROUPED + k * LENGTH + j
                                    raw[at] = raw[at] if ok else u32(ODD if j & 1 else EVEN)
                            unpack(values, k * E, raw, r * GROUPED + k * LENGTH)
                        if INDEX:
                            h = first_h + min(r0 + r, high_h - 1) * g[13]
                            position = (d * g[1] + h) * g[2] + first_w
                        for s in range(TAPS):
                            for v in range(V):
                                value = values[SKIP + v * STEP + s]
                                if INDEX:
                                    better = (total[v] == total[v]) & (not value <= total[v])
                                    where[v] = u32(position + v * STEP + s) if better else where[v]
                                if MAX:
                                    total[v] = maximum(total[v], value)
                                else:
                                    total[v] = Total(total[v] + value)
            if not MAX:
                rows = counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g)
                for v in range(V):
                    total[v] = Total(total[v] * reciprocal(rows * counted_w(first_w + v * STEP, taps_w, g)))
            to = advance(y, offset(n, c, o, p, q, y_strides))
            if WHOLE:
                put(to, 0, total, 0)
                if INDEX:
                    put_words(as_u32(advance(index, offset(n, c, o, p, q, index_strides))), where)
            else:
                for v in range(V):
                    if i32(q + v) < g[5]:
                        store(to, i32(v), total, i32(v))
                        if INDEX:
                            index[offset(n, c, o, p, i32(q + v), index_strides)] = i32(where[v])
    return pool_fwd_rows


def build(problem, device, config):
    """One launch. Without an index its pointer is y's, which nothing reads or writes through it."""
    pointer = element(problem.x.dtype).pointer
    index = Argument("int32*", "index") if config.index else Argument(pointer, "y")
    units = _units(problem, config)
    extents = (*problem.out[:2], ceil_div(problem.out[2], config.places))
    given = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("int32", units), *arguments(problem, extents, problem.c))
    return (Launch(kernel(config), blocks(units, THREADS), (THREADS, 1, 1), given),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_fwd", "avg_pool_fwd"))
