"""A convolution as a matrix product on the ordinary units, exact, whose operands are gathered on their way into shared memory.

`matmul._tile` has the main loop: a block computes a tile, a thread a smaller one in registers. The loaders find elements by an offset of
the row, a pixel say, and one of the element of k, a tap and a channel, and masks say what lies outside the image (`_gather`); copies of
zero bytes fill the padding in. Nothing is divided in the main loop and no matrix of patches exists. The same product serves all
directions: for the image's gradient dy is gathered, pixels of x being sorted by their residues modulo the strides so that no tap meets a
gap; for the filter's gradient the sums run over pixels.

Rows are pixels and columns channels where the channels of the result are contiguous; with channels first it is the other way round, and
neighbouring threads copy neighbouring pixels instead of neighbouring channels. Where the result has few tiles, blocks share the sums in
`ranges`, which a second launch adds up in a fixed order.

float32 and float64 are exact; 16-bit operands are widened on their way into shared memory. It wins for float32 where tensor cores may not
round, but for filters for which fewer multiplications do (Winograd), and loses where a group has fewer channels than a tile has columns.
"""
import functools
from dataclasses import dataclass, replace
from types import SimpleNamespace

from ..device import cuda, device_function, i32, i64, u32
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, shared_address
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ..matmul._choice import TILES, TILES_F64, tile_seconds
from ..matmul._tile import HALVES, Operands, Tile, locate, locate_arguments, make_tile_product
from ._gather import make_gather, refusal, view_of
from ._gather_loaders import GatherLoader, Rows
from ._gather_plan import access, grain_of, operand_arguments, sizes, swapped
from ._gather_store import Output, make_store, make_sums, output_of, pitch_of, sum_launch, sums_bytes
from ._gather_table import Table

DTYPES = ("float64", "float32", *HALVES)
MOST_WORKSPACE = 1 << 29
LEAST_STEPS = 64  # of a range of k
SUM_LAUNCH = 2.5e-6


@dataclass(frozen=True)
class Config:
    """Tile, and the number of ranges into which blocks divide the sums."""
    tile: Tile
    ranges: int = 1

    def __post_init__(self):
        if not 1 <= self.ranges <= 65535:
            raise ValueError(f"{self.ranges} ranges of k; a grid has 1 to 65535")

    def __str__(self):
        return f"{self.tile} {self.ranges} ranges" if self.ranges > 1 else str(self.tile)


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: tile, element type, elements of k in an entry of the table, (order, elements of one copy) of source
    and plain operand, whether tiles reach over an edge, where results go, and whether they are partial sums."""
    tile: Tile
    dtype: str
    grain: int
    source: tuple
    plain: tuple
    edge: int
    output: Output
    partial: bool


def supports(problem):
    """Offsets of 32 bits, and filters that a mask can hold."""
    if problem.dtype not in DTYPES:
        return f"operands are {problem.dtype}; expected {', '.join(DTYPES)}"
    return refusal(problem)


def _configured(view, tile):
    """The `KernelConfig` for a tile, but for partial sums."""
    p, swap = view.problem, swapped(view)
    limit = 16 // element(p.dtype).storage.itemsize
    m, n = sizes(view, swap)
    grain = grain_of(view, min(limit, tile.bk))
    group = 2 if p.dtype == "float64" else 4
    return KernelConfig(tile, p.dtype, grain, access(view, "source", limit), access(view, "plain", limit),
                        int(m % tile.bm != 0 or n % tile.bn != 0), output_of(view, swap, group), False)


def loaders_of(config):
    """(table, left loader, right loader); ValueError where the block cannot share the tile."""
    tile, output = config.tile, config.output
    by_pixel = output.op == "conv_bwd_filter"
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    table = Table(tile.bk, config.grain, tile.threads, by_pixel)
    source_left = not (output.swap or by_pixel)
    pair = []
    for rows, is_left in ((tile.bm, True), (tile.bn, False)):
        is_source = is_left == source_left
        order, vector = config.source if is_source else config.plain
        pair.append(GatherLoader(rows, table, config.dtype, order, vector, Rows(is_source, by_pixel), functions, is_left))
    return table, *pair


def _bytes(config):
    """(of the ring, of all dynamic shared memory)"""
    tile, item = config.tile, 8 if config.dtype == "float64" else 4
    table, left, right = loaders_of(config)
    stages = 2 if config.dtype in HALVES else tile.stages
    ring = stages * tile.bk * item * (left.pitch + right.pitch)
    return ring, max(ring + table.bytes, (tile.slices - 1) * tile.bm * tile.bn * item)


def _legal(view, tile, device):
    """Whether the loaders can share the tile, and the block fits."""
    config = _configured(view, tile)
    try:
        _, left, right = loaders_of(config)
    except ValueError:
        return False
    words = 2 if config.dtype == "float64" else 1
    registers = (tile.tm * tile.tn + 2 * (tile.tm + tile.tn)) * words + left.registers + right.registers + 14 + 6 * words
    return registers <= min(65536 // (tile.threads * tile.blocks), 255) and _bytes(config)[1] <= device.shared_per_block


def _tiles(view, tile):
    m, n = sizes(view, swapped(view))
    return ceil_div(m, tile.bm), ceil_div(n, tile.bn)


def _range(view, config):
    """(elements of k in a range, a multiple of a stage's; number of ranges)."""
    bk = config.tile.bk
    each = max(ceil_div(ceil_div(view.k, bk), config.ranges), 1) * bk
    return each, max(ceil_div(view.k, each), 1)


def configs(problem, device):
    """For each tile that fits whole sums, and as many ranges as give a multiprocessor one, two or four blocks."""
    view, found = view_of(problem), {}
    rows, columns = sizes(view, swapped(view))
    for tile in TILES_F64 if problem.dtype == "float64" else TILES:
        if not _legal(view, tile, device):
            continue
        found[Config(tile)] = None
        m, n = _tiles(view, tile)
        for blocks in (1, 2, 4):
            ranges = min(blocks * device.sms // (m * n * view.products), view.k // LEAST_STEPS, 65535)
            if ranges >= 2:
                _, ranges = _range(view, Config(tile, ranges))
                fits = view.products * rows * pitch_of(columns, problem.compute) < 2 ** 31
                if ranges >= 2 and fits and sums_bytes(view.products, rows, columns, ranges, problem.compute) <= MOST_WORKSPACE:
                    found[Config(tile, ranges)] = None
    return sorted(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """One partial sum an element of the result and range, where there are several."""
    view, ranges = view_of(problem), config.ranges
    return sums_bytes(view.products, *sizes(view, swapped(view)), ranges, problem.compute) if ranges > 1 else 0


def estimate(problem, device, config):
    """Tiles on the busiest multiprocessor with a time for every step of k, which the gathering makes a tenth longer; then the sum."""
    view = view_of(problem)
    steps, ranges = _range(view, config)
    m, n = _tiles(view, config.tile)
    busiest = ceil_div(m * n * view.products * ranges, device.sms)
    # classes have fewer taps than the most on average
    share = problem.flops / 2 / max(view.rows * view.columns * view.k * view.products, 1)
    parts = SimpleNamespace(dtype=problem.dtype)
    seconds = tile_seconds(parts, config.tile, device, busiest, 1.1 * min(steps, view.k) * max(share, 0.1))
    if ranges > 1:
        seconds += SUM_LAUNCH + 2 * workspace(problem, device, config) / device.bandwidth
    return seconds


@functools.cache
def kernel(config):
    """One tile of one group and class a block, or its part in a range of k."""
    tile, output, partial = config.tile, config.output, config.partial
    BM, BN, RING = tile.bm, tile.bn, _bytes(config)[0]
    by_pixel, accumulator = output.op == "conv_bwd_filter", output.epilogue.accumulator
    source_left = not (output.swap or by_pixel)
    functions = make_gather(output.op, output.channel_inner, output.has_classes)
    setup, source_base, plain_base = functions.setup, functions.source_base, functions.plain_base
    _, left, right = loaders_of(config)
    run = 2 if config.dtype == "float64" else 4
    sink = make_sums(run, accumulator) if partial else make_store(output, run)
    product = make_tile_product(tile, Operands(config.dtype, (), (), config.edge), left, right, sink)

    @device_function
    def multiply(source, plain, m, n, first, end, row, column, v, geo, shared, state):
        table = u32(shared + u32(RING))
        p, q = advance(source, source_base(v, geo)), advance(plain, plain_base(v, geo))
        a = (p if source_left else q, row, i32(m - 1), table, first, end, v, geo)
        b = (q if source_left else p, column, i32(n - 1), table, first, end, v, geo)
        product(a, b, first, end, m, row, column, shared, state)

    if partial:
        @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
        def conv_implicit_gemm_partial(source, plain, sums, m, n, range_k, pitch, products, shape, window, source_strides, plain_strides,
                                       pixel_divisors, tap_divisors, classes, class_divisors, tiles, band_tiles, tiles_m, last_rows):
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
        return conv_implicit_gemm_partial

    @cuda.jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_implicit_gemm(source, plain, y, m, n, shape, window, source_strides, plain_strides, pixel_divisors, tap_divisors, classes,
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
    return conv_implicit_gemm


def build(problem, device, config):
    """One launch, a block a tile; or the products over ranges, then their sum."""
    view, tile = view_of(problem), config.tile
    full = _configured(view, tile)
    each, ranges = _range(view, config)
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
    product = Launch(kernel(full), (tiles_m * tiles_n * view.products, ranges, 1), (tile.threads, 1, 1), arguments, shared=_bytes(full)[1])
    return (product, sum_launch(view, full.output, m, n, ranges)) if ranges > 1 else (product,)


ALGORITHMS = tuple(Algorithm(op=op, name="implicit_gemm", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
