"""Tensor cores of Hopper over groups of rows: one persistent launch, whatever the sizes of the groups.

The main loop is `engine.hopper`'s. A block finds its next tile in the offsets (`_groups`): every warp counts the tiles of 32 groups a
step. A tile belongs to one group; TMA may read rows of the next one with it, which cost nothing and are not stored: 64 rows inside the
group leave through TMA, the last ones of a group by threads, from shared memory. Within a group tiles go down the rows of a band and then
along it, as in `_tile.locate`: what works at one time shares columns of b[g], which is read once, and the band's rows of a from the L2.

8-bit floats may have scales by block, 1 x 128 of a and 128 x 128 of b[g]: a step of k is one block, and its sums count for their product
(`engine.hopper_promoted`), as in DeepGEMM.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.convert import element
from ..device.epilogue import ScaledParams
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.scheduler import BAND
from ..device.tma import tensor_map_address
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.hopper import ROW, make_matrix_loader, make_product
from ..engine.hopper_lines import line_tiles, lines_refusal, make_line_store
from ..engine.hopper_plan import (Config, Specialisation, make_operand, pack_seconds, product_seconds, rows_for_tma, steps_of,
                                  store_argument, tiles_for, type_refusal, wgmma_dtype)
from ..engine.hopper_promoted import in_fours, make_block_factors
from ..engine.hopper_stores import make_direct_store, make_boxed_store
from ..engine.scales import ScaleStrides
from ..host.launch import Argument, Launch
from ._groups import likely_tiles, make_find_tile, most_tiles
from ._wgmma_cost import InLines, LineSpecialisation, aside_of, longer_step, shallow_seconds, slower_of

COST = constants("matmul/grouped")


def supports(problem):
    """Types the tensor cores know."""
    reason = type_refusal(problem)
    if reason:
        return reason
    if max(problem.m_total, problem.n, problem.k) >= 2 ** 31 - 256 or most_tiles(problem, 64) * ceil_div(problem.n, 64) >= 2 ** 31:
        return f"M, N, K = {problem.m_total}, {problem.n}, {problem.k} with {problem.groups} groups: more tiles than 2**31"
    return None


def _operands(problem):
    (row, along), (b_along, column) = problem.a_strides, problem.b_strides
    return (make_operand("a", problem.a, problem.m_total, problem.k, (0, row, along), 1, problem.math, anywhere=True),
            make_operand("b", problem.b, problem.n, problem.k, (problem.b_group_stride, column, b_along), problem.groups, problem.math))


def configs(problem, device):
    """Every tile of a single block that reads b as it lies, within one block of its columns where these have scales."""
    found = [tile for tile in tiles_for("mn", problem.a.dtype) if tile.cluster == 1]
    if problem.scales.by_block:
        found = [tile for tile in found if 128 % tile.bn == 0]
    whole = (problem.scales.by_block or rows_for_tma(problem.y, problem.y_strides, problem.m_total, problem.n)
             or lines_refusal(problem.epilogue, problem.y_strides, problem.n))
    return [Config(tile) for tile in found] + ([] if whole else [InLines(tile) for tile in line_tiles(found)])


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address."""
    return sum(x.bytes for x in _operands(problem))


def estimate(problem, device, config):
    """Waves of the tiles of groups of about the same size, and a little of what they read from the L2."""
    tile, steps = config.tile, steps_of(problem.k, problem.a.itemsize)
    tiles = likely_tiles(problem, tile.bm) * ceil_div(problem.n, tile.bn)
    read = COST.l2 * tiles * steps * ROW * (tile.bm + tile.bn)
    search = ceil_div(problem.groups, 32) * COST.wgmma_search / device.clock_hz * ceil_div(tiles, device.sms * config.tile.blocks)
    by_tma = rows_for_tma(problem.y, problem.y_strides, problem.m_total, problem.n)
    aside = shallow_seconds(tile, device, tiles)
    if not by_tma:  # rows outside the groups are not stored
        rows = min(1.0, problem.m_total / (likely_tiles(problem, tile.bm) * tile.bm))
        aside += rows * aside_of(config, device, tiles, 1 + _stores_pairs(problem))
    operands = _operands(problem)
    beside = aside + pack_seconds(operands, device) + Cost(waits=search, l2=read)
    product = product_seconds(problem, tile, device, tiles, steps, longer=longer_step(operands))
    return (beside + product).slowed(slower=slower_of(config))


def _stores_pairs(problem):
    """Whether two neighbouring results are one store."""
    (row, column), y = problem.y_strides, problem.y
    return column == 1 and problem.n % 2 == 0 and row % 2 == 0 and y.alignment % (2 * y.itemsize) == 0


class GroupOutput(NamedTuple):
    """Where results go, and what the epilogue and the factors of blocks read."""
    n: i32
    y: object
    y_row: i64
    y_column: i64
    alpha: object
    bias: object
    bias_group: i64
    bias_stride: i64
    scale_a: object
    scale_b: object
    scale_strides: ScaleStrides
    scale_group: i64


class GroupTile(NamedTuple):
    """A tile of one group: steps of k, first row and column, matrices of a (one) and of b (the group's), the row after the group's last."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z_a: i32
    z_b: i32
    row_end: i32


@functools.cache
def _make_locate(tile):
    """Device function ``locate(t, rank, place)``: the `GroupTile` number t."""
    BM, BN = tile.bm, tile.bn
    find = make_find_tile(tile.bm)

    @device_function
    def locate(t, rank, place):
        offsets, offset_stride, groups, rows, tiles_n, band_tiles, per_row, steps = place
        row_tile, _ = divide_remainder(t, tiles_n)
        group, start, end, number = find(row_tile, offsets, offset_stride, groups, rows)
        band, inside = divide_remainder(t - number * per_row, band_tiles)
        row0 = start + band * (BAND * BM)
        high = min((end - row0 + BM - 1) // BM, BAND)  # rows of tiles in the band
        if group < 0:
            high = 1
        column = i32(u32(inside) // u32(high))
        row = row0 + (inside - column * high) * BM
        return GroupTile(0, steps if group >= 0 else -1, row, column * BN, 0, group, end)
    return locate


@device_function
def _last_row(tile, out):
    return tile.row_end - 1


@device_function
def _scale_b(tile, out):
    return advance(out.scale_b, i64(tile.z_b) * out.scale_group)


@functools.cache
def kernel(special):
    """All groups, one persistent launch."""
    tile, spec, by_tma = special.tile, special.epilogue, special.by_tma
    through_tma = make_boxed_store(tile, spec, clipped=True) if by_tma else None
    IN_LINES = isinstance(special, LineSpecialisation)
    lines, straight = (make_line_store(tile, spec), None) if IN_LINES else (None, None if by_tma else make_direct_store(
        tile, spec, special.vector))

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        n, y, y_row, y_column, alpha, bias, bias_group, bias_stride, scale_a, scale_b, scale_strides, scale_group = out
        row, column, group, end = tile.row + offset, tile.column, i64(tile.z_b), tile.row_end
        mine = advance(bias, group * bias_group)
        e = ScaledParams(alpha, alpha, mine, bias_stride, mine, 0, 0, scale_a, advance(scale_b, group * scale_group), scale_strides.a_row,
                         scale_strides.b_column, ())
        if by_tma:
            through_tma(acc, first, y_map, staging, row, column, 0, thread, barrier, end, n, e, y, y_row)
        elif IN_LINES:
            lines(acc, first, staging, row, column, thread, barrier, end, n, e, y, 0, y_row)
        else:
            straight(acc, first, row, column, thread, end, n, e, y, 0, y_row, y_column)
    factors = make_block_factors(*special.blocks, _last_row, _scale_b) if any(special.blocks[:2]) else None
    product = make_product(tile, make_matrix_loader(tile, *special.operands), _make_locate(tile), sink, spec.accumulator, factors,
                           cooperative=True)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def grouped_matmul_wgmma(a, b, y_map, y, y_row, y_column, n, tiles, offsets, offset_stride, groups, rows, tiles_n, band_tiles,
                             per_row, steps, scale_a, scale_b, scale_strides, scale_group, alpha, bias, bias_group, bias_stride):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(y_map), shared_address(shared, 0), tiles,
                (offsets, offset_stride, groups, rows, tiles_n, band_tiles, per_row, steps),
                GroupOutput(n, y, y_row, y_column, alpha, bias, bias_group, bias_stride, scale_a, scale_b, scale_strides, scale_group))
    return grouped_matmul_wgmma


def build(problem, device, config):
    """Copies where there must be any, then one launch of as many blocks as the device holds, or as groups can need tiles."""
    tile, y = config.tile, problem.y
    a, b = _operands(problem)
    row, column = problem.y_strides
    per = 16 // y.itemsize
    by_tma = rows_for_tma(y, problem.y_strides, problem.m_total, problem.n)
    dtypes = tuple(wgmma_dtype(x.tensor.dtype, problem.math) for x in (a, b))
    kind = LineSpecialisation if isinstance(config, InLines) else Specialisation
    scales = problem.scales
    special = kind(tile, (*dtypes, a.major, b.major), problem.epilogue, by_tma, _stores_pairs(problem),
                   (scales.a == "block", scales.b == "block", in_fours(problem.scale_a, scales)))
    tiles_n = ceil_div(problem.n, tile.bn)
    tiles = most_tiles(problem, tile.bm) * tiles_n
    a_map = a.argument(tile.bm, 0)
    shape, strides = (1, problem.m_total, problem.n), (per, row if problem.m_total > 1 else per, 1)
    y_map = store_argument("y", y.dtype, shape, strides) if by_tma else a_map
    arguments = (a_map, b.argument(tile.bn, a.bytes), y_map, Argument(element(y.dtype).pointer, "y"), Argument("int64", row),
                 Argument("int64", column), Argument("int32", problem.n), Argument("int32", tiles), *problem.offset_arguments(),
                 Argument("int32", problem.groups), Argument("int32", problem.m_total), Argument("uint32x3", divisor(tiles_n)),
                 Argument("uint32x3", divisor(BAND * tiles_n)), Argument("int32", tiles_n),
                 Argument("int32", steps_of(problem.k, problem.a.itemsize)), *scales.arguments(),
                 Argument("int64", problem.scale_group_stride), *problem.epilogue_arguments())
    blocks = min(tiles, device.sms * tile.blocks)
    return (*a.pack(0), *b.pack(a.bytes),
            Launch(kernel(special), (blocks, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared, dependent=True))


ALGORITHM = Algorithm(op="grouped_matmul", name="wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a")
