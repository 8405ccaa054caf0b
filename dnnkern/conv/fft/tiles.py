"""Real tiles of an image to spectra in the workspace, and spectra to results.

A spectrum array is [frequency][item][channel] of complex numbers; an item is a tile of an image, or a filter, which is one tile; items are
`pitch` channels apart. Products over channels or over items then read contiguous channels, whatever the layout of the image. A real tile of
lh x lw has lh * lw/2 + 2 frequencies: columns 1 to lw/2 - 1 have lh each; columns 0 and lw/2, whose upper halves mirror the lower ones,
have lh/2 + 1 each.

A block transforms one tile of `ch` channels; a thread transforms one line at a time, in registers::

    image --cp.async--> shared memory --> two rows in a thread, one complex transform, split -->
    shared memory, [row][column][channel] --> a column in a thread, a transform --> workspace, runs of ch channels

and the same in reverse, with the epilogue before the results are stored. With lh = 1 there are no columns: each row is a tile, `rows` of
them per block. A spectrum here is twice the transform.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.cp_async import commit_copies, copy_async4, wait_copies
from ...device.epilogue import EpilogueSpec, ResidualParams, make_epilogue
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import address, advance, load2, load2_if, shared_address, store2
from .lines import make_fft, make_place, place


def _power(n):
    """The least power of two not below n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Lines:
    """A block's tile of lh x lw and ch channels; neighbouring threads have neighbouring channels in lines of a transform.

    Attributes
    ----------
    lh, lw : int
        Extents of the transform; lh = 1: each row is a tile.
    ch : int
        Channels of a block.
    last : int
        1 where channels are contiguous in memory.
    rows : int
        Rows of a block: lh, or so many tiles.
    """
    lh: int
    lw: int
    ch: int
    last: int
    rows: int

    @property
    def lines(self):
        """Threads per channel."""
        return _power(max(self.rows, self.lw if self.lh > 1 else 2) // 2)

    @property
    def threads(self):
        return self.ch * self.lines

    @property
    def frequencies(self):
        return self.lh * self.lw // 2 + 2 if self.lh > 1 else self.lw // 2 + 1

    # strides of the pixels in shared memory, in floats; 32 lines of neighbouring channels begin in 32 banks

    @property
    def row(self):
        return self.lw * (self.ch if self.last else 1)

    @property
    def pair(self):
        """From two rows to the next two."""
        return 2 * self.row + (self.ch - 2 * self.row) % 32

    @property
    def channel(self):
        plane = self.rows // 2 * self.pair
        return 1 if self.last else plane + (1 - plane) % 32

    @property
    def pixel(self):
        return self.ch if self.last else 1

    # strides of the half transformed rows, in complex numbers

    @property
    def half_row(self):
        return self.lw // 2 * self.ch

    @property
    def half_pair(self):
        return self.lw * self.ch + self.ch % 16

    @property
    def shared(self):
        """Bytes: pixels, and in their place the rows' transforms."""
        pixels = self.rows // 2 * self.pair if self.last else self.ch * self.channel
        return 4 * max(pixels, 2 * (self.rows // 2) * self.half_pair if self.lh > 1 else 0)

    @property
    def spread(self):
        """(channels, rows, columns) of an image that the threads read or write at once."""
        channels = self.ch if self.last else 1
        columns = min(32, _power(self.lw), self.threads // channels)
        rows = min(_power(self.rows), self.threads // channels // columns)
        return self.threads // rows // columns, rows, columns

    @property
    def blocks(self):
        """Per multiprocessor: 128 registers per thread for lines of up to 32, more for longer ones."""
        registers = 128 if max(self.lh, self.lw) <= 32 else 168 if max(self.lh, self.lw) <= 40 else 255
        return max(1, min(65536 // (registers * max(self.threads, 32)), 227 * 1024 // (self.shared + 1024), 16))


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for; the epilogue is that of the results' kernel."""
    lines: Lines
    epilogue: EpilogueSpec | None = None


class AnalysisSizes(NamedTuple):
    """Channels of the image and pitch of the spectra; extents of the image, used rows and columns of a tile, distance of tiles, padding."""
    channels: i32
    pitch: i32
    h: i32
    w: i32
    used_h: i32
    used_w: i32
    step_h: i32
    step_w: i32
    pad_h: i32
    pad_w: i32


class SynthesisSizes(NamedTuple):
    """Channels of the result and pitch of the spectra; extents of the result, distance of tiles, results of a tile, and the offset of the
    results from the tile's first element, modulo its extents."""
    channels: i32
    pitch: i32
    p: i32
    q: i32
    step_h: i32
    step_w: i32
    kept_h: i32
    kept_w: i32
    shift_h: i32
    shift_w: i32


@functools.cache
def _walk(lines, visit, begin):
    """Device function ``walk(s)`` over the thread's pixels: ``begin(c, r, s)`` returns the state of a row, ``visit(c, r, w, row, s)`` is
    called for each of its pixels."""
    CH, ROWS, LW = lines.ch, lines.rows, lines.lw
    CL, RL, WL = lines.spread
    SHC, SHW, LAST = CL.bit_length() - 1, WL.bit_length() - 1, lines.last
    SHR = SHW + RL.bit_length() - 1
    STEPS_C, STEPS_R, STEPS_W = -(-CH // CL), -(-ROWS // RL), -(-LW // WL)

    @device_function
    def walk(s):
        tid = cuda.threadIdx.x
        if LAST:
            c0, w0, r0 = tid & (CL - 1), (tid >> SHC) & (WL - 1), tid >> (SHC + SHW)
        else:
            w0, r0, c0 = tid & (WL - 1), (tid >> SHW) & (RL - 1), tid >> SHR
        for a in range(STEPS_C):
            c = c0 + a * CL
            if c < CH:
                for b in range(STEPS_R):
                    r = r0 + b * RL
                    if r < ROWS:
                        row = begin(c, r, s)
                        for d in range(STEPS_W):
                            w = w0 + d * WL
                            if w < LW:
                                visit(c, r, w, row, s)
    return walk


@functools.cache
def _pixels(lines):
    """Device functions ``load(re, im, ring, c, j)`` of rows 2j and 2j + 1 from shared memory, and ``save`` with a factor, at `place`."""
    LW, CHANNEL, PAIR, ROW, PIXEL = lines.lw, lines.channel, lines.pair, lines.row, lines.pixel
    at = make_place(LW)

    @device_function
    def load_one(w, s):
        re, im, ring, first = s
        re[w], im[w] = ring[first + w * PIXEL], ring[first + ROW + w * PIXEL]

    @device_function
    def save_one(w, s):
        re, im, ring, first, scale = s
        k = at(w)
        ring[first + w * PIXEL], ring[first + ROW + w * PIXEL] = re[k] * scale, im[k] * scale
    load_all, save_all = unrolled(LW, load_one), unrolled(LW, save_one)

    @device_function
    def load(re, im, ring, c, j):
        load_all(0, (re, im, ring, c * CHANNEL + j * PAIR))

    @device_function
    def save(re, im, ring, c, j, scale):
        save_all(0, (re, im, ring, c * CHANNEL + j * PAIR, scale))
    return load, save


@functools.cache
def analyse(config):
    """The kernel from an image to spectra.

    `x` points at the first element of the first image, `s` at the spectra; items are `first` to `item_end` - 1; `size` is an
    `AnalysisSizes`.
    """
    lines = config.lines
    LH, LW, CH, ROWS, THREADS = lines.lh, lines.lw, lines.ch, lines.rows, lines.threads
    SHC, HALF_ROW, HALF_PAIR, LINE_PAIRS = CH.bit_length() - 1, lines.half_row, lines.half_pair, ROWS // 2
    CHANNEL, PAIR, ROW, PIXEL, COLUMNS = lines.channel, lines.pair, lines.row, lines.pixel, LW // 2
    lone = LH == 1
    wait = wait_copies(0)
    load, _ = _pixels(lines)
    fft_row, fft_column = make_fft(LW), make_fft(LW if lone else LH)
    at_w, at_h = make_place(LW), make_place(LW if lone else LH)
    MIDDLE, HH = COLUMNS, LH // 2
    AT_MIDDLE = place(LW, MIDDLE)

    @device_function
    def begin(c, r, s):
        smem, x, item, item_end, channel0, per_image, per_row, size, stride = s
        if lone:
            item = item + r
        n, rest = divide_remainder(item, per_image)
        ti, tj = divide_remainder(rest, per_row)
        h, v = ti * size.step_h - size.pad_h, tj * size.step_w - size.pad_w
        inside = 1
        if lone:
            inside = i32(item < item_end)
        else:
            h = h + r
            inside = i32(r < size.used_h)
        ok = i32(inside != 0 and channel0 + c < size.channels and 0 <= h and h < size.h)
        line = n * stride.n + (channel0 + c) * stride.c + h * stride.h
        return ok, line, v, smem + u32((c * CHANNEL + (r >> 1) * PAIR + (r & 1) * ROW) * 4)

    @device_function
    def visit(c, r, w, row, s):
        ok, line, v, to = row
        _, x, _, _, _, _, _, size, stride = s
        column = v + w
        n = 4 if ok != 0 and w < size.used_w and 0 <= column and column < size.w else 0
        copy_async4(to + u32(w * (PIXEL * 4)), address(x, 0), (line + column * stride.w) * 4, n)
    walk = _walk(lines, visit, begin)

    if lone:
        @device_function
        def store_pair(f, s):
            re, im, out, stride, item, pitch = s
            if f == 0 or f == MIDDLE:
                a = at_w(f)
                ar, ai, br, bi = 2 * re[a], f32(0), 2 * im[a], f32(0)
            else:
                a, b = at_w(f), at_w(LW - f)
                ar, ai, br, bi = re[a] + re[b], im[a] - im[b], im[a] + im[b], re[b] - re[a]
            if item > 0:
                store2(out, f * stride, (ar, ai))
            if item > 1:
                store2(out, f * stride + pitch, (br, bi))
        store_pairs = unrolled(MIDDLE + 1, store_pair)
    else:
        @device_function
        def put(f, s):
            re, im, ring, first = s
            to = 2 * (first + f * CH)
            if f == 0:
                store2(ring, to, (2 * re[0], 2 * re[AT_MIDDLE]))
                store2(ring, to + 2 * HALF_ROW, (2 * im[0], 2 * im[AT_MIDDLE]))
            else:
                a, b = at_w(f), at_w(LW - f)
                store2(ring, to, (re[a] + re[b], im[a] - im[b]))
                store2(ring, to + 2 * HALF_ROW, (im[a] + im[b], re[b] - re[a]))

        @device_function
        def take(y, s):
            re, im, ring, first = s
            re[y], im[y] = load2(ring, 2 * (first + (y >> 1) * HALF_PAIR + (y & 1) * HALF_ROW))

        @device_function
        def column(y, s):
            re, im, out, stride = s
            store2(out, y * stride, (re[at_h(y)], im[at_h(y)]))

        @device_function
        def outer_columns(y, s):
            """Element y of columns 0 and lw/2, which share one complex transform."""
            re, im, out, stride = s
            if y == 0 or y == HH:
                a = at_h(y)
                ar, ai, br, bi = re[a], f32(0), im[a], f32(0)
            else:
                a, b = at_h(y), at_h(LH - y)
                ar, ai = 0.5 * (re[a] + re[b]), 0.5 * (im[a] - im[b])
                br, bi = 0.5 * (im[a] + im[b]), 0.5 * (re[b] - re[a])
            store2(out, y * stride, (ar, ai))
            store2(out, (y + HH + 1) * stride, (br, bi))
        put_all, take_all = unrolled(COLUMNS, put), unrolled(LH, take)
        column_all, outer_all = unrolled(LH, column), unrolled(HH + 1, outer_columns)

    @jit(launch_bounds=(THREADS, lines.blocks))
    def conv_fft_analyse(x, s, first, item_end, blocks_c, per_image, per_row, size, x_stride, stride):
        ring = cuda.shared.array(0, f32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        c, j = tid & (CH - 1), tid >> SHC
        block, cb = divide_remainder(cuda.blockIdx.x, blocks_c)
        channel0 = cb * CH
        local = block * ROWS if lone else block
        item = first + local
        walk((smem, x, item, item_end, channel0, per_image, per_row, size, x_stride))
        commit_copies()
        wait()
        cuda.syncthreads()
        pitch = size.pitch
        channel = channel0 + c
        re, im = cuda.local.array(LW, f32), cuda.local.array(LW, f32)
        if lone:
            if j < LINE_PAIRS and channel < pitch:
                load(re, im, ring, c, j)
                fft_row(re, im)
                out = advance(s, 2 * (i64(local + 2 * j) * pitch + channel))
                store_pairs(0, (re, im, out, 2 * stride, item_end - item - 2 * j, 2 * i64(pitch)))
        else:
            if j < LINE_PAIRS:
                load(re, im, ring, c, j)
                fft_row(re, im)
            cuda.syncthreads()
            if j < LINE_PAIRS:
                put_all(0, (re, im, ring, j * HALF_PAIR + c))
            cuda.syncthreads()
            if j < COLUMNS and channel < pitch:
                vr, vi = cuda.local.array(LH, f32), cuda.local.array(LH, f32)
                take_all(0, (vr, vi, ring, j * CH + c))
                fft_column(vr, vi)
                out = advance(s, 2 * (i64(local) * pitch + channel))
                if j > 0:
                    column_all(0, (vr, vi, advance(out, 2 * i64((j - 1) * LH) * stride), 2 * stride))
                else:
                    outer_all(0, (vr, vi, advance(out, 2 * i64((COLUMNS - 1) * LH) * stride), 2 * stride))
    return conv_fft_analyse


@functools.cache
def synthesise(config):
    """The kernel from spectra to results; `size` is a `SynthesisSizes`."""
    lines = config.lines
    LH, LW, CH, ROWS, THREADS = lines.lh, lines.lw, lines.ch, lines.rows, lines.threads
    SHC, HALF_ROW, HALF_PAIR, LINE_PAIRS = CH.bit_length() - 1, lines.half_row, lines.half_pair, ROWS // 2
    CHANNEL, PAIR, ROW, PIXEL, COLUMNS = lines.channel, lines.pair, lines.row, lines.pixel, LW // 2
    lone = LH == 1
    SCALE = 1 / (4 * LH * LW)
    _, save = _pixels(lines)
    fft_row, fft_column = make_fft(LW), make_fft(LW if lone else LH)
    at_h = make_place(LW if lone else LH)
    MIDDLE, HH = COLUMNS, LH // 2
    epilogue = make_epilogue(config.epilogue)

    @device_function
    def begin(c, r, s):
        ring, y, item, item_end, channel0, per_image, per_row, size, stride, residual_stride, e = s
        if lone:
            item = item + r
        n, rest = divide_remainder(item, per_image)
        ti, tj = divide_remainder(rest, per_row)
        p, q = ti * size.step_h, tj * size.step_w
        channel = channel0 + c
        ok = channel < size.channels
        if lone:
            ok = ok and item < item_end and p < size.p
        else:
            h = r + size.shift_h
            h = h - LH if h >= LH else h
            p = p + h
            ok = ok and h < size.kept_h and p < size.p
        at = c * CHANNEL + (r >> 1) * PAIR + (r & 1) * ROW
        return i32(ok), q, channel, n * stride.n + p * stride.h, n * residual_stride.n + p * residual_stride.h, at

    @device_function
    def visit(c, r, w, row, s):
        ok, q, channel, line, residual_line, at = row
        ring, y, _, _, _, _, _, size, stride, residual_stride, e = s
        v = w + size.shift_w
        v = v - LW if v >= LW else v
        q = q + v
        if ok != 0 and v < size.kept_w and q < size.q:
            alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column = e
            to = line + q * stride.w
            addends = ResidualParams(alpha, beta, bias, bias_stride, advance(prior, to), row, column,
                                     advance(residual, residual_line + q * residual_stride.w), residual_row, residual_column)
            y[to + channel * stride.c] = epilogue(ring[at + w * PIXEL], 0, channel, addends)
    walk = _walk(lines, visit, begin)

    if lone:
        @device_function
        def load_pair(f, s):
            re, im, spectra, stride, item, pitch = s
            ar, ai = load2_if(spectra, f * stride, i32(item > 0))
            br, bi = load2_if(spectra, f * stride + pitch, i32(item > 1))
            if f == 0 or f == MIDDLE:
                re[f], im[f] = ar, br
            else:
                re[f], im[f] = ar - bi, ai + br
                re[LW - f], im[LW - f] = ar + bi, br - ai
        load_pairs = unrolled(MIDDLE + 1, load_pair)
    else:
        @device_function
        def column(y, s):
            re, im, spectra, stride, ok = s
            re[y], im[y] = load2_if(spectra, y * stride, ok)

        @device_function
        def outer_columns(y, s):
            """Element y of columns 0 and lw/2, to one complex transform."""
            re, im, spectra, stride, ok = s
            ar, ai = load2_if(spectra, y * stride, ok)
            br, bi = load2_if(spectra, (y + HH + 1) * stride, ok)
            if y == 0 or y == HH:
                re[y], im[y] = ar, br
            else:
                re[y], im[y] = ar - bi, ai + br
                re[LH - y], im[LH - y] = ar + bi, br - ai

        @device_function
        def put(y, s):
            re, im, ring, first = s
            store2(ring, 2 * (first + (y >> 1) * HALF_PAIR + (y & 1) * HALF_ROW), (re[at_h(y)], im[at_h(y)]))

        @device_function
        def take(f, s):
            """Element f of two rows, as one complex row."""
            re, im, ring, first = s
            at = 2 * (first + f * CH)
            ar, ai = load2(ring, at)
            br, bi = load2(ring, at + 2 * HALF_ROW)
            if f == 0:
                re[0], im[0], re[MIDDLE], im[MIDDLE] = ar, br, ai, bi
            else:
                re[f], im[f] = ar - bi, ai + br
                re[LW - f], im[LW - f] = ar + bi, br - ai
        column_all, outer_all = unrolled(LH, column), unrolled(HH + 1, outer_columns)
        put_all, take_all = unrolled(LH, put), unrolled(COLUMNS, take)

    @jit(launch_bounds=(THREADS, lines.blocks))
    def conv_fft_synthesise(s, y, first, item_end, blocks_c, per_image, per_row, size, y_stride, residual_stride, stride, alpha, beta,
                            bias, bias_stride, prior, row, column_stride, residual, residual_row, residual_column):
        ring = cuda.shared.array(0, f32)
        tid = cuda.threadIdx.x
        c, j = tid & (CH - 1), tid >> SHC
        block, cb = divide_remainder(cuda.blockIdx.x, blocks_c)
        channel0 = cb * CH
        local = block * ROWS if lone else block
        item = first + local
        channel, pitch = channel0 + c, size.pitch
        re, im = cuda.local.array(LW, f32), cuda.local.array(LW, f32)
        if lone:
            if j < LINE_PAIRS:
                left = item_end - item - 2 * j if channel < size.channels else 0
                spectra = advance(s, 2 * (i64(local + 2 * j) * pitch + channel))
                load_pairs(0, (re, im, spectra, 2 * stride, left, 2 * i64(pitch)))
                fft_row(im, re)
                save(re, im, ring, c, j, f32(SCALE))
        else:
            if j < COLUMNS:
                vr, vi = cuda.local.array(LH, f32), cuda.local.array(LH, f32)
                spectra = advance(s, 2 * (i64(local) * pitch + channel))
                ok = i32(channel < size.channels)
                if j > 0:
                    column_all(0, (vr, vi, advance(spectra, 2 * i64((j - 1) * LH) * stride), 2 * stride, ok))
                else:
                    outer_all(0, (vr, vi, advance(spectra, 2 * i64((COLUMNS - 1) * LH) * stride), 2 * stride, ok))
                fft_column(vi, vr)
                put_all(0, (vr, vi, ring, j * CH + c))
            cuda.syncthreads()
            if j < LINE_PAIRS:
                take_all(0, (re, im, ring, j * HALF_PAIR + c))
                fft_row(im, re)
            cuda.syncthreads()
            if j < LINE_PAIRS:
                save(re, im, ring, c, j, f32(SCALE))
        cuda.syncthreads()
        e = ResidualParams(alpha, beta, bias, bias_stride, prior, row, column_stride, residual, residual_row, residual_column)
        walk((ring, y, item, item_end, channel0, per_image, per_row, size, y_stride, residual_stride, e))
    return conv_fft_synthesise
