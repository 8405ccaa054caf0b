"""How results of 16 bits leave a warpgroup of the Hopper main loop whose rows TMA cannot write: a row at a time, each by one warp.

    sums            64 columns of a warp's 16 rows, to its part of a box in shared memory (`hopper_stores.make_fill`)
    each row        lane l has the row's word l, two neighbouring results, and stores it; where the row begins between two words of y,
                    the word of its lower neighbour's second result and its own first one

A store of the warp covers 128 contiguous bytes. From registers (`make_direct_store`) it is parts of eight rows, 8 bytes of each, or 4 where
columns are odd: as many sectors of the L2 as elements, nearly.
"""
import functools

from ..device import cuda, device_function, i32, u32
from ..device.barrier import barrier_sync
from ..device.index import funnel_shift
from ..device.unroll import unrolled
from ..device.vec import address, advance, as_u16, as_u32, load_shared_u32
from ..device.warp import shuffle_up
from .hopper import ROW
from .hopper_plan import make_epilogue_params
from .hopper_stores import SHORT, make_fill
from .tile_states import WARP_ROWS

WIDTH = 64  # columns of a box
AT_ONCE = 4  # rows whose words are in flight together
MOST = 128  # sums of a thread, which beside more are spilled
LAST = 31


def lines_refusal(spec, y_strides, n):
    """Why results of an epilogue cannot leave a row at a time, or None."""
    if spec.output not in SHORT or y_strides[1] != 1:
        return f"results are {spec.output}, {y_strides[1]} elements from column to column; expected 16 bits side by side"
    if spec.program is not None or spec.c is not None or spec.residual is not None:
        return "the epilogue reads another matrix"
    if n % 2 and (spec.bias == "column" or "column" in spec.scales):
        return f"the epilogue reads pairs of columns, of which the last has one: {n}"
    return None


def line_tiles(tiles):
    """Those of whole boxes that have the registers."""
    return [tile for tile in tiles if tile.bn % WIDTH == 0 and tile.sums <= MOST]


@functools.cache
def make_line_store(tile, spec):
    """Device function ``store(acc, first, staging, row, column, thread, m, n, e, y, at, y_row)`` for 64 rows of results, of y from element
    `at` on; elements beyond m rows and n columns are computed from those within. See `lines_refusal` for what it takes."""
    fill = make_fill(spec)

    @device_function
    def store_line(k, s):
        box, y, at, y_row, row, rows, c, n, lane = s
        word = load_shared_u32(box + u32(k * ROW + (((lane >> 2) ^ (k & 7)) << 4) + ((lane & 3) << 2)))
        before, line = shuffle_up(word, 1), advance(y, at + (row + k) * y_row + c)
        odd = i32(address(line, 0)) >> 1 & 1
        # a word; one result where a row or its box begins or ends inside a word
        if k < rows and c - odd + 1 < n and (odd == 0 or lane > 0):
            as_u32(advance(line, -odd))[0] = word if odd == 0 else funnel_shift(before, word, 16)
        if k < rows and odd != 0 and lane > 0 and c == n:
            as_u16(advance(line, -1))[0] = before >> 16
        if k < rows and (odd != 0 and lane == 0 and c < n or odd == 0 and c + 1 == n):
            as_u16(line)[0] = word & 0xFFFF
        if k < rows and odd != 0 and lane == LAST and c + 1 < n:
            as_u16(advance(line, 1))[0] = word >> 16
    store_lines = unrolled(AT_ONCE, store_line)

    @device_function
    def store_box(box, s):
        acc, first, staging, row, column, thread, barrier, m, n, e, y, at, y_row = s
        lane, warp = thread & 31, thread >> 5
        start, top = column + WIDTH * box, row + warp * WARP_ROWS
        r0, c0, last, even = top + (lane >> 2), start + (lane & 3) * 2, m - 1, n + (n & 1)
        barrier_sync(barrier, 128)  # the box before has been read
        # NOTE: not in a branch, where products would wait for each other
        fill(acc, first + (WIDTH // 2) * box, staging, min(r0, last), min(r0 + 8, last), c0, lane, warp, even, e, None, 0, staging)
        cuda.syncwarp()
        for part in range(0, WARP_ROWS, AT_ONCE):
            store_lines(part, (staging + u32(warp * (WARP_ROWS * ROW)), y, at, y_row, top, m - top, start + 2 * lane, n, lane))
    store_boxes = unrolled(tile.bn // WIDTH, store_box)

    @device_function
    def store(acc, first, staging, row, column, thread, barrier, m, n, e, y, at, y_row):
        store_boxes(0, (acc, first, staging, row, column, thread, barrier, m, n, e, y, at, y_row))
    return store


@functools.cache
def make_line_sink(special):
    """The sink of `engine.hopper.make_product` that stores a row at a time, as `hopper_plan.make_sink` of the same `Specialisation`."""
    tile = special.tile
    lines, epilogue_params = make_line_store(tile, special.epilogue), make_epilogue_params(special.epilogue)

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        e = epilogue_params(out, tile.z)
        lines(acc, first, staging, tile.row + offset, tile.column, thread, barrier, out.m, out.n, e, out.y, tile.z * out.y_batch, out.y_row)
    return sink
