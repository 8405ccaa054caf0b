"""The image of an implicit GEMM that a program makes in registers, see `engine.hopper_made`: which pixel and channel each element is.

What TMA fills in outside the image is zero, and the program of zero need not be: words of pixels in the padding are cleared, tap by tap.
"""
import functools

from ...device import device_function, u32
from ...device.index import divide_remainder
from ...engine.hopper_made import Rows


@functools.cache
def make_pixel_rows(loader, groups, dims):
    """The `Rows` of 64 * `groups` pixels in `dims` spatial dimensions, whose `operands` are (the program's, the walk, extents of the image
    along w, h, d); `loader` walks over taps and channels. Host function."""
    first_tap, next_tap, TWO_D, THREE_D = loader.first, loader.after, dims > 1, dims > 2

    @device_function
    def with_offsets(state, tile, operands):
        c, j0, j1, j2 = state
        offset, step = tile.offset, tile.offset_step
        return state, (offset[0] + j0 * step[0], offset[1] + j1 * step[1], offset[2] + j2 * step[2]), operands

    @device_function
    def first(tile, row, operands, kept):
        e, walk, extent = operands
        for n in range(2 * groups):
            image, i = divide_remainder(tile.row + row + n // 2 * 64 + n % 2 * 8, walk.count_w)
            kept[n * dims] = u32(walk.w.lower + i * walk.w.step)
            if TWO_D:
                image, i = divide_remainder(image, walk.count_h)
                kept[n * dims + 1] = u32(walk.h.lower + i * walk.h.step)
            if THREE_D:
                image, i = divide_remainder(image, walk.count_d)
                kept[n * dims + 2] = u32(walk.d.lower + i * walk.d.step)
        return with_offsets(first_tap(tile, tile.k_begin), tile, operands)

    @device_function
    def after(state, tile):
        tap, offset, operands = state
        return with_offsets(next_tap(tap, tile), tile, operands)

    @device_function
    def column(state):
        tap, offset, operands = state
        e, walk, extent = operands
        return tap[0], walk.group_channels, e

    @device_function
    def row(state, n):  # programs of pixels' own operands are not here
        return 0

    @device_function
    def mask(state, kept, n):
        tap, offset, operands = state
        e, walk, extent = operands
        inside = kept[n * dims] + u32(offset[0]) < u32(extent[0])  # NOTE: a coordinate below 0 is a large one
        if TWO_D:
            inside = inside and kept[n * dims + 1] + u32(offset[1]) < u32(extent[1])
        if THREE_D:
            inside = inside and kept[n * dims + 2] + u32(offset[2]) < u32(extent[2])
        return u32(0xFFFFFFFF) if inside else u32(0)
    return Rows(first, after, column, row, mask, 2 * groups * dims)
