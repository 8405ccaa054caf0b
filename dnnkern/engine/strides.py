"""Strides and extents of images as kernel parameters with names, in 64 or 32 bits."""
from typing import NamedTuple

from ..device import i32, i64
from ..host.launch import Argument


class ImageStrides(NamedTuple):
    """Of x[n, c, d, h, w], whatever the names of its coordinates."""
    n: i64
    c: i64
    d: i64
    h: i64
    w: i64


class ImageStrides32(NamedTuple):
    """`ImageStrides` in 32 bits."""
    n: i32
    c: i32
    d: i32
    h: i32
    w: i32


class GridStrides(NamedTuple):
    """Of grid[n, d, h, w, coordinate]."""
    n: i64
    d: i64
    h: i64
    w: i64
    coordinate: i64


class GridStrides32(NamedTuple):
    """`GridStrides` in 32 bits."""
    n: i32
    d: i32
    h: i32
    w: i32
    coordinate: i32


class Extents(NamedTuple):
    """Depth, height and width."""
    d: i64
    h: i64
    w: i64


class Extents32(NamedTuple):
    """`Extents` in 32 bits."""
    d: i32
    h: i32
    w: i32


def image_strides(strides, wide=True, scale=1):
    """Kernel parameter: strides of an image, times `scale`."""
    kind = ImageStrides if wide else ImageStrides32
    return Argument(kind, kind(*(s * scale for s in strides)))


def grid_strides(strides, wide=True):
    """Kernel parameter: strides of a grid."""
    kind = GridStrides if wide else GridStrides32
    return Argument(kind, kind(*strides))


def extents(sizes, wide=True):
    """Kernel parameter: extents of an image."""
    kind = Extents if wide else Extents32
    return Argument(kind, kind(*sizes))
