"""A window that is the whole image, channels first: a warp or a block reduces the plane of a channel.

A plane is contiguous. Its threads take neighbouring vectors of up to 16 bytes, four in flight each, and keep a maximum or a sum; then they
reduce across lanes, and across warps through shared memory. The index follows from a second reduction: the smallest position among the
threads whose own maximum is that of the plane, which may be NaN. Planes of up to 8 KB get a warp each, larger ones a block.

For contiguous channels there are `channels` and `global_channels`.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, jit
from ..device.block import make_block_reduce
from ..device.convert import element
from ..device.fastmath import maximum, minimum
from ..device.groups import access_words, make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..device.warp import add, make_reduce
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap, tail
from ..engine.offsets import LIMIT
from ..host.launch import Argument, Launch
from ._windows import MINUS_INFINITY, make_reciprocal

COST = constants("pool/fwd_global")

THREADS = 256
LOADS = 4       # in flight per thread
WARP = 8 << 10  # bytes of the largest plane that a warp takes
NO_PIXEL = 2 ** 31 - 1


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; elements per vector, words per access, threads per plane."""
    maximum: bool
    index: str | None
    dtype: str
    elements: int
    words: int
    threads: int

    def __str__(self):
        return f"{self.threads} threads per plane, {self.elements} elements per load"


def whole_refusal(problem):
    """Why the window is not the whole image."""
    if problem.out != (1, 1, 1) or problem.taps != problem.image or any(problem.before) or problem.adaptive:
        return f"window {'x'.join(map(str, problem.window))} has {math.prod(problem.out)} output positions; expected one, the whole image"
    return None


def supports(problem):
    """One window, the whole image, with contiguous planes."""
    if reason := whole_refusal(problem):
        return reason
    step, pixels = 1, math.prod(problem.image)
    for n, stride in zip(problem.image[::-1], problem.x_strides[:1:-1]):
        if n > 1 and stride != step:
            return f"x has strides {problem.x.strides} for shape {problem.x.shape}; expected the pixels of a channel contiguous"
        step *= n
    if max(problem.n * problem.c * THREADS, pixels + LOADS * THREADS * 16) >= LIMIT:
        return f"{problem.n * problem.c} channels of {pixels} pixels; expected fewer than 2**23 and 2**31 - 2**14"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _config(problem):
    pixels, itemsize = math.prod(problem.image), problem.x.itemsize
    elements = math.gcd(16 // itemsize, pixels)
    words = access_words(problem.x, elements, [s for n, s in zip((problem.n, problem.c), problem.x_strides) if n > 1])
    return Config(problem.is_max, problem.index_dtype, problem.x.dtype, elements, words, 32 if pixels * itemsize <= WARP else THREADS)


def estimate(problem, device, config):
    """Instructions of elements, more with an index, of loads, and of a plane's threads; an access below 16 bytes takes as long."""
    config, planes, pixels = _config(problem), problem.n * problem.c, math.prod(problem.image)
    turns = ceil_div(pixels, config.elements * config.threads * LOADS) * LOADS
    accesses = max(1, config.elements * problem.x.itemsize // max(4 * config.words, problem.x.itemsize))
    each = COST.thread + turns * (COST.access * accesses + config.elements * (COST.element_index if config.index else COST.element))
    units = planes * config.threads
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device))
    return LAUNCH + work.slowed(idle=1 / max(occupied(units, COST.enough, device), COST.least_share),
                                tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y[n, c] = the maximum or the average of a plane."""
    Total, V, GROUP = scalar_of(config.dtype), config.elements, config.threads
    MAX, INDEX, PLANES = config.maximum, config.index is not None, THREADS // config.threads
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.words)
    put, reciprocal = make_writer(config.dtype, 1, 0), make_reciprocal("float64" if config.dtype == "float64" else "float32")
    BUFFER, STEP, SCRATCH, WHOLE = LOADS * LENGTH, LOADS * GROUP, THREADS // 16, GROUP == THREADS
    START, combine = (MINUS_INFINITY, maximum) if MAX else (0.0, add)
    in_warp, in_block = make_reduce(combine), make_block_reduce(combine, THREADS)
    least_in_warp, least_in_block = make_reduce(minimum), make_block_reduce(minimum, THREADS)

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 4))
    def pool_fwd_global(x, y, index, planes, channels, vectors, divides, x_stride, y_stride, index_stride):
        wait()
        plane = cuda.blockIdx.x * PLANES + cuda.threadIdx.x // GROUP
        lane = cuda.threadIdx.x & (GROUP - 1)
        if plane < planes:
            raw, values = cuda.local.array(BUFFER, Raw), cuda.local.array(V, Total)
            n, c = divide_remainder(plane, channels)
            source = advance(x, n * x_stride.n + c * x_stride.c)
            best, best_pixel = Total(START), NO_PIXEL
            if lane < vectors:
                best_pixel = lane * V
            for first in range(lane, vectors, STEP):
                for k in range(LOADS):
                    j = first + k * GROUP
                    fetch(raw, k * LENGTH, source, j * V, j < vectors)
                for k in range(LOADS):
                    j = first + k * GROUP
                    unpack(values, 0, raw, k * LENGTH)
                    for v in range(V):
                        if not MAX:
                            best = best + values[v]
                        else:
                            value = values[v] if j < vectors else Total(MINUS_INFINITY)
                            if INDEX:
                                better = (best == best) & (not value <= best)
                                best_pixel = j * V + v if better else best_pixel
                            best = maximum(best, value)
            if WHOLE:
                scratch = cuda.shared.array(SCRATCH, Total)
                total = in_block(best, scratch, 0)
            else:
                total = in_warp(best)
            if INDEX:
                candidate = best_pixel if best == total or (best != best and total != total) else NO_PIXEL
                if WHOLE:
                    positions = cuda.shared.array(SCRATCH, i32)
                    candidate = least_in_block(candidate, positions, 0)
                else:
                    candidate = least_in_warp(candidate)
            if lane == 0:
                if not MAX:
                    total = total * reciprocal(divides)
                values[0] = total
                put(advance(y, n * y_stride.n + c * y_stride.c), 0, values, 0)
                if INDEX:
                    index[n * index_stride.n + c * index_stride.c] = candidate
    return pool_fwd_global


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of y, and is not used."""
    config, planes, pixels = _config(problem), problem.n * problem.c, math.prod(problem.image)
    pointer = element(problem.x.dtype).pointer
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "y")
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("int32", planes), Argument("uint32x3", divisor(problem.c)),
                 Argument("int32", pixels // config.elements), Argument("int32", problem.divisor or pixels), *problem.addresses())
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(planes * config.threads, THREADS), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="global", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
