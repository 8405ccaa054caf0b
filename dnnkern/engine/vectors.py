"""Accesses of a unit, 1 to 16 bytes, to global and shared memory: what lets one kernel text serve every alignment.

A unit of 4, 8 or 16 bytes is 1, 2 or 4 words; one of 1 or 2 bytes is an element of the arrays' own type.
"""
import functools

from ..device import device_function, u8, u16, u32
from ..device.vec import (as_u32, load1_if, load1_nc_if, load2_if, load2_nc_if, load4_if, load4_nc_if, load_shared_2u32, load_shared_4u32,
                          load_shared_u32, store2, store4, store_shared_2u32, store_shared_4u32, store_shared_u32)

UNITS = (16, 8, 4, 2, 1)


def unit_of(alignment, *counts, itemsize):
    """The largest unit that divides an alignment in bytes and these counts of elements; an element at least."""
    fits = (u for u in UNITS if u > itemsize and u >= 4 and all(v % u == 0 for v in (alignment, *(c * itemsize for c in counts))))
    return next(fits, itemsize)


def word_of(itemsize):
    """(type, its name, how many of it an element is): words of 32 bits for elements of 4 bytes and more."""
    return {1: (u8, "uint8", 1), 2: (u16, "uint16", 1)}.get(itemsize, (u32, "uint32", itemsize // 4))


@functools.cache
def make_unit_moves(unit, itemsize, plain=False):
    """Device functions of a unit, for pointers to the word type of `itemsize`, and the words a unit takes in a local array::

        load(words, k, p, ok)                       words[k:] = the unit at p, or 0 where not `ok`
        store(p, words, k)
        load_shared(words, k, array, base, at)      the unit at byte `at` of a 1-D shared array, whose shared address is `base`
        store_shared(array, base, at, words, k)

    `plain`: ordinary loads, for memory that the kernel writes; else through the read-only path.
    """
    load_1, load_2, load_4 = (load1_if, load2_if, load4_if) if plain else (load1_nc_if, load2_nc_if, load4_nc_if)
    if unit == 16:
        @device_function
        def load(words, k, p, ok):
            words[k], words[k + 1], words[k + 2], words[k + 3] = load_4(as_u32(p), 0, ok)

        @device_function
        def store(p, words, k):
            store4(as_u32(p), 0, (words[k], words[k + 1], words[k + 2], words[k + 3]))

        @device_function
        def load_shared(words, k, array, base, at):
            words[k], words[k + 1], words[k + 2], words[k + 3] = load_shared_4u32(base + u32(at))

        @device_function
        def store_shared(array, base, at, words, k):
            store_shared_4u32(base + u32(at), words[k], words[k + 1], words[k + 2], words[k + 3])
    elif unit == 8:
        @device_function
        def load(words, k, p, ok):
            words[k], words[k + 1] = load_2(as_u32(p), 0, ok)

        @device_function
        def store(p, words, k):
            store2(as_u32(p), 0, (words[k], words[k + 1]))

        @device_function
        def load_shared(words, k, array, base, at):
            words[k], words[k + 1] = load_shared_2u32(base + u32(at))

        @device_function
        def store_shared(array, base, at, words, k):
            store_shared_2u32(base + u32(at), words[k], words[k + 1])
    elif unit == 4:
        @device_function
        def load(words, k, p, ok):
            words[k] = load_1(as_u32(p), 0, ok)

        @device_function
        def store(p, words, k):
            as_u32(p)[0] = words[k]

        @device_function
        def load_shared(words, k, array, base, at):
            words[k] = load_shared_u32(base + u32(at))

        @device_function
        def store_shared(array, base, at, words, k):
            store_shared_u32(base + u32(at), words[k])
    else:
        T, SHIFT = word_of(itemsize)[0], itemsize - 1
        if unit != itemsize:
            raise ValueError(f"a unit of {unit} bytes for elements of {itemsize}: units below 4 bytes are elements")

        if itemsize == 2:
            @device_function
            def load(words, k, p, ok):
                words[k] = u32(load_1(p, 0, ok))
        else:
            @device_function
            def load(words, k, p, ok):
                value = u32(0)
                if ok:
                    value = u32(p[0])
                words[k] = value

        @device_function
        def store(p, words, k):
            p[0] = T(words[k])

        @device_function
        def load_shared(words, k, array, base, at):
            words[k] = u32(array[at >> SHIFT])

        @device_function
        def store_shared(array, base, at, words, k):
            array[at >> SHIFT] = T(words[k])
    return load, store, load_shared, store_shared, max(unit // 4, 1)
