"""What the naive algorithms of attention share: a thread computes `CHUNK` elements of a row of the result, from products of whole rows."""
import functools
from typing import NamedTuple

from ..device import device_function, i64
from ..device.convert import element
from ..device.index import ceil_div

THREADS, CHUNK = 128, 8


def chunks_of(elements):
    """Threads per row of so many elements."""
    return max(1, ceil_div(elements, CHUNK))


class Vector(NamedTuple):
    """A row in memory: where its elements begin, and the stride between them."""
    data: object
    at: i64
    step: i64


@functools.cache
def make_dot(dtype, real, other=None):
    """Device function ``dot(a, b, n)``: the sum of n products of two `Vector`s; b is of `other`, or of a's dtype."""
    load, load_b, T = element(dtype).load, element(other or dtype).load, real

    @device_function
    def dot(a, b, n):
        acc = T(0)
        for c in range(n):
            acc = T(acc + T(load(a.data, a.at + c * a.step)) * T(load_b(b.data, b.at + c * b.step)))
        return acc
    return dot
