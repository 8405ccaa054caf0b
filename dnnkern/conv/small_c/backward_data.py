"""Backward data for images with one to four channels, on tensor cores: pixels of dy are loaded once.

With stride s, a group of s x s pixels of dx, all channels, counts as one pixel with s * s * C channels: dx in such groups is a convolution
of dy without stride. It has as many taps along h as there are offsets between a group's pixels and the pixels of dy that reach them;
filters without a tap at an offset are zero there. 7x7 with stride 2 on 3 channels becomes 4x4 on 12 channels, two column tiles of mma.sync,
where single channels would leave most of a tile empty.

A block loads the pixels of dy that its tile needs, filters side by side (cp.async, 16 bytes at a time, or element by element), and the
filters in the order of fragments; every tap reads both from shared memory, pixels by ldmatrix. It walks over its tiles. Limited by shared
memory, then by mma.sync. Elements of dy that are not finite reach all pixels of their groups.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.epilogue import EpilogueSpec, ResidualParams
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, quotient
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
from .._parameters import PlaneStrides
from .rows import CHANNELS, FilterLayout, GradientStrides

COST = constants("conv/small_c_data")

MOST_COLUMNS = 64
MOST_FILTERS = 128


@dataclass(frozen=True)
class Config:
    """Warps, tiles of 16 groups of pixels that each multiplies at a time, and blocks per multiprocessor."""
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
    """What a kernel is compiled for: products of 16 filters, tiles of 8 columns, pixels of dx in a group and their channels; whether dy is
    copied 16 bytes at a time."""
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
        return f"{p.c} channels; expected 1 to {CHANNELS}"
    if not 1 <= p.k <= MOST_FILTERS:
        return f"{p.k} filters; expected 1 to {MOST_FILTERS}"
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
    """(first offset from a group of pixels to dy, number of offsets) along dimension d."""
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
    """Bytes of a pixel of dy in shared memory: an odd number of 16-byte vectors, for ldmatrix."""
    return _steps(problem) * 32 + 16


def _bytes(problem, rows, columns):
    """Shared memory for a tile of so many groups of pixels."""
    return (rows + _taps(problem, 1)[1] - 1) * (columns + _taps(problem, 2)[1] - 1) * _line(problem) + _filter_bytes(problem)


def _extents(problem):
    """Groups of pixels down and across an image."""
    return ceil_div(problem.image[1], problem.strides[1]), ceil_div(problem.image[2], problem.strides[2])


def _tile(problem, device, config):
    """(rows, columns) of groups of pixels in a tile, as many as fit: whole rows, or a part of one; None where nothing fits."""
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
    """Those whose tile fits into shared memory."""
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
    # few other warps run while one waits for many pixels
    few = max(1.0, COST.warps / (blocks * config.warps)) ** COST.power
    slower = COST.slower * few * (1 + config.tiles / COST.wait) * (COST.wait_one if blocks == 1 else 1.0)
    return Cost(launch=COST.start, transform=_filter_bytes(p) * COST.filter) + work.slowed(slower=slower)


def _dy_copies(problem):
    """Whether dy can be copied 16 bytes of filters at a time."""
    n, k, _, h, w = problem.y_strides
    return k == 1 and problem.y.alignment == 16 and not any(v % 8 for v in (problem.k, n, h, w))


class GroupTile(NamedTuple):
    """Groups of pixels: rows and columns of a tile, and of an image."""
    rows: i32
    columns: i32
    height: i32
    width: i32


class TapOffsets(NamedTuple):
    """Of an axis: leading padding, dilation, taps; first offset from a group of pixels to dy, and their number."""
    padding: i32
    dilation: i32
    taps: i32
    first: i32
    offsets: i32


class Window(NamedTuple):
    """The window along h and w."""
    h: TapOffsets
    w: TapOffsets


@functools.cache
def kernel(full):
    """Tiles of dx, one after another."""
    config, STEPS, NT, C = full.config, full.steps, full.columns, full.channels
    THREADS, WARPS, MT, LINE = config.threads, config.warps, config.tiles, 32 * full.steps + 16
    SH, SW = full.pixels
    COLUMNS, NACC, NA, CHUNKS = SH * SW * C, MT * NT * 4, MT * 4, 2 * full.steps
    mma, arrived, store = make_mma(full.dtype), wait_copies(0), make_group_store(full.epilogue, 1, False)

    @device_function
    def tap(c, offset, stride, axis):
        """The tap by which `offset` of dy reaches pixel c of a group; -1 if there is none."""
        v = c + axis.padding - stride * offset
        r = quotient(v if v >= 0 else 0, axis.dilation)
        return r if v >= 0 and r * axis.dilation == v and r < axis.taps else -1

    @device_function
    def store_filters(w, smem, window, layout, K, tid):
        """The filters as the right operand's fragments: [offset h][offset w][16 filters][8 columns][lane][2 words]."""
        for i in range(tid, window.h.offsets * window.w.offsets * (STEPS * NT * 64), THREADS):
            word, rest = i & 63, i >> 6
            lane, half = word >> 1, word & 1
            n, rest = (rest % NT) * 8 + (lane >> 2), rest // NT
            f, rest = (rest % STEPS) * 16 + half * 8 + (lane & 3) * 2, rest // STEPS
            a = quotient(rest, window.w.offsets)
            b = rest - a * window.w.offsets
            c, pixel = n % C, n // C
            r = tap(pixel // SW, window.h.first + a, SH, window.h)
            s = tap(pixel % SW, window.w.first + b, SW, window.w)
            value = u32(0)
            for e in range(2):
                ok = n < COLUMNS and r >= 0 and s >= 0 and f + e < K
                at = layout.base + (f + e) * layout.k + r * layout.r + s * layout.s + c * layout.c
                value = value | (u32(load1_nc_if(w, at if ok else 0, 1 if ok else 0)) << 16 * e)
            store_shared_u32(smem + u32(i * 4), value)

    if full.dy_copies:
        @device_function
        def load_pixels(to, y, first, p0, q0, extents, stride, wide, total, tid):
            P, Q, K = extents
            for i in range(tid, total * CHUNKS, THREADS):
                pixel, part = i // CHUNKS, i % CHUNKS
                row, column = divide_remainder(pixel, wide)
                p, q = p0 + row, q0 + column
                inside = 0 <= p and p < P and 0 <= q and q < Q and 8 * part < K
                at = first + p * stride.p + q * stride.q + 8 * part
                copy_async16(to + u32(pixel * LINE + 16 * part), address(y, at if inside else 0), 0, 16 if inside else 0)
    else:
        @device_function
        def load_pixels(to, y, first, p0, q0, extents, stride, wide, total, tid):
            P, Q, K = extents
            for f in range(0, 16 * STEPS, 2):  # neighbouring threads have neighbouring pixels
                for i in range(tid, total, THREADS):
                    row, column = divide_remainder(i, wide)
                    p, q = p0 + row, q0 + column
                    word = u32(0)
                    for e in range(2):
                        inside = 0 <= p and p < P and 0 <= q and q < Q and f + e < K
                        at = first + p * stride.p + q * stride.q + (f + e) * stride.k
                        word = word | (u32(load1_nc_if(y, at if inside else 0, 1 if inside else 0)) << 16 * e)
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
        """Eight columns of 16 groups of pixels."""
        acc, unit, count, g, t, wide, n_image, h0, w0, extents, stride, residual_stride, x, epilogue = s
        height, width = extents
        i, j = n // NT, n % NT
        alpha, beta, bias, bias_stride, prior, _, _, residual, _, _ = epilogue
        for half in range(2):
            index = unit + 16 * i + 8 * half + g
            row, column = divide_remainder(min(index, count - 1), wide)
            for e in range(2):
                k = 8 * j + 2 * t + e
                pixel = k // C
                c, h, w = k % C, (h0 + row) * SH + pixel // SW, (w0 + column) * SW + pixel % SW
                if index < count and k < COLUMNS and h < height and w < width:
                    at = n_image * stride.n + h * stride.h + w * stride.w
                    residual_at = n_image * residual_stride.n + h * residual_stride.h + w * residual_stride.w
                    store(acc, n * 4 + 2 * half + e, 0, c, C, x, at + c * stride.c, stride.c,
                          ResidualParams(alpha, beta, bias, bias_stride, advance(prior, at), 0, i32(stride.c),
                                         advance(residual, residual_at), 0, i32(residual_stride.c)))
    store_all = unrolled(MT * NT, store_tile)

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_bwd_data_small_c(y, w, x, tiles, tile, window, w_layout, y_extents, y_stride, x_extents, x_stride, residual_stride, down,
                              across, columns, wide, filter_bytes, alpha, beta, bias, bias_stride, prior, row_stride, column_stride,
                              residual, residual_row, residual_column):
        ring = cuda.shared.array(0, u32)
        smem = shared_address(ring, 0)
        pixels = smem + u32(filter_bytes)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        _, _, K = y_extents
        store_filters(w, smem, window, w_layout, K, tid)
        acc, af, bf = cuda.local.array(NACC, f32), cuda.local.array(NA, u32), cuda.local.array(2, u32)
        at = cuda.local.array(MT, u32)
        epilogue = ResidualParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
        loaded = (tile.rows + window.h.offsets - 1) * i32(wide.d)
        for index in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            # load the tile's pixels of dy
            rest, column = divide_remainder(index, across)
            n, row = divide_remainder(rest, down)
            h0, w0 = row * tile.rows, column * tile.columns
            cuda.syncthreads()
            load_pixels(pixels, y, n * y_stride.n, h0 + window.h.first, w0 + window.w.first, y_extents, y_stride, wide, loaded, tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            # columns past the image's edge are computed, and not stored
            count = min(tile.rows, tile.height - h0) * tile.columns
            for unit in range(16 * MT * warp, count, 16 * MT * WARPS):
                for k in range(NACC):
                    acc[k] = f32(0)
                for i in range(MT):
                    # lane 8 q + r reads pixel r of matrix q: pixels 0 or 8, then filters 0 or 8
                    pixel = min(unit + 16 * i + (lane & 15), count - 1)
                    p, q = divide_remainder(pixel, columns)
                    at[i] = pixels + u32((p * i32(wide.d) + q) * LINE) + u32((lane >> 4) * 16)
                from_w = smem + u32(lane * 8)
                for a in range(window.h.offsets):
                    for b in range(window.w.offsets):
                        steps(0, (acc, af, bf, at, from_w))
                        from_w = from_w + STEPS * NT * 256
                        for i in range(MT):
                            at[i] = at[i] + LINE
                    for i in range(MT):
                        at[i] = at[i] + u32((i32(wide.d) - window.w.offsets) * LINE)
                store_all(0, (acc, unit, count, g, t, columns, n, h0, w0, x_extents, x_stride, residual_stride, x, epilogue))
    return conv_bwd_data_small_c


def build(problem, device, config):
    """One launch with as many blocks as fit on the device, or as there are tiles."""
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
    window = Window(TapOffsets(p.pads_before[1], p.dilations[1], p.filter[1], first_h, count_h),
                    TapOffsets(p.pads_before[2], p.dilations[2], p.filter[2], first_w, count_w))
    wide = tile[1] + count_w - 1
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "y"), Argument(pointer, "w"), Argument(element(p.x.dtype).pointer, "x"), Argument("int32", tiles),
                 Argument(GroupTile, GroupTile(*tile, *_extents(p))), Argument(Window, window),
                 Argument(FilterLayout, FilterLayout(w_k, w_c, sign * w_r, sign * w_s, first)),
                 Argument("int32x3", (p.out[1], p.out[2], p.k)), Argument(GradientStrides, GradientStrides(y_n, y_h, y_w, y_k)),
                 Argument("int32x2", p.image[1:]), Argument(PlaneStrides, PlaneStrides(x_n, x_c, x_h, x_w)),
                 Argument(PlaneStrides, PlaneStrides(r_n, r_c, r_h, r_w)),
                 *(Argument(Divisor, divisor(v)) for v in (down, across, tile[1], wide)), Argument("int32", _filter_bytes(p)),
                 *p.epilogue_arguments())
    return (Launch(kernel(full), (min(tiles, device.sms * config.blocks), 1, 1), (config.threads, 1, 1), arguments,
                   shared=_bytes(p, *tile)),)


ALGORITHM = Algorithm(op="conv_bwd_data", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
