"""Winograd's F(2x2, 3x3) in one launch: 16 products over the channels in registers, transforms on the way in and out.

A block computes `bk` channels of `bt` tiles of 2x2 results. Each step takes `bc` channels of the input:

    image --16 loads a tile and channel--> registers --B^T d B--> shared memory, 16 matrices [channel][tile]
    filter, transformed by a launch before --cp.async--> shared memory, 16 matrices [channel][k]
    shared memory --16-byte fragments--> registers: each warp multiplies 16 / warps of the matrices, tk x tt of each a thread
    accumulators --shared memory--> a thread has all 16 of a result's --A^T m A--> epilogue --> 2x2 results

- 16 multiply-adds make 4 results of 9 taps: 2.25 times fewer than the definition. Transforming the image costs 32 additions a tile and
  channel for each block of k; everything else runs beside the multiply-adds.
- The next step's image is loaded into registers during the first multiply-adds of a step and transformed before its last ones; shared
  memory holds two steps, with one barrier each.
- The filter lies in the workspace as the blocks read it, [block of k][step][matrix][channel][k], zeros where there is no channel: sums
  need no tail. Pixels outside the image and channels beyond the last are zeros by predicate, a mask of 16 bits a thread.
- 16-bit types are widened as they are read; all transforms and sums are in float32. With small integers they are exact: B and A have 0, 1
  and -1, G has halves.
- conv_bwd_data is the same with the filter rotated and its channels exchanged.

It wins for float32 from about 32 channels on, where only algorithms of reduced precision multiply faster; for few channels or few tiles a
block is mostly padding.

Sources: A. Lavin, S. Gray, arXiv:1509.09308; D. Yan, W. Wang, X. Chu, Optimizing batched Winograd convolution on GPUs, PPoPP 2020: the
block of 64 x 32 and two matrices a warp.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16_if, wait_copies
from ...device.dot import make_outer
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import (address, advance, load1_nc_if, load_shared_4f32, load_shared_f32, shared_address, store_shared_4f32,
                           store_shared_f32)
from ...dispatch import Algorithm, Note
from ...engine.loaders import log2
from ...engine.stores import make_group_store
from ...host.launch import Argument, Launch
from .filter import filter_launch
from .problem import channels_last, correlation, float_bytes, refusal, tile_grid
from .stages import make_row_store, row_vector
from .transforms import make_square, transform

DTYPES = ("float32", "float16", "bfloat16")
F2X3 = transform(2, 3)
PAD = 4  # floats between rows in shared memory: 16 bytes, and rows begin in different banks


@dataclass(frozen=True)
class Tile:
    """Outputs of a block, bk channels of bt tiles, and how the work is shared.

    A warp is a grid of lanes_k x 32/lanes_k threads over the whole of `threads / 32`-th of the 16 matrices; a thread has tk x tt of each,
    in groups of four. `blocks` are meant to fit on a multiprocessor.
    """
    bk: int
    bt: int
    tk: int = 8
    tt: int = 8
    lanes_k: int = 8
    threads: int = 256
    blocks: int = 1

    def __post_init__(self):
        if self.lanes_k * self.tk != self.bk or 32 // self.lanes_k * self.tt != self.bt:
            raise ValueError(f"{self}: a warp covers {self.lanes_k * self.tk}x{32 // self.lanes_k * self.tt}")
        if 16 % (self.threads // 32) or self.threads % self.bt:
            raise ValueError(f"{self}: {self.threads // 32} warps cannot share 16 matrices and {self.bt} tiles")

    @property
    def matrices(self):
        """Of a warp."""
        return 512 // self.threads

    @property
    def bc(self):
        """Channels of a step: each thread transforms one of one tile."""
        return self.threads // self.bt

    @property
    def stage(self):
        """Bytes of a step in shared memory."""
        return float_bytes(16 * self.bc * (self.bk + self.bt + PAD))

    @property
    def shared(self):
        """Dynamic shared memory: two steps, or what the warps exchange at the end, a group of four rows of each thread at a time."""
        rows = 4 * self.lanes_k
        return max(2 * self.stage, float_bytes(16 * max(rows * (self.bt + PAD), self.bt * (rows + PAD))))

    def __str__(self):
        return f"{self.bk}x{self.bt}x{self.bc} t{self.tk}x{self.tt}"


# Tile: cycles of a block before and after its steps, multiply-adds of all instructions in a step. From the compiled kernels, which took
# longer by SLOWER, the first tile on seven layers (bench/results/h200-conv-fwd-float32_3x3-float32.jsonl).
SLOWER = 1.34
TILES = {
    Tile(64, 32): (7000, 0.80),
    Tile(64, 32, threads=512): (6000, 0.80),
    Tile(32, 64, lanes_k=4): (7000, 0.78),
    Tile(32, 32, tt=4, lanes_k=4, blocks=2): (5000, 0.72),
}


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    tile : Tile
    dtype : str
        Of the image.
    image_last, result_last : int
        1 where channels are neighbours in memory; threads are then neighbours along channels.
    row : int
        1 where the image's pixels are neighbours along w.
    vector : int
        1 where four channels of the result (with `result_last`), or two pixels, are one store.
    epilogue : EpilogueSpec
    """
    tile: Tile
    dtype: str
    image_last: int
    result_last: int
    row: int
    vector: int
    epilogue: EpilogueSpec


def supports(problem):
    """3x3 filters with stride and dilation 1, one group; float32 and 16-bit types."""
    return refusal(problem, ((3, 3),), DTYPES)


def configs(problem, device):
    """Every tile that the device's shared memory holds."""
    return [tile for tile in TILES if tile.shared <= device.shared_per_block]


def _blocks(c, tile):
    """(tiles of all images, blocks of them, blocks of k, steps)."""
    rows, columns = tile_grid(c.out, 2)
    tiles = c.n * rows * columns
    return tiles, ceil_div(tiles, tile.bt), ceil_div(c.k, tile.bk), ceil_div(c.c, tile.bc)


def workspace(problem, device, tile):
    """The transformed filter."""
    _, _, blocks_k, steps = _blocks(correlation(problem), tile)
    return float_bytes(16 * blocks_k * tile.bk * steps * tile.bc)


def estimate(problem, device, tile):
    """The filter's transform; then waves of blocks, each of so many steps of multiply-adds beside what is not."""
    c = correlation(problem)
    _, blocks, blocks_k, steps = _blocks(c, tile)
    around, share = TILES[tile]
    waves = ceil_div(blocks * blocks_k, device.sms * tile.blocks)
    each = steps * 16 * tile.bc * tile.bk * tile.bt / 128 / share + around
    work = waves * tile.blocks * each / device.clock_hz
    return 6e-6 + 3 * workspace(problem, device, tile) / device.bandwidth + max(SLOWER * work, problem.bytes / device.bandwidth)


@functools.cache
def _loader(config):
    """Device functions ``image(v, x, mask, sh, sw)``: the 4x4 pixels at x, zeros where a bit of `mask` is; and ``put(v, at)``: their
    transform to the 16 matrices in shared memory, from address `at` on."""
    tile, row = config.tile, config.row
    widen = element(config.dtype).widen
    MATRIX = float_bytes(tile.bc * (tile.bt + PAD))
    square = make_square(F2X3.data, 4, 4, 4)

    @device_function
    def image(v, x, mask, sh, sw):
        for i in range(4):
            line = advance(x, i * sh)
            for j in range(4):
                ok = mask & u32(1 << (4 * i + j))
                v[4 * i + j] = widen(load1_nc_if(line, i64(j) if row else j * sw, ok))

    @device_function
    def put(v, at):
        square(v)
        for i in range(16):
            store_shared_f32(at + u32(i * MATRIX), v[i])
    return image, put


@functools.cache
def _sums(config):
    """Device function ``sums(acc, x, mask, sh, sw, step, u, to_a, to_b, a, b, steps, left)``: the 16 products over all channels.

    x points at the thread's first 4x4 pixels, u is the address of its first 16 bytes of filter; to_a and to_b are where they go in shared
    memory, a and b where its fragments lie. `left` counts the channels from its first on.
    """
    tile = config.tile
    BC, BK, BT, TK, TT, THREADS, MATS = tile.bc, tile.bk, tile.bt, tile.tk, tile.tt, tile.threads, tile.matrices
    LK = tile.lanes_k
    LT, PITCH = 32 // LK, BT + PAD
    MATRIX_A, MATRIX_B = float_bytes(BC * BK), float_bytes(BC * PITCH)
    CHUNK = 16 * MATRIX_A  # bytes of a step's filter
    STAGE, COPIES = tile.stage, CHUNK // (16 * THREADS)
    FA, FB, SIZE = 2 * TK, 2 * TT, TK * TT
    PUT = max(BC - 3, 0)  # the channel during which the next step's image is transformed
    image, put = _loader(config)
    outers = [make_outer(TK, TT, first=m * SIZE) for m in range(MATS)]
    wait = wait_copies(0)

    @device_function
    def fragments(fa, fb, half, a, b, c, m):
        for g in range(TK // 4):
            i = half * TK + 4 * g
            fa[i], fa[i + 1], fa[i + 2], fa[i + 3] = load_shared_4f32(a + u32(m * MATRIX_A + (c * BK + g * LK * 4) * 4))
        for g in range(TT // 4):
            i = half * TT + 4 * g
            fb[i], fb[i + 1], fb[i + 2], fb[i + 3] = load_shared_4f32(b + u32(m * MATRIX_B + (c * PITCH + g * LT * 4) * 4))

    @device_function
    def copy(u, to, ok):
        for i in range(COPIES):
            copy_async16_if(to + u32(i * THREADS * 16), u, i64(i * THREADS * 16), ok)

    def product(m):
        """Loads the fragments of the next matrix, or of the next channel's first, and multiplies those of matrix m."""
        following, last, outer = (m + 1) % MATS, m == MATS - 1, outers[m]

        @device_function
        def run(c, s):
            acc, fa, fb, a, b = s
            k = c * MATS + m
            fragments(fa, fb, (k + 1) & 1, a, b, c + 1 if last else c, following)
            outer(acc, fa, (k & 1) * TK, fb, (k & 1) * TT)
        return run

    def chain(parts):
        if len(parts) == 1:
            return parts[0]
        first, rest = parts[0], chain(parts[1:])

        @device_function
        def run(c, s):
            first(c, s)
            rest(c, s)
        return run
    products, all_but_last = chain([product(m) for m in range(MATS)]), chain([product(m) for m in range(MATS - 1)]) if MATS > 1 else None
    outer_last = outers[-1]

    @device_function
    def channel(c, s):
        acc, fa, fb, a, b, v, x, mask, sh, sw, u, to_a, to_b, more = s
        if c == 0:
            image(v, x, mask, sh, sw)
            copy(u, to_a, more)
        products(c, (acc, fa, fb, a, b))
        if c == PUT:
            put(v, to_b)
    channels = unrolled(BC - 1, channel)

    @device_function
    def sums(acc, x, mask, sh, sw, step, u, to_a, to_b, a, b, steps, left):
        v, fa, fb = cuda.local.array(16, f32), cuda.local.array(FA, f32), cuda.local.array(FB, f32)
        image(v, x, mask if left > 0 else u32(0), sh, sw)
        copy(u, to_a, 1)
        commit_copies()
        put(v, to_b)
        wait()
        cuda.syncthreads()
        other = u32(STAGE)  # from the stage that is read to the one that is written
        fragments(fa, fb, 0, a, b, 0, 0)
        while steps > 0:
            steps = steps - 1
            left = left - BC
            x, u = advance(x, step), u + CHUNK
            more = 1 if steps > 0 else 0
            # beyond the last channel the mask is empty: what is put then is never read
            channels(0, (acc, fa, fb, a, b, v, x, mask if left > 0 else u32(0), sh, sw, u, to_a + other, to_b + other, more))
            if MATS > 1:
                all_but_last(BC - 1, (acc, fa, fb, a, b))
            commit_copies()
            wait()
            cuda.syncthreads()
            a, b, to_a, to_b = a + other, b + other, to_a + other, to_b + other
            other = 0 - other
            if steps > 0:
                fragments(fa, fb, 0, a, b, 0, 0)
            outer_last(acc, fa, TK, fb, TT)
    return sums


@functools.cache
def _store(config):
    """Device function ``store(sums, channel, channels, p, q, P, Q, y, at, residual_at, ...)``: 2x2 results of VEC channels from 16 sums."""
    spec, vector, last = config.epilogue, config.vector, config.result_last
    VEC = 4 if last else 1
    square = make_square(F2X3.result, 4, 4, 2)
    group_store = make_group_store(spec, VEC, bool(vector and last))
    row_store = make_row_store(spec, 2, bool(vector and not last))

    @device_function
    def addends(e, at, residual_at):
        alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column = e
        return ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at), residual_row,
                              residual_column)

    @device_function
    def store(sums, channel, channels, p, q, P, Q, y, at, residual_at, strides, residual_strides, e):
        _, sk, sp, sq = strides
        _, _, rp, rq = residual_strides
        v, out = cuda.local.array(16, f32), cuda.local.array(16, f32)
        for j in range(VEC):
            for i in range(16):
                v[i] = sums[i * VEC + j]
            square(v)
            for i in range(4):
                out[i * VEC + j] = v[(i >> 1) * 4 + (i & 1)]
        for i in range(2):
            if p + i < P:
                line, residual_line = at + i * sp, residual_at + i * rp
                if last:
                    for j in range(2):
                        if q + j < Q:
                            here, residual_here = line + j * sq, residual_line + j * rq
                            group_store(out, (2 * i + j) * VEC, 0, channel, channels, y, here + channel * sk, sk,
                                        addends(e, here, residual_here))
                else:
                    row_store(out, 2 * i, channel, q, Q, y, line, residual_line, (sk, sq, rq), e)
    return store


@functools.cache
def kernel(config):
    """A block's tiles and channels."""
    tile, image_last, result_last = config.tile, config.image_last, config.result_last
    BC, BK, BT, TK, TT, THREADS, MATS = tile.bc, tile.bk, tile.bt, tile.tk, tile.tt, tile.threads, tile.matrices
    LK = tile.lanes_k
    LT, PITCH, ROWS, NACC = 32 // LK, BT + PAD, 4 * LK, MATS * TK * TT
    MATRIX_A, MATRIX_B = float_bytes(BC * BK), float_bytes(BC * PITCH)
    VEC = 4 if result_last else 1
    FAST = ROWS // 4 if result_last else BT  # threads that are neighbours in a row of the exchange
    ITEMS, SIZE16 = ROWS * BT // VEC, 16 * VEC
    EXCHANGE_ROW = ROWS + PAD if result_last else PITCH
    EXCHANGE = float_bytes(EXCHANGE_ROW * (BT if result_last else ROWS))  # of one matrix
    SHC, SHT, SHF = log2(BC), log2(BT), log2(FAST)
    sums, store = _sums(config), _store(config)

    @device_function
    def lane_places(lane):
        """(along k, along tiles): neighbouring lanes share both alternately, so that fragments touch few different 16 bytes."""
        if LK == 8:
            return (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        return ((lane >> 4) << 1) | (lane & 1), (lane >> 1) & 7

    @device_function
    def spread(g, s):
        """A group of four rows of every matrix goes to shared memory, as its readers want it."""
        acc, at = s
        for m in range(MATS):
            for h in range(TT // 4):
                for i in range(4):
                    k = (m * TK + 4 * g) * TT + 4 * h
                    if result_last:
                        to = at + u32(m * EXCHANGE + (h * LT * 4 + i) * EXCHANGE_ROW * 4)
                        store_shared_4f32(to, acc[k + i], acc[k + TT + i], acc[k + 2 * TT + i], acc[k + 3 * TT + i])
                    else:
                        k += i * TT
                        to = at + u32(m * EXCHANGE + (i * EXCHANGE_ROW + h * LT * 4) * 4)
                        store_shared_4f32(to, acc[k], acc[k + 1], acc[k + 2], acc[k + 3])

    @device_function
    def finish(g, s):
        """The four rows, from the accumulators to the results."""
        acc, s0, at, tid, tile0, k0, tiles, per_image, per_row, K, P, Q, y, strides, residual_strides, e = s
        collected = cuda.local.array(SIZE16, f32)
        cuda.syncthreads()
        spread(g, (acc, at))
        cuda.syncthreads()
        for first in range(0, ITEMS, THREADS):
            item = tid + first
            if ITEMS % THREADS == 0 or item < ITEMS:
                fast, slow = item & (FAST - 1), item >> SHF
                t, row = (slow, fast * 4) if result_last else (fast, slow)
                n, rest = divide_remainder(tile0 + t, per_image)
                p, q = divide_remainder(rest, per_row)
                channel = k0 + g * ROWS + row
                if tile0 + t < tiles and channel < K:
                    for i in range(16):
                        if result_last:
                            word = s0 + u32(i * EXCHANGE) + u32((t * EXCHANGE_ROW + row) * 4)
                            c = 4 * i
                            collected[c], collected[c + 1], collected[c + 2], collected[c + 3] = load_shared_4f32(word)
                        else:
                            collected[i] = load_shared_f32(s0 + u32(i * EXCHANGE) + u32((row * EXCHANGE_ROW + t) * 4))
                    p, q = 2 * p, 2 * q
                    out = n * strides[0] + p * strides[2] + q * strides[3]
                    residual_out = n * residual_strides[0] + p * residual_strides[2] + q * residual_strides[3]
                    store(collected, channel, K, p, q, P, Q, y, out, residual_out, strides, residual_strides, e)
    finish_all = unrolled(TK // 4, finish)

    @jit(launch_bounds=(THREADS, tile.blocks))
    def conv_winograd(x, u, y, tiles, per_image, per_row, blocks_k, C, K, steps, H, W, P, Q, pad_h, pad_w, strides, y_strides,
                      residual_strides, alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column):
        ring = cuda.shared.array(0, f32)
        s0 = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        block, kb = divide_remainder(cuda.blockIdx.x, blocks_k)
        tile0, k0 = block * BT, kb * BK
        # the tile and channel whose image this thread reads
        if image_last:
            c, t = tid & (BC - 1), tid >> SHC
        else:
            t, c = tid & (BT - 1), tid >> SHT
        n, rest = divide_remainder(tile0 + t, per_image)
        p, q = divide_remainder(rest, per_row)
        h, w = 2 * p - pad_h, 2 * q - pad_w
        mask, columns = u32(0), u32(0)
        for j in range(4):
            if 0 <= w + j and w + j < W:
                columns = columns | u32(1 << j)
        for i in range(4):
            if 0 <= h + i and h + i < H:
                mask = mask | (columns << u32(4 * i))
        if tile0 + t >= tiles:
            mask = u32(0)
        sn, sc, sh, sw = strides
        x = advance(x, n * sn + c * sc + h * sh + w * sw)
        first = kb * i64(steps) * (16 * BC * BK) + tid * 4
        lk, lt = lane_places(lane)
        a = s0 + u32(warp * (MATS * MATRIX_A)) + u32(lk * 16)
        b = s0 + u32(warp * (MATS * MATRIX_B)) + 16 * MATRIX_A + u32(lt * 16)
        acc = cuda.local.array(NACC, f32)
        for i in range(NACC):
            acc[i] = f32(0)
        sums(acc, x, mask, sh, sw, BC * sc, address(u, first), s0 + u32(tid * 16),
             s0 + 16 * MATRIX_A + u32((c * PITCH + t) * 4), a, b, steps, C - c)
        row4, column4 = (lt, lk) if result_last else (lk, lt)
        at = s0 + u32(warp * (MATS * EXCHANGE)) + u32((row4 * EXCHANGE_ROW + column4) * 16)
        e = ResidualParams(alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column)
        finish_all(0, (acc, s0, at, tid, tile0, k0, tiles, per_image, per_row, K, P, Q, y, y_strides, residual_strides, e))
    return conv_winograd


def _vector(problem, c):
    """Whether four channels of the result, or two pixels of a row, are one store."""
    y, (sn, _, sp, sq) = problem.output, c.target_strides
    if not channels_last(c.target_strides):
        return row_vector(y, c.target_strides, c.out[1], 2)
    return y.alignment % (4 * y.itemsize) == 0 and c.k % 4 == 0 and all(s % 4 == 0 for s in (sn, sp, sq))


def build(problem, device, tile):
    """The filter's transform, then a block for each tile."""
    p, c = problem, correlation(problem)
    tiles, blocks, blocks_k, steps = _blocks(c, tile)
    config = Config(tile, p.dtype, int(channels_last(c.source_strides)), int(channels_last(c.target_strides)),
                    int(c.source_strides[3] == 1), int(_vector(p, c)), p.epilogue)
    rows, columns = tile_grid(c.out, 2)
    arguments = (p.pointer(c.source), Argument("float32*", "workspace"), p.pointer(c.target), Argument("int32", tiles),
                 *(Argument("uint32x3", divisor(d)) for d in (rows * columns, columns, blocks_k)),
                 *(Argument("int32", v) for v in (c.c, c.k, steps, *c.image, *c.out, *c.pads)),
                 *(Argument("int64x4", s) for s in (c.source_strides, c.target_strides, c.residual_strides)),
                 *p.epilogue_arguments((0, c.target_strides[1]), (0, c.residual_strides[1])))
    return (filter_launch(p, c, F2X3, (tile.bk, tile.bc)),
            Launch(kernel(config), (blocks * blocks_k, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared))


ALGORITHMS = tuple(Algorithm(op=op, name="winograd", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.WINOGRAD | Note.WINOGRAD_TILE_4x4, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data"))
