"""One thread an output, straight from the definition.

Forward, a thread takes a place of the window and walks over its taps, in order: the maximum is the first of the largest or the first NaN,
the average a sum over what is in the image, divided by what is counted. Backward, a thread takes a pixel, finds the places whose windows
may see it, and adds up, place by place, the gradients whose index is that pixel, or that are averages of it. 64-bit integers and their
divisions throughout: any strides, any number of elements, and slow.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._chunks import offset
from ._problem import OPS
from ._windows import MINUS_INFINITY, make_counted, make_reciprocal, make_seen_by, make_window

COST = constants("pool/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """The operation, the elements' type, whether there is an index, whether channels are last, and whether windows are adaptive."""
    op: str
    dtype: str
    index: bool
    channels_last: bool
    adaptive: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Divisions, and instructions of 64 bits a tap; at least one tap after the other, a load's latency each."""
    each = COST.thread + COST.tap * problem.tap_count * (1 if problem.is_forward else problem.y.size / max(problem.x.size, 1))
    seen = problem.tap_count if problem.is_forward else 1
    return LAUNCH + overlap(issue=issue_seconds(problem.outputs[0].size, each, device), memory=memory_seconds(problem.bytes, device),
                            waits=seen * COST.latency)


@functools.cache
def make_coordinates(channels_last):
    """``coordinates(i, channels, a, b, c) -> (image, channel, three coordinates)`` of a flat index over extents (a, b, c)."""
    @device_function
    def coordinates(i, channels, a, b, c):
        channel = i64(0)
        if channels_last:
            rest = i // channels
            channel = i - rest * channels
            i = rest
        rest = i // c
        w = i - rest * c
        i = rest // b
        h = rest - i * b
        rest = i // a
        d = i - rest * a
        if not channels_last:
            i = rest // channels
            channel = rest - i * channels
            rest = i
        return rest, channel, d, h, w
    return coordinates


@functools.cache
def forward(config):
    """y[n, c, o, p, q] = the maximum or the average of x over the window."""
    e, Total = element(config.dtype), {"float32": f32, "float64": f64}[element(config.dtype).compute]
    load, store, MAX, INDEX = e.load, e.store, config.op.startswith("max"), config.index
    coordinates, reciprocal = make_coordinates(config.channels_last), make_reciprocal(e.compute)
    window_d, window_h, window_w = (make_window(axis, config.adaptive, True) for axis in range(3))
    counted_d, counted_h, counted_w = (make_counted(axis, True, True) for axis in range(3))

    @jit(launch_bounds=(THREADS, 2))
    def pool_fwd_naive(x, y, index, elements, channels, g, x_strides, y_strides, index_strides):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            n, c, o, p, q = coordinates(i, channels, g[3], g[4], g[5])
            first_d, taps_d = window_d(o, g)
            first_h, taps_h = window_h(p, g)
            first_w, taps_w = window_w(q, g)
            best, where = Total(MINUS_INFINITY), i64(-1)
            total = Total(0)
            for t in range(taps_d):
                d = first_d + t * g[12]
                for r in range(taps_h):
                    h = first_h + r * g[13]
                    for s in range(taps_w):
                        w = first_w + s * g[14]
                        if d >= 0 and d < g[0] and h >= 0 and h < g[1] and w >= 0 and w < g[2]:
                            value = load(x, offset(n, c, d, h, w, x_strides))
                            total += value
                            if where < 0 or (best == best and not value <= best):
                                best, where = value, (d * g[1] + h) * g[2] + w
            if MAX:
                store(y, offset(n, c, o, p, q, y_strides), best)
                if INDEX:
                    index[offset(n, c, o, p, q, index_strides)] = i32(where)
            else:
                count = counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g) * counted_w(first_w, taps_w, g)
                store(y, offset(n, c, o, p, q, y_strides), total * reciprocal(count))
    return pool_fwd_naive


@functools.cache
def backward(config):
    """dx[n, c, d, h, w] = the sum of the gradients that are its own."""
    e, Total = element(config.dtype), {"float32": f32, "float64": f64}[element(config.dtype).compute]
    load, store, MAX = e.load, e.store, config.op.startswith("max")
    coordinates = make_coordinates(config.channels_last)
    window_d, window_h, window_w = (make_window(axis, config.adaptive, True) for axis in range(3))
    counted_d, counted_h, counted_w = (make_counted(axis, True, True) for axis in range(3))
    reciprocal = make_reciprocal(e.compute)
    seen_d, seen_h, seen_w = (make_seen_by(axis, config.adaptive, True) for axis in range(3))

    @jit(launch_bounds=(THREADS, 2))
    def pool_bwd_naive(dy, index, dx, elements, channels, g, x_strides, y_strides, index_strides):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            n, c, d, h, w = coordinates(i, channels, g[0], g[1], g[2])
            pixel = i32((d * g[1] + h) * g[2] + w)
            total = Total(0)
            o_first, o_end = seen_d(d, d, g)
            p_first, p_end = seen_h(h, h, g)
            q_first, q_end = seen_w(w, w, g)
            for o in range(o_first, o_end):
                for p in range(p_first, p_end):
                    for q in range(q_first, q_end):
                        if MAX:
                            if index[offset(n, c, o, p, q, index_strides)] == pixel:
                                total += load(dy, offset(n, c, o, p, q, y_strides))
                        else:
                            first_d, taps_d = window_d(o, g)
                            first_h, taps_h = window_h(p, g)
                            first_w, taps_w = window_w(q, g)
                            if (d - first_d) % g[12] == 0 and (h - first_h) % g[13] == 0 and (w - first_w) % g[14] == 0:
                                count = counted_d(first_d, taps_d, g) * counted_h(first_h, taps_h, g) * counted_w(first_w, taps_w, g)
                                total += load(dy, offset(n, c, o, p, q, y_strides)) * reciprocal(count)
            store(dx, offset(n, c, d, h, w, x_strides), total)
    return pool_bwd_naive


def build(problem, device, config):
    """One launch. Without an index its pointer is y's, which nothing reads or writes through it."""
    config = Config(problem.op, problem.x.dtype, problem.index is not None, problem.layout == "NHWC", problem.adaptive)
    pointer = element(problem.x.dtype).pointer
    index = Argument("int32*", "index") if config.index else Argument(pointer, "y" if problem.is_forward else "dy")
    if problem.is_forward:
        kernel, arrays = forward(config), (Argument(pointer, "x"), Argument(pointer, "y"), index)
    else:
        kernel, arrays = backward(config), (Argument(pointer, "dy"), index, Argument(pointer, "dx"))
    size = problem.outputs[0].size
    arguments = (*arrays, Argument("int64", size), Argument("int64", problem.c), *problem.geometry(), *problem.addresses())
    return (Launch(kernel, (-(-size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)
