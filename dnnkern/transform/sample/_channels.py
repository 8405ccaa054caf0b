"""Channels of a pixel that a thread handles together, and tiles of pixels of a block: what both gradients of sampled images share."""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, u32
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder
from ...engine.values import COMPUTE, make_unpack
from ...engine.vectors import make_unit_moves, unit_of


@dataclass(frozen=True)
class Share:
    """What threads have of a pixel: channels of each; lanes that have neighbouring ones; bytes of an access to all of a thread's, 0 where
    they are read one by one; whether every thread always has as many."""
    channels: int
    lanes: int
    unit: int
    whole: bool

    @property
    def lane_bits(self):
        return self.lanes.bit_length() - 1

    @property
    def step(self):
        """Channels that a pixel's lanes have together."""
        return self.lanes * self.channels


def _lanes(wanted):
    """The power of two above, 32 at most."""
    return 1 << min(5, max(0, wanted - 1).bit_length())


def share_of(tensors, channels, lanes=1):
    """The `Share` for images (N, C, ...): 16 bytes at most where channels are contiguous in all of them; else as many channels as given,
    lanes beside each other too where a channel's neighbour is the next one."""
    count, size = tensors[0].shape[1], tensors[0].itemsize
    across = count > 1 and all(t.strides[1] == 1 for t in tensors)
    unit = 0
    if across:
        strides = [s for t in tensors for k, s in enumerate(t.strides) if k != 1]
        unit = unit_of(min(t.alignment for t in tensors), count, *strides, itemsize=size)
        unit = unit if unit > size else 0
    if unit:
        channels, lanes = unit // size, _lanes(ceil_div(count * size, unit))
    elif across:
        channels, lanes = 1, _lanes(count)
    else:
        channels, lanes = min(channels, count), _lanes(min(lanes, ceil_div(count, channels)))
    return Share(channels, lanes, unit, count % (channels * lanes) == 0)


@functools.cache
def make_channels(dtype, compute, share, wide):
    """Device functions ``fetch(values, p, step, left)`` and ``put(p, values, step, left)`` of a thread's channels from p on, `step`
    elements apart, of which there are `left`; the others are 0."""
    K, WHOLE, T, Int = share.channels, share.whole, COMPUTE[compute], i64 if wide else i32
    load_one, store_one = element(dtype).load, element(dtype).store
    if not share.unit:
        @device_function
        def fetch(values, p, step, left):
            for k in range(K):
                values[k] = T(load_one(p, Int(Int(k) * step))) if WHOLE or k < left else T(0)

        @device_function
        def put(p, values, step, left):
            for k in range(K):
                if WHOLE or k < left:
                    store_one(p, Int(Int(k) * step), T(values[k]))
        return fetch, put
    load, store, _, _, WORDS = make_unit_moves(share.unit, element(dtype).storage.itemsize)
    unpack, pack = make_unpack(dtype, K)

    @device_function
    def fetch(values, p, step, left):
        words = cuda.local.array(WORDS, u32)
        load(words, 0, p, i32(1) if WHOLE else i32(left > 0))
        unpack(values, words)

    @device_function
    def put(p, values, step, left):
        words = cuda.local.array(WORDS, u32)
        if WHOLE or left > 0:
            pack(words, values)
            store(p, words, 0)
    return fetch, put


@dataclass(frozen=True)
class Tile:
    """Pixels of a block: `rows` of `columns`, a power of two."""
    rows: int
    columns: int

    @property
    def column_bits(self):
        return self.columns.bit_length() - 1

    def counts(self, extents):
        """Tiles along the rows, whatever the depth, and along the width of (D, H, W)."""
        return ceil_div(extents[0] * extents[1], self.rows), ceil_div(extents[2], self.columns)


def tile_of(pixels, extents):
    """The squarest tile of so many pixels, a power of two, which covers (D, H, W) with the fewest. Of a rotated image a warp's pixels touch
    fewer rows where they are two rows of 16 than where they are one of 32."""
    tiles = [Tile(pixels // n, n) for n in (16, 32, 64, 128, 256, 8, 4, 2, 1) if n <= pixels]
    return min(tiles, key=lambda tile: math.prod(tile.counts(extents)))


@functools.cache
def make_pixel(share, tile):
    """Device function ``pixel(block, tile_rows, tile_columns)`` of a block's number and the divisors of an image's tiles: (the rest of the
    number, the thread's row and column, the first of its channels)."""
    LANES, LANE_BITS, CHANNELS = share.lanes, share.lane_bits, share.channels
    ROWS, COLUMNS, COLUMN_BITS = tile.rows, tile.columns, tile.column_bits

    @device_function
    def pixel(block, tile_rows, tile_columns):
        rest, tile_column = divide_remainder(block, tile_columns)
        rest, tile_row = divide_remainder(rest, tile_rows)
        thread = cuda.threadIdx.x
        at = thread >> LANE_BITS
        row = tile_row * ROWS + (at >> COLUMN_BITS)
        column = tile_column * COLUMNS + (at & (COLUMNS - 1))
        return rest, row, column, (thread & (LANES - 1)) * CHANNELS
    return pixel
