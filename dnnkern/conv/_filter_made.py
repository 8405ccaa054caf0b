"""The image of a filter's gradient that a program makes, in its stage (see `engine.prologues`): boxes of pixels by channels, for wgmma.

A thread has 16 bytes, 8 channels, of a few pixels of each box. What TMA fills in outside the image is zero, and the program of zero need
not be: there the words that are made are cleared. Nothing branches: the tensor cores work on the stage before, and a branch would end that.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, i32, u32
from ..device.barrier import barrier_sync
from ..device.mbarrier import fence_async_shared
from ..device.unroll import unrolled
from ..device.vec import load_shared_4u32, store_shared_4u32
from ..engine.hopper import REMAKING, ROW
from ..engine.hopper_made import make_columns, make_word
from ._filter_wgmma import PIXELS, make_corner, make_next_box

PIECE = 8  # channels of 16 bytes


class Image(NamedTuple):
    """Images, extents along d, h, w, channels."""
    n: i32
    deep: i32
    high: i32
    wide: i32
    channels: i32


def pieces_of(width, tile):
    """Pieces of 16 bytes of a box that a thread makes; 0 where some threads would have one more. Host function."""
    pieces, threads = PIXELS * width // PIECE, 128 * tile.sharing
    return 0 if pieces % threads else pieces // threads


@functools.cache
def make_remake(tile, width, dims, made, pairs):
    """Device function ``remake(b, tile, k, group, thread, (image, operands))`` as `engine.hopper.make_product` has it, of a
    `FilterTile` and boxes of `width` channels in `dims` spatial dimensions. Host function."""
    EACH, ACROSS, BOX, B_BOXES = pieces_of(width, tile), width // PIECE, width * ROW, tile.bn // width
    THREADS, ALONE = 128 * tile.sharing, tile.ping_pong
    BETWEEN = PIXELS // EACH  # pixels of a thread
    LINE, LOG = 2 * width, (width // PIECE).bit_length() - 1  # bytes of a pixel
    corner, after = make_corner(dims), make_next_box(width)
    word, columns = make_word(made, pairs, False), make_columns(made.program, pairs)

    @device_function
    def locate(j, s):
        """Where pixel number j of the thread's is read from by a tap at (0, 0, 0); an image that is not there is far outside."""
        at, window, image, thread, corners = s
        n, d, h, w = corner(at + (thread >> LOG) + j * BETWEEN, window)
        corners[3 * j], corners[3 * j + 1], corners[3 * j + 2] = d, h, w if n < image.n else i32(-2 ** 30)

    @device_function
    def make(j, s):
        """Pixel number j of the thread's in a box."""
        box, c, offsets, image, thread, corners, given, e = s
        inside = u32(corners[3 * j + 2] + offsets[2]) < u32(image.wide)  # NOTE: a coordinate below 0 is a large one
        if dims > 1:
            inside = inside and u32(corners[3 * j + 1] + offsets[1]) < u32(image.high)
        if dims > 2:
            inside = inside and u32(corners[3 * j] + offsets[0]) < u32(image.deep)
        kept = u32(0xFFFFFFFF) if inside else u32(0)
        line = u32(((thread >> LOG) + j * BETWEEN) * LINE)
        swizzle = (line >> u32(7) & u32(ACROSS - 1)) << u32(4)
        to = box + (line + u32((thread & ACROSS - 1) * 16) ^ swizzle)
        x0, x2, x4, x6 = load_shared_4u32(to)
        first, second, third, fourth = given
        store_shared_4u32(to, word(x0, first, 0, c, 0, e) & kept, word(x2, second, 0, c + 2, 0, e) & kept,
                          word(x4, third, 0, c + 4, 0, e) & kept, word(x6, fourth, 0, c + 6, 0, e) & kept)
    locate_all, make_all = unrolled(EACH, locate), unrolled(EACH, make)

    @device_function
    def remake(b, tile, k, group, thread, operands):
        image, e = operands
        barrier = u32(group + 1 if ALONE else REMAKING)
        if not ALONE:
            thread = group * 128 + thread
        window = tile.window
        corners = cuda.local.array(3 * EACH, i32)
        locate_all(0, (k * PIXELS, window, image, thread, corners))
        c, offset_d, offset_h, offset_w = tile.channel, tile.offset_d, tile.offset_h, tile.offset_w
        for box in range(B_BOXES):  # as the loader walks
            channel = min(c + (thread & ACROSS - 1) * PIECE, image.channels - PIECE)  # padded channels are not stored
            given = columns(channel, e), columns(channel + 2, e), columns(channel + 4, e), columns(channel + 6, e)
            make_all(0, (b + u32(box * BOX), channel, (offset_d, offset_h, offset_w), image, thread, corners, given, e))
            c, offset_d, offset_h, offset_w = after(c, offset_d, offset_h, offset_w, window)
        fence_async_shared()
        barrier_sync(barrier, u32(THREADS))
    return remake
