"""Backward filter by Stream-K: each multiprocessor has as many steps of 64 pixels as any other, whatever the number of tiles.

`implicit_gemm_wgmma` gives each block whole tiles, or equal slices of the pixels. 144 tiles on 132 multiprocessors take two waves for the
work of 1.09; 72 of them in three slices take two waves for 1.64, and in eleven slices their sums would take longer than the products. Here

    more tiles than blocks    full waves of tiles go straight to dw; the steps of the rest, one tile after the other, are a line that is cut
                              into as many equal parts as there are blocks
    fewer                     each tile's first steps are one block's, all at the same pixels at a time, which the L2 has; what is left of
                              all tiles is a line for the other blocks

A part may end one tile and begin the next. Partial sums are in the workspace as [contributor][tile][row][column]. A second launch adds them
in their order, of each tile as many as it has.

One group, dw as a packed matrix. It wins where the last wave is poorly filled and there are many pixels.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, jit, u32
from ..device.dependent import wait_for_previous_grid
from ..device.epilogue import EpilogueSpec
from ..device.index import Divisor, ceil_div, divide_remainder, divisor
from ..device.scheduler import locate_in_bands
from ..device.tma import tensor_map_address
from ..device.vec import shared_address
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost, overlap
from ..engine.hopper import ROW, Tile, make_product
from ..engine.hopper_plan import (TILES, MatmulOutput, Specialisation, WorkTile, locate_arguments, make_epilogue_params, make_sink,
                                  output_arguments, product_seconds, steps_of, store_argument, stored_by_tma, sum_seconds, tile_count,
                                  y_argument)
from ..engine.hopper_stores import make_boxed_store
from ..engine.roles import store_width
from ..engine.split_k import THREADS, groups_for, make_add_ranges, make_position
from ..engine.stores import make_group_store
from ..host.launch import Argument, Launch
from ..host.memo import remembered
from . import conv_bwd_filter_implicit_gemm_wgmma as whole_tiles
from ._filter_wgmma import (FilterColumns, gradient, image_map, make_filter_loader, make_filter_locate, named, padded, place_arguments,
                            shape_of, spatial_dims)

COST, SHARED, TIMED = constants("conv/filter_wgmma"), constants("conv/stream_k"), constants("engine/hopper")

LEAST_STEPS = 2    # of a part
MOST_WAVES = 4     # of which a last one that is not full matters
VECTOR = 4         # sums in 16 bytes


@dataclass(frozen=True)
class Config:
    """Tile, channels of a box of x, blocks that share the steps."""
    tile: Tile
    width: int
    blocks: int

    def __str__(self):
        return f"{self.tile} {self.width} channels {self.blocks} blocks"


class Shares(NamedTuple):
    """How the steps of all tiles are shared. Host side.

    `whole` tiles are computed as a whole, in `waves` of as many as there are blocks; or the first `head` steps of each tile are a part.
    The other `length` steps of the other `rest` tiles are a line of parts of `each` steps, for `blocks` blocks. A block has up to `pieces`
    tiles in its part, a tile up to `slots` contributors.
    """
    waves: int
    whole: int
    head: int
    rest: int
    length: int
    blocks: int
    each: int
    pieces: int
    slots: int


@functools.lru_cache(maxsize=1024)
def shares_of(tiles, steps, blocks):
    """The `Shares`; None where there is nothing to divide, or too little."""
    if tiles >= blocks:
        waves, head, rest, others = tiles // blocks, 0, tiles % blocks, blocks
    else:
        waves, head, rest, others = 0, ceil_div(tiles * steps, blocks), tiles, blocks - tiles
    length = steps - head
    each = ceil_div(rest * length, others)
    if not rest or each < LEAST_STEPS or length < 1:
        return None
    others = ceil_div(rest * length, each)  # all of which have something
    contributors = max(_met(t * length, length, each) for t in range(rest))
    pieces = max(_met(b * each, min(each, rest * length - b * each), length) for b in range(others))
    return Shares(waves, waves * blocks, head, rest, length, others, each, pieces, contributors + (head > 0))


def _met(begin, count, part):
    """Parts of a line that so many steps of it meet."""
    return (begin + count - 1) // part - begin // part + 1


@remembered
def _width(problem):
    """Channels of a box that no tap has to be padded for, or None."""
    return next((w for w in whole_tiles._widths(problem) if padded(problem.c_group, w) == problem.c_group), None)


def supports(problem):
    """What `implicit_gemm_wgmma` supports, of one group, without a program, where dw is a matrix of whole boxes of channels."""
    p = problem
    reason = whole_tiles.supports(p)
    if reason:
        return reason
    if p.groups > 1 or p.prologue_a is not None:
        return f"{p.groups} groups, image made by {p.prologue_a}; expected one group, and none"
    if _width(p) is None or whole_tiles._matrix(p) is None:
        return f"dw has strides {p.w.strides}, {p.c} channels; expected a matrix of rows of filters, and a multiple of 8 channels"
    steps = steps_of(p.pixels, 2)
    if steps < 4 * LEAST_STEPS:
        return f"{p.pixels} pixels are {steps} steps; expected {4 * LEAST_STEPS} at least"
    if steps * tile_count(shape_of(p, 64), Tile(64, 64)) >= 2 ** 31:
        return f"{steps} steps of all tiles; the limit is 2**31"
    return None


def _shares(problem, config):
    shape = shape_of(problem, config.width)
    return shares_of(tile_count(shape, config.tile), steps_of(problem.pixels, 2), config.blocks)


def configs(problem, device):
    """Tiles whose last wave leaves a part of the device idle, or that are too few for it; one for any device where there are none."""
    found, width, steps = {}, _width(problem), steps_of(problem.pixels, 2)
    shape, tiles = shape_of(problem, width), [t for t in TILES if t.cluster == 1 and t.bn % 64 == 0]
    for tile in tiles:
        count, slots = tile_count(shape, tile), device.sms * tile.blocks
        last = count % slots / slots
        if (count * 2 > slots if count < slots else count < MOST_WAVES * slots and last < 0.85) and shares_of(count, steps, slots):
            found[Config(tile, width, slots)] = None
    if not found:
        tile = Tile(64, 64)
        count = tile_count(shape, tile)
        blocks = next(n for n in (max(count - 1, 2), count + 1, *range(2, 64)) if shares_of(count, steps, n))
        found[Config(tile, width, blocks)] = None
    return list(found)


def workspace(problem, device, config):
    """A float32 partial sum for each element and contributor of the tiles that are divided."""
    shares, tile = _shares(problem, config), config.tile
    return shares.slots * shares.rest * tile.bm * tile.bn * 4


def estimate(problem, device, config):
    """One wave of all steps of a block, the ends of its tiles, or what its stages take to come from the L2; then the launch of the sums."""
    shape, tile, shares = shape_of(problem, config.width), config.tile, _shares(problem, config)
    steps = steps_of(problem.pixels, 2) * shares.waves + max(shares.each, shares.head)
    _, further, _ = TILES[tile]
    ends = (shares.waves + max(0, min(shares.pieces, 2) - 1)) * further * 1e-6 * (TIMED.clock / device.clock_hz)
    product = product_seconds(whole_tiles._Sizes(problem.x, problem.bytes), tile, device, config.blocks, steps) + Cost(waves=ends)
    step = (tile.bm + tile.bn) * ROW
    read = step * steps * config.blocks / min(tile_count(shape, tile), config.blocks) ** 0.5
    line = step * shares.each * shares.blocks / SHARED.line if shares.head else 0.0
    work = overlap(product, Cost(launch=COST.start, l2=max(read / (COST.l2 * device.sms * device.clock_hz), line)))
    return work + sum_seconds(workspace(problem, device, config), device)


class Stream(NamedTuple):
    """`Shares` as the kernel takes them: blocks of a wave, waves of whole tiles, tiles that have a head, its steps, whole tiles, steps of
    a part, of the line, of a tile in it; tiles that are divided."""
    blocks: Divisor
    waves: i32
    heads: i32
    head: i32
    whole: i32
    each: Divisor
    line: i32
    length: Divisor
    rest: i32


@device_function
def _contributors(divided, stream):
    """Of the tile with this number among those that are divided: (the first block in the line, how many there are)."""
    length = i32(stream.length[0])
    passed = divided * length
    first = divide_remainder(passed, stream.each)[0]
    last = divide_remainder(passed + length - 1, stream.each)[0]
    return first, last - first + 1 + min(stream.heads, 1)


@functools.cache
def _make_work(tile):
    """Device function ``locate(t, rank, (bands, stream, steps))``: the `WorkTile` number t, whose slice is its contributor's number, -1 of
    a whole tile, and whose `z` is its number among those that are divided."""
    BM, BN = tile.bm, tile.bn

    @device_function
    def locate(t, rank, place):
        (band_tiles, super_rows, last_rows), stream, steps = place
        piece, block = divide_remainder(t, stream.blocks)
        zero = i32(0)
        index, divided, slot, first, end = t, zero, zero - 1, zero, steps
        if piece >= stream.waves:
            each, length = i32(stream.each[0]), i32(stream.length[0])
            block = block - stream.heads
            if block < 0:
                divided, slot, end = block + stream.heads, zero, stream.head if piece == 0 else zero
            else:
                begin = block * each
                divided = divide_remainder(begin, stream.length)[0] + (piece - stream.waves)
                passed = divided * length
                earlier, _ = _contributors(divided, stream)
                first = max(begin - passed, 0)
                end = max(min(min(begin + each, stream.line) - passed, length), first) + stream.head
                first = first + stream.head
                slot = block - earlier + min(stream.heads, 1)
            index = stream.whole + divided
        r, c = locate_in_bands(index, band_tiles, super_rows, last_rows)
        return WorkTile(first, end, r * BM, c * BN, 0, 0, divided, slot)
    return locate


@functools.cache
def kernel(special, width, dims, whole):
    """Whole tiles, if there are any, to dw, parts of others to the workspace, one persistent launch."""
    tile = special.tile
    whole_sink = make_sink(special) if whole else None
    store, BM, BN = make_boxed_store(tile, EpilogueSpec(accumulator="float32", output="float32")), tile.bm, tile.bn

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        sums_map, rest, of_y = out
        if whole and tile.k_slice < 0:
            whole_sink(acc, first, offset, y_map, staging, tile, thread, barrier, of_y)
        else:
            store(acc, first, sums_map, staging, offset, 0, tile.k_slice * rest + tile.z, thread, barrier, BM, BN, (), (), ())
    dtype = special.operands[0]
    product = make_product(tile, make_filter_loader(tile, dtype, width, dims), make_filter_locate(tile, width, _make_work(tile)), sink)

    @jit(launch_bounds=(tile.threads, tile.blocks))
    def conv_bwd_filter_stream_k(dy, x, dw_map, sums, work, band_tiles, super_rows, last_rows, stream, steps, columns, window, y, y_row,
                                 y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c,
                                 c_row_stride, c_column_stride, extras):
        shared = cuda.shared.array(0, u32)
        product(tensor_map_address(dy), tensor_map_address(x), tensor_map_address(dw_map), shared_address(shared, 0), work,
                (((band_tiles, super_rows, last_rows), stream, steps), columns, window),
                (tensor_map_address(sums), stream.rest,
                 MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride,
                              c, c_row_stride, c_column_stride, extras)))
    return conv_bwd_filter_stream_k


@functools.cache
def sum_kernel(tile, spec, groups, vector):
    """dw = epilogue(sum over the contributors) for the divided tiles, 16 bytes of a row of one tile a thread."""
    BM, BN = tile.bm, tile.bn
    add_ranges, position = make_add_ranges(groups, VECTOR, f32), make_position(groups, VECTOR)
    store, epilogue_params = make_group_store(spec, VECTOR, vector), make_epilogue_params(spec)

    @jit(launch_bounds=(THREADS, 2))
    def conv_bwd_filter_stream_k_sum(sums, elements, area, width, stream, band_tiles, super_rows, last_rows, y, y_row, y_column,
                                     y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias, bias_stride, c,
                                     c_row_stride, c_column_stride, extras):
        acc = cuda.local.array(VECTOR, f32)
        wait_for_previous_grid()
        at, mine = position(elements)
        divided, inside = divide_remainder(at, area)
        line, across = divide_remainder(inside, width)
        r, t = locate_in_bands(stream.whole + divided, band_tiles, super_rows, last_rows)
        row, column = r * BM + line, t * BN + across
        e = epilogue_params(MatmulOutput(y, y_row, y_column, y_batch, m, n, scale_a, scale_b, scale_strides, c_batch, alpha, beta, bias,
                                         bias_stride, c, c_row_stride, c_column_stride, extras), 0)
        _, count = _contributors(divided, stream)  # of all threads the same, since tiles are whole numbers of blocks
        add_ranges(acc, sums, elements, count)
        if mine and row < m and column < n:
            store(acc, 0, row, column, n, y, row * y_row + column * y_column, y_column, e)
    return conv_bwd_filter_stream_k_sum


def build(problem, device, config):
    """The whole tiles and parts of tiles, the sums of the parts."""
    p, tile, width, shares = problem, config.tile, config.width, _shares(problem, config)
    shape, dy, parts = shape_of(p, width), gradient(p), whole_tiles._matrix(p)
    tiles, (_, _, *bands, _, _, steps, _) = locate_arguments(shape, tile, dy, dy)
    columns, window = place_arguments(p, width)
    columns = Argument(FilterColumns, columns.value._replace(filters=0, channels=0))  # z is no group here
    by_tma = stored_by_tma(parts)
    special = Specialisation(tile, (p.dtype, p.dtype, "mn", "mn"), parts.epilogue, by_tma, not by_tma and store_width(parts, 2) == 2)
    dy_map, x_map, output = dy.argument(64, 0), Argument("tensormap", "x", spec=image_map(p, width)), named(output_arguments(parts))
    sums = store_argument("workspace", "float32", (shares.slots * shares.rest, tile.bm, tile.bn), (tile.bm * tile.bn, tile.bn, 1))
    heads = shares.rest if shares.head else 0
    blocks = config.blocks if shares.waves else heads + shares.blocks
    stream = Stream(divisor(blocks), shares.waves, heads, shares.head, shares.whole, divisor(shares.each), shares.rest * shares.length,
                    divisor(shares.length), shares.rest)
    work = blocks * (shares.waves + shares.pieces)
    arguments = (dy_map, x_map, *(named((y_argument(parts),)) if by_tma else (x_map,)), sums, Argument("int32", work), *bands,
                 Argument(Stream, stream), steps, columns, window, *output)
    product = Launch(kernel(special, width, spatial_dims(p), shares.whole > 0), (min(work, blocks), 1, 1), (tile.threads, 1, 1), arguments,
                     shared=tile.shared, dependent=True)
    groups, elements = groups_for(shares.slots), shares.rest * tile.bm * tile.bn
    arguments = (Argument("float32*", "workspace"), Argument("int32", elements), Argument("uint32x3", divisor(tile.bm * tile.bn)),
                 Argument("uint32x3", divisor(tile.bn)), Argument(Stream, stream), *bands, *output)
    total = Launch(sum_kernel(tile, parts.epilogue, groups, store_width(parts, VECTOR) > 1),
                   (ceil_div(elements, THREADS // groups * VECTOR), 1, 1), (THREADS, 1, 1), arguments, dependent=True)
    return product, total


ALGORITHM = Algorithm(op="conv_bwd_filter", name="stream_k", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_90a")
