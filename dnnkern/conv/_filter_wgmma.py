"""How a filter's gradient reaches the Hopper main loop: stages of 64 pixels of dy and of x, both as they lie.

dw[k, tap, c] is a product over pixels: its left operand is dy transposed, rows of filters, its right one the patches of x, columns of taps
and in each of them of channels. Neither is written down anywhere. A stage's part of dy is boxes of 64 pixels by 64 filters of a matrix
(pixels, K); its part of x is a box of 64 pixels by `width` channels for each tap and `width` of its channels, which TMA gathers in its
im2col mode: the pixels are those that the tap sees from 64 window positions, zero in the padding and behind the last image.

The channels of a tap are padded to whole boxes, so that no box has two taps. Groups are matrices of a batch.
"""
import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..device import device_function, i32, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.tma import make_tma_load
from ..engine.hopper import GROUP, ROW, Loader
from ..engine.hopper_plan import Operand, make_locate
from ..host.launch import Argument
from ..host.tensormap import Im2colMap

PIXELS = 64                   # of a stage
WIDTHS = (64, 32, 16, 8)      # channels of a box

OFFSETS = {1: 1 << 16, 2: 1 << 8, 3: 1 << 5}  # what an offset in each of so many spatial dimensions is below


@dataclass(frozen=True)
class Shape:
    """The product, as `_wgmma` counts tiles of it: `batch_size` groups of m filters by n columns, summed over k pixels."""
    m: int
    n: int
    k: int
    batch_size: int


def types_refusal(problem):
    """Why TMA and the tensor cores cannot read x and dy across their contiguous direction, or None."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"dtype {p.dtype}: the tensor cores read 16-bit operands alone across the contiguous direction"
    if p.pixels == 0:
        return "there are no pixels to sum over"
    if p.groups > 1 and (p.c_group % 8 or p.k_group % 8):
        return f"{p.c_group} channels and {p.k_group} filters a group; TMA begins at multiples of 16 bytes, of 8"
    for name, label, extent, stride in (("x", "x", p.c, p.x_strides[1]), ("y", "dy", p.k, p.y_strides[1])):
        if extent > 1 and stride != 1:
            return f"{label} has stride {stride} between channels; they have to be contiguous"
        if getattr(p, name).alignment % 16:
            return f"{label} is aligned to {getattr(p, name).alignment} bytes, TMA needs 16"
    return None


def named(arguments):
    """Arguments of a matrix product by the names that this operation has for them: y is dw, and stands for addends that are missing."""
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
    """Elements between neighbouring pixels of dy, where one stride leads through all of them; else None."""
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
            raise ValueError(f"a filter of {r} taps with dilation {d} reaches {(r - 1) * d} pixels far; in {dims} dimensions TMA reaches "
                             f"{OFFSETS[dims] - 1}")
    outer, _, *inner = p.x_strides
    shape, line = (p.n, *p.image[kept], p.c), 16 // p.x.itemsize
    strides = tuple(s if n > 1 else line for n, s in zip(shape, (outer, *inner[kept])))  # any stride does for a dimension of one
    if min(strides) <= 0:
        raise ValueError(f"x has strides {p.x.strides}; TMA takes positive ones")
    return Im2colMap(p.x.dtype, shape, (*strides, 1), tuple(-n for n in p.pads_before[kept]), upper[kept], width, PIXELS,
                     2 * width if width > 8 else 0, (1, *p.strides[kept], 1))


def place_arguments(problem, width):
    """The kernel parameters `columns` of `make_filter_locate`, and `window` of `make_filter_loader`."""
    p = problem
    _, r, s = p.filter
    reach = tuple((taps - 1) * d for taps, d in zip(p.filter, p.dilations))
    first, step = (reach, tuple(-d for d in p.dilations)) if p.flip else ((0, 0, 0), p.dilations)
    end = tuple(a + n * d for a, n, d in zip(first, p.filter, step))
    taps = tuple(value for each in zip(first, step, end) for value in each)
    columns = (Argument("uint32x3", divisor(padded(p.c_group, width) // width)), Argument("uint32x3", divisor(s)),
               Argument("uint32x3", divisor(r)), Argument("int32", p.k_group), Argument("int32", p.c_group))
    positions = tuple(Argument("uint32x3", divisor(n)) for n in reversed(p.out))
    window = (Argument("int32x9", taps), Argument("int32", padded(p.c_group, width)), *positions, Argument("int32x3", p.strides),
              Argument("int32x3", p.pads_before))
    return columns, window


class FilterTile(NamedTuple):
    """A `WorkTile` of dw (one matrix each of dy and x), and where it reads.

    Its first filter; the group's first channel, and the tile's first in the group; offsets of its first tap; the kernel's `window`.
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
    window: tuple


@functools.cache
def make_filter_locate(tile, width):
    """Device function ``locate(t, rank, (place, columns, window))``: the `FilterTile` number t."""
    locate_tile, SHIFT = make_locate(tile), width.bit_length() - 1

    @device_function
    def locate(t, rank, place):
        of_tile, columns, window = place
        work = locate_tile(t, rank, of_tile)
        per_tap, per_row, per_plane, filters, channels = columns
        taps = window[0]
        tap, box = divide_remainder(work.column >> SHIFT, per_tap)
        line, across = divide_remainder(tap, per_row)
        plane, down = divide_remainder(line, per_plane)
        return FilterTile(work.k_begin, work.k_end, work.row, work.column, work.z, work.k_slice, work.row + work.z * filters,
                          work.z * channels, box << SHIFT, taps[0] + plane * taps[1], taps[3] + down * taps[4],
                          taps[6] + across * taps[7], window)
    return locate


@functools.cache
def make_filter_loader(tile, dtype, width, dims):
    """`Loader` of 64 pixels a stage from a map of dy and an im2col map of x in `dims` dimensions, for `make_filter_locate`'s places."""
    A_BOXES, B_BOXES, BOX = tile.bm // 64, tile.bn // width, width * ROW
    copy, gather = make_tma_load(3), make_tma_load(dims + 2, im2col=True)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        first, c, off_d, off_h, off_w = tile.group_channel, tile.channel, tile.offset_d, tile.offset_h, tile.offset_w
        taps, channels, of_w, of_h, of_d, strides, pads = tile.window
        at = k * PIXELS
        for box in range(A_BOXES):
            copy(to_a + u32(box * GROUP), a_map, bar, tile.filter + box * 64, at, 0)
        rest, w = divide_remainder(at, of_w)
        w = w * strides[2] - pads[2]
        if dims > 1:
            rest, h = divide_remainder(rest, of_h)
            h = h * strides[1] - pads[1]
        if dims > 2:
            rest, d = divide_remainder(rest, of_d)
            d = i32(d * strides[0] - pads[0])
        for box in range(B_BOXES):
            to = to_b + u32(box * BOX)
            if dims == 1:
                gather(to, b_map, bar, first + c, w, rest, u32(off_w))
            elif dims == 2:
                gather(to, b_map, bar, first + c, w, h, rest, u32(off_w), u32(off_h))
            else:
                gather(to, b_map, bar, i32(first + c), w, h, d, rest, u32(off_w), u32(off_h), u32(off_d))
            c = c + width  # the next box's channels; behind the last tap the first again, for columns that nobody stores
            if c == channels:
                c, off_w = i32(0), off_w + taps[7]
                if off_w == taps[8]:
                    off_w, off_h = taps[6], off_h + taps[4]
                    if off_h == taps[5]:
                        off_h, off_d = taps[3], off_d + taps[1]
                        if off_d == taps[2]:
                            off_d = taps[0]
    return Loader(load, "mn", "mn", dtype, dtype, (tile.bm + tile.bn) * ROW, b_width=width)
