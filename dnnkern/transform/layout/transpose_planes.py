"""Small planes, such as images of 7x7 or 14x14 pixels: a block moves several planes whole, one stretch of memory where they are planes.

Where channels come first, G planes of P pixels are G * P neighbouring elements, so that chunks of 16 bytes move them whatever P is, 49
included. Where channels come last, they are P rows of G neighbouring channels, chunks again. In between they lie in shared memory as
planes, and a thread takes the elements of its chunk of channels one by one, P apart::

    channels first   [plane c: p0 p1 ... pP-1][plane c+1: p0 ...      one stretch, chunks of 16 bytes
    shared memory    the same; a chunk later for every eighth chunk where P is even
    channels last    row p: [c c+1 ... c+G-1]                         P rows of chunks

Neighbouring lanes have neighbouring chunks of a row, P * 16 bytes apart, and meet different banks if P is odd; with the additional chunks
if it is even. A thread loads all of its chunks before it waits for the first. `tiled` would have tiles of single elements here, mostly
empty; it wins where planes begin at multiples of 16 bytes and have many pixels.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, jit, u16, u32
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance, load_shared_u16, load_shared_u32, shared_address, store_shared_u16, store_shared_u32
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, flight_rate, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.vectors import make_unit_moves, word_of
from ...host.launch import Argument, Launch
from .._problem import MOVES
from .transpose_tiled import split

COST = constants("transform/planes")

ITEMSIZES = 2, 4
CHUNKS = 16, 8, 4, 2  # of 16 bytes: channels of a block
SHARED_BYTES = 46 * 1024
LOADS, MOST_LOADS, MOST_THREADS = 4, 8, 512  # chunks of a thread that are wanted, and at most


@dataclass(frozen=True)
class Config:
    """Bytes of an element; elements of a plane; chunks of channels of a block; chunks of a thread; whether planes are x's; dimensions that
    number the blocks; 64-bit offsets."""
    itemsize: int
    plane: int
    chunks: int
    loads: int
    gathers: bool
    dims: int
    wide: bool

    def __post_init__(self):
        if self.chunks & self.chunks - 1:
            raise ValueError(f"{self.chunks} chunks of channels; expected a power of two")

    @property
    def side(self):
        """V: elements of a chunk."""
        return 16 // self.itemsize

    @property
    def padded(self):
        """Whether every eighth chunk is followed by an empty one."""
        return self.plane % 2 == 0

    @property
    def nbytes(self):
        """Of shared memory."""
        count = self.chunks * self.plane
        return 16 * (count + (count >> 3) * self.padded)

    @property
    def threads(self):
        return ceil_div(ceil_div(self.chunks * self.plane, self.loads), 32) * 32

    @property
    def blocks(self):
        """Blocks that a multiprocessor's shared memory, threads and registers allow."""
        return max(1, min(220 * 1024 // (self.nbytes + 1024), 1536 // self.threads, 32))

    def __str__(self):
        where = "x" if self.gathers else "y"
        return f"{self.chunks * self.side} planes of {self.plane} in {where}, {self.threads} threads of {self.loads} x 16 bytes"


def _dims(problem):
    """(pixels, channels, others, whether the planes are x's): channels in whole chunks, the smaller planes where both arrays have some."""
    i, j, others = split(problem.units)
    side, in_x, in_y = 16 // problem.units.itemsize, (i.x, j.x) == (1, i.size), (j.y, i.y) == (1, j.size)
    gathers = min((not in_x, j.size % side > 0, i.size, True), (not in_y, i.size % side > 0, j.size, False))[-1]
    return (i, j, others, True) if gathers else (j, i, others, False)


def supports(problem):
    """Planes side by side in one array, pixels of aligned channels in the other."""
    form = problem.units
    if len(form.dims) < 2:
        return "after merging one dimension is left: there is nothing to transpose"
    if form.itemsize not in ITEMSIZES:
        return f"elements of {form.itemsize} bytes; expected 2 or 4"
    pixel, channel, others, gathers = _dims(problem)
    side = 16 // form.itemsize
    planes, rows = ((pixel.x, channel.x), (channel.y, pixel.y)) if gathers else ((pixel.y, channel.y), (channel.x, pixel.x))
    if planes != (1, pixel.size) or rows[0] != 1:
        return (f"strides of pixels and channels are {planes[0]}, {planes[1]} in one array and {rows[1]}, {rows[0]} in the other; expected "
                f"1, {pixel.size} in one, and channels 1 apart in the other")
    steps = [v for d in others for v in (d.x, d.y)]
    if channel.size % side or rows[1] % side or any(v % side for v in steps) or min(problem.alignments(form)) < 16:
        return f"{channel.size} channels, rows {rows[1]} apart, images {steps} apart; expected multiples of {side} elements, 16 bytes"
    if 18 * CHUNKS[-1] * pixel.size > min(SHARED_BYTES, 18 * MOST_LOADS * MOST_THREADS):
        return f"planes of {pixel.size} elements; a block has no room for {CHUNKS[-1] * side} of them"
    if form.size >= LIMIT - 2 ** 20:
        return f"{form.size} elements; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """The most channels that fit: fewer were no faster."""
    form = problem.units
    pixel, channel, others, gathers = _dims(problem)
    for chunks in CHUNKS:
        count, side = chunks * pixel.size, 16 // form.itemsize
        loads = max(LOADS, -(-count // MOST_THREADS))
        if 18 * count <= SHARED_BYTES and loads <= MOST_LOADS and chunks * side < 2 * channel.size:
            break
    return [Config(form.itemsize, pixel.size, chunks, loads, gathers, len(others), form.is_wide)]


def _blocks(dims, config):
    """(groups of channels, blocks)."""
    _, channel, others, _ = dims
    groups = count = -(-channel.size // (config.chunks * config.side))
    for d in others:
        count *= d.size
    return groups, count


def estimate(problem, device, config):
    """Sectors of the rows of channels, at the rate that the bytes in flight sustain; instructions of a chunk."""
    dims = pixel, channel, _, gathers = _dims(problem)
    _, blocks = _blocks(dims, config)
    waste = sector_waste(min(channel.size, config.chunks * config.side) * config.itemsize, 16)
    side_bytes = (problem.read_bytes, problem.y.nbytes) if gathers else (problem.y.nbytes, problem.read_bytes)
    memory = memory_seconds(side_bytes[0] + side_bytes[1] * waste, device)
    rate = flight_rate(16 * config.chunks * config.plane * config.blocks, COST.in_flight)
    chunk = COST.chunk + COST.element * config.side
    work = overlap(memory=memory / rate, issue=issue_seconds(blocks * config.threads * config.loads, chunk, device))
    whole = COST.whole if pixel.size * config.itemsize % 16 == 0 else 1.0  # as `tiled` reads them
    return LAUNCH + Cost(waves=COST.start) + work.slowed(tail=(1 + tail(blocks, config.blocks, device)) / 2, slower=whole)


@functools.cache
def make_elements(itemsize):
    """Device functions ``gather(words, base, at, step)``, V elements of shared memory, `step` bytes apart, as four words, and
    ``scatter(words, k, base, at, step)``, the other way, from word k on; ``location(byte)`` is where a byte of the planes lies."""
    V = 16 // itemsize
    if itemsize == 2:
        @device_function
        def take(base, byte):
            return u32(load_shared_u16(base + u32(byte)))

        @device_function
        def put(base, byte, value):
            store_shared_u16(base + u32(byte), u16(value))
    else:
        @device_function
        def take(base, byte):
            return load_shared_u32(base + u32(byte))

        @device_function
        def put(base, byte, value):
            store_shared_u32(base + u32(byte), value)
    PER = 4 // itemsize

    def make(location):
        @device_function
        def gather(words, base, at, step):
            for w in range(4):
                word = take(base, location(at + w * PER * step))
                if PER == 2:
                    word = word | take(base, location(at + (w * PER + 1) * step)) << u32(16)
                words[w] = word

        @device_function
        def scatter(words, k, base, at, step):
            for v in range(V):
                word = words[k + v // PER]
                if PER == 2 and v & 1:
                    word = word >> u32(16)
                put(base, location(at + v * step), word)
        return gather, scatter
    return make


@functools.cache
def kernel(config, dependent):
    """The planes of a group of channels of an image, a block."""
    T, _, SCALE = word_of(config.itemsize)
    V, P, THREADS, LOADS, GATHERS = config.side, config.plane, config.threads, config.loads, config.gathers
    CHUNKS, LOG, LOG_V, ITEM = config.chunks, config.chunks.bit_length() - 1, config.side.bit_length() - 1, config.itemsize
    COUNT, SIZE, WORDS = config.chunks * config.plane, config.nbytes // 4, 4 * config.loads
    PADDED, STEP, ROW = config.padded, config.plane * config.itemsize, 16 * config.plane
    CHANNELS, BLOCKS, RAGGED = V * CHUNKS, config.blocks, config.loads * config.threads != COUNT
    PLANES, CHUNK = SCALE * P, SCALE * V
    load, store, fetch, stage, _ = make_unit_moves(16, config.itemsize)

    @device_function
    def location(byte):
        return byte + ((byte >> 7) << 4) if PADDED else byte
    gather, scatter = make_elements(config.itemsize)(location)
    offsets = make_offsets(config.dims, config.wide)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def transpose_planes(x, y, channels, x_first, y_first, row, groups, divisors, strides):
        wait()
        tile = cuda.shared.array(SIZE, u32, alignment=16)
        words = cuda.local.array(WORDS, u32)
        thread, base = cuda.threadIdx.x, shared_address(tile, 0)
        z, group = divide_remainder(cuda.blockIdx.x, groups)
        x_at, y_at = offsets(z, divisors, strides)
        first = group * CHANNELS
        own = min(channels - first, CHANNELS)
        x, y = advance(x, x_first + x_at), advance(y, y_first + y_at)
        stretch, rows = (x, y) if GATHERS else (y, x)
        stretch, rows = advance(stretch, i64(first) * PLANES), advance(rows, i64(first) * SCALE)
        count = (own >> LOG_V) * P
        if GATHERS:
            # planes in
            for n in range(LOADS):
                e = thread + n * THREADS
                load(words, 4 * n, advance(stretch, e * CHUNK), i32(e < count))
            for n in range(LOADS):
                e = thread + n * THREADS
                if not RAGGED or e < COUNT:
                    stage(tile, base, location(16 * e), words, 4 * n)
            cuda.syncthreads()
            # rows of channels out
            for n in range(LOADS):
                e = thread + n * THREADS
                k, p = e & (CHUNKS - 1), e >> LOG
                if k * V < own and (not RAGGED or p < P):
                    gather(words, base, k * ROW + p * ITEM, STEP)
                    store(advance(rows, p * row + k * CHUNK), words, 0)
        else:
            # rows of channels in
            for n in range(LOADS):
                e = thread + n * THREADS
                k, p = e & (CHUNKS - 1), e >> LOG
                load(words, 4 * n, advance(rows, p * row + k * CHUNK), i32(k * V < own and p < P))
            for n in range(LOADS):
                e = thread + n * THREADS
                k, p = e & (CHUNKS - 1), e >> LOG
                if not RAGGED or p < P:
                    scatter(words, 4 * n, base, k * ROW + p * ITEM, STEP)
            cuda.syncthreads()
            # planes out
            for n in range(LOADS):
                e = thread + n * THREADS
                if e < count:
                    fetch(words, 0, tile, base, location(16 * e))
                    store(advance(stretch, e * CHUNK), words, 0)
    return transpose_planes


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form = problem.units
    dims = pixel, channel, others, gathers = _dims(problem)
    _, name, scale = word_of(form.itemsize)
    groups, blocks = _blocks(dims, config)
    row = pixel.y if gathers else pixel.x
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", channel.size), Argument("int64", form.x_first * scale), Argument("int64", form.y_first * scale),
                 Argument("int64" if config.wide else "int32", row * scale), Argument("uint32x3", divisor(groups)),
                 *offset_arguments(others, config.wide, scale))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (blocks, 1, 1), (config.threads, 1, 1), arguments, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="planes", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in MOVES)
