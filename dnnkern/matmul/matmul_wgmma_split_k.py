"""Tensor cores of Hopper where y has fewer tiles than the device multiprocessors: several blocks share a tile, each with a range of k.

The main loop is `engine.hopper`'s over (tile, range); accumulators go to the workspace as they are, and a second launch
(`engine.split_k`) adds the ranges in a fixed order and applies the epilogue. It wins where k is long and y small: the second launch and
2 * ranges * M * N * 4 bytes, mostly in the L2, cost less than idle multiprocessors.
"""
import functools
from math import inf

from ..device import cuda, device_function, jit, u32
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.hopper import make_matrix_loader, make_product
from ..engine.hopper_plan import (even_ranges, least_seconds, locate_arguments, make_locate, operands_of, pack_seconds, product_seconds,
                                  refusal, steps_of, store_argument, sum_seconds, tile_count, tiles_for, wgmma_dtype)
from ..engine.hopper_stores import make_boxed_store
from ..engine.programs import read_operands
from ..engine.roles import stored_by_rows
from ..engine.split_k import RangesConfig as Config
from ..engine.split_k import bytes_beside, pitch_of, sum_launch, sums_bytes, sums_refusal
from ..host.launch import Argument, Launch
from ._wgmma_cost import COST, longer_step

LEAST_STEPS = 2  # of a range
MOST_WORKSPACE = 1 << 28


def supports(problem):
    """Needs a k that can be divided."""
    parts = stored_by_rows(problem)
    reason = "scales by block" if parts.scales.by_block else refusal(problem, parts) or sums_refusal(parts)
    steps = steps_of(parts.k, parts.a.itemsize)
    if reason is None and steps < 2 * LEAST_STEPS:
        return f"K={parts.k} gives {steps} steps, two ranges need {2 * LEAST_STEPS}"
    return reason


def configs(problem, device):
    """For each tile the numbers of ranges that fill the device once and twice."""
    parts, found = stored_by_rows(problem), {}
    b = operands_of(parts, problem.math)[1]
    steps = steps_of(parts.k, parts.a.itemsize)
    for tile in tiles_for(b.major, problem.a.dtype):
        if tile.cluster > 1 or tile.bn % 64:
            continue
        tiles = tile_count(parts, tile)
        for waves in (1, 2):
            ranges = max(2, min(waves * device.sms * tile.blocks // tiles, steps // LEAST_STEPS))
            ranges = even_ranges(steps, ranges)
            if ranges >= 2 and (not found or sums_bytes(parts, ranges) <= MOST_WORKSPACE):
                found[Config(tile, ranges)] = None
    return list(found)


def _lines(count):
    return ceil_div(count, 256) * 256


def workspace(problem, device, config):
    """One partial sum an element and range, then copies of operands that TMA cannot address."""
    parts = stored_by_rows(problem)
    return _lines(sums_bytes(parts, config.ranges)) + sum(x.bytes for x in operands_of(parts, problem.math))


def estimate(problem, device, config):
    """The product, with as many tiles as there are ranges of them; then a launch that reads what the first wrote."""
    parts = stored_by_rows(problem)
    tiles = tile_count(parts, config.tile) * config.ranges
    steps = ceil_div(steps_of(parts.k, parts.a.itemsize), config.ranges)
    operands = operands_of(parts, problem.math)
    sums = sum_seconds(sums_bytes(parts, config.ranges), device, bytes_beside(problem), COST)
    return pack_seconds(operands, device) + sums + product_seconds(
        problem, config.tile, device, tiles, steps, parts.m, crossing=all(x.crosses for x in operands),
        longer=longer_step(operands))


def bound(problem, device):
    """The copies, the products at the best tile's rate, and the sum of as many ranges, two at least."""
    parts = stored_by_rows(problem)
    sums = sum_seconds(sums_bytes(parts, 2), device, bytes_beside(problem), COST)
    return pack_seconds(operands_of(parts, problem.math), device) + least_seconds(problem, parts, device, inf) + sums


@functools.cache
def partial_kernel(tile, operands, accumulator):
    """The sums over one range of k of one tile, to matrix number ``range * batch + z`` of the workspace."""
    store = make_boxed_store(tile, EpilogueSpec(accumulator=accumulator, output=accumulator))

    @device_function
    def sink(acc, first, offset, sums_map, staging, tile, thread, barrier, out):
        m, n, batch = out
        z = tile.k_slice * batch + tile.z
        store(acc, first, sums_map, staging, tile.row + offset, tile.column, z, thread, barrier, m, n, (), (), ())
    product = make_product(tile, make_matrix_loader(tile, *operands), make_locate(tile), sink, accumulator)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma_partial(a, b, sums, m, n, batch, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched,
                             steps, each):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(sums), shared_address(shared, 0), tiles,
                (per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each), (m, n, batch))
    return matmul_wgmma_partial


def build(problem, device, config):
    """Copies where there must be any, the products over the ranges, then their sum."""
    parts, tile = stored_by_rows(problem), config.tile
    a, b = operands_of(parts, problem.math)
    ranges = even_ranges(steps_of(parts.k, parts.a.itemsize), config.ranges)  # an empty range would leave its sums unwritten
    tiles, place = locate_arguments(parts, tile, a, b, ranges)
    key = (*(wgmma_dtype(x.tensor.dtype, problem.math) for x in (a, b)), a.major, b.major)
    copies, pitch = _lines(sums_bytes(parts, config.ranges)), pitch_of(parts)
    sums = store_argument("workspace", parts.epilogue.accumulator, (ranges * parts.batch_size, parts.m, pitch),
                          (parts.m * pitch, pitch, 1))
    arguments = (a.argument(tile.bm, copies), b.argument(tile.bn, copies + a.bytes), sums, Argument("int32", parts.m),
                 Argument("int32", parts.n), Argument("int32", parts.batch_size), Argument("int32", tiles), *place)
    blocks = min(tiles, device.sms * tile.blocks)
    product = Launch(partial_kernel(tile, key, parts.epilogue.accumulator), (blocks, 1, 1), (tile.threads, 1, 1), arguments,
                     shared=tile.shared, dependent=True)
    return (*a.pack(copies), *b.pack(copies + a.bytes), product, sum_launch(parts, ranges, True, read_operands(problem, parts)))


ALGORITHM = Algorithm(op="matmul", name="wgmma_split_k", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)
