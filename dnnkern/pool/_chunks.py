"""Chunks of contiguous channels, rows of contiguous elements, and how a thread finds its own."""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ..device import device_function, i32, i64
from ..device.groups import access_words
from ..device.index import Divisor, ceil_div, divide_remainder, divisor, unflatten4
from ..engine.offsets import LIMIT
from ..host.launch import Argument
from ._windows import axes_argument

CHUNK = 16  # bytes


def chunk_of(problem):
    """Channels per chunk: 16 bytes of them, or the largest power of two that divides their number."""
    count = CHUNK // problem.x.itemsize
    return math.gcd(count, problem.c)


def refusal(problem):
    """Why the channels cannot be taken in chunks."""
    named = (("x", problem.x_strides), ("y", problem.y_strides), *((("index", problem.index_strides),) if problem.index else ()))
    for name, strides in named:
        if strides[1] != 1 and problem.c > 1:
            return f"channels are {strides[1]} elements apart in {name}; expected contiguous channels"
    return None


def rows_refusal(problem):
    """Why windows do not slide along rows of contiguous elements."""
    if problem.adaptive:
        return "the windows are adaptive; expected windows of one size"
    for name, tensor, strides, n in (("x", problem.x, problem.x_strides, problem.image[2]),
                                     ("y", problem.y, problem.y_strides, problem.out[2]),
                                     ("index", problem.index, problem.index_strides, problem.out[2])):
        if tensor is not None and strides[-1] != 1 and n > 1:
            return f"elements of a row are {strides[-1]} apart in {name}; expected contiguous rows"
    if problem.dilations[2] != 1:
        return f"dilation {problem.dilations[2]} along the row; expected 1"
    return None


def numbers_refusal(problem, units):
    """Why 32-bit integers do not suffice."""
    if problem.is_max and problem.pixels >= LIMIT:
        return f"an image has {problem.pixels} pixels; expected fewer than 2**31"
    if units >= LIMIT - 2 ** 20:
        return f"{units} threads; expected fewer than 2**31 - 2**20"
    reach = max(max(n + 2 * d * t + b, (m + 1) * s, (n + 2) * (m + 2) if problem.adaptive else 0) for n, m, t, s, d, b in
                zip(problem.image, problem.out, problem.taps, problem.steps, problem.dilations, problem.before))
    if reach >= 2 ** 30:
        return f"the windows span {reach} pixels; expected fewer than 2**30"
    return None


@dataclass(frozen=True)
class Access:
    """32-bit words per access to x, y and the index; 0: element by element."""
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


class Extents(NamedTuple):
    """Of what threads divide among them along each dimension."""
    d: Divisor
    h: Divisor
    w: Divisor


def arguments(problem, extents, chunks):
    """Kernel parameters: the number of chunks, the axes, the three extents that threads divide, the strides."""
    extents = Extents(*(divisor(max(n, 1)) for n in extents))
    return (Argument(Divisor, divisor(max(chunks, 1))), axes_argument(problem), Argument(Extents, extents), *problem.addresses())


@functools.cache
def make_coordinates(width_fastest):
    """``coordinates(i, chunks, extents) -> (image, chunk, three coordinates)`` of a flat index.

    Its fastest dimension is the width, or else the chunk.
    """
    @device_function
    def coordinates(i, chunks, extents):
        chunk = 0
        if not width_fastest:
            i, chunk = divide_remainder(i, chunks)
        i, d, h, w = unflatten4(i, extents.d, extents.h, extents.w)
        if width_fastest:
            i, chunk = divide_remainder(i, chunks)
        return i, chunk, d, h, w
    return coordinates


@device_function
def offset(n, c, d, h, w, stride):
    """Of an element in an array, int64."""
    return n * stride.n + c * stride.c + d * stride.d + h * stride.h + w * stride.w


@functools.cache
def make_pixel_offset(wide):
    """``pixel_offset(d, h, w, stride)`` within an image, int64 if `wide`, else int32."""
    Int = i64 if wide else i32

    @device_function
    def pixel_offset(d, h, w, stride):
        return d * Int(stride.d) + h * Int(stride.h) + w * Int(stride.w)
    return pixel_offset


def blocks(threads, block):
    """Grid of so many threads."""
    return ceil_div(threads, block), 1, 1
