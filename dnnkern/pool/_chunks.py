"""Chunks of channels and rows of elements that lie side by side in memory, and how images, places and an index are addressed by them."""
import functools
import math
from dataclasses import dataclass

from ..device import device_function
from ..device.groups import access_words
from ..device.index import ceil_div, divide_remainder, divisor
from ..engine.offsets import LIMIT
from ..host.launch import Argument
from ._windows import geometry32

CHUNK = 16  # bytes


def chunk_of(problem):
    """Channels of a chunk: as many as are 16 bytes, or the largest power of two that divides their number."""
    count = CHUNK // problem.x.itemsize
    return math.gcd(count, problem.c)


def refusal(problem):
    """Why the channels cannot be taken in chunks."""
    named = (("x", problem.x_strides), ("y", problem.y_strides), *((("index", problem.index_strides),) if problem.index else ()))
    for name, strides in named:
        if strides[1] != 1 and problem.c > 1:
            return f"channels are {strides[1]} elements apart in {name}; expected them side by side"
    return None


def rows_refusal(problem):
    """Why windows do not step over rows of contiguous elements."""
    if problem.adaptive:
        return "the windows are adaptive; expected them all alike"
    for name, tensor, strides, n in (("x", problem.x, problem.x_strides, problem.image[2]),
                                     ("y", problem.y, problem.y_strides, problem.out[2]),
                                     ("index", problem.index, problem.index_strides, problem.out[2])):
        if tensor is not None and strides[4] != 1 and n > 1:
            return f"elements of a row are {strides[4]} apart in {name}; expected them side by side"
    if problem.dilations[2] != 1:
        return f"dilation {problem.dilations[2]} along the row; expected 1"
    return None


def numbers_refusal(problem, units):
    """Why 32-bit numbers do not hold what is counted."""
    if units >= LIMIT - 2 ** 20:
        return f"{units} threads; expected fewer than 2**31 - 2**20"
    reach = max(max(n + 2 * d * t + b, (m + 1) * s, (n + 2) * (m + 2) if problem.adaptive else 0) for n, m, t, s, d, b in
                zip(problem.image, problem.out, problem.taps, problem.steps, problem.dilations, problem.before))
    if reach >= 2 ** 30:
        return f"the windows reach over {reach} pixels; expected fewer than 2**30"
    return None


@dataclass(frozen=True)
class Access:
    """32-bit words of one access to x, y and the index, 0: element by element."""
    x: int
    y: int
    index: int


def access_of(problem, count, along=1):
    """The widest accesses that alignment and strides allow to groups of `count` neighbours along a dimension: 1, channels; 4, the width."""
    def words(tensor, strides):
        return access_words(tensor, count, [s for k, s in enumerate(strides) if k != along])
    return Access(words(problem.x, problem.x_strides), words(problem.y, problem.y_strides),
                  words(problem.index, problem.index_strides) if problem.index else 1)


def is_wide(problem):
    """Whether an element's offset within an image does not fit 32 bits."""
    strides = (problem.x_strides, problem.image), (problem.y_strides, problem.out), (problem.index_strides, problem.out)
    return any(sum(abs(s) * (n - 1) for s, n in zip(some[2:], extents)) + problem.c >= LIMIT // 2 for some, extents in strides)


def arguments(problem, extents, chunks):
    """Kernel parameters: divisors of the chunks and of three extents, the geometry, the strides."""
    divisors = tuple(v for n in (chunks, *extents) for v in divisor(max(n, 1)))
    return (Argument("uint32x12", divisors), geometry32(problem), *problem.addresses())


@functools.cache
def make_coordinates(first):
    """``coordinates(i, divisors) -> (image, chunk, three coordinates)``; `first`: the width is fastest, channels are behind the extents."""
    @device_function
    def coordinates(i, divisors):
        chunks = divisors[0], divisors[1], divisors[2]
        chunk = 0
        if not first:
            i, chunk = divide_remainder(i, chunks)
        i, w = divide_remainder(i, (divisors[9], divisors[10], divisors[11]))
        i, h = divide_remainder(i, (divisors[6], divisors[7], divisors[8]))
        i, d = divide_remainder(i, (divisors[3], divisors[4], divisors[5]))
        if first:
            i, chunk = divide_remainder(i, chunks)
        return i, chunk, d, h, w
    return coordinates


@device_function
def offset(n, c, d, h, w, strides):
    """Offset of an element, from int32 coordinates."""
    return n * strides[0] + c * strides[1] + d * strides[2] + h * strides[3] + w * strides[4]


def blocks(units, threads):
    """Grid of so many units of work, a thread each."""
    return ceil_div(units, threads), 1, 1
