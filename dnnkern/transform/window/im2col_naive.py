"""One thread per element of the columns, straight from the definition.

Thread i takes element i in the columns' own order, finds image, channel, tap and output pixel by eight 64-bit divisions, and copies the
element of x that the tap reads there, or writes 0 in the padding. Arbitrary strides, any number of elements; stores are coalesced where
the columns are packed.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i64, jit
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.strides import ImageStrides
from ...host.launch import Argument, Launch

COST = constants("transform/im2col_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Whether channels are last."""
    channels_last: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The divisions."""
    return LAUNCH + overlap(issue=issue_seconds(problem.columns.size, COST.element, device), memory=memory_seconds(problem.bytes, device))


class Axis(NamedTuple):
    """The window along one dimension: extents of image, output and window; its steps; the padding before the image."""
    extent: i64
    outputs: i64
    taps: i64
    stride: i64
    dilation: i64
    padding: i64


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


class ColumnsStrides(NamedTuple):
    """Of columns[n, c, tap, pixel]."""
    n: i64
    c: i64
    tap: i64
    pixel: i64


@device_function
def unflatten(i, a, b, c):
    """(rest, three coordinates) of a flat index over extents (any, a, b, c)."""
    rest = i // c
    last = i - rest * c
    i = rest // b
    middle = rest - i * b
    rest = i // a
    return rest, i - rest * a, middle, last


@functools.cache
def kernel(config):
    """columns[n, c, tap, pixel] = x[n, c, ...] or 0."""
    CHANNELS_LAST = config.channels_last

    @jit(launch_bounds=THREADS)
    def im2col_naive(x, columns, elements, channels, axes, x_stride, stride):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            c = i64(0)
            if CHANNELS_LAST:
                rest = i // channels
                c = i - rest * channels
                rest, t, r, s = unflatten(rest, axes.d.taps, axes.h.taps, axes.w.taps)
                n, o, p, q = unflatten(rest, axes.d.outputs, axes.h.outputs, axes.w.outputs)
            else:
                rest, o, p, q = unflatten(i, axes.d.outputs, axes.h.outputs, axes.w.outputs)
                rest, t, r, s = unflatten(rest, axes.d.taps, axes.h.taps, axes.w.taps)
                n = rest // channels
                c = rest - n * channels
            d = o * axes.d.stride + t * axes.d.dilation - axes.d.padding
            h = p * axes.h.stride + r * axes.h.dilation - axes.h.padding
            w = q * axes.w.stride + s * axes.w.dilation - axes.w.padding
            tap, pixel = (t * axes.h.taps + r) * axes.w.taps + s, (o * axes.h.outputs + p) * axes.w.outputs + q
            to = n * stride.n + c * stride.c + tap * stride.tap + pixel * stride.pixel
            if d >= 0 and d < axes.d.extent and h >= 0 and h < axes.h.extent and w >= 0 and w < axes.w.extent:
                columns[to] = x[n * x_stride.n + c * x_stride.c + d * x_stride.d + h * x_stride.h + w * x_stride.w]
            else:
                columns[to] = 0
    return im2col_naive


def window_arguments(problem):
    """Kernel parameters: the axes, the strides of x and of the columns."""
    values = Axes(*(Axis(*axis) for axis in problem.axes)), ImageStrides(*problem.x_strides), ColumnsStrides(*problem.columns_strides)
    return tuple(Argument(type(v), v) for v in values)


def build(problem, device, config, source=("x", 0), target=("columns", 0)):
    """One launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    pointer = {1: "uint8*", 2: "uint16*", 4: "uint32*", 8: "uint64*"}[problem.x.itemsize]
    arguments = (Argument(pointer, source[0], offset=source[1]), Argument(pointer, target[0], offset=target[1]),
                 Argument("int64", problem.columns.size), Argument("int64", problem.c), *window_arguments(problem))
    grid = -(-problem.columns.size // THREADS), 1, 1
    return (Launch(kernel(Config(problem.layout == "NHWC")), grid, (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="im2col", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
