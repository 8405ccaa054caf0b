"""Which elements are kept: the random words that every algorithm draws, and what they do to an element."""
import functools
import math

from ..device import device_function, u32
from ..device.groups import scalar_of
from ..device.philox import philox

GROUP = 8
"""Elements of one call of Philox, 16 random bits each: a byte of the mask."""
STEPS = 1 << 16
"""Probabilities are multiples of one over this: an element is kept or not by 16 random bits."""


def drawn(p):
    """(random words whose upper half is below this one's drop an element, what the others are multiplied by), for a probability."""
    return min(math.floor(p * STEPS + 0.5), STEPS - 1) << 16, 1 / (1 - p)


@device_function
def draw(words, j, seed, offset, group):
    """words[j:j+4] become the random words of elements 8 * group to 8 * group + 7."""
    a, b, c, d = philox(seed, group, offset)
    words[j] = a
    words[j + 1] = b
    words[j + 2] = c
    words[j + 3] = d


@device_function
def is_kept(words, k, threshold):
    """Whether element k is kept: its half of a word, lower halves first, is the upper half of `threshold` at least."""
    word = words[k >> 1]
    if k & 1 == 0:
        word = word << 16
    return word >= threshold


@functools.cache
def make_kept(dtype):
    """Device function ``kept(value, factor, keep)``: value * factor, or zero."""
    T = scalar_of(dtype)

    @device_function
    def kept(value, factor, keep):
        return T(value * factor) if keep else T(0)
    return kept


@device_function
def bit_of(bits, k):
    """Bit k, which says whether element k is kept."""
    return (bits >> u32(k)) & 1 != 0
