"""The textbook tile: 16x16 threads load a 16x16 tile of a and one of b into shared memory and multiply them.

A thread owns one element of y. For every step of 16 along k the block copies a[m0:m0+16, k:k+16] and b[k:k+16, n0:n0+16] to shared memory,
each thread one element of both, widened to the accumulator's type; a barrier; 16 multiply-adds from shared memory; a barrier, because the
next copies overwrite the tiles. Each element is read from global memory by one block in 16 instead of by every thread, which is the whole
idea: 16 times less traffic than `naive`.

The thread that copies an element is chosen so that neighbouring threads read neighbouring addresses, whichever way the operand is stored;
the extra column of the tiles keeps the transposed stores in different banks. Supports everything `naive` does, and is beaten by `blocked`
wherever that can run: two loads from shared memory for each multiply-add are four times what the memory delivers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i8, i32, i64
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, make_epilogue
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._batch import make_batch_offsets
from ._roles import roles

TILE = 16


@dataclass(frozen=True)
class Config:
    """Element type, whether a and b are contiguous along k rather than along m and n, number of batch dimensions, epilogue."""
    dtype: str
    a_along_k: int
    b_along_k: int
    batch_dims: int
    epilogue: EpilogueSpec


def supports(problem):
    """Everything whose tiles a grid can count."""
    tiles = ceil_div(problem.m, TILE) * ceil_div(problem.n, TILE) * problem.batch_size
    if max(tiles, problem.m + TILE, problem.n + TILE, problem.k + TILE) >= 2 ** 31:
        return f"{tiles} tiles of {TILE}x{TILE}, M, N, K = {problem.m}, {problem.n}, {problem.k}: all must be below 2**31 - {TILE}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """64 bytes of shared memory a warp and multiply-add of each thread, of the 128 a multiprocessor delivers in a clock."""
    tiles = ceil_div(problem.m, TILE) * ceil_div(problem.n, TILE) * problem.batch_size
    steps = ceil_div(problem.k, TILE)
    itemsize = 8 if problem.compute == "float64" else 4
    busy = ceil_div(tiles, device.sms) * steps * TILE * 8 * 2 * itemsize / 4
    chain = ceil_div(tiles, 8 * device.sms) * steps * 900
    return 4e-6 + max(busy, chain) / device.clock_hz + problem.bytes / device.bandwidth


@functools.cache
def kernel(config):
    """One 16x16 tile of y a block, one element a thread."""
    PITCH = TILE + 1
    SIZE = TILE * PITCH
    integers, double = config.epilogue.accumulator == "int32", config.epilogue.accumulator == "float64"
    T = i32 if integers else f64 if double else f32
    Stored = i8 if integers else T
    element_load = element(config.dtype).load
    a_along_k, b_along_k = config.a_along_k, config.b_along_k
    epilogue = make_epilogue(config.epilogue)
    batch_offsets = make_batch_offsets(config.batch_dims)

    @cuda.jit(launch_bounds=TILE * TILE)
    def matmul_tiled(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, tiles_n,
                     alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        tile_a = cuda.shared.array(SIZE, Stored)  # [m][k]
        tile_b = cuda.shared.array(SIZE, Stored)  # [k][n]
        z, block = divide_remainder(i32(cuda.blockIdx.x), tiles)
        tile_row, tile_column = divide_remainder(block, tiles_n)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        tx, ty = i32(cuda.threadIdx.x & (TILE - 1)), i32(cuda.threadIdx.x >> 4)
        row, column = i32(tile_row * TILE + ty), i32(tile_column * TILE + tx)
        # what this thread copies: tx runs along the contiguous direction
        ar, ak = (ty, tx) if a_along_k else (tx, ty)
        bn, bk = (ty, tx) if b_along_k else (tx, ty)
        a_row, b_column = i32(tile_row * TILE + ar), i32(tile_column * TILE + bn)
        a_at = i64(a_at + i64(a_row) * sam)
        b_at = i64(b_at + i64(b_column) * sbn)
        acc = T(0)
        for k0 in range(i32(0), k, i32(TILE)):
            x, w = Stored(0), Stored(0)
            ka, kb = i32(k0 + ak), i32(k0 + bk)
            if integers:
                if a_row < m and ka < k:
                    x = a[i64(a_at + i64(ka) * sak)]
                if b_column < n and kb < k:
                    w = b[i64(b_at + i64(kb) * sbk)]
            else:
                if a_row < m and ka < k:
                    x = element_load(a, i64(a_at + i64(ka) * sak))
                if b_column < n and kb < k:
                    w = element_load(b, i64(b_at + i64(kb) * sbk))
            tile_a[i32(ar * PITCH + ak)] = x
            tile_b[i32(bk * PITCH + bn)] = w
            cuda.syncthreads()
            for kk in range(TILE):
                if integers:
                    acc = i32(acc + i32(tile_a[i32(ty * PITCH + kk)]) * i32(tile_b[i32(kk * PITCH + tx)]))
                else:
                    acc = acc + tile_a[i32(ty * PITCH + kk)] * tile_b[i32(kk * PITCH + tx)]
            cuda.syncthreads()
        if row < m and column < n:
            e = (alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride)
            y[i64(y_at + i64(row) * sym + i64(column) * syn)] = epilogue(acc, row, column, e)
    return matmul_tiled


def build(problem, device, config):
    """One launch, a block a tile."""
    parts = roles(problem)
    (sam, sak), (sbk, sbn) = parts.a_strides, parts.b_strides
    full = Config(parts.dtype, int(abs(sak) <= abs(sam)), int(abs(sbk) < abs(sbn)), len(parts.batch), parts.epilogue)
    tiles_m, tiles_n = ceil_div(parts.m, TILE), ceil_div(parts.n, TILE)
    arguments = (*parts.operand_arguments(), Argument(element(parts.y.dtype).pointer, "y"),
                 *(Argument("int32", v) for v in (parts.m, parts.n, parts.k)),
                 *(Argument("int64", v) for v in (sam, sak, sbk, sbn, *parts.y_strides)), *parts.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), Argument("uint32x3", divisor(tiles_n)), *parts.epilogue_arguments())
    return (Launch(kernel(full), (tiles_m * tiles_n * parts.batch_size, 1, 1), (TILE * TILE, 1, 1), arguments),)


ALGORITHM = Algorithm(op="matmul", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build)
