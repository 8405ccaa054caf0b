"""Tensor cores of Hopper, one operand made by a program on its way from shared memory to the registers in which wgmma takes it.

The main loop is `engine.hopper`'s, the operand `engine.hopper_made`'s: its bytes are loaded as they lie, int8 as such, and its results
never leave the multiprocessor. It is the left operand of the product; a problem that makes b is solved as yT = bT aT.

It wins against `mma` wherever `wgmma` does. Against a kernel that makes the operand in front of `wgmma` it saves that one's bytes, and
costs the program for each column of tiles anew.
"""
import functools
from typing import NamedTuple

from ..device import cuda, jit, u32
from ..device.index import ceil_div
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.hopper import ROW, make_matrix_loader, make_product
from ..engine.hopper_made import DEPTH, fits_made, made_step, make_made_rows, make_matrix_rows, paired
from ..engine.hopper_plan import (TILES, Config, MatmulOutput, ReducedOutput, Specialisation, locate_arguments, make_kept, make_locate,
                                  make_operand, make_sink, most_sums, output_arguments, pack_seconds, product_seconds, slots_of,
                                  stored_by_tma, tile_count, y_argument)
from ..engine.roles import operand_strides, roles, store_width
from ..engine.simt_plan import addends_refusal
from ..engine.tile_states import (WARP_ROWS, blocks_of, keeping, kept_numbers, reduces, states_argument, states_bytes, states_refusal,
                                  states_seconds, stored_first_refusal, with_finish)
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ..host.memo import remembered


class _Sizes(NamedTuple):
    """What `product_seconds` asks of a problem."""
    a: object
    bytes: int


def supports(problem):
    """One operand of up to 16 bits with a prologue that makes it float16 or bfloat16."""
    reason = addends_refusal(problem) or stored_first_refusal(problem)
    if reason:
        return reason
    if len(problem.prologues) != 1:
        return f"{len(problem.prologues)} operands with a prologue; one is made in registers"
    source = getattr(problem, next(iter(problem.prologues))).dtype
    if problem.dtype_a not in ("float16", "bfloat16"):
        return f"products of {problem.dtype_a}; expected 16 bits"
    if ITEMSIZE[source] > 2:
        return f"a prologue of {source}; expected 16 bits at most"
    if problem.k == 0:
        return "K=0: there is nothing to multiply"
    if problem.scales.by_block:
        return "scales by block"
    if len(problem.batch) > 1:
        return f"{len(problem.batch)} batch dimensions that do not merge, one is the most"
    if max(problem.m, problem.n, problem.k) >= 2 ** 31 - 256:
        return f"a size of {max(problem.m, problem.n, problem.k)}; the most is 2**31 - 257"
    return states_refusal(parts_of(problem), WARP_ROWS, 8)


@remembered
def parts_of(problem):
    """The problem's parts, the operand that is made on the left."""
    return roles(problem, problem.prologue_a is None)


@remembered
def operands_of(parts):
    """The two `Operand`: what is made lies along k in shared memory."""
    made = []
    for which, name, tensor in zip("ab", parts.names, (parts.a, parts.b)):
        extent, across, along, batch = operand_strides(parts, which)
        stride = batch[0] if batch else 0
        made.append(make_operand(name, tensor, extent, parts.k, (stride, across, along), parts.batch_size if stride else 1, None,
                                 anywhere=which == "a"))
    return tuple(made)


def configs(problem, device):
    """The tiles that read b as it lies, with registers for the words of a."""
    parts = parts_of(problem)
    major, making = operands_of(parts)[1].major, parts.making[0]

    def kept(tile):
        return kept_numbers(parts, tile.bn) if keeping(parts, tile, slots_of(tile, device)).row_tiles else 0
    return [Config(tile) for tile in TILES if (major == "k" or tile.cluster == 1 or tile.bn // tile.cluster % 64 == 0)
            and fits_made(tile, making, kept(tile)) and tile.sums <= most_sums(problem.program)]


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address, or of one to be made that does not lie along k; partial reductions."""
    parts, tile = parts_of(problem), config.tile
    return sum(x.bytes for x in operands_of(parts)) + states_bytes(keeping(parts, tile, slots_of(tile, device)), WARP_ROWS, tile.bn)


def estimate(problem, device, config):
    """As `wgmma`'s, with steps that make the operand as well."""
    parts, tile = parts_of(problem), config.tile
    columns, operands = ceil_div(parts.n, tile.bn), operands_of(parts)
    tiles, steps = tile_count(parts, tile) * tile.cluster, ceil_div(parts.k, DEPTH)
    states = states_bytes(keeping(parts, tile, slots_of(tile, device)), WARP_ROWS, tile.bn)
    return states_seconds(states, device) + pack_seconds(operands, device) + product_seconds(
        _Sizes(problem.operand("a"), problem.bytes), tile, device, tiles, steps, parts.m, (columns - 1) * parts.a.nbytes,
        all(x.crosses for x in operands), columns * tile.bn / parts.n if columns > 1 else 1.0,
        lambda tile, step: made_step(parts.making[0].made.program, tile, step))


@functools.cache
def kernel(special, made, pairs, edge):
    """The whole product, one persistent launch."""
    tile = special.tile
    loader = make_matrix_loader(tile, *special.operands)
    rows = make_made_rows(tile, loader, make_matrix_rows(made), made, pairs, edge)
    loader = loader._replace(bytes=loader.bytes - tile.bm * (ROW - rows.pitch))
    product = make_product(tile, loader, make_locate(tile, special.keeps), make_sink(special), special.epilogue.accumulator, made=rows,
                           keeps=make_kept(special))
    REDUCES = reduces(special.epilogue)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma_prologue(a, b, y_map, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each,
                              k, y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias,
                              bias_stride, c, c_row_stride, c_column_stride, extras, operands, states):
        shared = cuda.shared.array(0, u32)
        y_map = tensor_map_address(y_map)
        if REDUCES:
            out = ReducedOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                                c, c_row_stride, c_column_stride, extras, states)
        else:
            out = MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                               c, c_row_stride, c_column_stride, extras)
        product(tensor_map_address(a), tensor_map_address(b), y_map, shared_address(shared, 0), tiles,
                (per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each), out, y_map, (operands, m, k))
    return matmul_wgmma_prologue


def build(problem, device, config):
    """Copies where there must be any, then one launch of as many blocks as the device holds, or as there are tiles."""
    parts, tile = keeping(parts_of(problem), config.tile, slots_of(config.tile, device)), config.tile
    a, b = operands_of(parts)
    by_tma, making, keeps = stored_by_tma(parts, tile.bn), parts.making[0], parts.row_tiles > 0
    tiles, place = locate_arguments(parts, tile, a, b, by_row=keeps)
    special = Specialisation(tile, (making.made.dtype, b.tensor.dtype, a.major, b.major), parts.epilogue, by_tma,
                             not by_tma and store_width(parts, 2) == 2, keeps=keeps)
    pairs = paired(making) if parts.k % 2 == 0 else ()
    a_map = a.argument(tile.bm, 0, DEPTH)
    arguments = (a_map, b.argument(tile.bn // tile.cluster, a.bytes), y_argument(parts) if by_tma else a_map, Argument("int32", tiles),
                 *place, Argument("int32", parts.k), *output_arguments(parts), making.argument(1),
                 states_argument(parts, WARP_ROWS, tile.bn, a.bytes + b.bytes))
    blocks = blocks_of(parts, tile, tiles, slots_of(tile, device))
    product = Launch(kernel(special, making.made, pairs, parts.k % DEPTH != 0), (blocks, 1, 1), (tile.threads, 1, 1), arguments,
                     shared=tile.shared, cluster=(tile.cluster, 1, 1), dependent=True)
    return with_finish((*a.pack(0), *b.pack(a.bytes), product), parts, WARP_ROWS, tile.bn, True, a.bytes + b.bytes)


ALGORITHM = Algorithm(op="matmul", name="wgmma_prologue", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True, prologues=True,
                      reductions=True)
