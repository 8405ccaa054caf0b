"""Tensor cores by mma.sync over the rows of each group, which are the k of its gradient: a block reads where they begin and end.

The main loop and the tiles are `matmul_mma`'s, of a range of k that only the device knows. float32 is rounded to tf32, which the problem
has to allow; float64 is exact. A group without rows has no stage, and stores zeros.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, jit, u32
from ..device.convert import element
from ..device.epilogue import EpilogueParams
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm, Note
from ..engine.ampere import MmaTile, make_mma_product, run_of, shared_bytes
from ..engine.ampere_cost import least_seconds, product_seconds
from ..engine.constants import constants
from ..engine.cost import Cost, contend
from ..engine.stores import make_run_store
from ..host.launch import Argument, Launch
from ._grouped_weights_problem import OP, rows_of
from .grouped_matmul_bwd_weights_blocked import size_refusal
from .matmul_mma import TILES, TILES_F64, Operand, cost_of, doubles_on, legal, mma_dtype, operand_of, stages_of, store_of

COST = constants("matmul/grouped_weights")


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for; `store`: neighbouring columns in one store, 0 where none are."""
    tile: MmaTile
    dtype: str
    a: Operand
    b: Operand
    edge: bool
    store: int
    epilogue: object


def supports(problem):
    """Every layout; float32 only where it may be rounded."""
    if mma_dtype(problem) is None:
        return f"operands are {problem.a.dtype}, math is not 'tf32'"
    return size_refusal(problem)


def configs(problem, device):
    """Tiles whose loaders fit the operands' layout."""
    tiles = TILES if problem.a.dtype != "float64" else doubles_on(TILES_F64, device)
    return [tile for tile in tiles if tile.slices == 1 and legal(problem.parts, tile, mma_dtype(problem), device)]


def workspace(problem, device, config):
    """None."""
    return 0


def _stages(parts, tile, dtype):
    edge = bool(parts.m % tile.bm or parts.n % tile.bn)
    return stages_of(tile, dtype, operand_of(parts, "a"), operand_of(parts, "b"), edge)


def estimate(problem, device, config):
    """The product's time by `engine.ampere_cost`, where groups are about equal."""
    parts, dtype = problem.parts, mma_dtype(problem)
    left, right, *loaders = _stages(parts, config, dtype)
    blocks = ceil_div(parts.m, config.bm) * ceil_div(parts.n, config.bn) * problem.groups
    product = product_seconds(config, dtype, left, right, loaders, device, blocks, ceil_div(problem.likely_rows, left.k), problem.bytes,
                              cost_of(problem.a.dtype))
    if any(operand_of(parts, which).vector * problem.a.itemsize < 16 for which in "ab"):
        product = product.slowed(slower=COST.narrow)
    # gradients leave a block's registers while nothing of it is multiplied; another block of the multiprocessor may multiply
    stores = problem.db.nbytes / (COST.stores * device.sms)
    alone = COST.alone * stores if config.blocks == 1 else 0.0
    return Cost(launch=COST.begin, aside=alone) + contend(COST.power, product, aside=stores)


def bound(problem, device):
    """All products at the tensor cores' rate, or the bytes."""
    return least_seconds(mma_dtype(problem), problem.flops, problem.bytes, device, cost_of(problem.a.dtype))


@functools.cache
def kernel(config):
    """One tile of one gradient a block."""
    tile = config.tile
    BM, BN = tile.bm, tile.bn
    left, right, left_loader, right_loader = stages_of(tile, config.dtype, config.a, config.b, config.edge)
    sink = make_run_store(config.epilogue, run_of(right), config.store)
    product = make_mma_product(tile, left, right, left_loader, right_loader, sink, config.edge)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def grouped_matmul_bwd_weights_mma(a, b, y, offsets, offset_stride, y_group, rows, m, n, sam, sak, sbk, sbn, sym, syn, tiles, tiles_m):
        shared = cuda.shared.array(0, u32)
        group, block = divide_remainder(cuda.blockIdx.x, tiles)
        column, row = divide_remainder(block, tiles_m)
        row, column = row * BM, column * BN
        first, end = rows_of(group, offsets, offset_stride, rows)
        e = EpilogueParams(0, 0, y, 0, y, 0, 0, ())  # which reads nothing
        product((a, row, m - 1, sam, sak), (b, column, n - 1, sbn, sbk), first, end, m, row, column, shared_address(shared, 0),
                (n, advance(y, group * y_group), 0, sym, syn, e))
    return grouped_matmul_bwd_weights_mma


def build(problem, device, config):
    """One launch, one block per tile."""
    parts, dtype = problem.parts, mma_dtype(problem)
    left, right, left_loader, _ = _stages(parts, config, dtype)
    full = KernelConfig(config, dtype, operand_of(parts, "a"), operand_of(parts, "b"), left_loader.edge, store_of(parts, run_of(right)),
                        parts.epilogue)
    tiles_m, tiles_n = ceil_div(parts.m, config.bm), ceil_div(parts.n, config.bn)
    arguments = (*parts.operand_arguments(), Argument(element(parts.y.dtype).pointer, "db"), *problem.group_arguments(),
                 *(Argument("int32", v) for v in (problem.rows, parts.m, parts.n)),
                 *(Argument("int64", v) for v in (*parts.a_strides, *parts.b_strides, *parts.y_strides)),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), Argument("uint32x3", divisor(tiles_m)))
    return (Launch(kernel(full), (tiles_m * tiles_n * problem.groups, 1, 1), (config.threads, 1, 1), arguments,
                   shared=shared_bytes(config, left, right)),)


ALGORITHM = Algorithm(op=OP, name="mma", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, notes=Note.TENSOR_CORE, arch="sm_80+")
