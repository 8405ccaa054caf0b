"""The kernel of the filter's gradient of grouped convolutions: sums over tiles of pixels of x and dy that lie in shared memory.

A block has `channels` neighbouring channels of both. In shared memory a pixel has its channels side by side, as in memory; ldmatrix
transposes 8 pixels of 8 channels into a word of a fragment, and as it takes any 8 rows, every tap reads the same tile of x, from another
pixel on. What a product of mma.sync is made of:

    rows        of x: 8 channels at two taps of a row of the filter; in groups of 16 and 32, 16 channels at one
    columns     8 channels of dy
    summed over 16 neighbouring pixels of a row, or 8 of two rows

A warp has one diagonal block, 8 x 8 channels, or 16 x 16 (four of them make a group of 32). It holds the `rows` rows of dy of its columns
of pixels in registers and goes down the rows of x, each of which meets every row of dy at the tap that `_taps.Axis` says. Where tiles are
narrow it does so with the upper and the lower half of a tile at once: eight pixels of a product are from either (`halves`).
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32, u64
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.index import ceil_div, divide_remainder
from ...device.ldmatrix import ldmatrix_x2_trans, ldmatrix_x4_trans
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import address, shared_address
from .._taps import Axis

UNIT = 16  # pixels of a product


@dataclass(frozen=True)
class Body:
    """What the kernel is compiled for.

    `rows` is the window along h, of one of the 1 or 2 `halves` of a tile; `columns` of dy and `taps` of the filter are those of a tile
    along w, whose columns of x lie `apart` from pixel to pixel and from tap to tap. `warps` divide the columns, further ones the channels;
    `stages` tiles are in shared memory at a time; with `channel_inner` neighbouring columns of the sums are channels, otherwise taps.
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
        """Slices of 8 channels of a warp, of x and of dy."""
        return 1 if self.group <= 8 else 2

    @property
    def units(self):
        """Diagonal blocks of a block's channels, one a warp."""
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
        """How many threads lie along the columns of so many pixels: a power of two that leaves each thread few."""
        lanes = self.threads * 8 // self.channels
        choices = [1 << e for e in range(lanes.bit_length())]
        return min(choices, key=lambda w: (ceil_div(columns, w) * (ceil_div(rows, lanes // w) + 2), -w))


@functools.cache
def make_stage(body, rows, columns):
    """Device function ``stage(to, source, base, first, steps, extents, strides, part, pixel, there)``: so many pixels to shared memory.

    `first` is the row and the column of the image that the first of them is, `steps` how many lie from one to the next; where there is
    none, zeros are written. `source` is the address of the array, `base` the image's element of channels that begin at 16 bytes number
    `part` of the block's; a thread copies those of every so many pixels, from number `pixel` on.
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
            copy_async16(to + u32(k * (DOWN * columns * PITCH)), at + u64(k * i64(stride)), i64(0),
                         u32(16) if inside else u32(0))
    copy_all = unrolled(EACH, copy)

    @device_function
    def turn(c, s):
        to, source, base, first, steps, extents, strides, row, column, there = s
        if c < WHOLE_COLUMNS or column + ACROSS * c < columns:
            h, w = first[0] + row * steps[0], first[1] + (column + ACROSS * c) * steps[1]
            at = source + u64((base + h * i64(strides[0]) + w * i64(strides[1])) * 2)
            copy_all(0, (to + u32(c * (ACROSS * PITCH)), at, h, row, DOWN * steps[0], extents[0],
                         2 * DOWN * steps[0] * strides[0], there and u32(w) < u32(extents[1])))
    turns = unrolled(TURNS, turn)

    @device_function
    def stage(to, source, base, first, steps, extents, strides, part, pixel, there):
        row, column = pixel >> SHIFT, pixel & (ACROSS - 1)
        turns(0, (to + u32((row * columns + column) * PITCH + 16 * part), source, base, first, steps, extents, strides, row,
                  column, there))
    return stage


@functools.cache
def make_multiply(body):
    """Device function ``multiply(acc, at_x, at_last, at_y)``: adds the products of `across` columns of pixels.

    The arguments are what this lane tells ldmatrix of the first rows: of x at the first pair of taps, and at a last tap without another;
    of dy.
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
            ldmatrix_x4_trans(right, i32(4 * j), u32(at + u32(j * LINE_Y)))
        else:
            ldmatrix_x2_trans(right, 2 * j, at + u32(j * LINE_Y))
    load_rows = unrolled(TH, load_row)

    @device_function
    def meet(j, s):
        acc, left, right, k, i = s
        ahead = i - A * j
        if ahead >= 0 and ahead % B == 0 and ahead // B < R:
            r = ahead // B
            for b in range(SIDE):
                mma(acc, ((r * PAIRS + k) * SIDE + b) * 4, left, 0, right, (j * SIDE + b) * 2)
    meet_all = unrolled(TH, meet)

    @device_function
    def pair(k, s):
        acc, right, at_x, at_last, i = s
        left = cuda.local.array(4, u32)
        if SINGLE and k == PAIRS - 1:
            ldmatrix_x4_trans(left, 0, at_last + u32(i * LINE_X + k * PAIR))
        else:
            ldmatrix_x4_trans(left, 0, at_x + u32(i * LINE_X + k * PAIR))
        meet_all(0, (acc, left, right, k, i))
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
def make_put(body):
    """Device function ``put(acc, sums, at, pitch, first_tap, filter, channel, filters, channels, g, t)``: a warp's sums to row after row
    of `sums`, `channel` of x and `filters` of dy being those of its first ones; `first_tap` has plane, row and column."""
    PAIRS, SIDE, GROUP, TAPS, inner = body.pairs, body.side, body.group, body.taps, body.channel_inner

    @device_function
    def put_four(n, s):
        acc, sums, at, pitch, first_tap, sizes, channel, filters, channels, g, t = s
        b, rest = n % SIDE, n // SIDE
        r, k = rest // PAIRS, rest % PAIRS
        for e in range(4):
            half = e >> 1
            column = k if SIDE == 2 else 2 * k + half
            c = channel + g + (8 * half if SIDE == 2 else 0)
            f = filters + 8 * b + 2 * t + (e & 1)
            row, last = first_tap[1] + r, first_tap[2] + column
            there = column < TAPS and row < sizes[1] and last < sizes[2] and c < channels and f < channels
            if there and i32(u32(c) // GROUP) == i32(u32(f) // GROUP):
                tap = (first_tap[0] * sizes[1] + row) * sizes[2] + last
                within = c & (GROUP - 1)
                if inner:
                    place = tap * GROUP + within
                else:
                    place = i32(within * (sizes[0] * sizes[1] * sizes[2]) + tap)
                sums[at + i64(f) * pitch + place] = acc[n * 4 + e]
    return unrolled(body.sums // 4, put_four)


@functools.cache
def filter_kernel(body):
    """The sums of one range of tiles: block number ``((range * planes + plane) * parts of rows + ...) * slices + slice``."""
    GROUP, CHANNELS, SIDE, PITCH, STAGES, WARPS = body.group, body.channels, body.side, body.pitch, body.stages, body.warps
    UNITS, THREADS, TAPS, R, WIDTH, HEIGHT, NACC = body.units, body.threads, body.taps, body.rows.taps, body.columns, body.down, body.sums
    PARTS, SHIFT, LOG = CHANNELS // 8, (CHANNELS // 8).bit_length() - 1, UNITS.bit_length() - 1
    X_BYTES, BYTES = body.x_bytes, body.bytes
    NEXT_PIXEL, NEXT_TAP = body.apart[0] * PITCH, 16 if SIDE == 2 else body.apart[1] * PITCH
    # from the first eight pixels of a product to the others, of x in columns of pixels or bytes, of dy in bytes
    ACROSS, NEXT_COLUMNS, NEXT_X, NEXT_Y = body.across, 8, 0, 8 * PITCH
    if body.halves == 2:
        NEXT_COLUMNS, NEXT_X, NEXT_Y = 0, body.further * body.x_columns * PITCH, body.rows.tile * body.y_columns * PITCH
    stage_x, stage_y = make_stage(body, body.x_rows, body.x_columns), make_stage(body, HEIGHT, body.y_columns)
    multiply, put, arrived = make_multiply(body), make_put(body), wait_copies(STAGES - 2)

    @device_function
    def locate(tile, tiles_w, tiles_h, depth):
        """(image, plane, first row, first column) of dy in a tile."""
        rest, q = divide_remainder(tile, tiles_w)
        rest, p = divide_remainder(rest, tiles_h)
        n, o = divide_remainder(rest, depth)
        return n, o, p * HEIGHT, q * WIDTH

    @device_function
    def load(to, tile, s):
        (x, dy, image, out, window, steps, x_strides, y_strides, tiles_w, tiles_h, depth, plane, line, tap, channel, there, part,
         pixel) = s
        n, o, p, q = locate(tile, tiles_w, tiles_h, depth)
        z = o * window[0] - window[3] + plane * window[6]
        h, w = p * window[1] - window[4] + line * window[7], q * window[2] - window[5] + tap * window[8]
        base = n * x_strides[0] + z * x_strides[1] + channel
        stage_x(to, x, base, (h, w), steps, (image[1], image[2]), (i32(x_strides[2]), i32(x_strides[3])), part, pixel,
                there and 0 <= z and z < image[0])
        base = n * y_strides[0] + o * y_strides[1] + channel
        stage_y(to + X_BYTES, dy, base, (p, q), (i32(1), i32(1)), (out[1], min(q + WIDTH, out[2])),
                (i32(y_strides[2]), i32(y_strides[3])), part, pixel, there)

    @jit(launch_bounds=(THREADS, body.blocks))
    def conv_bwd_filter_grouped_mma(x, dy, sums, tiles, ranges, slices, parts_w, parts_h, planes, tiles_w, tiles_h, depth, channels,
                                    filter_sizes, image, out, window, steps, x_strides, y_strides, sums_pitch):
        ring = cuda.shared.array(0, u32)
        shared = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        unit, along = warp & (UNITS - 1), warp >> LOG
        rest, piece = divide_remainder(cuda.blockIdx.x, slices)
        rest, part_w = divide_remainder(rest, parts_w)
        rest, part_h = divide_remainder(rest, parts_h)
        share, plane = divide_remainder(rest, planes)
        line, tap = part_h * R, part_w * TAPS
        first = piece * CHANNELS
        # channels of x and of dy that this warp multiplies, within the block's
        from_x, from_y = unit * 8 * SIDE, unit * 8 * SIDE
        if GROUP == 32:
            from_x, from_y = i32((unit >> 2) * 32 + (unit & 1) * 16), i32((unit >> 2) * 32 + ((unit >> 1) & 1) * 16)
        mine = first + max(from_x, from_y) < channels
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
        state = (address(x, i64(0)), address(dy, i64(0)), image, out, window, (steps[0], steps[1]), x_strides, y_strides, tiles_w,
                 tiles_h, depth, plane, line, tap, channel, channel < channels, part, tid >> SHIFT)
        ahead, filled = share, i32(0)
        for _ in range(STAGES - 1):
            if ahead < tiles:
                load(shared + u32(filled * BYTES), ahead, state)
            commit_copies()
            ahead, filled = ahead + ranges, filled + 1
        tile, buffer = share, i32(0)
        while tile < tiles:
            arrived()
            cuda.syncthreads()
            if ahead < tiles:  # to where everybody has read the tile before this one
                load(shared + u32(filled * BYTES), ahead, state)
            commit_copies()
            if mine:
                _, _, _, q = locate(tile, tiles_w, tiles_h, depth)
                count = min(WIDTH, out[2] - q)
                here = shared + u32(buffer * BYTES)
                for column in range(ACROSS * along, count, ACROSS * WARPS):
                    # behind the row dy is zero, and x the row's last pixel whatever it holds
                    pixel = min(column + pixel_x, count - 1)
                    at = here + lane_x + u32(pixel * NEXT_PIXEL)
                    multiply(acc, at + other, at, here + lane_y + u32(column * PITCH))
            filled = buffer
            buffer = buffer + 1
            if buffer == STAGES:
                buffer = 0
            tile, ahead = tile + ranges, ahead + ranges
        if mine:
            at = (share * WARPS + along) * i64(channels * sums_pitch)
            put(0, (acc, sums, at, sums_pitch, (plane, line, tap), filter_sizes, first + from_x, first + from_y, channels,
                    lane >> 2, lane & 3))
    return conv_bwd_filter_grouped_mma
