"""Two products of one left operand by the tensor cores of Hopper, and a program of both: SwiGLU as one launch.

The main loop is `engine.hopper`'s; a stage has columns of both right operands (`engine.hopper_dual`), so that n columns by each cost what
one product of 2n columns does; the left operand is read once, and what the program makes is written instead of both results. Operands,
tiles and how results leave are `wgmma`'s.
"""
import functools
from dataclasses import replace

from ..device import cuda, device_function, jit, u32
from ..device.index import ceil_div
from ..device.tma import prefetch_tensor_map, tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.hopper import make_product
from ..engine.hopper_columns import columns_ahead, make_columns_ahead, paired_columns
from ..engine.hopper_dual import b_rows, make_dual_loader, make_dual_locate
from ..engine.hopper_plan import (Config, MatmulOutput, Specialisation, least_seconds, locate_arguments,
                                  make_epilogue_params, make_operand, make_sink, operands_of, output_arguments, pack_seconds,
                                  product_seconds, refusal, steps_of, stored_by_tma, tile_count, tiles_for, wgmma_dtype, y_argument)
from ..engine.hopper_stores import aside_seconds, staged_addend
from ..engine.programs import numbered_operands
from ..engine.roles import roles, store_width
from ..host.launch import Argument, Launch


def operands(problem):
    """The three `hopper_plan.Operand`."""
    parts = roles(problem)
    a, b = operands_of(parts, problem.math)
    along, across = problem.b_dual_strides
    batch = problem.batch[0].b_dual if problem.batch else 0
    return a, b, make_operand("b_dual", problem.b_dual, parts.n, parts.k, (batch, across, along), parts.batch_size if batch else 1,
                              problem.math)


def supports(problem):
    """Types the tensor cores know, at most one batch dimension, right operands of one kind."""
    if problem.b_dual is None:
        return "one right operand; expected b_dual"
    reason = refusal(problem, roles(problem))
    if reason:
        return reason
    _, b, b_dual = operands(problem)
    if (b.major, b.matrices) != (b_dual.major, b_dual.matrices):
        return f"b and b_dual lie differently: {b.matrices} matrices by {b.major}, {b_dual.matrices} by {b_dual.major}"
    return None


def configs(problem, device):
    """Every tile that reads b as it lies, and has whole boxes of columns of either; of programs that store too, since a thread has half as
    many results as sums, and what addresses take is free with those of the first ones."""
    return [Config(tile) for tile in tiles_for(operands(problem)[1].major, problem.a.dtype) if tile.bn % 128 == 0]


def workspace(problem, device, config):
    """Copies of operands that TMA cannot address."""
    return sum(x.bytes for x in operands(problem))


def estimate(problem, device, config):
    """Waves of tiles, and the results beside the first; a launch and two passes for each copy."""
    parts, tile, results = roles(problem), config.tile, _special(problem, config.tile).results
    columns, of = ceil_div(parts.n, results.bn), operands(problem)
    return aside_seconds(problem, tile, device, by_boxes=0) + pack_seconds(of, device) + product_seconds(
        problem, tile, device, tile_count(parts, results) * tile.cluster, steps_of(parts.k, parts.a.itemsize), parts.m,
        (columns - 1) * parts.a.nbytes, all(x.crosses for x in of), columns * results.bn / parts.n if columns > 1 else 1.0)


def bound(problem, device):
    """The copies, and the products at the best tile's rate."""
    both = replace(roles(problem), n=2 * problem.n)
    return pack_seconds(operands(problem), device) + least_seconds(problem, both, device)


@functools.cache
def kernel(special):
    """Both products and the program, one persistent launch."""
    tile, spec, results = special.tile, special.epilogue, special.results
    epilogue_params = make_epilogue_params(spec)
    parameters = device_function(lambda tile, out: (epilogue_params(out, tile.z), out.n))
    product = make_product(tile, make_dual_loader(tile, *special.operands), make_dual_locate(tile), make_sink(special), spec.accumulator,
                           ahead=make_columns_ahead(results, spec, special.pairs, parameters) if special.ahead else None)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_wgmma_dual(a, b, b_dual, y_map, tiles, per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps,
                          each, y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                          c, c_row_stride, c_column_stride, extras):
        shared, second = cuda.shared.array(0, u32), tensor_map_address(b_dual)
        if cuda.threadIdx.x == 0:
            prefetch_tensor_map(second)
        out = MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c,
                           c_row_stride, c_column_stride, extras)
        of_results = per_matrix, ranges, band_tiles, super_rows, last_rows, a_batched, b_batched, steps, each
        product(tensor_map_address(a), tensor_map_address(b), tensor_map_address(y_map), shared_address(shared, 0), tiles,
                (second, of_results), out)
    return matmul_wgmma_dual


def _special(problem, tile):
    """What the kernel is compiled for."""
    parts, (a, b, _) = roles(problem), operands(problem)
    by_tma, extras = stored_by_tma(parts, tile.bn // 2), numbered_operands(problem, parts.operand_steps)
    dtypes = tuple(wgmma_dtype(x.tensor.dtype, problem.math) for x in (a, b))
    pairs = paired_columns(parts.epilogue, extras) if by_tma else ()
    return Specialisation(tile, (*dtypes, a.major, b.major), parts.epilogue, by_tma, not by_tma and store_width(parts, 2) == 2,
                          staged=staged_addend(parts.epilogue, extras) if by_tma else None, pairs=pairs,
                          ahead=columns_ahead(tile, parts.epilogue, pairs, tile.bn // 2))


def build(problem, device, config):
    """Copies where there must be any, then one launch of as many blocks as the device holds, or as there are tiles."""
    parts, tile, special = roles(problem), config.tile, _special(problem, config.tile)
    a, b, b_dual = operands(problem)
    tiles, located = locate_arguments(parts, special.results, a, b)
    a_map, offsets = a.argument(tile.bm, 0), (0, a.bytes, a.bytes + b.bytes)
    arguments = (a_map, *(x.argument(b_rows(tile), offset) for x, offset in zip((b, b_dual), offsets[1:])),
                 y_argument(parts) if special.by_tma else a_map, Argument("int32", tiles), *located, *output_arguments(parts))
    blocks = min(tiles, device.sms * tile.blocks // tile.cluster) * tile.cluster
    packs = (launch for x, offset in zip((a, b, b_dual), offsets) for launch in x.pack(offset))
    return (*packs, Launch(kernel(special), (blocks, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared,
                           cluster=(tile.cluster, 1, 1), dependent=True))


ALGORITHM = Algorithm(op="matmul", name="wgmma_dual", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True, dual=True)
