"""Operations on rows: how threads hold a row, where rows lie, one reduction a row.

A row is what a softmax or a normalisation reduces. A *group* of `lanes` threads holds it: a part of a warp, a warp, a block, or several
blocks of a cluster. Unit c of lane t is number ``c * lanes + t`` of the row, so that neighbouring lanes read neighbouring units. A unit is
16 bytes, or one element where rows cannot be read so. The first units of a lane stay in registers, as packed words that are taken apart
when they are used; units of a long row beyond those lie in shared memory, where a lane reads only what it copied itself, so that no
barrier is needed.

Rows that begin off a multiple of 16 bytes have a *head*, and rows that end off one a *tail*, of fewer elements than a unit each. These
elements are dealt to the lanes one by one and are kept as values (`rest`). All arrays that a group reads in step must be in phase: a head
in one is a head in all.

Host functions
    `row_form`        the rows of several arrays of one shape: length, steps, and the other dimensions, merged
    `row_unit`        (bytes of a unit, whether there are heads or tails)
    `row_arguments`   kernel parameters `divisors` and `strides` of the rows' places
    `make_row_places` device function ``places(row, divisors, strides, offsets)``: offsets of a row in all arrays, into a local int64 array
    `Held`            how a group holds a row; its properties are the extents of the kernel's local arrays
    `make_row`        the device functions of a `Held`
    `make_cluster_pair`  merges a pair over the blocks of a cluster

>>> held = Held("bfloat16", unit=16, lanes=256, registers=2)
>>> held.elements, held.words, held.capacity
(8, 8, 4096)
"""
import functools
import math
from dataclasses import dataclass
from typing import Callable, NamedTuple

from . import cuda, device_function, f32, f64, i32, i64, u16, u32
from .cluster import cluster_rank, cluster_sync, remote_address, store_remote_f32
from .convert import element
from .cp_async import commit_copies, copy_async16_if, wait_copies
from .index import divide_remainder, divisor
from .numeric import bits_float, double_words, float_bits, words_double
from .vec import (address, advance, as_u32, load1_nc_if, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into, load_shared_4u32,
                  shared_address, store4_from)

LIMIT = 2 ** 28  # elements of a row: offsets within one are 32-bit numbers of words


@dataclass(frozen=True)
class Dim:
    """A dimension: its size, and the element stride of each array along it."""
    size: int
    strides: tuple


@dataclass(frozen=True)
class RowForm:
    """Rows of several arrays: what is reduced (`row`), and what there is one row of each (`outer`), the last dimension fastest."""
    row: tuple
    outer: tuple

    @property
    def length(self):
        """Elements of a row."""
        return _volume(self.row)

    @property
    def rows(self):
        return _volume(self.outer)

    @property
    def steps(self):
        """Element stride of each array along the row, if that is one dimension; else None."""
        return self.row[0].strides if len(self.row) == 1 else None


def _volume(dims):
    count = 1
    for d in dims:
        count *= d.size
    return count


def merged(dims):
    """Dimensions by descending strides of the last array, those of size 1 gone, neighbours that are one in all arrays merged."""
    found = []
    for d in sorted((d for d in dims if d.size != 1), key=lambda d: tuple(-abs(s) for s in reversed(d.strides))):
        if found and all(a == b * d.size for a, b in zip(found[-1].strides, d.strides)):
            found[-1] = Dim(found[-1].size * d.size, d.strides)
        else:
            found.append(d)
    return tuple(found)


def row_form(shape, axes, *strides) -> RowForm:
    """The rows along `axes` of arrays of one shape, with these element strides. Host function.

    >>> row_form((4, 6, 8), (2,), (48, 8, 1), (64, 10, 1))
    RowForm(row=(Dim(size=8, strides=(1, 1)),), outer=(Dim(size=4, strides=(48, 64)), Dim(size=6, strides=(8, 10))))
    >>> row_form((4, 6, 8), (1, 2), (48, 8, 1), (48, 8, 1)).length
    48
    """
    dims = [Dim(n, tuple(s[k] for s in strides)) for k, n in enumerate(shape)]
    row = merged(d for k, d in enumerate(dims) if k in axes)
    return RowForm(row or (Dim(1, (1,) * len(strides)),), merged(d for k, d in enumerate(dims) if k not in axes))


def row_unit(form, tensors):
    """(bytes of a unit, whether some row begins or ends off a multiple of it): 16 where all arrays are in phase, else an element. Host
    function; `tensors` have `alignment` and `itemsize`, all the same one.
    """
    itemsize = tensors[0].itemsize
    per = 16 // itemsize
    one = form.steps is not None and all(s == 1 for s in form.steps) and all(t.alignment >= 16 for t in tensors)
    phases = {tuple(s % per for s in d.strides) for d in form.outer}
    if not one or any(len(set(phase)) > 1 for phase in phases):
        return itemsize, False
    return 16, form.length % per != 0 or any(phase[0] for phase in phases)


def row_arguments(form, arrays=None):
    """Numbers of the kernel parameters `divisors` ("uint32x...") and `strides` ("int64x...") of the first `arrays` arrays."""
    dims = form.outer or (Dim(1, (0,) * len(form.row[0].strides)),)
    return (tuple(v for d in dims for v in divisor(d.size)), tuple(s for d in dims for s in d.strides[:arrays]))


@functools.cache
def make_row_places(dims, arrays):
    """Device function ``places(row, divisors, strides, offsets)``: ``offsets[a]``, of a local int64 array, becomes the element offset of
    row number `row` in array a."""
    @device_function
    def nothing(index, strides, offsets):
        for a in range(arrays):
            offsets[a] = i64(0)

    steps = nothing
    for a in range(arrays):
        steps = _with_array(steps, a, a)

    @device_function
    def places(row, divisors, strides, offsets):
        steps(row, strides, offsets)
    for d in range(1, dims):
        places = _with_dimension(places, d, arrays)
    return places


def _with_array(before, a, k):
    """Constant indices alone: a tuple that is indexed by a variable lies in local memory."""
    @device_function
    def step(index, strides, offsets):
        before(index, strides, offsets)
        offsets[a] = offsets[a] + index * strides[k]
    return step


def _with_dimension(outer, d, arrays):
    SIZE, MULTIPLIER, SHIFT = 3 * d, 3 * d + 1, 3 * d + 2

    @device_function
    def steps(index, strides, offsets):
        return
    for a in range(arrays):
        steps = _with_array(steps, a, d * arrays + a)

    @device_function
    def places(row, divisors, strides, offsets):
        rest, i = divide_remainder(row, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))
        outer(rest, divisors, strides, offsets)
        steps(i, strides, offsets)
    return places


def row_arguments64(dims, arrays):
    """Numbers of the kernel parameters `sizes` and `strides` ("int64x...") of `make_row_places64`; for no dimensions those of one of size
    1. Host function.
    """
    return tuple(d.size for d in dims) or (1,), tuple(s for d in dims for s in d.strides) or (0,) * arrays


@functools.cache
def make_row_places64(dims, arrays):
    """`make_row_places` for any number of rows, by division: ``places(row, sizes, strides, offsets)``; slow, and without limits."""
    @device_function
    def places(row, sizes, strides, offsets):
        rest = row
        for a in range(arrays):
            offsets[a] = i64(0)
        for k in range(dims):
            d = dims - 1 - k
            n = sizes[d]
            i = rest % n
            rest = rest // n
            for a in range(arrays):
                offsets[a] = offsets[a] + i * strides[d * arrays + a]
    return places


# ---- how a group holds a row

_LEAST = {"float64": (0, 0xFFF00000), "float32": (0xFF800000,), "float16": (0xFC00FC00,), "bfloat16": (0xFF80FF80,)}


@dataclass(frozen=True)
class Held:
    """How a group of threads holds a row.

    Attributes
    ----------
    dtype : str
    unit : int
        Bytes: 16, or an element's.
    lanes : int
        Threads of the group, over all blocks of its cluster.
    registers, shared : int
        Units a lane keeps in registers, and in shared memory (these by cp.async, of 16 bytes).
    heads : bool
        Rows may begin or end off a multiple of the unit.
    least : bool
        What is not in the row reads as -infinity instead of 0.
    """
    dtype: str
    unit: int
    lanes: int
    registers: int
    shared: int = 0
    heads: bool = False
    least: bool = False

    def __post_init__(self):
        if self.unit not in (16, self.itemsize) or self.unit != 16 and (self.shared or self.heads):
            raise ValueError(f"Held: units of {self.unit} bytes, {self.shared} of them shared, heads {self.heads}; units are 16 bytes, or "
                             f"elements of {self.itemsize} without heads in registers")
        if self.lanes & (self.lanes - 1):
            raise ValueError(f"Held: {self.lanes} lanes; expected a power of two")

    @property
    def itemsize(self):
        return element(self.dtype).storage.itemsize

    @property
    def elements(self):
        """Of a unit."""
        return self.unit // self.itemsize

    @property
    def unit_words(self):
        return max(1, self.unit // 4)

    @property
    def words(self):
        """32-bit words of the local array that holds a lane's units."""
        return self.unit_words * self.registers

    @property
    def rest(self):
        """Elements of heads and tails a lane may get: extent of the local array `rest`, 1 at least."""
        return max(1, self.singles)

    @property
    def singles(self):
        return -(-(2 * self.elements - 2) // self.lanes) if self.heads else 0

    @property
    def capacity(self):
        """Elements of the longest row."""
        return self.lanes * (self.registers + self.shared) * self.elements

    @property
    def real(self):
        """Type to compute with."""
        return f64 if self.dtype == "float64" else f32


class Row(NamedTuple):
    """Device functions of a `Held`; `p` is a pointer to the row's first element, of the type that `element(dtype).pointer` names.

    span(p, length) -> (head, units)
        Elements of the head, and whole units behind it.
    load(words, p, head, units, lane, step)
        The lane's units in registers, all loads in flight.
    load_rest(rest, p, head, units, length, lane)
        The lane's elements of head and tail, as values.
    unpack(values, words, c), pack(words, c, values)
        Unit c of a local array of words, as values.
    store(p, words, c, head, units, lane, step)
        Unit c, where it is in the row.
    store_rest(p, rest, head, units, length, lane)
    copy(base, p, head, units, lane)
        Starts the copies of the lane's units in shared memory; `base` is the shared address of its first, 16 bytes on for each thread.
    fetch(words, base, c), put(p, words, c, head, units, lane)
        Unit c in shared memory as four words, and where it is stored.
    kept(units, lane)
        How many of the lane's units are in shared memory; waits for them.
    read(words, c, p, i, step, ok), write(p, i, step, words, c)
        Unit i behind p, to and from unit c of a local array; step counts where a unit is an element.
    """
    span: Callable
    load: Callable
    load_rest: Callable
    unpack: Callable
    pack: Callable
    store: Callable
    store_rest: Callable
    copy: Callable
    fetch: Callable
    put: Callable
    kept: Callable
    read: Callable
    write: Callable


@functools.cache
def make_row(held, threads=0) -> Row:
    """The device functions for rows that are held so; `threads` of a block, where units are in shared memory."""
    E, LANES, REGISTERS, PER, SINGLES = held.elements, held.lanes, held.registers, held.unit_words, held.singles
    SHARED, HEADS, ITEM = held.shared, held.heads, held.itemsize
    LOG, ITEM_LOG, MASK = E.bit_length() - 1, held.itemsize.bit_length() - 1, E - 1
    Real, e = held.real, element(held.dtype)
    load_one, store_one = e.load, e.store
    NOTHING, LEAST, STRIDE = -math.inf if held.least else 0.0, held.least, 16 * threads
    LANES_LOG, (EVEN, ODD) = LANES.bit_length() - 1, (_LEAST[held.dtype] * 2)[:2]

    @device_function
    def span(p, length):
        head = 0
        if HEADS:
            head = i32(0 - (u32(address(p, 0)) >> ITEM_LOG)) & MASK
            if head > length:
                head = length
        return head, (length - head) >> LOG

    @device_function
    def load_rest(rest, p, head, units, length, lane):
        for k in range(SINGLES):
            j = lane + k * LANES
            i = j if j < head else j + units * E
            value = Real(NOTHING)
            if i < length:
                value = load_one(p, i)
            rest[k] = value

    @device_function
    def store_rest(p, rest, head, units, length, lane):
        for k in range(SINGLES):
            j = lane + k * LANES
            i = j if j < head else j + units * E
            if i < length:
                store_one(p, i, rest[k])

    if held.unit == 16:
        unpack_chunk, pack_chunk = e.unpack_chunk, e.pack_chunk

        @device_function
        def read(words, c, p, i, step, ok):
            load4_nc_if_into(words, 4 * c, as_u32(p), 4 * i, i32(ok))

        @device_function
        def unpack(values, words, c):
            unpack_chunk(values, 0, words, 4 * c)

        @device_function
        def pack(words, c, values):
            pack_chunk(words, 4 * c, values, 0)

        @device_function
        def write(p, i, step, words, c):
            store4_from(as_u32(p), 4 * i, words, 4 * c)
    elif ITEM == 8:
        @device_function
        def read(words, c, p, i, step, ok):
            load2_nc_if_into(words, 2 * c, as_u32(p), 2 * i * step, i32(ok))

        @device_function
        def unpack(values, words, c):
            values[0] = words_double(words[2 * c], words[2 * c + 1])

        @device_function
        def pack(words, c, values):
            words[2 * c], words[2 * c + 1] = double_words(values[0])

        @device_function
        def write(p, i, step, words, c):
            p[i * step] = words_double(words[2 * c], words[2 * c + 1])
    elif ITEM == 4:
        @device_function
        def read(words, c, p, i, step, ok):
            load1_nc_if_into(words, c, as_u32(p), i * step, i32(ok))

        @device_function
        def unpack(values, words, c):
            values[0] = bits_float(words[c])

        @device_function
        def pack(words, c, values):
            words[c] = float_bits(values[0])

        @device_function
        def write(p, i, step, words, c):
            p[i * step] = bits_float(words[c])
    else:
        widen, narrow = e.widen, e.narrow

        @device_function
        def read(words, c, p, i, step, ok):
            words[c] = u32(load1_nc_if(p, i * step, i32(ok)))

        @device_function
        def unpack(values, words, c):
            values[0] = widen(u16(words[c]))

        @device_function
        def pack(words, c, values):
            words[c] = u32(u16(narrow(values[0])))

        @device_function
        def write(p, i, step, words, c):
            p[i * step] = u16(words[c])

    @device_function
    def load(words, p, head, units, lane, step):
        q = advance(p, head)
        for c in range(REGISTERS):
            i = lane + c * LANES
            read(words, c, q, i, step, i < units)
        if LEAST:
            for c in range(REGISTERS):
                if lane + c * LANES >= units:
                    for w in range(PER):
                        words[PER * c + w] = u32(ODD if w & 1 else EVEN)

    @device_function
    def store(p, words, c, head, units, lane, step):
        i = lane + c * LANES
        if i < units:
            write(advance(p, head), i, step, words, c)

    landed = wait_copies(0)

    @device_function
    def copy(base, p, head, units, lane):
        for c in range(SHARED):
            i = lane + (REGISTERS + c) * LANES
            copy_async16_if(base + u32(c * STRIDE), address(p, head), i64(i) * 16, i32(i < units))
        commit_copies()

    @device_function
    def fetch(words, base, c):
        words[0], words[1], words[2], words[3] = load_shared_4u32(base + u32(c) * STRIDE)

    @device_function
    def put(p, words, c, head, units, lane):
        store4_from(as_u32(advance(p, head)), 4 * (lane + (c + REGISTERS) * LANES), words, 0)

    @device_function
    def kept(units, lane):
        landed()
        count = 0
        left = units - lane - REGISTERS * LANES
        if left > 0:
            count = (left + LANES - 1) >> LANES_LOG
        return count
    return Row(span, load, load_rest, unpack, pack, store, store_rest, copy, fetch, put, kept, read, write)


# ---- one reduction a row

def make_cluster_pair(merge, blocks):
    """Device function ``exchange(a, b, n, slots)``: the pair (a, b) of every block of the cluster merged, in every thread, in the order of
    the blocks. float32; `slots` is a shared array of 2 * blocks of them, which nothing else uses. All threads of a block bring its pair.

    Behind the start of the kernel there must have been a barrier of the cluster (`cluster_arrive_relaxed`, `cluster_wait`).
    """
    @device_function
    def exchange(a, b, n, slots):
        t = cuda.threadIdx.x
        if t < blocks:
            to = remote_address(shared_address(slots, 2 * cluster_rank()), u32(t))
            store_remote_f32(to, a)
            store_remote_f32(to + 4, b)
        cluster_sync()
        a, b = slots[0], slots[1]
        for k in range(1, blocks):
            a, b = merge(a, b, slots[2 * k], slots[2 * k + 1], n)
        return a, b
    return exchange
