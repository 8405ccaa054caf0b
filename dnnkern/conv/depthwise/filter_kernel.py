"""Kernels of dw of depthwise convolutions: a thread accumulates over tiles of pixels, a block over its threads, a second launch over the
blocks.

A thread has a tile of dy in registers, walks down the rows of x that it multiplies as the forward kernels do, and has an accumulator for
each tap of its channels. Where a filter has more taps than registers, each block computes `rows.taps` rows of it. `splits` blocks divide
the tiles of a channel; their partial sums in the workspace are [split][k][tap].
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit
from ...device.dependent import wait_for_previous_grid
from ...device.groups import make_reader, scalar_of
from ...device.index import divide_remainder, divmod_unsigned
from ...device.unroll import unrolled
from ...device.vec import advance
from ...device.warp import reduce_sum
from .._vectors import make_finish
from .kernel import make_columns_inside, make_window

ELEMENTS, REDUCE_WARPS = 32, 16  # of a block of the second launch: elements, and the most warps that share their partial sums
IN_FLIGHT = 4                    # loads of partial sums in flight per thread


class FilterTaps(NamedTuple):
    """Taps of a filter: all, and those of a plane r, s."""
    all: i32
    plane: i32


class RowStrides(NamedTuple):
    """Of an image [n, d, h, w] up to a row, in elements."""
    n: i64
    d: i64
    h: i64


class GradientStrides(NamedTuple):
    """Of x and dy along channels, in elements."""
    x: i64
    y: i64


def _tile_reader(body, per_pixel):
    """(type, length, values, fetch, unpack): a tile of dy to local arrays, zeros outside."""
    TH, TW, STEP = body.rows.tile, body.columns.tile, body.result_step
    EACH = body.vector if per_pixel else body.put
    GROUP = 1 if per_pixel else body.put
    Raw, length, fetch, unpack = make_reader(body.dtype, EACH, body.put_words)
    COUNT = TH * TW // GROUP

    @device_function
    def fetch_group(k, s):
        raw, dy, row, column, height, width, row_stride = s
        j, i = k * GROUP // TW, k * GROUP % TW
        fetch(raw, k * length, advance(dy, j * row_stride), i * STEP,
              row + j < height and column + i < width)
    fetch_all = unrolled(COUNT, fetch_group)

    @device_function
    def unpack_group(k, s):
        raw, values = s
        unpack(values, k * EACH, raw, k * length)
    unpack_all = unrolled(COUNT, unpack_group)
    return Raw, COUNT * length, COUNT * EACH, fetch_all, unpack_all


@functools.cache
def make_add_rows(T, R, S, V, ACROSS, LANES, THREADS, flip):
    """Device function ``add_rows(0, state)``: reduce R x S taps across the lanes and write them to `partial`, a row of taps at a time.

    A lane of `LANES` is `ACROSS` threads with V channels each. `state`: acc, shared memory, tid, lane, group, whether the thread has sums,
    partial, the block's first channel, number of channels, the first tap, (taps of the filter, end of these taps).
    """
    CHANNELS, EACH = ACROSS * V, S * V
    LINE = S * CHANNELS

    @device_function
    def add_row(r, s):
        acc, shared, tid, lane, group, active, partial, first, channels, first_tap, (filter_taps, end_tap) = s
        cuda.syncthreads()
        if active:
            for k in range(EACH):
                shared[(lane * S + k // V) * CHANNELS + group * V + k % V] = acc[r * EACH + k]
        cuda.syncthreads()
        for e in range(tid, LINE, THREADS):
            total = T(0)
            for y in range(LANES):
                total = T(total + shared[y * LINE + e])
            t, channel = divmod_unsigned(e, CHANNELS)
            channel = first + channel
            tap = first_tap + r * S + t
            if channel < channels and tap < end_tap:
                if flip:
                    tap = filter_taps - 1 - tap
                partial[channel * filter_taps + tap] = total
    return unrolled(R, add_row)


@functools.cache
def channels_sums_kernel(body):
    """Channels last: a block has `across` groups of channels; its lanes divide the tiles."""
    V, ACROSS, THREADS, BLOCKS = body.vector, body.across, body.threads, body.blocks
    T, rows, columns = scalar_of(body.dtype), body.rows, body.columns
    R, S, TH, TW = rows.taps, columns.taps, rows.tile, columns.tile
    CHANNELS, LANES, NACC, flip = ACROSS * V, THREADS // ACROSS, R * S * V, body.flip
    SHARED = LANES * S * CHANNELS
    STRIDE_H, STRIDE_W, STRIDE_D = rows.stride, columns.stride, body.stride_d
    STEP_X, STEP_Y = body.source_step, body.result_step
    ROW0, COLUMN0 = rows.first, columns.first
    Raw, length, add_window = make_window(body, True, True)
    columns_inside = make_columns_inside(columns, 1)
    RawY, length_y, count_y, fetch_tile, unpack_tile = _tile_reader(body, True)

    add_rows = make_add_rows(T, R, S, V, ACROSS, LANES, THREADS, flip)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_channels_sums(x, dy, partial, count, splits, parts, tap_parts, row_parts, tiles_w, tiles_h, depth, channels,
                                     elements, filter_taps, window, x_size, y_size, x_stride, y_stride):
        shared = cuda.shared.array(SHARED, T, alignment=16)
        tid = cuda.threadIdx.x
        rest, part = divide_remainder(cuda.blockIdx.x, parts)
        split, tap_part = divide_remainder(rest, tap_parts)
        t, row_part = divide_remainder(tap_part, row_parts)
        lane, group = divmod_unsigned(tid, ACROSS)
        first = part * CHANNELS
        channel = first + group * V
        acc, raw = cuda.local.array(NACC, T), cuda.local.array(length, Raw)
        raw_y, values_y = cuda.local.array(length_y, RawY), cuda.local.array(count_y, T)
        for a in range(NACC):
            acc[a] = T(0)
        active = lane < LANES
        start = split * LANES + lane if active and channel < channels else count
        for at in range(start, count, splits * LANES):
            tile, column = divide_remainder(at, tiles_w)
            tile, row = divide_remainder(tile, tiles_h)
            n, o = divide_remainder(tile, depth)
            row, column = row * TH, column * TW
            d = o * STRIDE_D - window.padding_d + t * window.dilation_d
            if 0 <= d and d < x_size.d:
                column_at = column * STRIDE_W + window.shift_w + COLUMN0
                columns_in = columns_inside(column_at, x_size.w)
                pixel = n * y_stride.n + o * y_stride.d + row * y_stride.h
                tile_y = advance(dy, pixel + (column * STEP_Y + channel))
                fetch_tile(0, (raw_y, tile_y, row, column, y_size.h, y_size.w, i32(y_stride.h)))
                unpack_tile(0, (raw_y, values_y))
                image = advance(x, n * x_stride.n + d * x_stride.d + (column_at * STEP_X + channel))
                add_window(acc, raw, values_y, image, row * STRIDE_H + row_part * (R * window.dilation_h) + window.shift_h + ROW0,
                           i32(x_stride.h), x_size.h, columns_in)
        # the taps of this filter plane end before those of the next
        first_tap = t * filter_taps.plane + row_part * (R * S)
        add_rows(0, (acc, shared, tid, lane, group, active, advance(partial, split * i64(elements)), first, channels, first_tap,
                     (filter_taps.all, (t + 1) * filter_taps.plane)))
    return conv_depthwise_channels_sums


@functools.cache
def planes_sums_kernel(body):
    """Channels first, or any layout with scalar loads: a block has one channel, its threads divide the tiles."""
    V, THREADS, BLOCKS, M = body.vector, body.threads, body.blocks, body.multiplier
    T, rows, columns = scalar_of(body.dtype), body.rows, body.columns
    R, S, TH, TW = rows.taps, columns.taps, rows.tile, columns.tile
    NACC, flip, WARPS = R * S, body.flip, body.threads // 32
    SHARED = WARPS * NACC
    STRIDE_H, STRIDE_W, STRIDE_D = rows.stride, columns.stride, body.stride_d
    STEP_X, STEP_Y = body.source_step, body.result_step
    ROW0, COLUMN0 = rows.first, columns.first
    Raw, length, add_window = make_window(body, False, True)
    columns_inside = make_columns_inside(columns, V)
    RawY, length_y, count_y, fetch_tile, unpack_tile = _tile_reader(body, False)

    @device_function
    def add_tap(k, s):
        acc, shared, lane, warp = s
        total = reduce_sum(acc[k])
        if lane == 0:
            shared[warp * NACC + k] = total
    add_taps = unrolled(NACC, add_tap)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_planes_sums(x, dy, partial, count, splits, channels, tap_parts, row_parts, tiles_w, tiles_h, depth, elements,
                                   filter_taps, window, x_size, y_size, x_stride, y_stride, channel_stride):
        shared = cuda.shared.array(SHARED, T)
        tid = cuda.threadIdx.x
        rest, k = divide_remainder(cuda.blockIdx.x, channels)
        split, tap_part = divide_remainder(rest, tap_parts)
        t, row_part = divide_remainder(tap_part, row_parts)
        acc, raw = cuda.local.array(NACC, T), cuda.local.array(length, Raw)
        raw_y, values_y = cuda.local.array(length_y, RawY), cuda.local.array(count_y, T)
        for a in range(NACC):
            acc[a] = T(0)
        c, _ = divmod_unsigned(k, M)
        image_x = advance(x, c * channel_stride.x)
        image_y = advance(dy, k * channel_stride.y)
        for at in range(split * THREADS + tid, count, splits * THREADS):
            tile, column = divide_remainder(at, tiles_w)
            tile, row = divide_remainder(tile, tiles_h)
            n, o = divide_remainder(tile, depth)
            row, column = row * TH, column * TW
            d = o * STRIDE_D - window.padding_d + t * window.dilation_d
            if 0 <= d and d < x_size.d:
                column_at = column * STRIDE_W + window.shift_w + COLUMN0
                columns_in = columns_inside(column_at, x_size.w)
                pixel = n * y_stride.n + o * y_stride.d + row * y_stride.h
                tile_y = advance(image_y, pixel + column * STEP_Y)
                fetch_tile(0, (raw_y, tile_y, row, column, y_size.h, y_size.w, i32(y_stride.h)))
                unpack_tile(0, (raw_y, values_y))
                image = advance(image_x, n * x_stride.n + d * x_stride.d + column_at * STEP_X)
                add_window(acc, raw, values_y, image, row * STRIDE_H + row_part * (R * window.dilation_h) + window.shift_h + ROW0,
                           i32(x_stride.h), x_size.h, columns_in)
        add_taps(0, (acc, shared, tid & 31, tid >> 5))
        cuda.syncthreads()
        end_tap = (t + 1) * filter_taps.plane
        for e in range(tid, NACC, THREADS):
            tap = t * filter_taps.plane + row_part * NACC + e
            if tap < end_tap:
                total = T(0)
                for w in range(WARPS):
                    total = T(total + shared[w * NACC + e])
                if flip:
                    tap = filter_taps.all - 1 - tap
                partial[split * i64(elements) + (k * filter_taps.all + tap)] = total
    return conv_depthwise_planes_sums


@functools.cache
def reduce_kernel(epilogue, warps, dependent):
    """dw = the epilogue of the sum over the splits. The warps of a block divide the splits, a lane has one element, with IN_FLIGHT loads in
    flight. `dependent`: programmatic dependent launch, blocks begin while partial sums are still computed."""
    T = f64 if epilogue.accumulator == "float64" else f32
    Bias = f64 if epilogue.compute == "float64" else f32
    finish = make_finish(epilogue, 1, 0, 0)
    SHARED = ELEMENTS * warps

    @jit(launch_bounds=SHARED)
    def conv_depthwise_reduce(partial, dw, elements, splits, taps, w_stride, tap_stride, alpha, beta):
        shared, acc, biases = cuda.shared.array(SHARED, T), cuda.local.array(1, T), cuda.local.array(1, Bias)
        loaded = cuda.local.array(IN_FLIGHT, T)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        e = cuda.blockIdx.x * ELEMENTS + lane
        total = T(0)
        if dependent:
            wait_for_previous_grid()
        if e < elements:
            for split in range(warp, splits, IN_FLIGHT * warps):
                for v in range(IN_FLIGHT):
                    loaded[v] = partial[min(split + v * warps, splits - 1) * i64(elements) + e]
                for v in range(IN_FLIGHT):
                    if split + v * warps < splits:
                        total = T(total + loaded[v])
        shared[warp * ELEMENTS + lane] = total
        cuda.syncthreads()
        if warp == 0 and e < elements:
            total = T(0)
            for s in range(warps):
                total = T(total + shared[s * ELEMENTS + lane])
            acc[0], biases[0] = total, Bias(0)
            k, tap = divide_remainder(e, taps)
            at = k * i64(w_stride) + tap * i64(tap_stride)
            finish(acc, 0, advance(dw, at), 0, biases, alpha, beta, dw, 0)
    return conv_depthwise_reduce
