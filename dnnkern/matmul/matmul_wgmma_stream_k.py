"""Stream-K on Hopper's tensor cores: tiles of full waves as a whole, those of the last wave in K slices.

`wgmma` leaves multiprocessors idle in its last wave: 320 tiles on 132 of them take three waves for the work of 2.42. Here the first 264 are
computed as there, and the other 56 in K slices, as many as fill the multiprocessors for a part of a wave. Their accumulators go to the
workspace, and a second launch adds the slices of each tile in a fixed order and applies the epilogue. The persistent blocks of the main
loop (`engine.hopper`) go from one kind of work to the other without a pause.

It wins where the last wave is poorly filled and k is long: it saves up to a wave of tiles, and pays with a launch and two passes over
slices * tiles * bm * bn * 4 bytes, in the L2. Source: Stream-K (Osama et al., 2023), the hybrid form, with slices of equal length.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, jit, u32
from ..device.dependent import wait_for_previous_grid
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.scheduler import locate_in_bands, locate_stream_k
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.hopper import Tile, make_matrix_loader, make_product
from ..engine.hopper_plan import (TILES, MatmulOutput, Specialisation, crossing_step, even_ranges, least_memory_seconds, locate_arguments,
                                  make_epilogue_params, make_sink, operands_of, output_arguments, pack_seconds, product_seconds, refusal,
                                  steps_of, store_argument, stored_by_tma, sum_seconds, tile_count, tiles_for, wgmma_dtype, y_argument)
from ..engine.hopper_stores import activation_seconds, aside_seconds, make_boxed_store, staged_addend
from ..engine.programs import read_operands
from ..engine.roles import store_width, stored_by_rows
from ..engine.split_k import THREADS, bytes_beside, groups_for, make_add_ranges, make_position
from ..engine.stores import make_group_store
from ..engine.sum_operands import loaded_ahead, make_ahead
from ..host.launch import Argument, Launch
from ._wgmma_cost import longer_step, straight_seconds
from ..host.memo import remembered

COST, TIMED = constants("matmul/stream_k"), constants("engine/hopper")

LEAST_STEPS = 2  # of a range
MOST_RANGES = 8
VECTOR = 4       # accumulators in 16 bytes


@dataclass(frozen=True)
class Config:
    """Tile, tiles of full waves, and number of ranges of k of the others."""
    tile: Tile
    whole: int
    ranges: int

    def __post_init__(self):
        if self.whole < 1 or self.ranges < 2:
            raise ValueError(f"{self.whole} tiles at once, {self.ranges} ranges of k of the others; the least are 1 and 2")

    def __str__(self):
        return f"{self.tile} {self.whole} + {self.ranges} ranges"


def supports(problem):
    """Types the tensor cores know, a k that can be divided, tiles beyond the first wave."""
    parts = stored_by_rows(problem)
    reason = "scales by block" if parts.scales.by_block else refusal(problem, parts)
    steps = steps_of(parts.k, parts.a.itemsize)
    if reason is None and steps < 2 * LEAST_STEPS:
        return f"K={parts.k} gives {steps} steps, two ranges need {2 * LEAST_STEPS}"
    if reason is None and not _divisions(parts, problem.math):
        return f"y of {parts.batch_size} x {parts.m} x {parts.n} has too few tiles to divide the last ones alone"
    return reason


@remembered
def _divisions(parts, math):
    """{tile: tiles} of those with two tiles at least."""
    b = operands_of(parts, math)[1]
    found = {tile: tile_count(parts, tile) for tile in tiles_for(b.major, parts.a.dtype, parts.epilogue.program) if tile.cluster == 1}
    return {tile: tiles for tile, tiles in found.items() if tiles >= 2}


def configs(problem, device):
    """For each tile the full waves, all or all but one, and the ranges that fill most of the last for the rest; one that a device of any
    size can run where its waves are never full."""
    parts, found = stored_by_rows(problem), {}
    steps = steps_of(parts.k, parts.a.itemsize)
    divisions = _divisions(parts, problem.math)
    for tile, tiles in divisions.items():
        slots = device.sms * tile.blocks
        for waves in {tiles // slots, tiles // slots - 1} - {0, -1}:
            rest = tiles - waves * slots
            for ranges in range(2, MOST_RANGES + 1):
                ranges = even_ranges(steps, min(ranges, steps // LEAST_STEPS))
                if rest and ranges >= 2 and rest * ranges * 10 >= 7 * ceil_div(rest * ranges, slots) * slots:
                    found[Config(tile, waves * slots, ranges)] = None
    if not found:
        tile, tiles = min(divisions.items(), key=lambda item: item[0].bm * item[0].bn)
        found[Config(tile, tiles // 2, even_ranges(steps, 2))] = None
    return list(found)


def _sums_bytes(parts, config, tiles):
    return config.ranges * (tiles - config.whole) * config.tile.bm * config.tile.bn * 4


def workspace(problem, device, config):
    """One partial sum for each element and range of the divided tiles, then copies of operands that TMA cannot address."""
    parts = stored_by_rows(problem)
    return _sums_bytes(parts, config, tile_count(parts, config.tile)) + sum(x.bytes for x in operands_of(parts, problem.math))


def estimate(problem, device, config):
    """Full waves, then shorter ones; a launch that reads what the last ones wrote."""
    parts, tile = stored_by_rows(problem), config.tile
    tiles, slots = tile_count(parts, tile), device.sms * tile.blocks
    steps = steps_of(parts.k, parts.a.itemsize)
    _, further, step = TILES[tile]
    operands = operands_of(parts, problem.math)
    crossing = all(x.crosses for x in operands)
    if crossing:
        step = crossing_step(tile, step, slots)
    shorter = ceil_div((tiles - config.whole) * config.ranges, slots) * (ceil_div(steps, config.ranges) * step + further)
    copies = pack_seconds(operands, device)
    sums = sum_seconds(_sums_bytes(parts, config, tiles), device, bytes_beside(problem) * (tiles - config.whole) / tiles)
    waves = product_seconds(problem, tile, device, config.whole, steps, crossing=crossing,
                            longer=longer_step(operands)) + Cost(
        math=shorter * 1e-6 * (TIMED.clock / device.clock_hz))
    aside = activation_seconds(problem, tile, device) + aside_seconds(problem, tile, device, wide=1)
    if not stored_by_tma(parts, tile.bn):
        aside += straight_seconds(tile, device, config.whole, store_width(parts, 2))
    return (copies + aside + waves + sums).slowed(slower=COST.unmeasured)


@remembered
def _bounds(problem, device):
    """For each tile: the copies, all steps of all tiles, or of one whole tile and the shortest range of another, and the sums' launch."""
    parts, found = stored_by_rows(problem), {}
    around = pack_seconds(operands_of(parts, problem.math), device) + sum_seconds(0, device)
    steps, memory = steps_of(parts.k, parts.a.itemsize), least_memory_seconds(problem, device)
    for tile, tiles in _divisions(parts, problem.math).items():
        fixed, further, step = TILES[tile]
        alone = step
        if tile.blocks > 1:  # which takes the time of one that is alone where the tiles are few
            fixed, alone = min(fixed, TILES[Tile(tile.bm, tile.bn)][0]), TILES[Tile(tile.bm, tile.bn)][2]
        each = steps * min(alone, step / tile.blocks)
        work = max(tiles / device.sms * each, steps * min(alone, step) + ceil_div(steps, MOST_RANGES) * step + further)
        seconds = fixed * 1e-6 + max(memory, work * 1e-6 * (TIMED.clock / device.clock_hz))
        found[tile] = float(around + seconds) * COST.unmeasured
    return found


def bound(problem, device):
    """Of the best tile."""
    return min(_bounds(problem, device).values())


def config_bound(problem, device, config):
    """Of the tile."""
    return _bounds(problem, device)[config.tile]


class StreamTile(NamedTuple):
    """A `WorkTile`: whole (`k_slice` is -1), or a slice of k of the `divided`-th of the tiles that are divided."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z_a: i32
    z_b: i32
    z: i32
    k_slice: i32
    divided: i32


@functools.cache
def _make_locate(tile):
    """Device function ``locate(t, rank, place)``: the `StreamTile` number t."""
    BM, BN = tile.bm, tile.bn

    @device_function
    def locate(t, rank, place):
        per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each, whole, rest = place
        index, s, slot, first, end = locate_stream_k(t, whole, rest, steps, each)
        z, inside = divide_remainder(index, per_matrix)
        r, c = locate_in_bands(inside, band_tiles, super_rows, last_rows)
        return StreamTile(first, end, r * BM, c * BN, z * a_batched, z * b_batched, z, s, slot)
    return locate


@functools.cache
def kernel(special):
    """Tiles at once to y, then ranges of tiles to the workspace, one persistent launch."""
    tile, spec = special.tile, special.epilogue
    whole_sink = make_sink(special)
    store = make_boxed_store(tile, EpilogueSpec(accumulator=spec.accumulator, output=spec.accumulator))
    BM, BN = tile.bm, tile.bn

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        sums_map, rest, of_y = out
        if tile.k_slice < 0:
            whole_sink(acc, first, offset, y_map, staging, tile, thread, barrier, of_y)
        else:
            z = tile.k_slice * rest + tile.divided
            store(acc, first, sums_map, staging, offset, 0, z, thread, barrier, BM, BN, (), (), ())
    product = make_product(tile, make_matrix_loader(tile, *special.operands), _make_locate(tile), sink, spec.accumulator)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma_waves(a, b, y_map, sums, work, per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each,
                           whole, rest, y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias,
                           bias_stride, c, c_row_stride, c_column_stride, extras):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(y_map), shared_address(shared, 0), work,
                (per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each, whole, rest),
                (tensor_map_address(sums), i32(rest[0]),
                 MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                              c, c_row_stride, c_column_stride, extras)))
    return matmul_wgmma_waves


@functools.cache
def sum_kernel(tile, spec, groups, vector, ahead):
    """y = epilogue(sum over the ranges) for the divided tiles, 16 bytes of a row of one tile a thread; `ahead`: what of the epilogue's
    operands is loaded before the sums are there."""
    BM, BN, (WORDS, read) = tile.bm, tile.bn, make_ahead(spec, ahead)
    Acc = i32 if spec.accumulator == "int32" else f32
    add_ranges, position = make_add_ranges(groups, VECTOR, Acc), make_position(groups, VECTOR)
    store, epilogue_params = make_group_store(spec, VECTOR, vector, ahead=ahead), make_epilogue_params(spec)

    @jit(launch_bounds=(THREADS, 2))
    def matmul_wgmma_rest(sums, elements, ranges, area, width, whole, per_matrix, band_tiles, super_rows, last_rows, y, y_row, y_column,
                          y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c, c_row_stride,
                          c_column_stride, extras):
        acc, words = cuda.local.array(VECTOR, Acc), cuda.local.array(WORDS, u32)
        wait_for_previous_grid()
        at, mine = position(elements)
        slot, inside = divide_remainder(at, area)
        line, across = divide_remainder(inside, width)
        z, index = divide_remainder(whole + slot, per_matrix)
        r, t = locate_in_bands(index, band_tiles, super_rows, last_rows)
        row, column = r * BM + line, t * BN + across
        mine = mine and row < m and column < n
        e = epilogue_params(MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias,
                                         bias_stride, c, c_row_stride, c_column_stride, extras), z)
        read(words, row, column, e, mine)
        add_ranges(acc, sums, elements, ranges)
        if mine:
            store(acc, 0, row, column, n, y, z * y_batch + row * y_row + column * y_column, y_column, (e, words))
    return matmul_wgmma_rest


def build(problem, device, config):
    """Copies where there must be any, the tiles and ranges of tiles, the sums of the ranges."""
    parts, tile = stored_by_rows(problem), config.tile
    a, b = operands_of(parts, problem.math)
    by_tma = stored_by_tma(parts)
    tiles, (per_matrix, _, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, _) = locate_arguments(parts, tile, a, b)
    rest, accumulator = tiles - config.whole, parts.epilogue.accumulator
    ranges = even_ranges(steps.value, config.ranges)
    dtypes = tuple(wgmma_dtype(x.tensor.dtype, problem.math) for x in (a, b))
    operands = read_operands(problem, parts)
    staged = staged_addend(parts.epilogue, operands, wide=True) if by_tma else None
    special = Specialisation(tile, (*dtypes, a.major, b.major), parts.epilogue, by_tma, not by_tma and store_width(parts, 2) == 2,
                             staged=staged)
    copies = _sums_bytes(parts, config, tiles)
    a_map = a.argument(tile.bm, copies)
    sums = store_argument("workspace", accumulator, (ranges * rest, tile.bm, tile.bn), (tile.bm * tile.bn, tile.bn, 1))
    whole, output = Argument("int32", config.whole), output_arguments(parts)
    work = config.whole + rest * ranges
    arguments = (a_map, b.argument(tile.bn, copies + a.bytes), y_argument(parts) if by_tma else a_map, sums, Argument("int32", work),
                 per_matrix, band_tiles, super_rows, last_rows, a_batched, b_batched, steps,
                 Argument("int32", ceil_div(steps.value, ranges)), whole, Argument("uint32x3", divisor(rest)), *output)
    product = Launch(kernel(special), (min(work, device.sms * tile.blocks), 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared,
                     dependent=True)
    groups, elements = groups_for(ranges), rest * tile.bm * tile.bn
    arguments = (Argument(f"{accumulator}*", "workspace"), Argument("int32", elements), Argument("int32", ranges),
                 Argument("uint32x3", divisor(tile.bm * tile.bn)), Argument("uint32x3", divisor(tile.bn)), whole, per_matrix, band_tiles,
                 super_rows, last_rows, *output)
    blocks = ceil_div(elements, THREADS // groups * VECTOR)
    ahead = loaded_ahead(parts.epilogue, operands, parts.n)
    total = Launch(sum_kernel(tile, parts.epilogue, groups, store_width(parts, VECTOR) > 1, ahead), (blocks, 1, 1), (THREADS, 1, 1),
                   arguments, dependent=True)
    return (*a.pack(copies), *b.pack(copies + a.bytes), product, total)


ALGORITHM = Algorithm(op="matmul", name="wgmma_stream_k", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, config_bound=config_bound, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)
