"""The register tiles of `matmul_blocked` over the rows of each group, which are the k of its gradient: a block reads where they lie.

Exact arithmetic on CUDA cores: the choice for float32, and for 16-bit types on devices without tensor cores. Loaders that would copy along
rows copy single elements, since groups begin at any row. Zeros of a group without rows are stored without a product.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, jit, u32
from ..device.convert import element
from ..device.epilogue import EpilogueParams, EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.roles import store_width
from ..engine.simt import Operands, Tile, make_product, shared_bytes
from ..engine.simt_plan import legal, operands_of, product_arguments, tile_count, tile_seconds, tiles_of
from ..engine.stores import make_group_store
from ..host.launch import Argument, Launch
from ._grouped_weights_problem import OP, rows_of

COST = constants("matmul/grouped_weights")


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: tile, access to the operands, elements of one store, epilogue."""
    tile: Tile
    operands: Operands
    store: int
    epilogue: EpilogueSpec


def size_refusal(problem):
    """Why 32-bit numbers of rows, columns and tiles cannot describe a problem, or None."""
    parts = problem.parts
    tiles = ceil_div(parts.m, 16) * ceil_div(parts.n, 16) * problem.groups
    if max(parts.m, parts.n) >= 2 ** 31 - 2 ** 16 or tiles >= 2 ** 31:
        return f"K, N = {problem.a.shape[1]}, {problem.dy.shape[1]}, {tiles} tiles of 16x16; each must be below 2**31 - 2**16"
    return None


def supports(problem):
    """Everything that can be counted."""
    return size_refusal(problem)


def configs(problem, device):
    """Tiles whose loaders fit the operands' layout and alignment."""
    return [tile for tile in tiles_of(problem) if legal(problem.parts, tile, device)]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor, each with the rows of a group of about equal size."""
    busiest = ceil_div(tile_count(problem.parts, config) * problem.groups, device.sms)
    steps = ceil_div(problem.likely_rows, config.bk) * config.bk  # whole stages
    product = tile_seconds(problem.parts, config, device, busiest, steps)
    operands, slower = operands_of(problem.parts, config), COST.half if problem.a.itemsize == 2 else 1.0
    slower *= COST.narrow if 1 in (operands.a[1], operands.b[1]) else 1.0
    return Cost(launch=COST.begin) + overlap(product.slowed(slower=slower), memory=problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """One tile of one gradient a block."""
    tile = config.tile
    BM, BN, THREADS = tile.bm, tile.bn, tile.threads
    store_one = element(config.epilogue.output).store
    store = make_group_store(config.epilogue, config.operands.group, config.store > 1)

    @device_function
    def sink(acc, e, row, column, s):
        n, y, sym, syn, epilogue = s
        store(acc, e, row, column, n, y, row * sym + column * syn, syn, epilogue)
    product = make_product(tile, config.operands, sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def grouped_matmul_bwd_weights_blocked(a, b, y, offsets, offset_stride, y_group, m, n, k, sam, sak, sbk, sbn, sym, syn, tiles, tiles_m):
        ring = cuda.shared.array(0, u32)
        group, block = divide_remainder(cuda.blockIdx.x, tiles)
        column, row = divide_remainder(block, tiles_m)
        first, end = rows_of(group, offsets, offset_stride, k)
        y, row, column = advance(y, group * y_group), row * BM, column * BN
        if first < end:
            e = EpilogueParams(0, 0, y, 0, y, 0, 0, ())  # which reads nothing
            product(a, b, (sam, sak, sbk, sbn), m, n, first, end, row, column, shared_address(ring, 0), (n, y, sym, syn, e))
        else:
            for k in range(cuda.threadIdx.x, BM * BN, THREADS):
                if row + k // BN < m and column + k % BN < n:
                    store_one(y, (row + k // BN) * sym + (column + k % BN) * syn, 0)
    return grouped_matmul_bwd_weights_blocked


def build(problem, device, config):
    """One launch, one block per tile."""
    parts = problem.parts
    operands = operands_of(parts, config)
    full = Config(config, operands, store_width(parts, operands.group), parts.epilogue)
    tiles_m, tiles_n = ceil_div(parts.m, config.bm), ceil_div(parts.n, config.bn)
    arguments = (*parts.operand_arguments(), Argument(element(parts.y.dtype).pointer, "db"), *problem.group_arguments(),
                 *product_arguments(parts), *(Argument("int64", v) for v in parts.y_strides),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), Argument("uint32x3", divisor(tiles_m)))
    return (Launch(kernel(full), (tiles_m * tiles_n * problem.groups, 1, 1), (config.threads, 1, 1), arguments,
                   shared=shared_bytes(config, operands)),)


ALGORITHM = Algorithm(op=OP, name="blocked", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      arch="sm_80+")
