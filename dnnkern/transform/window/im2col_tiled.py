"""What an element of x is loaded for is done at once: a chunk of channels, or all taps of a window's row.

*Channels last.* What a tap sees of a pixel is a run of channels in x and in the columns: a thread copies a chunk of up to 16 bytes of it,
or writes zeros, several chunks in flight. The windows overlap, so x comes from memory once and from the caches as often as the window has
taps.

*Channels first.* The columns hold, for each channel and tap, one pixel after the other. A thread has a run of V pixels of one row of
places, V elements being the largest unit of up to 16 bytes that divides rows. For each row of the window it loads the stretch of the image
that its pixels see through any tap, ``(V - 1) * stride + (S - 1) * dilation + 1`` elements, and makes from these registers a chunk for each
of the S taps: a third of the loads for a window of 3. Threads that store together have successive chunks, across rows too.

Both write each column once, in whole chunks, and a column is all there is to write: time is that of the columns' bytes.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i32, i64, jit, u32
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...engine.pack_words import make_pack
from ...engine.vectors import UNITS, make_unit_moves, unit_of, word_of
from ...host.launch import Argument, Launch
from .im2col_gather import make_three, window_arguments

COST = constants("transform/im2col_tiled")

THREADS = 256
MOST_SPAN, MOST_TAPS = 24, 11  # words of the image in a thread's registers, and taps made of them: more would spill


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a store, 64-bit offsets; channels last: chunks a thread; first: taps, stride, dilation along the row."""
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
        """Elements of a row of the image that a thread's pixels see through a row of the window."""
        return (self.elements - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    @property
    def span_words(self):
        return self.span * max(self.itemsize // 4, 1)

    @property
    def blocks(self):
        """Blocks a multiprocessor that registers are to allow."""
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
    """Threads' worth of work: chunks of the columns, for channels first those of one tap."""
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
    """Channels last: several chunks a thread, and one where there are few."""
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
    work = overlap(memory=memory_seconds(problem.bytes, device) * short, issue=issue_seconds(chunks, instructions, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(int(threads), THREADS) or 1, COST.blocks, device))


@functools.cache
def kernel_last(config):
    """Channels last: `chunks` chunks a thread, neighbouring threads neighbouring chunks."""
    _, _, SCALE = word_of(config.itemsize)
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    CHUNKS, Int = config.chunks, i64 if config.wide else i32
    SIZE, SPAN, STEP = WORDS * CHUNKS, THREADS * CHUNKS, config.elements * SCALE
    three = make_three()

    @jit(launch_bounds=(THREADS, 3))
    def im2col_tiled(x, columns, count, chunks, out, taps, image, steps, dilations, before, x_strides, row, tap_stride):
        words = cuda.local.array(SIZE, u32)
        to = cuda.local.array(CHUNKS, Int)
        first = cuda.blockIdx.x * SPAN + cuda.threadIdx.x
        for k in range(CHUNKS):
            index = first + k * THREADS
            rest, chunk = divide_remainder(index, chunks)
            m, t, r, s = three(rest, taps)
            tap = rest - m * i32(taps[0]) * i32(taps[3]) * i32(taps[6])
            n, o, p, q = three(m, out)
            d = o * steps[0] + t * dilations[0] - before[0]
            h = p * steps[1] + r * dilations[1] - before[1]
            w = q * steps[2] + s * dilations[2] - before[2]
            ok = i32(index < count and d >= 0 and d < image[0] and h >= 0 and h < image[1] and w >= 0 and w < image[2])
            at = Int(Int(n) * x_strides[0] + Int(chunk * STEP) + Int(d) * x_strides[2] + Int(h) * x_strides[3] + Int(w) * x_strides[4])
            to[k] = Int(Int(m) * row + Int(tap) * tap_stride + Int(chunk * STEP))
            load(words, k * WORDS, advance(x, at), ok)
        for k in range(CHUNKS):
            if first + k * THREADS < count:
                store(advance(columns, to[k]), words, k * WORDS)
    return im2col_tiled


@functools.cache
def kernel_first(config):
    """Channels first: `elements` pixels of one row of places, through every tap."""
    _, _, SCALE = word_of(config.itemsize)
    load, _, _, _, WORDS = make_unit_moves(config.itemsize, config.itemsize)
    _, store, _, _, _ = make_unit_moves(config.unit, config.itemsize)
    V, S, STRIDE, DILATION, SPAN = config.elements, config.taps, config.stride, config.dilation, config.span
    LOADED, PICKED, Int = SPAN * WORDS, V * WORDS, i64 if config.wide else i32
    pack, PACKED = make_pack(config.itemsize, V)

    @jit(launch_bounds=(THREADS, config.blocks))
    def im2col_tiled(x, columns, count, chunks, channels, out, taps, image, steps, dilations, before, x_strides, strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            seen = cuda.local.array(LOADED, u32)
            picked = cuda.local.array(PICKED, u32)
            words = cuda.local.array(PACKED, u32)
            rest, chunk = divide_remainder(index, chunks)     # of a row of places
            rest, p = divide_remainder(rest, (out[3], out[4], out[5]))
            rest, o = divide_remainder(rest, (out[0], out[1], out[2]))
            n, c = divide_remainder(rest, channels)
            q = chunk * V
            pixel = (o * i32(out[3]) + p) * i32(out[6]) + q
            plane = advance(x, i64(n) * x_strides[0] + i64(c) * x_strides[1])
            to = advance(columns, i64(n) * strides[0] + i64(c) * strides[1] + pixel * i64(SCALE))
            w = q * STRIDE - before[2]
            for t in range(i32(taps[0])):
                for r in range(i32(taps[3])):
                    d, h = o * steps[0] + t * dilations[0] - before[0], p * steps[1] + r * dilations[1] - before[1]
                    ok = d >= 0 and d < image[0] and h >= 0 and h < image[1]
                    row = advance(plane, Int(Int(d) * x_strides[2] + Int(h) * x_strides[3]))
                    for k in range(SPAN):
                        column = w + k
                        load(seen, k * WORDS, advance(row, Int(Int(column) * x_strides[4])),
                             i32(ok and column >= 0 and column < image[2]))
                    for s in range(S):
                        for v in range(V):
                            for part in range(WORDS):
                                picked[v * WORDS + part] = seen[(v * STRIDE + s * DILATION) * WORDS + part]
                        pack(picked, words)
                        tap = (t * i32(taps[3]) + r) * S + s
                        store(advance(to, Int(Int(tap) * strides[2])), words, 0)
    return im2col_tiled


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    _, name, scale = word_of(config.itemsize)
    pointers = Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1])
    window, integer = window_arguments(problem, config.wide, scale), "int64" if config.wide else "int32"
    n, c, tap, pixel = (s * scale for s in problem.columns_strides)
    count = _chunks(problem, config.unit)
    if config.chunks:
        arguments = (*pointers, Argument("int32", count), Argument("uint32x3", divisor(problem.c // config.elements)), *window,
                     Argument(integer, pixel), Argument(integer, tap))
        per, function = THREADS * config.chunks, kernel_last(config)
    else:
        arguments = (*pointers, Argument("int32", count), Argument("uint32x3", divisor(problem.out[2] // config.elements)),
                     Argument("uint32x3", divisor(problem.c)), *window, Argument(f"{integer}x3", (n, c, tap)))
        per, function = THREADS, kernel_first(config)
    return (Launch(function, (ceil_div(count, per), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="im2col", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
