"""Backward filter from slabs of x: the taps of a row of the filter read the same pixels in shared memory, shifted by one or more pixels.

    rows of the product      64 channels of x at every tap, tap by tap
    columns                  filters
    k                        pixels of x's padded rows: w runs over `Q + (S - 1) * dilation` positions, the last ones with dy = 0

A stage has 64 such pixels of dy, and for each row of the filter ("line") a slab of x: 64 pixels and those up to the last tap. TMA in im2col
mode loads both: it walks over any box of pixels and reads zeros outside the arrays. A warpgroup has one line and multiplies once per tap;
the operand of each tap begins `dilation` pixels of 128 bytes further on.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import device_function, i32, u32
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.tma import make_tma_load
from ...engine.hopper import GROUP, ROW, Loader, Tile
from ...engine.hopper_plan import make_locate
from ...host.launch import Argument
from ...host.tensormap import Im2colMap
from .._filter_wgmma import PIXELS, Shape, image_map, spatial_dims

CHANNELS = 64  # of a tile, at each tap


@dataclass(frozen=True)
class SlabTile(Tile):
    """A tile of `lines` rows of the filter with `taps` taps each, `dilation` pixels apart, by `bn` filters; a warpgroup has a line."""
    lines: int = 3
    taps: int = 3
    dilation: int = 1

    def __post_init__(self):
        if self.lines not in (1, 2, 3) or self.taps < 1 or self.dilation < 1 or self.bm != self.lines * self.taps * CHANNELS:
            raise ValueError(f"tile of {self.bm} rows: {self.lines} lines of {self.taps} taps; expected 1 to 3 lines, 64 rows per tap")
        if self.bn not in (64, 128, 192, 256) or self.cluster != 1 or self.blocks != 1:
            raise ValueError(f"tile of {self.bn} columns; expected 64, 128, 192 or 256, no clusters and one block")
        if self.sums + 24 > self.registers[1]:
            raise ValueError(f"{self.sums} accumulators per thread and 24 registers more; {self.threads} threads leave {self.registers[1]}")
        if self.stages < 2:
            raise ValueError(f"slabs of {self.slab} bytes leave room for {self.stages} stages; the least is 2")

    @property
    def consumers(self):
        return self.lines

    @property
    def groups(self):
        return self.taps

    @property
    def pixels(self):
        """Of a slab."""
        return PIXELS + (self.taps - 1) * self.dilation

    @property
    def slab(self):
        """Bytes from one slab to the next, a multiple of the swizzle's pattern."""
        return ceil_div(self.pixels * ROW, 1024) * 1024

    @property
    def a_bytes(self):
        return self.lines * self.slab

    @property
    def a_steps(self):
        return self.slab, self.dilation * ROW

    def __str__(self):
        return f"{self.lines} lines x{self.bn}"


def lines_of(problem):
    """Rows of the filter, in all its planes."""
    return problem.filter[0] * problem.filter[1]


def positions(problem):
    """(O, P, padded Q) of the pixels that are summed over."""
    p = problem
    return *p.out[:2], p.out[2] + (p.filter[2] - 1) * p.dilations[2]


def slab_shape(problem):
    """`Shape` of the product; groups and 64 of a group's channels are its matrices."""
    p = problem
    o, rows, width = positions(p)
    return Shape(p.taps * CHANNELS, p.k_group, p.n * o * rows * width, p.groups * (p.c_group // CHANNELS))


def slab_maps(problem, pixels):
    """The tensor maps of x, in slabs of so many pixels, and of dy; ValueError where there are none."""
    p, dims = problem, spatial_dims(problem)
    x, kept = image_map(p, CHANNELS), slice(3 - dims, 3)
    x = Im2colMap(x.dtype, x.shape, x.strides, x.lower, (*x.upper[:-1], p.pads_after[2]), CHANNELS, pixels, x.swizzle)
    outer, _, *inner = p.y_strides
    shape, line = (p.n, *p.out[kept], p.k), 16 // p.y.itemsize
    strides = tuple(s if n > 1 else line for n, s in zip(shape, (outer, *inner[kept])))
    if min(strides) <= 0:
        raise ValueError(f"dy has strides {p.y.strides}; TMA takes positive ones")
    reach = (p.filter[2] - 1) * p.dilations[2]
    dy = Im2colMap(p.y.dtype, shape, (*strides, 1), (0,) * dims, (*(0,) * (dims - 1), reach), 64, PIXELS, 128)
    return x, dy


class SlabParts(NamedTuple):
    """How matrices and rows divide: 64 channels of a group, rows of a line; filters and channels of a group."""
    chunks: Divisor
    line: Divisor
    filters: i32
    channels: i32


class SlabWindow(NamedTuple):
    """Extents of the pixels that are summed over, leading padding along d, h, w; lines of a plane of the filter, the last line,
    dilations."""
    width: Divisor
    height: Divisor
    depth: Divisor
    padding: "int32x3"  # noqa: F821
    lines: Divisor
    last_line: i32
    dilations: "int32x3"  # noqa: F821


def slab_arguments(problem):
    """The kernel parameters of classes `SlabParts` and `SlabWindow`."""
    p = problem
    o, rows, width = positions(p)
    parts = SlabParts(divisor(p.c_group // CHANNELS), divisor(p.filter[2] * CHANNELS), p.k_group, p.c_group)
    window = SlabWindow(divisor(width), divisor(rows), divisor(o), p.pads_before, divisor(p.filter[1]), lines_of(p) - 1, p.dilations)
    return Argument(SlabParts, parts), Argument(SlabWindow, window)


class SlabWorkTile(NamedTuple):
    """A `WorkTile` (one matrix each of x and dy), with its first filter, channel and line, and the `SlabWindow`."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z: i32
    k_slice: i32
    filter: i32
    channel: i32
    line: i32
    window: SlabWindow


@functools.cache
def make_slab_locate(tile):
    """Device function ``locate(t, rank, (place, parts, window))``: the `SlabWorkTile` number t."""
    locate_tile = make_locate(tile)

    @device_function
    def locate(t, rank, place):
        tiles, parts, window = place
        work = locate_tile(t, rank, tiles)
        group, chunk = divide_remainder(work.z, parts.chunks)
        line, _ = divide_remainder(work.row, parts.line)
        return SlabWorkTile(work.k_begin, work.k_end, work.row, work.column, work.z, work.k_slice, group * parts.filters + work.column,
                            group * parts.channels + chunk * CHANNELS, line, window)
    return locate


@functools.cache
def make_slab_loader(tile, dtype, dims):
    """`Loader` of a stage's slabs of x and pixels of dy, through im2col maps in `dims` dimensions, for a `SlabWorkTile`."""
    LINES, SLAB, BOXES = tile.lines, tile.slab, tile.bn // 64
    gather = make_tma_load(dims + 2, im2col=True)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        channel, window = tile.channel, tile.window
        n, w = divide_remainder(k * PIXELS, window.width)
        x_w = w - window.padding[2]
        if dims > 1:
            n, h = divide_remainder(n, window.height)
            x_h = h - window.padding[1]
        if dims > 2:
            n, d = divide_remainder(n, window.depth)
            x_d = d - window.padding[0]
        for i in range(LINES):
            line = min(tile.line + i, window.last_line)  # products of lines past the last are not stored
            t, r = divide_remainder(line, window.lines)
            to, offset_h, offset_d = to_a + u32(i * SLAB), r * window.dilations[1], t * window.dilations[0]
            if dims == 1:
                gather(to, a_map, bar, channel, x_w, n, 0)
            elif dims == 2:
                gather(to, a_map, bar, channel, x_w, x_h, n, 0, offset_h)
            else:
                gather(to, a_map, bar, channel, x_w, x_h, x_d, n, 0, offset_h, offset_d)
        for box in range(BOXES):
            to, c = to_b + u32(box * GROUP), tile.filter + box * 64
            if dims == 1:
                gather(to, b_map, bar, c, w, n, 0)
            elif dims == 2:
                gather(to, b_map, bar, c, w, h, n, 0, 0)
            else:
                gather(to, b_map, bar, c, w, h, d, n, 0, 0, 0)
    return Loader(load, "mn", "mn", dtype, dtype, (tile.lines * tile.pixels + tile.bn) * ROW)
