"""Two products of one left operand by mma.sync, and a program of both: SwiGLU as one launch from sm_80 on.

The main loop is `engine.ampere`'s; the right stage holds columns of both right operands (`engine.ampere_dual`), which have the same
strides. Tiles and the left operand are `mma`'s; k is not split.
"""
import functools
from dataclasses import dataclass, replace

from ..device import cuda, jit, u32
from ..device.convert import element
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.epilogue import EpilogueParams, EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.program_batches import make_placed
from ..device.scheduler import locate_in_bands
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm, Note
from ..engine.ampere import MmaTile, make_mma_product, registers_needed, run_of, shared_bytes
from ..engine.ampere_cost import least_seconds, product_seconds
from ..engine.ampere_dual import DualCopyLoader
from ..engine.ampere_fragments import ITEMSIZE, Stored
from ..engine.batch import make_batch_offsets
from ..engine.programs import program_argument
from ..engine.roles import roles
from ..engine.simt import band_arguments
from ..engine.simt_plan import size_refusal
from ..engine.split_k import SomeRanges as Config
from ..engine.stores import make_run_store
from ..host.launch import Argument, Launch
from .matmul_mma import Operand, loader_of, mma_dtype, operand_of, store_of, tiles_of


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for, as `matmul_mma.KernelConfig`."""
    tile: MmaTile
    dtype: str
    a: Operand
    b: Operand
    edge: bool
    store: int
    batch_dims: int
    dependent: bool
    epilogue: EpilogueSpec


def supports(problem):
    """Right operands that lie in the same way, in words of four bytes; float32 only where it may be rounded."""
    if problem.b_dual is None:
        return "one right operand; expected b_dual"
    if mma_dtype(problem) is None:
        return f"operands are {problem.dtype_a}" + (", math is not 'tf32'" if problem.dtype_a == "float32" else "")
    reason = size_refusal(problem)
    if reason:
        return reason
    if problem.b_strides != problem.b_dual_strides or any(d.b != d.b_dual for d in problem.batch):
        return f"b has strides {problem.b.strides} and b_dual {problem.b_dual.strides}; expected the same"
    return None if _right(problem).vector else "b or b_dual is not read four bytes at a time"


def _right(problem):
    """How both right operands are read."""
    parts = roles(problem)
    first, second = (operand_of(replace(parts, b=b), "b") for b in (problem.b, problem.b_dual))
    return replace(first, vector=min(first.vector, second.vector))


@functools.cache
def _stages_of(tile, dtype, a, b, edge):
    """(left, right, left loader, right loader); ValueError where the tile cannot read such operands."""
    left = Stored(dtype, a.order, tile.bm, tile.warp_m, tile.depth, True)
    wanted = min(4 if ITEMSIZE[dtype] == 2 else 2, tile.warp_n // 16)
    right = Stored(dtype, b.order, tile.bn, tile.warp_n, tile.depth, False, wanted=wanted)
    return left, right, loader_of(tile, left, a, edge), DualCopyLoader(right, tile.threads, b.vector, edge)


def _stages(problem, tile):
    parts, edge = roles(problem), bool(problem.m % tile.bm or problem.n % (tile.bn // 2))
    return _stages_of(tile, mma_dtype(problem), operand_of(parts, "a"), _right(problem), edge)


def _legal(problem, tile, device):
    """Whether a lane of the tile has pairs, its loaders can read the operands, and the block fits."""
    if tile.warp_n < 32:
        return False
    try:
        left, right, *loaders = _stages(problem, tile)
    except ValueError:
        return False
    registers = min(65536 // (tile.threads * tile.blocks) // 8 * 8, 255)
    return registers_needed(tile, loaders) <= registers and shared_bytes(tile, left, right) <= device.shared_per_block


def configs(problem, device):
    """Every tile that reads the operands."""
    return [Config(tile) for tile in tiles_of(problem, device) if _legal(problem, tile, device)]


def _tiles(problem, tile):
    """(along m, along n)"""
    return ceil_div(problem.m, tile.bm), ceil_div(problem.n, tile.bn // 2)


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The product's time by `engine.ampere_cost`."""
    tile, (tiles_m, tiles_n), dtype = config.tile, _tiles(problem, config.tile), mma_dtype(problem)
    left, right, *loaders = _stages(problem, tile)
    return product_seconds(tile, dtype, left, right, loaders, device, tiles_m * tiles_n * problem.batch_size,
                           ceil_div(problem.k, tile.depth // ITEMSIZE[dtype]), problem.bytes)


def bound(problem, device):
    """All products at the tensor cores' rate, or the bytes."""
    return least_seconds(mma_dtype(problem), problem.flops, problem.bytes, device)


@functools.cache
def kernel(config):
    """The tiles of y, each a block's."""
    tile = config.tile
    BM, BN, DEPENDENT = tile.bm, tile.bn // 2, config.dependent
    left, right, left_loader, right_loader = _stages_of(tile, config.dtype, config.a, config.b, config.edge)
    RUN = run_of(right)
    sink = make_run_store(config.epilogue, RUN, config.store, RUN)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)
    product = make_mma_product(tile, left, right, left_loader, right_loader, sink, config.edge, dual=True)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_mma_dual(a, b, b_dual, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                        alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        shared = cuda.shared.array(0, u32)
        if DEPENDENT:
            launch_dependent_grids()
            wait_for_previous_grid()
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        epilogue = EpilogueParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride,
                                  placed(extras, z, sizes))
        row, column = row * BM, column * BN
        product((advance(a, a_at), row, m - 1, sam, sak), (advance(b, b_at), column, n - 1, sbn, sbk, advance(b_dual, b_at)), 0, k, m, row,
                column, shared_address(shared, 0), (n, y, y_at, sym, syn, epilogue))
    return matmul_mma_dual


def build(problem, device, config):
    """One launch, a block for each tile."""
    tile, parts, (tiles_m, tiles_n) = config.tile, roles(problem), _tiles(problem, config.tile)
    left, right, left_loader, _ = _stages(problem, tile)
    dependent = device.capability >= (9, 0)
    full = KernelConfig(tile, mma_dtype(problem), operand_of(parts, "a"), _right(problem), left_loader.edge,
                        store_of(parts, run_of(right)), len(parts.batch), dependent, parts.epilogue)
    (sam, sak), (sbk, sbn), (sym, syn) = parts.a_strides, parts.b_strides, parts.y_strides
    arguments = (*parts.operand_arguments(), Argument(element(problem.b_dual.dtype).pointer, "b_dual"),
                 Argument(element(parts.y.dtype).pointer, "y"), *(Argument("int32", v) for v in (parts.m, parts.n, parts.k)),
                 *(Argument("int64", v) for v in (sam, sak, sbk, sbn, sym, syn)), *parts.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n), *parts.epilogue_arguments(),
                 program_argument(parts, len(parts.batch)))
    return (Launch(kernel(full), (tiles_m * tiles_n * parts.batch_size, 1, 1), (tile.threads, 1, 1), arguments,
                   shared=shared_bytes(tile, left, right), dependent=dependent),)


ALGORITHM = Algorithm(op="matmul", name="mma_dual", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, notes=Note.TENSOR_CORE, arch="sm_80+", programs=True, dual=True)
