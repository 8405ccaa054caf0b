"""Kernels of the direct convolution: a tile of the source with its rim in shared memory, several filters a thread in registers.

All directions share the picture. In `slide_kernel` a thread owns `pixels` pixels of the result and `filters` channels of it; for each
channel and tap it reads one source element a pixel, and the same `filters` filter elements as all its neighbours, which costs one access
for all of them. The gradient of x slides over dy with zeros between its elements where the stride was. In `sum_kernel` a thread owns one
channel and tap, and `filters` filters; for each pixel it reads one element of x, and the `filters` elements of dy that all threads read.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, f64, i32, i64, jit, u32
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, make_epilogue
from ...device.index import divide_remainder
from ...device.vec import advance, load2, load4


@dataclass(frozen=True)
class Body:
    """What the kernels are compiled for.

    `th` x `tw` threads side by side, `pixels` rows of them a thread, `filters` and `channels` at a time; `filter` (T, R, S). `last`:
    channels lie next to each other in memory.
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
        """Elements of a channel's tile in shared memory; odd, so that neighbouring channels lie in different banks."""
        return self.extents[0] * self.extents[1] | 1


def _loader(dtype):
    """Type of the sums, and load of an element in it."""
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


def _make_stage(body, load, threads):
    """Device function that brings a tile of `channels` channels of the source into shared memory, zeros outside and between."""
    CHANNELS, THREADS, PLANE, last = body.channels, threads, body.plane, body.last
    ROWS, COLUMNS = body.extents
    STRIDE_H, STRIDE_W = body.strides[1:] if body.backward else (1, 1)
    T, TOTAL = _loader(body.dtype_a)[0], body.channels * ROWS * COLUMNS

    @device_function
    def stage(tile, source, left, row, column, height, width, channel_stride, row_stride, column_stride):
        for e in range(cuda.threadIdx.x, TOTAL, THREADS):
            if last:
                rest = i32(u32(e) // CHANNELS)
                c = e - rest * CHANNELS
                j = i32(u32(rest) // COLUMNS)
                i = rest - j * COLUMNS
            else:
                rest = i32(u32(e) // COLUMNS)
                i = e - rest * COLUMNS
                c = i32(u32(rest) // ROWS)
                j = rest - c * ROWS
            h, v = row + j, column + i
            value = T(0)
            if c < left and h >= 0 and v >= 0:
                hh, vv = i32(u32(h) // STRIDE_H), i32(u32(v) // STRIDE_W)
                if hh * STRIDE_H == h and vv * STRIDE_W == v and hh < height and vv < width:
                    value = T(load(source, c * channel_stride + hh * row_stride + vv * column_stride))
            tile[c * PLANE + j * COLUMNS + i] = value
    return stage


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
    stage, epilogue = _make_stage(body, load_source, THREADS), make_epilogue(body.epilogue)
    TILE, TAPS, NACC = BC * PLANE, BC * FR * FS * KT, KT * PT
    read_group = _make_group(KT, body.dtype_a == "float64")

    @jit(launch_bounds=THREADS)
    def conv_direct_slide(source, w, result, sizes, tiles, window, source_strides, w_strides, result_strides, residual_strides, alpha, beta,
                          bias, bias_stride, prior, row_unused, column_stride, residual, residual_row, residual_column):
        tile, taps = cuda.shared.array(TILE, T), cuda.shared.array(TAPS, T, alignment=16)
        acc, kept = cuda.local.array(NACC, T), cuda.local.array(KT, T)
        # channels of source and result in a group, extents of both
        cs, kr, D, H, W, O, P, Q = sizes
        tid = cuda.threadIdx.x
        tile_w, tile_h, depth = (tiles[0], tiles[1], tiles[2]), (tiles[3], tiles[4], tiles[5]), (tiles[6], tiles[7], tiles[8])
        parts, groups = (tiles[9], tiles[10], tiles[11]), (tiles[12], tiles[13], tiles[14])
        at, part = divide_remainder(cuda.blockIdx.x, parts)
        at, left = divide_remainder(at, tile_w)
        at, top = divide_remainder(at, tile_h)
        at, plane = divide_remainder(at, depth)
        n, group = divide_remainder(at, groups)
        left, top, first = left * TW, top * (TH * PT), part * KT
        ty = i32(u32(tid) // TW)
        tx = tid - ty * TW
        for a in range(NACC):
            acc[a] = T(0)
        row, column = top * AH + window[1], left * AW + window[2]
        for t in range(FT):
            z = plane * SD + window[0] + t * DD
            there = z >= 0
            if backward:
                u = plane + window[0] - t * DD
                z = i32(u32(u if u >= 0 else 0) // SD)
                there = u >= 0 and z * SD == u
            if there and z < D:
                for c0 in range(0, cs, BC):
                    left_over = cs - c0
                    # the source's tile, and the filters of these channels with those of one tap side by side
                    slab = advance(source, i64(n * source_strides[0] + (group * cs + c0) * source_strides[1]
                                               + z * source_strides[2]))
                    cuda.syncthreads()
                    stage(tile, slab, left_over, row, column, H, W, source_strides[1], source_strides[3], source_strides[4])
                    for e in range(tid, TAPS, THREADS):
                        rest = i32(u32(e) // KT)
                        k = e - rest * KT
                        c = i32(u32(rest) // (FR * FS))
                        rest = rest - c * (FR * FS)
                        r = i32(u32(rest) // FS)
                        s = rest - r * FS
                        value = T(0)
                        if c < left_over and first + k < kr:
                            # the gradient slides over the taps backwards
                            tt, rr, ss = t, r, s
                            if backward:
                                rr, ss = FR - 1 - r, FS - 1 - s
                            if flip:
                                tt, rr, ss = FT - 1 - tt, FR - 1 - rr, FS - 1 - ss
                            outer, inner = group * kr + first + k, c0 + c
                            if backward:
                                outer, inner = group * cs + c0 + c, first + k
                            value = T(load_w(w, i64(outer * w_strides[0] + inner * w_strides[1] + tt * w_strides[2]
                                                    + rr * w_strides[3] + ss * w_strides[4])))
                        taps[e] = value
                    cuda.syncthreads()
                    for c in range(min(BC, left_over)):
                        for r in range(FR):
                            place = c * PLANE + (ty * AH + r * DH) * COLUMNS + tx * AW
                            filters = (c * FR + r) * (FS * KT)
                            for s in range(FS):
                                read_group(kept, taps, filters + s * KT)
                                for p in range(PT):
                                    value = tile[place + p * (TH * AH * COLUMNS) + s * DW]
                                    for k in range(KT):
                                        acc[p * KT + k] += value * kept[k]
        for p in range(PT):
            y, x = top + ty + p * TH, left + tx
            if y < P and x < Q:
                at_result = i64(n * result_strides[0] + plane * result_strides[2] + y * result_strides[3]
                                + x * result_strides[4])
                at_residual = i64(n * residual_strides[0] + plane * residual_strides[2] + y * residual_strides[3]
                                  + x * residual_strides[4])
                e = (alpha, beta, bias, bias_stride, advance(prior, at_result), row_unused, column_stride, advance(residual, at_residual),
                     residual_row, residual_column)
                for k in range(KT):
                    if first + k < kr:
                        channel = group * kr + first + k
                        result[at_result + channel * result_strides[1]] = epilogue(acc[p * KT + k], 0, channel, e)
    return conv_direct_slide


@functools.cache
def sum_kernel(body, threads):
    """dw: a block sums tiles of pixels for `filters` filters, and as many channels and taps as it has threads; [split][k][c][t][r][s]."""
    KT, BC, THREADS, TW, TH = body.filters, body.channels, threads, body.tw, body.th
    FT, FR, FS = body.filter
    SD, SH, SW = body.strides
    DD, DH, DW = body.dilations
    PLANE, COLUMNS, flip = body.plane, body.extents[1], body.flip
    T, load_x = _loader(body.dtype_a)
    _, load_y = _loader(body.dtype_b)
    stage = _make_stage(body, load_x, THREADS)
    TILE, PIXELS = BC * PLANE, TH * TW
    AREA, RESULTS = PIXELS * KT, FR * FS
    read_group = _make_group(KT, body.dtype_a == "float64")

    @jit(launch_bounds=THREADS)
    def conv_direct_sum(x, dy, partial, sizes, tiles, count, splits, window, x_strides, y_strides, elements):
        tile, gradients = cuda.shared.array(TILE, T), cuda.shared.array(AREA, T, alignment=16)
        acc, kept = cuda.local.array(KT, T), cuda.local.array(KT, T)
        cs, kr, D, H, W, O, P, Q = sizes
        tid = cuda.threadIdx.x
        tile_w, tile_h, depth = (tiles[0], tiles[1], tiles[2]), (tiles[3], tiles[4], tiles[5]), (tiles[6], tiles[7], tiles[8])
        parts, slabs, groups = ((tiles[9], tiles[10], tiles[11]), (tiles[12], tiles[13], tiles[14]),
                                (tiles[15], tiles[16], tiles[17]))
        at, part = divide_remainder(cuda.blockIdx.x, parts)
        at, slab = divide_remainder(at, slabs)
        split, group = divide_remainder(at, groups)
        first = part * KT
        c0 = i32(u32(slab) // FT) * BC
        t = slab - i32(u32(slab) // FT) * FT
        # this thread's channel and tap
        c = i32(u32(tid) // RESULTS)
        tap = tid - c * RESULTS
        r = i32(u32(tap) // FS)
        s = tap - r * FS
        mine = c < BC and c0 + c < cs
        place = (c if mine else 0) * PLANE + r * DH * COLUMNS + s * DW
        for k in range(KT):
            acc[k] = T(0)
        for index in range(split, count, splits):
            rest, left = divide_remainder(index, tile_w)
            rest, top = divide_remainder(rest, tile_h)
            n, plane = divide_remainder(rest, depth)
            left, top = left * TW, top * TH
            z = plane * SD + window[0] + t * DD
            if 0 <= z and z < D:
                slice_x = advance(x, n * x_strides[0] + (group * cs + c0) * x_strides[1] + z * x_strides[2])
                slice_y = advance(dy, n * y_strides[0] + (group * kr + first) * y_strides[1] + plane * y_strides[2])
                cuda.syncthreads()
                stage(tile, slice_x, cs - c0, top * SH + window[1], left * SW + window[2], H, W, x_strides[1], x_strides[3],
                      x_strides[4])
                for e in range(tid, AREA, THREADS):
                    pixel = i32(u32(e) // KT)
                    k = e - pixel * KT
                    j = i32(u32(pixel) // TW)
                    i = pixel - j * TW
                    value = T(0)
                    if top + j < P and left + i < Q and first + k < kr:
                        value = T(load_y(slice_y, i64(k * y_strides[1] + (top + j) * y_strides[3]
                                                      + (left + i) * y_strides[4])))
                    gradients[e] = value
                cuda.syncthreads()
                for j in range(TH):
                    for i in range(TW):
                        value = tile[place + j * (SH * COLUMNS) + i * SW]
                        read_group(kept, gradients, (j * TW + i) * KT)
                        for k in range(KT):
                            acc[k] += value * kept[k]
        if mine:
            tt, rr, ss = t, r, s
            if flip:
                tt, rr, ss = FT - 1 - t, FR - 1 - r, FS - 1 - s
            for k in range(KT):
                if first + k < kr:
                    e = i64((i64(group * kr + first + k) * cs + (c0 + c)) * (FT * RESULTS)
                            + ((tt * FR + rr) * FS + ss))
                    partial[split * elements + e] = acc[k]
    return conv_direct_sum


@functools.cache
def total_kernel(epilogue_spec, threads):
    """dw = the epilogue of the sums of the splits, a thread an element."""
    T = f64 if epilogue_spec.accumulator == "float64" else f32
    epilogue = make_epilogue(epilogue_spec)

    @jit(launch_bounds=threads)
    def conv_direct_total(partial, dw, elements, splits, extents, strides, alpha, beta, bias, bias_stride, prior, row, column, residual,
                          residual_row, residual_column):
        i = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if i < elements:
            total = T(0)
            for split in range(splits):
                total = T(total + partial[split * i64(elements) + i])
            rest, s = divide_remainder(i, (extents[0], extents[1], extents[2]))
            rest, r = divide_remainder(rest, (extents[3], extents[4], extents[5]))
            rest, t = divide_remainder(rest, (extents[6], extents[7], extents[8]))
            k, c = divide_remainder(rest, (extents[9], extents[10], extents[11]))
            at = k * strides[0] + c * strides[1] + t * strides[2] + r * strides[3] + s * strides[4]
            e = (alpha, beta, bias, bias_stride, advance(prior, at), row, column, residual, residual_row, residual_column)
            dw[at] = epilogue(total, 0, 0, e)
    return conv_direct_total
