"""The register tiles of `matmul_blocked` over groups of rows: a block finds its tile in the offsets, as in `grouped_matmul_tiled`.

Inside a group it is an ordinary GEMM: a and y begin at the group's first row, M is its number of rows. The host cannot know which tiles
reach past the end of a group, so all check their edges: rows past it are read from the group's last one and not stored.

Large tiles are for groups of hundreds of rows, small ones for the few rows per group of one token at a time; the estimate assumes groups
of about equal size. There are as many blocks as the worst offsets can need. Exact arithmetic on CUDA cores: the choice for float32 and
float64, and for 16-bit types and int8 on devices without tensor cores.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i64, jit, u32
from ..device.convert import element
from ..device.epilogue import EpilogueParams, EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.roles import store_width
from ..engine.scales import FP8
from ..engine.simt import Operands, Tile, make_product, shared_bytes
from ..engine.simt_plan import legal, operands_of, product_arguments, steps_of, tile_seconds, tiles_of, word_refusal
from ..engine.stores import make_group_store
from ..host.launch import Argument, Launch
from ._groups import group_roles, likely_tiles, make_find_tile, most_tiles

COST = constants("matmul/grouped")


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: tile, access to the operands, elements of one store, epilogue."""
    tile: Tile
    operands: Operands
    store: int
    epilogue: EpilogueSpec


def supports(problem):
    """16 bits and more, and int8 in words of four k."""
    if problem.a.dtype in FP8:
        return f"operands are {problem.a.dtype} and {problem.b.dtype}; the tiles multiply types of 16 bits and more, and int8"
    if problem.k == 0:
        return "K is 0"
    tiles = most_tiles(problem, 16) * ceil_div(problem.n, 16)
    if max(problem.m_total, problem.n, problem.k, problem.groups) >= 2 ** 31 - 2 ** 16 or tiles >= 2 ** 31:
        return (f"M, N, K = {problem.m_total}, {problem.n}, {problem.k}, {problem.groups} groups, {tiles} tiles of 16x16; each must be "
                "below 2**31 - 2**16")
    return word_refusal(group_roles(problem))


def configs(problem, device):
    """Tiles whose loaders fit the operands' layout and alignment."""
    parts = group_roles(problem)
    return [tile for tile in tiles_of(problem) if legal(parts, tile, device)]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor where groups are about equal, and the search."""
    parts = group_roles(problem)
    busiest = ceil_div(likely_tiles(problem, config.bm) * ceil_div(problem.n, config.bn), device.sms)
    search = ceil_div(problem.groups, 32) * COST.search / device.clock_hz
    product = tile_seconds(parts, config, device, busiest, steps_of(parts))
    return overlap(product, memory=problem.bytes / device.bandwidth) + Cost(waits=search)


@functools.cache
def kernel(config):
    """One tile of y a block."""
    tile = config.tile
    BM, BN = tile.bm, tile.bn
    store = make_group_store(config.epilogue, config.operands.group, config.store > 1)
    find_tile = make_find_tile(tile.bm)

    @device_function
    def sink(acc, e, row, column, s):
        n, y, sym, syn, epilogue = s
        store(acc, e, row, column, n, y, row * sym + column * syn, syn, epilogue)
    product = make_product(tile, config.operands, sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def grouped_matmul_blocked(a, b, offsets, offset_stride, y, m, n, k, sam, sak, sbk, sbn, groups, a_row, b_group, sym, syn, tiles_m,
                               alpha, bias, bias_group, bias_stride):
        ring = cuda.shared.array(0, u32)
        # NOTE: down the rows first: the tiles of a group that need the same columns of its matrix run together
        tile_column, tile_row = divide_remainder(cuda.blockIdx.x, tiles_m)
        group, start, end, number = find_tile(tile_row, offsets, offset_stride, groups, m)
        if group >= 0:
            first = start + (tile_row - number) * BM
            g, row0 = i64(group), i64(first)
            bias = advance(bias, g * bias_group)
            e = EpilogueParams(alpha, alpha, bias, bias_stride, bias, 0, 0, ())
            product(advance(a, row0 * a_row), advance(b, g * b_group), (sam, sak, sbk, sbn), end - first, n, 0, k,
                    0, tile_column * BN, shared_address(ring, 0), (n, advance(y, row0 * sym), sym, syn, e))
    return grouped_matmul_blocked


def build(problem, device, config):
    """One launch, one block per tile that groups can need."""
    parts = group_roles(problem)
    operands = operands_of(parts, config)
    full = Config(config, operands, store_width(parts, operands.group), parts.epilogue)
    tiles_m, tiles_n = most_tiles(problem, config.bm), ceil_div(problem.n, config.bn)
    arguments = (*parts.operand_arguments(), *problem.offset_arguments(), Argument(element(parts.y.dtype).pointer, "y"),
                 *product_arguments(parts), Argument("int32", problem.groups), Argument("int64", problem.a_strides[0]),
                 Argument("int64", problem.b_group_stride), *(Argument("int64", v) for v in parts.y_strides),
                 Argument("uint32x3", divisor(tiles_m)), *problem.epilogue_arguments())
    return (Launch(kernel(full), (tiles_m * tiles_n, 1, 1), (config.threads, 1, 1), arguments, shared=shared_bytes(config, operands)),)


ALGORITHM = Algorithm(op="grouped_matmul", name="blocked", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, arch="sm_80+")
