"""A window along the three axes as 32-bit kernel parameters, and the strides of x and of the columns."""
from typing import NamedTuple

from ...device import device_function, i32, i64
from ...device.index import Divisor, divisor
from ...host.launch import Argument


class Axis(NamedTuple):
    """The window of im2col along one dimension: extents of image, output and window; its steps; the padding before the image; and what
    `divide` divides by. In this order multiplier and shift of a divisor lie at a multiple of 8 bytes, and one instruction loads both."""
    extent: i32
    by_outputs: Divisor
    padding: i32
    by_taps: Divisor
    stride: i32
    dilation: i32
    outputs: i32
    taps: i32


class Axes(NamedTuple):
    """Depth, height and width."""
    d: Axis
    h: Axis
    w: Axis


class ColumnsStrides32(NamedTuple):
    """Of columns[n, c, tap, pixel], in words."""
    n: i32
    c: i32
    tap: i32
    pixel: i32


class ColumnsStrides64(NamedTuple):
    """Of columns[n, c, tap, pixel], in words."""
    n: i64
    c: i64
    tap: i64
    pixel: i64


def axes_argument(problem):
    """Kernel parameter: the axes."""
    return Argument(Axes, Axes(*(Axis(extent, divisor(outputs), padding, divisor(taps), stride, dilation, outputs, taps)
                                 for extent, outputs, taps, stride, dilation, padding in problem.axes)))


def columns_strides(problem, scale, wide):
    """Kernel parameter: strides of the columns, times `scale`."""
    kind = ColumnsStrides64 if wide else ColumnsStrides32
    return Argument(kind, kind(*(s * scale for s in problem.columns_strides)))


@device_function
def source(output, tap, axis):
    """The pixel that a tap of the window at an output reads; outside the image in the padding."""
    return output * axis.stride + tap * axis.dilation - axis.padding


@device_function
def image_offset(d, h, w, stride):
    """Of a pixel from the first of its image."""
    return d * stride.d + h * stride.h + w * stride.w
