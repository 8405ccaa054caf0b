"""Contiguous channels, windows that are compiled in: a patch of pixels per thread, all outputs that cover it loaded at once.

A patch begins at a multiple of the stride. So which outputs cover it, counted from its own first one, and which of its pixels each of these
has is the same for every thread, and unrolled: with 3x3 windows of stride 2, four outputs for 2x2 pixels, and 9 pairs of the 16::

    pixels of a row      [0 1]
    outputs              -1..1    output q, whose window is pixels 2q - 1 to 2q + 1: both
                           1..3   output q + 1: pixel 1 alone

For a maximum, a pixel adds the gradients whose index it is; for an average, those of the windows that cover it, divided by what each
counts. Sums are made in the order of the outputs. `channels` goes through the rows of outputs one after another, waits for each, and
compares each pixel with each output; it takes any windows.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i64, jit, u32
from ..device.convert import element
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, arguments, blocks, chunk_of, is_wide, make_coordinates, make_pixel_offset, numbers_refusal, offset
from ._chunks import refusal as chunk_refusal
from ._index import WORDS, make_index_reader
from ._windows import make_counted, make_reciprocal, make_window, pixel_number

COST = constants("pool/bwd_patches")

THREADS = 256
MOST_WORDS, MOST_TOTALS = 72, 32  # of gradients and indices in flight, sums: registers of a thread
TIMES = (1, 1), (1, 2), (2, 1)    # strides of a patch, along rows and columns


@dataclass(frozen=True)
class Along:
    """Windows along an axis, and the pixels of a patch: a multiple of the stride."""
    taps: int
    stride: int
    padding: int
    pixels: int

    @property
    def first(self):
        """The first output that covers a patch, counted from the pixels over the stride of those before it."""
        return -((self.taps - 1 - self.padding) // self.stride)

    @property
    def outputs(self):
        """How many cover it."""
        return (self.pixels - 1 + self.padding) // self.stride - self.first + 1

    def has(self, output, pixel):
        """Whether the window of one of these outputs has this pixel of the patch."""
        return 0 <= pixel + self.padding - (self.first + output) * self.stride < self.taps

    @property
    def pairs(self):
        return sum(self.has(a, r) for a in range(self.outputs) for r in range(self.pixels))


@dataclass(frozen=True)
class Config:
    """Type of a maximum's index, None for an average, and of the elements; channels per thread, accesses; windows and patches along height
    and width; one divisor of averages; 64-bit offsets."""
    index: str | None
    dtype: str
    channels: int
    access: Access
    height: Along
    width: Along
    divided: bool
    wide: bool

    @property
    def words(self):
        """In flight."""
        each = max(self.channels * element(self.dtype).storage.itemsize // 4, 1) + self.channels * WORDS.get(self.index, 0)
        return self.height.outputs * self.width.outputs * each

    @property
    def totals(self):
        return self.height.pixels * self.width.pixels * self.channels * (2 if self.dtype == "float64" else 1)

    @property
    def blocks(self):
        """Of a multiprocessor, that its registers should hold."""
        return max(1, min(6, 65536 // (THREADS * 8 * ceil_div(self.words + self.totals + 32, 8))))

    def __str__(self):
        return (f"{self.channels} channels of {self.height.pixels}x{self.width.pixels} pixels, "
                f"{self.height.outputs}x{self.width.outputs} outputs")


def along(problem, axis, times):
    """The windows along an axis, with patches of so many strides."""
    taps, stride, padding = problem.taps[axis], problem.steps[axis], problem.before[axis]
    return Along(taps, stride, padding, times * stride)


def is_flat(problem):
    """Whether windows are of one depth and one size, without dilation."""
    return not problem.adaptive and set(problem.dilations) == {1} and (problem.taps[0], problem.steps[0], problem.before[0]) == (1, 1, 0)


def supports(problem):
    """Contiguous channels, windows of one size that are flat, without dilation, and small."""
    if problem.adaptive:
        return "the windows are adaptive; expected windows of one size"
    if set(problem.dilations) != {1}:
        return f"dilation {'x'.join(map(str, problem.dilation))}; expected 1"
    if not is_flat(problem):
        return f"windows of depth {problem.taps[0]}, stride {problem.steps[0]}; expected 1, and no padding"
    if (reason := chunk_refusal(problem) or numbers_refusal(problem, problem.x.size // chunk_of(problem))) is not None:
        return reason
    if not _fitting(problem):
        return f"windows of {'x'.join(map(str, problem.taps[1:]))} taps: more outputs cover a patch than registers hold"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _fitting(problem):
    found = []
    for channels in dict.fromkeys((chunk_of(problem), max(1, chunk_of(problem) // 2))):
        for rows, columns in TIMES:
            config = Config(problem.index_dtype, problem.x.dtype, channels, access_of(problem, channels), along(problem, 1, rows),
                            along(problem, 2, columns), problem.divisor is not None, is_wide(problem))
            if config.words <= MOST_WORDS and config.totals <= MOST_TOTALS:
                found.append(config)
    return found


def configs(problem, device):
    """Patches of one stride each way, and of two one way; chunks of channels, and halves."""
    return _fitting(problem)


def _patches(problem, config):
    """Extents of the image in patches."""
    d, h, w = problem.image
    return d, ceil_div(h, config.height.pixels), ceil_div(w, config.width.pixels)


def estimate(problem, device, config):
    """Instructions of each output, of each pair of one and a pixel; bytes of the L1. Overlapped times show in part."""
    units = problem.n * (problem.c // config.channels) * math.prod(_patches(problem, config))
    outputs, pixels = config.height.outputs * config.width.outputs, config.height.pixels * config.width.pixels
    pairs = config.height.pairs * config.width.pairs
    base, pair = (COST.maximum, COST.maximum_pair) if problem.is_max else (COST.average, COST.average_pair)
    each = base + COST.pixel * pixels + outputs * (COST.output + config.channels) + pairs * config.channels * pair
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * 4 * config.words / (COST.l1 * device.sms * device.clock_hz))
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), config.blocks, device))


@functools.cache
def kernel(config, dependent):
    """dx[n, d, h, w, c] = the sum of the gradients that belong to the pixel."""
    Total, V, H, W = scalar_of(config.dtype), config.channels, config.height, config.width
    ROWS, COLUMNS, DOWN, ACROSS = H.pixels, W.pixels, H.outputs, W.outputs
    FIRST_H, FIRST_W, STEP_H, STEP_W = H.first, W.first, H.pixels // H.stride, W.pixels // W.stride
    PADDING_H, PADDING_W, STRIDE_H, STRIDE_W, TAPS_H, TAPS_W = H.padding, W.padding, H.stride, W.stride, H.taps, W.taps
    MAX, WIDTH, coordinates = config.index is not None, WORDS.get(config.index, 1), make_coordinates(False)
    pixel_offset = make_pixel_offset(config.wide)
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.y)
    fetch_index, narrow = make_index_reader(config.index, V, config.access.index)
    put = make_writer(config.dtype, V, config.access.x)
    window, counted = make_window(False), make_counted(False, config.divided)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    BUFFER, INDICES, TOTALS = DOWN * ACROSS * LENGTH, DOWN * ACROSS * V * WIDTH if MAX else 1, ROWS * COLUMNS * V
    BLOCKS = config.blocks

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def pool_bwd_patches(dy, index, dx, threads, chunks, axes, extents, x_stride, y_stride, index_stride):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            raw, indices = cuda.local.array(BUFFER, Raw), cuda.local.array(INDICES, u32)
            values, total = cuda.local.array(V, Total), cuda.local.array(TOTALS, Total)
            n, chunk, d, h, w = coordinates(i, chunks, extents)
            p0, q0, c = h * STEP_H + FIRST_H, w * STEP_W + FIRST_W, i64(chunk * V)
            h, w = h * ROWS, w * COLUMNS
            dy_image = advance(dy, n * y_stride.n + c * y_stride.c)
            index_image = advance(index, n * index_stride.n + c * index_stride.c)
            # load all outputs that cover the patch
            for a in range(DOWN):
                for b in range(ACROSS):
                    p, q, k = p0 + a, q0 + b, a * ACROSS + b
                    ok = (p >= 0) & (p < axes.h.outputs) & (q >= 0) & (q < axes.w.outputs)
                    fetch(raw, k * LENGTH, dy_image, pixel_offset(d, p, q, y_stride), ok)
                    if MAX:
                        fetch_index(indices, k * V * WIDTH, index_image, pixel_offset(d, p, q, index_stride), ok)
            # each pixel adds what belongs to it
            for v in range(TOTALS):
                total[v] = Total(0)
            for a in range(DOWN):
                for b in range(ACROSS):
                    k = a * ACROSS + b
                    unpack(values, 0, raw, k * LENGTH)
                    if MAX:
                        narrow(indices, k * V, k * V * WIDTH)
                    else:
                        first_h, taps_h = window(p0 + a, axes.h)
                        first_w, taps_w = window(q0 + b, axes.w)
                        factor = reciprocal(counted(first_h, taps_h, axes.h) * counted(first_w, taps_w, axes.w))
                        for v in range(V):
                            values[v] *= factor
                    for r in range(ROWS):
                        for s in range(COLUMNS):
                            tap_h, tap_w = r + PADDING_H - (FIRST_H + a) * STRIDE_H, s + PADDING_W - (FIRST_W + b) * STRIDE_W
                            if tap_h >= 0 and tap_h < TAPS_H and tap_w >= 0 and tap_w < TAPS_W:
                                at = (r * COLUMNS + s) * V
                                if MAX:
                                    pixel = u32(pixel_number(d, h + r, w + s, axes))
                                    for v in range(V):
                                        total[at + v] += values[v] if indices[k * V + v] == pixel else Total(0)
                                else:
                                    for v in range(V):
                                        total[at + v] += values[v]
            # write back
            for r in range(ROWS):
                for s in range(COLUMNS):
                    if h + r < axes.h.extent and w + s < axes.w.extent:
                        put(advance(dx, offset(n, c, d, h + r, w + s, x_stride)), 0, total, (r * COLUMNS + s) * V)
    return pool_bwd_patches


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of dy, and is not used."""
    pointer, extents = element(problem.x.dtype).pointer, _patches(problem, config)
    units = problem.n * (problem.c // config.channels) * math.prod(extents)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "dy")
    given = (Argument(pointer, "dy"), index, Argument(pointer, "dx"), Argument("int32", units),
             *arguments(problem, extents, problem.c // config.channels))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), blocks(units, THREADS), (THREADS, 1, 1), given, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="patches", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_bwd", "avg_pool_bwd"))
