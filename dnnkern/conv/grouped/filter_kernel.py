"""The kernel of backward filter of grouped convolutions: sums over tiles of x and dy in shared memory.

A block has `channels` neighbouring channels of both. In shared memory a pixel has its channels side by side, as in global memory; ldmatrix
transposes 8 pixels of 8 channels into a word of a fragment. It takes any 8 rows, so every tap reads the same tile of x, from another pixel
on. A product of mma.sync has

    rows        of x: 8 channels at two taps of a row of the filter; in groups of 16 and 32, 16 channels at one tap
    columns     8 channels of dy
    k           16 neighbouring pixels of a row, or 8 of two rows

A warp has one diagonal block, 8 x 8 channels, or 16 x 16 (four of them make a group of 32). It keeps the `rows` rows of dy of its columns
of pixels in registers and walks down the rows of x, each of which multiplies every row of dy at the tap that `_taps.Axis` gives. Where
tiles are narrow it processes the upper and the lower half of a tile at once: eight pixels of a product are from either (`halves`).
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32, u64
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.index import ceil_div, divide_remainder
from ...device.ldmatrix import ldmatrix_x2_trans, ldmatrix_x4_trans
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import address, shared_address
from .._taps import Axis

UNIT = 16  # pixels of an mma.sync


@dataclass(frozen=True)
class Body:
    """What the kernel is compiled for.

    `rows` is the window along h of one of the 1 or 2 `halves` of a tile; `columns` of dy and `taps` of the filter are those of a tile along
    w; `apart`: columns of x from pixel to pixel and from tap to tap. `warps` divide the columns, other warps the channels; `stages` tiles
    are in shared memory at a time; with `channel_inner` neighbouring columns of the partial sums are channels, otherwise taps.
    """
    dtype: str
    group: int
    channels: int
    rows: Axis
    halves: int
    columns: int
    taps: int
    apart: tuple
    warps: int
    stages: int
    blocks: int
    channel_inner: bool

    @property
    def side(self):
        """Slices of 8 channels per warp, of x and of dy."""
        return 1 if self.group <= 8 else 2

    @property
    def units(self):
        """Diagonal blocks of a block's channels, one per warp."""
        return self.channels // (16 if self.group == 16 else 8)

    @property
    def threads(self):
        return 32 * self.units * self.warps

    @property
    def pairs(self):
        """Left operands of a row of the filter: two slices of 8 channels and taps each."""
        return ceil_div(self.taps * self.side, 2)

    @property
    def sums(self):
        """Accumulators of a thread."""
        return 4 * self.rows.taps * self.pairs * self.side

    @property
    def across(self):
        """Columns of pixels of a product."""
        return UNIT // self.halves

    @property
    def down(self):
        """Rows of dy of a tile."""
        return self.rows.tile * self.halves

    @property
    def further(self):
        """Rows of x from the upper half of a tile to the lower."""
        return self.rows.tile * self.rows.stride

    @property
    def products(self):
        """Of `across` columns of pixels, by one warp."""
        return self.rows.tile * self.rows.taps * self.pairs * self.side

    @property
    def pitch(self):
        """Bytes of a pixel in shared memory: eight neighbours begin in different banks."""
        return 2 * self.channels + 16

    @property
    def x_columns(self):
        return (self.columns - 1) * self.apart[0] + (self.taps - 1) * self.apart[1] + 1

    @property
    def x_rows(self):
        return self.rows.groups + (self.halves - 1) * self.further

    @property
    def y_columns(self):
        """Whole products of pixels."""
        return ceil_div(self.columns, self.across) * self.across

    @property
    def x_bytes(self):
        return self.x_rows * self.x_columns * self.pitch

    @property
    def bytes(self):
        """Of a tile in shared memory."""
        return self.x_bytes + self.down * self.y_columns * self.pitch

    def lanes(self, rows, columns):
        """Threads along the columns of so many pixels: the power of two with the fewest pixels per thread."""
        lanes = self.threads * 8 // self.channels
        choices = [1 << e for e in range(lanes.bit_length())]
        return min(choices, key=lambda w: (ceil_div(columns, w) * (ceil_div(rows, lanes // w) + 2), -w))


@functools.cache
def make_load_pixels(body, rows, columns):
    """Device function ``load_pixels(to, source, base, first, steps, extents, strides, part, pixel, exists)``: rows x columns pixels to
    shared memory.

    `first` is the image's row and column of the first pixel, `steps` those from one pixel to the next; pixels outside are zeros. `source`
    is the address of the array, `base` the offset of the image and of the thread's channels, 16-byte vector `part` of the block's; a thread
    copies every THREADS / PARTS-th pixel, from number `pixel` on.
    """
    PITCH, ACROSS = body.pitch, body.lanes(rows, columns)
    DOWN, SHIFT = body.threads * 8 // body.channels // ACROSS, ACROSS.bit_length() - 1
    TURNS, EACH = ceil_div(columns, ACROSS), ceil_div(rows, DOWN)
    WHOLE_ROWS, WHOLE_COLUMNS = rows // DOWN, columns // ACROSS

    @device_function
    def copy(k, s):
        to, at, h, row, step, height, stride, ok = s
        if k < WHOLE_ROWS or row + DOWN * k < rows:
            inside = ok and u32(h + k * step) < u32(height)
            copy_async16(to + u32(k * (DOWN * columns * PITCH)), at + u64(k * i64(stride)), 0, 16 if inside else 0)
    copy_all = unrolled(EACH, copy)

    @device_function
    def copy_column(c, s):
        to, source, base, (first_h, first_w), (step_h, step_w), (height, width), (stride_h, stride_w), row, column, exists = s
        if c < WHOLE_COLUMNS or column + ACROSS * c < columns:
            h, w = first_h + row * step_h, first_w + (column + ACROSS * c) * step_w
            at = source + u64((base + h * i64(stride_h) + w * i64(stride_w)) * 2)
            copy_all(0, (to + u32(c * (ACROSS * PITCH)), at, h, row, DOWN * step_h, height, 2 * DOWN * step_h * stride_h,
                         exists and u32(w) < u32(width)))
    copy_columns = unrolled(TURNS, copy_column)

    @device_function
    def load_pixels(to, source, base, first, steps, extents, strides, part, pixel, exists):
        row, column = pixel >> SHIFT, pixel & (ACROSS - 1)
        copy_columns(0, (to + u32((row * columns + column) * PITCH + 16 * part), source, base, first, steps, extents, strides, row, column,
                         exists))
    return load_pixels


@functools.cache
def make_multiply(body):
    """Device function ``multiply(acc, at_x, at_last, at_y)``: add the products of `across` columns of pixels.

    The arguments are the lane's ldmatrix addresses in the first rows: of x at the first pair of taps, and at a last single tap; of dy.
    """
    rows, PAIRS, SIDE, SINGLE = body.rows, body.pairs, body.side, body.taps * body.side % 2
    TH, NH, USED, R = rows.tile, rows.groups, rows.used, rows.taps
    A, B, _, _ = rows.relation
    WORDS, PAIR = 2 * SIDE * TH, 2 // SIDE * body.apart[1] * body.pitch
    LINE_X, LINE_Y = body.x_columns * body.pitch, body.y_columns * body.pitch
    mma = make_mma(body.dtype)

    @device_function
    def load_row(j, s):
        right, at = s
        if SIDE == 2:
            ldmatrix_x4_trans(right, 4 * j, at + u32(j * LINE_Y))
        else:
            ldmatrix_x2_trans(right, 2 * j, at + u32(j * LINE_Y))
    load_rows = unrolled(TH, load_row)

    @device_function
    def multiply_row(j, s):
        acc, left, right, k, i = s
        ahead = i - A * j
        if ahead >= 0 and ahead % B == 0 and ahead // B < R:
            r = ahead // B
            for b in range(SIDE):
                mma(acc, ((r * PAIRS + k) * SIDE + b) * 4, left, 0, right, (j * SIDE + b) * 2)
    multiply_rows = unrolled(TH, multiply_row)

    @device_function
    def pair(k, s):
        acc, right, at_x, at_last, i = s
        left = cuda.local.array(4, u32)
        if SINGLE and k == PAIRS - 1:
            ldmatrix_x4_trans(left, 0, at_last + u32(i * LINE_X + k * PAIR))
        else:
            ldmatrix_x4_trans(left, 0, at_x + u32(i * LINE_X + k * PAIR))
        multiply_rows(0, (acc, left, right, k, i))
    pairs = unrolled(PAIRS, pair)

    @device_function
    def step(i, s):
        acc, right, at_x, at_last = s
        if (USED >> i) & 1:
            pairs(0, (acc, right, at_x, at_last, i))
    steps = unrolled(NH, step)

    @device_function
    def multiply(acc, at_x, at_last, at_y):
        right = cuda.local.array(WORDS, u32)
        load_rows(0, (right, at_y))
        steps(0, (acc, right, at_x, at_last))
    return multiply


@functools.cache
def make_store_sums(body):
    """Device function ``store_sums(0, state)``: a warp's accumulators to `sums`. `state`: acc, sums, offset and pitch of its rows, the
    first tap (t, r, s), the filter's extents, first channel of x and of dy, number of channels, the lane's g and t."""
    PAIRS, SIDE, GROUP, TAPS, inner = body.pairs, body.side, body.group, body.taps, body.channel_inner

    @device_function
    def store_four(n, s):
        acc, sums, at, pitch, (first_t, first_r, first_s), (T, R, S), channel, filters, channels, g, t = s
        b, rest = n % SIDE, n // SIDE
        r, k = rest // PAIRS, rest % PAIRS
        for e in range(4):
            half = e >> 1
            column = k if SIDE == 2 else 2 * k + half
            c = channel + g + (8 * half if SIDE == 2 else 0)
            f = filters + 8 * b + 2 * t + (e & 1)
            row, last = first_r + r, first_s + column
            exists = column < TAPS and row < R and last < S and c < channels and f < channels
            if exists and (c ^ f) < GROUP:  # in the same group, of a power of two
                tap = (first_t * R + row) * S + last
                within = c & (GROUP - 1)
                if inner:
                    position = tap * GROUP + within
                else:
                    position = within * (T * R * S) + tap
                sums[at + i64(f) * pitch + position] = acc[n * 4 + e]
    return unrolled(body.sums // 4, store_four)


class Window(NamedTuple):
    """Stride, leading padding and dilation along d, h, w."""
    stride: "int32x3"  # noqa: F821
    padding: "int32x3"  # noqa: F821
    dilation: "int32x3"  # noqa: F821


@functools.cache
def filter_kernel(body):
    """Partial sums over a slice of the tiles: block ``((slice of tiles * planes + plane) * parts of rows + ...) * slices + slice``."""
    GROUP, CHANNELS, SIDE, PITCH, STAGES, WARPS = body.group, body.channels, body.side, body.pitch, body.stages, body.warps
    UNITS, THREADS, TAPS, R, WIDTH, HEIGHT, NACC = body.units, body.threads, body.taps, body.rows.taps, body.columns, body.down, body.sums
    PARTS, SHIFT, LOG = CHANNELS // 8, (CHANNELS // 8).bit_length() - 1, UNITS.bit_length() - 1
    X_BYTES, BYTES = body.x_bytes, body.bytes
    NEXT_PIXEL, NEXT_TAP = body.apart[0] * PITCH, 16 if SIDE == 2 else body.apart[1] * PITCH
    # from the first eight pixels of a product to the others, of x in columns of pixels or bytes, of dy in bytes
    ACROSS, NEXT_COLUMNS, NEXT_X, NEXT_Y = body.across, 8, 0, 8 * PITCH
    if body.halves == 2:
        NEXT_COLUMNS, NEXT_X, NEXT_Y = 0, body.further * body.x_columns * PITCH, body.rows.tile * body.y_columns * PITCH
    load_x, load_y = make_load_pixels(body, body.x_rows, body.x_columns), make_load_pixels(body, HEIGHT, body.y_columns)
    multiply, store_sums, arrived = make_multiply(body), make_store_sums(body), wait_copies(STAGES - 2)

    @device_function
    def locate(tile, tiles_w, tiles_h, depth):
        """(image, plane, first row, first column) of dy in a tile."""
        rest, q = divide_remainder(tile, tiles_w)
        rest, p = divide_remainder(rest, tiles_h)
        n, o = divide_remainder(rest, depth)
        return n, o, p * HEIGHT, q * WIDTH

    @device_function
    def load(to, tile, state):
        x, dy, image, out, window, steps, x_stride, y_stride, tiles_w, tiles_h, depth, t, r, s, channel, exists, part, pixel = state
        n, o, p, q = locate(tile, tiles_w, tiles_h, depth)
        stride, padding, dilation = window
        d = o * stride[0] - padding[0] + t * dilation[0]
        h, w = p * stride[1] - padding[1] + r * dilation[1], q * stride[2] - padding[2] + s * dilation[2]
        base = n * x_stride.n + d * x_stride.d + channel
        load_x(to, x, base, (h, w), steps, (image.h, image.w), (i32(x_stride.h), i32(x_stride.w)), part, pixel,
               exists and 0 <= d and d < image.d)
        base = n * y_stride.n + o * y_stride.d + channel
        load_y(to + X_BYTES, dy, base, (p, q), (1, 1), (out.h, min(q + WIDTH, out.w)), (i32(y_stride.h), i32(y_stride.w)), part, pixel,
               exists)

    @jit(launch_bounds=(THREADS, body.blocks))
    def conv_bwd_filter_grouped_mma(x, dy, sums, tiles, ranges, slices, parts_w, parts_h, planes, tiles_w, tiles_h, depth, channels,
                                    filter_size, image, out, window, steps, x_stride, y_stride, sums_pitch):
        ring = cuda.shared.array(0, u32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        unit, along = warp & (UNITS - 1), warp >> LOG
        rest, piece = divide_remainder(cuda.blockIdx.x, slices)
        rest, part_w = divide_remainder(rest, parts_w)
        rest, part_h = divide_remainder(rest, parts_h)
        share, t = divide_remainder(rest, planes)
        r, s = part_h * R, part_w * TAPS
        first = piece * CHANNELS
        # channels of x and of dy that this warp multiplies, within the block's
        from_x, from_y = unit * 8 * SIDE, unit * 8 * SIDE
        if GROUP == 32:
            from_x, from_y = (unit >> 2) * 32 + (unit & 1) * 16, (unit >> 2) * 32 + ((unit >> 1) & 1) * 16
        active = first + max(from_x, from_y) < channels
        # lane 8 m + i reads pixel i of matrix m: of x slices or taps alternate, of dy the halves of a product's pixels
        matrix, of_eight = lane >> 3, lane & 7
        pixel_x, lane_x = NEXT_COLUMNS * (matrix >> 1) + of_eight, u32(2 * from_x + NEXT_X * (matrix >> 1))
        other = u32((matrix & 1) * NEXT_TAP)
        lane_y = u32(X_BYTES + 2 * from_y + 16 * (matrix >> 1) + NEXT_Y * (matrix & 1) + of_eight * PITCH)
        acc = cuda.local.array(NACC, f32)
        for a in range(NACC):
            acc[a] = f32(0)
        part = tid & (PARTS - 1)
        channel = first + 8 * part
        state = (address(x, 0), address(dy, 0), image, out, window, steps, x_stride, y_stride, tiles_w, tiles_h, depth, t, r, s, channel,
                 channel < channels, part, tid >> SHIFT)

        # fill the ring of tiles
        ahead, filled = share, 0
        for _ in range(STAGES - 1):
            if ahead < tiles:
                load(smem + u32(filled * BYTES), ahead, state)
            commit_copies()
            ahead, filled = ahead + ranges, filled + 1

        # multiply a tile while the next ones are copied
        tile, buffer = share, 0
        while tile < tiles:
            arrived()
            cuda.syncthreads()
            if ahead < tiles:  # to the stage of the previous tile, which all warps have read
                load(smem + u32(filled * BYTES), ahead, state)
            commit_copies()
            if active:
                _, _, _, q = locate(tile, tiles_w, tiles_h, depth)
                count = min(WIDTH, out.w - q)
                stage = smem + u32(buffer * BYTES)
                for column in range(ACROSS * along, count, ACROSS * WARPS):
                    # past the end of the row dy is zero, and x is the row's last pixel
                    pixel = min(column + pixel_x, count - 1)
                    at = stage + lane_x + u32(pixel * NEXT_PIXEL)
                    multiply(acc, at + other, at, stage + lane_y + u32(column * PITCH))
            filled = buffer
            buffer = buffer + 1
            if buffer == STAGES:
                buffer = 0
            tile, ahead = tile + ranges, ahead + ranges
        if active:
            at = (share * WARPS + along) * i64(channels * sums_pitch)
            store_sums(0, (acc, sums, at, sums_pitch, (t, r, s), filter_size, first + from_x, first + from_y, channels, lane >> 2,
                           lane & 3))
    return conv_bwd_filter_grouped_mma
