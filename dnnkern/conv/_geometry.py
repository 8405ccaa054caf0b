"""Windows of a convolution: what `stride`, `padding` and `dilation` may be, and the extents that follow from them."""
import operator
from typing import NamedTuple

LAYOUTS = ("NCHW", "NHWC")
MODES = ("cross_correlation", "convolution")
AXES = "dhw"


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


def _integer(function, name, value, least):
    try:
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{function}: {name} holds {value!r}; expected an int") from None
    if isinstance(value, bool):
        raise TypeError(f"{function}: {name} holds {value!r}; expected an int")
    if n < least:
        raise ValueError(f"{function}: {name} is {n}; expected {least} or more")
    return n


def positive(function, name, value):
    """The value as an int; ValueError below 1."""
    return _integer(function, name, value, 1)


def per_dimension(function, name, value, dims, least=1) -> tuple:
    """One int for each of `dims` spatial dimensions, given as an int or a tuple."""
    if not hasattr(value, "__len__"):
        return (_integer(function, name, value, least),) * dims
    if len(value) != dims:
        raise ValueError(f"{function}: {name}={value!r} has {len(value)} entries; expected an int or one entry for each of {dims} spatial "
                         f"dimension{'s' * (dims > 1)}")
    return tuple(_integer(function, name, v, least) for v in value)


def pad_pairs(function, value, dims) -> tuple:
    """((before, after), ...) for each of `dims` spatial dimensions, given as an int, one int a dimension, or pairs.

    In one dimension (before, after) is the pair itself.
    """
    if hasattr(value, "__len__"):
        if dims == 1 and len(value) == 2 and not any(hasattr(v, "__len__") for v in value):
            value = (value,)
        if len(value) != dims:
            raise ValueError(f"{function}: padding={value!r} has {len(value)} entries; expected an int or one entry, an int or a pair "
                             f"(before, after), for each of {dims} spatial dimension{'s' * (dims > 1)}")
        return tuple(per_dimension(function, "padding", v, 2, 0) for v in value)
    return (per_dimension(function, "padding", value, 2, 0),) * dims


def check_words(function, layout, mode):
    """ValueError unless layout and mode are known words."""
    for name, word, known in (("layout", layout, LAYOUTS), ("mode", mode, MODES)):
        if word not in known:
            raise ValueError(f"{function}: {name}={word!r}; expected one of {', '.join(map(repr, known))}")


def check_rank(function, name, shape):
    """Number of spatial dimensions of an array with this shape; ValueError unless it is 1 to 3."""
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"{function}: {name} has shape {tuple(shape)}; expected 3, 4 or 5 dimensions (1 to 3 spatial ones)")
    return len(shape) - 2


def check_shape(function, name, shape) -> tuple:
    """A shape that the caller gave as a tuple of ints."""
    if not hasattr(shape, "__len__"):
        raise TypeError(f"{function}: {name} is {shape!r}; expected a tuple of ints")
    return tuple(_integer(function, name, n, 0) for n in shape)


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
