"""Steps of 8-bit floats in the Hopper main loop: each step's products are summed by the tensor cores, the steps by the threads, in float32.

Tensor cores add products of 8-bit floats with some 14 bits, however many there are; hence a second set of accumulators. Where scales change
along k, a step's sums count for a factor of their own. Its parts are loaded a step ahead: what computes with a load waits for it, and the
thread's next products with that.
"""
import functools
from typing import NamedTuple

from ..device import device_function
from ..device.fastmath import fma


class Factors(NamedTuple):
    """What each step's products of 8-bit floats count for, where scales change along k.

    first, after : device functions (tile, k, first_row, thread, out) -> state and (state, out) -> state
        Where a thread finds the factors of step k of `tile`, for rows `first_row` and `first_row` + 8 of its fragment; and of
        the step after. As pointers that move: what an address is computed from would be computed between the tensor cores' instructions,
        which wait for it.
    read : device function (state) -> (float32, float32, float32)
        Loads alone.
    join : device function (read) -> (float32, float32)
        The factors of both rows, of what `read` has given.
    """
    first: object
    after: object
    read: object
    join: object


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
    FACTORS = factors is not None
    first_factors, factors_after, read_factors, join_factors = factors or (None, None, None, None)

    @device_function
    def step(acc, total, state, bars, k, end, stages, tile, thread, out, found, scales):
        pipe.consumer_wait(bars, state)
        multiply(acc, stages, state, tile, k)
        if FACTORS:
            if k + 1 < end:
                scales = factors_after(scales, out)
            coming = read_factors(scales)
        else:
            coming = found
        wait_all(acc)
        pipe.consumer_release(bars, state, thread)
        if FACTORS:
            low, high = join_factors(found)
            for i in range(sums // 4):
                total[4 * i] = fma(acc[4 * i], low, total[4 * i])
                total[4 * i + 1] = fma(acc[4 * i + 1], low, total[4 * i + 1])
                total[4 * i + 2] = fma(acc[4 * i + 2], high, total[4 * i + 2])
                total[4 * i + 3] = fma(acc[4 * i + 3], high, total[4 * i + 3])
        else:
            for i in range(sums):
                total[i] = total[i] + acc[i]
        return pipe.next(state), coming, scales

    @device_function
    def sum_steps(acc, total, state, bars, begin, end, stages, tile, first_row, thread, out):
        if not FACTORS:
            for k in range(begin, end):
                state, _, _ = step(acc, total, state, bars, k, end, stages, tile, thread, out, (), ())
            return state
        if begin < end:
            scales = first_factors(tile, begin, first_row, thread, out)
            even = read_factors(scales)
            k = begin
            while k < end:  # two steps a turn, so that no register is copied which a load is on its way to
                state, odd, scales = step(acc, total, state, bars, k, end, stages, tile, thread, out, even, scales)
                if k + 1 < end:
                    state, even, scales = step(acc, total, state, bars, k + 1, end, stages, tile, thread, out, odd, scales)
                k = k + 2
        return state
    return sum_steps
