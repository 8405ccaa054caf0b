"""Positions of maxima in memory, int32 or int64; in registers they are pixels of 32 bits."""
import functools

from ..device import cuda, device_function, i32, u32
from ..device.groups import make_reader, make_word_writer
from ..device.vec import as_i32

WORDS = {"int32": 1, "int64": 2}
"""32-bit words of an index."""

NOWHERE = 0xFFFFFFFF
"""No pixel."""


@functools.cache
def make_index_reader(dtype, count, words):
    """(fetch, narrow) of groups of `count` indices read `words` 32-bit words at a time.

    ``fetch(buffer, k, p, i, ok)`` reads p[i:i+count] into a local array of uint32 from k on, zeros where not `ok`; then
    ``narrow(buffer, k, j)`` makes of the words from j on, j being k or more, the pixels buffer[k:k+count]. What is no pixel remains none.
    """
    if dtype == "int64":
        _, _, fetch, _ = make_reader("float64", count, words or 2)

        @device_function
        def narrow(buffer, k, j):
            for v in range(count):
                buffer[k + v] = buffer[j + 2 * v] if buffer[j + 2 * v + 1] == 0 else u32(NOWHERE)
    else:
        _, _, fetch, _ = make_reader("float32", count, words)

        @device_function
        def narrow(buffer, k, j):
            pass
    return fetch, narrow


@functools.cache
def make_pixel_of_tap(taps, columns):
    """Device function ``pixel_of_tap(tap, first, down, across)`` of taps that are numbered row by row, so many in a row: `first` is the
    pixel of tap 0, `down` and `across` are the pixels from a row of taps, and from a tap of a row, to the next."""
    shift = next(s for s in range(32) if all(t * -(-(1 << s) // columns) >> s == t // columns for t in range(taps)))
    factor = -(-(1 << shift) // columns)

    @device_function
    def pixel_of_tap(tap, first, down, across):
        row = (tap * factor) >> shift
        return first + row * down + (tap - row * columns) * across
    return pixel_of_tap


@functools.cache
def make_index_writer(dtype, count, words):
    """Device function ``put(q, pixels)``: `count` pixels of a local array of int32 to the indices q[:count]."""
    if dtype != "int64":
        return make_word_writer(count, words or 1)
    length, put_words = 2 * count, make_word_writer(2 * count, words or 2)

    @device_function
    def put(q, pixels):
        buffer = cuda.local.array(length, i32)
        for v in range(count):
            # the sign, of -1 where a window covers no pixel, is the upper word
            buffer[2 * v], buffer[2 * v + 1] = pixels[v], pixels[v] >> 31
        put_words(as_i32(q), buffer)
    return put
