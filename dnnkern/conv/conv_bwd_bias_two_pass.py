"""Blocks write partial sums of dy, a second launch adds them: one pass over dy at memory bandwidth.

Channels last, dy is a matrix of pixels by channels. A block has `across` neighbouring groups of channels, and its other threads divide the
rows. A thread reads 16 bytes of channels at a time (fewer where rows are not aligned) with an accumulator for each; the threads' sums are
reduced by shuffles where lanes of a warp share channels, then through shared memory. Pixels of fewer than 16 bytes without gaps are taken
several at a time, as one with so many more channels, each with a partial sum of its own. Channels first, a block has one channel and its
threads divide the pixels of all images, 16 bytes each; their sums are reduced by shuffles. Each thread has four loads in flight.

Blocks beyond those that the channels need divide the rows or pixels further: the workspace has `splits` partial sums per channel, and a
warp per channel adds them, in a fixed order. With one split there is no second launch. It loses to `naive` only where there is little to
sum.
"""
import functools
from dataclasses import dataclass, replace

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.groups import make_flight
from ..device.index import Divisor, ceil_div, divide_remainder, divisor
from ..device.warp import reduce_sum
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, occupied
from ..engine.fold import make_meeting
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch

COST = constants("conv/bias_two_pass")

THREADS, FLIGHT = 256, 4  # threads of a block, loads in flight
ROUNDS = 4                # times a thread fills its loads in flight before another split is worth a block
BLOCKS = 6                # per multiprocessor


@dataclass(frozen=True)
class Config:
    """How dy is summed up. Kernels are compiled for all of it but `splits`, of which they know only whether there are several.

    Attributes
    ----------
    dtype, output : str
    words : int
        32-bit words of one load; 0 where elements are read one by one.
    across : int
        Groups of channels in a block, channels last; 0 channels first.
    splits : int
        Partial sums a channel; with several pixels as one, of each of those.
    pixels : int
        Pixels that are read as one.
    """
    dtype: str
    output: str
    words: int
    across: int
    splits: int
    pixels: int = 1

    @property
    def vector(self):
        """Elements of one load."""
        return max(1, 4 * self.words // ITEMSIZE[self.dtype])

    @property
    def parts(self):
        """Partial sums of a channel."""
        return self.splits * self.pixels

    @property
    def total(self):
        """Type of the sums."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def compiled(self):
        """The same with the least number of splits that compiles to the same kernel."""
        return replace(self, splits=min(self.splits, 2))


def _matrix(p):
    """(rows, row stride, along channels) of dy; rows of channels, or images of pixels; None where it is neither."""
    dims, channel = p.pixel_dims, p.dy_strides[1]
    if len(dims) <= 1 and (channel == 1 or p.k == 1):
        rows, stride = dims[0] if dims else (1, 0)
        if p.k > 1 or stride != 1:
            return rows, stride, True
    if len(dims) <= 2 and dims and dims[-1][1] == 1:
        return (*dims[0], False) if len(dims) == 2 else (1, 0, False)
    return None


def supports(problem):
    """Pixels that lie evenly, or next to each other."""
    if problem.pixels >= 2 ** 31 or problem.k >= 2 ** 31 // 32:
        return f"dy has {problem.pixels} pixels and {problem.k} channels; counters end at 2**31 and 2**26"
    if not problem.dy.size:
        return "dy is empty"
    if _matrix(problem) is None:
        return (f"neither channels (stride {problem.dy_strides[1]}) nor pixels lie next to each other in rows; pixels (size, stride): "
                f"{', '.join(map(str, problem.pixel_dims))}")
    return None


def _pixels(p, rows, stride):
    """How many pixels of channels side by side are read as one, of 16 bytes."""
    count = 16 // (p.k * p.dy.itemsize)
    packed = stride == p.k and p.dy_strides[1] == 1 and p.dy.alignment >= 16
    return count if packed and count * p.k * p.dy.itemsize == 16 and not rows % count else 1


def _config(p, device):
    rows, stride, along = _matrix(p)
    pixels = _pixels(p, rows, stride) if along else 1
    channels, stride = p.k * pixels, stride * pixels
    itemsize, row = p.dy.itemsize, channels if along else p.pixel_dims[-1][0]
    words = 0
    for wanted in (4, 2, 1) if itemsize < 8 else (4,):
        steps = (row, stride) if along else (row, stride, p.dy_strides[1])
        if p.dy.alignment >= 4 * wanted and not any(s * itemsize % (4 * wanted) for s in steps):
            words = wanted
            break
    vector = max(1, 4 * words // itemsize)
    blocks, across = p.k, 0
    if along:
        groups = ceil_div(channels, vector)
        across = min(32, 1 << (groups - 1).bit_length())
        blocks, height = ceil_div(groups, across), THREADS // across
        most = ceil_div(p.pixels // pixels, height * FLIGHT * ROUNDS)
    else:
        most = ceil_div(p.pixels, THREADS * vector * FLIGHT * ROUNDS)
    return Config(p.dy.dtype, p.db.dtype, words, across, max(1, min(most, BLOCKS * device.sms // blocks)), pixels)


def workspace(problem, device, config):
    """The partial sums, where there are several a channel."""
    config = _config(problem, device)
    return problem.k * config.parts * ITEMSIZE[config.total] if config.parts > 1 else 0


def estimate(problem, device, config):
    """Bytes, at a rate that narrow loads and few blocks lower; the least time of a block; launches."""
    config = _config(problem, device)
    narrow = {4: 1.0, 2: COST.words_2, 1: COST.words_1, 0: COST.wide if problem.dy.itemsize > 2 else COST.narrow}[config.words]
    blocks = config.splits * (ceil_div(problem.k * config.pixels, config.vector * config.across) if config.across else problem.k)
    memory = Cost(memory=problem.bytes / (COST.rate * narrow * device.bandwidth))
    return Cost(launch=COST.start, waves=ceil_div(blocks, BLOCKS * device.sms) * COST.block,
                reduction=COST.sum_launch * (config.parts > 1)) + memory.slowed(idle=1 / occupied(blocks, COST.enough, device))


@functools.cache
def _flight(config):
    """(flight of loads, ``consume(sums, some, buffer, u)``): add the elements of load u to the accumulators."""
    flight, vector = make_flight(config.dtype, config.words, FLIGHT), config.vector
    values = flight.values

    @device_function
    def consume(sums, some, buffer, u):
        values(some, buffer, u)
        for v in range(vector):
            sums[v] = sums[v] + some[v]
    return flight, consume


@functools.cache
def _store(config):
    """Store of a block's sum of channel k: the result, or partial sum `split`."""
    narrow, PARTIAL = element(config.output).store, config.parts > 1

    @device_function
    def store(db, stride, k, split, splits, value):
        if PARTIAL:
            db[i64(k) * splits + split] = value
        else:
            narrow(db, k * stride, value)
    return store


@functools.cache
def rows_kernel(config):
    """Channels last: sums over the rows; `db` is the workspace where there are several splits."""
    ACROSS, VECTOR = config.across, config.vector
    HEIGHT, WIDTH, PIXELS = THREADS // ACROSS, config.across * config.vector, config.pixels
    OWN, SHIFT = VECTOR // PIXELS, (VECTOR // PIXELS).bit_length() - 1  # channels of a pixel, a power of two if there are several
    gather, column, SIZE = make_meeting("add", config.total, ACROSS, THREADS, VECTOR)
    Total = f64 if config.total == "float64" else f32
    flight, consume = _flight(config)
    Buffer, LENGTH, fetch = flight.scalar, flight.length, flight.fetch
    store = _store(config)

    @jit(launch_bounds=THREADS)
    def conv_bwd_bias_rows(dy, db, rows, channels, row_stride, stride, columns, splits):
        shared = cuda.shared.array(SIZE, Total)
        buffer = cuda.local.array(LENGTH, Buffer)
        some, sums = cuda.local.array(VECTOR, Total), cuda.local.array(VECTOR, Total)
        split, group = divide_remainder(cuda.blockIdx.x, columns)
        tx, ty = cuda.threadIdx.x % ACROSS, cuda.threadIdx.x // ACROSS
        first = group * WIDTH
        channel = first + tx * VECTOR
        inside = channel < channels
        for v in range(VECTOR):
            sums[v] = Total(0)
        row = i64(split * HEIGHT + ty)
        while row < rows:  # a range would divide 64-bit numbers
            for u in range(FLIGHT):
                r = row + u * HEIGHT * splits
                fetch(buffer, u, dy, r * row_stride + channel, inside and r < rows)
            for u in range(FLIGHT):
                consume(sums, some, buffer, u)
            row = row + FLIGHT * HEIGHT * splits
        gather(shared, shared, sums, sums)
        cuda.syncthreads()
        for c in range(cuda.threadIdx.x, WIDTH, THREADS):
            k = first + c
            if k < channels:
                total = column(shared, shared, c)[0]
                if PIXELS > 1:
                    store(db, stride, k & (OWN - 1), split * PIXELS + (k >> SHIFT), splits * PIXELS, total)
                else:
                    store(db, stride, k, split, splits, total)
    return conv_bwd_bias_rows


@functools.cache
def planes_kernel(config):
    """Channels first: sums over the planes of a channel; `db` is the workspace where there are several splits."""
    VECTOR, WARPS2 = config.vector, 2 * THREADS // 32
    Total = f64 if config.total == "float64" else f32
    flight, consume = _flight(config)
    Buffer, LENGTH, fetch = flight.scalar, flight.length, flight.fetch
    store, reduce = _store(config), make_block_reduce(add, THREADS)

    @jit(launch_bounds=THREADS)
    def conv_bwd_bias_planes(dy, db, loads, plane, image_stride, channel_stride, stride, channels, splits):
        scratch = cuda.shared.array(WARPS2, Total)
        buffer = cuda.local.array(LENGTH, Buffer)
        some, sums = cuda.local.array(VECTOR, Total), cuda.local.array(VECTOR, Total)
        split, k = divide_remainder(cuda.blockIdx.x, channels)
        for v in range(VECTOR):
            sums[v] = Total(0)
        start = k * channel_stride
        for first in range(i64(split * THREADS + cuda.threadIdx.x), i64(loads), i64(FLIGHT * THREADS * splits)):
            for u in range(FLIGHT):
                i = first + u * THREADS * splits
                ok = i < loads
                image, at = divide_remainder(i32(i if ok else 0), plane)
                fetch(buffer, u, dy, start + image * image_stride + at * VECTOR, ok)
            for u in range(FLIGHT):
                consume(sums, some, buffer, u)
        total = sums[0]
        for v in range(1, VECTOR):
            total = Total(total + sums[v])
        total = reduce(total, scratch, 0)
        if cuda.threadIdx.x == 0:
            store(db, stride, k, split, splits, total)
    return conv_bwd_bias_planes


@functools.cache
def sum_kernel(output, total):
    """db[k] = the sum of partial[k, 0:splits], one warp per channel."""
    Total, store = f64 if total == "float64" else f32, element(output).store

    @jit(launch_bounds=THREADS)
    def conv_bwd_bias_sum(partial, db, channels, stride, splits):
        k = cuda.blockIdx.x * (THREADS // 32) + (cuda.threadIdx.x >> 5)
        lane = cuda.threadIdx.x & 31
        if k < channels:
            value = Total(0)
            for s in range(lane, splits, 32):
                value = Total(value + partial[i64(k) * splits + s])
            value = reduce_sum(value)
            if lane == 0:
                store(db, k * stride, value)
    return conv_bwd_bias_sum


def build(problem, device, config):
    """One launch, or two where there are partial sums."""
    p, config = problem, _config(problem, device)
    rows, row_stride, along = _matrix(p)
    pointer, stride = Argument(element(p.db.dtype).pointer, "db"), p.db.strides[0]
    partial = Argument(f"{config.total}*", "workspace")
    target = partial if config.parts > 1 else pointer
    dy, splits = Argument(element(p.dy.dtype).pointer, "dy"), Argument("int32", config.splits)
    if along:
        channels, rows, row_stride = p.k * config.pixels, rows // config.pixels, row_stride * config.pixels
        columns = ceil_div(channels, config.vector * config.across)
        arguments = (dy, target, Argument("int32", rows), Argument("int32", channels), Argument("int64", row_stride),
                     Argument("int64", stride), Argument(Divisor, divisor(columns)), splits)
        launches = [Launch(rows_kernel(config.compiled), (columns * config.splits, 1, 1), (THREADS, 1, 1), arguments)]
    else:
        plane = p.pixel_dims[-1][0] // config.vector
        arguments = (dy, target, Argument("int32", rows * plane), Argument(Divisor, divisor(plane)), Argument("int64", row_stride),
                     Argument("int64", p.dy_strides[1]), Argument("int64", stride), Argument(Divisor, divisor(p.k)), splits)
        launches = [Launch(planes_kernel(config.compiled), (p.k * config.splits, 1, 1), (THREADS, 1, 1), arguments)]
    if config.parts > 1:
        arguments = partial, pointer, Argument("int32", p.k), Argument("int64", stride), Argument("int32", config.parts)
        launches.append(Launch(sum_kernel(p.db.dtype, config.total), (ceil_div(p.k, THREADS // 32), 1, 1), (THREADS, 1, 1),
                               arguments))
    return tuple(launches)


ALGORITHM = Algorithm(op="conv_bwd_bias", name="two_pass", supports=supports, workspace=workspace, estimate=estimate, build=build)
