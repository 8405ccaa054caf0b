"""Loaders of the Ampere main loop: how a stage of an operand gets into the layout of `engine.ampere_fragments`.

A loader needs of each thread local arrays of `places` 64-bit values of type `place` and of `words` 32-bit ones, in all about `registers`
registers; a stage takes `accesses` loads or copies. Its device functions, made by `functions`, share the arrays; `s` is the operand's
state, a tuple that the kernel passes and only the loader reads:

    start(at, s, first, tid)            the addresses that the thread copies from, for a stage that begins at k = `first`
    part(at, hold, to, s, tid, left)    a stage with only the first `left` of its k; the others become zero
    whole(at, hold, to, s, tid, ok)     a stage; nothing if `ok` is zero
    put(at, hold, to, s, tid)           stores to shared memory what those two left in registers
    advance(at, s, count)               `count` k on

`to` is the shared address of the operand's stage. A convolution brings a loader of its own, which copies from pixels.

For a matrix the state is (p, row, last, stride_row, stride_k): pointer, the tile's first row, the matrix's last, strides in elements. Rows
past the last are read from the last one: they only reach results that are not stored.
"""
import functools

from ..device import cp_async, device_function, i32, i64, u8, u32, u64
from ..device.fastmath import minimum
from ..device.vec import address, as_u32, load1_nc_if, pin, store_shared_u32
from .ampere_fragments import make_phase
from .loaders import ALONG_K, log2


class Share:
    """A stage in pieces of `size` bytes for `threads` threads: a thread has `pieces` of each of its `lines`."""

    def __init__(self, stored, threads, size):
        pieces = stored.line // size
        if not pieces:
            raise ValueError(f"lines of {stored.line} bytes are shorter than a copy of {size}")
        self.stored, self.size = stored, size
        self.lanes = min(pieces, threads)
        self.step = threads // self.lanes
        self.lines, self.pieces = max(stored.lines // self.step, 1), pieces // self.lanes
        self.idle = stored.lines < self.step  # threads beyond the lines have nothing to do
        if not self.idle and self.lines * self.step != stored.lines or self.pieces * self.lanes != pieces:
            raise ValueError(f"{threads} threads cannot share {stored.lines} lines of {stored.line} bytes in pieces of {size}")

    def functions(self):
        """Device functions of a thread: ``line(tid, n)``, ``byte(tid, c)`` in the line, and ``offset(tid)`` of its first piece in a stage
        and ``piece(base, n, c)``, the address of the others from there."""
        LANES, SHIFT, STEP, SIZE, L = self.lanes, log2(self.lanes), self.step, self.size, self.stored.line
        phase = make_phase(self.stored)

        @device_function
        def line(tid, n):
            return (tid >> SHIFT) + n * STEP

        @device_function
        def byte(tid, c):
            return ((tid & (LANES - 1)) + c * LANES) * SIZE

        @device_function
        def offset(tid):
            first = byte(tid, 0)
            return u32(line(tid, 0) * L) + ((u32(first >> 4) ^ phase(line(tid, 0))) << 4) + u32(first & 15)

        @device_function
        def piece(base, n, c):
            # phase is linear in the bits of a line's number, and a thread's own lie below those of n * STEP
            return (base ^ (phase(n * STEP) << 4)) + u32(n * STEP * L + c * LANES * SIZE)
        return line, byte, offset, piece

    def corner(self, line, byte, edge, vector):
        """Device function ``corner(row0, last, tid, n, c)``: row and k of a piece's first element in the tile. With `edge` a piece of
        `vector` neighbours begins so that the matrix has all of them."""
        item, along_k = self.stored.item, self.stored.order == ALONG_K
        BEFORE = 0 if along_k else vector - 1

        @device_function
        def corner(row0, last, tid, n, c):
            row, k = line(tid, n), byte(tid, c) // item
            if not along_k:
                row, k = k, row
            if edge:
                row = minimum(row, last - row0 - BEFORE)
            return row, k
        return corner


@functools.cache
def single_element(item):
    """Device function ``element(p, at, ok)``: the bits of one of `item` bytes, 4 at most, zero-extended; 0 where `ok` is zero."""
    if item == 1:
        def element(p, at, ok):
            value = u32(0)
            if ok:
                value = u32(u8(p[at]))
            return value
    elif item == 2:
        def element(p, at, ok):
            return u32(load1_nc_if(p, at, ok))
    else:
        def element(p, at, ok):
            return load1_nc_if(as_u32(p), at, ok)
    return device_function(element)


class CopyLoader:
    """cp.async of `vector` elements, 4 to 16 bytes, that are neighbours in memory and in the stage's lines."""

    def __init__(self, stored, threads, vector, edge):
        self.share = Share(stored, threads, vector * stored.item)
        self.stored, self.vector, self.edge = stored, vector, edge
        self.places, self.words, self.place = self.share.lines * self.share.pieces, 1, "uint64"
        self.registers = 2 * self.places
        self.accesses = stored.bytes // self.share.size

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        N, C, idle, lines = self.share.lines, self.share.pieces, self.share.idle, self.stored.lines
        item, size, along_k = self.stored.item, self.share.size, self.stored.order == ALONG_K
        copy, copy_if = getattr(cp_async, f"copy_async{size}"), getattr(cp_async, f"copy_async{size}_if")
        line, byte, offset, piece = self.share.functions()
        corner = self.share.corner(line, byte, self.edge, self.vector)

        @device_function
        def start(at, s, first, tid):
            p, row0, last, stride_row, stride_k = s
            base = address(p, row0 * stride_row + first * stride_k)
            for n in range(N):
                for c in range(C):
                    row, k = corner(row0, last, tid, n, c)
                    at[n * C + c] = base + u64((row * stride_row + k * stride_k) * item)

        @device_function
        def whole(at, hold, to, s, tid, ok):
            if idle:
                ok = ok if line(tid, 0) < lines else 0
            base = to + offset(tid)
            for n in range(N):
                for c in range(C):
                    copy_if(piece(base, n, c), at[n * C + c], i64(0), ok)

        @device_function
        def part(at, hold, to, s, tid, left):
            base = to + offset(tid)
            for n in range(N):
                for c in range(C):
                    k = byte(tid, c) // item if along_k else line(tid, n)
                    if not idle or line(tid, 0) < lines:
                        copy(piece(base, n, c), at[n * C + c], i64(0), u32(size) if k < left else u32(0))

        @device_function
        def put(at, hold, to, s, tid):
            pass

        @device_function
        def advance(at, s, count):
            _, _, _, _, stride_k = s
            for n in range(N * C):
                at[n] = at[n] + u64(count * stride_k * item)
        return start, part, whole, put, advance


class RegisterLoader:
    """Element by element through registers, four bytes of a stage's line at a time: any strides, any alignment."""

    def __init__(self, stored, threads, edge):
        self.share = Share(stored, threads, 4)
        self.stored, self.edge = stored, edge
        self.places, self.words, self.place = self.share.lines * self.share.pieces, self.share.lines * self.share.pieces, "int64"
        self.registers = 2 * self.places + self.words * 4 // stored.item  # all elements are in flight together
        self.accesses = stored.bytes // stored.item

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        N, C, idle, lines = self.share.lines, self.share.pieces, self.share.idle, self.stored.lines
        item, edge, along_k = self.stored.item, self.edge, self.stored.order == ALONG_K
        E, BITS, element = 4 // item, 8 * item, single_element(item)
        line, byte, offset, piece = self.share.functions()
        corner = self.share.corner(line, byte, self.edge, 1)
        hide = pin(N * C)

        @device_function
        def start(at, s, first, tid):
            p, row0, last, stride_row, stride_k = s
            for n in range(N):
                for c in range(C):
                    row, k = corner(row0, last, tid, n, c)
                    at[n * C + c] = (row0 + row) * stride_row + (first + k) * stride_k

        @device_function
        def load(at, hold, s, tid, left, ok):
            p, row0, last, stride_row, stride_k = s
            if idle:
                ok = ok if line(tid, 0) < lines else i32(0)
            for n in range(N):
                for c in range(C):
                    word, first = u32(0), byte(tid, c) // item
                    for e in range(E):
                        # beyond the last row the first one of the word is read again
                        step = e * (stride_k if along_k else stride_row)
                        there = ok if (first + e if along_k else line(tid, n)) < left else 0
                        if edge and not along_k:
                            step = step if row0 + first + e <= last else i64(0)
                        word = word | (element(p, at[n * C + c] + step, there) << u32(e * BITS))
                    hold[n * C + c] = word

        @device_function
        def whole(at, hold, to, s, tid, ok):
            load(at, hold, s, tid, 0x7FFFFFFF, ok)

        @device_function
        def part(at, hold, to, s, tid, left):
            load(at, hold, s, tid, left, 1)

        @device_function
        def put(at, hold, to, s, tid):
            base = to + offset(tid)
            if not idle or line(tid, 0) < lines:
                for n in range(N):
                    for c in range(C):
                        store_shared_u32(piece(base, n, c), hold[n * C + c])

        @device_function
        def advance(at, s, count):
            _, _, _, _, stride_k = s
            for n in range(N * C):
                at[n] = at[n] + count * stride_k
            # NOTE: else every element gets a pointer of its own, 64 bits that are added up from stage to stage
            hide(at)
        return start, part, whole, put, advance
