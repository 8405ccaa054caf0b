"""One thread per output, straight from the definition.

Forward, a thread walks over the taps of its window in order. The maximum is the first of the largest values, or the first NaN; the average
is the sum over the taps within the image, divided by the number of taps that count. Backward, a thread takes one pixel, finds the outputs
whose windows may cover it, and adds up, output by output, the gradients whose index is that pixel (maximum) or its share of them (average).

Indices have 64 bits and are divided as such: arbitrary strides, any number of elements, always applicable, and slow.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._problem import OPS
from ._programs import make_functions, program_argument
from ._windows import MINUS_INFINITY, make_reciprocal

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("pool/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """The operation, the elements' type, the type of an index, whether channels are last, whether windows are adaptive, and
    whether averages have one divisor; the result's type where it is another, the program, whether its operands have 64-bit strides."""
    op: str
    dtype: str
    index: str | None
    channels_last: bool
    adaptive: bool
    divided: bool
    result: str = ""
    program: "Program | None" = None
    wide: bool = False


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Divisions, and 64-bit instructions per tap; at least the latency of one load per tap of each wave of threads."""
    each = COST.thread + COST.tap * problem.tap_count * (1 if problem.is_forward else problem.y.size / max(problem.x.size, 1))
    taps = problem.tap_count if problem.is_forward else 1
    taps *= ceil_div(problem.outputs[0].size, device.threads_per_sm * device.sms)
    return LAUNCH + overlap(issue=issue_seconds(problem.outputs[0].size, each, device), memory=memory_seconds(problem.bytes, device),
                            waits=taps * COST.latency)


class Axis(NamedTuple):
    """The pooling along one dimension: extents of image, output and window; steps of the window; the padding before the image; and from
    which pixel up to which one a tap counts in an average (below 0 or past the extent where padding counts)."""
    extent: i64
    outputs: i64
    taps: i64
    stride: i64
    dilation: i64
    padding: i64
    counted_from: i64
    counted_to: i64


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


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


@device_function
def ceil_divide(a, b):
    return (a + b - 1) // b if a > 0 else i64(0)


@functools.cache
def make_window(adaptive):
    """``window(output, axis) -> (first pixel, taps)``; the first pixel may lie in the padding."""
    @device_function
    def window(output, axis):
        if adaptive:
            first = output * axis.extent // axis.outputs
            return first, ceil_divide((output + 1) * axis.extent, axis.outputs) - first
        return output * axis.stride - axis.padding, axis.taps
    return window


@functools.cache
def make_covering(adaptive):
    """``covering(pixel, axis) -> (first output, end of the outputs)`` whose windows span the pixel."""
    @device_function
    def covering(pixel, axis):
        if adaptive:
            return pixel * axis.outputs // axis.extent, min(ceil_divide((pixel + 1) * axis.outputs, axis.extent), axis.outputs)
        first = ceil_divide(pixel + axis.padding - (axis.taps - 1) * axis.dilation, axis.stride)
        return first, min((pixel + axis.padding) // axis.stride + 1, axis.outputs)
    return covering


@functools.cache
def make_counted(divided):
    """``counted(first pixel, taps, axis)``: how many taps of a window count in an average, or a factor of what divides all of them."""
    @device_function
    def counted(first, taps, axis):
        if divided:
            return axis.counted_to
        low = ceil_divide(axis.counted_from - first, axis.dilation)
        high = ceil_divide(axis.counted_to - first, axis.dilation)
        return max(min(high, taps) - low, 0)
    return counted


@device_function
def offset(n, c, d, h, w, stride):
    return n * stride.n + c * stride.c + d * stride.d + h * stride.h + w * stride.w


@functools.cache
def forward(config):
    """y[n, c, o, p, q] = the maximum or the average of x over the window."""
    e, Total = element(config.dtype), {"float32": f32, "float64": f64}[element(config.dtype).compute]
    load, store, MAX, INDEX = e.load, e.store, config.op.startswith("max"), config.index is not None
    Index = i64 if config.index == "int64" else i32
    coordinates, window, reciprocal = make_coordinates(config.channels_last), make_window(config.adaptive), make_reciprocal(e.compute)
    counted = make_counted(config.divided)
    store = element(config.result).store if config.result else store
    PROGRAM, (of_one, _) = config.program is not None, make_functions(config.program, e.compute, config.result or config.dtype, 1)

    @jit(launch_bounds=(THREADS, 2))
    def pool_fwd_naive(x, y, index, outputs, channels, axes, x_stride, y_stride, index_stride, operands):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            n, c, o, p, q = coordinates(i, channels, axes.d.outputs, axes.h.outputs, axes.w.outputs)
            first_d, taps_d = window(o, axes.d)
            first_h, taps_h = window(p, axes.h)
            first_w, taps_w = window(q, axes.w)
            best, best_pixel = Total(MINUS_INFINITY), i64(-1)
            total = Total(0)
            for t in range(taps_d):
                d = first_d + t * axes.d.dilation
                for r in range(taps_h):
                    h = first_h + r * axes.h.dilation
                    for s in range(taps_w):
                        w = first_w + s * axes.w.dilation
                        if 0 <= d < axes.d.extent and 0 <= h < axes.h.extent and 0 <= w < axes.w.extent:
                            value = load(x, offset(n, c, d, h, w, x_stride))
                            total += value
                            if best_pixel < 0 or (best == best and not value <= best):
                                best, best_pixel = value, (d * axes.h.extent + h) * axes.w.extent + w
            if MAX:
                if PROGRAM:
                    best = of_one(best, operands, (n, c, o, p, q))
                store(y, offset(n, c, o, p, q, y_stride), best)
                if INDEX:
                    index[offset(n, c, o, p, q, index_stride)] = Index(best_pixel)
            else:
                count = counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h) * counted(first_w, taps_w, axes.w)
                if PROGRAM:
                    store(y, offset(n, c, o, p, q, y_stride), of_one(total * reciprocal(count), operands, (n, c, o, p, q)))
                else:
                    store(y, offset(n, c, o, p, q, y_stride), total * reciprocal(count))
    return pool_fwd_naive


@functools.cache
def backward(config):
    """dx[n, c, d, h, w] = the sum of the gradients that belong to the pixel."""
    e, Total = element(config.dtype), {"float32": f32, "float64": f64}[element(config.dtype).compute]
    load, store, MAX = e.load, e.store, config.op.startswith("max")
    Index = i64 if config.index == "int64" else i32
    coordinates, window, covering = make_coordinates(config.channels_last), make_window(config.adaptive), make_covering(config.adaptive)
    reciprocal, counted = make_reciprocal(e.compute), make_counted(config.divided)

    @jit(launch_bounds=(THREADS, 2))
    def pool_bwd_naive(dy, index, dx, pixels, channels, axes, x_stride, y_stride, index_stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < pixels:
            n, c, d, h, w = coordinates(i, channels, axes.d.extent, axes.h.extent, axes.w.extent)
            pixel = Index((d * axes.h.extent + h) * axes.w.extent + w)
            total = Total(0)
            o_first, o_end = covering(d, axes.d)
            p_first, p_end = covering(h, axes.h)
            q_first, q_end = covering(w, axes.w)
            for o in range(o_first, o_end):
                for p in range(p_first, p_end):
                    for q in range(q_first, q_end):
                        if MAX:
                            if index[offset(n, c, o, p, q, index_stride)] == pixel:
                                total += load(dy, offset(n, c, o, p, q, y_stride))
                        else:
                            first_d, taps_d = window(o, axes.d)
                            first_h, taps_h = window(p, axes.h)
                            first_w, taps_w = window(q, axes.w)
                            # with dilation a window spans pixels that it has no tap on
                            if ((d - first_d) % axes.d.dilation == 0 and (h - first_h) % axes.h.dilation == 0
                                    and (w - first_w) % axes.w.dilation == 0):
                                count = (counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h)
                                         * counted(first_w, taps_w, axes.w))
                                total += load(dy, offset(n, c, o, p, q, y_stride)) * reciprocal(count)
            store(dx, offset(n, c, d, h, w, x_stride), total)
    return pool_bwd_naive


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of y or dy, and is not used."""
    config = Config(problem.op, problem.x.dtype, problem.index_dtype, problem.layout == "NHWC", problem.adaptive,
                    problem.divisor is not None, problem.y.dtype if problem.y.dtype != problem.x.dtype else "", problem.program,
                    problem.wide)
    pointer, of_y = (element(t.dtype).pointer for t in (problem.x, problem.y))
    index = Argument(f"{config.index}*", "index") if config.index else Argument(of_y, "y" if problem.is_forward else "dy")
    if problem.is_forward:
        kernel, arrays = forward(config), (Argument(pointer, "x"), Argument(of_y, "y"), index)
    else:
        kernel, arrays = backward(config), (Argument(pointer, "dy"), index, Argument(pointer, "dx"))
    size = problem.outputs[0].size
    axes = Axes(*(Axis(*numbers) for numbers in problem.axes))
    arguments = (*arrays, Argument("int64", size), Argument("int64", problem.c), Argument(Axes, axes), *problem.addresses(),
                 *((program_argument(problem),) if problem.is_forward else ()))
    return (Launch(kernel, (-(-size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=op.endswith("fwd")) for op in OPS)
