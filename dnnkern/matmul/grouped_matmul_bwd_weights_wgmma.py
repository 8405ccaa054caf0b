"""Tensor cores of Hopper over the rows of each group, which are the k of its gradient: TMA reads a and dy where a group begins.

The main loop is `engine.hopper`'s. Both operands are contiguous along their columns, so k runs from line to line, and a step of it may
begin at any row:

    locate        a tile of one group's gradient; the group's first and last row from the offsets
    load          boxes of 64 columns by 64 rows of a and of dy, from the group's first row on
    last step     rows of the next group are zeroed in the stage, in both operands: they may hold infinities
    store         through TMA where rows of the gradient are multiples of 16 bytes, straight from registers otherwise

A group without rows is one step of zeros. An operand that TMA cannot address is copied first.

It wins wherever tensor cores by mma.sync do: twice their products a clock, and gradients leave while the next tile is multiplied.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, i32, jit, u32
from ..device.barrier import barrier_sync
from ..device.convert import element
from ..device.epilogue import EpilogueParams
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.mbarrier import fence_async_shared
from ..device.scheduler import locate_in_bands
from ..device.tma import tensor_map_address
from ..device.vec import shared_address, store_shared_4u32
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.hopper import GROUP, REMAKING, ROW, Loader, make_matrix_copy, make_product
from ..engine.hopper_lines import line_tiles, lines_refusal, make_line_store
from ..engine.hopper_plan import (Config, Operand, Specialisation, least_tile_seconds, pack_seconds, product_seconds, store_argument,
                                  stored_by_tma, tile_count, tiles_for, waves_of)
from ..engine.hopper_stores import make_boxed_store, make_direct_store
from ..engine.roles import operand_strides, store_width
from ..engine.simt import band_arguments
from ..host.launch import Argument, Launch
from ._grouped_weights_problem import OP, rows_of
from ._wgmma_cost import InLines, LineSpecialisation, aside_of, longer_step, shallow_seconds
from .grouped_matmul_bwd_weights_blocked import size_refusal

COST = constants("matmul/grouped_weights_wgmma")
STEP = 64  # rows of a step


def supports(problem):
    """16-bit elements in any layout."""
    if problem.a.itemsize != 2:
        return f"operands are {problem.a.dtype}; expected float16 or bfloat16"
    return "no rows: there is nothing to multiply" if problem.rows == 0 else size_refusal(problem)


def configs(problem, device):
    """Every tile of a single block."""
    found, parts = [t for t in tiles_for("mn", problem.a.dtype) if t.cluster == 1], problem.parts
    whole = stored_by_tma(parts, ROW) or lines_refusal(parts.epilogue, parts.y_strides, parts.n)
    return [Config(tile) for tile in found] + ([] if whole else [InLines(tile) for tile in line_tiles(found)])


def _operands(problem):
    """a and dy, read from line to line."""
    made = []
    for which, name, tensor in zip("ab", problem.parts.names, (problem.parts.a, problem.parts.b)):
        extent, across, along, _ = operand_strides(problem.parts, which)
        addressable = across == 1 and tensor.alignment % 16 == 0 and (problem.rows == 1 or 0 < along < 2 ** 39 and along % 8 == 0)
        made.append(Operand(name, tensor, extent, problem.rows, (0, across, along), 1, "mn", not addressable))
    return tuple(made)


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address."""
    return sum(x.bytes for x in _operands(problem))


def estimate(problem, device, config):
    """Waves of tiles, of groups of about equal size."""
    parts, tile, operands = problem.parts, config.tile, _operands(problem)
    tiles, steps = tile_count(parts, tile), ceil_div(problem.likely_rows, STEP)
    find = Cost(waits=COST.find * waves_of(tiles, device.sms * tile.blocks))
    by_tma = stored_by_tma(parts, tile.bn)
    straight = Cost() if by_tma else aside_of(config, device, tiles, store_width(parts, 2))
    crossing = all(x.crosses for x in operands)
    product = product_seconds(problem, tile, device, tiles, steps, crossing=crossing, longer=longer_step(operands))
    beside = find + straight + shallow_seconds(tile, device, tiles) + pack_seconds(operands, device)
    return (beside + product).slowed(slower=COST.slower)


def bound(problem, device):
    """All steps at the best tile's rate, or the bytes."""
    return least_tile_seconds(problem.db.size, problem.likely_rows / STEP, problem.bytes, device)


class WeightsTile(NamedTuple):
    """A tile of one group's gradient: its steps, first row and column, the group; the group's first row of the operands, and how many."""
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    z: i32
    first: i32
    rows: i32


@functools.cache
def _make_locate(tile):
    """Device function ``locate``: the `WeightsTile` number t."""
    BM, BN = tile.bm, tile.bn

    @device_function
    def locate(t, rank, place):
        offsets, offset_stride, rows, per_matrix, band_tiles, super_rows, last_rows = place
        group, inside = divide_remainder(t, per_matrix)
        r, c = locate_in_bands(inside, band_tiles, super_rows, last_rows)
        first, end = rows_of(group, offsets, offset_stride, rows)
        count = end - first
        return WeightsTile(0, max((count + (STEP - 1)) // STEP, 1), r * BM, c * BN, group, first, count)
    return locate


@functools.cache
def _make_loader(tile, dtype):
    """`Loader` of a step's boxes, from the group's first row on."""
    load_a, load_b = make_matrix_copy("mn", tile.bm), make_matrix_copy("mn", tile.bn)

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, k):
        at = tile.first + k * STEP
        load_a(to_a, a_map, bar, at, tile.row, 0)
        load_b(to_b, b_map, bar, at, tile.column, 0)
    return Loader(load, "mn", "mn", dtype, dtype, (tile.bm + tile.bn) * ROW)


@functools.cache
def _make_zeroed(tile):
    """Device function ``zeroed(b, tile, k, group, thread, operands)``, a `remake` of `engine.hopper.make_product`: rows of a stage past the
    end of the group become zeros, in the boxes of a, which come before those of b, and in b's. A row is 128 bytes whatever the swizzle."""
    A_BYTES, BOXES, THREADS, ALONE = tile.a_bytes, (tile.bm + tile.bn) // 64, 128 * tile.sharing, tile.ping_pong
    PIECES = GROUP // 16

    @device_function
    def zeroed(b, tile, k, group, thread, operands):
        rows = tile.rows - k * STEP
        if rows < STEP:
            number = thread if ALONE else group * 128 + thread
            for box in range(BOXES):
                for piece in range(rows * (ROW // 16) + number, PIECES, THREADS):
                    store_shared_4u32(b - A_BYTES + u32(box * GROUP + piece * 16), 0, 0, 0, 0)
            fence_async_shared()
            barrier_sync(group + 1 if ALONE else REMAKING, THREADS)
    return zeroed


@functools.cache
def kernel(special):
    """All groups' gradients, one persistent launch."""
    tile, spec, by_tma = special.tile, special.epilogue, special.by_tma
    through_tma = make_boxed_store(tile, spec) if by_tma else None
    IN_LINES = isinstance(special, LineSpecialisation)
    lines, straight = (make_line_store(tile, spec), None) if IN_LINES else (None, None if by_tma else make_direct_store(
        tile, spec, special.vector))

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        m, n, y, y_group, y_row, y_column = out
        e = EpilogueParams(0, 0, y, 0, y, 0, 0, ())  # which reads nothing
        row, column, z = tile.row + offset, tile.column, tile.z
        if by_tma:
            through_tma(acc, first, y_map, staging, row, column, z, thread, barrier, m, n, e, y, y_row)
        elif IN_LINES:
            lines(acc, first, staging, row, column, thread, barrier, m, n, e, y, z * y_group, y_row)
        else:
            straight(acc, first, row, column, thread, m, n, e, y, z * y_group, y_row, y_column)
    product = make_product(tile, _make_loader(tile, special.operands[0]), _make_locate(tile), sink, spec.accumulator,
                           remake=_make_zeroed(tile))

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def grouped_matmul_bwd_weights_wgmma(a, b, y_map, y, offsets, offset_stride, y_group, rows, m, n, y_row, y_column, tiles, per_matrix,
                                         band_tiles, super_rows, last_rows):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(y_map), shared_address(shared, 0), tiles,
                (offsets, offset_stride, rows, per_matrix, band_tiles, super_rows, last_rows), (m, n, y, y_group, y_row, y_column))
    return grouped_matmul_bwd_weights_wgmma


def build(problem, device, config):
    """Copies where there must be any, then one launch of as many blocks as the device holds, or as there are tiles."""
    parts, tile = problem.parts, config.tile
    a, b = _operands(problem)
    by_tma = stored_by_tma(parts, tile.bn)
    kind = LineSpecialisation if isinstance(config, InLines) else Specialisation
    special = kind(tile, (parts.dtype,), parts.epilogue, by_tma, store_width(parts, 2) == 2)
    tiles_m, tiles_n, tiles = ceil_div(parts.m, tile.bm), ceil_div(parts.n, tile.bn), tile_count(parts, tile)
    a_map = a.argument(tile.bm, 0)
    per, group = 16 // parts.y.itemsize, parts.batch[0][1][3]
    y_map = store_argument("db", parts.y.dtype, (problem.groups, parts.m, parts.n),
                           (group or per, parts.y_strides[0] if parts.m > 1 else per, 1)) if by_tma else a_map
    arguments = (a_map, b.argument(tile.bn, a.bytes), y_map,
                 Argument(element(parts.y.dtype).pointer, "db"), *problem.group_arguments(),
                 *(Argument("int32", v) for v in (problem.rows, parts.m, parts.n)), *(Argument("int64", v) for v in parts.y_strides),
                 Argument("int32", tiles), Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n))
    blocks = min(tiles, device.sms * tile.blocks)
    return (*a.pack(0), *b.pack(a.bytes),
            Launch(kernel(special), (blocks, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared, dependent=True))


ALGORITHM = Algorithm(op=OP, name="wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, notes=Note.TENSOR_CORE, arch="sm_90a")
