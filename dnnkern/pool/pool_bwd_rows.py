"""Channels first: a thread computes neighbouring pixels of up to two rows, gathering from the stretch of outputs that cover them.

The pixels are those that a vector of outputs slides over: 8 of 16-bit types for 4 outputs at stride 2. So which output covers which pixel
by which tap of a row is the same for every thread, and unrolled: 12 pairs for 8 pixels and 3 taps, instead of every pixel looking at every
output. Of each row of outputs a thread loads the vectors of gradients, and for a maximum of indices, that its stretch lies in, before it
uses the first. A pixel adds the gradients whose index it is, or its share of all. Vectors are aligned, so each is entirely inside y or
outside, where it is 0. No atomics; sums are made in the order of the outputs.

Where the rows of pixels are as many as the stride, and windows are flat, the same is known of the rows: a thread loads all rows of outputs
that cover its pixels before it uses the first, and leaves out pairs of rows that have no tap in common.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.convert import element
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, contend, issue_seconds, memory_seconds, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import arguments, blocks, is_wide, make_coordinates, numbers_refusal, offset, rows_refusal
from ._index import WORDS, make_index_reader
from ._windows import make_counted, make_covering, make_reciprocal, make_window, pixel_number
from .pool_bwd_channels import dilated_refusal, outputs_covering
from .pool_bwd_patches import Along, along, is_flat

COST = constants("pool/bwd_rows")

THREADS = 256
MOST_LOADED = 24  # outputs of a row; a gradient or an index each takes a register or half of one
MOST_PIXELS = 32
MOST_OF_TWO = 16  # pixels, in rows of two strides: with more of them, rows of one stride were faster
MOST_HELD = 56    # registers for sums and what is in flight, where all rows of outputs are


@dataclass(frozen=True)
class Config:
    """Type of a maximum's index, None for an average, and of the elements; outputs per vector, words per access to y, the index and x;
    taps, stride and padding of a row; rows of pixels; whether threads divide rows; one divisor of averages; 64-bit offsets; the windows
    along height, where all rows of outputs are loaded at once."""
    index: str | None
    dtype: str
    outputs: int
    y_words: int
    index_words: int
    x_words: int
    taps: int
    stride: int
    padding: int
    rows: int
    whole: bool
    divided: bool
    wide: bool
    height: Along | None = None

    @property
    def down(self):
        """Rows of outputs that are loaded together."""
        return self.height.outputs if self.height else 1

    @property
    def words(self):
        """In flight."""
        each = element(self.dtype).storage.itemsize / 4 + WORDS.get(self.index, 0)
        return self.down * self.vectors * self.outputs * each

    @property
    def held(self):
        """Registers of a thread for sums and what is in flight."""
        return self.words + self.rows * self.pixels * (2 if self.dtype == "float64" else 1)

    @property
    def blocks(self):
        """Of a multiprocessor, that its registers should hold."""
        many = self.height and self.index and (self.words > 32 or self.rows * self.pixels > MOST_OF_TWO)
        return 2 if many or self.dtype == "float64" else 3

    @property
    def pixels(self):
        """Pixels of a row per thread."""
        return self.outputs * self.stride

    @property
    def first(self):
        """The first output that covers them, counted from the first of the thread's own vector."""
        return -(-(self.padding - self.taps + 1) // self.stride)

    @property
    def skip(self):
        """Outputs of the first vector before that one."""
        return self.first % self.outputs

    @property
    def vectors(self):
        """Vectors that are loaded of a row of outputs."""
        return ceil_div(self.skip + (self.pixels - 1 + self.padding) // self.stride - self.first + 1, self.outputs)

    def __str__(self):
        rows = f"{self.down} x " if self.height else ""
        return f"{self.rows}x{self.pixels} pixels, {rows}{self.vectors} vectors of {self.outputs} outputs"


def _words(tensor, strides, count):
    return access_words(tensor, count, strides[:4])


def _config(problem, nbytes, rows, height=None):
    """With the longest vector for up to so many bytes of pixels to which rows of y are aligned."""
    stride, itemsize = problem.steps[2], problem.x.itemsize
    outputs = math.gcd(1 << max(0, (nbytes // itemsize // stride).bit_length() - 1), problem.out[2])
    pixels = outputs * stride
    index = _words(problem.index, problem.index_strides, outputs) if problem.is_max else 1
    return Config(problem.index_dtype, problem.x.dtype, outputs, _words(problem.y, problem.y_strides, outputs), index,
                  _words(problem.x, problem.x_strides, pixels), problem.taps[2], stride, problem.before[2], rows,
                  problem.image[2] % pixels == 0, problem.divisor is not None, is_wide(problem), height)


def _configs(problem):
    """One for each number of rows."""
    return [_config(problem, 16, rows) for rows in (1, 2)]


def _flat_configs(problem):
    """Those that load all rows of outputs at once: 16 and 32 bytes of pixels of a row, rows of one stride and of two."""
    if not is_flat(problem):
        return []
    heights = [along(problem, 1, times) for times in (1, 2)]
    found = [_config(problem, nbytes, h.pixels, h) for nbytes in (16, 32) for h in heights]
    found = [c for c in dict.fromkeys(found) if c.rows <= c.height.stride or c.rows * c.pixels <= MOST_OF_TWO]
    return [c for c in found if c.held <= MOST_HELD]


def _fits(config):
    return config.vectors * config.outputs <= MOST_LOADED and config.pixels * config.rows <= MOST_PIXELS


def configs(problem, device):
    """One row of pixels per thread, and two; rows of a stride."""
    return [c for c in _configs(problem) + _flat_configs(problem) if _fits(c) and c.rows <= problem.image[1]]


def supports(problem):
    """Windows of one size on rows of contiguous elements."""
    if reason := rows_refusal(problem):
        return reason
    config = _configs(problem)[0]
    if not _fits(config):
        return f"{config.vectors * config.outputs} outputs for {config.pixels} pixels; expected at most {MOST_LOADED} and {MOST_PIXELS}"
    return dilated_refusal(problem) or numbers_refusal(problem, problem.x.size)


def workspace(problem, device, config):
    """None."""
    return 0


def _extents(problem, config):
    return problem.image[0], ceil_div(problem.image[1], config.rows), ceil_div(problem.image[2], config.pixels)


def estimate(problem, device, config):
    """Instructions of groups of outputs, and of each pair of a pixel and an output. Overlapped times show in part. Narrow stores of a row
    of several leave sectors that others fill: the more of them, the farther the pixels of two threads are apart."""
    units = problem.n * problem.c * math.prod(_extents(problem, config))
    rows = outputs_covering(problem, 0, 1) * (config.down if config.height else outputs_covering(problem, 1, config.rows))
    pairs = ceil_div(config.pixels * config.taps, config.stride) * (config.height.pairs if config.height else rows * config.rows)
    both = 2 if config.index else 1
    each = COST.thread + (rows * config.vectors * both * (COST.group + config.outputs)
                          + pairs * (COST.maximum if config.index else COST.average))
    each += COST.pixel * config.rows * config.pixels * (1 if config.whole else COST.ragged)
    loaded = rows * config.vectors * max(8, config.outputs * (problem.x.itemsize + 4 * WORDS.get(config.index, 0)))
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * loaded / (COST.l1 * device.sms * device.clock_hz))
    stores, nbytes = ceil_div(config.pixels, max(1, 4 * config.x_words // problem.x.itemsize)), config.pixels * problem.x.itemsize
    if stores > 1 and config.x_words < 2:
        apart = nbytes * (config.rows if problem.image[2] <= config.pixels else 1)
        pieces = units * config.rows * stores * min(1.0, apart / SECTOR)
        work = contend(4, work, memory=pieces * (COST.piece if config.rows > 1 else COST.piece_of_one))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), config.blocks, device))


@functools.cache
def kernel(config, dependent):
    """dx[n, c, d, h:h + rows, w:w + pixels] = the sum of the gradients that belong to each pixel."""
    Total, V, ROWS, PIXELS, STRIDE = scalar_of(config.dtype), config.outputs, config.rows, config.pixels, config.stride
    MAX, WIDTH, WHOLE, DOWN = config.index is not None, WORDS.get(config.index, 1), config.whole, config.down
    H = config.height or Along(1, 1, 0, 1)
    FLAT, FIRST_H, STEP_H, STRIDE_H, BEFORE, TAPS_H = (config.height is not None, H.first, H.pixels // H.stride, H.stride,
                                                       H.padding - H.first * H.stride, H.taps)
    Int, coordinates = i64 if config.wide else i32, make_coordinates(True)
    VECTORS, SKIP, FIRST, TAPS, PADDING = config.vectors, config.skip, config.first, config.taps, config.padding
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.y_words)
    fetch_index, narrow = make_index_reader(config.index, V, config.index_words)
    put, store = make_writer(config.dtype, PIXELS, config.x_words), make_writer(config.dtype, 1, 0)
    window, covering, counted = make_window(False), make_covering(False), make_counted(False, config.divided)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    ROW, STRETCH, TOTALS = VECTORS * LENGTH, VECTORS * V, ROWS * PIXELS
    ROW_INDICES = STRETCH * WIDTH
    BUFFER, INDICES = DOWN * ROW, DOWN * ROW_INDICES if MAX else 1

    @device_function
    def meets(output, pixel):
        """Whether the window of a row of outputs has a row of pixels."""
        tap = pixel + BEFORE - output * STRIDE_H
        return tap >= 0 and tap < TAPS_H

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, config.blocks))
    def pool_bwd_rows(dy, index, dx, threads, chunks, axes, extents, x_stride, y_stride, index_stride):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            raw, indices = cuda.local.array(BUFFER, Raw), cuda.local.array(INDICES, u32)
            values, total = cuda.local.array(STRETCH, Total), cuda.local.array(TOTALS, Total)
            n, c, d, h, w = coordinates(i, chunks, extents)
            base, patch = w * V + FIRST - SKIP, h
            h, w = h * ROWS, w * PIXELS
            for k in range(TOTALS):
                total[k] = Total(0)
            dy_image = advance(dy, n * y_stride.n + c * y_stride.c)
            index_image = advance(index, n * index_stride.n + c * index_stride.c)
            first_o, end_o = covering(d, d, axes.d)
            first_p, end_p = covering(h, h + ROWS - 1, axes.h)
            if FLAT:
                # one turn, for all rows of outputs
                first_p = patch * STEP_H + FIRST_H
                end_p = first_p + 1
            for o in range(first_o, end_o):
                for p0 in range(first_p, end_p):
                    # load the stretch of a row of outputs, of each
                    for a in range(DOWN):
                        p = p0 + a
                        for k in range(VECTORS):
                            q = base + k * V
                            ok = (q >= 0) & (q < axes.w.outputs)
                            if FLAT:
                                ok = ok & (p >= 0) & (p < axes.h.outputs)
                            fetch(raw, a * ROW + k * LENGTH, dy_image, o * Int(y_stride.d) + p * Int(y_stride.h) + q, ok)
                            if MAX:
                                fetch_index(indices, a * ROW_INDICES + k * V * WIDTH, index_image,
                                            o * Int(index_stride.d) + p * Int(index_stride.h) + q, ok)
                    for a in range(DOWN):
                        for k in range(VECTORS):
                            unpack(values, k * V, raw, a * ROW + k * LENGTH)
                            if MAX:
                                narrow(indices, a * ROW_INDICES + k * V, a * ROW_INDICES + k * V * WIDTH)
                        first_h, taps_h = window(p0 + a, axes.h)
                        if not MAX:
                            first_d, taps_d = window(o, axes.d)
                            rows = counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h)
                            for k in range(STRETCH):
                                first_w, taps_w = window(base + k, axes.w)
                                values[k] *= reciprocal(rows * counted(first_w, taps_w, axes.w))
                        # each pixel adds what belongs to it
                        for r in range(ROWS):
                            if not FLAT or meets(a, r):
                                covered = FLAT or (h + r >= first_h) & (h + r < first_h + taps_h)
                                row = pixel_number(d, h + r, w, axes)
                                for k in range(STRETCH):
                                    for s in range(TAPS):
                                        at = (k - SKIP + FIRST) * STRIDE - PADDING + s
                                        if at >= 0 and at < PIXELS:
                                            belongs = indices[a * ROW_INDICES + k] == u32(row + at) if MAX else covered
                                            total[r * PIXELS + at] += values[k] if belongs else Total(0)
            # write back
            for r in range(ROWS):
                if h + r < axes.h.extent:
                    to = advance(dx, offset(n, c, d, h + r, w, x_stride))
                    if WHOLE:
                        put(to, 0, total, r * PIXELS)
                    else:
                        for v in range(PIXELS):
                            if w + v < axes.w.extent:
                                store(to, v, total, r * PIXELS + v)
    return pool_bwd_rows


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of dy, and is not used."""
    pointer, extents = element(problem.x.dtype).pointer, _extents(problem, config)
    units = problem.n * problem.c * math.prod(extents)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "dy")
    given = (Argument(pointer, "dy"), index, Argument(pointer, "dx"), Argument("int32", units), *arguments(problem, extents, problem.c))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), blocks(units, THREADS), (THREADS, 1, 1), given, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("max_pool_bwd", "avg_pool_bwd"))
