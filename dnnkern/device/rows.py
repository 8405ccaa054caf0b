"""Rows: how threads hold a row, offsets of rows in memory, reductions over a row.

A row is what a softmax or a normalisation reduces. A *group* of `lanes` threads holds it: a part of a warp, a warp, a block, or a cluster.
It is read in vectors of 16 bytes, or of one element where rows are not contiguous or not in phase. Lane t has the vectors t, t + lanes,
t + 2 * lanes, ..., so neighbouring lanes read neighbouring memory::

    element   0     3       11      19              ...            n-2  n
              | pro |vector |vector |vector |  ...  |vector |vector| epi |
              |logue|   0   |   1   |   2   |       |       |      |logue|
    lane       0,1,2    0       1       2      ...                  3, 4

The first `registers` vectors of a lane stay in its registers, as packed words that are unpacked when they are used. Further ones
(`shared`) overflow to shared memory; a lane reads there only what it copied itself, so no barrier is needed. Rows that do not begin or
end at a multiple of 16 bytes have an unaligned prologue and epilogue, together the *edges*, whose elements are dealt to the lanes one by
one and kept as values. All arrays that a group reads together must have the same prologue.

Host functions
    `row_form`          the rows of several arrays of one shape: length, steps, and the other dimensions, merged
    `row_vector`        (bytes of a vector, whether there are edges)
    `row_arguments`     kernel parameters `divisors` and `strides` of `make_row_offsets`
    `make_row_offsets`  device function ``row_offsets(row, divisors, strides)``: the offset of a row in each array
    `RowLayout`         how a group holds a row; its properties are the extents of the kernel's local arrays
    `make_row`          the device functions of a `RowLayout`
    `make_cluster_pair` merges a pair over the blocks of a cluster

>>> layout = RowLayout("bfloat16", vector_bytes=16, lanes=256, registers=2)
>>> layout.elements, layout.words, layout.capacity
(8, 8, 4096)
"""
import functools
import math
from collections import namedtuple
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
        return math.prod(d.size for d in self.row)

    @property
    def rows(self):
        return math.prod(d.size for d in self.outer)

    @property
    def steps(self):
        """Element stride of each array along the row, if that is one dimension; else None."""
        return self.row[0].strides if len(self.row) == 1 else None


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


def row_vector(form, tensors):
    """(bytes of a vector, whether some row has unaligned edges): 16 where all arrays have the same phase, else an element. Host function;
    `tensors` have `alignment` and one `itemsize`.
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
def make_row_offsets(dims, arrays):
    """Device function ``row_offsets(row, divisors, strides)``: the element offset (int64) of row number `row` in each of the arrays, as a
    tuple; `arrays` is their number, or a tuple of names, which the result then has as fields."""
    def make_split(d):
        SIZE, MULTIPLIER, SHIFT = 3 * d, 3 * d + 1, 3 * d + 2

        @device_function
        def split(row, divisors):
            return divide_remainder(row, (divisors[SIZE], divisors[MULTIPLIER], divisors[SHIFT]))
        return split
    return _row_offsets(dims, arrays, make_split)


def row_arguments64(dims, arrays):
    """Values of the kernel parameters `sizes` and `strides` ("int64x...") of `make_row_offsets64`; for no dimensions those of one of size
    1. Host function.
    """
    return tuple(d.size for d in dims) or (1,), tuple(s for d in dims for s in d.strides) or (0,) * arrays


@functools.cache
def make_row_offsets64(dims, arrays):
    """`make_row_offsets` for any number of rows, by division: ``row_offsets(row, sizes, strides)``; slow, and without limits."""
    def make_split(d):
        @device_function
        def split(row, sizes):
            quotient = row // sizes[d]
            return quotient, row - quotient * sizes[d]
        return split
    return _row_offsets(dims, arrays, make_split)


def _row_offsets(dims, arrays, make_split):
    """``row_offsets(row, divisors, strides)``, of which ``make_split(d)`` divides by the size of dimension d.

    The functions are nested, one a dimension and one an array, since a tuple that is indexed by a variable is in local memory.
    """
    @device_function
    def row_offsets(row, divisors, strides):
        return (row * strides[0],)
    count = arrays if isinstance(arrays, int) else len(arrays)
    for a in range(1, count):
        row_offsets = _with_array(row_offsets, a)
    for d in range(1, dims):
        row_offsets = _with_dimension(row_offsets, make_split(d), _sums(d, count))
    return row_offsets if isinstance(arrays, int) else _with_names(row_offsets, arrays)


def _with_names(numbered, names):
    Offsets = namedtuple("Offsets", names)

    @device_function
    def row_offsets(row, divisors, strides):
        return Offsets(*numbered(row, divisors, strides))
    return row_offsets


def _with_array(before, a):
    @device_function
    def row_offsets(row, divisors, strides):
        return before(row, divisors, strides) + (row * strides[a],)
    return row_offsets


def _with_dimension(outer, split, add):
    @device_function
    def row_offsets(row, divisors, strides):
        row, i = split(row, divisors)
        return add(outer(row, divisors, strides), i, strides)
    return row_offsets


def _sums(d, arrays):
    """Device function ``add(offsets, i, strides)``: with index i along dimension d added."""
    def make_add(before, a, k):
        @device_function
        def add(offsets, i, strides):
            return before(offsets, i, strides) + (offsets[a] + i * strides[k],)
        return add
    FIRST = d * arrays

    @device_function
    def add(offsets, i, strides):
        return (offsets[0] + i * strides[FIRST],)
    for a in range(1, arrays):
        add = make_add(add, a, FIRST + a)
    return add


# ---- how a group holds a row

_LOWEST = {"float64": (0, 0xFFF00000), "float32": (0xFF800000,), "float16": (0xFC00FC00,), "bfloat16": (0xFF80FF80,)}


@dataclass(frozen=True)
class RowLayout:
    """How a group of threads holds a row.

    Attributes
    ----------
    dtype : str
    vector_bytes : int
        16, or an element's.
    lanes : int
        Threads of the group, over all blocks of its cluster.
    registers, shared : int
        Vectors per lane in registers, and in shared memory (by cp.async, of 16 bytes).
    unaligned : bool
        Rows may begin or end off a multiple of the vector: there are edges.
    pad_lowest : bool
        Elements past the end of the row read as -infinity instead of 0.
    """
    dtype: str
    vector_bytes: int
    lanes: int
    registers: int
    shared: int = 0
    unaligned: bool = False
    pad_lowest: bool = False

    def __post_init__(self):
        if self.vector_bytes not in (16, self.itemsize) or self.vector_bytes != 16 and (self.shared or self.unaligned):
            raise ValueError(f"RowLayout: vectors of {self.vector_bytes} bytes, {self.shared} of them shared, unaligned {self.unaligned}; "
                             f"expected 16 bytes, or elements of {self.itemsize} bytes that are aligned and in registers")
        if self.lanes & (self.lanes - 1):
            raise ValueError(f"RowLayout: {self.lanes} lanes; expected a power of two")

    @property
    def itemsize(self):
        return element(self.dtype).storage.itemsize

    @property
    def elements(self):
        """Of a vector."""
        return self.vector_bytes // self.itemsize

    @property
    def vector_words(self):
        return max(1, self.vector_bytes // 4)

    @property
    def words(self):
        """32-bit words of the local array that holds a lane's vectors."""
        return self.vector_words * self.registers

    @property
    def edge_slots(self):
        """Extent of the local array of a lane's edge elements, 1 at least."""
        return max(1, self.edges)

    @property
    def edges(self):
        """Elements of the edges that a lane may get."""
        return -(-(2 * self.elements - 2) // self.lanes) if self.unaligned else 0

    @property
    def capacity(self):
        """Elements of the longest row."""
        return self.lanes * (self.registers + self.shared) * self.elements

    @property
    def real(self):
        """Type to compute with."""
        return f64 if self.dtype == "float64" else f32


class Row(NamedTuple):
    """Device functions of a `RowLayout`; `p` is a pointer to the row's first element, of the type that `element(dtype).pointer` names.

    split(p, length) -> (prologue, vectors)
        Elements of the unaligned prologue, and whole vectors after it.
    load(words, p, prologue, vectors, lane, step)
        The lane's vectors into registers, all loads in flight.
    load_edges(edges, p, prologue, vectors, length, lane)
        The lane's elements of prologue and epilogue, as values.
    unpack(values, words, c), pack(words, c, values)
        Vector c of a local array of words, as values.
    store(p, words, c, prologue, vectors, lane, step)
        Vector c, if the row has it.
    store_edges(p, edges, prologue, vectors, length, lane)
    copy_overflow(base, p, prologue, vectors, lane)
        Starts the copies of the vectors beyond the registers; `base` is the shared address of the lane's first, 16 bytes apart per thread.
    wait_overflow(vectors, lane)
        Waits for these copies; the number of this lane's.
    load_overflow(words, base, c), store_overflow(p, words, c, prologue, vectors, lane)
        Vector c of them, from shared memory into four words, and these to global memory.
    load_vector(words, c, p, i, step, ok), store_vector(p, i, step, words, c)
        Vector i after p, to and from vector c of a local array; `step` counts where a vector is an element.
    """
    split: Callable
    load: Callable
    load_edges: Callable
    unpack: Callable
    pack: Callable
    store: Callable
    store_edges: Callable
    copy_overflow: Callable
    wait_overflow: Callable
    load_overflow: Callable
    store_overflow: Callable
    load_vector: Callable
    store_vector: Callable


@functools.cache
def make_row(layout, threads=0) -> Row:
    """The device functions of a layout; `threads` per block, where vectors are in shared memory."""
    E, LANES, REGISTERS, PER, EDGES = layout.elements, layout.lanes, layout.registers, layout.vector_words, layout.edges
    SHARED, UNALIGNED, ITEM = layout.shared, layout.unaligned, layout.itemsize
    LOG, ITEM_LOG, MASK = E.bit_length() - 1, layout.itemsize.bit_length() - 1, E - 1
    Real, e = layout.real, element(layout.dtype)
    load_one, store_one = e.load, e.store
    PADDING, PAD_LOWEST, STRIDE = -math.inf if layout.pad_lowest else 0.0, layout.pad_lowest, 16 * threads
    LANES_LOG, (EVEN, ODD) = LANES.bit_length() - 1, (_LOWEST[layout.dtype] * 2)[:2]

    @device_function
    def split(p, length):
        prologue = 0
        if UNALIGNED:
            prologue = i32(0 - (u32(address(p, 0)) >> ITEM_LOG)) & MASK
            if prologue > length:
                prologue = length
        return prologue, (length - prologue) >> LOG

    @device_function
    def load_edges(edges, p, prologue, vectors, length, lane):
        for k in range(EDGES):
            j = lane + k * LANES
            i = j if j < prologue else j + vectors * E
            value = Real(PADDING)
            if i < length:
                value = load_one(p, i)
            edges[k] = value

    @device_function
    def store_edges(p, edges, prologue, vectors, length, lane):
        for k in range(EDGES):
            j = lane + k * LANES
            i = j if j < prologue else j + vectors * E
            if i < length:
                store_one(p, i, edges[k])

    if layout.vector_bytes == 16:
        unpack_chunk, pack_chunk = e.unpack_chunk, e.pack_chunk

        @device_function
        def load_vector(words, c, p, i, step, ok):
            load4_nc_if_into(words, 4 * c, as_u32(p), 4 * i, i32(ok))

        @device_function
        def unpack(values, words, c):
            unpack_chunk(values, 0, words, 4 * c)

        @device_function
        def pack(words, c, values):
            pack_chunk(words, 4 * c, values, 0)

        @device_function
        def store_vector(p, i, step, words, c):
            store4_from(as_u32(p), 4 * i, words, 4 * c)
    elif ITEM == 8:
        @device_function
        def load_vector(words, c, p, i, step, ok):
            load2_nc_if_into(words, 2 * c, as_u32(p), 2 * i * step, i32(ok))

        @device_function
        def unpack(values, words, c):
            values[0] = words_double(words[2 * c], words[2 * c + 1])

        @device_function
        def pack(words, c, values):
            words[2 * c], words[2 * c + 1] = double_words(values[0])

        @device_function
        def store_vector(p, i, step, words, c):
            p[i * step] = words_double(words[2 * c], words[2 * c + 1])
    elif ITEM == 4:
        @device_function
        def load_vector(words, c, p, i, step, ok):
            load1_nc_if_into(words, c, as_u32(p), i * step, i32(ok))

        @device_function
        def unpack(values, words, c):
            values[0] = bits_float(words[c])

        @device_function
        def pack(words, c, values):
            words[c] = float_bits(values[0])

        @device_function
        def store_vector(p, i, step, words, c):
            p[i * step] = bits_float(words[c])
    else:
        widen, narrow = e.widen, e.narrow

        @device_function
        def load_vector(words, c, p, i, step, ok):
            words[c] = u32(load1_nc_if(p, i * step, i32(ok)))

        @device_function
        def unpack(values, words, c):
            values[0] = widen(u16(words[c]))

        @device_function
        def pack(words, c, values):
            words[c] = u32(u16(narrow(values[0])))

        @device_function
        def store_vector(p, i, step, words, c):
            p[i * step] = u16(words[c])

    @device_function
    def load(words, p, prologue, vectors, lane, step):
        q = advance(p, prologue)
        for c in range(REGISTERS):
            i = lane + c * LANES
            load_vector(words, c, q, i, step, i < vectors)
        if PAD_LOWEST:
            for c in range(REGISTERS):
                if lane + c * LANES >= vectors:
                    for w in range(PER):
                        words[PER * c + w] = u32(ODD if w & 1 else EVEN)

    @device_function
    def store(p, words, c, prologue, vectors, lane, step):
        i = lane + c * LANES
        if i < vectors:
            store_vector(advance(p, prologue), i, step, words, c)

    wait_all = wait_copies(0)

    @device_function
    def copy_overflow(base, p, prologue, vectors, lane):
        for c in range(SHARED):
            i = lane + (REGISTERS + c) * LANES
            copy_async16_if(base + u32(c * STRIDE), address(p, prologue), i64(i) * 16, i32(i < vectors))
        commit_copies()

    @device_function
    def load_overflow(words, base, c):
        words[0], words[1], words[2], words[3] = load_shared_4u32(base + u32(c) * STRIDE)

    @device_function
    def store_overflow(p, words, c, prologue, vectors, lane):
        store4_from(as_u32(advance(p, prologue)), 4 * (lane + (c + REGISTERS) * LANES), words, 0)

    @device_function
    def wait_overflow(vectors, lane):
        wait_all()
        count = 0
        left = vectors - lane - REGISTERS * LANES
        if left > 0:
            count = (left + LANES - 1) >> LANES_LOG
        return count
    return Row(split, load, load_edges, unpack, pack, store, store_edges, copy_overflow, wait_overflow, load_overflow, store_overflow,
               load_vector, store_vector)


# ---- one reduction a row

def make_cluster_pair(merge, blocks):
    """Device function ``exchange(a, b, n, slots)``: the pair (a, b) of every block of the cluster merged, in every thread, in the order of
    the blocks. float32; `slots` is a shared array of 2 * blocks of them, which nothing else uses. All threads of a block bring its pair.

    The cluster must have passed a barrier since the start of the kernel (`cluster_arrive_relaxed`, `cluster_wait`).
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
