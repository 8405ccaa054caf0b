"""Steps of 8-bit floats in the Hopper main loop: each step's products are summed by the tensor cores, the steps by the threads, in float32.

Tensor cores add products of 8-bit floats with some 14 bits, however many there are; hence a second set of accumulators. Where scales change
along k, a step's sums count for a factor of their own. The four lanes that have the same rows of a fragment load those of four steps, one
each, while the four steps before are computed, and hand them round: one step's at a time would be four times the lines of the L1, which
wgmma reads its operands through.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, f32
from ..device.fastmath import fma, minimum
from ..device.warp import broadcast

TOGETHER = 4  # steps, and lanes that have the same rows


class Factors(NamedTuple):
    """What each step's products of 8-bit floats count for, where scales change along k.

    find : device function (tile, first_row, out) -> state
        Where the factors are of the steps of `tile`, for rows `first_row` and `first_row` + 8 of a thread's fragment.
    read : device function (state, k, out) -> (float32, float32, float32)
        What the factors of step k are made of: loads alone.
    join : device function (read) -> (float32, float32)
        The factors of both rows, of what `read` has given.
    """
    find: object
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
    def read_ahead(coming, found, k, end, thread, out):
        coming[0], coming[1], coming[2] = read(found, minimum(k + (thread & (TOGETHER - 1)), end - 1), out)

    @device_function
    def sum_scaled(acc, total, low, high):
        for i in range(sums // 4):
            total[4 * i] = fma(acc[4 * i], low, total[4 * i])
            total[4 * i + 1] = fma(acc[4 * i + 1], low, total[4 * i + 1])
            total[4 * i + 2] = fma(acc[4 * i + 2], high, total[4 * i + 2])
            total[4 * i + 3] = fma(acc[4 * i + 3], high, total[4 * i + 3])

    @device_function
    def step(j, state, s):
        acc, total, bars, k, end, stages, tile, thread, out, found, coming, low, high = s
        if k + j < end:
            pipe.consumer_wait(bars, state)
            multiply(acc, stages, state, tile, k + j)
            if j == 0:
                read_ahead(coming, found, k + TOGETHER, end, thread, out)
            source = (thread & (32 - TOGETHER)) + j
            one, other = broadcast(low, source), broadcast(high, source)  # each lane names its own source
            wait_all(acc)
            pipe.consumer_release(bars, state, thread)
            state = pipe.next(state)
            sum_scaled(acc, total, one, other)
        return state
    steps = _carried(TOGETHER, step)

    @device_function
    def sum_steps(acc, total, state, bars, begin, end, stages, tile, first_row, thread, out):
        if begin < end:
            found, coming = find(tile, first_row, out), cuda.local.array(3, f32)
            read_ahead(coming, found, begin, end, thread, out)
            for k in range(begin, end, TOGETHER):
                low, high = join((coming[0], coming[1], coming[2]))
                state = steps(0, state, (acc, total, bars, k, end, stages, tile, thread, out, found, coming, low, high))
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
