"""Loads of a thread that are on their way together: what streams an array through registers once.

A flight is `count` loads, each of up to 16 bytes of neighbouring elements, issued before the first is used. They lie in a local array as
they came, and are taken apart when it is their turn::

    flight = make_flight("bfloat16", words=4, count=4)
    SCALAR, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values

    buffer, some = cuda.local.array(LENGTH, SCALAR), cuda.local.array(VECTOR, f32)         # in a kernel
    for u in range(4):
        fetch(buffer, u, x, i64(first + u * step), first + u * step < n)
    for u in range(4):
        values(some, buffer, u)
"""
import functools
from typing import Callable, NamedTuple

from . import device_function, f32, f64, i32, u32
from .convert import element
from .vec import advance, as_u32, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into


class Flight(NamedTuple):
    """What `make_flight` makes.

    Attributes
    ----------
    scalar : type
        Of the local array that holds the loads: 32-bit words, or values where elements are loaded one by one.
    length : int
        Its extent.
    vector : int
        Elements of one load.
    fetch : device function ``fetch(buffer, u, p, i, ok)``
        Load number u of the flight begins at element i of pointer p; where not `ok`, nothing is read and the elements are 0.
    values : device function ``values(some, buffer, u)``
        The elements of load u, in the type that is computed with.
    """
    scalar: object
    length: int
    vector: int
    fetch: Callable
    values: Callable


@functools.cache
def make_flight(dtype, words, count):
    """`count` loads of `words` 32-bit words each, 4, 2 or 1, to which the elements are aligned; 0: of single elements."""
    e = element(dtype)
    Value = f64 if e.compute == "float64" else f32
    if not words:
        load = e.load

        @device_function
        def fetch(buffer, u, p, i, ok):
            value = Value(0)
            if ok:
                value = load(p, i)
            buffer[u] = value

        @device_function
        def values(some, buffer, u):
            some[0] = buffer[u]
        return Flight(Value, count, 1, fetch, values)
    load_into = {4: load4_nc_if_into, 2: load2_nc_if_into, 1: load1_nc_if_into}[words]
    whole, unpack, pairs = e.unpack_chunk, e.unpack, e.storage.itemsize == 2

    @device_function
    def fetch(buffer, u, p, i, ok):
        load_into(buffer, words * u, as_u32(advance(p, i)), i32(0), i32(ok))

    @device_function
    def values(some, buffer, u):
        if words == 4:
            whole(some, 0, buffer, words * u)
        elif pairs:
            for w in range(words):
                some[2 * w], some[2 * w + 1] = unpack(buffer[words * u + w])
        else:
            for w in range(words):
                some[w] = unpack(buffer[words * u + w])
    return Flight(u32, count * words, 4 * words // e.storage.itemsize, fetch, values)
