"""Backward filter for images with one to four channels, on tensor cores: rows of x and pixels of dy are loaded once.

dw[k, (tap, c)] is the sum over pixels of dy[pixel, k] * x[pixel + tap, c]: pixels are k of the product, filters its rows, elements of a
window its columns. A block walks over tiles of pixels, all with the same accumulators, and copies the next tile meanwhile. Shared memory
has dy's pixels with filters side by side, and ldmatrix transposes them. Two pixels' words of the window, read as `forward` does, are two
registers of the right operand after two byte permutations.

Each block and each of its warps along pixels writes partial sums, which a second launch adds in a fixed order (`_gather.store`).

Limited by reading dy, and by mma.sync: 7x7 with stride 2 from 3 to 64 channels multiplies 160 elements of a window for 147.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.ldmatrix import ldmatrix_x4_trans
from ...device.mma import make_mma
from ...device.numeric import permute_bytes
from ...device.unroll import unrolled
from ...device.vec import address, load1_nc_if, load_shared_u32, shared_address, store_shared_u32
from ...dispatch import Algorithm, Note
from ...engine.ampere_cost import sum_seconds
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...host.launch import Argument, Launch
from .._gather import refusal, view_of
from .._gather.store import output_of, pitch_of, sum_launch, sums_bytes
from .rows import (Geometry, GradientStrides, RowStrides, Window, are_copies, buffer_bytes, geometry_of, issue_cycles, make_load_rows,
                   make_locate, make_shift, make_split, staging, tile_of, window_of, window_refusal)

COST = constants("conv/small_c_filter")

UNIT = 16  # pixels of an mma.sync


@dataclass(frozen=True)
class Config:
    """Approximate pixels of a tile; warps along pixels and along the elements of windows; tiles of 16 filters per warp; blocks per
    multiprocessor."""
    pixels: int
    warps_p: int
    warps_u: int
    filters: int
    blocks: int

    @property
    def threads(self):
        return 32 * self.warps_p * self.warps_u

    @property
    def line(self):
        """Bytes of a pixel's dy in shared memory: eight neighbouring pixels begin in different banks."""
        return 32 * self.filters + 16

    def __str__(self):
        return f"{self.pixels} pixels w{self.warps_p}x{self.warps_u} f{16 * self.filters} b{self.blocks}"


CONFIGS = (Config(224, 2, 2, 4, 2), Config(128, 2, 2, 4, 4), Config(448, 4, 2, 4, 1), Config(224, 4, 2, 2, 2), Config(224, 2, 4, 4, 1),
           Config(128, 4, 1, 4, 2), Config(64, 2, 1, 2, 3), Config(32, 1, 2, 1, 4))


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: rows of x and pixels of dy in 16-byte copies or element by element; order of the columns."""
    config: Config
    dtype: str
    window: Window
    by_copies: bool
    dy_copies: bool
    channel_inner: bool


def supports(problem):
    """As the forward direction, and some pixels."""
    if problem.pixels == 0:
        return "no pixels to sum over"
    return window_refusal(problem) or refusal(problem)


def _groups(window, config):
    """Tiles of 16 elements of windows per warp."""
    return ceil_div(window.steps, config.warps_u)


def _buffer(problem, config):
    """(bytes of the rows of x, of dy's pixels) in one half of the double buffer."""
    rows, columns = tile_of(problem, config.pixels)
    pixels = ceil_div(rows * columns, UNIT) * UNIT
    return ceil_div(buffer_bytes(problem, rows, columns), 16) * 16, pixels * config.line


def _counts(problem, config):
    """(tiles down an image, across it, in all, blocks along filters)"""
    rows, columns = tile_of(problem, config.pixels)
    down, across = ceil_div(problem.out[1], rows), ceil_div(problem.out[2], columns)
    return down, across, down * across * problem.n, ceil_div(problem.k, 16 * config.filters)


def _grid(problem, device, config):
    _, _, tiles, filters = _counts(problem, config)
    return min(tiles, max(device.sms * config.blocks // filters, 1))


def _ranges(problem, device, config):
    return _grid(problem, device, config) * config.warps_p


def configs(problem, device):
    """Those whose accumulators fit into registers and whose buffers fit into shared memory."""
    window, found = window_of(problem), []
    for c in CONFIGS:
        shared = 2 * sum(_buffer(problem, c))
        sums = c.filters * _groups(window, c) * 8
        registers = min(65536 // (c.threads * c.blocks), 255)
        if c.blocks * (shared + 1024) <= device.shared_per_sm and shared <= device.shared_per_block and sums + 70 <= registers:
            if problem.k > 8 * c.filters or c is CONFIGS[-1]:
                found.append(c)
    return sorted(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """Partial sums of every block and of its warps along pixels."""
    view = view_of(problem)
    return sums_bytes(1, view.rows, view.columns, _ranges(problem, device, config), "float32")


def estimate(problem, device, config):
    """Tiles of the busiest multiprocessor, bound by instructions; or the memory; then the sum."""
    p, window = problem, window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    _, _, tiles, filters = _counts(p, config)
    blocks = min(config.blocks, ceil_div(tiles * filters, device.sms))
    each = ceil_div(tiles * filters, device.sms * blocks)
    units = ceil_div(ceil_div(rows * columns, UNIT), config.warps_p)
    copies, waits = staging(p, rows, columns, config.threads)
    chunks = ceil_div(rows * columns * config.filters * 2, config.threads)
    if _dy_copies(p):
        copies += COST.copy * chunks
    else:
        copies, waits = copies + COST.load * chunks, waits + COST.load_wait * chunks
    work = COST.tile + copies + units * (COST.unit + COST.group * _groups(window, config) * config.filters)
    cycles = issue_cycles(work, config.threads // 32, blocks) + waits
    work = overlap(issue=each * cycles / device.clock_hz, memory=p.bytes / (COST.rate * device.bandwidth))
    return Cost(launch=COST.start) + work + sum_seconds(workspace(problem, device, config), device)


def _dy_copies(problem):
    """Whether dy can be copied 16 bytes of filters at a time."""
    n, k, _, h, w = problem.y_strides
    return k == 1 and problem.y.alignment == 16 and not any(v % 8 for v in (problem.k, n, h, w))


class GradientTile(NamedTuple):
    """Rows and columns of a tile of dy; its pixels, rounded up to whole products."""
    rows: i32
    columns: i32
    pixels: i32


@functools.cache
def kernel(full):
    """Partial sums over the tiles of a block."""
    config, window = full.config, full.window
    THREADS, WARPS_P, MT, LINE = config.threads, config.warps_p, config.filters, config.line
    SHIFT, FILTERS = WARPS_P.bit_length() - 1, 16 * config.filters
    GROUPS, STEPS, C, COPIES = _groups(window, config), window.steps, window.c, window.copies
    NACC, NA = MT * GROUPS * 8, MT * 4
    MARGIN, BEFORE, STRIDE = window.margin, window.pad * window.c + window.lead, window.stride * window.c
    R, S, LEAD, LAST = window.r, window.s, window.lead, window.lead + window.s * window.c
    mma, locate_k, split = make_mma(full.dtype), make_locate(window), make_split(C)
    load_rows, shift = make_load_rows(window, full.by_copies, THREADS), make_shift(window, full.by_copies, THREADS)
    arrived, channel_inner = wait_copies(1), full.channel_inner

    if full.dy_copies:
        CHUNKS = FILTERS // 8

        @device_function
        def load_pixels(to, y, first, f0, K, pixels, count, columns, stride, tid):
            for i in range(tid, pixels * CHUNKS, THREADS):
                pixel, part = i // CHUNKS, i % CHUNKS
                p, q = divide_remainder(pixel, columns)
                inside = pixel < count and f0 + 8 * part < K
                at = first + p * stride.p + q * stride.q + (f0 + 8 * part)
                copy_async16(to + u32(pixel * LINE + 16 * part), address(y, at if inside else 0), 0, 16 if inside else 0)
    else:
        @device_function
        def load_pixels(to, y, first, f0, K, pixels, count, columns, stride, tid):
            for f in range(0, FILTERS, 2):  # neighbouring threads have neighbouring pixels
                for pixel in range(tid, pixels, THREADS):
                    p, q = divide_remainder(pixel, columns)
                    word = u32(0)
                    for e in range(2):
                        k = f0 + f + e
                        inside = pixel < count and k < K
                        at = first + p * stride.p + q * stride.q + k * stride.k
                        word = word | (u32(load1_nc_if(y, at if inside else 0, 1 if inside else 0)) << 16 * e)
                    store_shared_u32(to + u32(pixel * LINE + f * 2), word)

    @device_function
    def load_filters(i, s):
        """Fragment i of the left operand, 16 filters by 16 pixels, transposed."""
        af, from_dy = s
        ldmatrix_x4_trans(af, 4 * i, from_dy + u32(32 * i))
    load_all = unrolled(MT, load_filters)

    @device_function
    def group(u, s):
        """The products of 16 elements of windows: two tiles of 8 columns, even and odd elements."""
        acc, af, bf, (at0, at1, at2, at3), offsets = s
        v0, v1 = load_shared_u32(at0 + offsets[u]), load_shared_u32(at1 + offsets[u])
        v2, v3 = load_shared_u32(at2 + offsets[u]), load_shared_u32(at3 + offsets[u])
        bf[0], bf[1] = permute_bytes(v0, v1, 0x5410), permute_bytes(v2, v3, 0x5410)
        bf[2], bf[3] = permute_bytes(v0, v1, 0x7632), permute_bytes(v2, v3, 0x7632)
        for i in range(MT):
            mma(acc, ((i * GROUPS + u) * 2) * 4, af, 4 * i, bf, 0)
            mma(acc, ((i * GROUPS + u) * 2 + 1) * 4, af, 4 * i, bf, 2)
    groups = unrolled(GROUPS, group)

    @device_function
    def store_group(n, s):
        """The accumulators of 16 filters and 16 elements: a lane has four neighbouring elements of two filters."""
        acc, sums, at, f0, K, pitch, first_group, g, t = s
        i, u = n // GROUPS, n % GROUPS
        for e in range(4):
            r, j = locate_k(16 * (first_group + u) + 4 * t + e)
            if first_group + u < STEPS and r < R and j >= LEAD and j < LAST:
                column = r * (S * C) + (j - LEAD)
                if not channel_inner:
                    tap, channel = split(j - LEAD)
                    column = (channel * R + r) * S + tap
                for half in range(2):
                    f = f0 + 16 * i + 8 * half + g
                    if f < K:
                        sums[at + i64(f) * pitch + column] = acc[(n * 2 + (e & 1)) * 4 + 2 * half + (e >> 1)]
    store_all = unrolled(MT * GROUPS, store_group)

    @device_function
    def locate(index, tile, down, across):
        """(image, first row, first column) of a tile of dy."""
        rest, column = divide_remainder(index, across)
        n, row = divide_remainder(rest, down)
        return n, row * tile.rows, column * tile.columns

    @device_function
    def load_tile(to, x, y, index, tile, down, across, geometry, x_stride, y_stride, pitch, parts, columns, f0, x_bytes, tid):
        P, Q, K, H, W, stride_h, padding_h, _, rows = geometry
        n, p0, q0 = locate(index, tile, down, across)
        load_rows(to, x, n * x_stride.n, p0 * stride_h - padding_h, q0 * STRIDE - MARGIN, rows, H, W * C, x_stride, pitch, parts, tid)
        # a tile of one row may be cut short; its pixels still count along the row
        count = min(tile.rows, P - p0) * min(tile.columns, Q - q0)
        first = n * y_stride.n + p0 * y_stride.p + q0 * y_stride.q
        load_pixels(to + u32(x_bytes), y, first, f0, K, tile.pixels, count, columns, y_stride, tid)

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_bwd_filter_small_c(x, y, sums, tiles, tile, geometry, x_stride, y_stride, down, across, columns, parts, pitch, x_bytes,
                                buffer_size, sums_pitch):
        ring = cuda.shared.array(0, u32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        warp_p, warp_u = warp & (WARPS_P - 1), warp >> SHIFT
        P, Q, K, H, W, stride_h, _, dilation_h, rows = geometry
        f0 = cuda.blockIdx.y * FILTERS
        acc, af, bf = cuda.local.array(NACC, f32), cuda.local.array(NA, u32), cuda.local.array(4, u32)
        at, offsets = cuda.local.array(4, u32), cuda.local.array(GROUPS, u32)
        for i in range(NACC):
            acc[i] = f32(0)
        for u in range(GROUPS):
            r, j = locate_k(16 * (warp_u * GROUPS + u) + 2 * g)
            offsets[u] = r * dilation_h * pitch + 2 * j if r < R else 0
        # lane 8 q + r reads line r of matrix q: filters 0 or 8, then pixels 0 or 8
        from_dy = u32(((lane >> 4) * 8 + (lane & 7)) * LINE + ((lane >> 3) & 1) * 16)
        index, buffer = cuda.blockIdx.x, 0
        load_tile(smem, x, y, index, tile, down, across, geometry, x_stride, y_stride, pitch, parts, columns, f0, x_bytes, tid)
        commit_copies()
        while index < tiles:
            # load the next tile
            n, p0, q0 = locate(index, tile, down, across)
            following = index + cuda.gridDim.x
            if following < tiles:
                load_tile(smem + u32((1 - buffer) * buffer_size), x, y, following, tile, down, across, geometry, x_stride, y_stride, pitch,
                          parts, columns, f0, x_bytes, tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            x_tile = smem + u32(buffer * buffer_size)
            shift(x_tile, rows, pitch, parts, tid)
            begin = x_tile + (MARGIN - BEFORE) * 2
            count = min(tile.rows, P - p0) * min(tile.columns, Q - q0)

            # multiply, 16 pixels at a time
            for unit in range(16 * warp_p, count, 16 * WARPS_P):
                for k in range(4):
                    i = unit + 2 * t + (k & 1) + 8 * (k >> 1)
                    p, q = divide_remainder(min(i, count - 1), columns)
                    e = q * STRIDE
                    if COPIES == 2:
                        e = e + (rows * (pitch >> 1) - 1 if (e & 1) != 0 else 0)
                    at[k] = begin + u32(p * stride_h * pitch + e * 2)
                load_all(0, (af, x_tile + u32(x_bytes) + from_dy + u32(unit * LINE)))
                groups(0, (acc, af, bf, (at[0], at[1], at[2], at[3]), offsets))
            cuda.syncthreads()
            buffer = 1 - buffer
            index = following

        # write partial sums
        part = i64(cuda.blockIdx.x * WARPS_P + warp_p) * K * sums_pitch
        store_all(0, (acc, sums, part, f0, K, sums_pitch, warp_u * GROUPS, g, t))
    return conv_bwd_filter_small_c


def build(problem, device, config):
    """Partial sums, then their reduction."""
    p, view, window = problem, view_of(problem), window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    down, across, tiles, filters = _counts(p, config)
    full = KernelConfig(config, p.dtype, window, are_copies(p), _dy_copies(p), view.channel_inner)
    x_bytes, y_bytes = _buffer(p, config)
    pitch, pixels = window.pitch(columns) * 2, ceil_div(rows * columns, UNIT) * UNIT
    n, c, _, h, w = p.x_strides
    y_n, y_k, _, y_h, y_w = p.y_strides
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), Argument("float32*", "workspace"), Argument("int32", tiles),
                 Argument(GradientTile, GradientTile(rows, columns, pixels)), Argument(Geometry, geometry_of(p, rows)),
                 Argument(RowStrides, RowStrides(h, w, c, n)), Argument(GradientStrides, GradientStrides(y_n, y_h, y_w, y_k)),
                 *(Argument(Divisor, divisor(v)) for v in (down, across, columns, pitch // (16 if full.by_copies else 4))),
                 Argument("int32", pitch), Argument("int32", x_bytes), Argument("int32", x_bytes + y_bytes),
                 Argument("int32", pitch_of(view.columns, "float32")))
    partial = Launch(kernel(full), (_grid(p, device, config), filters, 1), (config.threads, 1, 1), arguments,
                     shared=2 * (x_bytes + y_bytes))
    return partial, sum_launch(view, output_of(view, False, 4), view.rows, view.columns, _ranges(p, device, config))


ALGORITHM = Algorithm(op="conv_bwd_filter", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
