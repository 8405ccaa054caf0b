"""Filters' gradients where images have one to four channels, on tensor cores: rows of x and pixels of dy once in shared memory.

dw[k, (tap, c)] sums dy[pixel, k] x[pixel + tap, c] over pixels, so pixels are what mma.sync sums over: filters are the rows of a product
and elements of a window its columns. A block takes one tile of pixels after another, all with the same accumulators. dy's pixels lie in
shared memory with filters side by side, and ldmatrix transposes them; two pixels' words of the window, as `conv_fwd_small_c` reads them,
are two registers of the right operand after two byte permutations. The next tile is copied meanwhile.

Every block and every half of its warps leaves partial sums, which a second launch adds up in a fixed order (`store`).

Bound by reading dy, and by mma.sync: 7x7 with stride 2 from 3 to 64 channels multiplies 160 elements of windows for 147.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, copy_async16, wait_copies
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.ldmatrix import ldmatrix_x4_trans
from ...device.mma import make_mma
from ...device.numeric import permute_bytes
from ...device.unroll import unrolled
from ...device.vec import address, load1_nc_if, load_shared_u32, shared_address, store_shared_u32
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...engine.ampere_cost import sum_seconds
from ...host.launch import Argument, Launch
from .._gather import refusal, view_of
from .._gather.store import output_of, pitch_of, sum_launch, sums_bytes
from .rows import (Window, are_copies, buffer_bytes, issue_cycles, make_place, make_shift, make_split, make_stage, rows_of, staging,
                   tile_of, window_of, window_refusal)

COST = constants("conv/small_c_filter")

UNIT = 16  # pixels of a product


@dataclass(frozen=True)
class Config:
    """Pixels of a tile, about; warps along pixels and along the elements of windows; tiles of 16 filters a warp; blocks on a
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
        """Bytes of a pixel's dy in shared memory: eight of them begin in different banks."""
        return 32 * self.filters + 16

    def __str__(self):
        return f"{self.pixels} pixels w{self.warps_p}x{self.warps_u} f{16 * self.filters} b{self.blocks}"


CONFIGS = (Config(224, 2, 2, 4, 2), Config(128, 2, 2, 4, 4), Config(448, 4, 2, 4, 1), Config(224, 4, 2, 2, 2), Config(224, 2, 4, 4, 1),
           Config(128, 4, 1, 4, 2), Config(64, 2, 1, 2, 3), Config(32, 1, 2, 1, 4))


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for: rows of x, and pixels of dy, in copies of 16 bytes or element by element; order of the columns."""
    config: Config
    dtype: str
    window: Window
    by_copies: bool
    dy_copies: bool
    channel_inner: bool


def supports(problem):
    """As the forward direction, and some pixels."""
    if problem.pixels == 0:
        return "there are no pixels to sum over"
    return window_refusal(problem) or refusal(problem)


def _groups(window, config):
    """Tiles of 16 elements of windows that a warp has."""
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
    """Those whose accumulators fit the registers, and whose buffers the shared memory."""
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


@functools.cache
def kernel(full):
    """The sums over the tiles of one block."""
    config, window = full.config, full.window
    THREADS, WARPS_P, MT, LINE = config.threads, config.warps_p, config.filters, config.line
    SHIFT, FILTERS = WARPS_P.bit_length() - 1, 16 * config.filters
    GROUPS, STEPS, C, COPIES = _groups(window, config), window.steps, window.c, window.copies
    NACC, NA = MT * GROUPS * 8, MT * 4
    MARGIN, BEFORE, STRIDE = window.margin, window.pad * window.c + window.lead, window.stride * window.c
    R, S, LEAD, LAST = window.r, window.s, window.lead, window.lead + window.s * window.c
    mma, place, split = make_mma(full.dtype), make_place(window), make_split(C)
    stage_rows, shift = make_stage(window, full.by_copies, THREADS), make_shift(window, full.by_copies, THREADS)
    arrived, channel_inner = wait_copies(1), full.channel_inner

    if full.dy_copies:
        CHUNKS = FILTERS // 8

        @device_function
        def stage_pixels(to, y, first, f0, K, pixels, count, columns, strides, tid):
            for i in range(tid, pixels * CHUNKS, THREADS):
                pixel, part = i // CHUNKS, i % CHUNKS
                p, q = divide_remainder(pixel, columns)
                inside = pixel < count and f0 + 8 * part < K
                at = first + p * strides[1] + q * strides[2] + (f0 + 8 * part)
                copy_async16(to + u32(pixel * LINE + 16 * part), address(y, at if inside else i64(0)), i64(0),
                             u32(16) if inside else u32(0))
    else:
        @device_function
        def stage_pixels(to, y, first, f0, K, pixels, count, columns, strides, tid):
            for f in range(0, FILTERS, 2):  # neighbouring threads take neighbouring pixels
                for i in range(tid, pixels, THREADS):
                    pixel = i
                    p, q = divide_remainder(pixel, columns)
                    word = u32(0)
                    for e in range(2):
                        k = f0 + f + e
                        inside = pixel < count and k < K
                        at = first + p * strides[1] + q * strides[2] + k * strides[3]
                        word = word | (u32(load1_nc_if(y, at if inside else i64(0), 1 if inside else 0)) << u32(16 * e))
                    store_shared_u32(to + u32(pixel * LINE + f * 2), word)

    @device_function
    def load_filters(i, s):
        """The left operand's 16 filters number i: k, the pixels, are the lines of the transposed matrices."""
        af, from_dy = s
        ldmatrix_x4_trans(af, 4 * i, from_dy + u32(32 * i))
    load_all = unrolled(MT, load_filters)

    @device_function
    def group(u, s):
        """The products of 16 elements of windows: two tiles of 8 columns, even and odd elements."""
        acc, af, bf, at, offsets = s
        v0, v1 = load_shared_u32(at[0] + offsets[u]), load_shared_u32(at[1] + offsets[u])
        v2, v3 = load_shared_u32(at[2] + offsets[u]), load_shared_u32(at[3] + offsets[u])
        bf[0], bf[1] = permute_bytes(v0, v1, u32(0x5410)), permute_bytes(v2, v3, u32(0x5410))
        bf[2], bf[3] = permute_bytes(v0, v1, u32(0x7632)), permute_bytes(v2, v3, u32(0x7632))
        for i in range(MT):
            mma(acc, ((i * GROUPS + u) * 2) * 4, af, 4 * i, bf, 0)
            mma(acc, ((i * GROUPS + u) * 2 + 1) * 4, af, 4 * i, bf, 2)
    groups = unrolled(GROUPS, group)

    @device_function
    def store_group(n, s):
        """The sums of 16 filters and 16 elements: a lane has four neighbouring elements of two filters."""
        acc, sums, at, f0, K, pitch, first_group, g, t = s
        i, u = n // GROUPS, n % GROUPS
        for e in range(4):
            r, j = place(16 * (first_group + u) + 4 * t + e)
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
    def locate(tile, counts, down, across):
        """(image, first row, first column) of dy in a tile."""
        rest, column = divide_remainder(tile, across)
        n, row = divide_remainder(rest, down)
        return n, row * counts[0], column * counts[1]

    @device_function
    def stage(to, x, y, tile, counts, down, across, image, x_strides, y_strides, pitch, parts, columns, f0, x_bytes, tid):
        P, Q, K, H, W, stride_h, pad_h, _, rows = image
        n, p0, q0 = locate(tile, counts, down, across)
        stage_rows(to, x, n * x_strides[3], p0 * stride_h - pad_h, q0 * STRIDE - MARGIN, rows, H, W * C, x_strides,
                   pitch, parts, tid)
        count = min(counts[0], P - p0) * min(counts[1], Q - q0)
        # TILES of one row may be cut short: their pixels count along the row all the same
        first = n * y_strides[0] + p0 * y_strides[1] + q0 * y_strides[2]
        stage_pixels(to + u32(x_bytes), y, first, f0, K, counts[2], count, columns, y_strides, tid)

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_bwd_filter_small_c(x, y, sums, tiles, counts, image, x_strides, y_strides, down, across, columns, parts, pitch, x_bytes,
                                buffer_size, sums_pitch):
        ring = cuda.shared.array(0, u32)
        shared = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        warp_p, warp_u = warp & (WARPS_P - 1), warp >> SHIFT
        P, Q, K, H, W, stride_h, pad_h, step_h, rows = image
        f0 = cuda.blockIdx.y * FILTERS
        acc, af, bf = cuda.local.array(NACC, f32), cuda.local.array(NA, u32), cuda.local.array(4, u32)
        at, offsets = cuda.local.array(4, u32), cuda.local.array(GROUPS, u32)
        for i in range(NACC):
            acc[i] = f32(0)
        for u in range(GROUPS):
            r, j = place(16 * (warp_u * GROUPS + u) + 2 * g)
            offsets[u] = u32(r * step_h * pitch + 2 * j if r < R else 0)
        # lane 8 q + r reads line r of matrix q: filters 0 or 8, then pixels 0 or 8
        from_dy = u32(((lane >> 4) * 8 + (lane & 7)) * LINE + ((lane >> 3) & 1) * 16)
        tile, buffer = cuda.blockIdx.x, i32(0)
        stage(shared, x, y, tile, counts, down, across, image, x_strides, y_strides, pitch, parts, columns, f0, x_bytes, tid)
        commit_copies()
        while tile < tiles:
            n, p0, q0 = locate(tile, counts, down, across)
            following = tile + cuda.gridDim.x
            if following < tiles:
                stage(shared + u32((1 - buffer) * buffer_size), x, y, following, counts, down, across, image, x_strides, y_strides,
                      pitch, parts, columns, f0, x_bytes, tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            here = shared + u32(buffer * buffer_size)
            shift(here, rows, pitch, parts, tid)
            begin = here + (MARGIN - BEFORE) * 2
            count = min(counts[0], P - p0) * min(counts[1], Q - q0)
            for unit in range(16 * warp_p, count, 16 * WARPS_P):
                for k in range(4):
                    i = unit + 2 * t + (k & 1) + 8 * (k >> 1)
                    p, q = divide_remainder(min(i, count - 1), columns)
                    e = q * STRIDE
                    if COPIES == 2:
                        e = e + (rows * (pitch >> 1) - 1 if (e & 1) != 0 else 0)
                    at[k] = begin + u32(p * stride_h * pitch + e * 2)
                load_all(0, (af, here + u32(x_bytes) + from_dy + u32(unit * LINE)))
                groups(0, (acc, af, bf, at, offsets))
            cuda.syncthreads()
            buffer = 1 - buffer
            tile = following
        part = i64(cuda.blockIdx.x * WARPS_P + warp_p) * K * sums_pitch
        store_all(0, (acc, sums, part, f0, K, sums_pitch, warp_u * GROUPS, g, t))
    return conv_bwd_filter_small_c


def build(problem, device, config):
    """The partial sums of the blocks, then their sum."""
    p, view, window = problem, view_of(problem), window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    down, across, tiles, filters = _counts(p, config)
    full = KernelConfig(config, p.dtype, window, are_copies(p), _dy_copies(p), view.channel_inner)
    x_bytes, y_bytes = _buffer(p, config)
    pitch, pixels = window.pitch(columns) * 2, ceil_div(rows * columns, UNIT) * UNIT
    n, c, _, h, w = p.x_strides
    y_n, y_k, _, y_h, y_w = p.y_strides
    image = (p.out[1], p.out[2], p.k, p.image[1], p.image[2], p.strides[1], p.pads_before[1], p.dilations[1], rows_of(p, rows))
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "x"), Argument(pointer, "y"), Argument("float32*", "workspace"), Argument("int32", tiles),
                 Argument("int32x3", (rows, columns, pixels)), Argument("int32x9", image), Argument("int64x4", (h, w, c, n)),
                 Argument("int64x4", (y_n, y_h, y_w, y_k)), Argument("uint32x3", divisor(down)), Argument("uint32x3", divisor(across)),
                 Argument("uint32x3", divisor(columns)), Argument("uint32x3", divisor(pitch // (16 if full.by_copies else 4))),
                 Argument("int32", pitch), Argument("int32", x_bytes), Argument("int32", x_bytes + y_bytes),
                 Argument("int32", pitch_of(view.columns, "float32")))
    partial = Launch(kernel(full), (_grid(p, device, config), filters, 1), (config.threads, 1, 1), arguments,
                     shared=2 * (x_bytes + y_bytes))
    return partial, sum_launch(view, output_of(view, False, 4), view.rows, view.columns, _ranges(p, device, config))


ALGORITHM = Algorithm(op="conv_bwd_filter", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
