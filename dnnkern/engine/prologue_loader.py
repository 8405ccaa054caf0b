"""The loader of the Ampere main loop that makes an operand by a program (see `engine.ampere_loaders`, `engine.prologues`).

What lies in memory waits in registers while a stage is multiplied, as it does in `RegisterLoader`; the program runs when it is stored to
shared memory, so that the products hide the loads. Elements past the operand's edge along k are zero whatever the program makes of zero.

The state is (p, row, last, stride_row, stride_k, e): as a matrix's, and the program's operands.
"""
from ..device import device_function, f32, i32, u32
from ..device.convert import element
from ..device.fastmath import minimum
from ..device.program import element_of, make_cast, make_narrow, make_program
from ..device.program_operands import loaded_type
from ..device.unroll import unrolled
from ..device.vec import (advance, as_u32, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into, pin, store_shared_2u32,
                          store_shared_4u32, store_shared_u32)
from ..host.dtypes import numpy_dtype
from .ampere_loaders import Share, single_element
from .loaders import ALONG_K

EVERYTHING = 0x7FFFFFFF


def make_made_load(made, accumulator):
    """Device function ``load(p, i, row, k, operands)``: one element as products of this accumulator take it, without a stage. Host
    function."""
    kind = loaded_type(made.source)
    load, run = element_of(made.source).load, make_program(made.program, kind)
    narrow = make_narrow(made.program.types(kind)[made.program.result], made.dtype)
    widen = (element_of if accumulator == "int32" else element)(made.dtype).widen
    return device_function(lambda p, i, row, k, operands: widen(narrow(run(load(p, i), row, k, operands))))


class ProgramLoader:
    """Pieces of up to 16 bytes of a stage's line; `vector` neighbours in memory in one load, 1 for one at a time."""

    def __init__(self, stored, threads, vector, edge, made):
        self.item = numpy_dtype(made.source).itemsize
        self.vector = vector if vector * min(self.item, stored.item) >= 4 else 1
        self.count = self.vector if self.vector > 1 else max(4 // stored.item, 1)  # elements of a piece
        self.share = Share(stored, threads, self.count * stored.item)
        self.stored, self.edge, self.made = stored, edge, made
        pieces = self.share.lines * self.share.pieces
        self.each = -(-self.count * self.item // 4)  # words of a piece in memory
        # and k of the stage; and where k ends
        self.places, self.words, self.place = pieces + 1, pieces * self.each + 1, "int64"
        self.registers = 2 * pieces + self.words + 12
        self.accesses = stored.bytes // (self.vector * stored.item)

    def functions(self):
        """The device functions start, part, whole, put, advance."""
        N, C, idle, lines = self.share.lines, self.share.pieces, self.share.idle, self.stored.lines
        item, edge, along_k, COUNT, EACH = self.stored.item, self.edge, self.stored.order == ALONG_K, self.count, self.each
        SINGLE, PIECES, END = self.vector == 1, N * C, N * C * EACH
        line, byte, offset, piece = self.share.functions()
        corner, hide = self.share.corner(line, byte, edge, self.vector), pin(PIECES)
        fetch = self._single() if SINGLE else self._vector()
        words = self._words()
        WORDS, (first_word, second_word, third_word, fourth_word) = len(words), (words * 4)[:4]

        @device_function
        def start(at, s, first, tid):
            p, row0, last, stride_row, stride_k, e = s
            for n in range(N):
                for c in range(C):
                    row, k = corner(row0, last, tid, n, c)
                    at[n * C + c] = (row0 + row) * stride_row + (first + k) * stride_k
            at[PIECES] = first

        @device_function
        def load(at, hold, s, tid, left, ok):
            p, row0, last, stride_row, stride_k, e = s
            if idle:
                ok = ok if line(tid, 0) < lines else 0
            for n in range(N):
                for c in range(C):
                    first = byte(tid, c) // item
                    if SINGLE:
                        most = COUNT
                        if edge and not along_k:
                            most = last - row0 - first + 1  # beyond the last row the first one of the piece is read again
                        fetch(hold, (n * C + c) * EACH, p, at[n * C + c], stride_k if along_k else stride_row, most,
                              left - first if along_k else COUNT, ok if along_k or line(tid, n) < left else 0)
                    else:
                        fetch(hold, (n * C + c) * EACH, p, at[n * C + c], 0, 0, 0,
                              ok if (first if along_k else line(tid, n)) < left else 0)

        @device_function
        def whole(at, hold, to, s, tid, ok):
            load(at, hold, s, tid, EVERYTHING, ok)
            hold[END] = EVERYTHING if ok != 0 else 1  # a stage behind the last: of column 0, which there is

        @device_function
        def part(at, hold, to, s, tid, left):
            load(at, hold, s, tid, left, 1)
            hold[END] = at[PIECES] + left

        @device_function
        def put_piece(i, state):
            at, hold, base, s, tid = state
            p, row0, last, stride_row, stride_k, e = s
            n, c = i // C, i % C
            across, first = line(tid, n), byte(tid, c) // item
            row, k = (across, first) if along_k else (first, across)
            given = hold, i * EACH, row0 + row, last, i32(at[PIECES]) + k, i32(hold[END]), e
            to = piece(base, n, c)
            if WORDS == 4:
                store_shared_4u32(to, first_word(given), second_word(given), third_word(given), fourth_word(given))
            elif WORDS == 2:
                store_shared_2u32(to, first_word(given), second_word(given))
            else:
                store_shared_u32(to, first_word(given))
        put_all = unrolled(PIECES, put_piece)

        @device_function
        def put(at, hold, to, s, tid):
            if not idle or line(tid, 0) < lines:
                put_all(0, (at, hold, to + offset(tid), s, tid))

        @device_function
        def step(at, s, count):
            p, row0, last, stride_row, stride_k, e = s
            for n in range(N * C):
                at[n] = at[n] + count * stride_k
            at[PIECES] = at[PIECES] + count
            hide(at)
        return start, part, whole, put, step

    def _vector(self):
        """Device function ``fetch(hold, w, p, at, ...)``: the words of a piece, by one load."""
        load = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[self.each]

        @device_function
        def fetch(hold, w, p, at, stride, most, left, ok):
            load(hold, w, as_u32(advance(p, at)), 0, ok)
        return fetch

    def _single(self):
        """The same, element by element; those from `most` on are the first one, those from `left` on zero."""
        COUNT, EACH, one = self.count, self.each, single_element(self.item)
        PER, BITS = max(4 // self.item, 1), 8 * self.item

        @device_function
        def fetch(hold, w, p, at, stride, most, left, ok):
            for j in range(EACH):
                hold[w + j] = 0
                for v in range(PER):
                    n = j * PER + v
                    if n < COUNT:
                        step = n * stride if n < most else 0
                        hold[w + j] |= one(p, at + step, ok if n < left else 0) << u32(v * BITS)
        return fetch

    def _words(self):
        """Device functions ``word((hold, w, row, last, k, end, e))`` of a piece's words for the stage, made of what is in memory."""
        made, PER = self.made, 4 // self.stored.item
        source = loaded_type(made.source)
        run = make_program(made.program, source)
        cast, pack = make_cast(made.program.types(source)[made.program.result], "float32"), element(made.dtype).pack
        values = [self._value(n, run, cast) for n in range(self.count)]
        return [_packed(pack, *values[n:n + PER]) for n in range(0, self.count, PER)]

    def _value(self, N, run, cast):
        """Device function: element N of a piece; 0 past the end of k."""
        along_k, edge, unpack, PER = self.stored.order == ALONG_K, self.edge, element_of(self.made.source).unpack, 4 // self.item
        WORD, LANE = N // PER, N % PER
        pick = unpack if PER == 1 else device_function(lambda word: unpack(word)[LANE])

        @device_function
        def value(s):
            hold, w, row, last, k, end, e = s
            x = pick(hold[w + WORD])
            row, k = (row, k + N) if along_k else (row + N, k)
            if edge:
                row = minimum(row, last)
            y = cast(run(x, row, minimum(k, end - 1), e))
            return y if k < end else f32(0)
        return value


def _packed(pack, *values):
    """Device function: a word of the values."""
    first, *others = values
    if not others:
        return device_function(lambda s: pack(first(s)))
    if len(others) == 1:
        second, = others
        return device_function(lambda s: pack(first(s), second(s)))
    second, third, fourth = others
    return device_function(lambda s: pack(first(s), second(s), third(s), fourth(s)))
