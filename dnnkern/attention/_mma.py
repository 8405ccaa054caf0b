"""Tiles of 16-bit elements in shared memory, and the products of them by a warp (mma.sync): what attention on Ampere's tensor cores shares.

A tile lies row by row, `pitch` bytes from one to the next, an odd number of 16: eight rows that a matrix load reads lie in different banks.
Rows are whole steps of 16 elements; what is beyond the array is zero. A warp has 16 rows of a product, as fragments of `_fragments`. 8-bit
floats are float16 there, which has all of them.
"""
import functools
from dataclasses import dataclass

from ..device import device_function, f32, i64, u32
from ..device.convert import element
from ..device.cp_async import copy_async16
from ..device.index import ceil_div
from ..device.ldmatrix import ldmatrix_x4, ldmatrix_x4_trans
from ..device.mma import make_mma
from ..device.numeric import e4m3x2_to_half2, floats_to_half2, permute_bytes
from ..device.vec import address, advance, as_u32, load2_nc_if, store_shared_4u32
from ..engine.constants import constants
from ..host.products import FP8
from ._scores import stride_of_key

RATES, ENOUGH = constants("attention/mma_rate"), constants("attention/simt").enough

CHUNK, STEP = 8, 16  # elements of 16 bytes; of a step of k


@dataclass(frozen=True)
class Source:
    """How rows of `elements` come to shared memory: 8 at a time where they are `wide`, asynchronously, but those of a `small` dtype of 8
    bits through registers; otherwise one by one. There they have `least` columns at least."""
    elements: int
    wide: bool
    least: int = STEP
    small: str = ""

    @property
    def width(self):
        """Elements of a row there."""
        return max(ceil_div(self.elements, STEP) * STEP, self.least)

    @property
    def pitch(self):
        """Bytes."""
        return 2 * self.width + 16


def source_of(t, strides):
    """That of tiles of a tensor, whose last stride is that of a row's elements."""
    wide = t.alignment % (CHUNK * t.itemsize) == 0 and strides[-1] == 1 and all(s % CHUNK == 0 for s in strides[:-1])
    if t.dtype in FP8:
        return Source(t.shape[-1], wide and t.shape[-1] % CHUNK == 0, small=t.dtype)
    return Source(t.shape[-1], wide)


@functools.cache
def make_widen(dtype):
    """Device function ``widen(word)`` -> the four 8-bit floats of a word as two words of float16."""
    E4M3 = dtype == FP8[0]

    @device_function
    def widen(word):
        if E4M3:
            return e4m3x2_to_half2(word & 0xFFFF), e4m3x2_to_half2(word >> 16)
        return permute_bytes(word, 0, 0x1404), permute_bytes(word, 0, 0x3424)  # the upper byte of a float16
    return widen


def walk_seconds(blocks, steps, step, slow, latency, config, device):
    """Time of blocks that walk over `steps` tiles each, of `step` seconds of a multiprocessor's units, and of `slow` ones for elements that
    are loaded one by one. Blocks of a multiprocessor fill each other's `latency` of copies, barriers and fragments; one alone waits for it
    in each step."""
    t = config.threads
    resident = max(1, min(device.shared_per_sm // (config.shared + 1024), device.registers_per_sm // (max(config.registers, 32) * t.count),
                          device.threads_per_sm // t.count, ceil_div(blocks, device.sms)))
    turn = max(resident * (step + slow), step * max(1.0, ENOUGH / t.count) + slow + latency)
    return max(1.0, blocks / (resident * device.sms)) * steps * turn


def mma_rate(device):
    """Multiply-adds a second of mma.sync, of all tensor cores."""
    rate = RATES.sm_90 if device.capability == (9, 0) else RATES.sm_80 if device.capability == (8, 0) else RATES.other
    return rate * device.sms * device.clock_hz


@functools.cache
def make_loader(source, height, threads, row_at=stride_of_key):
    """Device function ``load(to, p, first, left, steps, thread)``: rows first, ... of those at p to the shared address `to`; those from row
    `left` on are zeros. `steps` are the strides of rows and elements; ``row_at(row, steps)`` are the elements before a row that is there,
    where it is not its number times their stride."""
    ELEMENTS, PITCH, WIDE, WIDTH = source.elements, source.pitch, source.wide and not source.small, source.width
    SMALL, WORDS, widen, load_small = bool(source.small), source.wide, make_widen(source.small), element(source.small or "float16").load
    LOG_LANES = (WIDTH // CHUNK - 1).bit_length()  # threads of a row
    ROWS = threads >> LOG_LANES
    TURNS, PARTIAL, FOUND = ceil_div(height, ROWS), height % ROWS != 0, row_at is not stride_of_key

    @device_function
    def small_word(p, at, column, step, there):
        zero = f32(0)
        low = load_small(p, at) if there and column < ELEMENTS else zero
        high = load_small(p, at + step) if there and column + 1 < ELEMENTS else zero
        return floats_to_half2(low, high)

    @device_function
    def word(p, at, column, step, there):
        if SMALL:
            return small_word(p, at, column, step, there)
        low = u32(p[at]) if there and column < ELEMENTS else u32(0)
        high = u32(p[at + step]) if there and column + 1 < ELEMENTS else u32(0)
        return low | (high << 16)

    @device_function
    def load(to, p, first, left, steps, thread):
        row, column = thread >> LOG_LANES, (thread & ((1 << LOG_LANES) - 1)) * CHUNK
        at = (first + row) * steps[0] + column * steps[1]
        target = to + u32(row * PITCH) + u32(column * 2)
        count = u32(min(ELEMENTS - column, CHUNK) * 2)
        for turn in range(TURNS):
            there = first + row + turn * ROWS < left and column < ELEMENTS
            if FOUND:
                at = column * steps[1]
                if there:
                    at = at + row_at(first + row + turn * ROWS, steps)
            if column < WIDTH and (not PARTIAL or row + turn * ROWS < height):
                line = target + u32(turn * ROWS * PITCH)
                if WIDE:
                    copy_async16(line, address(p, at), i64(0), count if there else u32(0))
                elif SMALL and WORDS:
                    low, high = load2_nc_if(as_u32(advance(p, at)), 0, there)
                    a, b = widen(low)
                    c, d = widen(high)
                    store_shared_4u32(line, a, b, c, d)
                else:
                    two = 2 * steps[1]
                    store_shared_4u32(line, word(p, at, column, steps[1], there),
                                      word(p, at + two, column + 2, steps[1], there),
                                      word(p, at + 2 * two, column + 4, steps[1], there),
                                      word(p, at + 3 * two, column + 6, steps[1], there))
            at = at + ROWS * steps[0]
    return load


@device_function
def left_offset(lane, pitch):
    """Byte offset of what a lane reads of the left operand: 16 rows, two halves of a step."""
    return u32((lane & 15) * pitch + (lane >> 4) * 16)


@device_function
def right_offset(lane, pitch):
    """Of a right operand whose rows have k: 16 rows, two halves of a step."""
    return u32(((lane >> 4) * 8 + (lane & 7)) * pitch + ((lane >> 3) & 1) * 16)


@device_function
def right_offset_transposed(lane, pitch):
    """Of a right operand whose rows are k: 16 rows, two groups of 8 columns."""
    return u32((lane & 15) * pitch + (lane >> 4) * 16)


@functools.cache
def make_gemm(dtype, steps, columns, pitch):
    """Device function ``gemm(x, left, right, a, b)``: x[:columns / 2] += 16 rows at a times `columns` rows at b, both with `steps` steps
    of k. `a` and `b` are shared addresses plus a lane's `left_offset` and `right_offset`; `left` and `right` are scratch of four words."""
    mma = make_mma(dtype)

    @device_function
    def gemm(x, left, right, a, b):
        for step in range(steps):
            ldmatrix_x4(left, 0, a + u32(32 * step))
            for j in range(columns // 16):
                ldmatrix_x4(right, 0, b + u32(32 * step + 16 * j * pitch))
                mma(x, 8 * j, left, 0, right, 0)
                mma(x, 8 * j + 4, left, 0, right, 2)
    return gemm


@functools.cache
def make_gemm_rs(dtype, steps, columns, pitch):
    """Device function ``gemm(acc, words, right, b)``: acc[:columns / 2] += the left operand of `steps` steps, `words` in registers, times
    as many rows at b, a shared address plus a lane's `right_offset_transposed`; `columns` is a multiple of 16."""
    mma = make_mma(dtype)

    @device_function
    def gemm(acc, words, right, b):
        for step in range(steps):
            for j in range(columns // 16):
                ldmatrix_x4_trans(right, 0, b + u32(16 * step * pitch + 32 * j))
                mma(acc, 8 * j, words, 4 * step, right, 0)
                mma(acc, 8 * j + 4, words, 4 * step, right, 2)
    return gemm
