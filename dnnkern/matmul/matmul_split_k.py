"""Split-K on CUDA cores: several blocks share a tile of y, each with its own slice of k; a second kernel adds their partial sums.

`blocked` gives a tile to one block: an output of 128x128 occupies one multiprocessor however long k is. Here tile t and slice s belong to
block (t, s), which runs the main loop of `engine.simt` over its slice and stores its accumulators to the workspace; `engine.split_k` adds
them in a fixed order and without atomics, so results are bitwise repeatable.

The slices are as many as give each multiprocessor one, two or four blocks. It wins where y has fewer tiles than the device has
multiprocessors and k is some thousands; it pays with a second launch and 2 * slices * M * N elements of traffic, mostly in the L2.
"""
import functools
from math import inf

from ..device import cuda, device_function, i64, jit, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.scheduler import locate_in_bands
from ..device.vec import advance, shared_address, store2, store4
from ..dispatch import Algorithm
from ..engine.batch import make_batch_offsets
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.programs import read_operands
from ..engine.roles import stored_by_rows
from ..engine.simt import Tile, band_arguments, make_product, shared_bytes
from ..engine.simt_plan import least_seconds, legal, matrix_seconds, operands_of, product_arguments, refusal, steps_of, tile_count
from ..engine.split_k import RangesConfig as Config
from ..engine.split_k import bytes_beside, pitch_of, sum_launch, sums_argument, sums_bytes, sums_refusal
from ..host.launch import Argument, Launch

COST = constants("matmul/split_k")

LEAST_STEPS = 64
MOST_WORKSPACE = 1 << 29

TILES = (Tile(128, 128, 16, 8, 8, stages=4, early=2), Tile(64, 64, 32, 16, 8, slices=4),
         Tile(32, 32, 32, 8, 4, slices=4, stages=4, blocks=4))
TILES_F64 = (Tile(64, 64, 16, 8, 8, blocks=4), Tile(32, 32, 32, 8, 4, slices=4, blocks=3))


def supports(problem):
    """Needs a k that can be divided."""
    reason = refusal(problem)
    if reason:
        return reason
    parts = stored_by_rows(problem)
    if steps_of(parts) < LEAST_STEPS:
        return f"K={problem.k} gives {steps_of(parts)} steps, two ranges need {LEAST_STEPS}"
    return sums_refusal(parts)


def _ranges(parts, tile, ranges):
    """(steps of a range, a multiple of bk; number of ranges)."""
    each = ceil_div(ceil_div(steps_of(parts), tile.bk), ranges) * tile.bk
    return each, ceil_div(steps_of(parts), each)


def configs(problem, device):
    """For each tile the numbers of ranges that give a multiprocessor one, two or four blocks."""
    parts, found = stored_by_rows(problem), {}
    for tile in TILES_F64 if problem.a.dtype == "float64" else TILES:
        if not legal(parts, tile, device):
            continue
        tiles = tile_count(parts, tile) * parts.batch_size
        for blocks in (1, 2, 4):
            _, ranges = _ranges(parts, tile, max(2, min(blocks * device.sms // tiles, 65535)))
            if ranges >= 2 and (not found or sums_bytes(parts, ranges) <= MOST_WORKSPACE):
                found[Config(tile, ranges)] = None
    return list(found)


def workspace(problem, device, config):
    """One partial sum an element and range."""
    return sums_bytes(stored_by_rows(problem), config.ranges)


def estimate(problem, device, config):
    """The product over one range, with as many blocks as there are; then a launch that reads what the first wrote."""
    parts = stored_by_rows(problem)
    steps, ranges = _ranges(parts, config.tile, config.ranges)
    tiles = tile_count(parts, config.tile) * parts.batch_size * ranges
    reduction = COST.sum_launch + (2 * sums_bytes(parts, ranges) + bytes_beside(problem)) / device.bandwidth
    return matrix_seconds(parts, config.tile, device, tiles, steps) + Cost(reduction=reduction)


def bound(problem, device):
    """All steps at the best tile's rate, and the sum of as many ranges, two at least."""
    parts = stored_by_rows(problem)
    reduction = COST.sum_launch + (2 * sums_bytes(parts, 2) + bytes_beside(problem)) / device.bandwidth
    return least_seconds(parts.dtype, problem.y.size, steps_of(parts), device, inf) + reduction


@functools.cache
def partial_kernel(tile, operands, batch_dims):
    """The sums over one range of k of one tile."""
    BM, BN, G = tile.bm, tile.bn, operands.group
    store = store4 if G == 4 else store2
    batch_offsets = make_batch_offsets(batch_dims)

    @device_function
    def sink(acc, e, row, column, s):
        n, pitch, sums, at = s
        if column < n:
            to = advance(sums, at + i64(row) * pitch + column)
            if G == 4:
                store(to, 0, (acc[e], acc[e + 1], acc[e + 2], acc[e + 3]))
            else:
                store(to, 0, (acc[e], acc[e + 1]))
    product = make_product(tile, operands, sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_partial(a, b, sums, m, n, k, sam, sak, sbk, sbn, range_steps, pitch, batch, sizes, strides, tiles, band_tiles, tiles_m,
                       last_rows):
        ring = cuda.shared.array(0, u32)
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, _, _ = batch_offsets(z, sizes, strides)
        s = cuda.blockIdx.y
        first = s * range_steps
        end = min(first + range_steps, k)
        at = (i64(s) * batch + z) * m * pitch
        product(advance(a, a_at), advance(b, b_at), (sam, sak, sbk, sbn), m, n, first, end, row * BM, column * BN,
                shared_address(ring, 0), (n, pitch, sums, at))
    return matmul_partial


def build(problem, device, config):
    """The products over the ranges, then their sum."""
    parts, tile = stored_by_rows(problem), config.tile
    operands = operands_of(parts, tile)
    steps, ranges = _ranges(parts, tile, config.ranges)
    tiles_m, tiles_n = ceil_div(parts.m, tile.bm), ceil_div(parts.n, tile.bn)
    arguments = (*parts.operand_arguments(), sums_argument(parts), *product_arguments(parts), Argument("int32", steps),
                 Argument("int32", pitch_of(parts)), Argument("int32", parts.batch_size), *parts.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n))
    partial = Launch(partial_kernel(tile, operands, len(parts.batch)), (tiles_m * tiles_n * parts.batch_size, ranges, 1),
                     (tile.threads, 1, 1), arguments, shared=shared_bytes(tile, operands))
    return partial, sum_launch(parts, ranges, operands=read_operands(problem, parts))


ALGORITHM = Algorithm(op="matmul", name="split_k", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, arch="sm_80+", programs=True)
