"""Kernels of the filter's gradient of depthwise convolutions: a thread sums over tiles of pixels, a block over its threads, a second launch
over the blocks.

A thread holds a tile of dy in registers, walks over the rows of x that meet it as the forward kernels do, and keeps a sum for every tap of
its channels. Where a filter has more taps than registers, blocks take `rows.taps` rows of it each. `splits` blocks divide the tiles of a
channel; their sums lie side by side in the workspace, [split][k][tap].
"""
import functools

from ...device import cuda, device_function, f32, f64, i32, i64, jit, u32
from ...device.dependent import wait_for_previous_grid
from ...device.groups import make_reader, scalar_of
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import advance
from ...device.warp import reduce_sum
from .._vectors import make_finish
from .backward_data import make_columns_inside, make_window

ELEMENTS, SUMMERS = 32, 16  # of a block of the second launch: elements, and at most so many warps that share their partial sums
FLIGHT = 4                  # partial sums that each of its threads has under way


def _tile_reader(body, per_pixel):
    """(type, length, values, load_tile): a tile of dy into local arrays, zeros outside."""
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
    """Device function ``add_rows(i32(0), state)``: the lanes' sums of R x S taps to `partial`, a row of taps at a time.

    A lane of `LANES` is `ACROSS` threads with V channels each. `state`: acc, shared, tid, lane, group, whether the thread's sums count,
    partial, the block's first channel and where channels end, the first tap, (taps of the filter, the one behind the last of these).
    """
    CHANNELS, EACH = ACROSS * V, S * V
    LINE = S * CHANNELS

    @device_function
    def add_row(r, s):
        acc, shared, tid, lane, group, active, partial, first, channels, first_tap, taps = s
        cuda.syncthreads()
        if active:
            for k in range(EACH):
                shared[(lane * S + k // V) * CHANNELS + group * V + k % V] = acc[r * EACH + k]
        cuda.syncthreads()
        for e in range(tid, LINE, THREADS):
            total = T(0)
            for y in range(LANES):
                total = T(total + shared[y * LINE + e])
            t = i32(u32(e) // CHANNELS)
            channel = first + (e - t * CHANNELS)
            tap = first_tap + r * S + t
            if channel < channels and tap < taps[1]:
                if flip:
                    tap = i32(taps[0] - 1 - tap)
                partial[channel * taps[0] + tap] = total
    return unrolled(R, add_row)


@functools.cache
def channels_sums_kernel(body):
    """Channels last: a block has `across` groups of channels, and its other threads divide the tiles."""
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
    def conv_depthwise_channels_sums(x, dy, partial, count, splits, parts, slabs, row_parts, tiles_w, tiles_h, depth, channels, elements,
                                     filter_taps, window, x_sizes, y_sizes, x_strides, y_strides):
        shared = cuda.shared.array(SHARED, T, alignment=16)
        tid = cuda.threadIdx.x
        rest, part = divide_remainder(cuda.blockIdx.x, parts)
        split, slab = divide_remainder(rest, slabs)
        t, row_part = divide_remainder(slab, row_parts)
        lane = i32(u32(tid) // ACROSS)
        group = tid - lane * ACROSS
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
            n, plane = divide_remainder(tile, depth)
            row, column = row * TH, column * TW
            z = plane * STRIDE_D - window[0] + t * window[1]
            if 0 <= z and z < x_sizes[0]:
                column_at = column * STRIDE_W + window[5] + COLUMN0
                columns_in = columns_inside(column_at, x_sizes[2])
                pixel = n * y_strides[0] + plane * y_strides[1] + row * y_strides[2]
                tile_y = advance(dy, pixel + (column * STEP_Y + channel))
                fetch_tile(0, (raw_y, tile_y, row, column, y_sizes[1], y_sizes[2], i32(y_strides[2])))
                unpack_tile(0, (raw_y, values_y))
                image = advance(x, n * x_strides[0] + z * x_strides[1] + (column_at * STEP_X + channel))
                add_window(acc, raw, values_y, image, row * STRIDE_H + row_part * (R * window[3]) + window[4] + ROW0,
                           i32(x_strides[2]), x_sizes[1], columns_in)
        mine = advance(partial, split * i64(elements))
        # the taps of this filter plane end before those of the next
        first_tap = t * filter_taps[1] + row_part * (R * S)
        add_rows(0, (acc, shared, tid, lane, group, active, mine, first, channels, first_tap,
                     (filter_taps[0], (t + 1) * filter_taps[1])))
    return conv_depthwise_channels_sums


@functools.cache
def planes_sums_kernel(body):
    """Channels first, or any layout with one element a load: a block has one channel, its threads divide the tiles."""
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
    def conv_depthwise_planes_sums(x, dy, partial, count, splits, channels, slabs, row_parts, tiles_w, tiles_h, depth, elements,
                                   filter_taps, window, x_sizes, y_sizes, x_strides, y_strides, channel_strides):
        shared = cuda.shared.array(SHARED, T)
        tid = cuda.threadIdx.x
        rest, k = divide_remainder(cuda.blockIdx.x, channels)
        split, slab = divide_remainder(rest, slabs)
        t, row_part = divide_remainder(slab, row_parts)
        acc, raw = cuda.local.array(NACC, T), cuda.local.array(length, Raw)
        raw_y, values_y = cuda.local.array(length_y, RawY), cuda.local.array(count_y, T)
        for a in range(NACC):
            acc[a] = T(0)
        image_x = advance(x, i32(u32(k) // M) * channel_strides[0])
        image_y = advance(dy, k * channel_strides[1])
        for at in range(split * THREADS + tid, count, splits * THREADS):
            tile, column = divide_remainder(at, tiles_w)
            tile, row = divide_remainder(tile, tiles_h)
            n, plane = divide_remainder(tile, depth)
            row, column = row * TH, column * TW
            z = plane * STRIDE_D - window[0] + t * window[1]
            if 0 <= z and z < x_sizes[0]:
                column_at = column * STRIDE_W + window[5] + COLUMN0
                columns_in = columns_inside(column_at, x_sizes[2])
                pixel = n * y_strides[0] + plane * y_strides[1] + row * y_strides[2]
                tile_y = advance(image_y, pixel + column * STEP_Y)
                fetch_tile(0, (raw_y, tile_y, row, column, y_sizes[1], y_sizes[2], i32(y_strides[2])))
                unpack_tile(0, (raw_y, values_y))
                image = advance(image_x, n * x_strides[0] + z * x_strides[1] + column_at * STEP_X)
                add_window(acc, raw, values_y, image, row * STRIDE_H + row_part * (R * window[3]) + window[4] + ROW0,
                           i32(x_strides[2]), x_sizes[1], columns_in)
        add_taps(0, (acc, shared, tid & 31, tid >> 5))
        cuda.syncthreads()
        last = (t + 1) * filter_taps[1]
        for e in range(tid, NACC, THREADS):
            tap = t * filter_taps[1] + row_part * NACC + e
            if tap < last:
                total = T(0)
                for w in range(WARPS):
                    total = T(total + shared[w * NACC + e])
                if flip:
                    tap = filter_taps[0] - 1 - tap
                partial[split * i64(elements) + (k * filter_taps[0] + tap)] = total
    return conv_depthwise_planes_sums


@functools.cache
def total_kernel(epilogue, summers, dependent):
    """dw = the epilogue of the sum over the splits: a warp reads neighbouring elements of one, the block's warps share the splits, and
    have four of them under way. `dependent`: blocks begin while the sums are still made."""
    T = f64 if epilogue.accumulator == "float64" else f32
    Bias = f64 if epilogue.compute == "float64" else f32
    finish = make_finish(epilogue, 1, 0, 0)
    SHARED = ELEMENTS * summers

    @jit(launch_bounds=SHARED)
    def conv_depthwise_total(partial, dw, elements, splits, taps, w_stride, tap_stride, alpha, beta):
        shared, acc, biases = cuda.shared.array(SHARED, T), cuda.local.array(1, T), cuda.local.array(1, Bias)
        some = cuda.local.array(FLIGHT, T)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        e = cuda.blockIdx.x * ELEMENTS + lane
        total = T(0)
        if dependent:
            wait_for_previous_grid()
        if e < elements:
            for split in range(warp, splits, FLIGHT * summers):
                for v in range(FLIGHT):
                    some[v] = partial[min(split + v * summers, splits - 1) * i64(elements) + e]
                for v in range(FLIGHT):
                    if split + v * summers < splits:
                        total = T(total + some[v])
        shared[warp * ELEMENTS + lane] = total
        cuda.syncthreads()
        if warp == 0 and e < elements:
            total = T(0)
            for s in range(summers):
                total = T(total + shared[s * ELEMENTS + lane])
            acc[0], biases[0] = total, Bias(0)
            k, tap = divide_remainder(e, taps)
            at = k * i64(w_stride) + tap * i64(tap_stride)
            finish(acc, 0, advance(dw, at), 0, biases, alpha, beta, dw, 0)
    return conv_depthwise_total
