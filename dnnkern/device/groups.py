"""Groups of neighbouring elements between memory and registers, in accesses of 16 bytes or what alignment leaves of them."""
import functools
from typing import Callable, NamedTuple

from . import cuda, device_function, f32, f64, i32, u32
from .convert import SCALARS, element
from .numeric import double_words, words_double
from .vec import (advance, as_u32, load1_if_into, load1_nc_if_into, load2_if_into, load2_nc_if_into, load4_if_into, load4_nc_if_into,
                  store2_from, store4_from)

_LOADS = {(4, True): load4_nc_if_into, (2, True): load2_nc_if_into, (1, True): load1_nc_if_into,
          (4, False): load4_if_into, (2, False): load2_if_into, (1, False): load1_if_into}


def access_words(tensor, count, steps):
    """32-bit words of one access where groups of `count` elements are `steps` elements apart; 0: elements one by one."""
    itemsize = tensor.itemsize
    for words in (4, 2, 1):
        size = 4 * words
        if not (count * itemsize % size or tensor.alignment % size or any(s * itemsize % size for s in steps)) and size >= itemsize:
            return 0 if words == 2 and itemsize == 8 else words
    return 0


def scalar_of(dtype):
    """Kernel type in which elements of `dtype` are computed with."""
    return f64 if dtype == "float64" else f32


@functools.cache
def make_reader(dtype, count, words, constant=True, compute=None):
    """(type, length, fetch, unpack) of groups of `count` elements read `words` 32-bit words at a time, 0 for one by one.

    ``fetch(buffer, k, p, i, ok)`` reads p[i:i+count] into a raw buffer from k on, zeros where not `ok`; ``unpack(values, k, buffer, j)``
    converts it. The buffer is a local array of `type`, of `length` a group. With `constant` nobody writes the memory meanwhile;
    `compute` is `element`'s.
    """
    e, T = element(dtype, compute), SCALARS[compute] if compute else scalar_of(dtype)
    itemsize = e.storage.itemsize
    if not words:
        load = e.load

        @device_function
        def fetch(buffer, k, p, i, ok):
            for v in range(count):
                value = T(0)
                if ok:
                    value = T(load(advance(p, i), v))
                buffer[k + v] = value

        @device_function
        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = buffer[j + v]
        return T, count, fetch, unpack
    length, load_into, unpack_word = count * itemsize // 4, _LOADS[words, constant], e.unpack
    accesses = length // words

    @device_function
    def fetch(buffer, k, p, i, ok):
        for a in range(accesses):
            load_into(buffer, k + a * words, as_u32(advance(p, i)), a * words, i32(ok))

    if itemsize == 8:
        join = words_double if dtype == "float64" else unpack_word

        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = join(buffer[j + 2 * v], buffer[j + 2 * v + 1])
    elif itemsize == 4:
        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = unpack_word(buffer[j + v])
    elif itemsize == 2:
        def unpack(values, k, buffer, j):
            for w in range(length):
                values[k + 2 * w], values[k + 2 * w + 1] = unpack_word(buffer[j + w])
    else:
        def unpack(values, k, buffer, j):
            for w in range(length):
                values[k + 4 * w], values[k + 4 * w + 1], values[k + 4 * w + 2], values[k + 4 * w + 3] = unpack_word(buffer[j + w])
    return u32, length, fetch, device_function(unpack)


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
def make_flight(dtype, words, count, compute=None):
    """`count` loads of a thread that are on their way together, all issued before the first is used: what streams an array through
    registers once. Each is of `words` 32-bit words, 4, 2 or 1, to which the elements are aligned; 0: of single elements. `compute` is
    `element`'s::

        flight = make_flight("bfloat16", words=4, count=4)
        SCALAR, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values

        buffer, some = cuda.local.array(LENGTH, SCALAR), cuda.local.array(VECTOR, f32)     # in a kernel
        for u in range(4):
            fetch(buffer, u, x, i64(first + u * step), first + u * step < n)
        for u in range(4):
            values(some, buffer, u)
    """
    vector = max(1, 4 * words // element(dtype, compute).storage.itemsize)
    T, length, read, unpack = make_reader(dtype, vector, words, compute=compute)

    @device_function
    def fetch(buffer, u, p, i, ok):
        read(buffer, u * length, p, i, ok)

    @device_function
    def values(some, buffer, u):
        unpack(some, 0, buffer, u * length)
    return Flight(T, count * length, vector, fetch, values)


@functools.cache
def make_word_writer(length, words):
    """Device function ``put(q, buffer)``: `length` 32-bit words of a local array to q[:length], `words` at a time."""
    @device_function
    def put(q, buffer):
        for a in range(length // words):
            if words == 4:
                store4_from(q, a * words, buffer, a * words)
            elif words == 2:
                store2_from(q, a * words, buffer, a * words)
            else:
                q[a] = buffer[a]
    return put


@functools.cache
def make_writer(dtype, count, words):
    """Device function ``put(p, i, values, k)``: values[k:k+count], rounded, to p[i:i+count]."""
    e = element(dtype)
    store, pack, itemsize = e.store, e.pack, e.storage.itemsize
    length = count * itemsize // 4
    if not words:
        def put(p, i, values, k):
            for v in range(count):
                store(p, i + v, values[k + v])
        return device_function(put)

    put_words = make_word_writer(length, words)

    @device_function
    def packed(buffer, values, k):
        if itemsize == 8:
            for v in range(count):
                buffer[2 * v], buffer[2 * v + 1] = double_words(values[k + v])
        elif itemsize == 4:
            for v in range(count):
                buffer[v] = pack(values[k + v])
        elif itemsize == 2:
            for w in range(length):
                buffer[w] = pack(values[k + 2 * w], values[k + 2 * w + 1])
        else:
            for w in range(length):
                buffer[w] = pack(values[k + 4 * w], values[k + 4 * w + 1], values[k + 4 * w + 2], values[k + 4 * w + 3])

    @device_function
    def put(p, i, values, k):
        buffer = cuda.local.array(length, u32)
        packed(buffer, values, k)
        put_words(as_u32(advance(p, i)), buffer)
    return put
