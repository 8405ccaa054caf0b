r"""Channels first: a thread computes neighbouring outputs of a row from the stretch of each input row that their windows cover.

A thread has as many outputs as slide over one vector of up to 16 bytes, or over two: 4 or 8 of 16-bit types at stride 2. Of each row of its
windows it loads the vectors that its stretch lies in, all rows of a 3x3 window at once, and combines them in registers::

    vectors of a row      [0 1 2 3 4 5 6 7][8 9 ...
    windows, stride 2      \_____/            output q
                               \_____/        output q + 1 ...

With that window and stride, 4 outputs take 6 loads of 16 bytes where `elements` takes 36 of an element. Vectors are aligned, so each is
entirely inside the image or outside. Outside is -inf for a maximum and 0 for an average. Rows above and below the image are replaced by the
nearest row inside for a maximum, and are 0 for an average.

An index is the number of a tap while all rows of a window are in registers, a constant where it is compared; its pixel is worked out at the
end. If a maximum turns out to be NaN, the taps are read again to find the first NaN.

It needs rows whose length is a multiple of 4 bytes; it wins most where 16 bytes divide them.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, occupied, overlap, tail
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, arguments, blocks, is_wide, make_coordinates, numbers_refusal, offset, rows_refusal
from ._index import make_index_writer, make_pixel_of_tap
from ._windows import MINUS_INFINITY, make_counted, make_inside, make_reciprocal, make_window, pixel_number

COST = constants("pool/fwd_rows")

THREADS = 256
MOST_WORDS = 36  # of a thread's loads in flight
MOST_TERMS = 64  # taps of a row times outputs, which are unrolled
LOWEST = {"float64": (0, 0xFFF00000), "float32": (0xFF800000,) * 2, "float16": (0xFC00FC00,) * 2, "bfloat16": (0xFF80FF80,) * 2}
"""Even and odd words of a vector that is -inf throughout."""


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; elements per vector, outputs per thread, accesses to x, y and index; taps
    and stride of a row; elements of the first vector before the stretch; rows in flight; whether threads divide rows evenly; dilation;
    one divisor of averages; 64-bit offsets; whether windows are flat, and all their rows in flight."""
    maximum: bool
    index: str | None
    dtype: str
    elements: int
    outputs: int
    access: Access
    taps: int
    stride: int
    skip: int
    rows: int
    whole: bool
    dilated: bool
    divided: bool
    wide: bool
    flat: bool = False

    @property
    def vectors(self):
        return ceil_div(self.skip + (self.outputs - 1) * self.stride + self.taps, self.elements)

    def __str__(self):
        return f"{self.outputs} outputs, {self.rows}x{self.vectors} loads of {self.elements}"


def _elements(problem):
    """Elements per vector: the longest of up to 16 bytes to which every row of x is aligned."""
    count = math.gcd(16 // problem.x.itemsize, problem.image[2])
    steps = [s for s, n in zip(problem.x_strides[:4], (problem.n, problem.c, *problem.image)) if n > 1]
    while count > 1 and access_words(problem.x, count, steps) * 4 < count * problem.x.itemsize:
        count //= 2
    return count


def _config(problem, factor=1):
    elements, stride, taps = _elements(problem), problem.steps[2], problem.taps[2]
    outputs = factor * elements // math.gcd(elements, stride)
    width = elements * problem.x.itemsize // 4
    found = Config(problem.is_max, problem.index_dtype, problem.x.dtype, elements, outputs, Access(width, 0, 0), taps, stride,
                   -problem.before[2] % elements, 1, problem.out[2] % outputs == 0, set(problem.dilations) != {1},
                   problem.divisor is not None, is_wide(problem))
    rows = max(1, min(problem.taps[1], MOST_WORDS // max(1, found.vectors * width)))
    found_access = access_of(problem, outputs, 4)
    flat = problem.taps[0] == 1 and rows == problem.taps[1]
    return Config(**{**vars(found), "rows": rows, "access": Access(width, found_access.y, found_access.index), "flat": flat})


def _fits(config):
    return config.taps * config.outputs <= MOST_TERMS and config.vectors * config.access.x <= MOST_WORDS


def configs(problem, device):
    """Outputs that slide over one vector, and over two."""
    found = [_config(problem, factor) for factor in (1, 2)]
    return [c for c in found if _fits(c) and (c is found[0] or c.outputs <= problem.out[2])]


def supports(problem):
    """Windows of one size on rows of contiguous elements, aligned to words."""
    if reason := rows_refusal(problem):
        return reason
    config = _config(problem)
    if config.elements * problem.x.itemsize < 4:
        return f"rows of x are aligned to {config.elements * problem.x.itemsize} bytes; expected 4"
    if not _fits(config):
        return f"{config.outputs} outputs of {config.taps} taps per row, {config.vectors} loads; expected at most {MOST_TERMS} taps and " \
               f"{MOST_WORDS // config.access.x} loads"
    return numbers_refusal(problem, problem.y.size)


def workspace(problem, device, config):
    """None."""
    return 0


def _units(problem, config):
    return problem.n * problem.c * problem.out[0] * problem.out[1] * ceil_div(problem.out[2], config.outputs)


def estimate(problem, device, config):
    """Instructions of loads and their elements, and of an output's taps, more with an index. Overlapped times show in part. An index that
    leaves element by element, or in more than 32 bytes per thread, writes parts of sectors."""
    units, rows = _units(problem, config), problem.taps[0] * problem.taps[1]
    each = COST.thread + rows * (config.vectors * (COST.load + config.elements)
                                 + config.taps * config.outputs * (COST.tap_index if config.index else COST.tap))
    each += COST.output * config.outputs * (1 if config.whole else COST.ragged)
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * rows * config.vectors * 4 * config.access.x / (COST.l1 * device.sms * device.clock_hz))
    apart = 0.0
    if config.index:
        index = problem.y.size * ITEMSIZE[config.index]
        own = config.outputs * ITEMSIZE[config.index]
        apart = index * (max(config.outputs - 2, 0) / COST.elements if not config.whole else max(own / 32 - 1, 0) / COST.vectors)
    return LAUNCH + Cost(aside=apart) + work.slowed(idle=1 / max(occupied(units, COST.enough, device), COST.least_share),
                                                    tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y[n, c, o, p, q:q + outputs] = the maximum or the average of x over each window."""
    Total, E, V, ROWS, TAPS = scalar_of(config.dtype), config.elements, config.outputs, config.rows, config.taps
    MAX, INDEX, WHOLE, Int = config.maximum, config.index is not None, config.whole, i64 if config.wide else i32
    VECTORS, SKIP, STRIDE, (EVEN, ODD) = config.vectors, config.skip, config.stride, LOWEST[config.dtype]
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, E, config.access.x)
    put, put_index = make_writer(config.dtype, V, config.access.y), make_index_writer(config.index, V, config.access.index)
    store, coordinates = make_writer(config.dtype, 1, 0), make_coordinates(True)
    window, inside, counted = make_window(False), make_inside(config.dilated), make_counted(config.dilated, config.divided)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    START, NO_PIXEL = MINUS_INFINITY if MAX else 0.0, -1
    BUFFER, STRETCH, ROW = ROWS * VECTORS * LENGTH, VECTORS * E, VECTORS * LENGTH
    FLAT, pixel_of_tap, load_one, hold = config.flat, make_pixel_of_tap(ROWS * TAPS, TAPS), element(config.dtype).load, pin(BUFFER)

    @device_function
    def spread(values, raw, r, base, extent):
        """The r-th row's stretch as values; what is outside of the image is the lowest."""
        for k in range(VECTORS):
            if MAX:
                w = base + k * E
                ok = (w >= 0) & (w < extent)
                for j in range(LENGTH):
                    at = r * ROW + k * LENGTH + j
                    raw[at] = raw[at] if ok else u32(ODD if j & 1 else EVEN)
            unpack(values, k * E, raw, r * ROW + k * LENGTH)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 3))
    def pool_fwd_rows(x, y, index, threads, chunks, axes, extents, x_stride, y_stride, index_stride):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            raw, values = cuda.local.array(BUFFER, u32), cuda.local.array(STRETCH, Total)
            total, best_pixel = cuda.local.array(V, Total), cuda.local.array(V, i32)
            n, c, o, p, q = coordinates(i, chunks, extents)
            q = q * V
            first_d, taps_d = window(o, axes.d)
            first_h, taps_h = window(p, axes.h)
            first_w, taps_w = window(q, axes.w)
            low_d, high_d = inside(first_d, taps_d, axes.d)
            low_h, high_h = inside(first_h, taps_h, axes.h)
            d, h = first_d + low_d * axes.d.dilation, first_h + low_h * axes.h.dilation
            for v in range(V):
                total[v] = Total(START)
                w = first_w + v * STRIDE
                covers = (low_d < high_d) & (low_h < high_h) & (w < axes.w.extent) & (w + TAPS > 0)
                if FLAT:
                    best_pixel[v] = max(-w, 0)  # the first tap of a row that is inside
                else:
                    best_pixel[v] = pixel_number(d, h, max(w, 0), axes) if covers else NO_PIXEL
            image = advance(x, n * x_stride.n + c * x_stride.c)
            base = first_w - SKIP
            if FLAT:
                # one batch: no loops
                inside_it = (low_d < high_d) & (low_h < high_h)
                for r in range(ROWS):
                    h = first_h + min(low_h + r, high_h - 1) * axes.h.dilation
                    start = first_d * Int(x_stride.d) + h * Int(x_stride.h) + base
                    for k in range(VECTORS):
                        w = base + k * E
                        ok = inside_it & (w >= 0) & (w < axes.w.extent)
                        if not MAX:
                            ok = ok & (low_h + r < high_h)
                        fetch(raw, r * ROW + k * LENGTH, image, start + k * E, ok)
                hold(raw)
                for r in range(ROWS):
                    spread(values, raw, r, base, axes.w.extent)
                    for s in range(TAPS):
                        for v in range(V):
                            value = values[SKIP + v * STRIDE + s]
                            if INDEX:
                                best_pixel[v] = r * TAPS + s if value > total[v] else best_pixel[v]
                            total[v] = maximum(total[v], value) if MAX else total[v] + value
                for v in range(V):
                    total[v] = total[v] if inside_it else Total(START)
            for t in range(low_d, low_d if FLAT else high_d):
                d = first_d + t * axes.d.dilation
                for row in range(low_h, high_h, ROWS):
                    # load the stretches of a batch of rows
                    for r in range(ROWS):
                        h = first_h + min(row + r, high_h - 1) * axes.h.dilation
                        start = d * Int(x_stride.d) + h * Int(x_stride.h) + base
                        for k in range(VECTORS):
                            w = base + k * E
                            ok = (w >= 0) & (w < axes.w.extent)
                            if not MAX:
                                ok = ok & (row + r < high_h)
                            fetch(raw, r * ROW + k * LENGTH, image, start + k * E, ok)
                    # combine them
                    for r in range(ROWS):
                        spread(values, raw, r, base, axes.w.extent)
                        if INDEX:
                            h = first_h + min(row + r, high_h - 1) * axes.h.dilation
                            pixel = pixel_number(d, h, first_w, axes)
                        for s in range(TAPS):
                            for v in range(V):
                                value = values[SKIP + v * STRIDE + s]
                                if INDEX:
                                    better = (total[v] == total[v]) & (not value <= total[v])
                                    best_pixel[v] = pixel + v * STRIDE + s if better else best_pixel[v]
                                if MAX:
                                    total[v] = maximum(total[v], value)
                                else:
                                    total[v] += value
            if FLAT and INDEX:
                d, h, any_nan = first_d + low_d * axes.d.dilation, first_h + low_h * axes.h.dilation, False
                for v in range(V):
                    w = first_w + v * STRIDE
                    covers = (low_d < high_d) & (low_h < high_h) & (w < axes.w.extent) & (w + TAPS > 0)
                    pixel = pixel_of_tap(best_pixel[v], pixel_number(d, h, w, axes), axes.h.dilation * axes.w.extent, 1)
                    best_pixel[v] = pixel if covers else NO_PIXEL
                    any_nan = any_nan | (total[v] != total[v])
                if any_nan:
                    # find the first NaN, from the last tap to the first
                    for row in range(high_h - low_h):
                        h = first_h + (high_h - 1 - row) * axes.h.dilation
                        for s in range(TAPS):
                            for v in range(V):
                                w = first_w + v * STRIDE + (TAPS - 1 - s)
                                if (w >= 0) & (w < axes.w.extent):
                                    value = load_one(image, d * Int(x_stride.d) + h * Int(x_stride.h) + w)
                                    best_pixel[v] = pixel_number(d, h, w, axes) if value != value else best_pixel[v]
            # write back
            if not MAX:
                rows = counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h)
                for v in range(V):
                    total[v] *= reciprocal(rows * counted(first_w + v * STRIDE, taps_w, axes.w))
            to = advance(y, offset(n, c, o, p, q, y_stride))
            if WHOLE:
                put(to, 0, total, 0)
                if INDEX:
                    put_index(advance(index, offset(n, c, o, p, q, index_stride)), best_pixel)
            else:
                for v in range(V):
                    if q + v < axes.w.outputs:
                        store(to, v, total, v)
                        if INDEX:
                            index[offset(n, c, o, p, q + v, index_stride)] = best_pixel[v]
    return pool_fwd_rows


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of y, and is not used."""
    pointer = element(problem.x.dtype).pointer
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "y")
    units = _units(problem, config)
    extents = (*problem.out[:2], ceil_div(problem.out[2], config.outputs))
    given = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("int32", units), *arguments(problem, extents, problem.c))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), blocks(units, THREADS), (THREADS, 1, 1), given, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_fwd", "avg_pool_fwd"))
