"""Which pixels a window covers, which windows cover a pixel, and how many taps an average counts: along one axis, in 32 bits."""
import functools
from typing import NamedTuple

from ..device import device_function, f32, f64, i32
from ..device.fastmath import fma, rcp
from ..device.index import Divisor, divide, divisor
from ..host.launch import Argument

MINUS_INFINITY = float("-inf")


class Axis(NamedTuple):
    """The pooling along one dimension: extents of image, output and window; steps of the window; the padding before the image; from which
    pixel up to which one a tap counts in an average (below 0 or past the extent where padding counts); and what `divide` divides by.

    In this order multiplier and shift of a divisor lie at a multiple of 8 bytes, and one instruction loads both.
    """
    extent: i32
    by_extent: Divisor
    outputs: i32
    by_outputs: Divisor
    stride: i32
    by_stride: Divisor
    dilation: i32
    by_dilation: Divisor
    taps: i32
    padding: i32
    counted_from: i32
    counted_to: i32


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


def axes_argument(problem) -> Argument:
    """Kernel parameter: the three axes."""
    axes = (Axis(extent, divisor(max(extent, 1)), outputs, divisor(max(outputs, 1)), stride, divisor(stride), dilation, divisor(dilation),
                 taps, *rest) for extent, outputs, taps, stride, dilation, *rest in problem.axes)
    return Argument(Axes, Axes(*axes))


@device_function
def ceil_divide(a, d):
    """a over d, rounded up; 0 for negative ones."""
    return divide(a + i32(d.d) - 1, d) if a > 0 else 0


@device_function
def pixel_number(d, h, w, axes):
    """Of a pixel within its image: what an index holds."""
    return (d * axes.h.extent + h) * axes.w.extent + w


@functools.cache
def make_window(adaptive):
    """``window(output, axis) -> (first pixel, taps)``; the first pixel may lie in the padding."""
    @device_function
    def window(output, axis):
        if adaptive:
            first = divide(output * axis.extent, axis.by_outputs)
            return first, ceil_divide((output + 1) * axis.extent, axis.by_outputs) - first
        return output * axis.stride - axis.padding, axis.taps
    return window


@functools.cache
def make_covering(adaptive):
    """``covering(first pixel, last pixel, axis) -> (first output, end of the outputs)`` whose windows span any of the pixels, the first of
    which is in the image."""
    @device_function
    def covering(pixel, last, axis):
        if adaptive:
            return (divide(pixel * axis.outputs, axis.by_extent),
                    min(ceil_divide((last + 1) * axis.outputs, axis.by_extent), axis.outputs))
        first = ceil_divide(pixel + axis.padding - (axis.taps - 1) * axis.dilation, axis.by_stride)
        return first, min(divide(last + axis.padding, axis.by_stride) + 1, axis.outputs)
    return covering


@functools.cache
def make_inside(dilated):
    """``inside(first pixel, taps, axis) -> (first tap, end of the taps)`` that are in the image."""
    @device_function
    def inside(first, taps, axis):
        low, high = -first, axis.extent - first
        if dilated:
            low, high = ceil_divide(low, axis.by_dilation), ceil_divide(high, axis.by_dilation)
        return max(low, 0), min(high, taps)
    return inside


@functools.cache
def make_counted(dilated, divided=False):
    """``counted(first pixel, taps, axis)``: how many taps of a window count in an average. `divided`: averages have one divisor, which is
    the product of the axes' `counted_to`."""
    @device_function
    def counted(first, taps, axis):
        if divided:
            return axis.counted_to
        low, high = axis.counted_from - first, axis.counted_to - first
        if dilated:
            low, high = ceil_divide(low, axis.by_dilation), ceil_divide(high, axis.by_dilation)
        return max(min(high, taps) - max(low, 0), 0)
    return counted


@functools.cache
def make_reciprocal(compute):
    """``reciprocal(count)``: 1 / count rounded, 0 for 0; without the subroutine that a division is."""
    if compute == "float64":
        @device_function
        def reciprocal(count):
            n = f64(count)
            r = f64(rcp(f32(count)))
            for _ in range(3):
                r = fma(r, fma(-n, r, f64(1)), r)
            return r if count > 0 else f64(0)
    else:
        @device_function
        def reciprocal(count):
            n = f32(count)
            r = rcp(n)
            return fma(r, fma(-n, r, f32(1)), r) if count > 0 else f32(0)
    return reciprocal
