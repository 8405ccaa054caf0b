"""The textbook tile: 16x16 threads load a 16x16 tile of a and one of b into shared memory and multiply them.

A block owns a 16x16 tile of y, a thread one element of it. For every 16 of k:

    load tiles    a[m0:m0+16, k:k+16] and b[k:k+16, n0:n0+16] to shared memory, each thread one element of both, in the accumulator's type
    barrier
    multiply      16 multiply-adds per thread, out of shared memory
    barrier       the next tiles overwrite these

Each element of a and b is loaded from global memory once per block instead of once per thread, which is the whole idea: 16 times less
traffic than `naive`. The thread that loads an element is chosen so that neighbouring threads read neighbouring addresses, whichever way
the operand is stored; an extra column keeps transposed stores in different banks. Scales by block multiply the sum over 128 of k.

Supports everything `naive` does but a bias beside c in a batch, and loses to `blocked` wherever that can run: shared memory delivers a
quarter of the two loads per multiply-add.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i8, i32, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ScaledParams, make_epilogue
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.program_batches import make_placed
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.batch import make_batch_offsets
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.programs import program_argument
from ..engine.scales import make_block_factor
from ..engine.simt_plan import addends_refusal
from ..host.launch import Argument, Launch
from ._parameters import AStrides, BStrides, YStrides

TILE = 16
PITCH = TILE + 1
SIZE = TILE * PITCH  # elements of a tile in shared memory
COST = constants("matmul/textbook")


@dataclass(frozen=True)
class Square:
    """Element types, type of the sum, whether a and b are contiguous along k rather than along m and n, scales as in `engine.scales`."""
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


@dataclass(frozen=True)
class Config:
    """How the tile reads the operands, number of batch dimensions, epilogue."""
    square: Square
    batch_dims: int
    epilogue: EpilogueSpec


def supports(problem):
    """Everything whose tiles a grid can count."""
    if problem.has_two_addends:
        return addends_refusal(problem)
    tiles = ceil_div(problem.m, TILE) * ceil_div(problem.n, TILE) * problem.batch_size
    if max(tiles, problem.m + TILE, problem.n + TILE, problem.k + TILE) >= 2 ** 31:
        return f"{tiles} tiles of {TILE}x{TILE}, M, N, K = {problem.m}, {problem.n}, {problem.k}: all must be below 2**31 - {TILE}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The tiles' time and the bytes."""
    tiles = ceil_div(problem.m, TILE) * ceil_div(problem.n, TILE) * problem.batch_size
    return square_seconds(problem, tiles, device) + Cost(memory=problem.bytes / device.bandwidth)


def square_of(problem) -> Square:
    """How the tile reads a problem's operands, from its dtypes, strides and scales."""
    (sam, sak), (sbk, sbn) = problem.a_strides, problem.b_strides
    return Square(problem.a.dtype, problem.b.dtype, problem.compute, int(abs(sak) <= abs(sam)), int(abs(sbk) < abs(sbn)), problem.scales.a,
                  problem.scales.b)


def square_seconds(problem, tiles, device):
    """Each thread's multiply-add takes 64 bytes of shared memory per warp, of the 128 that a multiprocessor delivers per clock."""
    steps = ceil_div(problem.k, TILE)
    busy = ceil_div(tiles, device.sms) * steps * TILE * 8 * 2 * (8 if problem.compute == "float64" else 4) / 4
    chain = ceil_div(tiles, COST.blocks * device.sms) * steps * COST.chain
    return Cost(launch=COST.start) + overlap(shared=COST.slower * busy / device.clock_hz, waits=chain / device.clock_hz)


@functools.cache
def make_main_loop(square):
    """Device function ``main_loop(tile_a, tile_b, a, b, a_stride, b_stride, m, n, k, row0, column0, scale_a, scale_b, scale_stride)``.

    Gives the sum over k of this thread's element of the tile at row0 and column0: row ``row0 + t // 16`` and column ``column0 + t % 16`` of
    thread t, which may lie past m and n. All 256 threads call it together; `a` and `b` point at the matrices.
    """
    T, Stored = square.total, square.stored
    integers = square.accumulator == "int32"
    load_a, load_b = element(square.dtype_a).load, element(square.dtype_b).load
    a_along_k, b_along_k = square.a_along_k, square.b_along_k
    by_block = "block" in (square.scale_a, square.scale_b)
    factor = make_block_factor(square.scale_a, square.scale_b) if by_block else None

    @device_function
    def main_loop(tile_a, tile_b, a, b, a_stride, b_stride, m, n, k, row0, column0, scale_a, scale_b, scale_stride):
        tx, ty = cuda.threadIdx.x & (TILE - 1), cuda.threadIdx.x >> 4
        # the elements that this thread loads: tx runs along the contiguous direction
        am, ak = (ty, tx) if a_along_k else (tx, ty)
        bn, bk = (ty, tx) if b_along_k else (tx, ty)
        row, column = row0 + am, column0 + bn
        a_at, b_at = row * a_stride.m, column * b_stride.n
        total, acc = T(0), T(0)
        for k0 in range(0, k, TILE):
            # load tiles
            x, w = Stored(0), Stored(0)
            ka, kb = k0 + ak, k0 + bk
            if integers:
                if row < m and ka < k:
                    x = a[a_at + ka * a_stride.k]
                if column < n and kb < k:
                    w = b[b_at + kb * b_stride.k]
            else:
                if row < m and ka < k:
                    x = load_a(a, a_at + ka * a_stride.k)
                if column < n and kb < k:
                    w = load_b(b, b_at + kb * b_stride.k)
            tile_a[am * PITCH + ak] = x
            tile_b[bk * PITCH + bn] = w
            cuda.syncthreads()
            # multiply
            for kk in range(TILE):
                acc += tile_a[ty * PITCH + kk] * tile_b[kk * PITCH + tx]
            cuda.syncthreads()
            if by_block:
                if k0 + TILE >= k or (k0 + TILE) & 127 == 0:  # the end of a block of k
                    if row0 + ty < m and column0 + tx < n:
                        total += acc * factor(row0 + ty, column0 + tx, k0 >> 7, scale_a, scale_b, scale_stride)
                    acc = T(0)
        return total if by_block else acc
    return main_loop


@functools.cache
def kernel(config):
    """One 16x16 tile of y per block, one element per thread."""
    Stored = config.square.stored
    main_loop = make_main_loop(config.square)
    epilogue = make_epilogue(config.epilogue)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)

    @jit(launch_bounds=TILE * TILE)
    def matmul_tiled(a, b, y, m, n, k, a_stride, b_stride, y_stride, batch_sizes, batch_strides, tiles, tiles_n, scale_a, scale_b,
                     scale_stride, alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        tile_a = cuda.shared.array(SIZE, Stored)  # [m][k]
        tile_b = cuda.shared.array(SIZE, Stored)  # [k][n]
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        tile_row, tile_column = divide_remainder(block, tiles_n)
        a_at, b_at, c_at, y_at = batch_offsets(z, batch_sizes, batch_strides)
        row0, column0 = tile_row * TILE, tile_column * TILE
        acc = main_loop(tile_a, tile_b, advance(a, a_at), advance(b, b_at), a_stride, b_stride, m, n, k, row0, column0, scale_a, scale_b,
                        scale_stride)

        # epilogue
        row, column = row0 + (cuda.threadIdx.x >> 4), column0 + (cuda.threadIdx.x & (TILE - 1))
        if row < m and column < n:
            e = ScaledParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, scale_a, scale_b,
                             scale_stride.a_row, scale_stride.b_column, placed(extras, z, batch_sizes))
            y[y_at + row * y_stride.m + column * y_stride.n] = epilogue(acc, row, column, e)
    return matmul_tiled


def build(problem, device, config):
    """One launch, one block per tile."""
    full = Config(square_of(problem), len(problem.batch), problem.epilogue)
    tiles_m, tiles_n = ceil_div(problem.m, TILE), ceil_div(problem.n, TILE)
    arguments = (*(Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))),
                 *(Argument("int32", v) for v in (problem.m, problem.n, problem.k)),
                 Argument(AStrides, AStrides(*problem.a_strides)), Argument(BStrides, BStrides(*problem.b_strides)),
                 Argument(YStrides, YStrides(*problem.y_strides)), *problem.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), Argument("uint32x3", divisor(tiles_n)), *problem.scales.arguments(),
                 *problem.epilogue_arguments(), program_argument(problem, len(problem.batch)))
    return (Launch(kernel(full), (tiles_m * tiles_n * problem.batch_size, 1, 1), (TILE * TILE, 1, 1), arguments),)


ALGORITHM = Algorithm(op="matmul", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build, programs=True)
