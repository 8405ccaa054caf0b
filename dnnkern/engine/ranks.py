"""Ranks in a warp: which lanes have the same value, and how many come before one. What stable sorting by counting is made of."""
import functools

from ..device import cuda, device_function, i32, u32
from ..device.warp import ballot, lane_id


@functools.cache
def make_peers(bits):
    """Device function ``peers(value, valid)``: the valid lanes of the warp that have this lane's value, of so many bits."""
    @device_function
    def peers(value, valid):
        found = ballot(valid)
        for b in range(bits):
            bit = (value >> b) & 1
            found = found & (ballot(bit) ^ (u32(0) if bit else u32(0xFFFFFFFF)))
        return found
    return peers


@device_function
def count_lanes(mask):
    """How many lanes a mask has."""
    return i32(cuda.popc(mask))


@device_function
def before(mask):
    """How many lanes of a mask come before this one."""
    return count_lanes(mask & ((1 << u32(lane_id())) - 1))
