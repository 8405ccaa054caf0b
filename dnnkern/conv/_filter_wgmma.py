"""Operands of backward filter for the Hopper main loop: stages of 64 pixels of dy and of x, both in their own layouts.

dw[k, tap, c] is a matrix product over pixels. Its left operand is dy transposed, rows are filters; its right operand is the im2col matrix
of x, columns are taps and channels. Neither is stored anywhere. A stage has boxes of dy, 64 pixels by 64 filters of the matrix (pixels, K),
and for each tap and `width` channels a box of x, 64 pixels by `width` channels: TMA in im2col mode loads the pixels that the tap reads from
64 output positions, with zeros in the padding and past the last image.

The channels of a tap are padded to whole boxes, so that no box has two taps. Groups are matrices of a batch.
"""
import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..device import device_function, i32, u32
from ..device.index import Divisor, ceil_div, divide_remainder, divisor
from ..device.tma import make_tma_load
from ..engine.hopper import GROUP, ROW, Loader
from ..engine.hopper_plan import Operand, make_locate
from ..host.launch import Argument
from ..host.tensormap import Im2colMap

PIXELS = 64                   # per stage
WIDTHS = (64, 32, 16, 8)      # channels of a box
OFFSETS = {1: 1 << 16, 2: 1 << 8, 3: 1 << 5}  # by number of spatial dimensions: the limit of an offset


@dataclass(frozen=True)
class Shape:
    """The product as `engine.hopper_plan` counts its tiles: `batch_size` groups of m filters by n columns, k is pixels."""
    m: int
    n: int
    k: int
    batch_size: int


def types_refusal(problem):
    """Why TMA and the tensor cores cannot read x and dy transposed, or None."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"dtype {p.dtype}: the tensor cores transpose 16-bit operands only"
    if p.pixels == 0:
        return "no pixels to sum over"
    if p.groups > 1 and (p.c_group % 8 or p.k_group % 8):
        return f"{p.c_group} channels and {p.k_group} filters per group; TMA needs multiples of 8, which is 16 bytes"
    for name, label, extent, stride in (("x", "x", p.c, p.x_strides[1]), ("y", "dy", p.k, p.y_strides[1])):
        if extent > 1 and stride != 1:
            return f"{label} has stride {stride} between channels; they have to be contiguous"
        if getattr(p, name).alignment % 16:
            return f"{label} is aligned to {getattr(p, name).alignment} bytes, TMA needs 16"
    return None


def named(arguments):
    """Arguments of a matrix product under this operation's names: y is dw, which also stands for missing addends."""
    names = dict.fromkeys(("y", "c", "bias", "scale_a", "scale_b"), "w")
    return tuple(replace(a, value=names.get(a.value, a.value)) if a.is_dynamic else a for a in arguments)


def padded(channels, width):
    """Columns of a tap in boxes of `width` channels."""
    return ceil_div(channels, width) * width


def shape_of(problem, width):
    """`Shape` of the product with boxes of `width` channels."""
    return Shape(problem.k_group, problem.taps * padded(problem.c_group, width), problem.pixels, problem.groups)


def spatial_dims(problem):
    """Spatial dimensions that a tensor map needs: leading ones of extent 1 are left out."""
    trivial = [n == 1 and r == 1 and o == 1 and pads == (0, 0)
               for n, r, o, pads in zip(problem.image, problem.filter, problem.out, problem.pads)]
    return 3 if not trivial[0] else 2 if not trivial[1] else 1


def pixel_stride(problem):
    """Elements between neighbouring pixels of dy where all are evenly spaced; else None."""
    outer, _, *inner = problem.y_strides
    dims = [(n, s) for n, s in zip((problem.n, *problem.out), (outer, *inner)) if n > 1]
    if any(s != n * inner for (_, s), (n, inner) in zip(dims, dims[1:])):
        return None
    return dims[-1][1] if dims else 8


def gradient(problem):
    """dy as the left operand."""
    return Operand("y", problem.y, problem.k, problem.pixels, (0, 1, pixel_stride(problem)), 1, "mn", False)


def image_map(problem, width):
    """The tensor map of x; ValueError where there is none."""
    p, dims = problem, spatial_dims(problem)
    kept = slice(3 - dims, 3)
    upper = tuple(after - (r - 1) * d for (_, after), r, d in zip(p.pads, p.filter, p.dilations))
    for r, d in zip(p.filter[kept], p.dilations[kept]):
        if (r - 1) * d >= OFFSETS[dims]:
            raise ValueError(f"a filter of {r} taps with dilation {d} spans {(r - 1) * d} pixels; in {dims} dimensions the limit of TMA is "
                             f"{OFFSETS[dims] - 1}")
    outer, _, *inner = p.x_strides
    shape, line = (p.n, *p.image[kept], p.c), 16 // p.x.itemsize
    strides = tuple(s if n > 1 else line for n, s in zip(shape, (outer, *inner[kept])))  # a dimension of one may have any stride
    if min(strides) <= 0:
        raise ValueError(f"x has strides {p.x.strides}; TMA takes positive ones")
    return Im2colMap(p.x.dtype, shape, (*strides, 1), tuple(-n for n in p.pads_before[kept]), upper[kept], width, PIXELS,
                     2 * width if width > 8 else 0, (1, *p.strides[kept], 1))


class TapOffsets(NamedTuple):
    """Pixels from the first tap to a tap: of the first, from each to the next, and past the last; along d, h, w."""
    first_d: i32
    step_d: i32
    end_d: i32
    first_h: i32
    step_h: i32
    end_h: i32
    first_w: i32
    step_w: i32
    end_w: i32


class FilterWindow(NamedTuple):
    """Offsets of the taps, padded channels of a tap, extents of dy, strides and leading padding along d, h, w."""
    taps: TapOffsets
    channels: i32
    out_w: Divisor
    out_h: Divisor
    out_d: Divisor
    strides: "int32x3"  # noqa: F821
    padding: "int32x3"  # noqa: F821


class FilterColumns(NamedTuple):
    """How columns divide: boxes per tap, taps of a row and rows of a plane of the filter; filters and channels of a group."""
    boxes: Divisor
    row: Divisor
    plane: Divisor
    filters: i32
    channels: i32


def place_arguments(problem, width):
    """The kernel parameters of classes `FilterColumns` and `FilterWindow`."""
    p = problem
    _, r, s = p.filter
    reach = tuple((taps - 1) * d for taps, d in zip(p.filter, p.dilations))
    first, step = (reach, tuple(-d for d in p.dilations)) if p.flip else ((0, 0, 0), p.dilations)
    end = tuple(a + n * d for a, n, d in zip(first, p.filter, step))
    taps = TapOffsets(*(value for each in zip(first, step, end) for value in each))
    columns = FilterColumns(divisor(padded(p.c_group, width) // width), divisor(s), divisor(r), p.k_group, p.c_group)
    window = FilterWindow(taps, padded(p.c_group, width), *map(divisor, reversed(p.out)), p.strides, p.pads_before)
    return Argument(FilterColumns, columns), Argument(FilterWindow, window)


class FilterTile(NamedTuple):
    """A `WorkTile` of dw (one matrix each of dy and x), and what it reads.

    Its first filter; the group's first channel, and the tile's first in the group; offsets of its first tap; the `FilterWindow`.
    """
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z: i32
    k_slice: i32
    filter: i32
    group_channel: i32
    channel: i32
    offset_d: i32
    offset_h: i32
    offset_w: i32
    window: FilterWindow


@functools.cache
def make_filter_locate(tile, width, locate_work=None):
    """Device function ``locate(t, rank, (place, columns, window))``: the `FilterTile` number t; of `locate_work`, or `make_locate`'s."""
    locate_tile, SHIFT = locate_work or make_locate(tile), width.bit_length() - 1

    @device_function
    def locate(t, rank, place):
        tiles, columns, window = place
        work = locate_tile(t, rank, tiles)
        taps = window.taps
        tap, box = divide_remainder(work.column >> SHIFT, columns.boxes)
        line, s = divide_remainder(tap, columns.row)
        t, r = divide_remainder(line, columns.plane)
        return FilterTile(work.k_begin, work.k_end, work.row, work.column, work.z, work.k_slice, work.row + work.z * columns.filters,
                          work.z * columns.channels, box << SHIFT, taps.first_d + t * taps.step_d, taps.first_h + r * taps.step_h,
                          taps.first_w + s * taps.step_w, window)
    return locate


@functools.cache
def make_corner(dims):
    """Device function ``corner(at, window)`` -> (image, d, h, w): what a tap at (0, 0, 0) reads for pixel number `at` of dy, in `dims`
    spatial dimensions."""
    @device_function
    def corner(at, window):
        d, h = 0, 0
        n, w = divide_remainder(at, window.out_w)
        w = w * window.strides[2] - window.padding[2]
        if dims > 1:
            n, h = divide_remainder(n, window.out_h)
            h = h * window.strides[1] - window.padding[1]
        if dims > 2:
            n, d = divide_remainder(n, window.out_d)
            d = d * window.strides[0] - window.padding[0]
        return n, d, h, w
    return corner


@functools.cache
def make_next_box(width):
    """Device function ``after(c, offset_d, offset_h, offset_w, window)``: the same of the next box; past the last tap the first again, for
    columns that are not stored."""
    @device_function
    def after(c, offset_d, offset_h, offset_w, window):
        taps = window.taps
        c = c + width
        if c == window.channels:
            c, offset_w = 0, offset_w + taps.step_w
            if offset_w == taps.end_w:
                offset_w, offset_h = taps.first_w, offset_h + taps.step_h
                if offset_h == taps.end_h:
                    offset_h, offset_d = taps.first_h, offset_d + taps.step_d
                    if offset_d == taps.end_d:
                        offset_d = taps.first_d
        return c, offset_d, offset_h, offset_w
    return after


@functools.cache
def make_filter_loader(tile, dtype, width, dims):
    """`Loader` of 64 pixels per stage from a map of dy and an im2col map of x in `dims` dimensions, for a `FilterTile`."""
    A_BOXES, B_BOXES, BOX = tile.bm // 64, tile.bn // width, width * ROW
    copy, gather = make_tma_load(3), make_tma_load(dims + 2, im2col=True)
    corner, after = make_corner(dims), make_next_box(width)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        first, c, offset_d, offset_h, offset_w = tile.group_channel, tile.channel, tile.offset_d, tile.offset_h, tile.offset_w
        window = tile.window
        at = k * PIXELS
        for box in range(A_BOXES):
            copy(to_a + u32(box * GROUP), a_map, bar, tile.filter + box * 64, at, 0)
        n, d, h, w = corner(at, window)
        for box in range(B_BOXES):
            to = to_b + u32(box * BOX)
            if dims == 1:
                gather(to, b_map, bar, first + c, w, n, offset_w)
            elif dims == 2:
                gather(to, b_map, bar, first + c, w, h, n, offset_w, offset_h)
            else:
                gather(to, b_map, bar, first + c, w, h, d, n, offset_w, offset_h, offset_d)
            c, offset_d, offset_h, offset_w = after(c, offset_d, offset_h, offset_w, window)
    return Loader(load, "mn", "mn", dtype, dtype, (tile.bm + tile.bn) * ROW, b_width=width)
