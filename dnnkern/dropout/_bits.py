"""Which elements are kept: the bits that every algorithm draws, and what they do to an element."""
import functools

from ..device import device_function, u32
from ..device.groups import scalar_of
from ..device.philox import philox

GROUP = 8
"""Elements of one call of Philox, 16 random bits each: a byte of the mask."""


@device_function
def _pair(word, threshold):
    """Two bits: whether the lower and the upper half of a word are the threshold at least."""
    low = u32(1) if u32(word & u32(0xFFFF)) >= threshold else u32(0)
    high = u32(2) if u32(word >> u32(16)) >= threshold else u32(0)
    return u32(low | high)


@device_function
def draw(seed, offset, group, threshold):
    """The byte of the mask of elements 8 * group to 8 * group + 7."""
    a, b, c, d = philox(seed, group, offset)
    low = u32(_pair(a, threshold) | u32(_pair(b, threshold) << u32(2)))
    high = u32(_pair(c, threshold) | u32(_pair(d, threshold) << u32(2)))
    return u32(low | u32(high << u32(4)))


@functools.cache
def make_kept(dtype):
    """Device function ``kept(value, factor, bits, k)``: value * factor where bit k is set, else zero."""
    T = scalar_of(dtype)

    @device_function
    def kept(value, factor, bits, k):
        return T(value * factor) if u32(u32(bits >> u32(k)) & u32(1)) else T(0)
    return kept
