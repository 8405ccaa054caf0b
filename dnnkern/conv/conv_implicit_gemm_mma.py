"""Implicit GEMM on tensor cores by mma.sync: a matrix product whose operands are gathered on their way to shared memory.

The product is that of `implicit_gemm`, in all directions; the main loop is `engine.ampere`'s: a ring of stages filled by cp.async,
ldmatrix, mma.sync. With channels last a copy is 16 bytes of channels of one pixel and tap, or fewer where the channels of a group are not a
multiple. With channels first neighbouring elements are pixels, which a tap shifts to any address: 16-bit elements then pass through
registers one by one, and float32 is copied 4 bytes at a time; only 1x1 filters without stride are copied 16 bytes at a time.

float16, bfloat16, float64 and, forward, int8 keep their precision; float32 is rounded to tf32, which the problem has to allow. It wins
before sm_90, for groups of 8 to 64 channels, for backward data with a stride, for float64, and wherever TMA cannot address the image.
"""
import functools
from dataclasses import dataclass, replace

from ..device.index import ceil_div
from ..dispatch import Algorithm, Note
from ..engine.ampere import MmaTile, make_mma_product, reduced_bytes, registers_needed, run_of, shared_bytes
from ..engine.ampere_cost import least_seconds, product_seconds, sum_seconds
from ..engine.ampere_fragments import ITEMSIZE, Stored
from ..engine.constants import constants
from ..engine.scales import FP8
from ..engine.split_k import SomeRanges as Config
from ..engine.tile_states import fragment_reductions, states_bytes, states_refusal, states_seconds
from ._gather import make_gather, refusal, view_of
from ._gather.launch import gathers_left, launches, make_kernel, range_of, share_of
from ._gather.loaders import Rows
from ._gather.mma_loaders import GatherCopies, GatherRegisters
from ._gather.plan import access, grain_of, sizes, swapped
from ._gather.store import Output, make_row, make_store, make_sums, output_of, sums_bytes
from ._gather.table import Table
from ._states import states_of

COST = constants("conv/implicit_gemm")

MOST_WORKSPACE = 1 << 29
LEAST = 8         # channels of a tile
LEAST_STAGES = 4  # of a K slice
FEW = 16          # channels that do not fill the rows of a tile

TILES = (MmaTile(128, 256, 64, 2, 4, stages=4), MmaTile(128, 128, 64, 2, 2, stages=4, blocks=2),
         MmaTile(128, 128, 64, 2, 4, stages=4), MmaTile(128, 64, 64, 2, 2, stages=4, blocks=3),
         MmaTile(64, 128, 64, 2, 2, stages=4, blocks=3), MmaTile(64, 64, 128, 2, 2, stages=4, blocks=3),
         MmaTile(64, 64, 64, 2, 2, stages=3, blocks=2), MmaTile(64, 32, 128, 2, 1, slices=2, stages=4, blocks=4),
         MmaTile(32, 64, 128, 1, 2, slices=2, stages=4, blocks=4), MmaTile(32, 32, 64, 1, 1, slices=2, stages=3, blocks=4))
TILES_FEW = (MmaTile(128, 16, 64, 4, 1, stages=4, blocks=3), MmaTile(64, 16, 64, 4, 1, stages=4, blocks=4),
             MmaTile(64, 16, 128, 2, 1, slices=2, stages=4, blocks=3), MmaTile(128, 8, 64, 4, 1, stages=4, blocks=3),
             MmaTile(64, 8, 64, 4, 1, stages=4, blocks=4), MmaTile(32, 8, 128, 2, 1, slices=2, stages=4, blocks=4))
TILES_F64 = (MmaTile(128, 64, 128, 4, 2, stages=4, mma_m=16, mma_k=8), MmaTile(64, 64, 128, 2, 2, stages=4, blocks=2, mma_m=16, mma_k=8),
             MmaTile(64, 16, 128, 4, 1, stages=4, blocks=2, mma_m=16, mma_k=8))


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: tile, type of the products, elements of k in an entry of the table, (order, elements of one copy) of
    source and plain operand, whether tiles reach over an edge, where results go, and whether they are partial sums."""
    tile: MmaTile
    dtype: str
    grain: int
    source: tuple
    plain: tuple
    edge: bool
    output: Output
    partial: bool


def mma_dtype(problem):
    """What the tensor cores call the operands; None where they cannot take them."""
    if problem.dtype == "float32":
        return "tf32" if problem.math == "tf32" else None
    return problem.dtype if problem.dtype in ITEMSIZE and problem.dtype not in FP8 else None


def supports(problem):
    """What can be gathered; float32 only where it may be rounded."""
    if mma_dtype(problem) is None:
        return f"operands are {problem.dtype}" + (", math is not 'tf32'" if problem.dtype == "float32" else "")
    return refusal(problem) or (_states_refusal(problem) if problem.reductions else None)


def _states_refusal(problem):
    """Why the reductions of a problem cannot be those of tiles of pixels, or None."""
    if view_of(problem).has_classes:
        return f"reductions of residue classes of pixels, of stride {problem.stride}"
    return states_refusal(states_of(problem), 32, 8)


def _swapped(view, tile):
    return swapped(view) and tile.bn > FEW and not view.problem.reductions


def _configured(view, tile):
    """The `KernelConfig` for a tile, but for partial sums."""
    p, swap, dtype = view.problem, _swapped(view, tile), mma_dtype(view.problem)
    m, n = sizes(view, swap)
    limit = 16 // ITEMSIZE[dtype]
    config = KernelConfig(tile, dtype, grain_of(view, min(limit, tile.depth // ITEMSIZE[dtype])), access(view, "source", limit),
                          access(view, "plain", limit), bool(m % tile.bm or n % tile.bn), output_of(view, swap, 16 // p.output.itemsize),
                          False)
    return config


@functools.cache
def stages_of(config):
    """(table, left, right, left loader, right loader); ValueError where the tile cannot read such operands."""
    tile, dtype, output = config.tile, config.dtype, config.output
    by_pixel, item = output.op == "conv_bwd_filter", ITEMSIZE[dtype]
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    source_left = gathers_left(output)
    orders = [config.source[0], config.plain[0]] if source_left else [config.plain[0], config.source[0]]
    left = Stored(dtype, orders[0], tile.bm, tile.warp_m, tile.depth, True)
    right = Stored(dtype, orders[1], tile.bn, tile.warp_n, tile.depth, False, wanted=4 if item == 2 else 2)
    table = Table(left.k, config.grain, tile.threads, by_pixel)
    loaders = []
    for stored in (left, right):
        is_source = stored.left == source_left
        rows, vector = Rows(is_source, by_pixel), (config.source if is_source else config.plain)[1]
        if vector * item < 4:
            loaders.append(GatherRegisters(stored, table, rows, functions, stored.left))
        else:
            loaders.append(GatherCopies(stored, table, vector, rows, functions, stored.left))
    return table, left, right, *loaders


def _legal(view, tile, device):
    """Whether the loaders can share the tile, and the block fits."""
    config = _configured(view, tile)
    try:
        table, left, right, *loaders = stages_of(config)
    except ValueError:
        return False
    registers = min(65536 // (tile.threads * tile.blocks) // 8 * 8, 255)
    shared = _shared(config)[1] + reduced_bytes(tile, config.output.epilogue)
    return registers_needed(tile, loaders) <= registers and shared <= device.shared_per_block


def _shared(config):
    """(offset of the table in the dynamic shared memory, all of it)"""
    table, left, right, *_ = stages_of(config)
    whole = -(-shared_bytes(config.tile, left, right) // 16) * 16
    return whole, whole + table.bytes


def _range(view, tile, ranges):
    """(elements of k in a range, a multiple of a stage's; number of ranges)."""
    return range_of(view.k, tile.depth // ITEMSIZE[mma_dtype(view.problem)], ranges)


def _tiles(view, tile):
    m, n = sizes(view, _swapped(view, tile))
    return ceil_div(m, tile.bm), ceil_div(n, tile.bn)


def _sums(view, tile, ranges):
    return sums_bytes(view.products, *sizes(view, _swapped(view, tile)), ranges, view.problem.compute)


def configs(problem, device):
    """For each tile that fits whole sums, and as many ranges as give a multiprocessor one block, or all that fit on it."""
    view, found = view_of(problem), {}
    tiles = TILES_F64 if problem.dtype == "float64" else TILES + (TILES_FEW if view.columns <= 2 * FEW else ())
    if problem.dtype == "float64" and device.capability < (9, 0):
        tiles = tuple(replace(tile, mma_m=8, mma_k=4) for tile in tiles)
    for tile in tiles:
        if not _legal(view, tile, device):
            continue
        found[Config(tile)] = None
        if problem.reductions:
            continue
        m, n = _tiles(view, tile)
        for blocks in sorted({1, tile.blocks}):
            most = ceil_div(view.k * ITEMSIZE[mma_dtype(problem)], tile.depth * LEAST_STAGES)
            ranges = min(blocks * device.sms // (m * n * view.products), most, 65535)
            if ranges > 1:
                _, ranges = _range(view, tile, ranges)
                nbytes = _sums(view, tile, ranges)
                if ranges > 1 and nbytes <= MOST_WORKSPACE and nbytes // (4 * ranges) < 2 ** 31:
                    found[Config(tile, ranges)] = None
    return list(found)


def workspace(problem, device, config):
    """Partial sums, where blocks divide k; partial reductions."""
    tile = config.tile
    return _sums(view_of(problem), tile, config.ranges) if config.ranges > 1 else states_bytes(states_of(problem), tile.bm, tile.bn)


def _slower(problem):
    """Times the model's seconds."""
    if problem.op == "conv_bwd_filter":
        return COST.filter_mma
    return COST.few_mma if problem.op == "conv_bwd_data" and problem.c_group < LEAST else 1.0


def estimate(problem, device, config):
    """The product's time by `engine.ampere_cost`, and the sum's."""
    view, tile = view_of(problem), config.tile
    table, left, right, *loaders = stages_of(_configured(view, tile))
    each, ranges = _range(view, tile, config.ranges)
    m, n = _tiles(view, tile)
    stages = ceil_div(min(each, max(view.k, 1)), left.k) * max(share_of(view), COST.least_share)
    product = product_seconds(tile, mma_dtype(problem), left, right, loaders, device, m * n * view.products * ranges, stages, problem.bytes)
    further = workspace(problem, device, config)
    product = product.slowed(slower=_slower(problem))
    return product + (sum_seconds(further, device) if ranges > 1 else states_seconds(further, device))


def bound(problem, device):
    """All products at the tensor cores' rate, or the bytes."""
    view = view_of(problem)
    flops = 2 * view.rows * view.columns * view.products * view.k * max(share_of(view), COST.least_share)
    return least_seconds(mma_dtype(problem), flops, problem.bytes, device) * _slower(problem)


@functools.cache
def kernel(config):
    """The main loop of `engine.ampere` in `launch`'s kernel."""
    output = config.output
    _, left, right, left_loader, right_loader = stages_of(config)
    run = run_of(right)
    sink = make_sums(run, output.epilogue.accumulator) if config.partial else make_store(output, run)
    reductions = None if config.partial else fragment_reductions(output.epilogue, make_row(output))
    product = make_mma_product(config.tile, left, right, left_loader, right_loader, sink, config.edge, reductions)
    return make_kernel(config, product, _shared(config)[0])


def build(problem, device, config):
    """One launch, a block a tile; or the products over ranges, then their sum."""
    view = view_of(problem)
    full = _configured(view, config.tile)
    return launches(view, full, kernel, _shared(full)[1], *_range(view, config.tile, config.ranges))


ALGORITHMS = tuple(Algorithm(op=op, name="implicit_gemm_mma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, bound=bound, notes=Note.TENSOR_CORE, programs=True, reductions=op != "conv_bwd_filter",
                             arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
