"""The textbook tile: 16x16 threads load a 16x16 tile of a and one of b into shared memory and multiply them.

A thread owns one element of y, a block 16x16 of them; `_textbook` has the loop along k. Each element is read from global memory by one
block in 16 instead of by every thread, which is the whole idea: 16 times less traffic than `naive`.

Supports everything `naive` does, and is beaten by `blocked` wherever that can run: two loads from shared memory for each multiply-add are
four times what the memory delivers.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ScaledParams, make_epilogue
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.cost import Cost
from ..engine.batch import make_batch_offsets
from ..engine.simt_plan import addends_refusal
from ..host.launch import Argument, Launch
from ._textbook import SIZE, TILE, Square, make_square_product, square_of, square_seconds


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


@functools.cache
def kernel(config):
    """One 16x16 tile of y a block, one element a thread."""
    Stored = config.square.stored
    product = make_square_product(config.square)
    epilogue = make_epilogue(config.epilogue)
    batch_offsets = make_batch_offsets(config.batch_dims)

    @jit(launch_bounds=TILE * TILE)
    def matmul_tiled(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, tiles_n, scale_a, scale_b, scale_strides,
                     alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        tile_a = cuda.shared.array(SIZE, Stored)  # [m][k]
        tile_b = cuda.shared.array(SIZE, Stored)  # [k][n]
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        tile_row, tile_column = divide_remainder(block, tiles_n)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        row0, column0 = tile_row * TILE, tile_column * TILE
        acc = product(tile_a, tile_b, advance(a, a_at), advance(b, b_at), (sam, sak, sbk, sbn), m, n, k, row0, column0,
                      (scale_a, scale_b, scale_strides))
        row, column = row0 + (cuda.threadIdx.x >> 4), column0 + (cuda.threadIdx.x & (TILE - 1))
        if row < m and column < n:
            e = ScaledParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride, scale_a, scale_b,
                             scale_strides.a_row, scale_strides.b_column)
            y[y_at + row * sym + column * syn] = epilogue(acc, row, column, e)
    return matmul_tiled


def build(problem, device, config):
    """One launch, a block a tile."""
    full = Config(square_of(problem), len(problem.batch), problem.epilogue)
    tiles_m, tiles_n = ceil_div(problem.m, TILE), ceil_div(problem.n, TILE)
    arguments = (*(Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))),
                 *(Argument("int32", v) for v in (problem.m, problem.n, problem.k)),
                 *(Argument("int64", v) for v in (*problem.a_strides, *problem.b_strides, *problem.y_strides)), *problem.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), Argument("uint32x3", divisor(tiles_n)), *problem.scales.arguments(),
                 *problem.epilogue_arguments())
    return (Launch(kernel(full), (tiles_m * tiles_n * problem.batch_size, 1, 1), (TILE * TILE, 1, 1), arguments),)


ALGORITHM = Algorithm(op="matmul", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build)
