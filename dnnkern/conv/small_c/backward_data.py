"""Images' gradients where images have one to four channels, on tensor cores: pixels of dy once in shared memory.

With stride s, a block of s x s pixels of dx, all channels, is read as one pixel with s s C channels: dx in such pixels is a convolution of
dy without stride, of as many taps along h as there are offsets between a block's pixels and those of dy that meet them. Filters that have
no tap there are zero. 7x7 with stride 2 on 3 channels so becomes 4x4 on 12 channels, two columns of mma.sync's tiles, where single channels
would leave most of a tile empty.

A block stages the pixels of dy that its tile meets, filters side by side (cp.async, 16 bytes at a time, or element by element), and the
filters in the order of fragments; every tap reads them there by ldmatrix. It takes one tile after another. Bound by shared memory, then
mma.sync. Elements of dy that are not finite reach all pixels of the blocks they meet.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import ceil_div, divide_remainder, divisor, quotient
from ...device.ldmatrix import ldmatrix_x4
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import address, advance, load1_nc_if, load_shared_2u32, shared_address, store_shared_u32
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.stores import make_group_store
from ...host.launch import Argument, Launch
from .._gather import refusal
from .rows import CHANNELS

COST = constants("conv/small_c_data")

MOST_COLUMNS = 64
MOST_FILTERS = 128


@dataclass(frozen=True)
class Config:
    """Warps, tiles of 16 blocks of pixels that each multiplies at a time, and blocks on a multiprocessor."""
    warps: int
    tiles: int
    blocks: int

    @property
    def threads(self):
        return 32 * self.warps

    def __str__(self):
        return f"w{self.warps} {16 * self.tiles} rows b{self.blocks}"


CONFIGS = (Config(4, 4, 2), Config(8, 2, 2), Config(8, 4, 1), Config(16, 2, 1), Config(2, 1, 4))


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: products of 16 filters, tiles of 8 columns, pixels of dx in a block and their channels; whether dy
    comes 16 bytes at a time."""
    config: Config
    dtype: str
    steps: int
    columns: int
    pixels: tuple
    channels: int
    dy_copies: bool
    epilogue: EpilogueSpec


def supports(problem):
    """One to four channels in one group, one or two dimensions, up to 128 filters."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"operands are {p.dtype}; expected float16 or bfloat16"
    if p.groups > 1:
        return f"{p.groups} groups"
    if not 1 <= p.c <= CHANNELS:
        return f"{p.c} channels; pixels of 1 to {CHANNELS} are put together"
    if not 1 <= p.k <= MOST_FILTERS:
        return f"{p.k} filters; pixels of 1 to {MOST_FILTERS} are staged"
    if p.filter[0] > 1 or p.image[0] > 1 or p.pads[0] != (0, 0):
        return f"3-D: image {p.image}, filter {p.filter}, padding {p.pads}"
    if p.strides[1] * p.strides[2] * p.c > MOST_COLUMNS:
        return f"{p.strides[1]}x{p.strides[2]} pixels of {p.c} channels are more than {MOST_COLUMNS} columns"
    if not p.pixels:
        return "dy has no pixels"
    if _bytes(p, 1, 16) > 100 * 1024:
        return f"a tile of 16 columns takes {_bytes(p, 1, 16)} bytes of shared memory, at most {100 * 1024}"
    return refusal(p)


def _taps(problem, d):
    """(first offset from a block of pixels to dy, how many there are) along dimension d."""
    p = problem
    found = [(c + p.pads_before[d] - r * p.dilations[d]) for c in range(p.strides[d]) for r in (*range(p.filter[d]),)]
    found = [v // p.strides[d] for v in found if v % p.strides[d] == 0]
    return min(found), max(found) - min(found) + 1


def _steps(problem):
    return ceil_div(problem.k, 16)


def _columns(problem):
    """Tiles of 8 columns."""
    return ceil_div(problem.strides[1] * problem.strides[2] * problem.c, 8)


def _filter_bytes(problem):
    return _taps(problem, 1)[1] * _taps(problem, 2)[1] * _steps(problem) * _columns(problem) * 256


def _line(problem):
    """Bytes of a pixel of dy in shared memory: an odd number of 16, for ldmatrix."""
    return _steps(problem) * 32 + 16


def _bytes(problem, rows, columns):
    """Shared memory for a tile of so many blocks of pixels."""
    return (rows + _taps(problem, 1)[1] - 1) * (columns + _taps(problem, 2)[1] - 1) * _line(problem) + _filter_bytes(problem)


def _extents(problem):
    """Blocks of pixels down and across an image."""
    return ceil_div(problem.image[1], problem.strides[1]), ceil_div(problem.image[2], problem.strides[2])


def _tile(problem, device, config):
    """(rows, columns) of blocks of pixels in a tile, as many as fit: whole rows, or a part of one; None where nothing does."""
    room = min(device.shared_per_sm // config.blocks - 1024, device.shared_per_block)
    height, width = _extents(problem)
    if _bytes(problem, 1, width) <= room:
        rows = 1
        while rows < min(height, 16) and _bytes(problem, rows + 1, width) <= room:
            rows += 1
        return rows, width
    columns = width // 16 * 16
    while columns > 16 and _bytes(problem, 1, columns) > room:
        columns -= 16
    return (1, columns) if columns and _bytes(problem, 1, columns) <= room else None


def _counts(problem, tile):
    """(tiles down an image, across it, in all)"""
    height, width = _extents(problem)
    down, across = ceil_div(height, tile[0]), ceil_div(width, tile[1])
    return down, across, down * across * problem.n


def configs(problem, device):
    """Those that find room for a tile."""
    registers = {c: 4 * c.tiles * (_columns(problem) + 1) + 60 for c in CONFIGS}
    found = [c for c in CONFIGS if _tile(problem, device, c) and registers[c] <= min(65536 // (c.threads * c.blocks), 255)]
    return sorted(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Waves of tiles, bound by fragments from shared memory or by mma.sync; or the L2, which gives the pixels between tiles again."""
    p, (rows, columns) = problem, _tile(problem, device, config)
    _, _, tiles = _counts(p, (rows, columns))
    units, n = ceil_div(ceil_div(rows * columns, 16 * config.tiles), 1), _columns(p)
    steps = _taps(p, 1)[1] * _taps(p, 2)[1] * _steps(p)
    staged = _bytes(p, rows, columns) - _filter_bytes(p)
    blocks = min(config.blocks, ceil_div(tiles, device.sms))
    each = ceil_div(tiles, device.sms * blocks)
    shared = units * steps * (COST.pixels * config.tiles + COST.filters * n)
    warp = ceil_div(units, config.warps) * steps * config.tiles * n * COST.product
    staging = staged * (1 if _dy_copies(p) else COST.loads) / COST.staging * (1 if blocks > 1 else COST.one_block)
    work = overlap(shared=each * (shared * blocks) / device.clock_hz,
                   math=each * (warp * max(blocks * config.warps / 4, COST.alone)) / device.clock_hz)
    work = overlap(work + Cost(waves=each * (COST.tile + staging) / device.clock_hz),
                   l2=tiles * staged / (COST.l2 * device.bandwidth), memory=p.bytes / (COST.rate * device.bandwidth))
    # while a warp waits for many pixels, few others run
    slower = (1 + config.tiles / COST.wait) * (COST.wait_one if blocks == 1 else 1.0)
    return Cost(launch=COST.start, transform=_filter_bytes(p) * COST.filter) + work.slowed(slower=slower)


def _dy_copies(problem):
    """Whether dy can be copied 16 bytes of filters at a time."""
    n, k, _, h, w = problem.y_strides
    return k == 1 and problem.y.alignment == 16 and not any(v % 8 for v in (problem.k, n, h, w))


@functools.cache
def kernel(full):
    """Tiles of dx, one after another."""
    config, STEPS, NT, C = full.config, full.steps, full.columns, full.channels
    THREADS, WARPS, MT, LINE = config.threads, config.warps, config.tiles, 32 * full.steps + 16
    SH, SW = full.pixels
    COLUMNS, NACC, NA, CHUNKS = SH * SW * C, MT * NT * 4, MT * 4, 2 * full.steps
    mma, arrived, put = make_mma(full.dtype), wait_copies(0), make_group_store(full.epilogue, 1, False)

    @device_function
    def tap(c, at, stride, pad, dilation, taps):
        """The filter's row that takes offset `at` of dy to pixel c of a block; -1 if there is none."""
        v = c + pad - stride * at
        r = quotient(v if v >= 0 else 0, dilation)
        return r if v >= 0 and r * dilation == v and r < taps else -1

    @device_function
    def stage_filters(w, shared, window, strides, K, tid):
        """The filters as the right operand's fragments: [offset h][offset w][16 filters][8 columns][lane][2 words]."""
        pad_h, dilation_h, taps_h, first_h, count_h, pad_w, dilation_w, taps_w, first_w, count_w = window
        for i in range(tid, count_h * count_w * (STEPS * NT * 64), THREADS):
            word, rest = i & 63, i >> 6
            lane, half = word >> 1, word & 1
            n, rest = (rest % NT) * 8 + (lane >> 2), rest // NT
            f, rest = (rest % STEPS) * 16 + half * 8 + (lane & 3) * 2, rest // STEPS
            a = quotient(rest, count_w)
            b = rest - a * count_w
            c, pixel = n % C, n // C
            r = tap(pixel // SW, first_h + a, SH, pad_h, dilation_h, taps_h)
            s = tap(pixel % SW, first_w + b, SW, pad_w, dilation_w, taps_w)
            value = u32(0)
            for e in range(2):
                ok = n < COLUMNS and r >= 0 and s >= 0 and f + e < K
                at = strides[4] + (f + e) * strides[0] + r * strides[2] + s * strides[3] + c * strides[1]
                value = value | (u32(load1_nc_if(w, at if ok else i64(0), 1 if ok else 0)) << u32(16 * e))
            store_shared_u32(shared + u32(i * 4), value)

    if full.dy_copies:
        @device_function
        def stage_pixels(to, y, first, p0, q0, extents, strides, wide, total, tid):
            P, Q, K = extents
            for i in range(tid, total * CHUNKS, THREADS):
                pixel, part = i // CHUNKS, i % CHUNKS
                row, column = divide_remainder(pixel, wide)
                p, q = p0 + row, q0 + column
                inside = 0 <= p and p < P and 0 <= q and q < Q and 8 * part < K
                at = first + p * strides[1] + q * strides[2] + 8 * part
                copy_async16(to + u32(pixel * LINE + 16 * part), address(y, at if inside else i64(0)), i64(0),
                             u32(16) if inside else u32(0))
    else:
        @device_function
        def stage_pixels(to, y, first, p0, q0, extents, strides, wide, total, tid):
            P, Q, K = extents
            for f in range(0, 16 * STEPS, 2):  # neighbouring threads take neighbouring pixels
                for i in range(tid, total, THREADS):
                    row, column = divide_remainder(i, wide)
                    p, q = p0 + row, q0 + column
                    word = u32(0)
                    for e in range(2):
                        inside = 0 <= p and p < P and 0 <= q and q < Q and f + e < K
                        at = first + p * strides[1] + q * strides[2] + (f + e) * strides[3]
                        word = word | (u32(load1_nc_if(y, at if inside else i64(0), 1 if inside else 0)) << u32(16 * e))
                    store_shared_u32(to + u32(i * LINE + f * 2), word)

    @device_function
    def step(k, s):
        """The products of 16 filters of one offset."""
        acc, af, bf, at, from_w = s
        for i in range(MT):
            ldmatrix_x4(af, 4 * i, at[i] + u32(32 * k))
        for j in range(NT):
            bf[0], bf[1] = load_shared_2u32(from_w + u32((k * NT + j) * 256))
            for i in range(MT):
                mma(acc, (i * NT + j) * 4, af, 4 * i, bf, 0)
    steps = unrolled(STEPS, step)

    @device_function
    def store_tile(n, s):
        """Of 16 blocks of pixels eight columns."""
        acc, unit, count, g, t, wide, n_image, h0, w0, extents, strides, res, x, epilogue = s
        i, j = n // NT, n % NT
        alpha, beta, bias, bias_stride, prior, _, _, residual, _, _ = epilogue
        for half in range(2):
            index = unit + 16 * i + 8 * half + g
            row, column = divide_remainder(min(index, count - 1), wide)
            for e in range(2):
                k = 8 * j + 2 * t + e
                pixel = k // C
                c, h, w = k % C, (h0 + row) * SH + pixel // SW, (w0 + column) * SW + pixel % SW
                if index < count and k < COLUMNS and h < extents[0] and w < extents[1]:
                    at = n_image * strides[0] + h * strides[2] + w * strides[3]
                    also = n_image * res[0] + h * res[2] + w * res[3]
                    put(acc, n * 4 + 2 * half + e, 0, c, C, x, at + c * strides[1], strides[1],
                        ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at), i32(0), i32(strides[1]), advance(residual, also),
                                       i32(0), i32(res[1])))
    store_all = unrolled(MT * NT, store_tile)

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_bwd_data_small_c(y, w, x, tiles, counts, window, w_strides, y_extents, y_strides, x_extents, x_strides, res, down, across,
                              columns, wide, filter_bytes, alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual,
                              residual_row, residual_column):
        ring = cuda.shared.array(0, u32)
        shared = shared_address(ring, 0)
        pixels = shared + u32(filter_bytes)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        rows, across_tile, height, width = counts
        pad_h, dilation_h, taps_h, first_h, count_h, pad_w, dilation_w, taps_w, first_w, count_w = window
        stage_filters(w, shared, window, w_strides, y_extents[2], tid)
        acc, af, bf = cuda.local.array(NACC, f32), cuda.local.array(NA, u32), cuda.local.array(2, u32)
        at = cuda.local.array(MT, u32)
        epilogue = ResidualParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
        staged = (rows + count_h - 1) * i32(wide[0])
        for tile in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            rest, column = divide_remainder(tile, across)
            n, row = divide_remainder(rest, down)
            h0, w0 = row * rows, column * across_tile
            cuda.syncthreads()
            stage_pixels(pixels, y, n * y_strides[0], h0 + first_h, w0 + first_w, y_extents, y_strides, wide, staged,
                         tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            # a tile that reaches beyond the image is computed as a whole
            count = min(rows, height - h0) * across_tile
            for unit in range(16 * MT * warp, count, 16 * MT * WARPS):
                for k in range(NACC):
                    acc[k] = f32(0)
                for i in range(MT):
                    # lane 8 q + r reads pixel r of matrix q: pixels 0 or 8, then filters 0 or 8
                    pixel = min(unit + 16 * i + (lane & 15), count - 1)
                    p, q = divide_remainder(pixel, columns)
                    at[i] = pixels + u32((p * i32(wide[0]) + q) * LINE) + u32((lane >> 4) * 16)
                from_w = shared + u32(lane * 8)
                for a in range(count_h):
                    for b in range(count_w):
                        steps(0, (acc, af, bf, at, from_w))
                        from_w = from_w + STEPS * NT * 256
                        for i in range(MT):
                            at[i] = at[i] + LINE
                    for i in range(MT):
                        at[i] = at[i] + u32((i32(wide[0]) - count_w) * LINE)
                store_all(0, (acc, unit, count, g, t, columns, n, h0, w0, x_extents, x_strides, res, x, epilogue))
    return conv_bwd_data_small_c


def build(problem, device, config):
    """One launch: as many blocks as the device runs at once, or tiles."""
    p, tile = problem, _tile(problem, device, config)
    down, across, tiles = _counts(p, tile)
    (first_h, count_h), (first_w, count_w) = _taps(p, 1), _taps(p, 2)
    full = KernelConfig(config, p.dtype, _steps(p), _columns(p), p.strides[1:], p.c, _dy_copies(p), p.epilogue)
    sign = -1 if p.flip else 1
    w_k, w_c, _, w_r, w_s = p.w_strides
    first = (p.filter[1] - 1) * w_r + (p.filter[2] - 1) * w_s if p.flip else 0
    y_n, y_k, _, y_h, y_w = p.y_strides
    x_n, x_c, _, x_h, x_w = p.x_strides
    r_n, r_c, _, r_h, r_w = p.residual_strides
    window = (p.pads_before[1], p.dilations[1], p.filter[1], first_h, count_h, p.pads_before[2], p.dilations[2], p.filter[2], first_w,
              count_w)
    wide = tile[1] + count_w - 1
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "y"), Argument(pointer, "w"), Argument(element(p.x.dtype).pointer, "x"), Argument("int32", tiles),
                 Argument("int32x4", (*tile, *_extents(p))), Argument("int32x10", window),
                 Argument("int64x5", (w_k, w_c, sign * w_r, sign * w_s, first)), Argument("int32x3", (p.out[1], p.out[2], p.k)),
                 Argument("int64x4", (y_n, y_h, y_w, y_k)), Argument("int32x2", p.image[1:]), Argument("int64x4", (x_n, x_c, x_h, x_w)),
                 Argument("int64x4", (r_n, r_c, r_h, r_w)), Argument("uint32x3", divisor(down)), Argument("uint32x3", divisor(across)),
                 Argument("uint32x3", divisor(tile[1])), Argument("uint32x3", divisor(wide)), Argument("int32", _filter_bytes(p)),
                 *p.epilogue_arguments())
    return (Launch(kernel(full), (min(tiles, device.sms * config.blocks), 1, 1), (config.threads, 1, 1), arguments,
                   shared=_bytes(p, *tile)),)


ALGORITHM = Algorithm(op="conv_bwd_data", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
