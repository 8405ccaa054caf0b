"""The main loop of the textbook tile: 16x16 threads, 16x16 elements of a and of b in shared memory at a time, one sum a thread.

For every step of 16 along k the block copies a[m0:m0+16, k:k+16] and b[k:k+16, n0:n0+16] to shared memory, each thread one element of both,
widened to the accumulator's type; a barrier; 16 multiply-adds from shared memory; a barrier, because the next copies overwrite the tiles.

The thread that copies an element is chosen so that neighbouring threads read neighbouring addresses, whichever way the operand is stored;
the extra column of the tiles keeps the transposed stores in different banks. Scales by block multiply the sum over 128 of k, eight steps.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i8, i32
from ..device.convert import element
from ..device.index import ceil_div
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.scales import make_block_factor

COST = constants("matmul/textbook")

TILE = 16
PITCH = TILE + 1
SIZE = TILE * PITCH
"""Elements of each of the two shared arrays that the caller declares, of type `Square.stored`."""


@dataclass(frozen=True)
class Square:
    """Element types, type of the sum, whether a and b are contiguous along k rather than along m and n, scales as in `_scales.Scales`."""
    dtype_a: str
    dtype_b: str
    accumulator: str
    a_along_k: int
    b_along_k: int
    scale_a: str | None = None
    scale_b: str | None = None

    @property
    def total(self):
        """Scalar type of the sum."""
        return {"int32": i32, "float64": f64, "float32": f32}[self.accumulator]

    @property
    def stored(self):
        """Scalar type in shared memory."""
        return i8 if self.accumulator == "int32" else self.total


def square_of(problem) -> Square:
    """How the tile reads a problem's operands, from its dtypes, strides and scales."""
    (sam, sak), (sbk, sbn) = problem.a_strides, problem.b_strides
    return Square(problem.a.dtype, problem.b.dtype, problem.compute, int(abs(sak) <= abs(sam)), int(abs(sbk) < abs(sbn)), problem.scales.a,
                  problem.scales.b)


def square_seconds(problem, tiles, device):
    """64 bytes of shared memory a warp and multiply-add of each thread, of the 128 a multiprocessor delivers in a clock."""
    steps = ceil_div(problem.k, TILE)
    busy = ceil_div(tiles, device.sms) * steps * TILE * 8 * 2 * (8 if problem.compute == "float64" else 4) / 4
    chain = ceil_div(tiles, COST.blocks * device.sms) * steps * COST.chain
    return Cost(launch=COST.start) + overlap(shared=busy / device.clock_hz, waits=chain / device.clock_hz)


@functools.cache
def make_square_product(square):
    """Device function ``product(tile_a, tile_b, a, b, strides, m, n, k, row0, column0, scales)``: the sum of this thread's element.

    `a` and `b` point at the matrices, `strides` are (sam, sak, sbk, sbn), `scales` (scale_a, scale_b, strides). The block's 256 threads
    call it together; thread t owns row ``row0 + t // 16`` and column ``column0 + t % 16``, which may lie beyond m and n.
    """
    T, Stored = square.total, square.stored
    integers = square.accumulator == "int32"
    load_a, load_b = element(square.dtype_a).load, element(square.dtype_b).load
    a_along_k, b_along_k = square.a_along_k, square.b_along_k
    by_block = "block" in (square.scale_a, square.scale_b)
    factor = make_block_factor(square.scale_a, square.scale_b) if by_block else None

    @device_function
    def product(tile_a, tile_b, a, b, strides, m, n, k, row0, column0, scales):
        sam, sak, sbk, sbn = strides
        tx, ty = cuda.threadIdx.x & (TILE - 1), cuda.threadIdx.x >> 4
        # what this thread copies: tx runs along the contiguous direction
        ar, ak = (ty, tx) if a_along_k else (tx, ty)
        bn, bk = (ty, tx) if b_along_k else (tx, ty)
        a_row, b_column = row0 + ar, column0 + bn
        a_at, b_at = a_row * sam, b_column * sbn
        total, acc = T(0), T(0)
        for k0 in range(0, k, TILE):
            x, w = Stored(0), Stored(0)
            ka, kb = k0 + ak, k0 + bk
            if integers:
                if a_row < m and ka < k:
                    x = a[a_at + ka * sak]
                if b_column < n and kb < k:
                    w = b[b_at + kb * sbk]
            else:
                if a_row < m and ka < k:
                    x = load_a(a, a_at + ka * sak)
                if b_column < n and kb < k:
                    w = load_b(b, b_at + kb * sbk)
            tile_a[ar * PITCH + ak] = x
            tile_b[bk * PITCH + bn] = w
            cuda.syncthreads()
            for kk in range(TILE):
                acc += tile_a[ty * PITCH + kk] * tile_b[kk * PITCH + tx]
            cuda.syncthreads()
            if by_block:
                if k0 + TILE >= k or (k0 + TILE) & 127 == 0:
                    row, column = row0 + ty, column0 + tx
                    if row < m and column < n:
                        total += acc * factor(row, column, k0 >> 7, scales[0], scales[1], scales[2])
                    acc = T(0)
        return total if by_block else acc
    return product
