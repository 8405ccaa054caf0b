"""Keys and values of a range through TMA into the two rings of shared memory from which `sdpa_decode_split_kv_wgmma` multiplies."""
import functools
from typing import NamedTuple

from ....device import cuda, device_function, i32, u32
from ....device.index import divide_remainder
from ....device.pipeline import make_pipeline
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

    `bars` begins with the barriers of the rings of keys and of values. `keys` are the first key, how many
    steps there are, behind the last key, the sequence and the head of the cache; `paging` is a `Paging`.
    """
    (K_BOXES, V_BOXES), (K_SLOTS, V_SLOTS), (_, K_AT, V_AT, _) = config.boxes, config.rings, config.places
    PAGED, STAGE, K_ROWS = config.page > 0, config.stage, config.page or WIDTH  # keys of a box
    V_ROWS, PAGES = min(K_ROWS, PIECE), WIDTH // K_ROWS
    load, k_pipe, v_pipe = make_tma_load(4), make_pipeline(K_SLOTS), make_pipeline(V_SLOTS, consumers=config.groups)

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
        """Keys j and on of 64 columns; out-of-range page indices are clamped."""
        image, row = b, j
        if PAGED:
            _, row = divide_remainder(j, paging.page)
            image = between(number, 0, paging.pages - 1)
        load(to, array, bar, column, row, g, image)

    @device_function
    def produce(k_map, v_map, base, bars, keys, paging):
        k_bars, v_bars, _ = bars
        first, count, last, b, g = keys
        k_state, v_state = k_pipe.producer_start(), v_pipe.producer_start()
        ahead, behind = cuda.local.array(PAGES, i32), cuda.local.array(PAGES, i32)
        if count > 0:
            look_up(ahead, first, last, b, paging)
        for n in range(count + 1 if count > 0 else 0):
            at = first + n * WIDTH
            if n < count:
                for box in range(K_BOXES):
                    k_pipe.producer_acquire(k_bars, k_state)
                    bar = k_pipe.producer_expect(k_bars, k_state, u32(BOX))
                    to = base + K_AT + k_state.stage * BOX
                    for u in range(PAGES):
                        load_box(to + u32(u * K_ROWS * ROW), k_map, bar, box * COLUMNS, at + u * K_ROWS, g, b, ahead[u],
                                 paging)
                    k_state = k_pipe.next(k_state)
            if n > 0:
                for piece in range(WIDTH // PIECE):
                    v_pipe.producer_acquire(v_bars, v_state)
                    bar = v_pipe.producer_expect(v_bars, v_state, u32(STAGE))
                    to = base + V_AT + v_state.stage * STAGE
                    for box in range(V_BOXES):
                        for u in range(PIECE // V_ROWS):
                            key = piece * PIECE + u * V_ROWS
                            load_box(to + u32(box * SLICE + u * V_ROWS * ROW), v_map, bar, box * COLUMNS,
                                     at + (key - WIDTH), g, b, behind[key // K_ROWS], paging)
                    v_state = v_pipe.next(v_state)
            for u in range(PAGES):
                behind[u] = ahead[u]
            look_up(ahead, at + WIDTH, last, b, paging)
    return produce
