"""A filter's gradient from slabs of x: the taps along a row of the filter read the same pixels in shared memory, one or more pixels on.

    rows of the product      channels of x at every tap: tap by tap 64 of them
    columns                  filters
    summed over              pixels of the padded rows of x: w runs over `Q + (S - 1) * dilation` positions, the last ones with a dy of zero

A stage holds 64 such pixels of dy, and for each row of the filter ("line") a slab of x: 64 pixels and as many as the last tap is ahead.
TMA in its im2col mode brings both: it walks over any box of pixels and reads zeros outside the arrays. A warpgroup has a line and
multiplies once for each tap, with an operand that begins `dilation` pixels, of 128 bytes, further on.
"""
import functools
from typing import NamedTuple
from dataclasses import dataclass

from ...device import device_function, i32, u32
from ...device.index import ceil_div, divide_remainder, divisor
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
            raise ValueError(f"tile of {self.bm} rows: {self.lines} lines of {self.taps} taps; expected 1 to 3 lines, 64 rows a tap")
        if self.bn not in (64, 128, 192, 256) or self.cluster != 1 or self.blocks != 1:
            raise ValueError(f"tile of {self.bn} columns; expected 64, 128, 192 or 256, neither clusters nor several blocks")
        if self.sums + 24 > self.registers[1]:
            raise ValueError(f"{self.sums} sums a thread and 24 registers more; {self.threads} threads leave it {self.registers[1]}")
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
        """Bytes from one slab to the next: whole patterns of the swizzle."""
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


def slab_arguments(problem):
    """The kernel parameters `parts` and `window` of `make_slab_locate`."""
    p = problem
    o, rows, width = positions(p)
    parts = (Argument("uint32x3", divisor(p.c_group // CHANNELS)), Argument("uint32x3", divisor(p.filter[2] * CHANNELS)),
             Argument("int32", p.k_group), Argument("int32", p.c_group))
    window = (*(Argument("uint32x3", divisor(n)) for n in (width, rows, o)), Argument("int32x3", p.pads_before),
              Argument("uint32x3", divisor(p.filter[1])), Argument("int32", lines_of(p) - 1), Argument("int32x3", p.dilations))
    return parts, window


class SlabWorkTile(NamedTuple):
    """A `WorkTile` (one matrix each of x and dy), with its first filter, channel and line, and the kernel's `window`."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z: i32
    k_slice: i32
    filter: i32
    channel: i32
    line: i32
    window: tuple


@functools.cache
def make_slab_locate(tile):
    """Device function ``locate(t, rank, (place, parts, window))``: the `SlabWorkTile` number t."""
    locate_tile = make_locate(tile)

    @device_function
    def locate(t, rank, place):
        of_tile, parts, window = place
        work = locate_tile(t, rank, of_tile)
        chunks, of_line, filters, channels = parts
        group, chunk = divide_remainder(work.z, chunks)
        line, _ = divide_remainder(work.row, of_line)
        return SlabWorkTile(work.k_begin, work.k_end, work.row, work.column, work.z, work.k_slice, group * filters + work.column,
                            group * channels + chunk * CHANNELS, line, window)
    return locate


@functools.cache
def make_slab_loader(tile, dtype, dims):
    """`Loader` of a stage's slabs of x and pixels of dy, through im2col maps in `dims` dimensions, for `make_slab_locate`'s places."""
    LINES, SLAB, BOXES = tile.lines, tile.slab, tile.bn // 64
    gather = make_tma_load(dims + 2, im2col=True)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        channel = tile.channel
        of_w, of_h, of_d, pads, per_plane, last, dilations = tile.window
        rest, w = divide_remainder(k * PIXELS, of_w)
        x_w = w - pads[2]
        if dims > 1:
            rest, h = divide_remainder(rest, of_h)
            x_h = h - pads[1]
        if dims > 2:
            rest, d = divide_remainder(rest, of_d)
            x_d = d - pads[0]
        for i in range(LINES):
            line = min(tile.line + i, last)  # behind the last one nobody stores what comes of it
            plane, down = divide_remainder(line, per_plane)
            to, off_h, off_d = to_a + u32(i * SLAB), u32(down * dilations[1]), u32(plane * dilations[0])
            if dims == 1:
                gather(to, a_map, bar, channel, x_w, rest, u32(0))
            elif dims == 2:
                gather(to, a_map, bar, channel, x_w, x_h, rest, u32(0), off_h)
            else:
                gather(to, a_map, bar, channel, x_w, x_h, x_d, rest, u32(0), off_h, off_d)
        for box in range(BOXES):
            to, c = to_b + u32(box * GROUP), tile.filter + box * 64
            if dims == 1:
                gather(to, b_map, bar, c, w, rest, u32(0))
            elif dims == 2:
                gather(to, b_map, bar, c, w, h, rest, u32(0), u32(0))
            else:
                gather(to, b_map, bar, c, w, h, d, rest, u32(0), u32(0), u32(0))
    return Loader(load, "mn", "mn", dtype, dtype, (tile.lines * tile.pixels + tile.bn) * ROW)
