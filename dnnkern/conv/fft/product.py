"""Products of spectra, one for each frequency: complex matrices in tiles, each thread tm x tn of one in registers.

    "items"     y[i, j] = sum over channels of a[i, q] * conj(b[j, q])      i an item of a, j one of b
    "channels"  y[i, j] = sum over items of conj(a[q, i]) * b[q, j]         i a channel of a, j one of b

with [item, channel] the matrix of one frequency of a spectrum array, channels contiguous. A block computes one tile of y for several
frequencies, one after the other: the ring of stages in shared memory continues from one to the next, so that only the first of them waits
for memory.

    global --cp.async: 8 bytes and transposed where channels are summed over, else 16 bytes--> ring, [q][row] --> fragments of 16 bytes,
    double buffered in registers --> four multiply-adds per element and column --> accumulators, real and imaginary parts apart

Three multiplications instead of four would need five more additions, which multiply-adds do for free.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.cp_async import commit_copies, copy_async8, copy_async16, wait_copies
from ...device.dot import make_outer
from ...device.index import divide_remainder
from ...device.unroll import unrolled
from ...device.vec import address, load2, load_shared_4f32, shared_address, store4

LANES_M, LANES_N = 4, 8
PAD = 2  # complex numbers between rows of the ring: 16 bytes, so that transposed channels are spread over all banks


@dataclass(frozen=True)
class Tile:
    """bm x bn complex results of a block, `bk` of the sum a stage; a thread has tm x tn, a warp 4 x 8 threads."""
    bm: int
    bn: int
    tm: int = 8
    tn: int = 4
    bk: int = 8
    stages: int = 4
    blocks: int = 2

    @property
    def warps(self):
        """Along m and n."""
        return self.bm // (LANES_M * self.tm), self.bn // (LANES_N * self.tn)

    @property
    def threads(self):
        return 32 * self.warps[0] * self.warps[1]

    @property
    def stage(self):
        """Bytes."""
        return 8 * self.bk * (self.bm + self.bn + 2 * PAD)

    @property
    def shared(self):
        return self.stages * self.stage

    def __str__(self):
        return f"{self.bm}x{self.bn}x{self.bk} t{self.tm}x{self.tn}"


@dataclass(frozen=True)
class Config:
    """Tile; whether channels are summed over; whether results add to what is there."""
    tile: Tile
    items: int
    accumulate: int


@functools.cache
def _loader(tile, extent, items):
    """Device functions ``begin(row0, rows, pitch)``: offset of the thread's first element and a mask of its rows that exist; and
    ``copy(to, source, offset, mask, q, length, pitch)``: the thread's part of a stage, zeros beyond rows and length."""
    THREADS, BK = tile.threads, tile.bk
    PITCH = extent + PAD
    if items:  # neighbouring threads read neighbouring channels, which are summed over
        PASS = THREADS // BK
        COPIES, SHIFT = extent // PASS, BK.bit_length() - 1

        @device_function
        def begin(row0, rows, pitch):
            tid = cuda.threadIdx.x
            row, q = row0 + (tid >> SHIFT), tid & (BK - 1)
            mask = u32(0)
            for j in range(COPIES):
                if row + j * PASS < rows:
                    mask = mask | u32(1 << j)
            return row * pitch + q, mask, q, u32((q * PITCH + (tid >> SHIFT)) * 8)

        @device_function
        def copy(to, source, offset, mask, left, pitch):
            for j in range(COPIES):
                n = 8 if mask & u32(1 << j) != 0 and left > 0 else 0
                copy_async8(to + u32(j * (PASS * 8)), source, (offset + j * PASS * pitch) * 8, n)
    else:
        CHUNKS = extent // 2
        PASS = THREADS // CHUNKS
        COPIES, SHIFT = BK // PASS, CHUNKS.bit_length() - 1

        @device_function
        def begin(row0, rows, pitch):
            tid = cuda.threadIdx.x
            row, q = row0 + 2 * (tid & (CHUNKS - 1)), tid >> SHIFT
            mask = u32(1) if row < rows else u32(0)
            return q * pitch + row, mask, q, u32((q * PITCH + 2 * (tid & (CHUNKS - 1))) * 8)

        @device_function
        def copy(to, source, offset, mask, left, pitch):
            for j in range(COPIES):
                n = 16 if mask != 0 and left > j * PASS else 0
                copy_async16(to + u32(j * (PASS * PITCH * 8)), source, (offset + j * PASS * pitch) * 8, n)
    return begin, copy


@functools.cache
def kernel(config):
    """A tile of y for `group` frequencies a block; offsets and strides in complex numbers, `rows`, `columns` and `length` of the products,
    `steps` of their stages."""
    tile, items, accumulate = config.tile, config.items, config.accumulate
    BM, BN, BK, TM, TN, STAGES = tile.bm, tile.bn, tile.bk, tile.tm, tile.tn, tile.stages
    LM, LN, THREADS, NACC = LANES_M, LANES_N, tile.threads, tile.tm * tile.tn
    WARPS_M = tile.warps[0]
    SHIFT_M = WARPS_M.bit_length() - 1
    PA, PB, STAGE = BM + PAD, BN + PAD, tile.stage
    A_BYTES, RING = 8 * BK * PA, tile.shared
    FA, FB, FN = 2 * TM, 2 * TN, 2 * TN if items else 2 * TM
    begin_a, copy_a = _loader(tile, BM, items)
    begin_b, copy_b = _loader(tile, BN, items)
    wait = wait_copies(STAGES - 2)
    outer = make_outer(TM, TN)

    @device_function
    def fragments(half, a, b, kk, s):
        ar, ai, br, bi, ni = s
        for g in range(TM // 2):
            k = half * TM + 2 * g
            ar[k], ai[k], ar[k + 1], ai[k + 1] = load_shared_4f32(a + u32((kk * PA + g * LM * 2) * 8))
            if not items:
                ni[k], ni[k + 1] = -ai[k], -ai[k + 1]
        for g in range(TN // 2):
            k = half * TN + 2 * g
            br[k], bi[k], br[k + 1], bi[k + 1] = load_shared_4f32(b + u32((kk * PB + g * LN * 2) * 8))
            if items:
                ni[k], ni[k + 1] = -bi[k], -bi[k + 1]

    @device_function
    def multiply(half, acc, s):
        re, im = acc
        ar, ai, br, bi, ni = s
        at_a, at_b = half * TM, half * TN
        outer(re, ar, at_a, br, at_b)
        outer(re, ai, at_a, bi, at_b)
        if items:
            outer(im, ai, at_a, br, at_b)
            outer(im, ar, at_a, ni, at_b)
        else:
            outer(im, ar, at_a, bi, at_b)
            outer(im, ni, at_a, br, at_b)

    @device_function
    def load_stage(to, a, b, state, ok):
        """Copy the thread's part of the stage at `state`; zeros after the last stage."""
        off_a, off_b, mask_a, mask_b, left_a, left_b, pitch_a, pitch_b = state
        to_a, to_b = to
        copy_a(to_a, a, off_a, mask_a, left_a if ok else 0, pitch_a)
        copy_b(to_b, b, off_b, mask_b, left_b if ok else 0, pitch_b)

    @device_function
    def step(kk, s):
        acc, buffers, ra, rb, to, a, b, state, ok = s
        fragments((kk + 1) & 1, ra, rb, kk + 1, buffers)
        if kk == 0:
            load_stage(to, a, b, state, ok)
        multiply(kk & 1, acc, buffers)
    steps_but_last = unrolled(BK - 1, step)

    @device_function
    def finish(r, s):
        """Store one row of the thread's results, two columns at a time."""
        re, im, y, at, pitch, row, column, rows, columns = s
        i = row + (r >> 1) * (LM * 2) + (r & 1)
        if i < rows:
            for g in range(TN // 2):
                j = column + g * LN * 2
                if j < columns:
                    k = r * TN + 2 * g
                    to = 2 * (at + i * pitch + j)
                    if accumulate:
                        pr, pi = load2(y, to)
                        qr, qi = load2(y, to + 2)
                        store4(y, to, (re[k] + pr, im[k] + pi, re[k + 1] + qr, im[k + 1] + qi))
                    else:
                        store4(y, to, (re[k], im[k], re[k + 1], im[k + 1]))
    finish_all = unrolled(TM, finish)

    @device_function
    def clear(r, s):
        re, im = s
        for j in range(TN):
            re[r * TN + j], im[r * TN + j] = f32(0), f32(0)
    clear_all = unrolled(TM, clear)

    @jit(launch_bounds=(THREADS, tile.blocks))
    def conv_fft_product(a, b, y, rows, columns, length, steps, frequencies, group, tiles, tiles_n, pitches, strides):
        ring = cuda.shared.array(0, f32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, rest = divide_remainder(cuda.blockIdx.x, tiles)
        mb, nb = divide_remainder(rest, tiles_n)
        frequency = g * group
        count = frequencies - frequency
        count = group if count > group else count
        pitch_a, pitch_b, pitch_y = i64(pitches[0]), i64(pitches[1]), i64(pitches[2])
        stride_a, stride_b, stride_y = strides
        off_a, mask_a, q_a, put_a = begin_a(mb * BM, rows, pitch_a)
        off_b, mask_b, q_b, put_b = begin_b(nb * BN, columns, pitch_b)
        off_a, off_b = off_a + frequency * stride_a, off_b + frequency * stride_b
        put_b = put_b + A_BYTES
        along_a, along_b = (i64(BK), i64(BK)) if items else (pitch_a * BK, pitch_b * BK)
        next_a, next_b = stride_a - (steps - 1) * along_a, stride_b - (steps - 1) * along_b
        source_a, source_b = address(a, 0), address(b, 0)
        # prologue: fill the ring but for one stage
        step_load, left, total = 0, length, count * steps
        loaded = 0
        write = smem
        for _ in range(STAGES - 1):
            load_stage((write + put_a, write + put_b), source_a, source_b,
                       (off_a, off_b, mask_a, mask_b, left - q_a, left - q_b, pitch_a, pitch_b), loaded < total)
            commit_copies()
            loaded = loaded + 1
            write = write + STAGE
            step_load = step_load + 1
            if step_load == steps:
                step_load, left, off_a, off_b = 0, length, off_a + next_a, off_b + next_b
            else:
                left, off_a, off_b = left - BK, off_a + along_a, off_b + along_b
        # neighbouring lanes share rows and columns alternately: a quarter of a warp then reads few different 16-byte vectors
        lm, ln = ((lane >> 4) << 1) | (lane & 1), (lane >> 1) & 7
        wm, wn = warp & (WARPS_M - 1), warp >> SHIFT_M
        row, column = wm * (LM * TM) + 2 * lm, wn * (LN * TN) + 2 * ln
        fragment_a, fragment_b = u32(row * 8), A_BYTES + u32(column * 8)
        row, column = mb * BM + row, nb * BN + column
        at_y = frequency * stride_y
        re, im = cuda.local.array(NACC, f32), cuda.local.array(NACC, f32)
        ar, ai = cuda.local.array(FA, f32), cuda.local.array(FA, f32)
        br, bi, ni = cuda.local.array(FB, f32), cuda.local.array(FB, f32), cuda.local.array(FN, f32)
        buffers = (ar, ai, br, bi, ni)
        clear_all(0, (re, im))
        wait()
        cuda.syncthreads()
        read, end, done = smem, smem + RING, 0
        fragments(0, read + fragment_a, read + fragment_b, 0, buffers)
        while total > 0:
            state = (off_a, off_b, mask_a, mask_b, left - q_a, left - q_b, pitch_a, pitch_b)
            steps_but_last(0, ((re, im), buffers, read + fragment_a, read + fragment_b,
                               (write + put_a, write + put_b), source_a, source_b, state, total > STAGES - 1))
            commit_copies()
            wait()
            cuda.syncthreads()
            read, write = read + STAGE, write + STAGE
            read, write = smem if read == end else read, smem if write == end else write
            fragments(BK & 1, read + fragment_a, read + fragment_b, 0, buffers)
            multiply((BK - 1) & 1, (re, im), buffers)
            step_load = step_load + 1
            if step_load == steps:
                step_load, left, off_a, off_b = 0, length, off_a + next_a, off_b + next_b
            else:
                left, off_a, off_b = left - BK, off_a + along_a, off_b + along_b
            total, done = total - 1, done + 1
            if done == steps:
                finish_all(0, (re, im, y, at_y, pitch_y, row, column, rows, columns))
                clear_all(0, (re, im))
                done, at_y = 0, at_y + stride_y
    return conv_fft_product
