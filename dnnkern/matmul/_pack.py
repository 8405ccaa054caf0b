"""Copies of operands for TMA: rows contiguous along k, each beginning at a multiple of 16 bytes.

What TMA cannot address (an odd leading dimension, an address that is no multiple of 16) or the tensor cores cannot read (8-bit and tf32
operands that are not contiguous along k) is copied to the workspace once, 64 x 64 elements a block through shared memory: read along
whichever dimension is contiguous, written along k in 16 bytes. That moves every element twice; the product reads it many more times.
"""
import functools

from ..device import cuda, i32, i64, u8, u16, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, as_u32, store4
from ..host.launch import Argument, Launch

SIDE, THREADS = 64, 256


def pitch_of(k, itemsize):
    """Elements of a packed row: k, rounded up to 16 bytes."""
    per = 16 // itemsize
    return ceil_div(k, per) * per


def packed_bytes(matrices, rows, k, itemsize):
    """Bytes of packed matrices, whole lines of 256."""
    return ceil_div(matrices * rows * pitch_of(k, itemsize) * itemsize, 256) * 256


@functools.cache
def pack_kernel(itemsize, along_k):
    """Copy one 64 x 64 tile of one matrix; `along_k` says which dimension neighbouring threads read along."""
    T = {1: u8, 2: u16, 4: u32}[itemsize]
    PER, CHUNKS = 16 // itemsize, SIDE * itemsize // 16
    # a pitch of 33, 17 or 65 words: neither writing down a column nor reading along a row meets a bank twice
    PITCH = SIDE + max(4 // itemsize, 1)
    SIZE, READS, WRITES = SIDE * PITCH, SIDE * SIDE // THREADS, SIDE * CHUNKS // THREADS

    @cuda.jit(launch_bounds=THREADS)
    def matmul_pack(x, packed, rows, k, row_stride, k_stride, batch_stride, pitch, per_matrix, tiles_k):
        tile = cuda.shared.array(SIZE, T)
        tid = i32(cuda.threadIdx.x)
        z, inside = divide_remainder(i32(cuda.blockIdx.x), per_matrix)
        r, c = divide_remainder(inside, tiles_k)
        row0, k0 = i32(r * SIDE), i32(c * SIDE)
        source = advance(x, i64(i64(z) * batch_stride))
        values = cuda.local.array(READS, T)
        for i in range(READS):  # without branches, so that all are on their way at once
            e = i32(tid + i * THREADS)
            row, column = (i32(e >> 6), i32(e & 63)) if along_k else (i32(e & 63), i32(e >> 6))
            inside_row, inside_k = i32(min(i32(row0 + row), i32(rows - 1))), i32(min(i32(k0 + column), i32(k - 1)))
            values[i] = source[i64(i64(inside_row) * row_stride + i64(inside_k) * k_stride)]
        for i in range(READS):
            e = i32(tid + i * THREADS)
            row, column = (i32(e >> 6), i32(e & 63)) if along_k else (i32(e & 63), i32(e >> 6))
            tile[i32(row * PITCH + column)] = values[i] if i32(k0 + column) < k else T(0)
        cuda.syncthreads()
        for i in range(WRITES):
            e = i32(tid + i * THREADS)
            row, first = i32(e // CHUNKS), i32(i32(e % CHUNKS) * PER)
            if i32(row0 + row) < rows and i32(k0 + first) < pitch:
                at = i32(row * PITCH + first)
                words = cuda.local.array(4, u32)
                for w in range(4):
                    word = u32(0)
                    for part in range(4 // itemsize):
                        word = u32(word | u32(u32(tile[i32(at + w * (4 // itemsize) + part)]) << u32(8 * itemsize * part)))
                    words[w] = word
                to = i64(i64(i64(z) * rows + i64(row0 + row)) * pitch + i64(k0 + first))
                store4(as_u32(advance(packed, to)), i32(0), (words[0], words[1], words[2], words[3]))
    return matmul_pack


def pack_launch(name, tensor, matrices, rows, k, strides, offset):
    """The launch that packs operand `name`, with element `strides` (batch, rows, k), to byte `offset` of the workspace."""
    batch_stride, row_stride, k_stride = strides
    pointer = {1: "uint8*", 2: "uint16*", 4: "uint32*"}[tensor.itemsize]
    tiles_k, tiles_rows = ceil_div(k, SIDE), ceil_div(rows, SIDE)
    arguments = (Argument(pointer, name), Argument(pointer, "workspace", offset=offset), Argument("int32", rows), Argument("int32", k),
                 Argument("int64", row_stride), Argument("int64", k_stride), Argument("int64", batch_stride),
                 Argument("int32", pitch_of(k, tensor.itemsize)), Argument("uint32x3", divisor(tiles_k * tiles_rows)),
                 Argument("uint32x3", divisor(tiles_k)))
    along_k = k_stride == 1 or row_stride != 1
    return Launch(pack_kernel(tensor.itemsize, along_k), (tiles_k * tiles_rows * matrices, 1, 1), (THREADS, 1, 1), arguments)
