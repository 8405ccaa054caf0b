"""Everything that an element of x is needed for is done at once: a chunk of channels, or all taps of a row of the window.

*Channels last.* A tap at an output position reads contiguous channels in x, and they are contiguous in the columns. A thread copies a chunk
of up to 16 bytes of them, or writes zeros, with several chunks in flight. Windows overlap, so x comes from memory once, and from the caches
as often as the window has taps.

*Channels first.* For each channel and tap the columns hold one output pixel after the other. A thread takes V pixels of one row of outputs,
V elements being the largest vector of up to 16 bytes that divides rows. For each row of the window it loads the stretch of the image that
any of its taps reads, ``(V - 1) * stride + (S - 1) * dilation + 1`` elements, and makes a vector for each of the S taps from these
registers: a third of the loads for a window of 3::

    stretch in registers    x0 x1 x2 x3 x4 x5
    tap 0                   [--------]            stored to row `tap` of the columns
    tap 1                      [--------]
    tap 2                         [--------]

Both write each column once, in whole vectors. The columns are nearly all the traffic, so time is that of their bytes.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i32, i64, jit, u32
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, unflatten3, unflatten4
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.strides import image_strides
from ...engine.vectors import UNITS, make_unit_moves, unit_of, word_of
from ...host.launch import Argument, Launch
from ._axes import axes_argument, columns_strides, image_offset, source

COST = constants("transform/im2col_tiled")

THREADS, BLOCKS = 256, 8  # of a block; of a multiprocessor
MOST_SPAN, MOST_TAPS = 24, 11  # words of the image in a thread's registers, and taps made of them: more would spill


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a store, 64-bit offsets; channels last: chunks per thread; first: taps, stride, dilation of a row."""
    itemsize: int
    unit: int
    wide: bool
    chunks: int = 0
    taps: int = 0
    stride: int = 1
    dilation: int = 1

    @property
    def elements(self):
        return self.unit // self.itemsize

    @property
    def span(self):
        """Elements of a row of the image that a thread reads for a row of the window."""
        return (self.elements - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def span_words(self):
        return self.span * max(self.itemsize // 4, 1)

    @property
    def blocks(self):
        """Resident blocks per multiprocessor that registers are to allow."""
        return 3 if self.span_words <= 16 and self.taps <= 7 else 2

    def __str__(self):
        return f"{self.chunks} x {self.unit} bytes" if self.chunks else f"{self.taps} taps x {self.unit} bytes"


def _is_last(problem):
    return problem.layout == "NHWC"


def _unit(problem):
    """Bytes of a chunk."""
    n, c, tap, pixel = problem.columns_strides
    itemsize = problem.x.itemsize
    if _is_last(problem):
        spatial = (problem.x_strides[0], *problem.x_strides[2:])
        alignment = min(problem.columns.alignment, problem.x.alignment)
        return unit_of(alignment, problem.c, n, tap, pixel, *spatial, itemsize=itemsize)
    unit = unit_of(problem.columns.alignment, problem.out[2], n, c, tap, itemsize=itemsize)
    smaller = (u for u in UNITS if u == itemsize or itemsize < u <= unit and u >= 4)
    return next((u for u in smaller if _config(problem, u, 0).span_words <= MOST_SPAN), itemsize)


def _config(problem, unit, chunks):
    if _is_last(problem):
        return Config(problem.x.itemsize, unit, problem.is_wide, chunks=chunks)
    return Config(problem.x.itemsize, unit, problem.is_wide, 0, problem.taps[2], problem.steps[2], problem.dilations[2])


def _chunks(problem, unit):
    """Chunks of the columns; with channels first, those of one tap."""
    per = unit // problem.x.itemsize
    return (problem.columns.size if _is_last(problem) else problem.n * problem.c * problem.pixels) // per


def supports(problem):
    """Chunks that are contiguous in the columns, and in x where channels are last."""
    n, c, tap, pixel = problem.columns_strides
    if _is_last(problem) and ((c != 1 or problem.x_strides[1] != 1) and problem.c > 1):
        return f"channels have strides {problem.x_strides[1]} in x and {c} in columns; expected 1"
    if not _is_last(problem) and pixel != 1 and problem.pixels > 1:
        return f"pixels have stride {pixel} in columns; expected 1"
    unit = _unit(problem)
    config = _config(problem, unit, 1)
    if config.taps and config.span_words > MOST_SPAN:
        return f"a row of the window spans {config.span} pixels, {config.span_words} registers; expected {MOST_SPAN} at most"
    if config.taps > MOST_TAPS:
        return f"a row of the window has {config.taps} taps; expected {MOST_TAPS} at most"
    if max(_chunks(problem, unit) + 2 ** 20, *(n + d * t + b for n, d, t, b in zip(
            problem.image, problem.dilations, problem.taps, problem.before))) >= LIMIT:
        return f"{_chunks(problem, unit)} chunks of {unit} bytes; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Channels last: several chunks per thread, and one where there are few."""
    unit = _unit(problem)
    return [_config(problem, unit, n) for n in ((4 if unit < 16 else 2, 1) if _is_last(problem) else (0,))]


def estimate(problem, device, config):
    """The bytes, or the instructions: of a chunk where channels are last; else of loads, and those that put chunks together."""
    chunks = _chunks(problem, config.unit)
    if config.chunks:
        instructions, threads = COST.channels, chunks / config.chunks
    else:
        rows = problem.taps[0] * problem.taps[1]
        instructions = COST.taps + rows * (COST.row + COST.load * config.span + config.taps * (COST.tap + config.elements))
        threads = chunks
    short = max(1.0, (4 / config.unit) ** 0.5, (8 / (config.unit * max(config.chunks, 1))) ** 0.5)
    # with channels last, waves of blocks that load once and store: what shows where chunks are short
    turn = COST.turn + COST.turn_chunk * config.chunks if config.chunks else 0.0
    turns = threads / (THREADS * BLOCKS * device.sms) * turn
    work = overlap(memory=memory_seconds(problem.bytes, device) * short, issue=issue_seconds(chunks, instructions, device), waits=turns)
    return LAUNCH + work.slowed(tail=tail(ceil_div(int(threads), THREADS) or 1, COST.blocks, device))


@functools.cache
def kernel_last(config):
    """Channels last: `chunks` chunks per thread, neighbouring threads with neighbouring chunks."""
    _, _, SCALE = word_of(config.itemsize)
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    CHUNKS, Int = config.chunks, i64 if config.wide else i32
    SIZE, SPAN, CHUNK = WORDS * CHUNKS, THREADS * CHUNKS, config.elements * SCALE

    @jit(launch_bounds=(THREADS, 3))
    def im2col_tiled(x, columns, count, chunks, axes, x_stride, pixel_stride, tap_stride):
        words = cuda.local.array(SIZE, u32)
        to = cuda.local.array(CHUNKS, Int)
        first = cuda.blockIdx.x * SPAN + cuda.threadIdx.x
        # load chunks
        for k in range(CHUNKS):
            index = first + k * THREADS
            rest, chunk = divide_remainder(index, chunks)
            pixel, t, r, s = unflatten4(rest, axes.d.by_taps, axes.h.by_taps, axes.w.by_taps)
            tap = rest - pixel * axes.d.taps * axes.h.taps * axes.w.taps
            n, o, p, q = unflatten4(pixel, axes.d.by_outputs, axes.h.by_outputs, axes.w.by_outputs)
            d, h, w = source(o, t, axes.d), source(p, r, axes.h), source(q, s, axes.w)
            ok = index < count and d >= 0 and d < axes.d.extent and h >= 0 and h < axes.h.extent and w >= 0 and w < axes.w.extent
            to[k] = pixel * pixel_stride + tap * tap_stride + chunk * CHUNK
            load(words, k * WORDS, advance(x, n * x_stride.n + chunk * CHUNK + image_offset(d, h, w, x_stride)), ok)
        # write back
        for k in range(CHUNKS):
            if first + k * THREADS < count:
                store(advance(columns, to[k]), words, k * WORDS)
    return im2col_tiled


@functools.cache
def kernel_first(config):
    """Channels first: `elements` pixels of one row of outputs, through every tap."""
    _, _, SCALE = word_of(config.itemsize)
    load, _, _, _, WORDS = make_unit_moves(config.itemsize, config.itemsize)
    _, store, _, _, _ = make_unit_moves(config.unit, config.itemsize)
    V, S, STRIDE, DILATION, STRETCH = config.elements, config.taps, config.stride, config.dilation, config.span
    LOADED, PICKED = STRETCH * WORDS, V * WORDS
    pack, PACKED = make_pack(config.itemsize, V)

    @jit(launch_bounds=(THREADS, config.blocks))
    def im2col_tiled(x, columns, threads, chunks, axes, x_stride, channels, stride):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            stretch = cuda.local.array(LOADED, u32)
            picked = cuda.local.array(PICKED, u32)
            words = cuda.local.array(PACKED, u32)
            rest, chunk = divide_remainder(index, chunks)     # of a row of outputs
            rest, o, p = unflatten3(rest, axes.d.by_outputs, axes.h.by_outputs)
            n, c = divide_remainder(rest, channels)
            q = chunk * V
            pixel = (o * axes.h.outputs + p) * axes.w.outputs + q
            plane = advance(x, i64(n) * x_stride.n + i64(c) * x_stride.c)
            to = advance(columns, i64(n) * stride.n + i64(c) * stride.c + pixel * i64(SCALE))
            w = q * STRIDE - axes.w.padding
            for t in range(axes.d.taps):
                for r in range(axes.h.taps):
                    # load the stretch of a row
                    d, h = source(o, t, axes.d), source(p, r, axes.h)
                    ok = d >= 0 and d < axes.d.extent and h >= 0 and h < axes.h.extent
                    row = advance(plane, d * x_stride.d + h * x_stride.h)
                    for k in range(STRETCH):
                        load(stretch, k * WORDS, advance(row, (w + k) * x_stride.w), ok and w + k >= 0 and w + k < axes.w.extent)
                    # write a vector for each tap
                    for s in range(S):
                        for v in range(V):
                            for part in range(WORDS):
                                picked[v * WORDS + part] = stretch[(v * STRIDE + s * DILATION) * WORDS + part]
                        pack(picked, words)
                        tap = (t * axes.h.taps + r) * S + s
                        store(advance(to, tap * stride.tap), words, 0)
    return im2col_tiled


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    _, name, scale = word_of(config.itemsize)
    pointers = Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1])
    window, integer = (axes_argument(problem), image_strides(problem.x_strides, config.wide, scale)), "int64" if config.wide else "int32"
    count = _chunks(problem, config.unit)
    if config.chunks:
        _, _, tap, pixel = (s * scale for s in problem.columns_strides)
        arguments = (*pointers, Argument("int32", count), Argument(Divisor, divisor(problem.c // config.elements)), *window,
                     Argument(integer, pixel), Argument(integer, tap))
        per, function = THREADS * config.chunks, kernel_last(config)
    else:
        arguments = (*pointers, Argument("int32", count), Argument(Divisor, divisor(problem.out[2] // config.elements)),
                     *window, Argument(Divisor, divisor(problem.c)), columns_strides(problem, scale, config.wide))
        per, function = THREADS, kernel_first(config)
    return (Launch(function, (ceil_div(count, per), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="im2col", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
