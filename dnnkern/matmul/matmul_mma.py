"""Tensor cores by mma.sync: every dtype, every layout, from sm_80 on.

The main loop is `engine.ampere`'s; this file has the tiles that fit a problem, their cost, and the tile of each block. Operands are read
where they lie, in copies of 16, 8 or 4 bytes as their alignment allows and element by element otherwise; what a prologue makes goes through
registers. float32 is rounded to tf32, which the problem has to allow; float64 is exact.

With M or N up to 16 the long dimension becomes the rows of mma.sync whatever y's layout: tiles of 8 or 16 columns waste nothing, and bytes
of weights in flight are what counts. Where y has few tiles, blocks split k (split-K), and `engine.split_k` adds the partial sums.

It wins for float64, for operands that TMA cannot address, for 8-bit operands that are not contiguous along k, on architectures without
wgmma, and for few rows or columns; of 8-bit floats by its estimate, not measured yet: `wgmma` waits for the sums of each step of k, here
warps share a stage's k. Large products of 16-bit elements on sm_90a belong to wgmma.
"""
import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.convert import element
from ..device.epilogue import EpilogueParams, EpilogueSpec, ScaledParams
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.program_batches import make_placed
from ..device.scheduler import locate_in_bands
from ..device.vec import advance, shared_address, store2, store4
from ..dispatch import Algorithm, Note
from ..engine.ahead import make_wait_with_rows
from ..engine.ampere import MmaTile, make_mma_product, reduced_bytes, registers_needed, run_of, shared_bytes
from ..engine.ampere_cost import least_seconds, product_seconds, sum_seconds
from ..engine.ampere_fragments import ITEMSIZE, Stored
from ..engine.ampere_loaders import CopyLoader, RegisterLoader
from ..engine.batch import make_batch_offsets
from ..engine.constants import constants
from ..engine.functions import EPILOGUE, epilogue_seconds
from ..engine.loaders import ALONG_K, ALONG_ROWS, STRIDED
from ..engine.programs import program_argument, read_operands
from ..engine.roles import access, operand_strides, roles, store_width, stored_by_rows
from ..engine.scales import FP8
from ..engine.simt import band_arguments
from ..engine.simt_plan import size_refusal
from ..engine.split_k import SomeRanges as Config
from ..engine.split_k import bytes_beside, pitch_of, sum_launch, sums_argument, sums_bytes, sums_refusal
from ..engine.stores import make_run_store
from ..engine.tile_states import (Reducing, fragment_reductions, reduces, states_argument, states_bytes, states_refusal, states_seconds,
                                  with_finish)
from ..host.dtypes import ITEMSIZE as BYTES
from ..host.launch import Argument, Launch

if TYPE_CHECKING:
    from ..engine.prologues import Made

COSTS = {True: constants("matmul/mma"), False: constants("engine/ampere")}  # of 16-bit elements, of others
SKINNY = 16
AHEAD = 1 << 16  # bytes of long rows that the only block of a multiprocessor asks for while the grid before it still runs
MOST_WORKSPACE = 1 << 29
LEAST_STAGES = 4  # of a range of k

TILES = (MmaTile(128, 256, 64, 2, 4, stages=4), MmaTile(128, 128, 64, 2, 2, stages=4, blocks=2),
         MmaTile(128, 128, 128, 2, 2, stages=3, blocks=2), MmaTile(128, 128, 64, 2, 4, stages=4),
         MmaTile(128, 64, 64, 2, 2, stages=4, blocks=3), MmaTile(64, 128, 64, 2, 2, stages=4, blocks=3),
         MmaTile(64, 64, 128, 2, 2, stages=4, blocks=3), MmaTile(64, 64, 256, 1, 1, slices=4, stages=3, blocks=2),
         MmaTile(32, 64, 256, 1, 2, slices=2, stages=4, blocks=2), MmaTile(64, 64, 64, 2, 2, stages=3, blocks=2),
         MmaTile(64, 32, 128, 2, 1, slices=2, stages=4, blocks=4), MmaTile(32, 32, 256, 1, 1, slices=4, stages=4, blocks=3))
TILES_SKINNY = (MmaTile(128, 16, 128, 4, 1, stages=5, blocks=2), MmaTile(64, 16, 256, 4, 1, slices=2, stages=5, blocks=2),
                MmaTile(64, 16, 64, 4, 1, stages=4, blocks=4), MmaTile(32, 16, 512, 2, 1, slices=4, stages=4, blocks=2),
                MmaTile(16, 16, 1024, 1, 1, slices=8, stages=3, blocks=2),
                MmaTile(32, 8, 512, 2, 1, slices=4, stages=9), MmaTile(16, 8, 1024, 1, 1, slices=8, stages=4, blocks=2))
# float64 with the shapes of sm_90; before that every one is 8x8x4
TILES_F64 = (MmaTile(128, 128, 128, 2, 4, stages=4, by_row=1, mma_m=16, mma_k=8),
             MmaTile(128, 64, 128, 2, 2, stages=4, blocks=2, by_row=1, mma_m=16, mma_k=8),
             MmaTile(128, 64, 128, 2, 2, stages=4, blocks=2, by_row=1, mma_m=16, mma_k=4),
             MmaTile(128, 64, 128, 4, 2, stages=4, mma_m=16, mma_k=8), MmaTile(128, 64, 256, 4, 2, stages=3, by_row=1, mma_m=16, mma_k=16),
             MmaTile(64, 64, 128, 2, 2, stages=4, blocks=2, mma_m=16, mma_k=8),
             MmaTile(64, 64, 256, 2, 2, slices=2, stages=3, mma_m=16, mma_k=8),
             MmaTile(32, 32, 512, 1, 1, slices=4, stages=3, blocks=2, mma_m=16, mma_k=8))
TILES_F64_SKINNY = (MmaTile(64, 16, 256, 4, 1, slices=2, stages=5, blocks=2, mma_m=16, mma_k=8),
                    MmaTile(64, 8, 256, 4, 1, slices=2, stages=5, blocks=2, mma_m=16, mma_k=8),
                    MmaTile(32, 8, 512, 2, 1, slices=4, stages=5, blocks=2, mma_m=16, mma_k=8))


@dataclass(frozen=True)
class Operand:
    """How an operand is read: order of its stage's lines, elements of one copy, 0 for one at a time through registers, and what it is made
    of by a prologue."""
    order: int
    vector: int
    made: "Made | None" = None


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for.

    `store`: neighbouring columns of y in one store, 0 where none are; `dependent`: the launch may begin before the one in front of it has
    ended (sm_90), and asks for `ahead` bytes of its rows before that; `epilogue`: None leaves the sums.
    """
    tile: MmaTile
    dtype: str
    a: Operand
    b: Operand
    edge: bool
    store: int
    batch_dims: int
    dependent: bool
    accumulator: str
    epilogue: EpilogueSpec | None
    ahead: int = 0


def mma_dtype(problem, floats8=False):
    """What the tensor cores call the operands; None where they cannot take them, or take 8-bit floats only if `floats8`."""
    if problem.dtype_a == "float32":
        return "tf32" if problem.math == "tf32" else None
    return problem.dtype_a if problem.dtype_a in ITEMSIZE and (floats8 or problem.dtype_a not in FP8) else None


def supports(problem):
    """Every layout; float32 only where it may be rounded; 8-bit floats of one type, with few rows or columns."""
    if mma_dtype(problem, True) is None:
        return f"operands are {problem.dtype_a}" + (", math is not 'tf32'" if problem.dtype_a == "float32" else "")
    if problem.dtype_a in FP8:
        if problem.dtype_a != problem.b.dtype or problem.scales.by_block:
            return f"{problem.dtype_a} x {problem.b.dtype}, {problem.scales}: expected one type, no scales by block"
        if min(problem.m, problem.n) > SKINNY:
            return f"{problem.dtype_a}, {problem.m}x{problem.n}; expected at most {SKINNY} rows or columns"
    return size_refusal(problem)


def lack(problem, device):
    """What a device is short of."""
    return None if problem.dtype_a not in FP8 or device.capability >= (8, 9) else "no products of 8-bit floats before sm_89"


def parts_of(problem, tile):
    """The problem's parts for a tile: the long dimension as rows for those with few columns, else as y is stored."""
    return roles(problem, problem.m < problem.n) if tile.bn <= SKINNY else stored_by_rows(problem)


def operand_of(parts, which):
    """How an operand is read. The lines of one that is contiguous nowhere lie along the smaller stride."""
    tensor, making = (parts.a, parts.making[0]) if which == "a" else (parts.b, parts.making[1])
    order, vector = access(parts, which, 16 // (tensor.itemsize if making is None else max(tensor.itemsize, BYTES[making.made.dtype])))
    if order == STRIDED:
        extent, across, along, _ = operand_strides(parts, which)
        order = ALONG_ROWS if extent > 1 and 0 < abs(across) < abs(along) else ALONG_K
    if making is not None:
        return Operand(order, vector, making.made)
    return Operand(order, vector if vector * tensor.itemsize >= 4 else 0)


@functools.cache
def stages_of(tile, dtype, a, b, edge):
    """(left, right, left loader, right loader); ValueError where the tile cannot read such operands."""
    # bytes of neighbouring columns that fill a store of 16: eight halves, four words
    left = Stored(dtype, a.order, tile.bm, tile.warp_m, tile.depth, True)
    right = Stored(dtype, b.order, tile.bn, tile.warp_n, tile.depth, False, wanted=4 if ITEMSIZE[dtype] == 2 else 2)
    return left, right, *(loader_of(tile, stored, operand, edge) for stored, operand in ((left, a), (right, b)))


def loader_of(tile, stored, operand, edge):
    if operand.made is not None:
        from ..engine.prologue_loader import ProgramLoader  # programs are imported where there is one
        return ProgramLoader(stored, tile.threads, operand.vector, edge, operand.made)
    return CopyLoader(stored, tile.threads, operand.vector, edge) if operand.vector else RegisterLoader(stored, tile.threads, edge)


def _stages(parts, tile, dtype):
    edge = bool(parts.m % tile.bm or parts.n % tile.bn)
    return stages_of(tile, dtype, operand_of(parts, "a"), operand_of(parts, "b"), edge)


def legal(parts, tile, dtype, device):
    """Whether the tile's loaders can read the operands, and the block fits."""
    try:
        left, right, *loaders = _stages(parts, tile, dtype)
    except ValueError:
        return False
    registers = min(65536 // (tile.threads * tile.blocks) // 8 * 8, 255)
    shared = shared_bytes(tile, left, right) + reduced_bytes(tile, parts.epilogue)
    return registers_needed(tile, loaders) <= registers and shared <= device.shared_per_block


def doubles_on(tiles, device):
    """float64 tiles as a device has them: the wide products exist from sm_90 on."""
    return tiles if device.capability >= (9, 0) else tuple(dict.fromkeys(replace(tile, mma_m=8, mma_k=4) for tile in tiles))


def tiles_of(problem, device):
    """The tiles for a problem's type and shape."""
    few, double = min(problem.m, problem.n), problem.a.dtype == "float64"
    tiles = TILES_F64 if double else TILES
    if few <= SKINNY:
        skinny = TILES_F64_SKINNY if double else TILES_SKINNY
        tiles = tuple(tile for tile in skinny if few > 8 or tile.bn == 8 or tile.depth == 64) + tiles[-3:]
    return doubles_on(tiles, device) if double else tiles


def _range(parts, tile, dtype, ranges):
    """(elements of k in a range, a multiple of a stage's; number of ranges)."""
    bk = tile.depth // ITEMSIZE[dtype]
    each = ceil_div(ceil_div(parts.k, bk), ranges) * bk
    return each, ceil_div(parts.k, each)


def _blocks(parts, tile):
    """Tiles of all matrices."""
    return ceil_div(parts.m, tile.bm) * ceil_div(parts.n, tile.bn) * parts.batch_size


def configs(problem, device):
    """For each tile one range of k, and as many as give a multiprocessor one block, or all that fit on it."""
    dtype, found = mma_dtype(problem, True), {}
    for tile in tiles_of(problem, device):
        parts = parts_of(problem, tile)
        if not legal(parts, tile, dtype, device) or states_refusal(parts, tile.bm, tile.bn):
            continue
        found[Config(tile)] = None
        for blocks in sorted({1, tile.blocks}):
            most = ceil_div(parts.k * ITEMSIZE[dtype], tile.depth * LEAST_STAGES)
            _, ranges = _range(parts, tile, dtype, min(blocks * device.sms // _blocks(parts, tile), most) or 1)
            if ranges > 1 and not parts.reduced and sums_refusal(parts) is None and sums_bytes(parts, ranges) <= MOST_WORKSPACE:
                found[Config(tile, ranges)] = None
    return list(found)


def workspace(problem, device, config):
    """Partial sums, where blocks divide k; partial reductions."""
    parts = parts_of(problem, config.tile)
    return sums_bytes(parts, config.ranges) if config.ranges > 1 else states_bytes(parts, config.tile.bm, config.tile.bn)


def cost_of(dtype):
    """The numbers of an estimate, by the dtype of what is multiplied."""
    return COSTS[BYTES[dtype] == 2]


def estimate(problem, device, config):
    """The product's time by `engine.ampere_cost`, and the sum's."""
    tile, dtype, row = config.tile, mma_dtype(problem, True), cost_of(problem.dtype_a)
    parts = parts_of(problem, tile)
    left, right, *loaders = _stages(parts, tile, dtype)
    each, ranges = _range(parts, tile, dtype, config.ranges)
    stages, blocks = ceil_div(each, left.k), _blocks(parts, tile) * ranges
    product = product_seconds(tile, dtype, left, right, loaders, device, blocks, stages, problem.bytes, row)
    if ranges > 1:
        return product + sum_seconds(sums_bytes(parts, ranges), device, bytes_beside(problem), row)
    return product + states_seconds(states_bytes(parts, tile.bm, tile.bn), device) + epilogue_seconds(problem, EPILOGUE.mma, device)


def bound(problem, device):
    """All products at the tensor cores' rate, or the bytes."""
    return least_seconds(mma_dtype(problem, True), problem.flops, problem.bytes, device, cost_of(problem.dtype_a))


@functools.cache
def _make_start(config):
    """Device function ``start(a, row, m, stride, first, end)``: wait for the previous grid; a tile of few columns has asked for what it
    reads first of its rows of a."""
    if not config.dependent:
        return device_function(lambda a, row, m, stride, first, end: None)
    item, rows = ITEMSIZE[config.dtype], config.tile.bm
    wait = make_wait_with_rows(rows if config.ahead else 0, config.ahead // rows, item, config.tile.threads)
    return device_function(lambda a, row, m, stride, first, end: wait(advance(a, row * stride + first), stride, m - row, end - first))


@functools.cache
def kernel(config):
    """The tiles of y, a block a tile and range of k."""
    tile = config.tile
    BM, BN, start = tile.bm, tile.bn, _make_start(config)
    left, right, left_loader, right_loader = stages_of(tile, config.dtype, config.a, config.b, config.edge)
    RUN = run_of(right)
    batch_offsets = make_batch_offsets(config.batch_dims)
    state_of_a, state_of_b = _make_state(config.a.made, config.batch_dims), _make_state(config.b.made, config.batch_dims)

    if config.epilogue is None:
        GROUP = min(RUN, 2 if config.accumulator == "float64" else 4)
        COUNT = RUN // GROUP

        @device_function
        def sink(acc, e, row, column, s):
            n, pitch, sums, at = s
            for g in range(COUNT):
                if column + g * GROUP < n:
                    to = advance(sums, at + i64(row) * pitch + (column + g * GROUP))
                    j = e + g * GROUP
                    if GROUP == 4:
                        store4(to, i32(0), (acc[j], acc[j + 1], acc[j + 2], acc[j + 3]))
                    else:
                        store2(to, 0, (acc[j], acc[j + 1]))
        product = make_mma_product(tile, left, right, left_loader, right_loader, sink, config.edge)

        @jit(launch_bounds=(tile.threads, tile.blocks))
        def matmul_mma_partial(a, b, sums, m, n, k, sam, sak, sbk, sbn, range_k, pitch, batch, sizes, strides, tiles, band_tiles, tiles_m,
                               last_rows, made_a, made_b):
            shared = cuda.shared.array(0, u32)
            z, block = divide_remainder(cuda.blockIdx.x, tiles)
            row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
            a_at, b_at, _, _ = batch_offsets(z, sizes, strides)
            s = cuda.blockIdx.y
            first = s * range_k
            end = min(first + range_k, k)
            row, column, a = row * BM, column * BN, advance(a, a_at)
            start(a, row, m, sam, first, end)
            product(state_of_a(a, row, m - 1, sam, sak, made_a, z, sizes),
                    state_of_b(advance(b, b_at), column, n - 1, sbn, sbk, made_b, z, sizes), first, end, m, row,
                    column, shared_address(shared, 0), (n, pitch, sums, (i64(s) * batch + z) * m * pitch))
        return matmul_mma_partial

    sink = make_run_store(config.epilogue, RUN, config.store)
    placed, REDUCES = make_placed(config.epilogue.program, config.batch_dims), reduces(config.epilogue)
    SCALED = any(config.epilogue.scales)
    params = scaled_params if SCALED else plain_params
    product = make_mma_product(tile, left, right, left_loader, right_loader, sink, config.edge, fragment_reductions(config.epilogue))

    @device_function
    def run(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows, e, made_a, made_b,
            states):
        shared = cuda.shared.array(0, u32)
        z, block = divide_remainder(cuda.blockIdx.x, tiles)
        row, column = locate_in_bands(block, band_tiles, tiles_m, last_rows)
        a_at, b_at, c_at, y_at = batch_offsets(z, sizes, strides)
        row, column, a = row * BM, column * BN, advance(a, a_at)
        start(a, row, m, sam, 0, k)
        epilogue = params(e, advance(e.c, c_at), placed(e.extras, z, sizes))
        of_sink = n, y, y_at, sym, syn, epilogue
        product(state_of_a(a, row, m - 1, sam, sak, made_a, z, sizes),
                state_of_b(advance(b, b_at), column, n - 1, sbn, sbk, made_b, z, sizes), 0, k, m, row, column, shared_address(shared, 0),
                (of_sink, Reducing(n, epilogue, z, states)) if REDUCES else of_sink)

    if SCALED:
        @jit(launch_bounds=(tile.threads, tile.blocks))
        def matmul_mma_scaled(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                              alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras, made_a, made_b, states, scale_a,
                              scale_b, scale_strides):
            run(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                ScaledParams(alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, scale_a, scale_b, scale_strides.a_row,
                             scale_strides.b_column, extras), made_a, made_b, states)
        return matmul_mma_scaled

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def matmul_mma(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
                   alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras, made_a, made_b, states):
        run(a, b, y, m, n, k, sam, sak, sbk, sbn, sym, syn, sizes, strides, tiles, band_tiles, tiles_m, last_rows,
            EpilogueParams(alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, extras), made_a, made_b, states)
    return matmul_mma


@device_function
def plain_params(e, c, extras):
    """An epilogue's parameters, of one matrix of a batch."""
    return EpilogueParams(e.alpha, e.beta, e.bias, e.bias_stride, c, e.c_row_stride, e.c_column_stride, extras)


@device_function
def scaled_params(e, c, extras):
    """The same with scales."""
    return ScaledParams(e.alpha, e.beta, e.bias, e.bias_stride, c, e.c_row_stride, e.c_column_stride, e.scale_a, e.scale_b,
                        e.scale_a_stride, e.scale_b_stride, extras)


@functools.cache
def _make_state(made, dims):
    """Device function: an operand's state for its loader, which of one that is made has the program's operands last."""
    if made is None:
        return device_function(lambda p, row, last, stride, stride_k, operands, z, sizes: (p, row, last, stride, stride_k))
    placed = make_placed(made.program, dims)
    return device_function(lambda p, row, last, stride, stride_k, operands, z, sizes:
                           (p, row, last, stride, stride_k, placed(operands, z, sizes)))


def store_of(parts, run):
    """Columns of y that one store takes, 0 where it takes single ones; bytes leave four at a time or one."""
    width = min(run, 16 // parts.y.itemsize)
    while width > 1 and (store_width(parts, width) != width or parts.y.itemsize == 1 and width != 4):
        width //= 2
    return width if width > 1 else 0


def build(problem, device, config):
    """One launch, a block a tile; or the products over ranges of k, then their sum."""
    tile, dtype = config.tile, mma_dtype(problem, True)
    parts = parts_of(problem, tile)
    left, right, left_loader, _ = _stages(parts, tile, dtype)
    each, ranges = _range(parts, tile, dtype, config.ranges)
    epilogue, dependent = None if ranges > 1 else parts.epilogue, device.capability >= (9, 0)
    tiles_m, tiles_n, a = ceil_div(parts.m, tile.bm), ceil_div(parts.n, tile.bn), operand_of(parts, "a")
    # blocks of a second wave would ask for what they load at once
    at_once = tiles_m * tiles_n * parts.batch_size * ranges <= device.sms * tile.blocks
    ahead = AHEAD // tile.blocks ** 2 if at_once and tile.bn <= SKINNY and a.order == ALONG_K and a.made is None else 0
    full = KernelConfig(tile, dtype, a, operand_of(parts, "b"), left_loader.edge, store_of(parts, run_of(right)) if epilogue else 0,
                        len(parts.batch), dependent, problem.compute, epilogue, ahead)
    (sam, sak), (sbk, sbn) = parts.a_strides, parts.b_strides
    common = (*(Argument("int32", v) for v in (parts.m, parts.n, parts.k)), *(Argument("int64", v) for v in (sam, sak, sbk, sbn)))
    tiles = (*parts.batch_arguments(), Argument("uint32x3", divisor(tiles_m * tiles_n)), *band_arguments(tiles_m, tiles_n))
    if ranges > 1:
        arguments = (*parts.operand_arguments(), sums_argument(parts), *common, Argument("int32", each), Argument("int32", pitch_of(parts)),
                     Argument("int32", parts.batch_size), *tiles, *parts.making_arguments())
    else:
        arguments = (*parts.operand_arguments(), Argument(element(parts.y.dtype).pointer, "y"), *common,
                     *(Argument("int64", v) for v in parts.y_strides), *tiles, *parts.epilogue_arguments(),
                     program_argument(parts, len(parts.batch)), *parts.making_arguments(),
                     states_argument(parts, tile.bm, tile.bn), *(parts.scales.arguments() if any(epilogue.scales) else ()))
    product = Launch(kernel(full), (tiles_m * tiles_n * parts.batch_size, ranges, 1), (tile.threads, 1, 1), arguments,
                     shared=shared_bytes(tile, left, right), dependent=dependent)
    if ranges > 1:
        return product, sum_launch(parts, ranges, dependent, read_operands(problem, parts))
    return with_finish((product,), parts, tile.bm, tile.bn, dependent)


ALGORITHM = Algorithm(op="matmul", name="mma", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                      bound=bound, fits=lack, notes=Note.TENSOR_CORE, arch="sm_80+", programs=True, prologues=True, reductions=True)
