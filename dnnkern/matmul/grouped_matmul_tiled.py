"""The textbook tile over groups: as many blocks as groups of arbitrary sizes can need; a block finds its tile in the offsets.

The host knows the rows and the groups, not how many rows each has. It launches for the worst, where every group ends in the middle of a
tile: (M + G * 15) / 16 rows of tiles. A block counts the tiles of the groups, 32 groups a step of its warps, until it comes to its own
number; those that come to the end leave. Inside the group it is the tile of `matmul_tiled`: 16x16 threads, 16x16 elements of a and of b[g]
in shared memory.

A tile belongs to one group, so small groups waste rows of it: with fewer than 16 rows a group the wasted part is the greater one, but it
costs no traffic, since missing rows are not read.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ScaledParams, make_epilogue
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost
from ..host.launch import Argument, Launch
from ._groups import likely_tiles, make_find_tile, most_tiles
from ._parameters import AStrides, GroupStrides, YStrides
from .matmul_tiled import SIZE, TILE, Square, make_main_loop, square_of, square_seconds

COST = constants("matmul/grouped")


@dataclass(frozen=True)
class Config:
    """How the tile reads the operands, epilogue."""
    square: Square
    epilogue: EpilogueSpec


def supports(problem):
    """Everything whose tiles a grid can count."""
    tiles = most_tiles(problem, TILE) * ceil_div(problem.n, TILE)
    if max(tiles, problem.m_total + TILE, problem.n + TILE, problem.k + TILE, problem.groups + 32) >= 2 ** 31:
        return (f"{tiles} tiles of {TILE}x{TILE}, M, N, K = {problem.m_total}, {problem.n}, {problem.k}, {problem.groups} groups: all "
                "must be below 2**31 - 32")
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The tiles of groups of about the same size, the search, and the bytes."""
    tiles = likely_tiles(problem, TILE) * ceil_div(problem.n, TILE)
    search = ceil_div(problem.groups, 32) * COST.search / device.clock_hz
    return square_seconds(problem, tiles, device) + Cost(waits=search, memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """One 16x16 tile of y per block, one element per thread."""
    Stored = config.square.stored
    main_loop = make_main_loop(config.square)
    find_tile = make_find_tile(TILE)
    epilogue = make_epilogue(config.epilogue)

    @jit(launch_bounds=TILE * TILE)
    def grouped_matmul_tiled(a, b, offsets, offset_stride, y, m, n, k, groups, a_stride, b_stride, y_stride, tiles_m, scale_a, scale_b,
                             scale_stride, scale_group, alpha, bias, bias_group, bias_stride):
        tile_a = cuda.shared.array(SIZE, Stored)  # [m][k]
        tile_b = cuda.shared.array(SIZE, Stored)  # [k][n]
        # NOTE: down the rows first: the tiles of a group that need the same columns of its matrix run together
        tile_column, tile = divide_remainder(cuda.blockIdx.x, tiles_m)
        group, start, end, number = find_tile(tile, offsets, offset_stride, groups, m)
        if group >= 0:
            first = start + (tile - number) * TILE
            g, row0, column0 = i64(group), i64(first), tile_column * TILE
            rows = end - first
            scale_a, scale_b = advance(scale_a, row0 * scale_stride.a_row), advance(scale_b, g * scale_group)
            acc = main_loop(tile_a, tile_b, advance(a, row0 * a_stride.m), advance(b, g * b_stride.g), a_stride, b_stride, rows, n, k, 0,
                            column0, scale_a, scale_b, scale_stride)
            row, column = cuda.threadIdx.x >> 4, column0 + (cuda.threadIdx.x & (TILE - 1))
            if row < rows and column < n:
                bias = advance(bias, g * bias_group)
                e = ScaledParams(alpha, alpha, bias, bias_stride, bias, 0, 0, scale_a, scale_b, scale_stride.a_row,
                                 scale_stride.b_column, ())
                y[(row0 + row) * y_stride.m + column * y_stride.n] = epilogue(acc, row, column, e)
    return grouped_matmul_tiled


def build(problem, device, config):
    """One launch, one block per tile that groups can need."""
    full = Config(square_of(problem), problem.epilogue)
    tiles_m, tiles_n = most_tiles(problem, TILE), ceil_div(problem.n, TILE)
    pointers = [Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))]
    strides = AStrides(*problem.a_strides), GroupStrides(*problem.b_strides, problem.b_group_stride), YStrides(*problem.y_strides)
    arguments = (*pointers[:2], *problem.offset_arguments(), pointers[2],
                 *(Argument("int32", v) for v in (problem.m_total, problem.n, problem.k, problem.groups)),
                 *(Argument(type(s), s) for s in strides), Argument("uint32x3", divisor(tiles_m)), *problem.scales.arguments(),
                 Argument("int64", problem.scale_group_stride), *problem.epilogue_arguments())
    return (Launch(kernel(full), (tiles_m * tiles_n, 1, 1), (TILE * TILE, 1, 1), arguments),)


ALGORITHM = Algorithm(op="grouped_matmul", name="tiled", supports=supports, workspace=workspace, estimate=estimate, build=build)
