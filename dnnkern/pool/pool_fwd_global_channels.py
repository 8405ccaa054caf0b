"""A window that is the whole image, contiguous channels: a block takes a few chunks of channels of an image and all of their pixels.

Neighbouring threads have neighbouring chunks of up to 16 bytes, so that a warp's loads fill sectors of memory. The rest of the block is
spread over the pixels, four loads in flight each. Then the threads of a chunk reduce their values through shared memory, as a tree. A
maximum keeps its position; of equal ones the smallest position wins. Where images are few, blocks take fewer chunks, down to 64 bytes,
and parts of the pixels, as many as fill the device; what those leave in the workspace a second launch reduces, in the pixels' order.

`channels` gives a thread all pixels of a chunk, which is better for small images and many channels.
"""
import functools
import math
from dataclasses import dataclass, replace

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, occupied, overlap, tail
from ..engine.offsets import LIMIT
from ..host.launch import Argument, Launch
from ._chunks import Access, access_of, chunk_of
from ._chunks import refusal as chunk_refusal
from ._index import make_index_writer
from ._windows import MINUS_INFINITY, make_reciprocal
from .pool_fwd_global import whole_refusal

COST = constants("pool/fwd_global_channels")

THREADS = 512
LOADS = 4         # in flight per thread
LEAST_BYTES = 64  # contiguous bytes that a block takes at least, of as many
LEAST_TURNS = 4   # loads in flight that a part of the pixels has one after the other
NO_PIXEL = 2 ** 31 - 1


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; channels per chunk, accesses, chunks per block, 64-bit offsets; into how
    many parts the pixels are cut."""
    maximum: bool
    index: str | None
    dtype: str
    channels: int
    access: Access
    lanes: int
    wide: bool
    parts: int = 1

    def __str__(self):
        return f"{self.lanes} chunks of {self.channels}" + f", {self.parts} parts" * (self.parts > 1)


def _pixel_step(problem):
    """Elements from one pixel to the next, or None where that differs."""
    step, after = None, 1
    for n, stride in zip(problem.image[::-1], problem.x_strides[:1:-1]):
        if n > 1:
            step = stride if step is None else step
            if stride != step * after:
                return None
            after *= n
    return 0 if step is None else step


def supports(problem):
    """One window, the whole image, whose pixels are evenly spaced chunks of channels."""
    if reason := whole_refusal(problem) or chunk_refusal(problem):
        return reason
    if _pixel_step(problem) is None:
        return f"x has strides {problem.x.strides} for shape {problem.x.shape}; expected pixels evenly spaced"
    pixels = math.prod(problem.image)
    if max(problem.n * problem.c, pixels + LOADS * THREADS) >= LIMIT:
        return f"{problem.n * problem.c} channels of {pixels} pixels; expected fewer than 2**31 and 2**31 - 2**11"
    return None


def _totals_bytes(problem, config):
    """What parts leave, but for the positions."""
    return config.parts * problem.n * problem.c * (8 if problem.x.dtype == "float64" else 4)


def workspace(problem, device, config):
    """What parts leave, where there are several."""
    if config.parts == 1:
        return 0
    return _totals_bytes(problem, config) + (4 * config.parts * problem.n * problem.c if config.index else 0)


def configs(problem, device):
    """Blocks of 32 chunks, or of fewer; all pixels, or as many parts as fill the device."""
    channels = chunk_of(problem)
    pixels, step, chunks = math.prod(problem.image), _pixel_step(problem), problem.c // channels
    wide = (pixels + LOADS * THREADS) * abs(step) + problem.c >= LIMIT
    least = max(1, min(32, LEAST_BYTES // (channels * problem.x.itemsize), 1 << (chunks - 1).bit_length()))
    found = []
    for lanes in (32, 16, 8, 4, 2, 1):
        if lanes >= least and (lanes < 2 * chunks or lanes == least):
            whole = Config(problem.is_max, problem.index_dtype, problem.x.dtype, channels, access_of(problem, channels), lanes, wide)
            most = min(COST.blocks * device.sms // _blocks(problem, whole), pixels * lanes // (LEAST_TURNS * LOADS * THREADS))
            found += [replace(whole, parts=parts) for parts in dict.fromkeys((1, max(most, 1)))]
    return found


def _blocks(problem, config):
    return problem.n * ceil_div(problem.c // config.channels, config.lanes) * config.parts


def estimate(problem, device, config):
    """Instructions of loads, of elements, more with an index, and of a thread in the halving, on the multiprocessors that have blocks;
    bytes, where enough of them are in flight; the launch that reduces what parts leave."""
    blocks, pixels, chunks = _blocks(problem, config), ceil_div(math.prod(problem.image), config.parts), problem.c // config.channels
    turns = ceil_div(pixels * config.lanes, THREADS * LOADS) * LOADS
    each = COST.thread + turns * (COST.load + config.channels * (COST.element_index if config.index else COST.element))
    issue = issue_seconds(blocks * THREADS, each, device) / occupied(blocks, COST.enough, device)
    loaded = THREADS * LOADS * min(1.0, chunks / config.lanes) * config.channels * problem.x.itemsize
    memory = memory_seconds(problem.bytes, device) / occupied(blocks * loaded, COST.in_flight, device)
    cost = LAUNCH + overlap(exposed=COST.exposed, issue=issue, memory=memory).slowed(tail=tail(blocks, COST.blocks, device))
    return cost if config.parts == 1 else cost + Cost(reduction=COST.joined)


@device_function
def merge(a, at, b, other):
    """The maximum of two, NaN above all else, and its position: of equal ones the smaller."""
    same = (a == b) | ((a != a) & (b != b))
    first = (same & (other < at)) | (b > a) | ((b != b) & (a == a))
    return maximum(a, b), other if first else at


@functools.cache
def kernel(config, dependent):
    """y[n, c] = the maximum or the average over the pixels, or what a part of them leaves: its sum, or its maximum and where that is."""
    Total, V, LANES, Int = scalar_of(config.dtype), config.channels, config.lanes, i64 if config.wide else i32
    MAX, INDEX, PIXELS = config.maximum, config.index is not None, THREADS // config.lanes
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.x)
    put, put_index = make_writer(config.dtype, V, config.access.y), make_index_writer(config.index, V, config.access.index)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    START = MINUS_INFINITY if MAX else 0.0
    BUFFER, STRIDE, SHARED, STEPS, SHIFT = LOADS * LENGTH, PIXELS, THREADS * V, PIXELS.bit_length() - 1, LANES.bit_length() - 1
    POSITIONS, SharedType, PARTS = SHARED if INDEX else 1, f64 if config.dtype == "float64" else f32, config.parts > 1

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 2))
    def pool_fwd_global_channels(x, y, index, left, left_at, count, parts, each, groups, chunks, pixels, divides, step, x_stride, y_stride,
                                 index_stride):
        wait()
        totals, positions = cuda.shared.array(SHARED, SharedType), cuda.shared.array(POSITIONS, i32)
        t = cuda.threadIdx.x
        pixel = t >> SHIFT
        line, part, begin, end = cuda.blockIdx.x, 0, 0, pixels
        if PARTS:
            line, part = divide_remainder(cuda.blockIdx.x, parts)
            begin = part * each
            end = min(begin + each, pixels)
        n, group = divide_remainder(line, groups)
        chunk = group * LANES + (t & (LANES - 1))
        live = chunk < chunks
        raw, values = cuda.local.array(BUFFER, Raw), cuda.local.array(V, Total)
        total, best_pixel = cuda.local.array(V, Total), cuda.local.array(V, i32)
        c = i64(chunk * V if live else 0)
        image = advance(x, n * x_stride.n + c * x_stride.c)
        for v in range(V):
            total[v] = Total(START)
            best_pixel[v] = begin + pixel if begin + pixel < end else NO_PIXEL
        for first in range(begin + pixel, end, LOADS * STRIDE):
            for k in range(LOADS):
                j = first + k * STRIDE
                fetch(raw, k * LENGTH, image, j * Int(step), live & (j < end))
            for k in range(LOADS):
                j = first + k * STRIDE
                unpack(values, 0, raw, k * LENGTH)
                for v in range(V):
                    if not MAX:
                        total[v] += values[v]
                    else:
                        value = values[v] if j < end else Total(MINUS_INFINITY)
                        if INDEX:
                            better = (total[v] == total[v]) & (not value <= total[v])
                            best_pixel[v] = j if better else best_pixel[v]
                        total[v] = maximum(total[v], value)
        # reduce across the threads of a chunk
        for v in range(V):
            totals[v * THREADS + t] = total[v]
            if INDEX:
                positions[v * THREADS + t] = best_pixel[v]
        cuda.syncthreads()
        for s in range(STEPS):
            half = PIXELS >> (s + 1)
            if pixel < half:
                for v in range(V):
                    own, other = v * THREADS + t, v * THREADS + t + half * LANES
                    if INDEX:
                        total[v], best_pixel[v] = merge(total[v], best_pixel[v], totals[other], positions[other])
                        positions[own] = best_pixel[v]
                    elif MAX:
                        total[v] = maximum(total[v], totals[other])
                    else:
                        total[v] += totals[other]
                    totals[own] = total[v]
            cuda.syncthreads()
        if PARTS:
            if live and pixel == 0:
                at = i64(part) * count + (n * chunks + chunk) * V
                for v in range(V):
                    left[at + v] = total[v]
                    if INDEX:
                        left_at[at + v] = best_pixel[v]
        elif live and pixel == 0:
            if not MAX:
                for v in range(V):
                    total[v] *= reciprocal(divides)
            put(advance(y, n * y_stride.n + c * y_stride.c), 0, total, 0)
            if INDEX:
                put_index(advance(index, n * index_stride.n + c * index_stride.c), best_pixel)
    return pool_fwd_global_channels


JOINED = 128  # threads of a block


@functools.cache
def joined_kernel(dtype, is_max, index_dtype, dependent):
    """y[n, c] of what parts left."""
    Total, MAX, INDEX = scalar_of(dtype), is_max, index_dtype is not None
    put, put_index = make_writer(dtype, 1, 0), make_index_writer(index_dtype, 1, 0)
    reciprocal = make_reciprocal("float64" if dtype == "float64" else "float32")
    START, wait = MINUS_INFINITY if MAX else 0.0, make_follow(dependent)

    @jit(launch_bounds=JOINED)
    def pool_fwd_global_joined(left, left_at, y, index, count, parts, channels, divides, y_stride, index_stride):
        i = cuda.blockIdx.x * JOINED + cuda.threadIdx.x
        wait()
        if i < count:
            n, c = divide_remainder(i, channels)
            total, best_pixel = cuda.local.array(1, Total), cuda.local.array(1, i32)
            total[0], best_pixel[0] = Total(START), NO_PIXEL
            for part in range(parts):
                at = i64(part) * count + i
                if INDEX:
                    total[0], best_pixel[0] = merge(total[0], best_pixel[0], left[at], left_at[at])
                elif MAX:
                    total[0] = maximum(total[0], left[at])
                else:
                    total[0] += left[at]
            if not MAX:
                total[0] *= reciprocal(divides)
            put(advance(y, n * y_stride.n + c * y_stride.c), 0, total, 0)
            if INDEX:
                put_index(advance(index, n * index_stride.n + c * index_stride.c), best_pixel)
    return pool_fwd_global_joined


def build(problem, device, config):
    """One launch, or two. Without an index, its pointer is that of y, and is not used."""
    p, pointer, pixels = problem, element(problem.x.dtype).pointer, math.prod(problem.image)
    chunks, divides = p.c // config.channels, Argument("int32", p.divisor or pixels)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "y")
    left = (Argument("float64*" if p.x.dtype == "float64" else "float32*", "workspace"),
            Argument("int32*", "workspace", offset=_totals_bytes(p, config)))
    x, y, of_index = p.addresses()
    count = Argument("int32", p.n * p.c)
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), index, *left, count, Argument("uint32x3", divisor(config.parts)),
                 Argument("int32", ceil_div(pixels, config.parts)), Argument("uint32x3", divisor(ceil_div(chunks, config.lanes))),
                 Argument("int32", chunks), Argument("int32", pixels), divides, Argument("int64", _pixel_step(p)), x, y, of_index)
    dependent = device.capability >= (9, 0)
    same = replace(config, parts=min(config.parts, 2))
    launch = Launch(kernel(same, dependent), (_blocks(p, config), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
    if config.parts == 1:
        return (launch,)
    joined = (*left, Argument(pointer, "y"), index, count, Argument("int32", config.parts),
              Argument("uint32x3", divisor(p.c)), divides, y, of_index)
    join = joined_kernel(p.x.dtype, config.maximum, config.index, dependent)
    return launch, Launch(join, (ceil_div(p.n * p.c, JOINED), 1, 1), (JOINED, 1, 1), joined, dependent=dependent)


ALGORITHMS = tuple(Algorithm(op=op, name="global_channels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_fwd", "avg_pool_fwd"))
