"""Device functions of convolutions as products on Hopper's tensor cores: which tile is where, what a step loads, how results leave.

Rows of the product are positions of the window, columns channels of the result, steps are taps and in each of them 128 bytes of
channels.
Of the axes the innermost comes first. A step is counters, found without a division.

Results leave in one of three ways: rows in one stride through shared memory and TMA ("tma"), rows anywhere through shared memory and
16-byte stores ("rows"), everything else straight from registers ("direct").
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, u32
from ...device.barrier import barrier_sync
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import ceil_div, divide, divide_remainder
from ...device.tma import make_tma_load
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load_shared_4u32, store4
from ...engine.hopper import GROUP, ITEMSIZE, ROW, Loader, Tile
from ...engine.hopper_stores import make_boxed_store, make_fill
from ...engine.simt import locate as locate_tile
from ...engine.stores import make_group_store


class PixelTile(NamedTuple):
    """A tile of the result, and where it reads; three numbers are one an axis.

    Steps of k; first pixel and column; the group; its first channel and the one after its last; the pixel's image and coordinates; taps;
    the first tap in the filter, and the step to the next; the same in pixels; the class's residue; channels and columns of a group.
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
        Axes of the walk.
    classes : bool
        Whether there are several classes of pixels.
    groups : "outer", "inner" or None
        Along which of the filter's dimensions groups follow each other, columns or what is summed over.
    epilogue : EpilogueSpec
    store : "tma", "rows" or "direct"
    vector : bool
        Whether two columns are one store.
    staged : str or None
        Which addend comes through shared memory, see `make_boxed_store`.
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
    staged: str | None = None


@functools.cache
def make_locate(special):
    """Device function ``locate(t, rank, place)`` for `make_product`: class by class, in each group by group, in each in bands of rows.

    `place`: divisors and numbers of tiles, of channels and of each axis, innermost first, as `conv_implicit_gemm_wgmma` passes them.
    """
    tile, classes, grouped = special.tile, special.classes, special.groups is not None
    CLUSTER, BM, BN = tile.cluster, tile.bm, tile.bn
    MIDDLE, OUTER = special.dims > 1, special.dims > 2

    @device_function
    def class_of(number, axis, divisors):
        """(residue, taps, first tap, first offset), see `Axis.class_of`."""
        lower, step, taps, tap, tap_step, offset, offset_step, filter, dilation, shift, base, flip = axis
        if not classes:
            return i32(0), taps, tap, offset
        pitch, period = divisors
        a, first = divide_remainder(number, period)
        quotient, residue = divide_remainder(first * dilation + a + shift, pitch)
        taps = divide(max(filter - first, 0) + i32(period[0]) - 1, period)
        return (residue, 0 if a > 0 else taps, filter - 1 - first if flip else first, base - quotient)

    @device_function
    def locate(t, rank, place):
        rank = cuda.blockIdx.x & (CLUSTER - 1)  # the same, but the compiler knows that no lane has another
        tiles, channels, axes, counts, divisors = place
        per_class, per_group, band_tiles, super_rows, last_rows = tiles
        group_channels, group_columns, beyond, steps_a_tap = channels
        number, z, inside = i32(0), i32(0), t
        if classes:
            number, inside = divide_remainder(inside, per_class)
        if grouped:
            z, inside = divide_remainder(inside, per_group)
        r, c = locate_tile(inside, band_tiles, super_rows, last_rows)
        pixel = (r * CLUSTER + rank) * BM
        number0, number1, number2 = number, i32(0), i32(0)
        at1, at2, taps1, taps2, tap1, tap2 = i32(0), i32(0), i32(1), i32(1), i32(0), i32(0)
        offset1, offset2, residue1, residue2 = i32(0), i32(0), i32(0), i32(0)
        if classes and MIDDLE:
            number1, number0 = divide_remainder(number, divisors[0][0])
        if classes and OUTER:
            number2, number1 = divide_remainder(number1, divisors[1][0])
        image, i0 = divide_remainder(pixel, counts[0])
        residue0, taps0, tap0, offset0 = class_of(number0, axes[0], divisors[0])
        at0 = axes[0][0] + i0 * axes[0][1]
        if MIDDLE:
            image, i1 = divide_remainder(image, counts[1])
            residue1, taps1, tap1, offset1 = class_of(number1, axes[1], divisors[1])
            at1 = axes[1][0] + i1 * axes[1][1]
        if OUTER:
            image, i2 = divide_remainder(image, counts[2])
            residue2, taps2, tap2, offset2 = class_of(number2, axes[2], divisors[2])
            at2 = i32(axes[2][0] + i2 * axes[2][1])
        first, steps = i32(0), taps0 * taps1 * taps2 * steps_a_tap
        if classes and steps == 0:  # no tap: a step that reads zeros where no channels are
            first, steps = beyond, i32(1)
            tap0, tap1, tap2, offset0, offset1, offset2 = i32(0), i32(0), i32(0), i32(0), i32(0), i32(0)
        return PixelTile(i32(0), steps, pixel, c * BN, z, first, first + group_channels, image, (at0, at1, at2), (taps0, taps1, taps2),
                         (tap0, tap1, tap2), (axes[0][4], axes[1][4], axes[2][4]), (offset0, offset1, offset2),
                         (axes[0][6], axes[1][6], axes[2][6]), (residue0, residue1, residue2), group_channels, group_columns)
    return locate


@functools.cache
def make_loader(special):
    """`Loader` of pixels of an image by im2col and boxes of the filter; its state is (channel, tap along each axis)."""
    tile, dims, by_k = special.tile, special.dims, special.filter_major == "k"
    GROUPED, ALONG_INNER, ALONG_OUTER = special.groups is not None, special.groups == "inner", special.groups == "outer"
    BK, CLUSTER, SHARE, MASK = ROW // ITEMSIZE[special.dtype], tile.cluster, tile.bn // tile.cluster, (1 << tile.cluster) - 1
    BOXES, MIDDLE, OUTER, MULTICAST = ceil_div(SHARE, 64), dims > 1, dims > 2, CLUSTER > 1
    if MULTICAST and not by_k and SHARE % 64:
        raise ValueError(f"a filter contiguous along columns is shared in boxes of 64; {SHARE} are no multiple")
    pixels, box = make_tma_load(dims + 2, im2col=True), make_tma_load(dims + 2, multicast=MULTICAST)

    @device_function
    def copy_pixels(to, a_map, bar, c, tile, o0, o1, o2):
        if OUTER:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.pixel[1], tile.pixel[2], tile.image, o0, o1, o2)
        elif MIDDLE:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.pixel[1], tile.image, o0, o1)
        else:
            pixels(to, a_map, bar, c, tile.pixel[0], tile.image, o0)

    @device_function
    def copy_box(to, b_map, bar, inner, t0, t1, t2, outer):
        if MULTICAST:
            if OUTER:
                box(to, b_map, bar, inner, t0, t1, t2, outer, u32(MASK))
            elif MIDDLE:
                box(to, b_map, bar, inner, t0, t1, outer, u32(MASK))
            else:
                box(to, b_map, bar, inner, t0, outer, u32(MASK))
        elif OUTER:
            box(to, b_map, bar, inner, t0, t1, t2, outer)
        elif MIDDLE:
            box(to, b_map, bar, inner, t0, t1, outer)
        else:
            box(to, b_map, bar, inner, t0, outer)

    @device_function
    def first(tile, k):
        return tile.channel, i32(0), i32(0), i32(0)

    @device_function
    def after(state, tile):
        c, j0, j1, j2 = state
        c = c + BK
        if c >= tile.channel_end:
            c = tile.channel
            j0 = j0 + 1
            if MIDDLE and j0 == tile.taps[0]:
                j0 = 0
                j1 = j1 + 1
                if OUTER and j1 == tile.taps[1]:
                    j1 = i32(0)
                    j2 = i32(j2 + 1)
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
        copy_pixels(to_a, a_map, bar, c, tile, u32(offset[0] + j0 * step[0]), u32(offset[1] + j1 * step[1]), u32(offset[2] + j2 * step[2]))
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


@functools.cache
def make_find(special):
    """Device function ``find(row, tile, pixels)``: (whether a row is a pixel of the result, where that is in it and in the residual).

    `pixels`: their number in a class, divisors by positions along each axis, pixels from one position to the next, extents of the result,
    strides of result and residual along the axes, innermost first, and the images. Rows that do not exist get the place of one that does.
    """
    classes, MIDDLE, OUTER = special.classes, special.dims > 1, special.dims > 2
    Offset = i64 if special.epilogue.wide else i32

    @device_function
    def along(i, residue, pitch, extent, stride, other):
        x = residue + i * pitch
        inside = x < extent
        if classes:
            x = min(x, extent - 1)
        return inside, Offset(Offset(x) * stride), Offset(Offset(x) * other)

    @device_function
    def find(row, tile, pixels):
        m, counts, pitches, extents, strides, others = pixels
        exists = row < m
        image, i = divide_remainder(min(row, m - 1), counts[0])
        inside, at, other = along(i, tile.residue[0], pitches[0], extents[0], strides[0], others[0])
        exists = exists and inside
        if MIDDLE:
            image, i = divide_remainder(image, counts[1])
            inside, a, b = along(i, tile.residue[1], pitches[1], extents[1], strides[1], others[1])
            exists, at, other = exists and inside, Offset(at + a), Offset(other + b)
        if OUTER:
            image, i = divide_remainder(image, counts[2])
            inside, a, b = along(i, tile.residue[2], pitches[2], extents[2], strides[2], others[2])
            exists, at, other = exists and inside, Offset(at + a), Offset(other + b)
        return exists, Offset(at + Offset(image) * strides[3]), Offset(other + Offset(image) * others[3])
    return find


@functools.cache
def make_rows_store(special):
    """Device function ``store(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels)`` for 64 rows of results.

    Results of 16 or 32 bits in pieces of 16 bytes: epilogue, registers to swizzled boxes of 64 rows by 128 bytes, from there a quarter of a
    warp a row. The epilogue is told a row's place in the result for its number.
    """
    tile, spec, find = special.tile, special.epilogue, make_find(special)
    itemsize = element(spec.output).storage.itemsize
    PER, WIDTH = 16 // itemsize, ROW // itemsize
    BOXES, LAST = ceil_div(tile.bn, WIDTH), tile.bn - WIDTH
    BUFFERS = max(count for count in range(1, tile.buffers + 1) if BOXES % count == 0)
    fill, ALONE, ADDS = make_fill(spec), BUFFERS == 1, spec.c is not None

    @device_function
    def put(y, place, exists, line):
        if exists:
            store4(as_u32(advance(y, place)), 0, load_shared_4u32(line))

    @device_function
    def store_box(box, s):
        acc, first, staging, r0, r1, column, thread, barrier, n, e, y, exist, places = s
        lane, warp = thread & 31, thread >> 5
        start = min(WIDTH * box, LAST)
        buffer = staging + u32(box % BUFFERS * GROUP)
        if ADDS and i32(column + start) >= n:
            return  # what would be added to nothing may be the result itself, which others write
        if ALONE:
            barrier_sync(barrier, u32(128))
        fill(acc, first + (start >> 1), buffer, r0, r1, column + (lane & 3) * 2 + start, lane, warp, n, e)
        barrier_sync(barrier, u32(128))  # with two buffers it is also the one before the next but one is filled
        chunk = thread & 7
        c, line = column + start + chunk * PER, buffer + u32(thread >> 3) * ROW
        line = line + u32((chunk ^ ((thread >> 3) & 7)) * 16)
        if c < n:
            y = advance(y, c)
            put(y, places[0], exist[0], line)
            put(y, places[1], exist[1], line + 16 * ROW)
            put(y, places[2], exist[2], line + 32 * ROW)
            put(y, places[3], exist[3], line + 48 * ROW)
    store_boxes = unrolled(BOXES, store_box)

    @device_function
    def store(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels):
        if ADDS and row >= pixels[0]:
            return
        top = row + (thread >> 3)
        exist0, place0, _ = find(top, tile, pixels)
        exist1, place1, _ = find(top + 16, tile, pixels)
        exist2, place2, _ = find(top + 32, tile, pixels)
        exist3, place3, _ = find(top + 48, tile, pixels)
        mine = row + ((thread >> 5) << 4) + ((thread & 31) >> 2)
        _, r0, _ = find(mine, tile, pixels)
        _, r1, _ = find(mine + 8, tile, pixels)
        store_boxes(0, (acc, first, staging, r0, r1, column, thread, barrier, n, e, y, (exist0, exist1, exist2, exist3),
                        (place0, place1, place2, place3)))
    return store


@functools.cache
def make_pixel_store(special):
    """Device function ``store(acc, first, row, column, tile, thread, n, e, y, y_column, pixels)`` for 64 rows of any results.

    Pairs of columns straight from registers, each row with its own place in result and residual.
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
        mine = row + warp * 16 + (lane >> 2)
        exists0, at0, other0 = find(mine, tile, pixels)
        exists1, at1, other1 = find(mine + 8, tile, pixels)
        alpha, beta, bias, bias_stride, prior, _, prior_column, residual, _, residual_column = e
        e0 = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at0), i32(0), prior_column, advance(residual, other0), i32(0),
                            residual_column)
        e1 = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at1), i32(0), prior_column, advance(residual, other1), i32(0),
                            residual_column)
        store_all(0, (acc, first, exists0, exists1, column + (lane & 3) * 2, n, advance(y, at0), advance(y, at1), y_column,
                      e0, e1))
    return store


@functools.cache
def make_sink(special):
    """The sink of `engine.hopper.make_product`.

    `out`: columns of a group, the result and its stride along columns, elements of it, of the bias and of the residual from group to group,
    `pixels` for `make_find`, the epilogue's ten arguments.
    """
    BY_TMA, BY_ROWS, GROUPED = special.store == "tma", special.store == "rows", special.groups is not None
    through_tma = make_boxed_store(special.tile, special.epilogue, staged=special.staged) if BY_TMA else None
    through_rows = make_rows_store(special) if BY_ROWS else None
    straight = None if BY_TMA or BY_ROWS else make_pixel_store(special)

    @device_function
    def sink(acc, first, offset, y_map, staging, tile, thread, barrier, out):
        n, y, y_column, y_group, bias_group, residual_group, pixels, e = out
        row, column, z = tile.row + offset, tile.column, tile.group
        alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column = e
        if GROUPED:
            y, bias, prior = advance(y, z * y_group), advance(bias, z * bias_group), advance(prior, z * y_group)
            residual = advance(residual, z * residual_group)
        e = ResidualParams(alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column)
        if BY_TMA:
            through_tma(acc, first, y_map, staging, row, column, z, thread, barrier, pixels[0], n, e, y, i64(0))
        elif BY_ROWS:
            through_rows(acc, first, staging, row, column, tile, thread, barrier, n, e, y, pixels)
        else:
            straight(acc, first, row, column, tile, thread, n, e, y, y_column, pixels)
    return sink
