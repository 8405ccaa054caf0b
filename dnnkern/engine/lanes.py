"""Rows of elements, cut into chunks: a few chunks of neighbours a thread, loaded together, stored in units of up to 16 bytes.

A thread has some *lanes*, chunks of as many elements. For each lane the kernel says where it begins and which of its elements exist; all
lanes are loaded before anything is computed. If every element of every lane exists, accesses are in the units of the `Chunks`; else
elements are loaded and stored one by one, as many in flight, each under its condition.

The first output leads: chunks begin where it is aligned, whatever the address of its rows (`make_lead`). Units of the other arrays are the
largest to which they are then aligned as well. An input that has one value for a whole row is loaded once a lane, or once.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.vec import address, advance
from ..host.dtypes import ITEMSIZE
from .form import Form
from .pack_words import make_pack
from .values import make_unpack, make_words
from .vectors import make_unit_moves, word_of

UNITS = (16, 8, 4)


@dataclass(frozen=True)
class Chunks:
    """How the arrays of a form are cut: closure constants of a kernel.

    Attributes
    ----------
    units : tuple of int
        Bytes of an access to each array, inputs first; 0 for an input that has one value for a whole row.
    once : tuple of bool
        Whether an input is the same for all lanes of a thread.
    elements : int
        Of a chunk.
    align : int
        Elements of the first output that are one unit: its chunks begin at multiples. 0 where each row is known to begin at one.
    """
    units: tuple
    once: tuple
    elements: int
    align: int


def make_chunks(form, in_place=(), rows_stride=None) -> Chunks:
    """The chunks of a form; `in_place` are names of inputs that are an output, `rows_stride` the strides from lane to lane, where lanes are
    rows."""
    last, leader = form.dims[-1].strides, form.arrays[form.inputs]
    along = [a.itemsize for a, s in zip(form.arrays, last) if s]
    length = chunk_length(along)
    align = min(16, length * leader.itemsize) // leader.itemsize
    outer = [d.strides for d in form.dims[:-1]]
    static = leader.alignment >= align * leader.itemsize and all(s[form.inputs] % align == 0 for s in outer)
    units = []
    for k, a in enumerate(form.arrays):
        if not last[k]:
            units.append(0)
        elif k == form.inputs:
            units.append(align * a.itemsize)
        else:
            units.append(_unit(a, leader, [(s[k], s[form.inputs]) for s in outer], length, static, a.name in in_place))
    once = [not last[k] if rows_stride is None else not rows_stride[k] and (static or not last[k]) for k in range(form.inputs)]
    return Chunks(tuple(units), tuple(once), length, 0 if static else align)


def chunk_length(sizes):
    """Elements of a chunk, of the bytes of an element of each array that lies along the row: 16 bytes of the narrowest, 32 of the widest
    at most, and 16 at least.

    >>> [chunk_length(sizes) for sizes in ((4, 4), (2, 2, 2), (4, 1), (8, 8), (1, 1))]
    [4, 8, 8, 2, 16]
    """
    wide, narrow = max(sizes), min(sizes)
    return max(16 // wide, min(32 // wide, 16 // narrow))


def rows_refusal(form: Form) -> str | None:
    """Why the rows of a form cannot be cut into chunks."""
    if not form.size:
        return "there are no elements"
    last = form.dims[-1].strides
    for a, s in zip(form.arrays[:form.inputs], last):
        if s not in (0, 1):
            return f"{a.name} has the stride {s} along the dimension that is contiguous in the result; expected 1, or 0"
    if any(s != 1 for s in last[form.inputs:]):
        return f"the result has the stride {last[form.inputs]} along its innermost dimension; expected 1"
    return None


def _unit(a, leader, strides, length, static, same):
    """Bytes of an access to an array whose chunks begin where the leader's do."""
    size = a.itemsize
    if static:
        multiple = math.gcd(a.alignment, *(s * size for s, _ in strides))
    elif same:
        multiple = 16
    elif size == leader.itemsize:
        p, q = a.alignment, leader.alignment  # the addresses differ by a multiple of this
        apart = min(16, 2 * p) if p == q else min(p, q)
        multiple = math.gcd(apart, *((s - t) * size for s, t in strides))
    else:
        multiple = size
    return next((u for u in UNITS if u > size and multiple % u == 0 and u <= length * size), size)


def stored(dtype, compute=None):
    """The element type that a dtype is read as; truth values that are no integers are bytes."""
    return "uint8" if dtype == "bool" and compute is None else dtype


@functools.cache
def make_input(dtype, unit, copies, length, plain, compute=None, base=0, some=False):
    """Of one input: the words a thread holds; ``load_whole(words, p, step, shift)`` and ``load_part(words, p, step, shift, first, last)``
    of all lanes, into ``words[base:]``; ``take(values, words, lane, piece)``, the lane's values. `compute`: as `element` takes it. With
    `some` the former is ``load_whole(words, p, step, shift, first, last)``, of the lanes of which all elements exist."""
    size = ITEMSIZE[dtype]
    SCALE = word_of(size)[2]
    load_one, _, _, _, ONE = make_unit_moves(size, size, plain)
    if unit == 0:
        widen, _ = make_words(stored(dtype, compute), size, compute)

        @device_function
        def load_whole(words, p, step, shift):
            for lane in range(copies):
                load_one(words, base + lane * ONE, advance(p, i64(lane * step) * SCALE), 1)

        @device_function
        def load_part(words, p, step, shift, first, last):
            for lane in range(copies):
                load_one(words, base + lane * ONE, advance(p, i64(lane * step) * SCALE), first[lane] < last[lane])

        @device_function
        def take(values, words, lane, piece):
            widen(values, words, base + (lane if copies > 1 else 0) * ONE)
            for n in range(1, length):
                values[n] = values[0]
        return copies * ONE, load_part if some else load_whole, load_part, take
    load, _, _, _, LOADED = make_unit_moves(unit, size, plain)
    gather, _ = make_pack(size, length)
    unpack, _ = make_unpack(stored(dtype, compute), length, compute)
    LOADS, WORDS, STEP = length * size // unit, length * size // 4, unit * SCALE // size
    SINGLE = unit < 4
    PARTS = length * ONE

    @device_function
    def chunk(p, lane, step, shift):
        return advance(p, i64(lane * step + shift[lane]) * SCALE)

    @device_function
    def load_whole(words, p, step, shift):
        piece, parts = cuda.local.array(WORDS, u32), cuda.local.array(PARTS, u32)
        for lane in range(copies):
            at = chunk(p, lane, step, shift)
            if SINGLE:
                for n in range(length):
                    load_one(parts, n, advance(at, n), 1)
                gather(parts, piece)
                for w in range(WORDS):
                    words[base + lane * WORDS + w] = piece[w]
            else:
                for n in range(LOADS):
                    load(words, base + lane * WORDS + n * LOADED, advance(at, n * STEP), 1)

    @device_function
    def load_part(words, p, step, shift, first, last):
        piece, parts = cuda.local.array(WORDS, u32), cuda.local.array(PARTS, u32)
        for lane in range(copies):
            at = chunk(p, lane, step, shift)
            for n in range(length):
                load_one(parts, n * ONE, advance(at, n * SCALE), first[lane] <= n and n < last[lane])
            if ONE > 1:
                for w in range(WORDS):
                    words[base + lane * WORDS + w] = parts[w]
            else:
                gather(parts, piece)
                for w in range(WORDS):
                    words[base + lane * WORDS + w] = piece[w]

    @device_function
    def take(values, words, lane, piece):
        start = base + (lane if copies > 1 else 0) * WORDS
        for w in range(WORDS):
            piece[w] = words[start + w]
        unpack(values, piece)

    @device_function
    def load_some(words, p, step, shift, first, last):
        piece, parts = cuda.local.array(WORDS, u32), cuda.local.array(PARTS, u32)
        for lane in range(copies):
            at = chunk(p, lane, step, shift)
            ok = first[lane] <= 0 and length <= last[lane]
            if SINGLE:
                for n in range(length):
                    load_one(parts, n, advance(at, n), ok)
                gather(parts, piece)
                for w in range(WORDS):
                    words[base + lane * WORDS + w] = piece[w]
            else:
                for n in range(LOADS):
                    load(words, base + lane * WORDS + n * LOADED, advance(at, n * STEP), ok)
    return copies * WORDS, load_some if some else load_whole, load_part, take


@functools.cache
def make_output(dtype, unit, length, compute=None):
    """Of one output: the words of a chunk, ``put(words, values)``, ``store_whole(words, p)`` and ``store_part(words, p, first, last)``.
    `compute`: as `element` takes it."""
    size = ITEMSIZE[dtype]
    SCALE = word_of(size)[2]
    _, store_one, _, _, ONE = make_unit_moves(size, size)
    _, store, _, _, STORED = make_unit_moves(unit, size)
    _, pack = make_unpack(stored(dtype, compute), length, compute)
    STORES, WORDS, STEP = length * size // unit, length * size // 4, unit * SCALE // size
    SINGLE, PER, BITS = unit < 4, max(4 // size, 1), 8 * size
    MASK = (1 << min(BITS, 32)) - 1

    @device_function
    def part(one, words, n):
        if PER > 1:
            one[0] = (words[n // PER] >> u32(n % PER * BITS)) & MASK
        else:
            for k in range(ONE):
                one[k] = words[n * ONE + k]

    @device_function
    def store_whole(words, p):
        one = cuda.local.array(2, u32)
        if SINGLE:
            for n in range(length):
                part(one, words, n)
                store_one(advance(p, n), one, 0)
        else:
            for n in range(STORES):
                store(advance(p, n * STEP), words, n * STORED)

    @device_function
    def store_part(words, p, first, last):
        one = cuda.local.array(2, u32)
        for n in range(length):
            if first <= n and n < last:
                part(one, words, n)
                store_one(advance(p, n * SCALE), one, 0)
    return WORDS, pack, store_whole, store_part


@functools.cache
def make_lead(itemsize, align):
    """Device function ``lead(row)``: elements before a row's first one, from the last place where a chunk may begin."""
    if not align:
        @device_function
        def lead(row):
            return 0
    else:
        SHIFT, MASK = itemsize.bit_length() - 1, align - 1

        @device_function
        def lead(row):
            return i32((address(row, 0) >> SHIFT) & MASK)
    return lead
