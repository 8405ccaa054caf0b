"""Loaders of gathered operands for the main loop of `engine.simt`; a copy is one element, or 16 bytes of neighbouring rows, [k][row].

The local array of a loader has the offsets of the thread's rows, their masks if the operand is the source, and the stage's number.
"""
from dataclasses import dataclass

from ...device import cp_async, cuda, device_function, i32, i64, u16, u32
from ...device.convert import element
from ...device.fastmath import minimum
from ...device.unroll import unrolled
from ...device.vec import address, load1_nc_if, load_shared_2u32, store_shared_f32
from ...engine.loaders import ALONG_ROWS, log2


@dataclass(frozen=True)
class Rows:
    """How the rows of an operand are found: those of the source by `make_gather`, those of the plain operand one stride apart. `by_pixel`:
    elements of k are pixels, and rows of the source are taps and channels."""
    is_source: bool
    by_pixel: bool


def make_rows(rows, functions, vector):
    """Device functions ``locate(i, s) -> (offset, word)`` of the `vector` rows from i on that are copied together, and
    ``exists(word, entry)``: whether an element exists or is padding. Rows of the plain operand past the last read the last: they only reach
    results that are not stored."""
    is_source, by_pixel = rows.is_source, rows.by_pixel
    row = functions.row if is_source else None

    @device_function
    def locate(i, s):
        if is_source:
            return row(i, s.gather, s.product)
        return minimum(i, s.last_row - (vector - 1)) * s.gather.plain.row, u32(0)

    @device_function
    def exists(word, entry):
        if not is_source:
            return i32(entry) < 0
        if by_pixel:
            return word & entry == word
        return word & entry == entry
    return locate, exists


class GatherLoader:
    """For tiles of ROWS x BK elements of `dtype`: cp.async of `vector` elements; 16-bit ones singly, through registers to float32.

    `order` says where neighbouring lanes are: ALONG_ROWS, otherwise along k. `leads`: this loader fills the table.
    """
    place = "int32"

    def __init__(self, ROWS, table, dtype, order, vector, rows, functions, leads):
        self.table, self.dtype, self.rows, self.gather, self.leads = table, dtype, rows, functions, leads
        self.staged = dtype in ("float16", "bfloat16")
        item = 8 if dtype == "float64" else 4
        BK, THREADS, along_rows = table.bk, table.threads, order == ALONG_ROWS
        if self.staged or not along_rows:
            vector = 1
        self.pitch = PITCH = ROWS if along_rows else ROWS + 16 // item
        if along_rows:
            LANES = min(ROWS // vector, THREADS)
            STEP = THREADS // LANES
            N, C = BK // STEP, ROWS // vector // LANES
            fits = N * STEP == BK and C * LANES * vector == ROWS and N > 0
        else:
            LANES = min(BK, max(8, THREADS // ROWS))
            STEP = THREADS // LANES
            N, C = BK // LANES, ROWS // STEP
            fits = C * STEP == ROWS and N * LANES == BK and C > 0
        if not fits:
            raise ValueError(f"{THREADS} threads cannot share a tile of {ROWS} rows and {BK} k in copies of {vector * item} bytes")
        self.copies = C
        self.words = N * C if self.staged else 1
        self.places = 2 * C + 1
        self.registers = (2 if rows.is_source else 1) * C + 4 + (self.words if self.staged else 0)
        self._shape = along_rows, vector, item, PITCH, LANES, STEP, N, C

    def functions(self):
        """The device functions start, place, part, whole, put, advance of `engine.simt.make_tile_product`."""
        along_rows, vector, item, PITCH, LANES, STEP, N, C = self._shape
        staged, leads, is_source, SIZE = self.staged, self.leads, self.rows.is_source, vector * item
        SHIFT, COUNTER, WORD = log2(LANES), 2 * C, 0 if is_source else 8
        row_step, k_step = (LANES * vector, STEP) if along_rows else (STEP, LANES)  # from one of the thread's to the next
        to_row, to_k = row_step * item, k_step * PITCH * item
        begin, ahead, table_at = self.table.functions(self.gather.entry)
        locate_row, exists = make_rows(self.rows, self.gather, vector)
        copy = getattr(cp_async, f"copy_async{SIZE}")
        widen = element(self.dtype).widen if staged else None
        GRAIN = self.table.grain

        @device_function
        def first_row(tid):
            return (tid & (LANES - 1)) * vector if along_rows else tid >> SHIFT

        @device_function
        def first_k(tid):
            return tid >> SHIFT if along_rows else tid & (LANES - 1)

        @device_function
        def locate_one(c, state):
            at, s, tid = state
            at[c], word = locate_row(s.row + first_row(tid) + c * row_step, s)
            at[C + c] = i32(word)
        locate_all = unrolled(C, locate_one)  # the compiler does not unroll a loop with masks in it

        @device_function
        def start(at, s, k_first, tid):
            locate_all(0, (at, s, tid))
            at[COUNTER] = 0
            if leads:
                begin(s, tid)
                cuda.syncthreads()

        @device_function
        def place(tid):
            return u32((first_k(tid) * PITCH + first_row(tid)) * item)

        @device_function
        def load(at, hold, to, s, tid):
            p, g = s.pointer, s.gather
            for n in range(N):
                k = first_k(tid) + n * k_step
                low, word = load_shared_2u32(table_at(at[COUNTER], k, s) + WORD)
                offset = i32(low)
                if GRAIN > 1:  # only channels have a grain
                    offset = offset + (k & (GRAIN - 1)) * (g.source.channel if is_source else g.plain.channel)
                for c in range(C):
                    ok = exists(u32(at[C + c]), word)
                    if staged:
                        hold[n * C + c] = load1_nc_if(p, at[c] + offset, 1 if ok else 0)
                    else:
                        copy(to + u32(n * to_k + c * to_row), address(p, 0), i64(at[c] + offset) * item, SIZE if ok else 0)

        @device_function
        def part(at, hold, to, s, tid, left):
            load(at, hold, to, s, tid)

        @device_function
        def whole(at, hold, to, s, tid, ok):
            if leads:
                ahead(at[COUNTER], s, tid)
            load(at, hold, to, s, tid)

        @device_function
        def put(hold, to):
            if staged:
                for n in range(N):
                    for c in range(C):
                        store_shared_f32(to + u32(n * to_k + c * to_row), widen(u16(hold[n * C + c])))

        @device_function
        def advance(at, s, count):
            at[COUNTER] = at[COUNTER] + 1
        return start, place, part, whole, put, advance
