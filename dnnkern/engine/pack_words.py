"""Elements that were loaded one by one, put together into the words of one store."""
import functools

from ..device import device_function


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
                low = parts[4 * w] | (parts[4 * w + 1] << 8)
                words[w] = low | ((parts[4 * w + 2] | (parts[4 * w + 3] << 8)) << 16)
    elif USED == 2:
        @device_function
        def pack(parts, words):
            for w in range(WORDS):
                words[w] = parts[2 * w] | (parts[2 * w + 1] << BITS)
    else:
        @device_function
        def pack(parts, words):
            for w in range(WORDS):
                words[w] = parts[w]
    return pack, WORDS
