"""Implicit GEMM on CUDA cores, exact: a matrix product whose operands are gathered on their way to shared memory.

    source --cp.async, an offset per row plus one per element of k, zeros in the padding--> ring in shared memory [k][row] --+
    plain operand --cp.async-----------------------------------------------------------> ring in shared memory [k][row] --+--> registers

The main loop is `engine.simt`'s: a block computes a tile, a thread a smaller one in registers. The loaders add an offset of the row, a
pixel, to one of the element of k, a tap and a channel; masks tell what is padding (`_gather`). The main loop has no divisions, and no
im2col matrix is stored. The same product serves all directions: for dx, dy is gathered, with pixels of x sorted by their residues modulo
the strides so that every tap reads a pixel; for dw, k is the pixels.

Rows are pixels and columns channels where the channels of the result are contiguous; with channels first it is the other way round, and
neighbouring threads copy neighbouring pixels instead of neighbouring channels. Where the result has few tiles, blocks compute K slices,
which a second launch adds in a fixed order (split-K).

float32 and float64 are exact; 16-bit operands are widened on their way to shared memory. It wins for float32 where tensor cores may not
round, unless Winograd applies, which multiplies less. It loses where a group has fewer channels than a tile has columns.
"""
import functools
from math import inf
from dataclasses import dataclass
from types import SimpleNamespace

from ..device.convert import element
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.ampere_cost import sum_seconds
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.simt import HALVES, Operands, Tile, make_tile_product
from ..engine.simt_plan import TILES, TILES_F64, least_seconds, tile_seconds
from ..engine.split_k import SomeRanges as Config
from ._gather import make_gather, refusal, view_of
from ._gather.launch import gathers_left, launches, make_kernel, range_of, share_of
from ._gather.loaders import GatherLoader, Rows
from ._gather.plan import access, grain_of, sizes, swapped
from ._gather.store import Output, make_store, make_sums, output_of, pitch_of, sums_bytes
from ._gather.table import Table

COST = constants("conv/implicit_gemm")

DTYPES = ("float64", "float32", *HALVES)
MOST_WORKSPACE = 1 << 29
LEAST_STEPS = 64  # of a K slice


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: tile, element type, elements of k in an entry of the table, (order, elements of one copy) of source
    and plain operand, whether tiles reach over an edge, where results go, and whether they are partial sums."""
    tile: Tile
    dtype: str
    grain: int
    source: tuple
    plain: tuple
    edge: int
    output: Output
    partial: bool


def supports(problem):
    """Offsets of 32 bits, and filters that a mask can hold."""
    if problem.dtype not in DTYPES:
        return f"operands are {problem.dtype}; expected {', '.join(DTYPES)}"
    return refusal(problem)


def _configured(view, tile):
    """The `KernelConfig` for a tile, but for partial sums."""
    p, swap = view.problem, swapped(view)
    limit = 16 // element(p.dtype).storage.itemsize
    m, n = sizes(view, swap)
    grain = grain_of(view, min(limit, tile.bk))
    group = 2 if p.dtype == "float64" else 4
    return KernelConfig(tile, p.dtype, grain, access(view, "source", limit), access(view, "plain", limit),
                        int(m % tile.bm != 0 or n % tile.bn != 0), output_of(view, swap, group), False)


def loaders_of(config):
    """(table, left loader, right loader); ValueError where the block cannot share the tile."""
    tile, output = config.tile, config.output
    by_pixel = output.op == "conv_bwd_filter"
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    table = Table(tile.bk, config.grain, tile.threads, by_pixel)
    source_left = gathers_left(output)
    pair = []
    for rows, is_left in ((tile.bm, True), (tile.bn, False)):
        is_source = is_left == source_left
        order, vector = config.source if is_source else config.plain
        pair.append(GatherLoader(rows, table, config.dtype, order, vector, Rows(is_source, by_pixel), functions, is_left))
    return table, *pair


def _bytes(config):
    """(of the ring, of all dynamic shared memory)"""
    tile, item = config.tile, 8 if config.dtype == "float64" else 4
    table, left, right = loaders_of(config)
    stages = 2 if config.dtype in HALVES else tile.stages
    ring = stages * tile.bk * item * (left.pitch + right.pitch)
    return ring, max(ring + table.bytes, (tile.slices - 1) * tile.bm * tile.bn * item)


def _legal(view, tile, device):
    """Whether the loaders can share the tile, and the block fits."""
    config = _configured(view, tile)
    try:
        _, left, right = loaders_of(config)
    except ValueError:
        return False
    words = 2 if config.dtype == "float64" else 1
    registers = (tile.tm * tile.tn + 2 * (tile.tm + tile.tn)) * words + left.registers + right.registers + 14 + 6 * words
    return registers <= min(65536 // (tile.threads * tile.blocks), 255) and _bytes(config)[1] <= device.shared_per_block


def _tiles(view, tile):
    m, n = sizes(view, swapped(view))
    return ceil_div(m, tile.bm), ceil_div(n, tile.bn)


def configs(problem, device):
    """For each tile that fits whole sums, and as many ranges as give a multiprocessor one, two or four blocks."""
    view, found = view_of(problem), {}
    rows, columns = sizes(view, swapped(view))
    for tile in TILES_F64 if problem.dtype == "float64" else TILES:
        if not _legal(view, tile, device):
            continue
        found[Config(tile)] = None
        m, n = _tiles(view, tile)
        for blocks in (1, 2, 4):
            ranges = min(blocks * device.sms // (m * n * view.products), view.k // LEAST_STEPS, 65535)
            if ranges >= 2:
                _, ranges = range_of(view.k, tile.bk, ranges)
                fits = view.products * rows * pitch_of(columns, problem.compute) < 2 ** 31
                if ranges >= 2 and fits and sums_bytes(view.products, rows, columns, ranges, problem.compute) <= MOST_WORKSPACE:
                    found[Config(tile, ranges)] = None
    return sorted(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """One partial sum an element of the result and range, where there are several."""
    view, ranges = view_of(problem), config.ranges
    return sums_bytes(view.products, *sizes(view, swapped(view)), ranges, problem.compute) if ranges > 1 else 0


def _waves_seconds(tile, dtype, device, busiest):
    """What the waves after the first add: blocks with slices begin and end with nothing in flight."""
    if device.is_processor or tile.slices == 1:
        return 0.0
    fixed = (TILES_F64 if dtype == "float64" else TILES)[tile][0] * 1e-6
    return COST.wave * fixed * (ceil_div(busiest, tile.blocks) - 1)


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor with a time for every step of k, which the gathering makes a tenth longer; then the sum."""
    view = view_of(problem)
    steps, ranges = range_of(view.k, config.tile.bk, config.ranges)
    m, n = _tiles(view, config.tile)
    busiest = ceil_div(m * n * view.products * ranges, device.sms)
    parts = SimpleNamespace(dtype=problem.dtype)
    steps = COST.gather * min(steps, view.k) * max(share_of(view), COST.least_share)
    product = Cost(launch=COST.start, waves=_waves_seconds(config.tile, problem.dtype, device, busiest))
    product += overlap(tile_seconds(parts, config.tile, device, busiest, steps), memory=problem.bytes / device.bandwidth)
    return product + sum_seconds(workspace(problem, device, config), device) if ranges > 1 else product


def bound(problem, device):
    """All steps at the best tile's rate, or the bytes."""
    view = view_of(problem)
    steps = COST.gather * view.k * max(share_of(view), COST.least_share)
    work = least_seconds(problem.dtype, view.rows * view.columns * view.products, steps, device, inf)
    return max(work, problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """The main loop of `engine.simt` in `launch`'s kernel."""
    tile, output = config.tile, config.output
    _, left, right = loaders_of(config)
    run = 2 if config.dtype == "float64" else 4
    sink = make_sums(run, output.epilogue.accumulator) if config.partial else make_store(output, run)
    product = make_tile_product(tile, Operands(config.dtype, (), (), config.edge), left, right, sink)
    return make_kernel(config, product, _bytes(config)[0])


def build(problem, device, config):
    """One launch, a block a tile; or the products over ranges, then their sum."""
    view = view_of(problem)
    full = _configured(view, config.tile)
    return launches(view, full, kernel, _bytes(full)[1], *range_of(view.k, config.tile.bk, config.ranges))


ALGORITHMS = tuple(Algorithm(op=op, name="implicit_gemm", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, bound=bound, programs=True, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
