"""Winograd's F(2x2, 3x3) in one launch: both transforms are fused into the 16 matrix products over the channels.

A block computes `bk` output channels of `bt` tiles of 2x2 outputs. Each step takes `bc` input channels::

    image  --4x4 loads per tile and channel--> registers --B^T d B--> shared memory: 16 matrices [channel][tile]
    filter, transformed by an earlier launch  --cp.async-----------> shared memory: 16 matrices [channel][k]
    shared memory --16-byte fragments--> registers: a warp multiplies 16 / warps of the matrices, a thread tk x tt of each
    accumulators --shared memory--> all 16 products of an output tile in one thread --A^T m A--> epilogue --> 2x2 outputs

- 16 multiply-adds give 4 outputs of 9 taps, 2.25 times fewer than the definition. The image transform costs 32 additions per tile and
  channel in each block of k; the rest overlaps with the multiply-adds.
- The next step's image is loaded into registers during the first multiply-adds of a step and transformed before the last ones. Shared
  memory is a double buffer with one barrier per step.
- The transformed filter is in the workspace as the blocks read it, [block of k][step][matrix][channel][k], padded with zeros, so the loop
  over channels has no remainder. Image padding and missing channels are zeros by predicate: a 16-bit mask per thread.
- 16-bit types are widened when they are loaded; transforms and accumulators are float32. Small integers stay exact: B and A have 0, 1 and
  -1, G has halves.
- Backward data is the same with the filter rotated by 180 degrees and its channels exchanged.

It wins for float32 from about 32 channels on, where only reduced-precision algorithms multiply faster. With few channels or few tiles most
of a block is padding.

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
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import (address, advance, load1_nc_if, load_shared_4f32, load_shared_f32, shared_address, store_shared_4f32,
                           store_shared_f32)
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.loaders import log2
from ...engine.stores import make_group_store
from ...host.launch import Argument, Launch
from .._parameters import PlaneStrides
from .filter import filter_launch
from .problem import channels_last, correlation, float_bytes, refusal, tile_grid
from .stages import RowStrides, make_row_store, row_vector
from .transforms import make_square, transform

COST = constants("conv/winograd")

DTYPES = ("float32", "float16", "bfloat16")
F2X3 = transform(2, 3)
PAD = 4  # floats between rows in shared memory: 16 bytes, and rows begin in different banks


@dataclass(frozen=True)
class Tile:
    """Outputs of a block, bk channels of bt tiles, and how its threads share them.

    Each warp computes ``512 / threads`` of the 16 matrices. Its lanes are a grid of lanes_k x 32/lanes_k; a thread has tk x tt elements of
    each matrix, in groups of four. `blocks` of them fit on a multiprocessor.
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
        """Channels of a step: a thread transforms one channel of one tile."""
        return self.threads // self.bt

    @property
    def stage(self):
        """Bytes of shared memory per step."""
        return float_bytes(16 * self.bc * (self.bk + self.bt + PAD))

    @property
    def shared(self):
        """Dynamic shared memory: two steps, or what the warps exchange before the output transform, four rows of a thread at a time."""
        rows = 4 * self.lanes_k
        return max(2 * self.stage, float_bytes(16 * max(rows * (self.bt + PAD), self.bt * (rows + PAD))))

    def __str__(self):
        return f"{self.bk}x{self.bt}x{self.bc} t{self.tk}x{self.tt}"


# Tile: cycles of a block outside its steps, fraction of a step's instructions that are multiply-adds. From the compiled kernels; measured
# times were `COST.slower` times longer, for the first tile on seven layers.
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
        1 where channels are contiguous in memory; neighbouring threads then have neighbouring channels.
    row : int
        1 where the image is contiguous along w.
    vector : int
        1 where four channels of the result (with `result_last`), or two pixels, are one vector store.
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
    return (Cost(launch=COST.start, transform=COST.filter * workspace(problem, device, tile) / device.bandwidth)
            + overlap(math=COST.slower * work, memory=problem.bytes / device.bandwidth))


@functools.cache
def _loader(config):
    """Device functions ``load_patch(v, x, mask, stride)``: the 4x4 pixels at x, zeros where a bit of `mask` is 0; and
    ``store_patch(v, at)``: their transform to the 16 matrices in shared memory, from address `at` on."""
    tile, row = config.tile, config.row
    widen = element(config.dtype).widen
    MATRIX = float_bytes(tile.bc * (tile.bt + PAD))
    square = make_square(F2X3.data, 4, 4, 4)

    @device_function
    def load_patch(v, x, mask, stride):
        for i in range(4):
            line = advance(x, i * stride.h)
            for j in range(4):
                ok = mask & u32(1 << (4 * i + j))
                v[4 * i + j] = widen(load1_nc_if(line, i64(j) if row else j * stride.w, ok))

    @device_function
    def store_patch(v, at):
        square(v)
        for i in range(16):
            store_shared_f32(at + u32(i * MATRIX), v[i])
    return load_patch, store_patch


@functools.cache
def _main_loop(config):
    """Device function ``main_loop(acc, x, mask, stride, u, to_a, to_b, a, b, steps, left)``: the 16 products over all channels.

    `x` points at the thread's first 4x4 pixels, `u` is the address of its first 16 bytes of filter. `to_a` and `to_b` are the shared
    addresses it stores them to, `a` and `b` those of its fragments. `left`: channels from its first to the last.
    """
    tile = config.tile
    BC, BK, BT, TK, TT, THREADS, MATS = tile.bc, tile.bk, tile.bt, tile.tk, tile.tt, tile.threads, tile.matrices
    LK = tile.lanes_k
    LT, PITCH = 32 // LK, BT + PAD
    MATRIX_A, MATRIX_B = float_bytes(BC * BK), float_bytes(BC * PITCH)
    CHUNK = 16 * MATRIX_A  # bytes of a step's filter
    STAGE, COPIES = tile.stage, CHUNK // (16 * THREADS)
    FA, FB, SIZE = 2 * TK, 2 * TT, TK * TT
    TRANSFORM = max(BC - 3, 0)  # the channel during which the next step's image is transformed
    load_patch, store_patch = _loader(config)
    outers = [make_outer(TK, TT, first=m * SIZE) for m in range(MATS)]
    wait = wait_copies(0)

    @device_function
    def load_fragments(fa, fb, half, a, b, c, m):
        for g in range(TK // 4):
            i = half * TK + 4 * g
            fa[i], fa[i + 1], fa[i + 2], fa[i + 3] = load_shared_4f32(a + u32(m * MATRIX_A + (c * BK + g * LK * 4) * 4))
        for g in range(TT // 4):
            i = half * TT + 4 * g
            fb[i], fb[i + 1], fb[i + 2], fb[i + 3] = load_shared_4f32(b + u32(m * MATRIX_B + (c * PITCH + g * LT * 4) * 4))

    @device_function
    def copy_filter(u, to, ok):
        for i in range(COPIES):
            copy_async16_if(to + u32(i * THREADS * 16), u, i * THREADS * 16, ok)

    def product(m):
        """Load the fragments of the next matrix, or of the next channel's first; multiply those of matrix m."""
        following, last, outer = (m + 1) % MATS, m == MATS - 1, outers[m]

        @device_function
        def run(c, s):
            acc, fa, fb, a, b = s
            k = c * MATS + m
            load_fragments(fa, fb, (k + 1) & 1, a, b, c + 1 if last else c, following)
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
        acc, fa, fb, a, b, v, x, mask, stride, u, to_a, to_b, more = s
        if c == 0:
            load_patch(v, x, mask, stride)
            copy_filter(u, to_a, more)
        products(c, (acc, fa, fb, a, b))
        if c == TRANSFORM:
            store_patch(v, to_b)
    channels = unrolled(BC - 1, channel)

    @device_function
    def main_loop(acc, x, mask, stride, u, to_a, to_b, a, b, steps, left):
        v, fa, fb = cuda.local.array(16, f32), cuda.local.array(FA, f32), cuda.local.array(FB, f32)
        load_patch(v, x, mask if left > 0 else u32(0), stride)
        copy_filter(u, to_a, 1)
        commit_copies()
        store_patch(v, to_b)
        wait()
        cuda.syncthreads()
        other = u32(STAGE)  # from the stage that is read to the one that is written
        load_fragments(fa, fb, 0, a, b, 0, 0)
        while steps > 0:
            steps = steps - 1
            left = left - BC
            x, u = advance(x, BC * stride.c), u + CHUNK
            more = 1 if steps > 0 else 0
            # past the last channel the mask is empty: what is stored then is never read
            channels(0, (acc, fa, fb, a, b, v, x, mask if left > 0 else u32(0), stride, u, to_a + other, to_b + other, more))
            if MATS > 1:
                all_but_last(BC - 1, (acc, fa, fb, a, b))
            commit_copies()
            wait()
            cuda.syncthreads()
            a, b, to_a, to_b = a + other, b + other, to_a + other, to_b + other
            other = 0 - other
            if steps > 0:
                load_fragments(fa, fb, 0, a, b, 0, 0)
            outer_last(acc, fa, TK, fb, TT)
    return main_loop


@functools.cache
def _store(config):
    """Device function ``store(products, channel, channels, p, q, P, Q, y, at, residual_at, ...)``: 2x2 outputs of VEC channels from their
    16 products."""
    spec, vector, last = config.epilogue, config.vector, config.result_last
    VEC = 4 if last else 1
    square = make_square(F2X3.result, 4, 4, 2)
    group_store = make_group_store(spec, VEC, bool(vector and last))
    row_store = make_row_store(spec, 2, bool(vector and not last))

    @device_function
    def advance_addends(e, at, residual_at):
        alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column = e
        return ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at), residual_row,
                              residual_column)

    @device_function
    def store(products, channel, channels, p, q, P, Q, y, at, residual_at, stride, residual_stride, e):
        v, out = cuda.local.array(16, f32), cuda.local.array(16, f32)
        for j in range(VEC):
            for i in range(16):
                v[i] = products[i * VEC + j]
            square(v)
            for i in range(4):
                out[i * VEC + j] = v[(i >> 1) * 4 + (i & 1)]
        for i in range(2):
            if p + i < P:
                line, residual_line = at + i * stride.h, residual_at + i * residual_stride.h
                if last:
                    for j in range(2):
                        if q + j < Q:
                            pixel, residual_pixel = line + j * stride.w, residual_line + j * residual_stride.w
                            group_store(out, (2 * i + j) * VEC, 0, channel, channels, y, pixel + channel * stride.c, stride.c,
                                        advance_addends(e, pixel, residual_pixel))
                else:
                    row_store(out, 2 * i, channel, q, Q, y, line, residual_line, RowStrides(stride.c, stride.w, residual_stride.w), e)
    return store


@functools.cache
def kernel(config):
    """One block per `bk` channels of `bt` tiles."""
    tile, image_last, result_last = config.tile, config.image_last, config.result_last
    BC, BK, BT, TK, TT, THREADS, MATS = tile.bc, tile.bk, tile.bt, tile.tk, tile.tt, tile.threads, tile.matrices
    LK = tile.lanes_k
    LT, PITCH, ROWS, NACC = 32 // LK, BT + PAD, 4 * LK, MATS * TK * TT
    MATRIX_A, MATRIX_B = float_bytes(BC * BK), float_bytes(BC * PITCH)
    VEC = 4 if result_last else 1
    FAST = ROWS // 4 if result_last else BT  # neighbouring threads of a row of the exchange
    ITEMS, SIZE16 = ROWS * BT // VEC, 16 * VEC
    EXCHANGE_ROW = ROWS + PAD if result_last else PITCH
    EXCHANGE = float_bytes(EXCHANGE_ROW * (BT if result_last else ROWS))  # of one matrix
    SHC, SHT, SHF = log2(BC), log2(BT), log2(FAST)
    main_loop, store = _main_loop(config), _store(config)

    @device_function
    def lane_position(lane):
        """(along k, along tiles): neighbouring lanes share both alternately, so that fragments touch few different 16-byte vectors."""
        if LK == 8:
            return (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        return ((lane >> 4) << 1) | (lane & 1), (lane >> 1) & 7

    @device_function
    def store_accumulators(g, s):
        """Four rows of every matrix to shared memory, in the order in which `finish` reads them."""
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
        """Output transform, epilogue and store of four rows."""
        acc, smem, at, tid, tile0, k0, tiles, per_image, per_row, K, P, Q, y, stride, residual_stride, e = s
        products = cuda.local.array(SIZE16, f32)
        cuda.syncthreads()
        store_accumulators(g, (acc, at))
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
                            word = smem + u32(i * EXCHANGE + (t * EXCHANGE_ROW + row) * 4)
                            c = 4 * i
                            products[c], products[c + 1], products[c + 2], products[c + 3] = load_shared_4f32(word)
                        else:
                            products[i] = load_shared_f32(smem + u32(i * EXCHANGE + (row * EXCHANGE_ROW + t) * 4))
                    p, q = 2 * p, 2 * q
                    y_at = n * stride.n + p * stride.h + q * stride.w
                    residual_at = n * residual_stride.n + p * residual_stride.h + q * residual_stride.w
                    store(products, channel, K, p, q, P, Q, y, y_at, residual_at, stride, residual_stride, e)
    finish_all = unrolled(TK // 4, finish)

    @jit(launch_bounds=(THREADS, tile.blocks))
    def conv_winograd(x, u, y, tiles, per_image, per_row, blocks_k, C, K, steps, H, W, P, Q, pad_h, pad_w, stride, y_stride,
                      residual_stride, alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column):
        ring = cuda.shared.array(0, f32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        block, kb = divide_remainder(cuda.blockIdx.x, blocks_k)
        tile0, k0 = block * BT, kb * BK

        # the tile and channel whose patch this thread loads, and which of its 4x4 pixels are inside the image
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
                mask = mask | (columns << 4 * i)
        if tile0 + t >= tiles:
            mask = 0
        x = advance(x, n * stride.n + c * stride.c + h * stride.h + w * stride.w)
        first = kb * i64(steps) * (16 * BC * BK) + tid * 4

        # multiply-add over the channels
        lk, lt = lane_position(lane)
        a = smem + u32(warp * (MATS * MATRIX_A)) + u32(lk * 16)
        b = smem + u32(warp * (MATS * MATRIX_B)) + 16 * MATRIX_A + u32(lt * 16)
        acc = cuda.local.array(NACC, f32)
        for i in range(NACC):
            acc[i] = f32(0)
        main_loop(acc, x, mask, stride, address(u, first), smem + u32(tid * 16), smem + 16 * MATRIX_A + u32((c * PITCH + t) * 4), a, b,
                  steps, C - c)

        # output transform and write back
        row4, column4 = (lt, lk) if result_last else (lk, lt)
        at = smem + u32(warp * (MATS * EXCHANGE)) + u32((row4 * EXCHANGE_ROW + column4) * 16)
        e = ResidualParams(alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row, residual_column)
        finish_all(0, (acc, smem, at, tid, tile0, k0, tiles, per_image, per_row, K, P, Q, y, y_stride, residual_stride, e))
    return conv_winograd


def _vector(problem, c):
    """Whether four channels of the result, or two pixels of a row, are one vector store."""
    y, (sn, _, sp, sq) = problem.output, c.target_strides
    if not channels_last(c.target_strides):
        return row_vector(y, c.target_strides, c.out[1], 2)
    return y.alignment % (4 * y.itemsize) == 0 and c.k % 4 == 0 and all(s % 4 == 0 for s in (sn, sp, sq))


def build(problem, device, tile):
    """The filter's transform, then the fused kernel."""
    p, c = problem, correlation(problem)
    tiles, blocks, blocks_k, steps = _blocks(c, tile)
    config = Config(tile, p.dtype, int(channels_last(c.source_strides)), int(channels_last(c.target_strides)),
                    int(c.source_strides.w == 1), int(_vector(p, c)), p.epilogue)
    rows, columns = tile_grid(c.out, 2)
    arguments = (p.pointer(c.source), Argument("float32*", "workspace"), p.pointer(c.target), Argument("int32", tiles),
                 *(Argument(Divisor, divisor(d)) for d in (rows * columns, columns, blocks_k)),
                 *(Argument("int32", v) for v in (c.c, c.k, steps, *c.image, *c.out, *c.pads)),
                 *(Argument(PlaneStrides, s) for s in (c.source_strides, c.target_strides, c.residual_strides)),
                 *p.epilogue_arguments((0, c.target_strides[1]), (0, c.residual_strides[1])))
    return (filter_launch(p, c, F2X3, (tile.bk, tile.bc)),
            Launch(kernel(config), (blocks * blocks_k, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared))


ALGORITHMS = tuple(Algorithm(op=op, name="winograd", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, notes=Note.WINOGRAD | Note.WINOGRAD_TILE_4x4, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data"))
