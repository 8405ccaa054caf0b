"""The kernel of grouped convolutions that computes y, or dx: groups side by side on the tensor cores of a warp, operands from registers.

A warp has 32 neighbouring channels and 16 columns of pixels, `rows.tile` pixels high. Lane ``4 g + t`` reads 16 bytes at a time: channels
8 t to 8 t + 7 of a pixel of columns g and g + 8. These words are the instruction's A fragments as they are, if its index k counts, of
words 2 q and 2 q + 1 of each lane, channels ``8 t + 4 q + 2 word + half``; and the columns of B can be ordered so that a lane ends with the
same channels of the result: in product u, column ``2 t + half`` is channel ``8 t + 2 u + half``. So nothing passes through shared memory
but the filters, which a block lays out there as B fragments, zeros between channels of different groups. Groups of up to four channels meet
in one half of k only: four products a tap and 16 pixels; larger ones need eight.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.epilogue import EpilogueSpec
from ...device.index import divide_remainder
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import advance, as_u32, load4_nc_if_into, load_shared_4u32, shared_address
from .._taps import Axis, make_source
from .._vectors import make_biases, make_finish

SLICE, COLUMNS, WARPS = 32, 16, 4  # channels and columns of a warp, warps of a block


@dataclass(frozen=True)
class Body:
    """What the kernel is compiled for; where `dynamic`, it loops over the filter's rows and `rows` has one tap, as in depthwise ones.

    With `unroll` the filter's columns are unrolled: in a loop the words in flight are moved at its end, but fewer registers are needed.
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
        """A tap and 16 pixels."""
        return 4 if self.group <= 4 else 8

    @property
    def shared_words(self):
        return self.taps * self.products * 64


@functools.cache
def make_fragments(body):
    """Device function ``lay_fragments(filters, w, first, channels, tid, strides)``: the filters of a block's channels as B fragments.

    Word order: [tap][pair of products][lane][product of the pair][word], so that a lane reads two products' at once. `strides` are those
    of w along k, c and the taps.
    """
    GROUP, PRODUCTS, TAPS, THREADS = body.group, body.products, body.taps, 32 * WARPS
    PAIRS, TOTAL, backward, flip = PRODUCTS // 2, body.shared_words, body.backward, body.flip

    @device_function
    def lay_fragments(filters, w, first, channels, tid, strides):
        for e in range(tid, TOTAL, THREADS):
            word, lane, rest = e & 1, (e >> 2) & 31, e >> 7
            tap = i32(u32(rest) // PAIRS)
            product = 2 * (rest - tap * PAIRS) + ((e >> 1) & 1)
            if PRODUCTS == 4:
                u, q = product, i32(product >> 1)
            else:
                u, q = product & 3, product >> 2
            source = 8 * (lane & 3) + 4 * q + 2 * word
            result = 8 * (lane >> 3) + 2 * u + ((lane >> 2) & 1)
            value = u32(0)
            if flip:
                tap = TAPS - 1 - tap
            for half in range(2):
                s = source + half
                if i32(u32(s) // GROUP) == i32(u32(result) // GROUP) and first + s < channels and i32(
                        first + result) < channels:
                    k, c = (s, result) if backward else (result, s)
                    at = (first + k) * strides[0] + (c & (GROUP - 1)) * strides[1] + tap * strides[2]
                    value = value | (u32(w[at]) << u32(16 * half))
            filters[e] = value
    return lay_fragments


@functools.cache
def grouped_kernel(body):
    """Blocks loop over groups of 64 columns; all columns of a slice of channels share the fragments."""
    rows, DYNAMIC, S, BLOCKS, UNROLL = body.rows, body.dynamic, body.filter_w, body.blocks, body.unroll
    R, TH, NH, ROW0, USED = rows.taps, rows.tile, rows.groups, rows.first, rows.used
    A, B, C, E = rows.relation
    NUM_H, DEN_H = rows.advance
    PRODUCTS, PAIRS, THREADS, SHARED = body.products, body.products // 2, 32 * WARPS, body.shared_words
    NACC, NRAW, NTAPS, TAP_BYTES = TH * 16, NH * 8, R * PRODUCTS * 2, PRODUCTS * 256
    backward = body.backward
    stride_d, stride_h, stride_w = body.strides
    source_d, source_h, source_w = (make_source(s, backward) for s in (stride_d, stride_h, stride_w))
    mma, lay_fragments = make_mma(body.dtype), make_fragments(body)
    finish = make_finish(body.epilogue, 8, body.put_words, body.residual_words)
    load_biases = make_biases(body.epilogue, 8, False)

    @device_function
    def read_filters(r, s):
        kept, at, pitch = s
        for p in range(PAIRS):
            k = (r * PAIRS + p) * 4
            kept[k], kept[k + 1], kept[k + 2], kept[k + 3] = load_shared_4u32(at + u32(r * pitch) + u32(p * 512))
    read_all = unrolled(R, read_filters)

    @device_function
    def fetch(i, s):
        raw, source, images, firsts, columns, oks, height, row_stride, column_stride = s
        if (USED >> i) & 1:
            for p in range(2):
                row = firsts[p] + i
                ok = oks[p] != 0 and 0 <= row and row < height
                at = images[p] + (row * row_stride + columns[p] * column_stride)
                load4_nc_if_into(raw, i * 8 + p * 4, as_u32(advance(source, at)), 0, i32(ok))
    fetch_all = unrolled(NH, fetch)

    @device_function
    def multiply(j, s):
        acc, fragment, kept, i = s
        total = E * (i + ROW0) - A * j - C
        if total % B == 0:
            r = total // B
            if 0 <= r and r < R:
                for m in range(PRODUCTS):
                    u = m if PRODUCTS == 4 else m & 3
                    q = m >> 1 if PRODUCTS == 4 else m >> 2
                    mma(acc, j * 16 + u * 4, fragment, q * 4, kept, (r * PRODUCTS + m) * 2)
    multiply_all = unrolled(TH, multiply)

    @device_function
    def step(i, s):
        acc, kept, state = s
        raw = state[0]
        if (USED >> i) & 1:
            fragment = cuda.local.array(8, u32)
            for q in range(2):
                for word in range(2):
                    for p in range(2):
                        fragment[q * 4 + word * 2 + p] = raw[i * 8 + p * 4 + q * 2 + word]
            fetch(i, state)
            multiply_all(0, (acc, fragment, kept, i))
    steps = unrolled(NH, step)

    @device_function
    def column_of_taps(k, s):
        acc, kept, state, lefts, deep, mine, first_tap, width, padding, dilation = s
        columns, oks = state[4], state[5]
        read_all(0, (kept, mine + u32((first_tap + k) * TAP_BYTES), i32(S * TAP_BYTES)))
        # the loads of the next column begin where this one's words have been taken out
        for p in range(2):
            columns[p] = source_w(lefts[p], k + 1, padding, dilation)
            oks[p] = 1 if deep[p] != 0 and k + 1 < S and 0 <= columns[p] and columns[p] < width else 0
        steps(0, (acc, kept, state))
    taps_all = unrolled(S if UNROLL else 1, column_of_taps)

    @device_function
    def output(j, s):
        acc, result, residual, results, others, inside, first_rows, height, row_stride, other_stride, biases, alpha, beta = s
        for p in range(2):
            if inside[p] != 0 and first_rows[p] + j < height:
                values = cuda.local.array(8, f32)
                for u in range(4):
                    values[2 * u], values[2 * u + 1] = acc[j * 16 + u * 4 + 2 * p], acc[j * 16 + u * 4 + 2 * p + 1]
                finish(values, 0, advance(result, results[p] + j * row_stride), 0, biases, alpha, beta,
                       advance(residual, others[p] + j * other_stride), 0)
    outputs = unrolled(TH, output)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_grouped_mma(source, w, result, residual, bias, count, turns, slices, result_w, tiles_h, depth, channels, filter_t, filter_r,
                         window, source_sizes, result_sizes, source_strides, result_strides, residual_strides, bias_stride, alpha, beta,
                         w_strides):
        filters = cuda.shared.array(SHARED, u32, alignment=16)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        block, part = divide_remainder(cuda.blockIdx.x, slices)
        first = part * SLICE
        lay_fragments(filters, w, first, channels, tid, w_strides)
        cuda.syncthreads()
        channel = first + 8 * (lane & 3)
        mine = shared_address(filters, 0) + u32(16 * lane)
        biases = cuda.local.array(8, f32)
        if channel < channels:
            load_biases(biases, bias, bias_stride, channel)
        acc, raw, kept = cuda.local.array(NACC, f32), cuda.local.array(NRAW, u32), cuda.local.array(NTAPS, u32)
        # of the two columns of pixels: first row of the window, column, whether to load; place in the image and in the arrays
        firsts, columns, oks, deep = (cuda.local.array(2, i32), cuda.local.array(2, i32), cuda.local.array(2, i32),
                                      cuda.local.array(2, i32))
        planes, tops, lefts, inside = (cuda.local.array(2, i32), cuda.local.array(2, i32), cuda.local.array(2, i32),
                                       cuda.local.array(2, i32))
        starts, images, results, others = (cuda.local.array(2, i64), cuda.local.array(2, i64), cuda.local.array(2, i64),
                                           cuda.local.array(2, i64))
        height, width = source_sizes[1], source_sizes[2]
        state = raw, source, images, firsts, columns, oks, height, i32(source_strides[2]), i32(source_strides[3])
        for turn in range(turns):
            start = ((block * turns + turn) * WARPS + warp) * COLUMNS + (lane >> 2)
            for a in range(NACC):
                acc[a] = f32(0)
            for p in range(2):
                at = start + 8 * p
                inside[p] = 1 if at < count and channel < channels else 0
                at, left = divide_remainder(at if at < count else 0, result_w)
                at, top = divide_remainder(at, tiles_h)
                n, plane = divide_remainder(at, depth)
                planes[p], tops[p], lefts[p] = plane, top * TH, left
                starts[p] = n * source_strides[0] + channel
                results[p] = i64(n * result_strides[0] + plane * result_strides[1] + tops[p] * result_strides[2]
                                 + left * result_strides[3] + channel)
                others[p] = i64(n * residual_strides[0] + plane * residual_strides[1] + tops[p] * residual_strides[2]
                                + left * residual_strides[3] + channel)
            for outer in range(filter_t * (filter_r if DYNAMIC else 1)):
                t, r = outer, i32(0)
                if DYNAMIC:
                    t = i32(u32(outer) // u32(filter_r))
                    r = outer - t * filter_r
                for p in range(2):
                    if DYNAMIC:
                        firsts[p] = source_h(tops[p], r, window[2], window[3])
                    else:
                        firsts[p] = i32(u32(tops[p] * NUM_H) // DEN_H) + window[4] + ROW0
                    columns[p] = source_w(lefts[p], 0, window[5], window[6])
                    z = source_d(planes[p], t, window[0], window[1])
                    images[p] = starts[p] + z * source_strides[1]
                    deep[p] = 1 if inside[p] != 0 and 0 <= z and z < source_sizes[0] else 0
                    oks[p] = 1 if deep[p] != 0 and 0 <= columns[p] and columns[p] < width else 0
                fetch_all(0, state)
                first_tap = (t * filter_r + r) * S
                if UNROLL:
                    taps_all(0, (acc, kept, state, lefts, deep, mine, first_tap, width, window[5], window[6]))
                else:
                    for s in range(S):
                        column_of_taps(s, (acc, kept, state, lefts, deep, mine, first_tap, width, window[5], window[6]))
            outputs(0, (acc, result, residual, results, others, inside, tops, result_sizes[1], i32(result_strides[2]),
                        i32(residual_strides[2]), biases, alpha, beta))
    return conv_grouped_mma
