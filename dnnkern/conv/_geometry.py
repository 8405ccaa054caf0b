"""Shapes of a convolution by meaning, how its functions name their arrays, and the extents that follow from a window."""
from typing import NamedTuple

from ..host.choices import one_of
from ..host.window import AXES, LAYOUTS, integer

MODES = ("cross_correlation", "convolution")


class Roles(NamedTuple):
    """How the public function names its arrays: those in the roles of image, filter and result of the forward convolution."""
    function: str
    x: str
    w: str
    y: str


ROLES = {"conv_fwd": Roles("conv_fwd", "x", "w", "out"), "conv_bwd_data": Roles("conv_bwd_data", "x_shape", "w", "dy"),
         "conv_bwd_filter": Roles("conv_bwd_filter", "x", "w_shape", "dy")}
TRANSPOSED = Roles("conv_transpose_fwd", "y", "w", "x")


class Shape(NamedTuple):
    """Sizes of an array, whatever its layout: images, channels, spatial extents; of a filter: K, C per group, taps."""
    outer: int
    channels: int
    spatial: tuple


def shape_of(sizes, layout) -> Shape:
    """Sizes of an array (a shape, or strides along its dimensions) by meaning."""
    if layout == "NHWC":
        return Shape(sizes[0], sizes[-1], tuple(sizes[1:-1]))
    return Shape(sizes[0], sizes[1], tuple(sizes[2:]))


def sizes_of(shape, layout) -> tuple:
    """The sizes in the layout's order; the inverse of `shape_of`."""
    if layout == "NHWC":
        return (shape.outer, *shape.spatial, shape.channels)
    return (shape.outer, shape.channels, *shape.spatial)


def positive(function, name, value):
    """The value as an int; ValueError below 1."""
    return integer(function, name, value, 1)


def check_words(function, layout, mode, layouts=LAYOUTS):
    """ValueError unless layout and mode are known words."""
    one_of(function, "layout", layout, layouts)
    one_of(function, "mode", mode, MODES)


def out_extents(roles, image, taps, stride, pads, dilation) -> tuple:
    """Spatial extents of the result; ValueError where the window does not fit into the padded image."""
    extents = []
    for axis, size, r, s, (before, after), d in zip(AXES[-len(image):], image, taps, stride, pads, dilation):
        if r < 1:
            raise ValueError(f"{roles.function}: {roles.w} has no taps along {axis} (filter {'x'.join(map(str, taps))})")
        window, padded = d * (r - 1) + 1, size + before + after
        if window > padded:
            raise ValueError(f"{roles.function}: the window of {roles.w} spans {window} along {axis} ({r} taps, dilation {d}), the padded "
                             f"{roles.x} has {padded} ({before} + {size} + {after})")
        extents.append((padded - window) // s + 1)
    return tuple(extents)
