"""Steps of 8-bit floats in the Hopper main loop: each step's products are summed by the tensor cores, the steps by the threads, in float32.

Tensor cores add products of 8-bit floats with some 14 bits, however many there are; hence a second set of accumulators. Where scales change
along k, a step's sums count for a factor of their own. The four lanes that have the same rows of a fragment load those of sixteen steps,
four each, while the sixteen before are computed, and hand them round: every line of the L1 that loads touch takes two cycles from wgmma,
which reads its operands by the same way.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, f32
from ..device.fastmath import fma, minimum
from ..device.vec import advance, load4
from ..device.warp import broadcast

LANES = 4  # that have the same rows
EACH = 4   # steps whose factors a lane loads


class Factors(NamedTuple):
    """What each step's products of 8-bit floats count for, where scales change along k.

    find : device function (tile, first_row, out) -> state
        Where the factors are of the steps of `tile`, for rows `first_row` and `first_row` + 8 of a thread's fragment.
    read : device function (coming, state, k, end, out)
        Load what the factors of `EACH` steps from k on are made of, as far as there are steps before `end`, to the local array `coming` of
        3 * `EACH` numbers.
    join : device function (coming, j) -> (float32, float32)
        The factors of both rows, of step number j of those.
    """
    find: object
    read: object
    join: object


@functools.cache
def make_block_factors(a_blocks, b_blocks, vector, last_row_of, scale_b_of):
    """`Factors` of scales by block, of a, b or both; `vector`: four of a's along k are 16 aligned bytes.

    ``last_row_of(tile, out)`` and ``scale_b_of(tile, out)`` are device functions: the last row that there is a scale of, and where those of
    the tile's b begin. `out` has `scale_a` and `scale_strides`.
    """
    @device_function
    def find_factors(tile, first_row, out):
        low, high, both, strides = out.scale_a, out.scale_a, scale_b_of(tile, out), out.scale_strides
        if a_blocks:
            row, last = tile.row + first_row, last_row_of(tile, out)
            low = advance(out.scale_a, min(row, last) * strides.a_row)
            high = advance(out.scale_a, min(row + 8, last) * strides.a_row)
        if b_blocks:
            both = advance(both, (tile.column >> 7) * strides.b_column)
        return low, high, both

    @device_function
    def read_scales(coming, at, scales, stride, k, end):
        if vector:  # four steps side by side
            if k < end:
                coming[at], coming[at + 1], coming[at + 2], coming[at + 3] = load4(scales, k)
        else:
            for j in range(EACH):
                coming[at + j] = scales[minimum(k + j, end - 1) * stride]

    @device_function
    def read_factors(coming, state, k, end, out):
        low, high, both = state
        if a_blocks:
            read_scales(coming, 0, low, out.scale_strides.a_block, k, end)
            read_scales(coming, EACH, high, out.scale_strides.a_block, k, end)
        if b_blocks:
            for j in range(EACH):
                coming[2 * EACH + j] = both[minimum(k + j, end - 1) * out.scale_strides.b_block]

    @device_function
    def join_factors(coming, j):
        low, high = f32(1), f32(1)
        if a_blocks:
            low, high = coming[j], coming[EACH + j]
        if b_blocks:
            low, high = low * coming[2 * EACH + j], high * coming[2 * EACH + j]
        return low, high
    return Factors(find_factors, read_factors, join_factors)


def in_fours(scale, scales):
    """Whether four scales by block along k of a are 16 aligned bytes, wherever the first of them is a multiple of four."""
    strides = scales.strides
    return scales.a == "block" and strides.a_block == 1 and scale.alignment % 16 == 0 and strides.a_row % 4 == 0 and scale.shape[1] % 4 == 0


def promoted_fits(tile):
    """Whether a tile has the registers to sum 8-bit floats in two stages."""
    return tile.groups == 1 and 2 * tile.sums + 32 <= tile.registers[1]


@functools.cache
def make_promoted(sums, pipe, multiply, wait_all, factors=None):
    """Device function ``sum_steps(acc, total, state, bars, begin, end, stages, tile, first_row, thread, out)`` -> state of the ring after
    the steps from `begin` to `end` of `tile`, which are added to `total`.

    `multiply` is a device function (acc, stages, state, tile, k) that begins the products of step k, `wait_all` one (acc) that waits for
    them; `sums` are the accumulators of a thread.
    """
    if factors is None:
        @device_function
        def sum_steps(acc, total, state, bars, begin, end, stages, tile, first_row, thread, out):
            for k in range(begin, end):
                pipe.consumer_wait(bars, state)
                multiply(acc, stages, state, tile, k)
                wait_all(acc)
                pipe.consumer_release(bars, state, thread)
                state = pipe.next(state)
                for i in range(sums):
                    total[i] = total[i] + acc[i]
            return state
        return sum_steps
    find, read, join = factors

    @device_function
    def sum_scaled(acc, total, low, high):
        for i in range(sums // 4):
            total[4 * i] = fma(acc[4 * i], low, total[4 * i])
            total[4 * i + 1] = fma(acc[4 * i + 1], low, total[4 * i + 1])
            total[4 * i + 2] = fma(acc[4 * i + 2], high, total[4 * i + 2])
            total[4 * i + 3] = fma(acc[4 * i + 3], high, total[4 * i + 3])

    @device_function
    def step(j, state, s):
        acc, total, bars, k, ahead, end, stages, tile, source, thread, out, found, coming, factors = s
        if k + j < end:
            pipe.consumer_wait(bars, state)
            multiply(acc, stages, state, tile, k + j)
            if j == 0 and source & (LANES - 1) == 0:
                read(coming, found, ahead, end, out)
            low, high = broadcast(factors[2 * j], source), broadcast(factors[2 * j + 1], source)  # each lane names its own source
            wait_all(acc)
            pipe.consumer_release(bars, state, thread)
            state = pipe.next(state)
            sum_scaled(acc, total, low, high)
        return state
    steps = _carried(EACH, step)

    @device_function
    def sum_steps(acc, total, state, bars, begin, end, stages, tile, first_row, thread, out):
        if begin < end:
            found, coming, factors = find(tile, first_row, out), cuda.local.array(3 * EACH, f32), cuda.local.array(2 * EACH, f32)
            own = (thread & (LANES - 1)) * EACH
            read(coming, found, begin + own, end, out)
            for k in range(begin, end, EACH):
                turn = (k - begin) // EACH & (LANES - 1)
                if turn == 0:
                    for j in range(EACH):
                        factors[2 * j], factors[2 * j + 1] = join(coming, j)
                state = steps(0, state, (acc, total, bars, k, k + LANES * EACH + own, end, stages, tile,
                                         (thread & (32 - LANES)) + turn, thread, out, found, coming, factors))
        return state
    return sum_steps


def _carried(n, body):
    """`unrolled` with a value that is handed on."""
    if n == 1:
        return body
    first, second = _carried(n // 2, body), _carried(n - n // 2, body)

    @device_function
    def run(j, value, s):
        return second(j + n // 2, first(j, value, s), s)
    return run
