"""Channels first, windows that overlap much: a block has whole planes in shared memory, and windows go along rows, then along columns.

A window of 13x13 pixels has 169 taps; a maximum or a sum along each row first, of which the columns' windows then take 13, has 26 for an
output. A block takes as many planes of neighbouring channels as fit, which are one run of memory, and reads and writes every element once.
An index is the pair of both passes: the first best column of each row, then the first best of the rows. Of equal maxima that is the first
pixel, and the first NaN.

It loses where windows overlap little: its passes take some hundred instructions for an output beside the taps.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div, divide_remainder
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ..engine.offsets import LIMIT
from ..host.launch import Argument, Launch
from ._chunks import numbers_refusal
from ._index import make_index_writer
from ._windows import MINUS_INFINITY, axes_argument, make_counted, make_inside, make_reciprocal, make_window

COST = constants("pool/fwd_planes")

THREADS = 256
LOADS = 8  # single elements in flight per thread
NO_PIXEL = -1


@dataclass(frozen=True)
class Config:
    """What is computed; types of the index and of the elements; one divisor of averages."""
    maximum: bool
    index: str | None
    dtype: str
    divided: bool

    @property
    def size(self):
        """Elements of shared memory for the planes, and for what their rows' windows give: 32 KB for both, 48 with an index."""
        return 2048 if self.dtype == "float64" else 4096


def _config(problem):
    return Config(problem.is_max, problem.index_dtype, problem.x.dtype, problem.divisor is not None)


def _largest(problem):
    """Elements of shared memory that a plane takes, of either kind."""
    _, h, w = problem.image
    return h * max(w, problem.out[2])


def supports(problem):
    """Windows of one size without dilation, on packed planes that shared memory holds."""
    if problem.adaptive or set(problem.dilations) != {1}:
        return f"windows are {'adaptive' if problem.adaptive else 'dilated'}; expected windows of one size without dilation"
    if problem.image[0] != 1 or problem.out[0] != 1 or problem.taps[0] != 1 or problem.before[0]:
        return f"images have {len(problem.window)} dimensions, {problem.image[0]} deep; expected planes"
    for tensor, strides, extents in ((problem.x, problem.x_strides, problem.image), (problem.y, problem.y_strides, problem.out),
                                     (problem.index, problem.index_strides, problem.out)):
        step = 1
        for n, stride in zip((*extents[::-1], problem.c, problem.n), (strides[::-1] if tensor is not None else ())):
            if n > 1 and stride != step:
                return f"strides {tensor.strides} of shape {tensor.shape}; expected packed arrays, channels first"
            step *= n
    if _largest(problem) > (size := _config(problem).size):
        return f"{_largest(problem)} elements of a plane's rows or windows along them; expected at most {size}"
    if max(problem.x.size, problem.y.size) >= LIMIT:
        return f"{problem.x.size} pixels and {problem.y.size} outputs; expected fewer than 2**31"
    return numbers_refusal(problem, problem.y.size)


def workspace(problem, device, config):
    """None."""
    return 0


def _planes(problem, device):
    """Planes of a block: as many as fit, but no fewer blocks than multiprocessors hold."""
    fit = _config(problem).size // max(1, _largest(problem))
    return max(1, min(fit, problem.n * problem.c // (COST.blocks * device.sms)))


def estimate(problem, device, config):
    """Instructions of elements, of windows along rows and along columns and of their taps; what a block waits between its passes."""
    (_, h, _), (_, rows, columns), (_, down, across) = problem.image, problem.out, problem.taps
    planes, each = problem.n * problem.c, _planes(problem, device)
    tap = COST.tap_index if problem.index is not None else COST.tap
    work = planes * (math.prod(problem.image) * COST.load + h * columns * (COST.row + across * tap)
                     + rows * columns * (COST.column + down * tap))
    blocks = ceil_div(planes, each)
    moved = overlap(exposed=COST.exposed, issue=issue_seconds(work, 1, device), memory=memory_seconds(problem.bytes, device))
    waves = ceil_div(blocks, COST.blocks * device.sms)
    idle = max(1.0, device.sms / max(blocks, 1))
    return LAUNCH + (moved.slowed(idle=idle) + Cost(waits=waves * COST.wait)).slowed(slower=COST.slower)


@functools.cache
def kernel(config, dependent):
    """y[n, c, p, q] = the maximum or the average of x over the window, of whole planes."""
    Total, Shared, SIZE = scalar_of(config.dtype), f64 if config.dtype == "float64" else f32, config.size
    MAX, INDEX = config.maximum, config.index is not None
    POSITIONS, START = SIZE if INDEX else 1, MINUS_INFINITY if MAX else 0.0
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, 1, 0)
    BUFFER = LOADS * LENGTH
    put, put_index = make_writer(config.dtype, 1, 0), make_index_writer(config.index, 1, 1)
    window, inside, counted = make_window(False), make_inside(False), make_counted(False, config.divided)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 4))
    def pool_fwd_planes(x, y, index, planes, each, axes):
        wait()
        pixels, along = cuda.shared.array(SIZE, Shared), cuda.shared.array(SIZE, Shared)
        best_column = cuda.shared.array(POSITIONS, i32)
        raw, value, chosen = cuda.local.array(BUFFER, Raw), cuda.local.array(1, Total), cuda.local.array(1, i32)
        t, first = cuda.threadIdx.x, cuda.blockIdx.x * each
        count, plane = min(each, planes - first), axes.h.extent * axes.w.extent
        lines, outputs = count * axes.h.extent, axes.h.outputs * axes.w.outputs
        before = i64(first)
        source = advance(x, before * plane)
        for e in range(t, count * plane, LOADS * THREADS):
            for k in range(LOADS):
                fetch(raw, k * LENGTH, source, e + k * THREADS, e + k * THREADS < count * plane)
            for k in range(LOADS):
                unpack(value, 0, raw, k * LENGTH)
                if e + k * THREADS < count * plane:
                    pixels[e + k * THREADS] = value[0]
        cuda.syncthreads()
        # windows along rows
        for i in range(t, lines * axes.w.outputs, THREADS):
            line, q = divide_remainder(i, axes.w.by_outputs)
            first_w, taps_w = window(q, axes.w)
            low_w, high_w = inside(first_w, taps_w, axes.w)
            total, column, start = Total(START), first_w + low_w if low_w < high_w else NO_PIXEL, line * axes.w.extent
            for w in range(first_w + low_w, first_w + high_w):
                tap = pixels[start + w]
                if INDEX:
                    column = w if (total == total) & (not tap <= total) else column
                total = maximum(total, tap) if MAX else total + tap
            along[i] = total
            if INDEX:
                best_column[i] = column
        cuda.syncthreads()
        # of those, windows along columns
        target, target_index = advance(y, before * outputs), advance(index, before * outputs)
        for i in range(t, count * outputs, THREADS):
            row, q = divide_remainder(i, axes.w.by_outputs)
            own, p = divide_remainder(row, axes.h.by_outputs)
            first_h, taps_h = window(p, axes.h)
            low_h, high_h = inside(first_h, taps_h, axes.h)
            total, start, pixel = Total(START), own * axes.h.extent * axes.w.outputs + q, NO_PIXEL
            if INDEX:
                if low_h < high_h:
                    column = best_column[start + (first_h + low_h) * axes.w.outputs]
                    pixel = (first_h + low_h) * axes.w.extent + column if column >= 0 else NO_PIXEL
            for h in range(first_h + low_h, first_h + high_h):
                at = start + h * axes.w.outputs
                tap = along[at]
                if INDEX:
                    if (total == total) & (not tap <= total):
                        pixel = h * axes.w.extent + best_column[at]
                total = maximum(total, tap) if MAX else total + tap
            if not MAX:
                first_w, taps_w = window(q, axes.w)
                first_d, taps_d = window(0, axes.d)
                total = total * reciprocal(counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h)
                                           * counted(first_w, taps_w, axes.w))
            value[0] = total
            put(advance(target, i), 0, value, 0)
            if INDEX:
                chosen[0] = pixel
                put_index(advance(target_index, i), chosen)
    return pool_fwd_planes


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of y, and is not used."""
    config, planes, each = _config(problem), problem.n * problem.c, _planes(problem, device)
    pointer, dependent = element(problem.x.dtype).pointer, device.capability >= (9, 0)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "y")
    given = (Argument(pointer, "x"), Argument(pointer, "y"), index, Argument("int32", planes), Argument("int32", each),
             axes_argument(problem))
    return (Launch(kernel(config, dependent), (ceil_div(planes, each), 1, 1), (THREADS, 1, 1), given, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="planes", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
