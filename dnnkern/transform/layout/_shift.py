"""16 bytes from any address, in accesses of 16 bytes: two chunks that are aligned, shifted against each other in registers."""
import functools

from ...device import device_function, i32, u32
from ...device.index import funnel_shift
from ...device.vec import address, advance
from ...engine.vectors import make_unit_moves, word_of

WORDS = 8
"""Of a local array that `fetch` fills for one chunk."""


@functools.cache
def make_lead(itemsize):
    """Device function ``lead(p)``: how many elements a pointer is after the last multiple of 16 bytes."""
    LOG = itemsize.bit_length() - 1

    @device_function
    def lead(p):
        return i32(address(p, 0) & 15) >> LOG
    return lead


@functools.cache
def make_shift(itemsize):
    """Device functions, for pointers to the word type of `itemsize`::

        skew = fetch(words, k, p, before, after, wanted)
        shift(words, k, skew)

    `fetch` loads the aligned chunks that hold the 16 bytes at p into words[k] to words[k + 7]; `before` and `after` are how many elements
    of memory that may be read precede p and are there from p on. It returns how many bytes p is after the first of these chunks,
    or -1 where nothing is loaded: not `wanted`, or memory ends too early. `shift` then leaves the 16 bytes in words[k] to words[k + 3].
    """
    load, _, _, _, _ = make_unit_moves(16, itemsize)
    SCALE = word_of(itemsize)[2]
    PER = itemsize // SCALE                        # bytes of a word
    LOG, SIZE = PER.bit_length() - 1, itemsize.bit_length() - 1

    @device_function
    def fetch(words, k, p, before, after, wanted):
        skew = i32(address(p, 0) & 15)
        there = wanted and before >= skew >> SIZE and after >= (16 if skew == 0 else 32 - skew) >> SIZE
        first = advance(p, -(skew >> LOG))
        load(words, k, first, i32(there))
        load(words, k + 4, advance(first, 16 // PER), i32(there and skew != 0))
        return skew if there else -1

    @device_function
    def shift(words, k, skew):
        for w in range(6):
            words[k + w] = words[k + w + 2] if skew & 8 else words[k + w]
        if itemsize < 8:
            for w in range(5):
                words[k + w] = words[k + w + 1] if skew & 4 else words[k + w]
        if itemsize < 4:
            bits = u32((skew & 3) * 8)
            for w in range(4):
                words[k + w] = funnel_shift(words[k + w], words[k + w + 1], bits)
    return fetch, shift
