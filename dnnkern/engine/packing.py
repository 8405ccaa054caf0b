"""Copies of operands for TMA: rows contiguous along k, each beginning at a multiple of 16 bytes.

What TMA cannot address (an odd leading dimension, an address that is no multiple of 16) or the tensor cores cannot read (8-bit and tf32
operands that are not contiguous along k) is copied to the workspace once. That moves every element twice; the product reads it many more
times.

Rows contiguous along k with any start: a thread reads the aligned 16 bytes in which its own begin, gets the next 16 from its neighbour, and
shifts. All others: 64 x 64 elements per block through shared memory, read along whichever dimension is contiguous.
"""
import functools

from ..device import cuda, device_function, i32, i64, jit, u8, u16, u32
from ..device.index import ceil_div, divide_remainder, divisor, funnel_shift
from ..device.unroll import unrolled
from ..device.vec import address, advance, as_u32, load4_nc_if, store4
from ..device.warp import shuffle_down
from ..host.launch import Argument, Launch

SIDE, THREADS = 64, 256
LINE, LONG = 128, 512  # bytes of a line of the L2, and of rows that grow by a quarter at most
ROWS = 4  # that a warp copies at a time, so that as many loads are in flight


def pitch_of(k, itemsize):
    """Elements of a packed row: k, rounded up to 16 bytes."""
    per = 16 // itemsize
    return ceil_div(k, per) * per


def line_pitch_of(k, itemsize):
    """Those of a row that TMA reads in boxes of 128 bytes: long ones are rounded up to the L2's lines. A box that begins anywhere takes two
    lines of the L2 for each of its rows, and products of many tiles take half as long again."""
    per = LINE // itemsize
    return ceil_div(k, per) * per if k * itemsize > LONG else pitch_of(k, itemsize)


def packed_bytes(matrices, rows, k, itemsize, pitch=pitch_of):
    """Bytes of packed matrices, whole lines of 256; `pitch` is one of the two above."""
    return ceil_div(matrices * rows * pitch(k, itemsize) * itemsize, 256) * 256


@functools.cache
def pack_kernel(itemsize, along_k):
    """Copy one 64 x 64 tile of one matrix; `along_k` says which dimension neighbouring threads read along."""
    T = {1: u8, 2: u16, 4: u32}[itemsize]
    PER, CHUNKS = 16 // itemsize, SIDE * itemsize // 16
    # a pitch of 33, 17 or 65 words: neither writing down a column nor reading along a row meets a bank twice
    PITCH = SIDE + max(4 // itemsize, 1)
    SIZE, READS, WRITES = SIDE * PITCH, SIDE * SIDE // THREADS, SIDE * CHUNKS // THREADS

    @jit(launch_bounds=THREADS)
    def matmul_pack(x, packed, rows, k, row_stride, k_stride, batch_stride, pitch, per_matrix, tiles_k):
        tile = cuda.shared.array(SIZE, T)
        tid = cuda.threadIdx.x
        z, inside = divide_remainder(cuda.blockIdx.x, per_matrix)
        r, c = divide_remainder(inside, tiles_k)
        row0, k0 = r * SIDE, c * SIDE
        source = advance(x, z * batch_stride)
        values = cuda.local.array(READS, T)
        for i in range(READS):  # without branches, so that all are on their way at once
            e = tid + i * THREADS
            row, column = (i32(e >> 6), i32(e & 63)) if along_k else (e & 63, e >> 6)
            inside_row, inside_k = min(row0 + row, rows - 1), min(k0 + column, k - 1)
            values[i] = source[inside_row * row_stride + inside_k * k_stride]
        for i in range(READS):
            e = tid + i * THREADS
            row, column = (i32(e >> 6), i32(e & 63)) if along_k else (e & 63, e >> 6)
            tile[row * PITCH + column] = values[i] if k0 + column < k else T(0)
        cuda.syncthreads()
        for i in range(WRITES):
            e = tid + i * THREADS
            row, first = e // CHUNKS, e % CHUNKS * PER
            if row0 + row < rows and k0 + first < pitch:
                at = row * PITCH + first
                words = cuda.local.array(4, u32)
                for w in range(4):
                    word = u32(0)
                    for part in range(4 // itemsize):
                        word = word | (u32(tile[at + w * (4 // itemsize) + part]) << u32(8 * itemsize * part))
                    words[w] = word
                to = (i64(z) * rows + (row0 + row)) * pitch + (k0 + first)
                store4(as_u32(advance(packed, to)), 0, (words[0], words[1], words[2], words[3]))
    return matmul_pack


@functools.cache
def rows_kernel(itemsize):
    """Copy 512 bytes of each of `ROWS` rows a warp; rows lie one behind another, in whatever distance."""
    PER, LOG, WORDS = 16 // itemsize, itemsize.bit_length() - 1, 4 * ROWS
    T = {1: u8, 2: u16, 4: u32}[itemsize]

    @device_function
    def edge_word(source, at, last, w):
        """Word `w` of the 16 bytes at element `at`, which reach out of the array on either side."""
        word = u32(0)
        for part in range(4 // itemsize):
            e = at + (w * (4 // itemsize) + part)
            if 0 <= e and e < last:
                word = word | (u32(T(source[e])) << u32(8 * itemsize * part))
        return word

    @device_function
    def chunk_at(source, at, last, wanted):
        """The 16 bytes at element `at`, an address that is a multiple of 16; zeros for what is not wanted or not in the array."""
        whole = i32(wanted != 0 and 0 <= at and at + PER <= last)
        words = load4_nc_if(as_u32(advance(source, at)), 0, whole)
        if whole == 0 and wanted != 0:
            words = (edge_word(source, at, last, 0), edge_word(source, at, last, 1), edge_word(source, at, last, 2),
                     edge_word(source, at, last, 3))
        return words

    @device_function
    def load_row(n, s):
        loaded, begins, source, row0, there, row_stride, batch_at, first, k, last = s
        row = row0 + n
        wanted = i32(row < there and first < k + PER)  # the neighbour's too, whose bytes may end here
        begin = batch_at + row * row_stride + first if wanted != 0 else i64(0)
        skew = i32(i64(address(source, begin)) & 15)
        words = chunk_at(source, begin - (skew >> LOG), last, wanted)
        for w in range(4):
            loaded[4 * n + w] = words[w]
        begins[n] = begin
    load_rows = unrolled(ROWS, load_row)

    @device_function
    def store_row(n, s):
        loaded, begins, source, packed, row0, rows, there, out_at, first, k, pitch, last, lane = s
        row = row0 + n
        a, b, c, d = loaded[4 * n], loaded[4 * n + 1], loaded[4 * n + 2], loaded[4 * n + 3]
        e, f, g, h = shuffle_down(a, 1), shuffle_down(b, 1), shuffle_down(c, 1), shuffle_down(d, 1)
        if row < rows and first < k:
            skew = i32(i64(address(source, begins[n])) & 15)
            if lane == 31 and skew != 0 and row < there:
                e, f, g, h = chunk_at(source, begins[n] - (skew >> LOG) + PER, last, 1)
            if skew & 8:
                a, b, c, d, e, f, g = c, d, e, f, g, h, u32(0)
            if skew & 4:
                a, b, c, d, e = b, c, d, e, f
            bits = u32((skew & 3) * 8)
            a, b, c, d = funnel_shift(a, b, bits), funnel_shift(b, c, bits), funnel_shift(c, d, bits), funnel_shift(d, e, bits)
            left = (k - first) << LOG  # bytes of the row; what follows is zero
            if left < 16:
                a, b, c, d = keep(a, left), keep(b, left - 4), keep(c, left - 8), keep(d, left - 12)
            store4(as_u32(advance(packed, out_at + row * i64(pitch) + first)), 0, (a, b, c, d))

    @device_function
    def keep(word, count):
        if count >= 4:
            return word
        return word & ((1 << u32(8 * max(count, 0))) - 1)
    store_rows = unrolled(ROWS, store_row)

    @jit(launch_bounds=THREADS)
    def matmul_pack_rows(x, packed, rows, there, k, row_stride, batch_stride, pitch, last, matrices, per_matrix, parts):
        lane = cuda.threadIdx.x & 31
        warp = cuda.blockIdx.x * (THREADS // 32) + (cuda.threadIdx.x >> 5)
        z, inside = divide_remainder(warp, per_matrix)
        r, part = divide_remainder(inside, parts)
        row0, first = r * ROWS, (part * 32 + lane) * PER
        loaded, begins = cuda.local.array(WORDS, u32), cuda.local.array(ROWS, i64)
        batch_at = z * batch_stride
        if z >= matrices:
            row0 = max(rows, there)
        load_rows(0, (loaded, begins, x, row0, there, row_stride, batch_at, first, k, last))
        store_rows(0, (loaded, begins, x, packed, row0, rows, there, i64(z) * rows * pitch, first, k, pitch, last, lane))
    return matmul_pack_rows


def by_rows(matrices, rows, k, strides):
    """Whether operands of these element `strides` (batch, rows, k) are copied by `rows_kernel`, at the speed of memory."""
    batch_stride, row_stride, k_stride = strides
    return k_stride == 1 and row_stride >= k and (matrices == 1 or batch_stride >= k + (rows - 1) * row_stride)


def pack_launch(name, tensor, matrices, rows, k, strides, offset, more=0, pitch=pitch_of):
    """The launch that packs operand `name`, with element `strides` (batch, rows, k), to byte `offset` of the workspace; of rows that
    `rows_kernel` copies, so many `more` of zeros follow each matrix's; `pitch`: see `packed_bytes`."""
    batch_stride, row_stride, k_stride = strides
    pointer = {1: "uint8*", 2: "uint16*", 4: "uint32*"}[tensor.itemsize]
    if by_rows(matrices, rows, k, strides):
        parts, groups = ceil_div(k, 512 // tensor.itemsize), ceil_div(rows + more, ROWS)
        arguments = (Argument(pointer, name), Argument(pointer, "workspace", offset=offset), Argument("int32", rows + more),
                     Argument("int32", rows), Argument("int32", k), Argument("int64", row_stride), Argument("int64", batch_stride),
                     Argument("int32", pitch(k, tensor.itemsize)),
                     Argument("int64", (matrices - 1) * batch_stride + (rows - 1) * row_stride + k), Argument("int32", matrices),
                     Argument("uint32x3", divisor(parts * groups)), Argument("uint32x3", divisor(parts)))
        return Launch(rows_kernel(tensor.itemsize), (ceil_div(parts * groups * matrices, THREADS // 32), 1, 1), (THREADS, 1, 1), arguments)
    tiles_k, tiles_rows = ceil_div(k, SIDE), ceil_div(rows, SIDE)
    arguments = (Argument(pointer, name), Argument(pointer, "workspace", offset=offset), Argument("int32", rows), Argument("int32", k),
                 Argument("int64", row_stride), Argument("int64", k_stride), Argument("int64", batch_stride),
                 Argument("int32", pitch(k, tensor.itemsize)), Argument("uint32x3", divisor(tiles_k * tiles_rows)),
                 Argument("uint32x3", divisor(tiles_k)))
    along_k = k_stride == 1 or row_stride != 1
    return Launch(pack_kernel(tensor.itemsize, along_k), (tiles_k * tiles_rows * matrices, 1, 1), (THREADS, 1, 1), arguments)
