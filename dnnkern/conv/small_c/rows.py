"""Images of one to four channels: how their rows lie in shared memory, and how windows are read from there as fragments of mma.sync.

A row holds its pixels' channels side by side, so the window of a pixel in one row of the filter, S pixels of C channels, is a run of S C
elements. The sums' index k therefore counts, for each row of the filter, `lead` + S C elements rounded up to an even number, and all rows
together are rounded up to whole products of 16: 7x7 filters of 3 channels take 160. With `lead`, 0 or 1, runs begin at even elements, and
a register of a fragment, two neighbouring k of one pixel, is one word of the row. Where windows of odd pixels begin at odd elements
(stride times channels is odd) the row is there twice, once shifted by an element.

What a word has besides the window is masked: elements of neighbouring pixels may be infinite.
"""
from dataclasses import dataclass

from ...device import cuda, device_function, i32, i64, u32, u64
from ...device.cp_async import copy_async16
from ...device.index import ceil_div, divide_remainder
from ...device.numeric import permute_bytes
from ...device.vec import address, load1_nc_if, load_shared_4u32, load_shared_u32, store_shared_4u32, store_shared_u32
from ...engine.constants import constants

COST = constants("conv/small_c_rows")

MOST_STEPS = 14
CHANNELS = 4
UNIT = 32  # pixels that a warp computes at a time
MOST_BUFFER = 48 * 1024


@dataclass(frozen=True)
class Window:
    """Filter extents R x S on C channels, the stride along w, the padding before it."""
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
        """k of one row of the filter."""
        return (self.lead + self.s * self.c + 1) // 2 * 2

    @property
    def steps(self):
        """Products of 16 k."""
        return ceil_div(self.r * self.run, 16)

    @property
    def copies(self):
        """Of a row: 2 where windows begin at odd elements."""
        return 1 + (self.stride * self.c & 1)

    @property
    def margin(self):
        """Elements of a row before the first pixel's window may begin: whole copies of 16 bytes."""
        return ceil_div(self.pad * self.c + self.lead, 8) * 8

    def there(self, k):
        """Whether index k is an element of the window."""
        r, j = divmod(k, self.run)
        return r < self.r and self.lead <= j < self.lead + self.s * self.c

    def pitch(self, pixels):
        """Elements of a row for so many neighbouring results."""
        return ceil_div(self.margin + (pixels - 1) * self.stride * self.c - self.pad * self.c + self.run, 8) * 8


def window_refusal(problem):
    """Why rows of an image cannot be staged, or None."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"operands are {p.dtype}; expected float16 or bfloat16"
    if p.groups > 1:
        return f"{p.groups} groups"
    if not 1 <= p.c <= CHANNELS:
        return f"{p.c} channels; rows of 1 to {CHANNELS} are staged"
    if p.filter[0] > 1 or p.image[0] > 1 or p.pads[0] != (0, 0):
        return f"3-D: image {p.image}, filter {p.filter}, padding {p.pads}"
    if p.filter[2] > 1 and p.dilations[2] > 1:
        return f"dilation {p.dilations[2]} along w; windows must be runs of a row"
    window = window_of(p)
    if window.steps > MOST_STEPS:
        return f"the filter {p.filter[1]}x{p.filter[2]} on {p.c} channels takes {16 * window.steps} k, at most {16 * MOST_STEPS}"
    if buffer_bytes(p, 1, min(p.out[2], UNIT)) > MOST_BUFFER:
        return f"rows of {UNIT} results take {buffer_bytes(p, 1, UNIT)} bytes of the image, at most {MOST_BUFFER}"
    return None


def window_of(problem):
    """The `Window` of a problem."""
    p = problem
    return Window(p.filter[1], p.filter[2], p.c_group, p.strides[2], p.pads_before[2])


def rows_of(problem, rows):
    """Rows of the image for so many rows of results."""
    return (rows - 1) * problem.strides[1] + (problem.filter[1] - 1) * problem.dilations[1] + 1


def buffer_bytes(problem, rows, columns):
    """Bytes of a buffer for a tile of so many rows and columns of results."""
    window = window_of(problem)
    return rows_of(problem, rows) * window.pitch(columns) * 2 * window.copies


def tile_of(problem, pixels):
    """(rows, columns) of results in a tile: whole rows, or, of a row that is too long, a multiple of a warp's pixels."""
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
    """Whether rows of x can be copied 16 bytes at a time to where they are read."""
    p = problem
    n, c, _, h, w = p.x_strides
    packed = (c == 1 or p.c == 1) and (w == p.c or p.image[2] == 1)
    return packed and p.x.alignment == 16 and (n % 8 == 0 or p.n == 1) and (h % 8 == 0 or p.image[1] == 1)


def staging(problem, rows, columns, threads):
    """Instructions of a thread, as compiled for sm_90a, that bring the rows of x for a tile, and cycles that it waits for them."""
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
    """{h: number} of the slots of 8 k that hold something besides the window."""
    slots = [h for h in range(2 * window.steps) if not all(window.there(k) for k in range(8 * h, 8 * h + 8))]
    return {h: n for n, h in enumerate(slots)}


def make_places(window):
    """Device function ``places(offsets, masks, pair, pitch)`` of one lane.

    offsets[h] is the byte offset, from the beginning of a pixel's window, of the k ``8 h + 2 pair`` and the next, `pitch` being the bytes
    from one row of the filter to the next; masks[n] what slot number n of `masked_slots` keeps.
    """
    R, LEAD, LAST = window.r, window.lead, window.lead + window.s * window.c
    SLOTS, index = 2 * window.steps, masked_slots(window)
    numbers, COUNT = tuple(index) or (0,), len(index)
    place = make_place(window)

    @device_function
    def places(offsets, masks, pair, pitch):
        for h in range(SLOTS):
            r, j = place(8 * h + 2 * pair)
            offsets[h] = u32(r * pitch + j * 2 if r < R else 0)
        for n in range(COUNT):
            r, j = place(8 * numbers[n] + 2 * pair)
            low = u32(0xFFFF) if r < R and j >= LEAD and j < LAST else u32(0)
            high = u32(0xFFFF0000) if r < R and j + 1 >= LEAD and j + 1 < LAST else u32(0)
            masks[n] = low | high
    return places


def make_place(window):
    """Device function ``place(k) -> (row of the filter, place in its run)``."""
    RUN, RECIPROCAL = window.run, 65536 // window.run + 1  # exact: k is below 16 * MOST_STEPS

    @device_function
    def place(k):
        r = i32((u32(k) * RECIPROCAL) >> 16)
        return r, k - r * RUN
    return place


def make_word(window, h):
    """Device function ``word(at, offsets, masks)``: the register of slot h, of the window that begins at shared address `at`."""
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


def make_stage(window, by_copies, threads):
    """Device function ``stage(to, x, first, h0, e0, rows, H, extent, strides, pitch, parts, tid)``: rows of an image to shared memory.

    Image element e0 of row h0 is the first one of the first row; what lies outside of H rows of `extent` elements is zero. `strides` are
    x's along h, w and c, `first` the image's offset, `parts` divides by the copies of 16 bytes (words, with `by_copies` false) of a row.
    Of two copies of a row, copies of 16 bytes make the first one; `make_shift` the other.
    """
    COPIES, THREADS, split = window.copies, threads, make_split(window.c)

    @device_function
    def element(x, first, row, e, there, extent, strides):
        ok = there and e >= 0 and e < extent
        pixel, channel = split(e if ok else 0)
        at = first + row * strides[0] + pixel * strides[1] + channel * strides[2]
        return u32(load1_nc_if(x, at if ok else i64(0), 1 if ok else 0))

    if by_copies:
        @device_function
        def stage(to, x, first, h0, e0, rows, H, extent, strides, pitch, parts, tid):
            total = i32(rows * i32(parts[0]))
            for i in range(tid, total, i32(THREADS)):
                row, part = divide_remainder(i32(i), parts)
                h, e = i32(h0 + row), i32(e0 + 8 * part)
                inside = 0 <= h and h < H and e >= 0 and e < extent
                count = i32(min(i32(extent - e), i32(8))) if inside else i32(0)
                at = i64(i64(first) + i64(h) * strides[0] + e)
                copy_async16(u32(to + u32(row * pitch + 16 * part)), u64(address(x, at if inside else i64(0))), i64(0), u32(2 * count))
    else:
        @device_function
        def stage(to, x, first, h0, e0, rows, H, extent, strides, pitch, parts, tid):
            total = rows * i32(parts[0])
            for i in range(tid, total, THREADS):
                row, part = divide_remainder(i, parts)
                h, e = h0 + row, e0 + 2 * part
                there = 0 <= h and h < H
                v0, v1 = element(x, first, h, e, there, extent, strides), element(x, first, h, e + 1, there, extent, strides)
                at = to + u32(row * pitch + 4 * part)
                store_shared_u32(at, v0 | (v1 << 16))
                if COPIES == 2:
                    v2 = element(x, first, h, e + 2, there, extent, strides)
                    store_shared_u32(at + u32(rows * pitch), v1 | (v2 << 16))
    return stage


def make_shift(window, by_copies, threads):
    """Device function ``shift(to, rows, pitch, parts, tid)``: the second copy of staged rows, an element further, where 16 bytes at a time
    could not make it. All threads wait before, until the rows are there, and afterwards."""
    THREADS, NEEDED = threads, by_copies and window.copies == 2

    @device_function
    def shift(to, rows, pitch, parts, tid):
        if NEEDED:
            for i in range(tid, i32(rows * i32(parts[0])), i32(THREADS)):
                row, part = divide_remainder(i32(i), parts)
                at = u32(to + u32(row * pitch + 16 * part))
                a, b, c, d = load_shared_4u32(at)
                after = load_shared_u32(u32(at + u32(16))) if part + 1 < i32(parts[0]) else u32(0)
                store_shared_4u32(u32(at + u32(rows * pitch)), permute_bytes(a, b, u32(0x5432)), permute_bytes(b, c, u32(0x5432)),
                                  permute_bytes(c, d, u32(0x5432)), permute_bytes(d, after, u32(0x5432)))
            cuda.syncthreads()
    return shift
