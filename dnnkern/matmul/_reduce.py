"""Sums of many values over the lanes of a warp at once."""
import functools

from ..device import device_function
from ..device.unroll import unrolled
from ..device.warp import add, shuffle_xor


@functools.cache
def make_halving(count, lane_bits):
    """Device function ``halve(acc, lane)``: sums acc[0:count] over the lanes that differ in their upper `lane_bits` bits.

    Every step halves the values a lane keeps: it passes one half on and adds what it gets to the other, so `count` values take about
    `count` shuffles instead of `count` times the number of steps. Afterwards acc[0:left] of a lane are the sums number ``first(lane)`` and
    following; where values run out before lanes do, several lanes hold the same. `count` is a power of two. Returns (halve, first, left).
    """
    steps = min(lane_bits, count.bit_length() - 1)
    left, rest = count >> steps, lane_bits - steps
    low = 5 - lane_bits + rest

    @device_function
    def halving(s, state):
        acc, lane = state
        half = count >> (s + 1)
        upper = (lane >> (4 - s)) & 1
        for i in range(half):
            # NOTE: loaded first and chosen then; a choice between two loads becomes a load from a chosen address, and acc local memory
            low, high = acc[i], acc[i + half]
            keep = high if upper else low
            give = low if upper else high
            acc[i] = add(keep, shuffle_xor(give, 16 >> s))
    halvings = unrolled(steps, halving) if steps else None

    @device_function
    def halve(acc, lane):
        if steps:
            halvings(0, (acc, lane))
        for s in range(rest):
            for i in range(left):
                acc[i] = add(acc[i], shuffle_xor(acc[i], 16 >> (steps + s)))

    @device_function
    def first(lane):
        return (lane >> low) * left
    return halve, first, left
