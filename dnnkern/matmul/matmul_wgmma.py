"""Tensor cores of Hopper: TMA feeds shared memory, warpgroups multiply out of it, blocks persist over the tiles of y.

The main loop is `engine.hopper`'s; this file says which tiles fit a problem and builds the launch. 16-bit operands are read as they lie in
any transposition, 8-bit ones and tf32 where they are contiguous along k; what TMA or the tensor cores cannot read is first copied to the
workspace (`engine.packing`). Results of 16 and 32 bits leave through shared memory and TMA where y allows it, all others straight from
registers.

It wins wherever y has enough tiles for the multiprocessors; below that the sum over k has to be divided (`wgmma_split_k`).
"""
import functools

from ..device import cuda, device_function, jit, u32
from ..device.index import ceil_div
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.cost import Cost
from ..engine.hopper import ROW, make_matrix_loader, make_product
from ..engine.hopper_addend import fits_ring, make_addend_stages
from ..engine.hopper_columns import columns_ahead, make_columns_ahead, paired_columns
from ..engine.hopper_lines import line_tiles, lines_refusal, make_line_sink
from ..engine.hopper_plan import (MOST_REDUCED, TIMES_OF_MATRICES, Config, MatmulOutput, ReducedOutput, Specialisation, addend_argument,
                                  least_seconds, locate_arguments, make_epilogue_params, make_kept, make_locate, make_sink, operands_of,
                                  output_arguments, pack_seconds, product_seconds, refusal, slots_of, steps_of, stored_by_tma, tile_count,
                                  tiles_for, waves_of, wgmma_dtype, y_argument)
from ..engine.hopper_promoted import in_fours, make_block_factors
from ..engine.hopper_stores import activation_seconds, aside_seconds, boxed_output, staged_addend
from ..engine.programs import NOTHING, operand_names, read_operands
from ..engine.roles import has_row_steps, store_width, stored_by_rows
from ..engine.row_tiles import row_refusal, row_seconds
from ..engine.scales import FP8
from ..engine.tile_states import (WARP_ROWS, blocks_of, keeping, reduces, states_argument, states_bytes, states_refusal, states_seconds,
                                  stored_first_refusal, with_finish)
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._wgmma_cost import InLines, LineSpecialisation, aside_of, longer_step, slower_of

WIDTHS = 64, 128, 192, 256  # columns of a tile that has whole rows


def supports(problem):
    """Types the tensor cores know, at most one batch dimension."""
    parts = stored_by_rows(problem)
    reason = (stored_first_refusal(problem) or refusal(problem, parts) or states_refusal(parts, WARP_ROWS, 8)
              or row_refusal(parts, WIDTHS))
    if reason is None and has_row_steps(parts.epilogue) and not configs(problem, None):
        return f"rows of {parts.n} columns of {problem.a.dtype} to {problem.y.dtype}, for which no tile has the registers"
    return reason


def _parts_of(problem, device, tile):
    """The problem's parts, of which blocks of a tile may keep states of reductions."""
    parts = stored_by_rows(problem)
    return keeping(parts, tile, slots_of(tile, device))


def configs(problem, device):
    """Every tile that reads b as it lies, and has all columns of its rows where a program reduces these."""
    parts = stored_by_rows(problem)
    by_rows = has_row_steps(parts.epilogue)
    found = tiles_for(operands_of(parts, problem.math)[1].major, problem.a.dtype, None if by_rows else problem.program,
                      tuple(TIMES_OF_MATRICES))
    if parts.y.itemsize == 4 and problem.program is not None:
        found = [tile for tile in found if tile.sums <= MOST_REDUCED]  # beside more, what the program reads is spilled
    if parts.y.dtype in FP8 and parts.n > 64 and stored_by_tma(parts, ROW):
        found = [tile for tile in found if tile.bn % ROW == 0]  # whole boxes of results
    if by_rows:
        found = [tile for tile in found if tile.bn >= parts.n and tile.sums <= MOST_REDUCED]
        found = [tile for tile in found if tile.bn == min(other.bn for other in found)]
    if parts.scales.by_block:
        found = [tile for tile in found if 128 % tile.bn == 0]  # one block of b's columns a tile
    whole = by_rows or parts.scales.by_block or parts.reduced or stored_by_tma(parts, ROW)
    lines = [] if whole or lines_refusal(parts.epilogue, parts.y_strides, parts.n) else [InLines(tile) for tile in line_tiles(found)]
    return [Config(tile) for tile in found] + lines


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address; partial reductions."""
    parts = _parts_of(problem, device, config.tile)
    return sum(x.bytes for x in operands_of(parts, problem.math)) + states_bytes(parts, WARP_ROWS, config.tile.bn)


def estimate(problem, device, config):
    """Waves of tiles; a launch and two passes for each copy."""
    tile = config.tile
    parts = _parts_of(problem, device, tile)
    columns, operands = ceil_div(parts.n, tile.bn), operands_of(parts, problem.math)
    states = states_bytes(parts, WARP_ROWS, tile.bn)
    tiles = tile_count(parts, tile) * tile.cluster
    rows = row_seconds(parts.epilogue, tile, waves_of(tiles, device.sms * tile.blocks), device)
    by_tma = stored_by_tma(parts, tile.bn)
    straight = Cost() if by_tma else aside_of(config, device, tiles, store_width(parts, 2))
    beside = (straight + states_seconds(states, device) + activation_seconds(problem, tile, device)
              + aside_seconds(problem, tile, device, wide=1) + rows + pack_seconds(operands, device))
    product = product_seconds(
        problem, tile, device, tiles, steps_of(parts.k, parts.a.itemsize), parts.m,
        (columns - 1) * parts.a.nbytes, all(x.crosses for x in operands), columns * tile.bn / parts.n if columns > 1 else 1.0,
        longer_step(operands))
    return (beside + product).slowed(slower=slower_of(config))


def bound(problem, device):
    """The copies, and the products at the best tile's rate."""
    parts = stored_by_rows(problem)
    return pack_seconds(operands_of(parts, problem.math), device) + least_seconds(problem, parts, device)


@device_function
def _last_row(tile, out):
    return out.m - 1


@device_function
def _scale_b(tile, out):
    return out.scale_b


@functools.cache
def kernel(special):
    """The whole product, one persistent launch."""
    tile, spec = special.tile, special.epilogue
    sink = (make_line_sink if isinstance(special, LineSpecialisation) else make_sink)(special)
    factors = make_block_factors(*special.blocks, _last_row, _scale_b) if any(special.blocks[:2]) else None
    epilogue_params, corner = make_epilogue_params(spec), device_function(lambda tile: (tile.row, tile.column, tile.z))
    parameters = device_function(lambda tile, out: (epilogue_params(out, tile.z), out.n))
    product = make_product(tile, make_matrix_loader(tile, *special.operands), make_locate(tile, special.keeps), sink, spec.accumulator,
                           factors, addend=make_addend_stages(tile, corner, ITEMSIZE[spec.output]) if special.by_ring else None,
                           ahead=make_columns_ahead(tile, spec, special.pairs, parameters) if special.ahead else None,
                           keeps=make_kept(special))
    FURTHER, REDUCES = special.by_ring or special.boxed is not None, reduces(spec)
    results = device_function((lambda y, further: y) if special.boxed is None else (lambda y, further: (y, further)))

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma(a, b, y_map, further_map, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps,
                     each, y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c,
                     c_row_stride, c_column_stride, extras, states):
        shared = cuda.shared.array(0, u32)
        further = tensor_map_address(further_map if FURTHER else y_map)
        if REDUCES:
            out = ReducedOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                                c, c_row_stride, c_column_stride, extras, states)
        else:
            out = MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                               c, c_row_stride, c_column_stride, extras)
        product(tensor_map_address(a), tensor_map_address(b), results(tensor_map_address(y_map), further), shared_address(shared, 0), tiles,
                (per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each), out, further)
    return matmul_wgmma


def build(problem, device, config):
    """Copies where there must be any, then one launch of as many blocks as the device holds, or as there are tiles."""
    tile = config.tile
    parts = _parts_of(problem, device, tile)
    a, b = operands_of(parts, problem.math)
    by_tma, keeps = stored_by_tma(parts, tile.bn), parts.row_tiles > 0
    tiles, place = locate_arguments(parts, tile, a, b, by_row=keeps)
    operands = read_operands(problem, parts)
    dtypes, scales = tuple(wgmma_dtype(x.tensor.dtype, problem.math) for x in (a, b)), parts.scales
    by_rows = has_row_steps(parts.epilogue)  # what it reads beside the accumulators is loaded as the program runs over them
    staged = staged_addend(parts.epilogue, operands, wide=True) if by_tma and not by_rows else None
    pairs = paired_columns(parts.epilogue, operands, wide=True) if by_tma and not by_rows else ()
    by_ring = staged is not None and fits_ring(tile, *operands[staged])
    boxed = boxed_output(parts.epilogue, operands) if by_tma and not by_rows and staged is None else None
    further, names = staged if by_ring else boxed, {"c": problem.addend_name, **dict(enumerate(operand_names(problem.program)))}
    further_map = NOTHING if further is None else addend_argument(names, further, operands, (parts.batch_size, parts.m, parts.n))
    kind = LineSpecialisation if isinstance(config, InLines) else Specialisation
    special = kind(tile, (*dtypes, a.major, b.major), parts.epilogue, by_tma, not by_tma and store_width(parts, 2) == 2,
                   (scales.a == "block", scales.b == "block", in_fours(problem.scale_a, scales)), staged,
                   pairs, by_ring, columns_ahead(tile, parts.epilogue, pairs), keeps, boxed, by_rows and parts.n < tile.bn)
    b_rows, packed = tile.bn // tile.cluster, a.bytes + b.bytes
    a_map = a.argument(tile.bm, 0)
    arguments = (a_map, b.argument(b_rows, a.bytes), y_argument(parts) if by_tma else a_map, further_map, Argument("int32", tiles), *place,
                 *output_arguments(parts), states_argument(parts, WARP_ROWS, tile.bn, packed))
    blocks = blocks_of(parts, tile, tiles, slots_of(tile, device))
    return with_finish((*a.pack(0), *b.pack(a.bytes),
                        Launch(kernel(special), (blocks, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared,
                               cluster=(tile.cluster, 1, 1), dependent=True)), parts, WARP_ROWS, tile.bn, True, packed)


ALGORITHM = Algorithm(op="matmul", name="wgmma", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True, reductions=True, rows=True)
