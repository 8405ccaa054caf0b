"""Several blocks share a tile of y, each with its own range of k; a second kernel adds their partial sums.

`blocked` gives a tile to one block: an output of 128x128 occupies one multiprocessor however long k is. Here tile t and range s belong to
block (t, s), which runs the main loop of `_tile` over its range and stores its accumulators, untouched, to the workspace
[range][batch][m][n] (rows padded to 16 bytes). The reduction reads them 16 bytes a thread, adds ranges in a fixed order, applies the
epilogue, and stores: no atomics, so the result repeats exactly.

The ranges are as many as give each multiprocessor one, two or four blocks. It wins where y has fewer tiles than the device
multiprocessors and k is some thousands; it pays with a second launch and 2 * ranges * M * N elements of traffic, mostly in the L2.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, u32
from ..device.convert import element
from ..device.epilogue import EpilogueSpec
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, load2, load4, shared_address, store2, store4
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ._batch import make_batch_offsets
from ._choice import legal, operands_of, product_arguments, refusal, steps_of, tile_count, tile_seconds
from ._roles import store_width, stored_by_rows
from ._store import make_group_store
from ._tile import Tile, locate, locate_arguments, make_product, shared_bytes

REDUCE_THREADS = 256
LEAST_STEPS = 64
MOST_WORKSPACE = 1 << 29

TILES = (Tile(128, 128, 16, 8, 8, stages=4, early=2), Tile(64, 64, 32, 16, 8, slices=4),
         Tile(32, 32, 32, 8, 4, slices=4, stages=4, blocks=4))
TILES_F64 = (Tile(64, 64, 16, 8, 8, blocks=4), Tile(32, 32, 32, 8, 4, slices=4, blocks=3))


@dataclass(frozen=True)
class Config:
    """Tile, and number of ranges of k."""
    tile: Tile
    ranges: int

    def __post_init__(self):
        if self.ranges < 2:
            raise ValueError(f"{self.ranges} ranges of k; the least is 2")

    def __str__(self):
        return f"{self.tile} {self.ranges} ranges"


@dataclass(frozen=True)
class ReduceConfig:
    """Groups of threads that share the ranges, elements in 16 bytes, elements of one store, batch dimensions, epilogue."""
    groups: int
    vector: int
    store: int
    batch_dims: int
    epilogue: EpilogueSpec


def supports(problem):
    """Needs a k that can be divided."""
    reason = refusal(problem)
    if reason:
        return reason
    parts = stored_by_rows(problem)
    if steps_of(parts) < LEAST_STEPS:
        return f"K={problem.k} gives {steps_of(parts)} steps, two ranges need {LEAST_STEPS}"
    if parts.batch_size * parts.m * _pitch(parts) >= 2 ** 31:
        return f"y has {parts.batch_size * parts.m * parts.n} elements, the reduction counts to 2**31"
    return None


def _pitch(parts):
    """Elements of a row of partial sums: whole groups of 16 bytes."""
    group = 2 if parts.dtype == "float64" else 4
    return ceil_div(parts.n, group) * group


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
            if ranges >= 2 and (not found or _bytes(parts, ranges) <= MOST_WORKSPACE):
                found[Config(tile, ranges)] = None
    return list(found)


def _bytes(parts, ranges):
    return ranges * parts.batch_size * parts.m * _pitch(parts) * (8 if parts.dtype == "float64" else 4)


def workspace(problem, device, config):
    """One partial sum an element and range."""
    return _bytes(stored_by_rows(problem), config.ranges)


def estimate(problem, device, config):
    """The product over one range, with as many blocks as there are; then a launch that reads what the first wrote."""
    parts = stored_by_rows(problem)
    steps, ranges = _ranges(parts, config.tile, config.ranges)
    busiest = ceil_div(tile_count(parts, config.tile) * parts.batch_size * ranges, device.sms)
    return tile_seconds(parts, config.tile, device, busiest, steps) + 2.5e-6 + 2 * _bytes(parts, ranges) / device.bandwidth


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
            to = advance(sums, i64(at + i64(row) * pitch + column))
            if G == 4:
                store(to, i32(0), (acc[e], acc[e + 1], acc[e + 2], acc[e + 3]))
            else:
                store(to, i32(0), (acc[e], acc[e + 1]))
    product = make_product(tile, operands, sink)

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_partial(a, b, sums, m, n, k, sam, sak, sbk, sbn, range_steps, pitch, batch, sizes, strides, tiles, band_tiles, tiles_m,
                       last_rows):
        ring = cuda.shared.array(0, u32)
        z, block = divide_remainder(i32(cuda.blockIdx.x), tiles)
        row, column = locate(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, _, _ = batch_offsets(z, sizes, strides)
        s = i32(cuda.blockIdx.y)
        first = i32(s * range_steps)
        end = i32(min(i32(first + range_steps), k))
        at = i64((i64(s) * batch + i64(z)) * m * pitch)
        product(advance(a, a_at), advance(b, b_at), (sam, sak, sbk, sbn), m, n, first, end, i32(row * BM), i32(column * BN),
                shared_address(ring, i32(0)), (n, pitch, sums, at))
    return matmul_partial


@functools.cache
def reduce_kernel(config):
    """y = epilogue(sum over the ranges): a group of threads takes every so many ranges, 16 bytes of neighbouring columns a thread."""
    GROUPS, G = config.groups, config.vector
    LANES = REDUCE_THREADS // GROUPS
    SCRATCH, SHIFT = REDUCE_THREADS * G, LANES.bit_length() - 1
    Acc = {"float32": f32, "float64": f64, "int32": i32}[config.epilogue.accumulator]
    store = make_group_store(config.epilogue, G, config.store > 1)
    batch_offsets = make_batch_offsets(config.batch_dims)
    load = load4 if G == 4 else load2

    @device_function
    def add_group(acc, p, i):
        if G == 4:
            v0, v1, v2, v3 = load(p, i)
            acc[0] += v0
            acc[1] += v1
            acc[2] += v2
            acc[3] += v3
        else:
            v0, v1 = load(p, i)
            acc[0] += v0
            acc[1] += v1

    @cuda.jit(launch_bounds=(REDUCE_THREADS, 2))
    def matmul_reduce(sums, y, m, n, pitch, elements, ranges, sym, syn, sizes, strides,
                      alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        tid = i32(cuda.threadIdx.x)
        lane, group = i32(tid & (LANES - 1)), i32(tid >> SHIFT)
        at = i32((i32(cuda.blockIdx.x) * LANES + lane) * G)
        acc = cuda.local.array(G, Acc)
        for g in range(G):
            acc[g] = Acc(0)
        if at < elements:
            for s in range(group, ranges, i32(GROUPS)):
                add_group(acc, advance(sums, i64(i64(s) * i64(elements) + i64(at))), i32(0))
        if GROUPS > 1:
            scratch = cuda.shared.array(SCRATCH, Acc, alignment=16)
            for g in range(G):
                scratch[i32(tid * G + g)] = acc[g]
            cuda.syncthreads()
            for other in range(1, GROUPS):
                if group == 0:
                    add_group(acc, scratch, i32((other * LANES + lane) * G))
        if group == 0 and at < elements:
            line, column = divide_remainder(at, pitch)
            z, row = divide_remainder(line, m)
            _, _, c_at, y_at = batch_offsets(z, sizes, strides)
            e = (alpha, beta, bias, bias_stride, advance(c, c_at), c_row_stride, c_column_stride)
            store(acc, i32(0), row, column, n, y, i64(y_at + i64(row) * sym + i64(column) * syn), syn, e)
    return matmul_reduce


def build(problem, device, config):
    """The products over the ranges, then their sum."""
    parts, tile = stored_by_rows(problem), config.tile
    operands = operands_of(parts, tile)
    pitch, elements = _pitch(parts), parts.batch_size * parts.m * _pitch(parts)
    steps, ranges = _ranges(parts, tile, config.ranges)
    tiles_m, tiles_n = ceil_div(parts.m, tile.bm), ceil_div(parts.n, tile.bn)
    sums = Argument(f"{problem.compute}*", "workspace")
    arguments = (*parts.operand_arguments(), sums, *product_arguments(parts), Argument("int32", steps), Argument("int32", pitch),
                 Argument("int32", parts.batch_size), *parts.batch_arguments(), Argument("uint32x3", divisor(tiles_m * tiles_n)),
                 *locate_arguments(tiles_m, tiles_n))
    partial = Launch(partial_kernel(tile, operands, len(parts.batch)), (tiles_m * tiles_n * parts.batch_size, ranges, 1),
                     (tile.threads, 1, 1), arguments, shared=shared_bytes(tile, operands))
    groups = min(16, 1 << (ranges - 1).bit_length() - 1)
    reduce_config = ReduceConfig(groups, operands.group, store_width(parts, operands.group), len(parts.batch), parts.epilogue)
    arguments = (sums, Argument(element(parts.y.dtype).pointer, "y"), Argument("uint32x3", divisor(parts.m)), Argument("int32", parts.n),
                 Argument("uint32x3", divisor(pitch)), Argument("int32", elements), Argument("int32", ranges),
                 *(Argument("int64", v) for v in parts.y_strides), *parts.batch_arguments(), *parts.epilogue_arguments())
    blocks = ceil_div(elements, REDUCE_THREADS // groups * operands.group)
    return partial, Launch(reduce_kernel(reduce_config), (blocks, 1, 1), (REDUCE_THREADS, 1, 1), arguments)


ALGORITHM = Algorithm(op="matmul", name="split_k", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      arch="sm_80+")
