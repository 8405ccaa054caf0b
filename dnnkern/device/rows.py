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
from dataclasses import dataclass
from typing import Callable, NamedTuple

from . import cuda, device_function, f32, f64, i32, i64, u16, u32
from ._row_form import (Dim, RowForm, make_row_offsets, make_row_offsets64, merged, row_arguments, row_arguments64, row_form,
                        row_vector)
from .cluster import cluster_rank, cluster_sync, remote_address, store_remote_f32
from .convert import element
from .cp_async import commit_copies, copy_async16_if, wait_copies
from .groups import make_writer
from .numeric import bits_float, double_words, float_bits, words_double
from .vec import (address, advance, as_u32, load1_nc_if, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into, load_shared_4u32,
                  shared_address, store4_from)

__all__ = ["Dim", "LIMIT", "Row", "RowForm", "RowLayout", "make_cluster_pair", "make_row", "make_row_offsets", "make_row_offsets64",
           "merged", "row_arguments", "row_arguments64", "row_form", "row_vector"]
LIMIT = 2 ** 28  # elements of a row: offsets within one are 32-bit numbers of words


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
    result : str
        dtype of what is written, "" where it is `dtype`.
    """
    dtype: str
    vector_bytes: int
    lanes: int
    registers: int
    shared: int = 0
    unaligned: bool = False
    pad_lowest: bool = False
    result: str = ""

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
    write(p, words, c, values, prologue, vectors, lane, step), write_edges(p, edges, prologue, vectors, length, lane),
    write_overflow(p, words, c, values, prologue, vectors, lane), write_vector(p, i, step, words, c, values)
        As the stores, of values, in the result's type; what was vector c of the words is lost.
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
    write: Callable
    write_edges: Callable
    write_overflow: Callable
    write_vector: Callable


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

    def make_store_edges(store_edge):
        @device_function
        def store_edges(p, edges, prologue, vectors, length, lane):
            for k in range(EDGES):
                j = lane + k * LANES
                i = j if j < prologue else j + vectors * E
                if i < length:
                    store_edge(p, i, edges[k])
        return store_edges
    store_edges = make_store_edges(store_one)

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

    # ---- results

    if layout.result in ("", layout.dtype):
        @device_function
        def write(p, words, c, values, prologue, vectors, lane, step):
            pack(words, c, values)
            store(p, words, c, prologue, vectors, lane, step)

        @device_function
        def write_overflow(p, words, c, values, prologue, vectors, lane):
            pack(words, 0, values)
            store_overflow(p, words, c, prologue, vectors, lane)

        @device_function
        def write_vector(p, i, step, words, c, values):
            pack(words, c, values)
            store_vector(p, i, step, words, c)
        write_edges = store_edges
    else:
        result, IS_CHUNK = element(layout.result), layout.vector_bytes == 16
        put = make_writer(layout.result, E, min(4, E * result.storage.itemsize // 4) if IS_CHUNK else 0)

        @device_function
        def write_vector(p, i, step, words, c, values):
            put(p, i * E if IS_CHUNK else i * step, values, 0)

        @device_function
        def write(p, words, c, values, prologue, vectors, lane, step):
            i = lane + c * LANES
            if i < vectors:
                write_vector(advance(p, prologue), i, step, words, c, values)

        @device_function
        def write_overflow(p, words, c, values, prologue, vectors, lane):
            put(advance(p, prologue), (lane + (c + REGISTERS) * LANES) * E, values, 0)
        write_edges = make_store_edges(result.store)
    return Row(split, load, load_edges, unpack, pack, store, store_edges, copy_overflow, wait_overflow, load_overflow, store_overflow,
               load_vector, store_vector, write, write_edges, write_overflow, write_vector)


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
