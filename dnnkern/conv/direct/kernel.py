"""Kernels of the direct convolution: a source tile with its halo in shared memory, several filters per thread in registers.

`slide_kernel` computes y or dx. A thread owns `pixels` output pixels and `filters` output channels. For each input channel and tap it
reads one source element per pixel, and `filters` filter elements, which are the same for the whole block: one broadcast. dx slides over
dy with zeros inserted between its elements where the stride was.

`partial_sum_kernel` computes dw. A thread owns one input channel and tap, and `filters` filters. For each pixel it reads one element of x,
and `filters` elements of dy, which are the same for the whole block. Blocks divide the pixels; `reduce_kernel` adds their partial sums.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ResidualParams, make_epilogue
from ...device.index import Divisor, divide_remainder, divmod_unsigned
from ...device.vec import advance, load2, load4


@dataclass(frozen=True)
class Body:
    """What the kernels are compiled for.

    A block has `th` x `tw` threads; a thread computes `pixels` pixels, `th` rows apart, for `filters` filters; `channels` input channels
    are in shared memory at a time. `filter` is (T, R, S). `last`: the source's channels are contiguous in memory.
    """
    dtype_a: str
    dtype_b: str
    th: int
    tw: int
    pixels: int
    filters: int
    channels: int
    filter: tuple
    strides: tuple
    dilations: tuple
    backward: int
    flip: int
    last: int
    epilogue: EpilogueSpec

    @property
    def threads(self):
        return self.th * self.tw

    @property
    def steps(self):
        """Rows and columns of the source tile from one pixel to the next."""
        return (1, 1) if self.backward else self.strides[1:]

    @property
    def extents(self):
        """Rows and columns of the source tile."""
        (_, r, s), (_, dh, dw), (ah, aw) = self.filter, self.dilations, self.steps
        return (self.th * self.pixels - 1) * ah + (r - 1) * dh + 1, (self.tw - 1) * aw + (s - 1) * dw + 1

    @property
    def plane(self):
        """Elements of a channel's tile in shared memory; odd, so that neighbouring channels are in different banks."""
        return self.extents[0] * self.extents[1] | 1


class Sizes(NamedTuple):
    """Channels of source and result in a group, extents of source (d, h, w) and result (o, p, q)."""
    c_source: i32
    c_result: i32
    d: i32
    h: i32
    w: i32
    o: i32
    p: i32
    q: i32


class Origin(NamedTuple):
    """Source position of output 0 and tap 0 along d, h, w."""
    d: i32
    h: i32
    w: i32


class SlideBlocks(NamedTuple):
    """Numbers of output tiles along w, h and d, of blocks of filters, and of groups."""
    tile_w: Divisor
    tile_h: Divisor
    depth: Divisor
    filters: Divisor
    groups: Divisor


class SumBlocks(NamedTuple):
    """Numbers of tiles of pixels along w, h and d, of blocks of filters, of blocks of channels times depth taps, and of groups."""
    tile_w: Divisor
    tile_h: Divisor
    depth: Divisor
    filters: Divisor
    channels: Divisor
    groups: Divisor


class FilterDivisors(NamedTuple):
    """Extents of dw along s, r, t and c: they turn a flat index into an element's indices."""
    s: Divisor
    r: Divisor
    t: Divisor
    c: Divisor


def _loader(dtype):
    """Type of the accumulators, and load of an element in it."""
    if dtype == "int8":
        return i32, device_function(lambda p, i: i32(p[i]))
    return f64 if dtype == "float64" else f32, element(dtype).load


@functools.cache
def _make_group(count, wide):
    """Device function ``read_group(kept, array, i)``: kept[0:count] from array[i:i+count] of shared memory, 16 bytes at a time."""
    @device_function
    def read_group(kept, array, i):
        if wide:
            for k in range(0, count, 2):
                kept[k], kept[k + 1] = load2(array, i + k)
        else:
            for k in range(0, count, 4):
                kept[k], kept[k + 1], kept[k + 2], kept[k + 3] = load4(array, i + k)
    return read_group


def _make_load_tile(body, load, threads):
    """Device function that copies a tile of `channels` source channels to shared memory; zeros in the padding and where dy is dilated."""
    CHANNELS, THREADS, PLANE, last = body.channels, threads, body.plane, body.last
    ROWS, COLUMNS = body.extents
    STRIDE_H, STRIDE_W = body.strides[1:] if body.backward else (1, 1)
    T, TOTAL = _loader(body.dtype_a)[0], body.channels * ROWS * COLUMNS

    @device_function
    def load_tile(tile, source, channels_left, row, column, height, width, stride):
        for e in range(cuda.threadIdx.x, TOTAL, THREADS):
            if last:
                rest, c = divmod_unsigned(e, CHANNELS)
                j, i = divmod_unsigned(rest, COLUMNS)
            else:
                rest, i = divmod_unsigned(e, COLUMNS)
                c, j = divmod_unsigned(rest, ROWS)
            h, v = row + j, column + i
            value = T(0)
            if c < channels_left and h >= 0 and v >= 0:
                hh, h_rest = divmod_unsigned(h, STRIDE_H)
                vv, v_rest = divmod_unsigned(v, STRIDE_W)
                if h_rest == 0 and v_rest == 0 and hh < height and vv < width:
                    value = T(load(source, c * stride.c + hh * stride.h + vv * stride.w))
            tile[c * PLANE + j * COLUMNS + i] = value
    return load_tile


@functools.cache
def slide_kernel(body):
    """y, or dx: a block computes `filters` channels of a tile of pixels."""
    KT, PT, BC, THREADS, TW, TH = body.filters, body.pixels, body.channels, body.threads, body.tw, body.th
    FT, FR, FS = body.filter
    SD, SH, SW = body.strides
    DD, DH, DW = body.dilations
    AH, AW = body.steps
    PLANE, COLUMNS, backward, flip = body.plane, body.extents[1], body.backward, body.flip
    T, load_source = _loader(body.dtype_a)
    _, load_w = _loader(body.dtype_b)
    load_tile, epilogue = _make_load_tile(body, load_source, THREADS), make_epilogue(body.epilogue)
    TILE, TAPS, NACC = BC * PLANE, BC * FR * FS * KT, KT * PT
    read_group = _make_group(KT, body.dtype_a == "float64")

    @jit(launch_bounds=THREADS)
    def conv_direct_slide(source, w, result, size, blocks, origin, source_stride, w_stride, result_stride, residual_stride, alpha, beta,
                          bias, bias_stride, prior, row_unused, column_stride, residual, residual_row, residual_column):
        tile, taps = cuda.shared.array(TILE, T), cuda.shared.array(TAPS, T, alignment=16)
        acc, w_fragment = cuda.local.array(NACC, T), cuda.local.array(KT, T)
        tid = cuda.threadIdx.x

        # this block's filters and output tile
        rest, filter_block = divide_remainder(cuda.blockIdx.x, blocks.filters)
        rest, tile_w = divide_remainder(rest, blocks.tile_w)
        rest, tile_h = divide_remainder(rest, blocks.tile_h)
        rest, o = divide_remainder(rest, blocks.depth)
        n, group = divide_remainder(rest, blocks.groups)
        q0, p0, k0 = tile_w * TW, tile_h * (TH * PT), filter_block * KT
        ty, tx = divmod_unsigned(tid, TW)
        for a in range(NACC):
            acc[a] = T(0)
        h0, w0 = p0 * AH + origin.h, q0 * AW + origin.w

        for t in range(FT):
            d = o * SD + origin.d + t * DD
            in_source = d >= 0
            if backward:
                u = o + origin.d - t * DD
                d, d_rest = divmod_unsigned(u if u >= 0 else 0, SD)
                in_source = u >= 0 and d_rest == 0
            if in_source and d < size.d:
                for c0 in range(0, size.c_source, BC):
                    channels_left = size.c_source - c0
                    plane = advance(source, n * source_stride.n + (group * size.c_source + c0) * source_stride.c + d * source_stride.d)
                    cuda.syncthreads()
                    load_tile(tile, plane, channels_left, h0, w0, size.h, size.w, source_stride)

                    # load filters: those of one channel and tap side by side
                    for e in range(tid, TAPS, THREADS):
                        rest, k = divmod_unsigned(e, KT)
                        c, rest = divmod_unsigned(rest, FR * FS)
                        r, s = divmod_unsigned(rest, FS)
                        value = T(0)
                        if c < channels_left and k0 + k < size.c_result:
                            # dx slides over the taps backwards
                            tt, rr, ss = t, r, s
                            if backward:
                                rr, ss = FR - 1 - r, FS - 1 - s
                            if flip:
                                tt, rr, ss = FT - 1 - tt, FR - 1 - rr, FS - 1 - ss
                            outer, inner = group * size.c_result + k0 + k, c0 + c
                            if backward:
                                outer, inner = group * size.c_source + c0 + c, k0 + k
                            value = T(load_w(w, outer * w_stride.k + inner * w_stride.c + tt * w_stride.t + rr * w_stride.r
                                             + ss * w_stride.s))
                        taps[e] = value
                    cuda.syncthreads()

                    # multiply-add
                    for c in range(min(BC, channels_left)):
                        for r in range(FR):
                            tile_at = c * PLANE + (ty * AH + r * DH) * COLUMNS + tx * AW
                            taps_at = (c * FR + r) * (FS * KT)
                            for s in range(FS):
                                read_group(w_fragment, taps, taps_at + s * KT)
                                for p in range(PT):
                                    value = tile[tile_at + p * (TH * AH * COLUMNS) + s * DW]
                                    for k in range(KT):
                                        acc[p * KT + k] += value * w_fragment[k]

        # write back
        for i in range(PT):
            p, q = p0 + ty + i * TH, q0 + tx
            if p < size.p and q < size.q:
                y_at = n * result_stride.n + o * result_stride.d + p * result_stride.h + q * result_stride.w
                residual_at = n * residual_stride.n + o * residual_stride.d + p * residual_stride.h + q * residual_stride.w
                e = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, y_at), row_unused, column_stride,
                                   advance(residual, residual_at), residual_row, residual_column)
                for k in range(KT):
                    if k0 + k < size.c_result:
                        channel = group * size.c_result + k0 + k
                        result[y_at + channel * result_stride.c] = epilogue(acc[i * KT + k], 0, channel, e)
    return conv_direct_slide


@functools.cache
def partial_sum_kernel(body, threads):
    """Partial sums of dw, [split][k][c][t][r][s]: a block adds tiles of pixels for `filters` filters, and as many channels and taps as it
    has threads."""
    KT, BC, THREADS, TW, TH = body.filters, body.channels, threads, body.tw, body.th
    FT, FR, FS = body.filter
    SD, SH, SW = body.strides
    DD, DH, DW = body.dilations
    PLANE, COLUMNS, flip = body.plane, body.extents[1], body.flip
    T, load_x = _loader(body.dtype_a)
    _, load_y = _loader(body.dtype_b)
    load_tile = _make_load_tile(body, load_x, THREADS)
    TILE, PIXELS = BC * PLANE, TH * TW
    AREA, TAPS = PIXELS * KT, FR * FS
    read_group = _make_group(KT, body.dtype_a == "float64")

    @jit(launch_bounds=THREADS)
    def conv_direct_partial_sum(x, dy, partial, size, blocks, count, splits, origin, x_stride, y_stride, elements):
        tile, gradients = cuda.shared.array(TILE, T), cuda.shared.array(AREA, T, alignment=16)
        acc, dy_fragment = cuda.local.array(KT, T), cuda.local.array(KT, T)
        tid = cuda.threadIdx.x

        # this block's filters, channels and depth tap
        rest, filter_block = divide_remainder(cuda.blockIdx.x, blocks.filters)
        rest, channel_block = divide_remainder(rest, blocks.channels)
        split, group = divide_remainder(rest, blocks.groups)
        k0 = filter_block * KT
        channel_block, t = divmod_unsigned(channel_block, FT)
        c0 = channel_block * BC

        # this thread's channel and tap
        c, tap = divmod_unsigned(tid, TAPS)
        r, s = divmod_unsigned(tap, FS)
        has_result = c < BC and c0 + c < size.c_source
        tile_at = (c if has_result else 0) * PLANE + r * DH * COLUMNS + s * DW
        for k in range(KT):
            acc[k] = T(0)

        for index in range(split, count, splits):
            rest, tile_w = divide_remainder(index, blocks.tile_w)
            rest, tile_h = divide_remainder(rest, blocks.tile_h)
            n, o = divide_remainder(rest, blocks.depth)
            q0, p0 = tile_w * TW, tile_h * TH
            d = o * SD + origin.d + t * DD
            if 0 <= d and d < size.d:
                x_plane = advance(x, n * x_stride.n + (group * size.c_source + c0) * x_stride.c + d * x_stride.d)
                y_plane = advance(dy, n * y_stride.n + (group * size.c_result + k0) * y_stride.k + o * y_stride.o)
                cuda.syncthreads()
                load_tile(tile, x_plane, size.c_source - c0, p0 * SH + origin.h, q0 * SW + origin.w, size.h, size.w, x_stride)

                # load dy: the filters of one pixel side by side
                for e in range(tid, AREA, THREADS):
                    pixel, k = divmod_unsigned(e, KT)
                    j, i = divmod_unsigned(pixel, TW)
                    value = T(0)
                    if p0 + j < size.p and q0 + i < size.q and k0 + k < size.c_result:
                        value = T(load_y(y_plane, k * y_stride.k + (p0 + j) * y_stride.p + (q0 + i) * y_stride.q))
                    gradients[e] = value
                cuda.syncthreads()

                # multiply-add
                for j in range(TH):
                    for i in range(TW):
                        value = tile[tile_at + j * (SH * COLUMNS) + i * SW]
                        read_group(dy_fragment, gradients, (j * TW + i) * KT)
                        for k in range(KT):
                            acc[k] += value * dy_fragment[k]

        # write back
        if has_result:
            tt, rr, ss = t, r, s
            if flip:
                tt, rr, ss = FT - 1 - t, FR - 1 - r, FS - 1 - s
            for k in range(KT):
                if k0 + k < size.c_result:
                    e = (i64(group * size.c_result + k0 + k) * size.c_source + (c0 + c)) * (FT * TAPS) + ((tt * FR + rr) * FS + ss)
                    partial[split * elements + e] = acc[k]
    return conv_direct_partial_sum


@functools.cache
def reduce_kernel(epilogue_spec, threads):
    """dw: the epilogue of the sum over the splits, one thread per element."""
    T = f64 if epilogue_spec.accumulator == "float64" else f32
    epilogue = make_epilogue(epilogue_spec)

    @jit(launch_bounds=threads)
    def conv_direct_reduce(partial, dw, elements, splits, extents, stride, alpha, beta, bias, bias_stride, prior, row, column, residual,
                           residual_row, residual_column):
        i = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if i < elements:
            total = T(0)
            for split in range(splits):
                total = T(total + partial[split * i64(elements) + i])
            rest, s = divide_remainder(i, extents.s)
            rest, r = divide_remainder(rest, extents.r)
            rest, t = divide_remainder(rest, extents.t)
            k, c = divide_remainder(rest, extents.c)
            at = k * stride.k + c * stride.c + t * stride.t + r * stride.r + s * stride.s
            e = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, residual, residual_row, residual_column)
            dw[at] = epilogue(total, 0, 0, e)
    return conv_direct_reduce
