"""A convolution as a matrix product on tensor cores by mma.sync, whose operands are gathered on their way into shared memory.

The product is that of `implicit_gemm`, in all directions; the main loop is `matmul._engine_ampere`'s: a ring of stages filled by cp.async,
ldmatrix, mma.sync. With channels last a copy is 16 bytes of channels of one pixel and tap, or fewer where the channels of a group do not
divide by so many. With channels first neighbouring elements are pixels, which a tap shifts to any address: 16-bit elements then pass
through registers one by one, float32 goes by copies of 4 bytes; only 1x1 filters without stride are copied 16 bytes at a time.

float16, bfloat16, float64 and, forward, int8 are multiplied as they are; float32 is rounded to tf32, which the problem has to allow. It
wins before sm_90, for groups of 8 to 64 channels, for strided image gradients, for float64, and wherever TMA cannot address the image.
"""
import functools
from dataclasses import dataclass, replace

from ..device import cuda, device_function, i32, i64, u32
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm, Note
from ..host.launch import Argument, Launch
from ..matmul._engine_ampere import MmaTile, make_mma_product, registers_needed, run_of, shared_bytes
from ..matmul._engine_cost import SUM_LAUNCH, product_seconds
from ..matmul._engine_fragments import ITEMSIZE, Stored
from ..matmul._tile import locate, locate_arguments
from ._gather import make_gather, refusal, view_of
from ._gather_loaders import Rows
from ._gather_mma_loaders import GatherCopies, GatherRegisters
from ._gather_plan import access, grain_of, operand_arguments, sizes, swapped
from ._gather_store import Output, make_store, make_sums, output_of, pitch_of, sum_launch, sums_bytes
from ._gather_table import Table

MOST_WORKSPACE = 1 << 29
LEAST_STAGES = 4  # of a range of k
FEW = 16          # channels that do not fill the rows of a tile

TILES = (MmaTile(128, 256, 64, 2, 4, stages=4), MmaTile(128, 128, 64, 2, 2, stages=4, blocks=2),
         MmaTile(128, 128, 64, 2, 4, stages=4), MmaTile(128, 64, 64, 2, 2, stages=4, blocks=3),
         MmaTile(64, 128, 64, 2, 2, stages=4, blocks=3), MmaTile(64, 64, 128, 2, 2, stages=4, blocks=3),
         MmaTile(64, 64, 64, 2, 2, stages=3, blocks=2), MmaTile(64, 32, 128, 2, 1, slices=2, stages=4, blocks=4),
         MmaTile(32, 64, 128, 1, 2, slices=2, stages=4, blocks=4), MmaTile(32, 32, 64, 1, 1, slices=2, stages=3, blocks=4))
TILES_FEW = (MmaTile(128, 16, 64, 4, 1, stages=4, blocks=3), MmaTile(64, 16, 64, 4, 1, stages=4, blocks=4),
             MmaTile(64, 16, 128, 2, 1, slices=2, stages=4, blocks=3), MmaTile(128, 8, 64, 4, 1, stages=4, blocks=3),
             MmaTile(64, 8, 64, 4, 1, stages=4, blocks=4), MmaTile(32, 8, 128, 2, 1, slices=2, stages=4, blocks=4))
TILES_F64 = (MmaTile(128, 64, 128, 4, 2, stages=4, mma_m=16, mma_k=8), MmaTile(64, 64, 128, 2, 2, stages=4, blocks=2, mma_m=16, mma_k=8),
             MmaTile(64, 16, 128, 4, 1, stages=4, blocks=2, mma_m=16, mma_k=8))


@dataclass(frozen=True)
class Config:
    """Tile, and the number of ranges into which blocks divide the sums."""
    tile: MmaTile
    ranges: int = 1

    def __post_init__(self):
        if not 1 <= self.ranges <= 65535:
            raise ValueError(f"{self.ranges} ranges of k; a grid has 1 to 65535")

    def __str__(self):
        return f"{self.tile} {self.ranges} ranges" if self.ranges > 1 else str(self.tile)


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: tile, type of the products, elements of k in an entry of the table, (order, elements of one copy) of
    source and plain operand, whether tiles reach over an edge, where results go, and whether they are partial sums."""
    tile: MmaTile
    dtype: str
    grain: int
    source: tuple
    plain: tuple
    edge: bool
    output: Output
    partial: bool


def mma_dtype(problem):
    """What the tensor cores call the operands; None where they cannot take them."""
    if problem.dtype == "float32":
        return "tf32" if problem.math == "tf32" else None
    return problem.dtype if problem.dtype in ITEMSIZE else None


def supports(problem):
    """What can be gathered; float32 only where it may be rounded."""
    if mma_dtype(problem) is None:
        return f"operands are {problem.dtype}" + (", math is not 'tf32'" if problem.dtype == "float32" else "")
    return refusal(problem)


def _swapped(view, tile):
    return swapped(view) and tile.bn > FEW


def _configured(view, tile):
    """The `KernelConfig` for a tile, but for partial sums."""
    p, swap, dtype = view.problem, _swapped(view, tile), mma_dtype(view.problem)
    m, n = sizes(view, swap)
    limit = 16 // ITEMSIZE[dtype]
    config = KernelConfig(tile, dtype, grain_of(view, min(limit, tile.depth // ITEMSIZE[dtype])), access(view, "source", limit),
                          access(view, "plain", limit), bool(m % tile.bm or n % tile.bn), output_of(view, swap, 16 // p.output.itemsize),
                          False)
    return config


@functools.cache
def stages_of(config):
    """(table, left, right, left loader, right loader); ValueError where the tile cannot read such operands."""
    tile, dtype, output = config.tile, config.dtype, config.output
    by_pixel, item = output.op == "conv_bwd_filter", ITEMSIZE[dtype]
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    source_left = not (output.swap or by_pixel)
    orders = [config.source[0], config.plain[0]] if source_left else [config.plain[0], config.source[0]]
    left = Stored(dtype, orders[0], tile.bm, tile.warp_m, tile.depth, True)
    right = Stored(dtype, orders[1], tile.bn, tile.warp_n, tile.depth, False, wanted=4 if item == 2 else 2)
    table = Table(left.k, config.grain, tile.threads, by_pixel)
    loaders = []
    for stored in (left, right):
        is_source = stored.left == source_left
        rows, vector = Rows(is_source, by_pixel), (config.source if is_source else config.plain)[1]
        if vector * item < 4:
            loaders.append(GatherRegisters(stored, table, rows, functions, stored.left))
        else:
            loaders.append(GatherCopies(stored, table, vector, rows, functions, stored.left))
    return table, left, right, *loaders


def _legal(view, tile, device):
    """Whether the loaders can share the tile, and the block fits."""
    config = _configured(view, tile)
    try:
        table, left, right, *loaders = stages_of(config)
    except ValueError:
        return False
    registers = min(65536 // (tile.threads * tile.blocks) // 8 * 8, 255)
    return registers_needed(tile, loaders) <= registers and _shared(config)[1] <= device.shared_per_block


def _shared(config):
    """(offset of the table in the dynamic shared memory, all of it)"""
    table, left, right, *_ = stages_of(config)
    whole = -(-shared_bytes(config.tile, left, right) // 16) * 16
    return whole, whole + table.bytes


def _range(view, tile, ranges):
    """(elements of k in a range, a multiple of a stage's; number of ranges)."""
    bk = tile.depth // ITEMSIZE[mma_dtype(view.problem)]
    each = max(ceil_div(ceil_div(view.k, bk), ranges), 1) * bk
    return each, max(ceil_div(view.k, each), 1)


def _tiles(view, tile):
    m, n = sizes(view, _swapped(view, tile))
    return ceil_div(m, tile.bm), ceil_div(n, tile.bn)


def _sums(view, tile, ranges):
    return sums_bytes(view.products, *sizes(view, _swapped(view, tile)), ranges, view.problem.compute)


def configs(problem, device):
    """For each tile that fits whole sums, and as many ranges as give a multiprocessor one block, or all that fit on it."""
    view, found = view_of(problem), {}
    tiles = TILES_F64 if problem.dtype == "float64" else TILES + (TILES_FEW if view.columns <= 2 * FEW else ())
    if problem.dtype == "float64" and device.capability < (9, 0):
        tiles = tuple(replace(tile, mma_m=8, mma_k=4) for tile in tiles)
    for tile in tiles:
        if not _legal(view, tile, device):
            continue
        found[Config(tile)] = None
        m, n = _tiles(view, tile)
        for blocks in sorted({1, tile.blocks}):
            most = ceil_div(view.k * ITEMSIZE[mma_dtype(problem)], tile.depth * LEAST_STAGES)
            ranges = min(blocks * device.sms // (m * n * view.products), most, 65535)
            if ranges > 1:
                _, ranges = _range(view, tile, ranges)
                nbytes = _sums(view, tile, ranges)
                if ranges > 1 and nbytes <= MOST_WORKSPACE and nbytes // (4 * ranges) < 2 ** 31:
                    found[Config(tile, ranges)] = None
    return sorted(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """Partial sums, where blocks divide k."""
    return _sums(view_of(problem), config.tile, config.ranges) if config.ranges > 1 else 0


def estimate(problem, device, config):
    """The product's time by `_engine_cost`, and the sum's."""
    view, tile = view_of(problem), config.tile
    table, left, right, *loaders = stages_of(_configured(view, tile))
    each, ranges = _range(view, tile, config.ranges)
    m, n = _tiles(view, tile)
    # classes have fewer taps than the most on average
    share = problem.flops / 2 / max(view.rows * view.columns * view.k * view.products, 1)
    stages = ceil_div(min(each, max(view.k, 1)), left.k) * max(share, 0.1)
    seconds = product_seconds(tile, mma_dtype(problem), left, right, loaders, device, m * n * view.products * ranges, stages, problem.bytes)
    if ranges > 1:
        seconds += SUM_LAUNCH + 2 * workspace(problem, device, config) / device.bandwidth
    return seconds


@functools.cache
def kernel(config):
    """One tile of one group and class a block, or its part in a range of k."""
    tile, output = config.tile, config.output
    BM, BN, TABLE = tile.bm, tile.bn, _shared(config)[0]
    source_left = not (output.swap or output.op == "conv_bwd_filter")
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    setup, source_base, plain_base = functions.setup, functions.source_base, functions.plain_base
    _, left, right, left_loader, right_loader = stages_of(config)
    run = run_of(right)
    sink = make_sums(run, output.epilogue.accumulator) if config.partial else make_store(output, run)
    product = make_mma_product(tile, left, right, left_loader, right_loader, sink, config.edge)

    @device_function
    def multiply(source, plain, m, n, first, end, row, column, v, geo, shared, state):
        table = u32(shared + u32(TABLE))
        p, q = advance(source, source_base(v, geo)), advance(plain, plain_base(v, geo))
        a = (p if source_left else q, row, i32(m - 1), table, first, end, v, geo)
        b = (q if source_left else p, column, i32(n - 1), table, first, end, v, geo)
        product(a, b, first, end, m, row, column, shared, state)

    if config.partial:
        @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
        def conv_implicit_gemm_mma_partial(source, plain, sums, m, n, range_k, pitch, products, shape, window, source_strides,
                                           plain_strides, pixel_divisors, tap_divisors, classes, class_divisors, tiles, band_tiles,
                                           tiles_m, last_rows):
            shared = cuda.shared.array(0, u32)
            z, block = divide_remainder(i32(cuda.blockIdx.x), tiles)
            row, column = locate(block, band_tiles, tiles_m, last_rows)
            v = (shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes, class_divisors)
            geo = setup(z, v)
            s = i32(cuda.blockIdx.y)
            first = i32(min(i32(s * range_k), geo[1]))
            end = i32(min(i32(first + range_k), geo[1]))
            at = i64((i64(s) * products + i64(z)) * m * pitch)
            multiply(source, plain, m, n, first, end, i32(row * BM), i32(column * BN), v, geo, shared_address(shared, i32(0)),
                     (n, pitch, sums, at))
        return conv_implicit_gemm_mma_partial

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_implicit_gemm_mma(source, plain, y, m, n, shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes,
                               class_divisors, to, res, tiles, band_tiles, tiles_m, last_rows, alpha, beta, bias, bias_stride, prior,
                               row_stride, column_stride, residual, residual_row, residual_column):
        shared = cuda.shared.array(0, u32)
        z, block = divide_remainder(i32(cuda.blockIdx.x), tiles)
        row, column = locate(block, band_tiles, tiles_m, last_rows)
        v = (shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes, class_divisors)
        geo = setup(z, v)
        epilogue = (alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
        multiply(source, plain, m, n, i32(0), geo[1], i32(row * BM), i32(column * BN), v, geo, shared_address(shared, i32(0)),
                 (m, n, y, v, geo, to, res, epilogue))
    return conv_implicit_gemm_mma


def build(problem, device, config):
    """One launch, a block a tile; or the products over ranges, then their sum."""
    view, tile = view_of(problem), config.tile
    full = _configured(view, tile)
    each, ranges = _range(view, tile, config.ranges)
    tiles_m, tiles_n = _tiles(view, tile)
    m, n = sizes(view, full.output.swap)
    place = (Argument("uint32x3", divisor(tiles_m * tiles_n)), *locate_arguments(tiles_m, tiles_n))
    extents = (Argument("int32", m), Argument("int32", n))
    if ranges > 1:
        full = replace(full, partial=True)
        arguments = (*operand_arguments(view), Argument(f"{problem.compute}*", "workspace"), *extents, Argument("int32", each),
                     Argument("int32", pitch_of(n, problem.compute)), Argument("int32", view.products), *view.arguments(), *place)
    else:
        arguments = (*operand_arguments(view), Argument(element(problem.output.dtype).pointer, problem.output_name), *extents,
                     *view.arguments(), *view.output_arguments(), *place, *problem.epilogue_arguments())
    product = Launch(kernel(full), (tiles_m * tiles_n * view.products, ranges, 1), (tile.threads, 1, 1), arguments,
                     shared=_shared(full)[1])
    return (product, sum_launch(view, full.output, m, n, ranges)) if ranges > 1 else (product,)


ALGORITHMS = tuple(Algorithm(op=op, name="implicit_gemm_mma", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
