"""Keys and values of a range through TMA into the two rings of shared memory from which `sdpa_decode_split_kv_wgmma` multiplies."""
import functools
from typing import NamedTuple

from ....device import cuda, device_function, i32, u32
from ....device.index import divide_remainder
from ....device.mbarrier import make_advanced, mbarrier_arrive_expect, mbarrier_wait
from ....device.tma import make_tma_load
from ....engine.hopper import ROW
from ..._scores import between
from ..._wgmma import COLUMNS
from .tiles import BOX, PIECE, SLICE, WIDTH


class Paging(NamedTuple):
    """The page table and its strides, keys of a page as a divisor, and how many pages there are."""
    table: object
    strides: object
    page: object
    pages: i32


@functools.cache
def make_produce(config):
    """Device function ``produce(k_map, v_map, base, bars, keys, paging)`` of one thread: all of a range, step by step, values a step
    behind their keys.

    `bars` begins with the barriers of the rings: keys are there, are read, values are there, are read. `keys` are the first key, how many
    steps there are, behind the last key, the sequence and the head of the cache; `paging` is a `Paging`.
    """
    (K_BOXES, V_BOXES), (K_SLOTS, V_SLOTS), (_, K_AT, V_AT, _) = config.boxes, config.rings, config.places
    PAGED, STAGE, K_ROWS = config.page > 0, config.stage, config.page or WIDTH  # keys of a box
    V_ROWS, PAGES = min(K_ROWS, PIECE), WIDTH // K_ROWS
    load, next_box, next_piece = make_tma_load(4), make_advanced(K_SLOTS), make_advanced(V_SLOTS)

    @device_function
    def look_up(numbers, j0, last, b, paging):
        """Pages of a step's keys, as the table has them; they are not looked at before they are needed, a step later."""
        if PAGED:
            for u in range(PAGES):
                j = j0 + u * K_ROWS
                number, _ = divide_remainder(j if j < last else 0, paging.page)
                numbers[u] = paging.table[b * paging.strides.batch + number * paging.strides.page]

    @device_function
    def load_box(to, array, bar, column, j, g, b, number, paging):
        """Keys j and on of 64 columns; of a page that there is not those of the first or the last one."""
        image, row = b, j
        if PAGED:
            _, row = divide_remainder(j, paging.page)
            image = between(number, 0, paging.pages - 1)
        load(to, array, bar, column, row, g, image)

    @device_function
    def produce(k_map, v_map, base, bars, keys, paging):
        k_full, k_empty, v_full, v_empty, _, _ = bars
        first, count, last, b, g = keys
        k_slot, k_phase, v_slot, v_phase = u32(0), u32(1), u32(0), u32(1)
        ahead, behind = cuda.local.array(PAGES, i32), cuda.local.array(PAGES, i32)
        if count > 0:
            look_up(ahead, first, last, b, paging)
        for n in range(count + 1 if count > 0 else 0):
            at = first + n * WIDTH
            if n < count:
                for box in range(K_BOXES):
                    mbarrier_wait(k_empty + 8 * k_slot, k_phase)
                    bar = k_full + 8 * k_slot
                    mbarrier_arrive_expect(bar, BOX)
                    to = base + K_AT + k_slot * BOX
                    for u in range(PAGES):
                        load_box(to + u32(u * K_ROWS * ROW), k_map, bar, box * COLUMNS, at + u * K_ROWS, g, b, ahead[u],
                                 paging)
                    k_slot, k_phase = next_box(k_slot, k_phase)
            if n > 0:
                for piece in range(WIDTH // PIECE):
                    mbarrier_wait(v_empty + 8 * v_slot, v_phase)
                    bar = v_full + 8 * v_slot
                    mbarrier_arrive_expect(bar, STAGE)
                    to = base + V_AT + v_slot * STAGE
                    for box in range(V_BOXES):
                        for u in range(PIECE // V_ROWS):
                            key = piece * PIECE + u * V_ROWS
                            load_box(to + u32(box * SLICE + u * V_ROWS * ROW), v_map, bar, box * COLUMNS,
                                     at + (key - WIDTH), g, b, behind[key // K_ROWS], paging)
                    v_slot, v_phase = next_piece(v_slot, v_phase)
            for u in range(PAGES):
                behind[u] = ahead[u]
            look_up(ahead, at + WIDTH, last, b, paging)
    return produce
