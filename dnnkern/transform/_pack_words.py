"""Elements that were loaded one by one, put together into the words of one store."""
import functools

from ..device import device_function, u32


@functools.cache
def make_pack(itemsize, count):
    """Device function ``pack(parts, words)`` and how many words `count` elements of `itemsize` bytes are.

    An element is a word of `parts`, or `itemsize` / 4 of them. Alone, an element of 1 or 2 bytes stays the word it is.
    """
    PER = 4 // itemsize if itemsize < 4 else 1
    WORDS = count * itemsize // 4 if itemsize >= 4 else max(count // PER, 1)
    USED, BITS = min(PER, count), 8 * itemsize
    if USED == 4:
        @device_function
        def pack(parts, words):
            for w in range(WORDS):
                low = u32(parts[4 * w] | u32(parts[4 * w + 1] << u32(8)))
                words[w] = u32(low | u32(u32(parts[4 * w + 2] | u32(parts[4 * w + 3] << u32(8))) << u32(16)))
    elif USED == 2:
        @device_function
        def pack(parts, words):
            for w in range(WORDS):
                words[w] = u32(parts[2 * w] | u32(parts[2 * w + 1] << u32(BITS)))
    else:
        @device_function
        def pack(parts, words):
            for w in range(WORDS):
                words[w] = parts[w]
    return pack, WORDS
