"""Images with one to four channels: rows in shared memory, and windows read from them as fragments of mma.sync.

A row has the channels of its pixels side by side, so the window of a pixel in one row of the filter, S pixels of C channels, is a run of
S * C elements. k therefore counts `lead` + S * C elements for each row of the filter, rounded up to an even number, and all rows together
are rounded up to whole products of 16: 7x7 filters on 3 channels have k = 160. With `lead`, 0 or 1, runs begin at even elements, and a
register of a fragment, two neighbouring k of one pixel, is one word of the row. Where windows of odd pixels begin at odd elements (stride
times channels is odd) the row is stored twice, the second time shifted by one element.

Elements of a word that are outside the window are masked: neighbouring pixels may be infinite.
"""
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, u32, u64
from ...device.cp_async import copy_async16
from ...device.index import ceil_div, divide_remainder
from ...device.numeric import permute_bytes
from ...device.vec import address, load1_nc_if, load_shared_4u32, load_shared_u32, store_shared_4u32, store_shared_u32
from ...engine.constants import constants

COST = constants("conv/small_c_rows")

MOST_STEPS = 14
CHANNELS = 4
UNIT = 32  # pixels of a warp at a time
MOST_BUFFER = 48 * 1024


@dataclass(frozen=True)
class Window:
    """Filter extents R x S on C channels, the stride and the leading padding along w."""
    r: int
    s: int
    c: int
    stride: int
    pad: int

    @property
    def lead(self):
        return self.pad * self.c & 1

    @property
    def run(self):
        """Elements of k per row of the filter."""
        return (self.lead + self.s * self.c + 1) // 2 * 2

    @property
    def steps(self):
        """Products of 16 elements of k."""
        return ceil_div(self.r * self.run, 16)

    @property
    def copies(self):
        """Copies of a row: 2 where windows begin at odd elements."""
        return 1 + (self.stride * self.c & 1)

    @property
    def margin(self):
        """Elements of a row before the first pixel's window, a multiple of 16 bytes."""
        return ceil_div(self.pad * self.c + self.lead, 8) * 8

    def covers(self, k):
        """Whether index k is an element of the window."""
        r, j = divmod(k, self.run)
        return r < self.r and self.lead <= j < self.lead + self.s * self.c

    def pitch(self, pixels):
        """Elements of a row for so many neighbouring outputs."""
        return ceil_div(self.margin + (pixels - 1) * self.stride * self.c - self.pad * self.c + self.run, 8) * 8


def window_refusal(problem):
    """Why rows of an image cannot be loaded to shared memory, or None."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"operands are {p.dtype}; expected float16 or bfloat16"
    if p.groups > 1:
        return f"{p.groups} groups"
    if not 1 <= p.c <= CHANNELS:
        return f"{p.c} channels; expected 1 to {CHANNELS}"
    if p.filter[0] > 1 or p.image[0] > 1 or p.pads[0] != (0, 0):
        return f"3-D: image {p.image}, filter {p.filter}, padding {p.pads}"
    if p.filter[2] > 1 and p.dilations[2] > 1:
        return f"dilation {p.dilations[2]} along w; windows have to be contiguous in a row"
    window = window_of(p)
    if window.steps > MOST_STEPS:
        return f"the filter {p.filter[1]}x{p.filter[2]} on {p.c} channels has k = {16 * window.steps}, at most {16 * MOST_STEPS}"
    if buffer_bytes(p, 1, min(p.out[2], UNIT)) > MOST_BUFFER:
        return f"rows of {UNIT} outputs take {buffer_bytes(p, 1, UNIT)} bytes of the image, at most {MOST_BUFFER}"
    return None


def window_of(problem):
    """The `Window` of a problem."""
    p = problem
    return Window(p.filter[1], p.filter[2], p.c_group, p.strides[2], p.pads_before[2])


def rows_of(problem, rows):
    """Rows of the image for so many output rows."""
    return (rows - 1) * problem.strides[1] + (problem.filter[1] - 1) * problem.dilations[1] + 1


def buffer_bytes(problem, rows, columns):
    """Bytes of a buffer for a tile of so many output rows and columns."""
    window = window_of(problem)
    return rows_of(problem, rows) * window.pitch(columns) * 2 * window.copies


def tile_of(problem, pixels):
    """(rows, columns) of an output tile: whole rows, or a multiple of a warp's pixels of a row that is too long."""
    p, q = problem.out[1:]
    if q <= max(pixels, UNIT) and buffer_bytes(problem, 1, q) <= MOST_BUFFER:
        rows = max(1, min(p, pixels // q))
        while rows > 1 and buffer_bytes(problem, rows, q) > MOST_BUFFER:
            rows -= 1
        return rows, q
    columns = max(pixels // UNIT, 1) * UNIT
    while columns > UNIT and buffer_bytes(problem, 1, min(columns, q)) > MOST_BUFFER:
        columns -= UNIT
    return 1, min(columns, q)


def are_copies(problem):
    """Whether rows of x can be copied to shared memory 16 bytes at a time."""
    p = problem
    n, c, _, h, w = p.x_strides
    packed = (c == 1 or p.c == 1) and (w == p.c or p.image[2] == 1)
    return packed and p.x.alignment == 16 and (n % 8 == 0 or p.n == 1) and (h % 8 == 0 or p.image[1] == 1)


def staging(problem, rows, columns, threads):
    """(instructions per thread, as compiled for sm_90a, that load the rows of x for a tile; cycles that it waits for them)."""
    window = window_of(problem)
    elements = rows_of(problem, rows) * window.pitch(columns)
    if are_copies(problem):
        return ceil_div(elements // 8, threads) * (COST.copy if window.copies == 1 else COST.copies), 0
    turns = ceil_div(elements // 2, threads)
    return turns * COST.load, turns * COST.load_wait


def issue_cycles(instructions, warps, blocks):
    """Cycles in which a multiprocessor issues so many instructions of each of a block's warps, `blocks` of them at once: fitted to first
    layers of 3x3 and 7x7, both directions (bench/results/h200-conv.md)."""
    return instructions * warps * blocks * (warps * blocks + COST.alone) / (COST.schedulers * warps * blocks)


def masked_slots(window):
    """{h: number} of the slots of 8 elements of k that have elements outside the window."""
    slots = [h for h in range(2 * window.steps) if not all(window.covers(k) for k in range(8 * h, 8 * h + 8))]
    return {h: n for n, h in enumerate(slots)}


class RowStrides(NamedTuple):
    """Of x along h, w, c and n, in elements."""
    h: i64
    w: i64
    c: i64
    n: i64


class GradientStrides(NamedTuple):
    """Of dy along n, p, q, k, in elements."""
    n: i64
    p: i64
    q: i64
    k: i64


class FilterLayout(NamedTuple):
    """Strides of w along k, c, r, s, and the offset of its first element."""
    k: i64
    c: i64
    r: i64
    s: i64
    base: i64


class TileShape(NamedTuple):
    """Output rows and columns of a tile."""
    rows: i32
    columns: i32


class Geometry(NamedTuple):
    """Extents of y and x; stride, leading padding and dilation along h; rows of x that a tile reads."""
    p: i32
    q: i32
    k: i32
    h: i32
    w: i32
    stride_h: i32
    padding_h: i32
    dilation_h: i32
    x_rows: i32


def geometry_of(problem, rows):
    """The `Geometry` of a problem and tiles of `rows` output rows."""
    p = problem
    return Geometry(*p.out[1:], p.k, *p.image[1:], p.strides[1], p.pads_before[1], p.dilations[1], rows_of(p, rows))


def make_offsets(window):
    """Device function ``find_offsets(offsets, masks, pair, pitch)`` of one lane.

    offsets[h] is the byte offset, from the first element of a pixel's window, of element ``8 h + 2 pair`` of k and the next; `pitch` is the
    bytes from one row of the filter to the next. masks[n] has the bits of slot n of `masked_slots` that are inside the window.
    """
    R, LEAD, LAST = window.r, window.lead, window.lead + window.s * window.c
    SLOTS, index = 2 * window.steps, masked_slots(window)
    numbers, COUNT = tuple(index) or (0,), len(index)
    locate = make_locate(window)

    @device_function
    def find_offsets(offsets, masks, pair, pitch):
        for h in range(SLOTS):
            r, j = locate(8 * h + 2 * pair)
            offsets[h] = r * pitch + j * 2 if r < R else 0
        for n in range(COUNT):
            r, j = locate(8 * numbers[n] + 2 * pair)
            low = u32(0xFFFF) if r < R and j >= LEAD and j < LAST else u32(0)
            high = u32(0xFFFF0000) if r < R and j + 1 >= LEAD and j + 1 < LAST else u32(0)
            masks[n] = low | high
    return find_offsets


def make_locate(window):
    """Device function ``locate(k) -> (row of the filter, position in its run)``."""
    RUN, RECIPROCAL = window.run, 65536 // window.run + 1  # exact: k is below 16 * MOST_STEPS

    @device_function
    def locate(k):
        r = i32((u32(k) * RECIPROCAL) >> 16)
        return r, k - r * RUN
    return locate


def make_word(window, h):
    """Device function ``word(at, offsets, masks)``: the register of slot h of the window at shared address `at`."""
    N = masked_slots(window).get(h, -1)

    @device_function
    def word(at, offsets, masks):
        v = load_shared_u32(at + offsets[h])
        return v & masks[N] if N >= 0 else v
    return word


def make_split(c):
    """Device function ``split(e) -> (pixel, channel)`` of element e >= 0 of a row."""
    SHIFT = c.bit_length() - 1

    @device_function
    def split(e):
        if c == 3:
            pixel = i32((u32(e) * u64(0xAAAAAAAB)) >> 33)
        else:
            pixel = e >> SHIFT
        return pixel, e - pixel * c
    return split


def make_load_rows(window, by_copies, threads):
    """Device function ``load_rows(to, x, first, h0, e0, rows, H, extent, stride, pitch, parts, tid)``: rows of an image to shared memory.

    The first row begins at element e0 of the image's row h0; elements outside H rows of `extent` elements are zero. `stride` is x's
    `RowStrides`, `first` the image's offset, `parts` the 16-byte copies (words, without `by_copies`) of a row. Of two copies of a row,
    16-byte copies make the first; `make_shift` makes the other.
    """
    COPIES, THREADS, split = window.copies, threads, make_split(window.c)

    @device_function
    def load_element(x, first, row, e, inside, extent, stride):
        ok = inside and e >= 0 and e < extent
        pixel, channel = split(e if ok else 0)
        at = first + row * stride.h + pixel * stride.w + channel * stride.c
        return u32(load1_nc_if(x, at if ok else 0, 1 if ok else 0))

    if by_copies:
        @device_function
        def load_rows(to, x, first, h0, e0, rows, H, extent, stride, pitch, parts, tid):
            for i in range(tid, rows * i32(parts.d), THREADS):
                row, part = divide_remainder(i, parts)
                h, e = h0 + row, e0 + 8 * part
                inside = 0 <= h and h < H and e >= 0 and e < extent
                count = min(extent - e, 8) if inside else 0
                at = first + h * stride.h + e
                copy_async16(to + u32(row * pitch + 16 * part), address(x, at if inside else 0), 0, 2 * count)
    else:
        @device_function
        def load_rows(to, x, first, h0, e0, rows, H, extent, stride, pitch, parts, tid):
            for i in range(tid, rows * i32(parts.d), THREADS):
                row, part = divide_remainder(i, parts)
                h, e = h0 + row, e0 + 2 * part
                inside = 0 <= h and h < H
                v0, v1 = load_element(x, first, h, e, inside, extent, stride), load_element(x, first, h, e + 1, inside, extent, stride)
                at = to + u32(row * pitch + 4 * part)
                store_shared_u32(at, v0 | (v1 << 16))
                if COPIES == 2:
                    v2 = load_element(x, first, h, e + 2, inside, extent, stride)
                    store_shared_u32(at + u32(rows * pitch), v1 | (v2 << 16))
    return load_rows


def make_shift(window, by_copies, threads):
    """Device function ``shift(to, rows, pitch, parts, tid)``: the second copy of the rows, shifted by one element, after 16-byte copies.
    The rows must have arrived for all threads; ends with a barrier."""
    THREADS, NEEDED = threads, by_copies and window.copies == 2

    @device_function
    def shift(to, rows, pitch, parts, tid):
        if NEEDED:
            for i in range(tid, rows * i32(parts.d), THREADS):
                row, part = divide_remainder(i, parts)
                at = to + u32(row * pitch + 16 * part)
                a, b, c, d = load_shared_4u32(at)
                after = load_shared_u32(at + 16) if part + 1 < i32(parts.d) else u32(0)
                store_shared_4u32(at + u32(rows * pitch), permute_bytes(a, b, 0x5432), permute_bytes(b, c, 0x5432),
                                  permute_bytes(c, d, 0x5432), permute_bytes(d, after, 0x5432))
            cuda.syncthreads()
    return shift
