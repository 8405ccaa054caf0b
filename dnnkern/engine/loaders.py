"""Loaders of the SIMT main loop: a tile of an operand to shared memory as [k][row]; `row` runs along m of a, along n of b.

A loader is made for a tile of ROWS x BK elements and a block of THREADS. It has the `pitch` of a row of shared memory, and the sizes
`places` and `words` of the thread's local arrays. Its device functions, made by `functions`, share those arrays:

    init(at, base, rest, stride, stride_k, tid)      the addresses in global memory that the thread copies from, into `at`
    place(tid)                                       byte offset of the thread's first element in a stage
    first(at, hold, p, to, stride_k, tid, left)      a stage with only the first `left` of its k; the others become zero
    issue(at, hold, p, to, stride_k, ok)             a whole stage; nothing if `ok` is zero
    put(hold, to)                                    stores to shared memory what those two left in registers
    advance(at, step)                                `step` elements on

Rows past the operand's edge are read from its last rows: they only reach results that are not stored.

- `AsyncLoader`: elements of 4 or 8 bytes by cp.async. Along rows 16, 8 or 4 bytes per copy; along k one element per copy, which transposes
  on the way. There the pitch is 16 bytes more than a row, which keeps the elements of a warp's copy in different banks.
- `StagedLoader`: 16-bit elements through registers, widened to float32 in shared memory: once per element, where widening after shared
  memory would be once per use.
"""
from ..device import cp_async, device_function, i64, u16, u32, u64
from ..device.convert import element
from ..device.fastmath import minimum
from ..device.vec import (advance, as_u32, load1_nc_if, load1_nc_if_into, load2_nc_if_into, load4_nc_if_into, store_shared_2f32,
                          store_shared_4f32, store_shared_f32)

ALONG_ROWS, ALONG_K, STRIDED = 0, 1, 2


def log2(x):
    return x.bit_length() - 1


class AsyncLoader:
    """Copies elements of `item` bytes; `order` is ALONG_ROWS (`vector` elements per copy), ALONG_K or STRIDED (one element per copy)."""

    def __init__(self, ROWS, BK, THREADS, item, order, vector, edge):
        along_rows = order == ALONG_ROWS
        self.pitch = PITCH = ROWS if along_rows else ROWS + 16 // item
        size = item * vector if along_rows else item
        if along_rows:
            chunks = ROWS // vector
            LANES = chunks if edge else min(chunks, max(THREADS // BK, 1))
            STEP = THREADS // LANES
            N, C = BK // STEP, chunks // LANES
            SHIFT, DELTA, DELTA_C = log2(LANES), STEP * PITCH * item, LANES * size
            fits = N * STEP == BK and C * LANES == chunks
        else:
            LANES = min(BK, max(8, THREADS // ROWS))
            STEP = THREADS // LANES
            N, C = ROWS // STEP, BK // LANES
            SHIFT, DELTA, DELTA_C = log2(LANES), STEP * item, LANES * PITCH * item
            fits = N * STEP == ROWS and C * LANES == BK
        if not fits:
            raise ValueError(f"{THREADS} threads cannot share a tile of {ROWS} rows and {BK} k in copies of {size} bytes")
        self.places, self.words = N, 1
        self._shape = along_rows, order, vector, edge, item, size, PITCH, LANES, STEP, N, C, SHIFT, DELTA, DELTA_C

    def functions(self):
        """The device functions init, place, first, issue, put, advance."""
        along_rows, order, vector, edge, item, size, PITCH, LANES, STEP, N, C, SHIFT, DELTA, DELTA_C = self._shape
        copy, copy_if = getattr(cp_async, f"copy_async{size}"), getattr(cp_async, f"copy_async{size}_if")

        @device_function
        def init(at, base, rest, stride, stride_k, tid):
            if along_rows:
                row, k = (tid & (LANES - 1)) * vector, tid >> SHIFT
                if edge:
                    row = minimum(row, rest - (vector - 1))
                for i in range(N):
                    at[i] = base + u64((row * stride + (k + i * STEP) * stride_k) * item)
            else:
                k = tid & (LANES - 1)
                for i in range(N):
                    row = (tid >> SHIFT) + i * STEP
                    if edge:
                        row = minimum(row, rest)
                    at[i] = base + u64((row * stride + k * stride_k) * item)

        @device_function
        def place(tid):
            if along_rows:
                return u32((tid >> SHIFT) * PITCH + (tid & (LANES - 1)) * vector) * item
            return u32((tid & (LANES - 1)) * PITCH + (tid >> SHIFT)) * item

        @device_function
        def offset(c, stride_k):
            """Bytes from the thread's copy 0 of a row of copies to copy c; a constant unless the strides are free."""
            if order == STRIDED:
                return c * LANES * item * stride_k
            return i64(c * LANES * size)

        @device_function
        def issue(at, hold, p, to, stride_k, ok):
            for i in range(N):
                for c in range(C):
                    copy_if(to + u32(i * DELTA + c * DELTA_C), at[i], offset(c, stride_k), ok)

        @device_function
        def first(at, hold, p, to, stride_k, tid, left):
            for i in range(N):
                for c in range(C):
                    k = (tid >> SHIFT) + i * STEP if along_rows else (tid & (LANES - 1)) + c * LANES
                    copy(to + u32(i * DELTA + c * DELTA_C), at[i], offset(c, stride_k), u32(size) if k < left else u32(0))

        @device_function
        def put(hold, to):
            pass

        @device_function
        def step_on(at, step):
            for i in range(N):
                at[i] = at[i] + u64(step * item)

        return init, place, first, issue, put, step_on


class StagedLoader:
    """Loads `vector` 16-bit elements of type `dtype` at a time; `hold` keeps them, two per word, until `put` widens them."""

    def __init__(self, ROWS, BK, THREADS, dtype, order, vector, edge):
        along_rows = order == ALONG_ROWS
        self.pitch = PITCH = ROWS
        if along_rows:  # lanes along rows, N steps along k
            vector = min(vector, 4)  # 16 bytes for each store to shared memory
            LANES = ROWS // vector
            STEP = THREADS // LANES
            N, C = BK // STEP, 1
            fits = N * STEP == BK
        else:  # lanes along rows too, for stores without bank conflicts: N groups of rows, C chunks of k
            LANES = min(ROWS, THREADS)
            STEP = THREADS // LANES
            vector = min(vector, BK // STEP)
            N, C = ROWS // LANES, BK // (STEP * vector)
            fits = C > 0 and N * LANES == ROWS
        if not fits:
            raise ValueError(f"{THREADS} threads cannot share a tile of {ROWS} rows and {BK} k in loads of {vector} elements")
        SHIFT, WORDS = log2(LANES), max(vector // 2, 1)
        self.places, self.words = N, N * C * WORDS
        self._shape = along_rows, vector, edge, dtype, PITCH, LANES, STEP, N, C, SHIFT, WORDS

    def functions(self):
        """The device functions init, place, first, issue, put, advance."""
        along_rows, vector, edge, dtype, PITCH, LANES, STEP, N, C, SHIFT, WORDS = self._shape
        operand = element(dtype)
        unpack, widen = operand.unpack, operand.widen
        load_words = {1: load1_nc_if_into, 2: load2_nc_if_into, 4: load4_nc_if_into}[WORDS]

        @device_function
        def init(at, base, rest, stride, stride_k, tid):
            for i in range(N):
                if along_rows:
                    row, k = (tid & (LANES - 1)) * vector, (tid >> SHIFT) + i * STEP
                else:
                    row, k = (tid & (LANES - 1)) + i * LANES, (tid >> SHIFT) * vector
                if edge:
                    row = minimum(row, rest - (vector - 1) if along_rows else rest)
                at[i] = base + row * stride + k * stride_k

        @device_function
        def place(tid):
            if along_rows:
                return u32((tid >> SHIFT) * PITCH + (tid & (LANES - 1)) * vector) * 4
            return u32((tid >> SHIFT) * (vector * PITCH) + (tid & (LANES - 1))) * 4

        @device_function
        def load(hold, slot, p, at, ok):
            if vector == 1:
                hold[slot] = u32(load1_nc_if(p, at, ok))
            else:
                load_words(hold, slot, as_u32(advance(p, at)), 0, ok)

        @device_function
        def issue(at, hold, p, to, stride_k, ok):
            for i in range(N):
                for c in range(C):
                    load(hold, (i * C + c) * WORDS, p, at[i] + c * STEP * vector * stride_k, ok)

        @device_function
        def first(at, hold, p, to, stride_k, tid, left):
            for i in range(N):
                for c in range(C):
                    k = (tid >> SHIFT) + i * STEP if along_rows else ((tid >> SHIFT) + c * STEP) * vector
                    ok = 1 if k < left else 0
                    load(hold, (i * C + c) * WORDS, p, at[i] + c * STEP * vector * stride_k, ok)

        @device_function
        def put(hold, to):
            for i in range(N):
                for c in range(C):
                    slot = (i * C + c) * WORDS
                    if along_rows:
                        o = to + u32(i * STEP * PITCH * 4)
                        if vector == 4:
                            v0, v1 = unpack(hold[slot])
                            v2, v3 = unpack(hold[slot + 1])
                            store_shared_4f32(o, v0, v1, v2, v3)
                        elif vector == 2:
                            v0, v1 = unpack(hold[slot])
                            store_shared_2f32(o, v0, v1)
                        else:
                            store_shared_f32(o, widen(u16(hold[slot])))
                    else:
                        o = to + u32((i * LANES + c * STEP * vector * PITCH) * 4)
                        if vector == 1:
                            store_shared_f32(o, widen(u16(hold[slot])))
                        else:
                            for w in range(WORDS):
                                v0, v1 = unpack(hold[slot + w])
                                store_shared_f32(o + u32(2 * w * PITCH * 4), v0)
                                store_shared_f32(o + u32((2 * w + 1) * PITCH * 4), v1)

        @device_function
        def step_on(at, step):
            for i in range(N):
                at[i] = at[i] + step

        return init, place, first, issue, put, step_on
