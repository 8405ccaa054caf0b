"""A small square transposed in registers: as many rows as a 16-byte chunk has elements, so that chunks go in and chunks come out."""
import functools

from ...device import device_function, u32
from ...device.numeric import permute_bytes


@functools.cache
def make_column(itemsize):
    """Device function ``column(words, i) -> four words``: element i of each row, of rows of four words each, first row first.

    `i` has to be a constant where it is used: the words are to stay in registers. Elements of 2 bytes take one instruction a word, of 1
    byte two (they share their first half with a neighbour), larger ones none.
    """
    if itemsize == 1:
        @device_function
        def part(words, i, row):
            q = i >> 2
            pick = u32(0x5140) if i & 2 == 0 else u32(0x7362)
            low = permute_bytes(words[4 * row + q], words[4 * row + 4 + q], pick)
            high = permute_bytes(words[4 * row + 8 + q], words[4 * row + 12 + q], pick)
            return permute_bytes(low, high, u32(0x5410) if i & 1 == 0 else u32(0x7632))

        @device_function
        def column(words, i):
            return part(words, i, 0), part(words, i, 4), part(words, i, 8), part(words, i, 12)
    elif itemsize == 2:
        @device_function
        def part(words, i, row):
            q = i >> 1
            return permute_bytes(words[4 * row + q], words[4 * row + 4 + q], u32(0x5410) if i & 1 == 0 else u32(0x7632))

        @device_function
        def column(words, i):
            return part(words, i, 0), part(words, i, 2), part(words, i, 4), part(words, i, 6)
    elif itemsize == 4:
        @device_function
        def column(words, i):
            return words[i], words[4 + i], words[8 + i], words[12 + i]
    elif itemsize == 8:
        @device_function
        def column(words, i):
            return words[2 * i], words[2 * i + 1], words[2 * i + 4], words[2 * i + 5]
    else:
        @device_function
        def column(words, i):
            return words[0], words[1], words[2], words[3]
    return column
