"""GEMM on CUDA cores: a block computes a tile of y out of shared memory, each thread a smaller one in registers. Exact arithmetic.

`engine.simt` has the main loop: cp.async into a ring of stages, fragments of 16 bytes double-buffered in registers, tm x tn multiply-adds
per tm + tn elements loaded. 16-bit operands are widened to float32 on their way into shared memory; int8 operands are stored there as
words of four k and multiplied by dp4a; float64 works as float32 does, with half the elements in 16 bytes.

Tiles go from 128x256, for products that fill the multiprocessors many times over, down to 32x16 for those that would leave most of them
idle; the small ones split the k of a stage among warps. It wins for float32 from about 256**3 on, where only tensor cores with reduced
precision are faster; for 16-bit types until K and N reward tensor cores. Where y has few tiles and k is long `split_k` wins, with M or N
up to 8 `gemv`.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, jit, u32
from ..device.convert import element
from ..device.epilogue import EpilogueParams, EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.program_batches import make_placed
from ..device.scheduler import locate_in_bands
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm
from ..engine.batch import make_batch_offsets
from ..engine.cost import overlap
from ..engine.programs import program_argument
from ..engine.roles import store_width, stored_by_rows
from ..engine.simt import Operands, Tile, band_arguments, make_product, shared_bytes
from ..engine.simt_plan import (least_seconds, legal, matrix_seconds, operands_of, product_arguments, refusal, steps_of, tile_count,
                                tiles_of)
from ..engine.stores import make_group_store
from ..host.launch import Argument, Launch


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: tile, access to the operands, elements of one store, batch dimensions, epilogue."""
    tile: Tile
    operands: Operands
    store: int
    batch_dims: int
    epilogue: EpilogueSpec


def supports(problem):
    """What `_choice.refusal` lets through."""
    return refusal(problem)


def configs(problem, device):
    """Tiles whose loaders fit the operands' layout and alignment."""
    parts = stored_by_rows(problem)
    return [tile for tile in tiles_of(problem) if legal(parts, tile, device)]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor, each with a time for every step of k; where k is short, the bytes."""
    parts = stored_by_rows(problem)
    tiles = tile_count(parts, config) * parts.batch_size
    return overlap(matrix_seconds(parts, config, device, tiles, steps_of(parts)), memory=problem.bytes / device.bandwidth)


def bound(problem, device):
    """All steps at the best tile's rate, or the bytes."""
    parts = stored_by_rows(problem)
    work = least_seconds(parts.dtype, problem.y.size, steps_of(parts), device)
    return max(work, problem.bytes / device.bandwidth)


@functools.cache
def kernel(config):
    """One tile of y per block."""
    tile = config.tile
    BM, BN = tile.bm, tile.bn
    store = make_group_store(config.epilogue, config.operands.group, config.store > 1)
    batch_offsets, placed = make_batch_offsets(config.batch_dims), make_placed(config.epilogue.program, config.batch_dims)

    @device_function
    def sink(acc, e, row, column, s):
        n, y, y_at, sym, syn, epilogue = s
        store(acc, e, row, column, n, y, y_at + row * sym + column * syn, syn, epilogue)
    product = make_product(tile, config.operands, sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_blocked(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                       alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras):
        ring = cuda.shared.array(0, u32)
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        epilogue = EpilogueParams(alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride,
                                  placed(extras, z, sizes))
        product(advance(a, a_at), advance(b, b_at), (sam, sak, sbk, sbn), m, n, 0, k, row * BM, column * BN,
                shared_address(ring, 0), (n, y, y_at, sym, syn, epilogue))
    return matmul_blocked


def build(problem, device, config):
    """One launch, one block per tile."""
    parts = stored_by_rows(problem)
    operands = operands_of(parts, config)
    full = Config(config, operands, store_width(parts, operands.group), len(parts.batch), parts.epilogue)
    tiles_m, tiles_n = ceil_div(parts.m, config.bm), ceil_div(parts.n, config.bn)
    pointer = parts.operand_arguments()
    arguments = (*pointer, Argument(element(parts.y.dtype).pointer, "y"), *product_arguments(parts),
                 *(Argument("int64", v) for v in parts.y_strides), *parts.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n), *parts.epilogue_arguments(),
                 program_argument(parts, len(parts.batch)))
    return (Launch(kernel(full), (tiles_m * tiles_n * parts.batch_size, 1, 1), (config.threads, 1, 1), arguments,
                   shared=shared_bytes(config, operands)),)


ALGORITHM = Algorithm(op="matmul", name="blocked", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, arch="sm_80+", programs=True)
