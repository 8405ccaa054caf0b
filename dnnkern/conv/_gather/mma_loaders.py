"""Loaders of gathered operands for the Ampere main loop (`engine.ampere`): 4 to 16 bytes a copy, or elements through registers.

The local array of a loader has the offsets of the thread's rows, their masks, and the stage's number; `s` is a `table.Operand`.
"""
from ...device import cp_async, cuda, device_function, i32, i64, u32
from ...device.unroll import unrolled
from ...device.vec import address, load_shared_2u32, store_shared_u32
from ...engine.ampere_loaders import Share, single_element
from ...engine.loaders import ALONG_K, log2
from .loaders import make_rows


class _Gather:
    """What both loaders share: which rows and which elements of k a thread copies."""
    place = "int32"

    def __init__(self, stored, table, vector, size, rows, functions, leads):
        self.stored, self.table, self.vector, self.rows_of, self.gather, self.leads = stored, table, vector, rows, functions, leads
        self.share = Share(stored, table.threads, size)
        self.along_k = stored.order == ALONG_K
        self.singles = size // (vector * stored.item)  # accesses that make up a piece
        lines, pieces = self.share.lines, self.share.pieces * self.singles
        self.rows, self.steps = (lines, pieces) if self.along_k else (pieces, lines)
        self.places = 2 * self.rows + 1
        self.registers = (2 if rows.is_source else 1) * self.rows + 6
        self.accesses = stored.bytes // (vector * stored.item)

    def parts(self):
        """Device functions ``start``, ``advance``, ``ahead(at, s, tid)``, ``entry(at, s, tid, n) -> (offset, word)`` of the thread's n-th
        element of k, ``exists(word, entry)`` and ``is_active(tid)``: whether the thread copies anything."""
        ROWS, SINGLES, VECTOR, along_k, leads, is_source = (self.rows, self.singles, self.vector, self.along_k, self.leads,
                                                            self.rows_of.is_source)
        COUNTER, WORD, GRAIN, item = 2 * self.rows, 0 if is_source else 8, self.table.grain, self.stored.item
        idle, lines = self.share.idle, self.stored.lines
        line, byte, _, _ = self.share.functions()
        begin, fill_ahead, table_at = self.table.functions(self.gather.entry)
        locate_row, exists = make_rows(self.rows_of, self.gather, 1 if along_k else self.vector)

        @device_function
        def across(tid, n):
            """Position of the n-th access in its line, in elements."""
            return byte(tid, n // SINGLES) // item + (n % SINGLES) * VECTOR

        @device_function
        def locate_one(r, state):
            at, s, tid = state
            at[r], word = locate_row(s.row + (line(tid, r) if along_k else across(tid, r)), s)
            at[ROWS + r] = i32(word)
        locate_all = unrolled(ROWS, locate_one)  # the compiler does not unroll a loop with masks in it

        @device_function
        def start(at, s, first, tid):
            locate_all(0, (at, s, tid))
            at[COUNTER] = 0
            if leads:
                begin(s, tid)
                cuda.syncthreads()

        @device_function
        def ahead(at, s, tid):
            if leads:
                fill_ahead(at[COUNTER], s, tid)

        @device_function
        def entry(at, s, tid, n):
            g = s.gather
            k = across(tid, n) if along_k else line(tid, n)
            low, word = load_shared_2u32(table_at(at[COUNTER], k, s) + WORD)
            offset = i32(low)
            if GRAIN > 1 and not (along_k and VECTOR >= GRAIN):  # only channels have a grain
                offset = offset + (k & (GRAIN - 1)) * (g.source.channel if is_source else g.plain.channel)
            return offset, word

        @device_function
        def is_active(tid):
            return not idle or line(tid, 0) < lines

        @device_function
        def advance(at, s, count):
            at[COUNTER] = at[COUNTER] + 1
        return start, advance, ahead, entry, exists, is_active


class GatherCopies(_Gather):
    """cp.async of `vector` neighbouring elements, 4 to 16 bytes; zeros in the padding."""

    def __init__(self, stored, table, vector, rows, functions, leads):
        super().__init__(stored, table, vector, vector * stored.item, rows, functions, leads)
        self.words = 1

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        start, advance, ahead, entry, exists, is_active = self.parts()
        _, _, offset_of, piece = self.share.functions()
        ROWS, STEPS, SIZE, item, along_k = self.rows, self.steps, self.share.size, self.stored.item, self.along_k
        copy = getattr(cp_async, f"copy_async{SIZE}")

        @device_function
        def part(at, hold, to, s, tid, left):
            p = s.pointer
            base = to + offset_of(tid)
            if is_active(tid):
                for k in range(STEPS):
                    offset, word = entry(at, s, tid, k)
                    for r in range(ROWS):
                        ok = exists(u32(at[ROWS + r]), word)
                        copy(piece(base, r, k) if along_k else piece(base, k, r), address(p, 0),
                             i64(at[r] + offset) * item, SIZE if ok else 0)

        @device_function
        def whole(at, hold, to, s, tid, ok):
            ahead(at, s, tid)
            part(at, hold, to, s, tid, 0)

        @device_function
        def put(at, hold, to, s, tid):
            pass
        return start, part, whole, put, advance


class GatherRegisters(_Gather):
    """Element by element through registers, four bytes of a line at a time; zeros in the padding."""

    def __init__(self, stored, table, rows, functions, leads):
        super().__init__(stored, table, 1, 4, rows, functions, leads)
        self.words = self.share.lines * self.share.pieces
        self.registers += self.words * 4 // stored.item

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        start, advance, ahead, entry, exists, is_active = self.parts()
        _, _, offset_of, piece = self.share.functions()
        ROWS, STEPS, WORDS, along_k = self.rows, self.steps, self.words, self.along_k
        SHIFT, BITS, element = log2(self.singles), 8 * self.stored.item, single_element(self.stored.item)
        LINES, PIECES, LAST = self.share.lines, self.share.pieces, self.singles - 1

        @device_function
        def part(at, hold, to, s, tid, left):
            p, active = s.pointer, is_active(tid)
            for w in range(WORDS):
                hold[w] = u32(0)
            for k in range(STEPS):
                offset, word = entry(at, s, tid, k)
                for r in range(ROWS):
                    n, c = (r, k) if along_k else (k, r)  # line, and element of the thread in it
                    value = element(p, at[r] + offset, 1 if active and exists(u32(at[ROWS + r]), word) else 0)
                    w = n * PIECES + (c >> SHIFT)
                    hold[w] = hold[w] | (value << u32((c & LAST) * BITS))

        @device_function
        def whole(at, hold, to, s, tid, ok):
            ahead(at, s, tid)
            part(at, hold, to, s, tid, 0)

        @device_function
        def put(at, hold, to, s, tid):
            base = to + offset_of(tid)
            if is_active(tid):
                for n in range(LINES):
                    for c in range(PIECES):
                        store_shared_u32(piece(base, n, c), hold[n * PIECES + c])
        return start, part, whole, put, advance
