"""A window that is the whole image, contiguous channels: a block takes a few chunks of channels of an image and all of their pixels.

Neighbouring threads have neighbouring chunks of up to 16 bytes, so that a warp's loads fill sectors of memory. The rest of the block is
spread over the pixels, four loads in flight each. Then the threads of a chunk reduce their values through shared memory, as a tree. A
maximum keeps its position; of equal ones the smallest position wins. Where images are few, blocks take fewer chunks, down to 64 bytes.

`channels` gives a thread all pixels of a chunk, which is better for small images and many channels.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, tail
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
LEAST_BYTES = 64  # contiguous bytes that a block takes at least
NO_PIXEL = 2 ** 31 - 1


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; channels per chunk, accesses, chunks per block, 64-bit offsets."""
    maximum: bool
    index: str | None
    dtype: str
    channels: int
    access: Access
    lanes: int
    wide: bool

    def __str__(self):
        return f"{self.lanes} chunks of {self.channels}"


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


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Blocks of 32 chunks, or of fewer."""
    channels = chunk_of(problem)
    pixels, step = math.prod(problem.image), _pixel_step(problem)
    wide = (pixels + LOADS * THREADS) * abs(step) + problem.c >= LIMIT
    least = max(1, min(32, LEAST_BYTES // (channels * problem.x.itemsize)))
    return [Config(problem.is_max, problem.index_dtype, problem.x.dtype, channels, access_of(problem, channels), lanes, wide)
            for lanes in (32, 16, 8, 4, 2, 1) if lanes >= least and (lanes < 2 * (problem.c // channels) or lanes == least)]


def _blocks(problem, config):
    return problem.n * ceil_div(problem.c // config.channels, config.lanes)


def estimate(problem, device, config):
    """Instructions of loads, of elements, more with an index, and of a thread in the halving; idle multiprocessors read nothing."""
    blocks, pixels = _blocks(problem, config), math.prod(problem.image)
    turns = ceil_div(pixels * config.lanes, THREADS * LOADS) * LOADS
    each = COST.thread + turns * (COST.load + config.channels * (COST.element_index if config.index else COST.element))
    work = overlap(exposed=COST.exposed, issue=issue_seconds(blocks * THREADS, each, device), memory=memory_seconds(problem.bytes, device))
    return LAUNCH + work.slowed(idle=1 / occupied(blocks, COST.enough, device), tail=tail(blocks, COST.blocks, device))


@device_function
def merge(a, at, b, other):
    """The maximum of two, NaN above all else, and its position: of equal ones the smaller."""
    same = (a == b) | ((a != a) & (b != b))
    first = (same & (other < at)) | (b > a) | ((b != b) & (a == a))
    return maximum(a, b), other if first else at


@functools.cache
def kernel(config, dependent):
    """y[n, c] = the maximum or the average over the pixels."""
    Total, V, LANES, Int = scalar_of(config.dtype), config.channels, config.lanes, i64 if config.wide else i32
    MAX, INDEX, PIXELS = config.maximum, config.index is not None, THREADS // config.lanes
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.x)
    put, put_index = make_writer(config.dtype, V, config.access.y), make_index_writer(config.index, V, config.access.index)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    START = MINUS_INFINITY if MAX else 0.0
    BUFFER, STRIDE, SHARED, STEPS, SHIFT = LOADS * LENGTH, PIXELS, THREADS * V, PIXELS.bit_length() - 1, LANES.bit_length() - 1
    POSITIONS, SharedType = SHARED if INDEX else 1, f64 if config.dtype == "float64" else f32

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 2))
    def pool_fwd_global_channels(x, y, index, groups, chunks, pixels, divides, step, x_stride, y_stride, index_stride):
        wait()
        totals, positions = cuda.shared.array(SHARED, SharedType), cuda.shared.array(POSITIONS, i32)
        t = cuda.threadIdx.x
        pixel = t >> SHIFT
        n, group = divide_remainder(cuda.blockIdx.x, groups)
        chunk = group * LANES + (t & (LANES - 1))
        live = chunk < chunks
        raw, values = cuda.local.array(BUFFER, Raw), cuda.local.array(V, Total)
        total, best_pixel = cuda.local.array(V, Total), cuda.local.array(V, i32)
        c = i64(chunk * V if live else 0)
        image = advance(x, n * x_stride.n + c * x_stride.c)
        for v in range(V):
            total[v] = Total(START)
            best_pixel[v] = pixel if pixel < pixels else NO_PIXEL
        for first in range(pixel, pixels, LOADS * STRIDE):
            for k in range(LOADS):
                j = first + k * STRIDE
                fetch(raw, k * LENGTH, image, j * Int(step), live & (j < pixels))
            for k in range(LOADS):
                j = first + k * STRIDE
                unpack(values, 0, raw, k * LENGTH)
                for v in range(V):
                    if not MAX:
                        total[v] += values[v]
                    else:
                        value = values[v] if j < pixels else Total(MINUS_INFINITY)
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
        if live and pixel == 0:
            if not MAX:
                for v in range(V):
                    total[v] *= reciprocal(divides)
            put(advance(y, n * y_stride.n + c * y_stride.c), 0, total, 0)
            if INDEX:
                put_index(advance(index, n * index_stride.n + c * index_stride.c), best_pixel)
    return pool_fwd_global_channels


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of y, and is not used."""
    pointer, chunks, pixels = element(problem.x.dtype).pointer, problem.c // config.channels, math.prod(problem.image)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "y")
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("uint32x3", divisor(ceil_div(chunks, config.lanes))),
                 Argument("int32", chunks), Argument("int32", pixels), Argument("int32", problem.divisor or pixels),
                 Argument("int64", _pixel_step(problem)), *problem.addresses())
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (_blocks(problem, config), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="global_channels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_fwd", "avg_pool_fwd"))
