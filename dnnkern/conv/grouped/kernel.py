"""The kernel of grouped convolutions that computes y, or dx: several groups share a warp's products, operands stay in registers.

A warp has 32 neighbouring channels and 16 columns of pixels, `rows.tile` pixels high. Lane ``4 g + t`` loads 16 bytes at a time: channels
8 t to 8 t + 7 of a pixel of columns g and g + 8. These words are A fragments as they are, if k of the product counts, in words 2 q and
2 q + 1 of each lane, channels ``8 t + 4 q + 2 word + half``. The columns of B are ordered so that a lane ends with the same channels of the
result: in product u, column ``2 t + half`` is channel ``8 t + 2 u + half``. So only the filters are in shared memory, as B fragments with
zeros between channels of different groups. Groups of up to four channels share only one half of k: four products per tap and 16 pixels;
larger groups need eight.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32, u64
from ...device.epilogue import EpilogueSpec
from ...device.index import divide_remainder, divmod_unsigned
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load4_nc_if_into, load_shared_4u32, shared_address
from .._taps import Axis, make_source
from .._vectors import make_biases, make_finish

SLICE, COLUMNS, WARPS = 32, 16, 4  # channels and columns of a warp, warps of a block


@dataclass(frozen=True)
class Body:
    """What the kernel is compiled for. With `dynamic` it loops over the filter's rows and `rows` has one tap, as in depthwise kernels.

    With `unroll` the filter's columns are unrolled; a loop has to move the words in flight at its end, but needs fewer registers.
    """
    dtype: str
    group: int
    rows: Axis
    taps: int
    filter_w: int
    dynamic: int
    strides: tuple
    backward: int
    flip: int
    put_words: int
    residual_words: int
    epilogue: EpilogueSpec
    unroll: int
    blocks: int

    @property
    def products(self):
        """Per tap and 16 pixels."""
        return 4 if self.group <= 4 else 8

    @property
    def shared_words(self):
        return self.taps * self.products * 64


class Window(NamedTuple):
    """Leading padding and dilation along d, h, w, and the shift of the window along h (see `make_axis`)."""
    padding_d: i32
    dilation_d: i32
    padding_h: i32
    dilation_h: i32
    shift_h: i32
    padding_w: i32
    dilation_w: i32


class TapStrides(NamedTuple):
    """Of w along k, c and its taps, in elements."""
    k: i64
    c: i64
    tap: i64


class Loads(NamedTuple):
    """The pixels that a lane loads: raw words, the source; of its two columns of pixels the image's offset, the first row of the window,
    the column, and whether it exists; height, strides."""
    raw: tuple
    source: u64
    images: tuple
    first_rows: tuple
    columns: tuple
    exist: tuple
    height: i32
    row_stride: i32
    column_stride: i32


@functools.cache
def make_fragments(body):
    """Device function ``store_fragments(filters, w, first, channels, tid, stride)``: the filters of a block's channels as B fragments.

    Word order: [tap][pair of products][lane][product of the pair][word], so that a lane reads the words of two products at once. `stride`
    is a `TapStrides`.
    """
    GROUP, PRODUCTS, TAPS, THREADS = body.group, body.products, body.taps, 32 * WARPS
    PAIRS, TOTAL, backward, flip = PRODUCTS // 2, body.shared_words, body.backward, body.flip

    @device_function
    def store_fragments(filters, w, first, channels, tid, stride):
        for e in range(tid, TOTAL, THREADS):
            word, lane, rest = e & 1, (e >> 2) & 31, e >> 7
            tap, pair = divmod_unsigned(rest, PAIRS)
            product = 2 * pair + ((e >> 1) & 1)
            if PRODUCTS == 4:
                u, q = product, product >> 1
            else:
                u, q = product & 3, product >> 2
            source = 8 * (lane & 3) + 4 * q + 2 * word
            result = 8 * (lane >> 3) + 2 * u + ((lane >> 2) & 1)
            value = u32(0)
            if flip:
                tap = TAPS - 1 - tap
            for half in range(2):
                s = source + half
                in_same_group = (s ^ result) < GROUP  # a power of two
                if in_same_group and first + s < channels and first + result < channels:
                    k, c = (s, result) if backward else (result, s)
                    at = (first + k) * stride.k + (c & (GROUP - 1)) * stride.c + tap * stride.tap
                    value = value | (u32(w[at]) << 16 * half)
            filters[e] = value
    return store_fragments


@functools.cache
def grouped_kernel(body):
    """Blocks loop over 64 columns of pixels at a time; all columns of a slice of channels share the filter fragments."""
    rows, DYNAMIC, S, BLOCKS, UNROLL = body.rows, body.dynamic, body.filter_w, body.blocks, body.unroll
    R, TH, NH, ROW0, USED = rows.taps, rows.tile, rows.groups, rows.first, rows.used
    A, B, C, E = rows.relation
    NUM_H, DEN_H = rows.advance
    PRODUCTS, PAIRS, THREADS, SHARED = body.products, body.products // 2, 32 * WARPS, body.shared_words
    NACC, NRAW, NTAPS, TAP_BYTES = TH * 16, NH * 8, R * PRODUCTS * 2, PRODUCTS * 256
    backward = body.backward
    stride_d, stride_h, stride_w = body.strides
    source_d, source_h, source_w = (make_source(s, backward) for s in (stride_d, stride_h, stride_w))
    mma, store_fragments = make_mma(body.dtype), make_fragments(body)
    finish = make_finish(body.epilogue, 8, body.put_words, body.residual_words)
    load_biases = make_biases(body.epilogue, 8, False)

    @device_function
    def load_filters(r, s):
        taps, at, pitch = s
        for p in range(PAIRS):
            k = (r * PAIRS + p) * 4
            taps[k], taps[k + 1], taps[k + 2], taps[k + 3] = load_shared_4u32(at + u32(r * pitch) + u32(p * 512))
    load_all_filters = unrolled(R, load_filters)

    @device_function
    def fetch(i, s):
        if (USED >> i) & 1:
            for p in range(2):
                row = s.first_rows[p] + i
                ok = s.exist[p] != 0 and 0 <= row and row < s.height
                at = s.images[p] + (row * s.row_stride + s.columns[p] * s.column_stride)
                load4_nc_if_into(s.raw, i * 8 + p * 4, as_u32(advance(s.source, at)), 0, i32(ok))
    fetch_all = unrolled(NH, fetch)

    @device_function
    def multiply(j, s):
        acc, fragment, taps, i = s
        total = E * (i + ROW0) - A * j - C
        if total % B == 0:
            r = total // B
            if 0 <= r and r < R:
                for m in range(PRODUCTS):
                    u = m if PRODUCTS == 4 else m & 3
                    q = m >> 1 if PRODUCTS == 4 else m >> 2
                    mma(acc, j * 16 + u * 4, fragment, q * 4, taps, (r * PRODUCTS + m) * 2)
    multiply_all = unrolled(TH, multiply)

    @device_function
    def step(i, s):
        acc, taps, loads = s
        if (USED >> i) & 1:
            fragment = cuda.local.array(8, u32)
            for q in range(2):
                for word in range(2):
                    for p in range(2):
                        fragment[q * 4 + word * 2 + p] = loads.raw[i * 8 + p * 4 + q * 2 + word]
            fetch(i, loads)
            multiply_all(0, (acc, fragment, taps, i))
    steps = unrolled(NH, step)

    @device_function
    def column_of_taps(k, s):
        acc, taps, loads, q, plane_exists, filters, first_tap, width, padding, dilation = s
        load_all_filters(0, (taps, filters + u32((first_tap + k) * TAP_BYTES), S * TAP_BYTES))
        # the loads of the next column begin when this one's words have been read
        for p in range(2):
            loads.columns[p] = source_w(q[p], k + 1, padding, dilation)
            loads.exist[p] = 1 if plane_exists[p] != 0 and k + 1 < S and 0 <= loads.columns[p] and loads.columns[p] < width else 0
        steps(0, (acc, taps, loads))
    taps_all = unrolled(S if UNROLL else 1, column_of_taps)

    @device_function
    def output(j, s):
        acc, result, residual, result_at, residual_at, inside, first_rows, height, row_stride, residual_stride, biases, alpha, beta = s
        for p in range(2):
            if inside[p] != 0 and first_rows[p] + j < height:
                values = cuda.local.array(8, f32)
                for u in range(4):
                    values[2 * u], values[2 * u + 1] = acc[j * 16 + u * 4 + 2 * p], acc[j * 16 + u * 4 + 2 * p + 1]
                finish(values, 0, advance(result, result_at[p] + j * row_stride), 0, biases, alpha, beta,
                       advance(residual, residual_at[p] + j * residual_stride), 0)
    outputs = unrolled(TH, output)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_grouped_mma(source, w, result, residual, bias, count, rounds, slices, result_w, tiles_h, depth, channels, filter_t, filter_r,
                         window, source_size, result_size, source_stride, result_stride, residual_stride, bias_stride, alpha, beta,
                         w_stride):
        fragments = cuda.shared.array(SHARED, u32, alignment=16)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        block, part = divide_remainder(cuda.blockIdx.x, slices)
        first = part * SLICE
        store_fragments(fragments, w, first, channels, tid, w_stride)
        cuda.syncthreads()
        channel = first + 8 * (lane & 3)
        filters = shared_address(fragments, 0) + u32(16 * lane)
        biases = cuda.local.array(8, f32)
        if channel < channels:
            load_biases(biases, bias, bias_stride, channel)
        acc, raw, taps = cuda.local.array(NACC, f32), cuda.local.array(NRAW, u32), cuda.local.array(NTAPS, u32)
        # of the two columns of pixels: what is loaded, positions in the result, offsets in the arrays
        first_rows, columns, exist, plane_exists = (cuda.local.array(2, i32), cuda.local.array(2, i32), cuda.local.array(2, i32),
                                                    cuda.local.array(2, i32))
        o, p0, q, inside = (cuda.local.array(2, i32), cuda.local.array(2, i32), cuda.local.array(2, i32), cuda.local.array(2, i32))
        starts, images, result_at, residual_at = (cuda.local.array(2, i64), cuda.local.array(2, i64), cuda.local.array(2, i64),
                                                  cuda.local.array(2, i64))
        loads = Loads(raw, source, images, first_rows, columns, exist, source_size.h, i32(source_stride.h), i32(source_stride.w))
        for i in range(rounds):
            start = ((block * rounds + i) * WARPS + warp) * COLUMNS + (lane >> 2)
            for a in range(NACC):
                acc[a] = f32(0)
            for p in range(2):
                at = start + 8 * p
                inside[p] = 1 if at < count and channel < channels else 0
                at, column = divide_remainder(at if at < count else 0, result_w)
                at, tile_h = divide_remainder(at, tiles_h)
                n, plane = divide_remainder(at, depth)
                o[p], p0[p], q[p] = plane, tile_h * TH, column
                starts[p] = n * source_stride.n + channel
                result_at[p] = (n * result_stride.n + plane * result_stride.d + p0[p] * result_stride.h + column * result_stride.w
                                + channel)
                residual_at[p] = (n * residual_stride.n + plane * residual_stride.d + p0[p] * residual_stride.h
                                  + column * residual_stride.w + channel)
            for outer in range(filter_t * (filter_r if DYNAMIC else 1)):
                t, r = outer, 0
                if DYNAMIC:
                    t, r = divmod_unsigned(outer, filter_r)
                for p in range(2):
                    if DYNAMIC:
                        first_rows[p] = source_h(p0[p], r, window.padding_h, window.dilation_h)
                    else:
                        row, _ = divmod_unsigned(p0[p] * NUM_H, DEN_H)
                        first_rows[p] = row + window.shift_h + ROW0
                    columns[p] = source_w(q[p], 0, window.padding_w, window.dilation_w)
                    d = source_d(o[p], t, window.padding_d, window.dilation_d)
                    images[p] = starts[p] + d * source_stride.d
                    plane_exists[p] = 1 if inside[p] != 0 and 0 <= d and d < source_size.d else 0
                    exist[p] = 1 if plane_exists[p] != 0 and 0 <= columns[p] and columns[p] < source_size.w else 0
                fetch_all(0, loads)
                first_tap = (t * filter_r + r) * S
                state = acc, taps, loads, q, plane_exists, filters, first_tap, source_size.w, window.padding_w, window.dilation_w
                if UNROLL:
                    taps_all(0, state)
                else:
                    for s in range(S):
                        column_of_taps(s, state)
            outputs(0, (acc, result, residual, result_at, residual_at, inside, p0, result_size.h, i32(result_stride.h),
                        i32(residual_stride.h), biases, alpha, beta))
    return conv_grouped_mma
