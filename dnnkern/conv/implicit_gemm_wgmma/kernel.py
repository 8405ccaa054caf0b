"""Implicit GEMM on Hopper's tensor cores: coordinates of a tile, TMA loads of a step, stores of the result; the main loop is
`engine.hopper`'s.

Rows of the product are output pixels, columns output channels; a step of k is a tap and 128 bytes of its channels. Axes are in the order
w, h, d. Counters go from step to step without a division.

Results are stored in one of four ways: evenly spaced rows through shared memory and TMA ("tma"), or where TMA cannot and a program runs, as
of 8-bit floats, from registers ("matrix"); other rows through shared memory and 16-byte stores ("rows"), everything else from registers,
each row by its own offset ("direct").
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...device import cuda, device_function, i32, i64, u32
from ...device.barrier import barrier_sync
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ProgramParams, ResidualParams
from ...device.index import Divisor, ceil_div, divide, divide_remainder
from ...device.program_batches import make_placed
from ...device.scheduler import locate_in_bands, locate_in_rows
from ...device.tma import make_tma_load
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load_shared_4u32, store4
from ...engine.hopper import GROUP, ITEMSIZE, ROW, Loader, Tile
from ...engine.hopper_stores import kept_states, make_boxed_store, make_direct_store, make_fill
from ...engine.stores import make_group_store
from ...engine.tile_states import reduces

if TYPE_CHECKING:
    from ...engine.prologues import Made


class PixelTile(NamedTuple):
    """A tile of the result, and what it reads; three numbers are along w, h, d.

    Steps of k; first pixel and column; the group; its first channel and the end of its channels; the pixel's image and coordinates; taps;
    the first tap in the filter, and the step to the next; the same in pixels; the residue class; channels and columns of a group.
    """
    k_begin: i32
    k_end: i32
    row: i32
    column: i32
    group: i32
    channel: i32
    channel_end: i32
    image: i32
    pixel: "int32x3"  # noqa: F821
    taps: "int32x3"  # noqa: F821
    tap: "int32x3"  # noqa: F821
    tap_step: "int32x3"  # noqa: F821
    offset: "int32x3"  # noqa: F821
    offset_step: "int32x3"  # noqa: F821
    residue: "int32x3"  # noqa: F821
    group_channels: i32
    group_columns: i32


class WalkAxis(NamedTuple):
    """An `Axis` as the kernel needs it; `shift` and `base` are those of its residue classes, see `Axis.class_of`."""
    lower: i32
    step: i32
    taps: i32
    first_tap: i32
    tap_step: i32
    first_offset: i32
    offset_step: i32
    filter: i32
    dilation: i32
    shift: i32
    base: i32
    flip: i32


class Walk(NamedTuple):
    """Channels and columns of a group, a channel past the last, steps per tap; the axes along w, h, d; divisors by their positions, and by
    pitch and period of their residue classes."""
    group_channels: i32
    group_columns: i32
    channels_end: i32
    steps_per_tap: i32
    w: WalkAxis
    h: WalkAxis
    d: WalkAxis
    count_w: Divisor
    count_h: Divisor
    count_d: Divisor
    pitch_w: Divisor
    period_w: Divisor
    pitch_h: Divisor
    period_h: Divisor
    pitch_d: Divisor
    period_d: Divisor


class TileDivisors(NamedTuple):
    """Tiles of a residue class, of a group and of a band of rows; rows of tiles, and of the last band."""
    per_class: Divisor
    per_group: Divisor
    band_tiles: Divisor
    rows: i32
    last_rows: Divisor


@dataclass(frozen=True)
class Specialisation:
    """What a kernel is compiled for.

    Attributes
    ----------
    tile : Tile
    dtype, filter_dtype : str
        As `device.wgmma` calls them.
    filter_major : "k" or "mn"
    dims : int
        Spatial dimensions.
    classes : bool
        Whether there are several residue classes of pixels.
    groups : "outer", "inner" or None
        The filter's dimension along which groups follow each other: columns or k.
    epilogue : EpilogueSpec
    store : "tma", "rows", "matrix" or "direct"
    vector : bool
        Whether two columns are one vector store.
    staged : str, int or None
        The array that is loaded through shared memory, see `staged_addend`.
    pairs : tuple
        What is loaded in pairs of columns, see `paired_columns`.
    by_ring, ahead : bool
        Whether `staged` comes through the main loop's ring, see `hopper_addend`, and `pairs` with the tile's last products.
    keeps : bool
        Whether blocks keep states of reductions from tile to tile, see `tile_states.keeping`.
    made : Made or None
        What the image is made of in registers, with the operands that come in pairs of channels, and whether channels end within a step.
    """
    tile: Tile
    dtype: str
    filter_dtype: str
    filter_major: str
    dims: int
    classes: bool
    groups: str | None
    epilogue: EpilogueSpec
    store: str
    vector: bool
    staged: str | int | None = None
    pairs: tuple = ()
    by_ring: bool = False
    ahead: bool = False
    keeps: bool = False
    made: "Made | None" = None
    made_pairs: tuple = ()
    made_edge: bool = False


@functools.cache
def make_locate(special):
    """Device function ``locate(t, rank, (tiles, walk))`` for `make_product`: the `PixelTile` number t. Tiles are in the order of residue
    classes, groups, bands of rows or, where blocks keep states, rows."""
    tile, classes, grouped = special.tile, special.classes, special.groups is not None
    CLUSTER, BM, BN = tile.cluster, tile.bm, tile.bn
    TWO_D, THREE_D, locate_tile = special.dims > 1, special.dims > 2, locate_in_rows if special.keeps else locate_in_bands

    @device_function
    def residue_class(number, axis, pitch, period):
        """(residue, taps, first tap, first offset), see `Axis.class_of`."""
        if not classes:
            return 0, axis.taps, axis.first_tap, axis.first_offset
        a, first = divide_remainder(number, period)
        quotient, residue = divide_remainder(first * axis.dilation + a + axis.shift, pitch)
        taps = divide(max(axis.filter - first, 0) + i32(period.d) - 1, period)
        return residue, 0 if a > 0 else taps, axis.filter - 1 - first if axis.flip else first, axis.base - quotient

    @device_function
    def locate(t, rank, place):
        rank = cuda.blockIdx.x & (CLUSTER - 1)  # the same value, but the compiler knows that it is uniform
        tiles, walk = place
        number, group, inside = 0, 0, t
        if classes:
            number, inside = divide_remainder(inside, tiles.per_class)
        if grouped:
            group, inside = divide_remainder(inside, tiles.per_group)
        r, c = locate_tile(inside, tiles.band_tiles, tiles.rows, tiles.last_rows)
        pixel = (r * CLUSTER + rank) * BM

        # residue class along each axis
        class_w, class_h, class_d = number, 0, 0
        if classes and TWO_D:
            class_h, class_w = divide_remainder(number, walk.pitch_w)
        if classes and THREE_D:
            class_d, class_h = divide_remainder(class_h, walk.pitch_h)

        # coordinates, taps and offsets along each axis
        h, d, taps_h, taps_d, tap_h, tap_d = 0, 0, 1, 1, 0, 0
        offset_h, offset_d, residue_h, residue_d = 0, 0, 0, 0
        image, i = divide_remainder(pixel, walk.count_w)
        residue_w, taps_w, tap_w, offset_w = residue_class(class_w, walk.w, walk.pitch_w, walk.period_w)
        w = walk.w.lower + i * walk.w.step
        if TWO_D:
            image, i = divide_remainder(image, walk.count_h)
            residue_h, taps_h, tap_h, offset_h = residue_class(class_h, walk.h, walk.pitch_h, walk.period_h)
            h = walk.h.lower + i * walk.h.step
        if THREE_D:
            image, i = divide_remainder(image, walk.count_d)
            residue_d, taps_d, tap_d, offset_d = residue_class(class_d, walk.d, walk.pitch_d, walk.period_d)
            d = walk.d.lower + i * walk.d.step
        first, steps = 0, taps_w * taps_h * taps_d * walk.steps_per_tap
        if classes and steps == 0:  # no tap: one step that reads zeros past the last channel
            first, steps = walk.channels_end, 1
            tap_w, tap_h, tap_d, offset_w, offset_h, offset_d = 0, 0, 0, 0, 0, 0
        return PixelTile(0, steps, pixel, c * BN, group, first, first + walk.group_channels, image, (w, h, d), (taps_w, taps_h, taps_d),
                         (tap_w, tap_h, tap_d), (walk.w.tap_step, walk.h.tap_step, walk.d.tap_step), (offset_w, offset_h, offset_d),
                         (walk.w.offset_step, walk.h.offset_step, walk.d.offset_step), (residue_w, residue_h, residue_d),
                         walk.group_channels, walk.group_columns)
    return locate


@functools.cache
def make_loader(special):
    """`Loader` of image pixels by im2col TMA and of boxes of the filter; its state is (channel, tap along w, h, d)."""
    tile, dims, by_k = special.tile, special.dims, special.filter_major == "k"
    GROUPED, ALONG_INNER, ALONG_OUTER = special.groups is not None, special.groups == "inner", special.groups == "outer"
    BK, CLUSTER, SHARE, MASK = ROW // ITEMSIZE[special.dtype], tile.cluster, tile.bn // tile.cluster, (1 << tile.cluster) - 1
    BOXES, TWO_D, THREE_D, MULTICAST = ceil_div(SHARE, 64), dims > 1, dims > 2, CLUSTER > 1
    if MULTICAST and not by_k and SHARE % 64:
        raise ValueError(f"a filter contiguous along columns is shared in boxes of 64; {SHARE} is no multiple")
    pixels, box = make_tma_load(dims + 2, im2col=True), make_tma_load(dims + 2, multicast=MULTICAST)

    @device_function
    def copy_pixels(to, a_map, bar, c, tile, o0, o1, o2):
        if THREE_D:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.pixel[1], tile.pixel[2], tile.image, o0, o1, o2)
        elif TWO_D:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.pixel[1], tile.image, o0, o1)
        else:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.image, o0)

    @device_function
    def copy_box(to, b_map, bar, inner, t0, t1, t2, outer):
        if MULTICAST:
            if THREE_D:
                box(to, b_map, bar, inner, t0, t1, t2, outer, MASK)
            elif TWO_D:
                box(to, b_map, bar, inner, t0, t1, outer, MASK)
            else:
                box(to, b_map, bar, inner, t0, outer, MASK)
        elif THREE_D:
            box(to, b_map, bar, inner, t0, t1, t2, outer)
        elif TWO_D:
            box(to, b_map, bar, inner, t0, t1, outer)
        else:
            box(to, b_map, bar, inner, t0, outer)

    @device_function
    def first(tile, k):
        return tile.channel, 0, 0, 0

    @device_function
    def after(state, tile):
        c, j0, j1, j2 = state
        c = c + BK
        if c >= tile.channel_end:
            c = tile.channel
            j0 = j0 + 1
            if TWO_D and j0 == tile.taps[0]:
                j0 = 0
                j1 = j1 + 1
                if THREE_D and j1 == tile.taps[1]:
                    j1 = 0
                    j2 = j2 + 1
        return c, j0, j1, j2

    @device_function
    def load(to_a, to_b, a_map, b_map, bar, tile, rank, state):
        c, j0, j1, j2 = state
        rank = cuda.blockIdx.x & (CLUSTER - 1)
        inner, outer = c, tile.column + rank * SHARE
        if GROUPED:
            c = c + tile.group * tile.group_channels
        if ALONG_INNER:
            inner = c
        if ALONG_OUTER:
            outer = outer + tile.group * tile.group_columns
        offset, step = tile.offset, tile.offset_step
        copy_pixels(to_a, a_map, bar, c, tile, offset[0] + j0 * step[0], offset[1] + j1 * step[1], offset[2] + j2 * step[2])
        t0, t1 = tile.tap[0] + j0 * tile.tap_step[0], tile.tap[1] + j1 * tile.tap_step[1]
        t2 = tile.tap[2] + j2 * tile.tap_step[2]
        share = to_b + u32(rank) * (SHARE * ROW)
        if by_k:
            copy_box(share, b_map, bar, inner, t0, t1, t2, outer)
        else:
            for n in range(BOXES):
                copy_box(share + u32(n * GROUP), b_map, bar, outer + n * 64, t0, t1, t2, inner)
    columns = tile.bn if by_k else tile.bn + -tile.bn % 64
    return Loader(load, "k", special.filter_major, special.dtype, special.filter_dtype, (tile.bm + columns) * ROW, first=first, after=after)


class OutputPixels(NamedTuple):
    """Pixels of a residue class and the walk; pixels from one position to the next and extents of the result along w, h, d; strides of
    result and residual along w, h, d, n."""
    count: i32
    walk: Walk
    pitch: "int32x3"  # noqa: F821
    extent: "int32x3"  # noqa: F821
    strides: tuple
    residual_strides: tuple


@functools.cache
def make_find(special):
    """Device function ``find(row, tile, pixels)``: (whether a row is a pixel of the result, its offset in the result and in the residual).

    `pixels` is an `OutputPixels`. Rows that do not exist get the offsets of one that does.
    """
    classes, TWO_D, THREE_D = special.classes, special.dims > 1, special.dims > 2
    Offset = i64 if special.epilogue.wide else i32

    @device_function
    def along(i, residue, pitch, extent, stride, residual_stride):
        x = residue + i * pitch
        inside = x < extent
        if classes:
            x = min(x, extent - 1)
        return inside, Offset(x) * stride, Offset(x) * residual_stride

    @device_function
    def find(row, tile, pixels):
        walk, pitch, extent = pixels.walk, pixels.pitch, pixels.extent
        stride_w, stride_h, stride_d, stride_n = pixels.strides
        residual_w, residual_h, residual_d, residual_n = pixels.residual_strides
        exists = row < pixels.count
        image, i = divide_remainder(min(row, pixels.count - 1), walk.count_w)
        inside, at, residual_at = along(i, tile.residue[0], pitch[0], extent[0], stride_w, residual_w)
        exists = exists and inside
        if TWO_D:
            image, i = divide_remainder(image, walk.count_h)
            inside, a, b = along(i, tile.residue[1], pitch[1], extent[1], stride_h, residual_h)
            exists, at, residual_at = exists and inside, at + a, residual_at + b
        if THREE_D:
            image, i = divide_remainder(image, walk.count_d)
            inside, a, b = along(i, tile.residue[2], pitch[2], extent[2], stride_d, residual_d)
            exists, at, residual_at = exists and inside, at + a, residual_at + b
        return exists, at + Offset(image) * stride_n, residual_at + Offset(image) * residual_n
    return find


@functools.cache
def make_rows_store(special):
    """Device function ``store(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels)`` for 64 rows of results.

    Results of 16 or 32 bits in 16-byte vectors: epilogue, registers to swizzled boxes of 64 rows by 128 bytes, from there a quarter of a
    warp per row. The epilogue gets a row's offset in the result as the row's number.
    """
    tile, spec, find = special.tile, special.epilogue, make_find(special)
    itemsize = element(spec.output).storage.itemsize
    PER, WIDTH = 16 // itemsize, ROW // itemsize
    BOXES, LAST = ceil_div(tile.bn, WIDTH), tile.bn - WIDTH
    BUFFERS = max(count for count in range(1, tile.buffers + 1) if BOXES % count == 0)
    fill, ALONE, ADDS = make_fill(spec), BUFFERS == 1, spec.c is not None

    @device_function
    def store_vector(y, at, exists, line):
        if exists:
            store4(as_u32(advance(y, at)), 0, load_shared_4u32(line))

    @device_function
    def store_box(box, s):
        acc, first, staging, r0, r1, column, thread, barrier, n, e, y, (exist0, exist1, exist2, exist3), (at0, at1, at2, at3) = s
        lane, warp = thread & 31, thread >> 5
        start = min(WIDTH * box, LAST)
        buffer = staging + u32(box % BUFFERS * GROUP)
        if ADDS and column + start >= n:
            return  # the addend may be the result itself, which other blocks write
        if ALONE:
            barrier_sync(barrier, 128)
        fill(acc, first + (start >> 1), buffer, r0, r1, column + (lane & 3) * 2 + start, lane, warp, n, e, acc, 0, buffer)
        barrier_sync(barrier, 128)  # with two buffers also before this one is filled again
        chunk = thread & 7
        c, line = column + start + chunk * PER, buffer + u32(thread >> 3) * ROW
        line = line + u32((chunk ^ ((thread >> 3) & 7)) * 16)
        if c < n:
            y = advance(y, c)
            store_vector(y, at0, exist0, line)
            store_vector(y, at1, exist1, line + 16 * ROW)
            store_vector(y, at2, exist2, line + 32 * ROW)
            store_vector(y, at3, exist3, line + 48 * ROW)
    store_boxes = unrolled(BOXES, store_box)

    @device_function
    def store(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels):
        if ADDS and row >= pixels.count:
            return
        # rows that this thread stores
        r = row + (thread >> 3)
        exist0, at0, _ = find(r, tile, pixels)
        exist1, at1, _ = find(r + 16, tile, pixels)
        exist2, at2, _ = find(r + 32, tile, pixels)
        exist3, at3, _ = find(r + 48, tile, pixels)
        # rows of its accumulators
        r = row + ((thread >> 5) << 4) + ((thread & 31) >> 2)
        _, r0, _ = find(r, tile, pixels)
        _, r1, _ = find(r + 8, tile, pixels)
        store_boxes(0, (acc, first, staging, r0, r1, column, thread, barrier, n, e, y, (exist0, exist1, exist2, exist3),
                        (at0, at1, at2, at3)))
    return store


@functools.cache
def make_pixel_store(special):
    """Device function ``store(acc, first, row, column, tile, thread, n, e, y, y_column, pixels)`` for 64 rows of any results.

    Pairs of columns directly from registers; each row has its own offset in result and residual.
    """
    find, pair, COUNT = make_find(special), make_group_store(special.epilogue, 2, special.vector), special.tile.bn // 8

    @device_function
    def store_columns(j, s):
        acc, first, exists0, exists1, c0, n, y0, y1, y_column, e0, e1 = s
        c = c0 + j * 8
        at = c * y_column
        if exists0:
            pair(acc, first + 4 * j, 0, c, n, y0, at, y_column, e0)
        if exists1:
            pair(acc, first + 4 * j + 2, 0, c, n, y1, at, y_column, e1)
    store_all = unrolled(COUNT, store_columns)

    @device_function
    def store(acc, first, row, column, tile, thread, n, e, y, y_column, pixels):
        lane, warp = thread & 31, thread >> 5
        r = row + warp * 16 + (lane >> 2)
        exists0, at0, residual0 = find(r, tile, pixels)
        exists1, at1, residual1 = find(r + 8, tile, pixels)
        alpha, beta, bias, bias_stride, prior, _, prior_column, residual, _, residual_column, _ = e
        e0 = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at0), 0, prior_column, advance(residual, residual0), 0,
                            residual_column)
        e1 = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at1), 0, prior_column, advance(residual, residual1), 0,
                            residual_column)
        store_all(0, (acc, first, exists0, exists1, column + (lane & 3) * 2, n, advance(y, at0), advance(y, at1), y_column,
                      e0, e1))
    return store


@functools.cache
def make_epilogue_params(special):
    """Device function ``epilogue_params(tile, out)``: the epilogue's parameters for the tile's group, and its columns; see `make_sink`."""
    GROUPED, placed = special.groups is not None, make_placed(special.epilogue.program, 1)

    @device_function
    def epilogue_params(tile, out):
        n, _, _, y_group, bias_group, residual_group, _, e, _ = out
        z = tile.group
        alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column, extras = e
        if GROUPED:
            bias, prior, residual = advance(bias, z * bias_group), advance(prior, z * y_group), advance(residual, z * residual_group)
        return ProgramParams(alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column,
                             placed(extras, z, ())), n
    return epilogue_params


@functools.cache
def make_sink(special):
    """The sink of `engine.hopper.make_product`.

    `out`: columns of a group; the result and its stride along columns; strides of result, bias and residual from group to group; an
    `OutputPixels`; the epilogue's eleven arguments; the states of the program's reductions.
    """
    BY_TMA, BY_ROWS, IS_MATRIX = (special.store == kind for kind in ("tma", "rows", "matrix"))
    GROUPED = special.groups is not None
    store_by_tma = make_boxed_store(special.tile, special.epilogue, staged=special.staged, pairs=special.pairs,
                                    by_ring=special.by_ring, ahead=special.ahead, keeps=special.keeps) if BY_TMA else None
    store_by_rows = make_rows_store(special) if BY_ROWS else None
    store_matrix = make_direct_store(special.tile, special.epilogue, special.vector, special.keeps) if IS_MATRIX else None
    store_direct = None if BY_TMA or BY_ROWS or IS_MATRIX else make_pixel_store(special)
    epilogue_params, REDUCES = make_epilogue_params(special), reduces(special.epilogue)

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out, stages=None, group=0, columns=None, own=None):
        n, y, y_column, y_group, _, _, pixels, _, states = out
        row, column, z = tile.row + offset, tile.column, tile.group
        if GROUPED:
            y = advance(y, z * y_group)
        e, _ = epilogue_params(tile, out)
        if BY_TMA:
            store_by_tma(acc, first, y_map, staging, row, column, z, thread, barrier, pixels.count, n, e, y, i64(0), stages, group, columns,
                         states if REDUCES else None, own)
        elif BY_ROWS:
            store_by_rows(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels)
        elif IS_MATRIX:
            store_matrix(acc, first, row, column, thread, pixels.count, n, e, y, 0, e.c_row_stride, y_column, z,
                         states if REDUCES else None, own)
        else:
            store_direct(acc, first, row, column, tile, thread, n, e, y, y_column, pixels)
    return sink


def make_kept(special):
    """`tile_states.KeptStates` for that sink, None where blocks keep none. Host function."""
    if not special.keeps:
        return None
    return kept_states(special.epilogue, special.tile, device_function(lambda tile, out: (tile.group, out[0], out[-1])))
