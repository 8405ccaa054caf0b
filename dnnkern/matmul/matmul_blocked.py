"""A block computes a tile of y from shared memory, a thread a smaller one in registers, with exact arithmetic on the ordinary units.

`_tile` has the main loop: cp.async into a ring of stages, fragments of 16 bytes double-buffered in registers, tm x tn multiply-adds for
tm + tn elements loaded. 16-bit operands are widened to float32 on their way into shared memory; int8 operands lie there in words of four k
and are multiplied by dp4a; float64 works as float32 does, with half the elements in 16 bytes.

The configurations are a ladder of tiles: 128x256 for products that fill the machine many times over, down to 32x16 for those that would
leave most of it idle; the small ones split the k of a stage among warps. It wins for float32 from about 256**3 on, where only tensor cores
with reduced precision are faster; for 16-bit types until K and N reward tensor cores. Where y has few tiles and k is long `split_k` wins,
with M or N up to 8 `gemv`.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, u32
from ..device.convert import element
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._batch import make_batch_offsets
from ._roles import access, operand_strides, store_width, stored_by_rows, widest
from ._store import make_group_store
from ._tile import HALVES, Operands, Tile, locate, locate_arguments, make_product, shared_bytes

# Tile: fixed time, time of one step of k alone on a multiprocessor, additional time for every tile a multiprocessor gets; the first in
# microseconds, the others in nanoseconds at 1.98 GHz. Fitted to float32 on an H200, docs/notes/matmul.md.
TILES = {
    Tile(128, 256, 8, 16, 8, stages=4, blocks=1): (3.0, 2.0, 168.6),
    Tile(128, 128, 16, 8, 8, stages=4, early=2): (3.0, 4.0, 85.2),
    Tile(128, 64, 32, 16, 8, slices=4, blocks=1): (3.2, 0.0, 44.6),
    Tile(64, 64, 32, 16, 8, slices=4): (2.2, 5.9, 20.3),
    Tile(64, 32, 64, 8, 8, lanes_m=8, slices=8, blocks=1): (2.3, 0.9, 14.6),
    Tile(32, 32, 32, 8, 4, slices=4, stages=4, blocks=4): (1.5, 2.4, 7.5),
    Tile(32, 16, 64, 4, 4, lanes_m=8, slices=4): (1.2, 3.5, 5.4),
}
TILES_F64 = {
    Tile(64, 64, 16, 8, 8, blocks=4): (3.0, 10.0, 44.0),
    Tile(32, 32, 32, 8, 4, slices=4, blocks=3): (2.0, 4.0, 14.0),
}


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: tile, access to the operands, elements of one store, batch dimensions, epilogue."""
    tile: Tile
    operands: Operands
    store: int
    batch_dims: int
    epilogue: EpilogueSpec


def supports(problem):
    """int8 needs words of four k in both operands."""
    if problem.k == 0:
        return "K is 0"
    if max(problem.m, problem.n, problem.k) >= 2 ** 31 - 2 ** 16:
        return f"M, N, K = {problem.m}, {problem.n}, {problem.k}; each must be below 2**31 - 2**16"
    if problem.a.dtype == "int8":
        parts = stored_by_rows(problem)
        for which in "ab":
            order, words = access_words(parts, which)
            if not words:
                return f"{which} is int8 {order}; dp4a needs words of four elements along k"
    return None


def access_words(parts, which):
    """("why not", 0) or ("", 1): whether an int8 operand can be read in words of four k."""
    tensor = parts.a if which == "a" else parts.b
    extent, across, along, batch = operand_strides(parts, which)
    if along != 1 and parts.k > 1:
        return f"with stride {along} along k", 0
    if widest(4, tensor, True, (parts.k,), batch + ((across,) if extent > 1 else ())) != 4:
        return f"aligned to {tensor.alignment} bytes, K={parts.k}, stride {across}", 0
    return "", 1


def operands_of(parts, tile):
    """How a tile's loaders read the operands of a problem."""
    edge = int(parts.m % tile.bm != 0 or parts.n % tile.bn != 0)
    if parts.dtype == "int8":
        return Operands("int8", (1, 1), (1, 1), edge)
    limit = 8 if parts.dtype in HALVES else 16 // parts.a.itemsize
    return Operands(parts.dtype, access(parts, "a", limit), access(parts, "b", limit), edge)


def tiles_of(problem):
    return TILES_F64 if problem.a.dtype == "float64" else TILES


def legal(parts, tile, device):
    try:
        return shared_bytes(tile, operands_of(parts, tile)) <= device.shared_per_block
    except ValueError:  # the block's threads cannot share the tile in copies of this size
        return False


def configs(problem, device):
    """Tiles whose loaders fit the operands' layout and alignment."""
    parts = stored_by_rows(problem)
    return [tile for tile in tiles_of(problem) if legal(parts, tile, device)]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor, each with a time for every step of k."""
    parts = stored_by_rows(problem)
    fixed, alone, each = tiles_of(problem)[config]
    tiles = ceil_div(parts.m, config.bm) * ceil_div(parts.n, config.bn) * parts.batch_size
    busiest = ceil_div(tiles, device.sms)
    steps = ceil_div(parts.k, 4) if parts.dtype == "int8" else parts.k
    slower = 1.08 if parts.dtype in HALVES else 1.0
    return fixed * 1e-6 + slower * steps * (alone + each * busiest) * 1e-9 * (1.98e9 / device.clock_hz)


@functools.cache
def kernel(config):
    """One tile of y a block."""
    tile = config.tile
    BM, BN = tile.bm, tile.bn
    store = make_group_store(config.epilogue, config.operands.group, config.store > 1)
    batch_offsets = make_batch_offsets(config.batch_dims)

    @device_function
    def sink(acc, e, row, column, s):
        n, y, y_at, sym, syn, epilogue = s
        store(acc, e, row, column, n, y, i64(y_at + i64(row) * sym + i64(column) * syn), syn, epilogue)
    product = make_product(tile, config.operands, sink)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_blocked(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                       alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        ring = cuda.shared.array(0, u32)
        z, block = divide_remainder(i32(cuda.blockIdx.x), tiles)
        row, column = locate(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        epilogue = (alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride)
        product(advance(a, a_at), advance(b, b_at), (sam, sak, sbk, sbn), m, n, i32(0), k, i32(row * BM), i32(column * BN),
                shared_address(ring, i32(0)), (n, y, y_at, sym, syn, epilogue))
    return matmul_blocked


def product_arguments(parts):
    """Kernel parameters m, n, k and the operands' strides, in the units of shared memory's elements."""
    per = 4 if parts.dtype == "int8" else 1
    (sam, sak), (sbk, sbn) = parts.a_strides, parts.b_strides
    sizes = tuple(Argument("int32", v) for v in (parts.m, parts.n, parts.k // per))
    if per > 1:
        sam, sak, sbk, sbn = sam // per, 1, 1, sbn // per
    return sizes + tuple(Argument("int64", v) for v in (sam, sak, sbk, sbn))


def build(problem, device, config):
    """One launch, a block a tile."""
    parts = stored_by_rows(problem)
    operands = operands_of(parts, config)
    full = Config(config, operands, store_width(parts, operands.group), len(parts.batch), parts.epilogue)
    tiles_m, tiles_n = ceil_div(parts.m, config.bm), ceil_div(parts.n, config.bn)
    pointer = parts.operand_arguments()
    arguments = (*pointer, Argument(element(parts.y.dtype).pointer, "y"), *product_arguments(parts),
                 *(Argument("int64", v) for v in parts.y_strides), *parts.batch_arguments(),
                 Argument("uint32x3", divisor(tiles_m * tiles_n)), *locate_arguments(tiles_m, tiles_n), *parts.epilogue_arguments())
    return (Launch(kernel(full), (tiles_m * tiles_n * parts.batch_size, 1, 1), (config.threads, 1, 1), arguments,
                   shared=shared_bytes(config, operands)),)


ALGORITHM = Algorithm(op="matmul", name="blocked", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      arch="sm_80+")
