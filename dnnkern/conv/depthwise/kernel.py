"""Kernels of depthwise convolutions that compute y, or dx: a window of the source slides over a tile of the result in registers.

`source` is x and `result` y in the forward direction, dy and dx in the backward one. A thread computes th x tw pixels: of `vector`
neighbouring channels (`channels_kernel`, channels last), or of one channel (`planes_kernel`, channels first, a load has `vector` source
pixels). It walks down the rows of its window, issues the loads of the next row before the arithmetic of this one, and adds each row to all
outputs that read it: each thread loads a source element once.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.epilogue import EpilogueSpec
from ...device.groups import make_reader, scalar_of
from ...device.index import ceil_div, divide_remainder, divmod_unsigned
from ...device.unroll import unrolled
from ...device.vec import advance, load_shared_2f32, load_shared_2f64, load_shared_4f32, shared_address
from .._taps import Axis, make_multiply_row, make_source
from .._vectors import make_biases, make_finish

MOST_LOADS = 8  # of filters that a thread has in flight


@dataclass(frozen=True)
class Body:
    """What the kernels are compiled for.

    `rows` and `columns` are the axes h and w of the window. With `dynamic` the tile has one row and the kernel loops over the filter's
    rows: `rows` then has a single tap, and a row's position follows from `stride_h`, `stride_d` and `backward`. `words`, `put_words` and
    `residual_words` are the accesses of source, result and residual. `source_step`, `result_step` and `residual_step` are their strides
    along w, constants in the addresses. `put` elements of the result are one store; a block has `across` groups of channels.
    """
    dtype: str
    dtype_w: str
    rows: Axis
    columns: Axis
    dynamic: int
    stride_d: int
    stride_h: int
    backward: int
    flip: int
    vector: int
    put: int
    words: int
    put_words: int
    residual_words: int
    source_step: int
    result_step: int
    residual_step: int
    across: int
    multiplier: int
    epilogue: EpilogueSpec
    threads: int = 128
    blocks: int = 4

    @property
    def part(self):
        """Channels of a group that one access of shared memory reads."""
        return min(self.vector, 2 if self.dtype == "float64" else 4)


class Window(NamedTuple):
    """Leading padding and dilation along d and h, and the shift of the window along h and w (see `make_axis`)."""
    padding_d: i32
    dilation_d: i32
    padding_h: i32
    dilation_h: i32
    shift_h: i32
    shift_w: i32


class ChannelStrides(NamedTuple):
    """Along channels, in elements."""
    source: i64
    result: i64
    residual: i64


def make_window(body, per_pixel, gradient=False):
    """(Raw, length, add_window): walk down a window's rows and add each to the outputs that read it.

    With `per_pixel` a load is `vector` channels of a pixel, and taps are read from shared memory, 16 bytes of channels at a time; else
    `vector` pixels of a channel, and `taps` is a local array. With `gradient` the two change roles: `taps` has the tile's pixels of dy, and
    each tap has an accumulator. ``raw`` is a local array of `length` `Raw`.
    """
    V, dtype = body.vector, body.dtype
    T, double = scalar_of(dtype), dtype == "float64"
    rows, columns = body.rows, body.columns
    R, S, TH = rows.taps, columns.taps, rows.tile
    AH, BH, CH, EH = rows.relation
    H0, NH, NW, USED_H, USED = rows.first, rows.groups, columns.groups, rows.used, columns.used
    STEP, Mask = 1 if per_pixel else V, i32 if NW <= 30 else i64
    PITCH = STEP * body.source_step
    Raw, length, fetch, unpack = make_reader(dtype, V, body.words)
    ROW, VALUES, ACROSS = NW * length, NW * V, V if per_pixel else 1
    PART = body.part
    PLANE, TAP, ITEM = body.across * PART, body.across * V, 8 if double else 4
    SHARED, PARTS = S * V if per_pixel else 1, V // PART if per_pixel else 1
    load_shared = load_shared_2f64 if double else load_shared_4f32 if PART == 4 else load_shared_2f32

    @device_function
    def fetch_row(raw, half, source, row, row_stride, height, columns_in):
        inside = 0 <= row and row < height
        mask = columns_in if inside else Mask(0)
        p = advance(source, row * row_stride)
        for g in range(NW):
            if (USED >> g) & 1:
                fetch(raw, half * ROW + g * length, p, g * PITCH, i32(mask & Mask(1 << g) != 0))

    @device_function
    def load_taps(tap_row, at):
        for s in range(S):
            for h in range(PARTS):
                address = at + u32((s * TAP + h * PLANE) * ITEM)
                if PART == 4:
                    k = s * V + h * 4
                    tap_row[k], tap_row[k + 1], tap_row[k + 2], tap_row[k + 3] = load_shared(address)
                else:
                    k = s * V + h * 2
                    tap_row[k], tap_row[k + 1] = load_shared(address)

    multiply_row = make_multiply_row(columns, ACROSS, gradient)

    @device_function
    def output_row(j, s):
        acc, values, taps, i = s
        total = EH * (i + H0) - AH * j - CH
        if total % BH == 0:
            r = total // BH
            if 0 <= r and r < R:
                if per_pixel and not gradient:
                    tap_row = cuda.local.array(SHARED, T)
                    load_taps(tap_row, taps + u32(r * (S * TAP * ITEM)))
                    multiply_row(0, (acc, values, tap_row, j, 0))
                else:
                    multiply_row(0, (acc, values, taps, j, r * S))
    output_rows = unrolled(TH, output_row)

    @device_function
    def step(i, s):
        acc, raw, taps, source, row, row_stride, height, columns_in = s
        if i + 1 < NH and (USED_H >> (i + 1)) & 1:
            fetch_row(raw, (i + 1) & 1, source, row + i + 1, row_stride, height, columns_in)
        if (USED_H >> i) & 1:
            values = cuda.local.array(VALUES, T)
            for g in range(NW):
                if (USED >> g) & 1:
                    unpack(values, g * V, raw, (i & 1) * ROW + g * length)
            output_rows(0, (acc, values, taps, i))
    steps = unrolled(NH, step)

    @device_function
    def add_window(acc, raw, taps, source, row, row_stride, height, columns_in):
        fetch_row(raw, 0, source, row, row_stride, height, columns_in)
        steps(0, (acc, raw, taps, source, row, row_stride, height, columns_in))

    return Raw, 2 * ROW, add_window


@functools.cache
def make_columns_inside(columns, step):
    """Device function ``columns_inside(first, width)``: bit g is 1 if vector g of a window that begins at `first` is inside the image."""
    NW, USED = columns.groups, columns.used
    Mask = i32 if NW <= 30 else i64

    @device_function
    def columns_inside(first, width):
        mask = Mask(0)
        for g in range(NW):
            c = first + g * step
            if (USED >> g) & 1 and 0 <= c and c < width:
                mask = mask | Mask(1 << g)
        return mask
    return columns_inside


@functools.cache
def make_filters(body, most_taps):
    """Device function ``load_filters(filters, w, first, channels, taps, w_stride, tap_stride)``: the filters of a block's channels to
    shared memory, as [tap][part of a group][group][channel], so that neighbouring threads read neighbouring 16-byte vectors. Of `most_taps`
    taps at most a thread has all its elements in flight together, or eight of them."""
    V, PART, THREADS, flip = body.vector, body.part, body.threads, body.flip
    PLANE, CHANNELS = body.across * PART, body.across * V
    LOADS = min(MOST_LOADS, ceil_div(most_taps * CHANNELS, THREADS))
    T, load = scalar_of(body.dtype), element(body.dtype_w).load

    @device_function
    def load_filters(filters, w, first, channels, taps, w_stride, tap_stride):
        values = cuda.local.array(LOADS, T)
        count = i32(taps.d)
        total = count * CHANNELS
        for start in range(cuda.threadIdx.x, total, LOADS * THREADS):
            for u in range(LOADS):
                channel, tap = divide_remainder(start + u * THREADS, taps)
                values[u] = T(0)
                if start + u * THREADS < total and first + channel < channels:
                    values[u] = T(load(w, (first + channel) * w_stride + tap * tap_stride))
            for u in range(LOADS):
                if start + u * THREADS < total:
                    channel, tap = divide_remainder(start + u * THREADS, taps)
                    if flip:
                        tap = count - 1 - tap
                    g, v = divmod_unsigned(channel, V)
                    part, v = divmod_unsigned(v, PART)
                    filters[tap * CHANNELS + part * PLANE + g * PART + v] = values[u]
    return load_filters


def _make_outputs(body, put, finish):
    """Device function that writes a tile through the epilogue, `put` elements per store, without those outside the result."""
    TW, ACROSS, STEP, STEP_E = body.columns.tile, 1 if put[1] else body.vector, body.result_step, body.residual_step
    GROUP = put[0] if put[1] else 1
    EACH = GROUP * ACROSS

    @device_function
    def output(k, s):
        acc, result, biases, alpha, beta, residual, row, column, height, width, row_stride, residual_stride = s
        j, i = k * GROUP // TW, k * GROUP % TW
        if row + j < height and column + i < width:
            finish(acc, k * EACH, advance(result, j * row_stride), i * STEP, biases, alpha, beta,
                   advance(residual, j * residual_stride), i * STEP_E)
    return unrolled(body.rows.tile * TW // GROUP, output)


@functools.cache
def channels_kernel(body, most_taps):
    """Channels last: a block has `across` groups of channels, a thread `rounds` tiles; neighbouring threads have neighbouring tiles."""
    V, ACROSS, THREADS, BLOCKS = body.vector, body.across, body.threads, body.blocks
    T, Bias = scalar_of(body.dtype), scalar_of("float64" if body.epilogue.compute == "float64" else "float32")
    rows, columns, DYNAMIC = body.rows, body.columns, body.dynamic
    R, S, TH, TW = rows.taps, columns.taps, rows.tile, columns.tile
    NUM_H, DEN_H = rows.advance
    NUM_W, DEN_W = columns.advance
    ROW0, COLUMN0, PART = rows.first, columns.first, body.part
    CHANNELS, SHARED, NACC = ACROSS * V, most_taps * ACROSS * V, TH * TW * V
    LANES, ROW_BYTES = THREADS // ACROSS, S * ACROSS * V * (8 if body.dtype == "float64" else 4)
    STEP_S, STEP_Y, STEP_E = body.source_step, body.result_step, body.residual_step
    load_filters = make_filters(body, most_taps)
    Raw, length, add_window = make_window(body, True)
    columns_inside = make_columns_inside(columns, 1)
    source_d, source_h = make_source(body.stride_d, body.backward), make_source(body.stride_h, body.backward)
    outputs = _make_outputs(body, (1, False), make_finish(body.epilogue, V, body.put_words, body.residual_words))
    load_biases = make_biases(body.epilogue, V, False)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_channels(source, w, result, residual, bias, count, rounds, parts, tiles_w, tiles_h, depth, channels, filter_t,
                                filter_r, all_taps, window, source_size, result_size, source_stride, result_stride, residual_stride,
                                bias_stride, alpha, beta, w_stride, tap_stride):
        filters = cuda.shared.array(SHARED, T, alignment=16)
        tid = cuda.threadIdx.x
        rest, part = divide_remainder(cuda.blockIdx.x, parts)
        lane, group = divmod_unsigned(tid, ACROSS)
        first = part * CHANNELS
        load_filters(filters, w, first, channels, all_taps, w_stride, tap_stride)
        cuda.syncthreads()
        channel = first + group * V
        taps = shared_address(filters, group * PART)
        acc, raw, biases = cuda.local.array(NACC, T), cuda.local.array(length, Raw), cuda.local.array(V, Bias)
        inside = lane < LANES and channel < channels
        if inside:
            load_biases(biases, bias, bias_stride, channel)
        for i in range(rounds):
            tile = (rest * rounds + i) * LANES + lane
            if inside and tile < count:
                tile, column = divide_remainder(tile, tiles_w)
                tile, row = divide_remainder(tile, tiles_h)
                n, o = divide_remainder(tile, depth)
                row, column = row * TH, column * TW
                for a in range(NACC):
                    acc[a] = T(0)
                column_at, _ = divmod_unsigned(column * NUM_W, DEN_W)
                column_at = column_at + window.shift_w + COLUMN0
                columns_in = columns_inside(column_at, source_size.w)
                row_at, _ = divmod_unsigned(row * NUM_H, DEN_H)
                row_at = row_at + window.shift_h + ROW0
                image = advance(source, n * source_stride.n + (column_at * STEP_S + channel))
                for t in range(filter_t):
                    d = source_d(o, t, window.padding_d, window.dilation_d)
                    if 0 <= d and d < source_size.d:
                        plane = advance(image, d * source_stride.d)
                        if DYNAMIC:
                            for r in range(filter_r):
                                h = source_h(row, r, window.padding_h, window.dilation_h)
                                if 0 <= h and h < source_size.h:
                                    add_window(acc, raw, taps + u32(t * filter_r + r) * ROW_BYTES, plane, h, i32(source_stride.h),
                                               source_size.h, columns_in)
                        else:
                            add_window(acc, raw, taps + u32(t) * (R * ROW_BYTES), plane, row_at, i32(source_stride.h), source_size.h,
                                       columns_in)
                result_tile = advance(result, n * result_stride.n + o * result_stride.d + row * result_stride.h
                                      + (column * STEP_Y + channel))
                residual_tile = advance(residual, n * residual_stride.n + o * residual_stride.d + row * residual_stride.h
                                        + (column * STEP_E + channel))
                outputs(0, (acc, result_tile, biases, alpha, beta, residual_tile, row, column, result_size.h, result_size.w,
                            i32(result_stride.h), i32(residual_stride.h)))
    return conv_depthwise_channels


@functools.cache
def planes_kernel(body):
    """Channels first, or any layout with scalar loads: a thread has a tile of one channel."""
    THREADS, BLOCKS = body.threads, body.blocks
    T, Bias = scalar_of(body.dtype), scalar_of("float64" if body.epilogue.compute == "float64" else "float32")
    rows, columns, DYNAMIC, flip, M, PUT = body.rows, body.columns, body.dynamic, body.flip, body.multiplier, body.put
    backward = body.backward
    R, S, TH, TW = rows.taps, columns.taps, rows.tile, columns.tile
    NUM_H, DEN_H = rows.advance
    NUM_W, DEN_W = columns.advance
    ROW0, COLUMN0, NACC, NTAPS = rows.first, columns.first, TH * TW, R * S
    SUM = M if backward else 1  # source channels per result channel
    STEP_S, STEP_Y, STEP_E = body.source_step, body.result_step, body.residual_step
    load_w = element(body.dtype_w).load
    Raw, length, add_window = make_window(body, False)
    columns_inside = make_columns_inside(columns, body.vector)
    source_d, source_h = make_source(body.stride_d, body.backward), make_source(body.stride_h, body.backward)
    outputs = _make_outputs(body, (PUT, True), make_finish(body.epilogue, PUT, body.put_words, body.residual_words))
    load_biases = make_biases(body.epilogue, PUT, True)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_planes(source, w, result, residual, bias, count, channels_first, tiles_w, tiles_h, depth, channels, filter_t,
                              filter_r, window, source_size, result_size, source_stride, result_stride, residual_stride,
                              channel_stride, bias_stride, alpha, beta, w_stride, tap_stride):
        tile = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if tile < count:
            c = 0
            if channels_first == 0:
                tile, c = divide_remainder(tile, channels)
            tile, column = divide_remainder(tile, tiles_w)
            tile, row = divide_remainder(tile, tiles_h)
            n, o = divide_remainder(tile, depth)
            if channels_first != 0:
                n, c = divide_remainder(n, channels)
            row, column = row * TH, column * TW
            acc, raw, taps = cuda.local.array(NACC, T), cuda.local.array(length, Raw), cuda.local.array(NTAPS, T)
            for a in range(NACC):
                acc[a] = T(0)
            column_at, _ = divmod_unsigned(column * NUM_W, DEN_W)
            column_at = column_at + window.shift_w + COLUMN0
            columns_in = columns_inside(column_at, source_size.w)
            row_at, _ = divmod_unsigned(row * NUM_H, DEN_H)
            row_at = row_at + window.shift_h + ROW0
            last = filter_t * filter_r * S - 1
            for m in range(SUM):
                # channel of the source, and of the filter
                if backward:
                    c_source = k = c * M + m
                else:
                    c_source, _ = divmod_unsigned(c, M)
                    k = c
                image = advance(source, n * source_stride.n + c_source * channel_stride.source + column_at * STEP_S)
                filters = advance(w, k * i64(w_stride))
                for t in range(filter_t):
                    d = source_d(o, t, window.padding_d, window.dilation_d)
                    if 0 <= d and d < source_size.d:
                        plane = advance(image, d * source_stride.d)
                        if DYNAMIC:
                            for r in range(filter_r):
                                h = source_h(row, r, window.padding_h, window.dilation_h)
                                if 0 <= h and h < source_size.h:
                                    for s in range(S):
                                        tap = (t * filter_r + r) * S + s
                                        taps[s] = T(load_w(filters, (last - tap if flip else tap) * tap_stride))
                                    add_window(acc, raw, taps, plane, h, i32(source_stride.h), source_size.h, columns_in)
                        else:
                            for s in range(R * S):
                                tap = t * (R * S) + s
                                taps[s] = T(load_w(filters, (last - tap if flip else tap) * tap_stride))
                            add_window(acc, raw, taps, plane, row_at, i32(source_stride.h), source_size.h, columns_in)
            biases = cuda.local.array(PUT, Bias)
            load_biases(biases, bias, bias_stride, c)
            result_tile = advance(result, n * result_stride.n + o * result_stride.d + row * result_stride.h + c * channel_stride.result
                                  + column * STEP_Y)
            residual_tile = advance(residual, n * residual_stride.n + o * residual_stride.d + row * residual_stride.h
                                    + c * channel_stride.residual + column * STEP_E)
            outputs(0, (acc, result_tile, biases, alpha, beta, residual_tile, row, column, result_size.h, result_size.w,
                        i32(result_stride.h), i32(residual_stride.h)))
    return conv_depthwise_planes
