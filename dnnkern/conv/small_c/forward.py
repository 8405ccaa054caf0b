"""Convolutions of images with one to four channels, a network's first layers, on tensor cores: each row of the image is loaded once.

    x --cp.async, 16 bytes, or element by element--> rows in shared memory (double buffer) --words as fragments--> mma.sync --> y
    w --> fragments in registers

A block owns some output rows, or a part of one row, of one image. The rows of x that their windows cover are loaded to one half of a double
buffer while the block computes from the other. All taps read them there: the part of a window in one row of the filter is a run of S * C
elements, so that k is padded as a whole instead of per tap, to 160 for 7x7 filters on 3 channels, and a fragment of 16 pixels and 16
elements of k is four words per lane (`rows`).

A warp multiplies 32 pixels at a time by 32 filters, whose fragments stay in registers; a grid as large as the device walks over all tiles.
Pixels are the rows of the product where the channels of y are contiguous, its columns where pixels are. The fragments' rows are permuted so
that a lane has eight neighbouring outputs, one 16-byte store.

Limited by writing y: 7x7 with stride 2 from 3 to 64 channels reads 1 byte for every 5 that it writes. It loses with more than four
channels, where the implicit GEMMs fill their steps.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.epilogue import ProgramParams
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.mma import make_mma
from ...device.unroll import unrolled
from ...device.vec import load1_nc_if, load_shared_u32, shared_address, store_shared_u32
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost, overlap
from ...host.launch import Argument, Launch
from .._gather import make_gather, refusal, view_of
from .._gather.plan import largest, swapped
from .._gather.store import Destination, Output, make_store, output_of
from .rows import (UNIT, FilterLayout, Geometry, RowStrides, TileShape, Window, are_copies, buffer_bytes, geometry_of, issue_cycles,
                   make_load_rows, make_locate, make_offsets, make_shift, make_split, make_word, masked_slots, staging, tile_of,
                   window_of, window_refusal)

COST = constants("conv/small_c_fwd")


@dataclass(frozen=True)
class Config:
    """Approximate pixels of a tile; warps along pixels and, 32 filters each, along filters; blocks per multiprocessor."""
    pixels: int
    warps_p: int
    warps_f: int
    blocks: int

    @property
    def threads(self):
        return 32 * self.warps_p * self.warps_f

    def __str__(self):
        return f"{self.pixels} pixels w{self.warps_p}x{self.warps_f} b{self.blocks}"


CONFIGS = (Config(448, 2, 2, 3), Config(448, 4, 2, 1), Config(896, 4, 2, 1), Config(224, 2, 2, 3), Config(448, 4, 1, 3),
           Config(128, 1, 2, 4), Config(64, 1, 1, 4))


@dataclass(frozen=True)
class KernelConfig:
    """What a kernel is compiled for; `by_copies`: rows are copied 16 bytes at a time."""
    config: Config
    dtype: str
    window: Window
    by_copies: bool
    output: Output


def supports(problem):
    """One to four channels, filters of few elements, one or two dimensions."""
    return window_refusal(problem) or refusal(problem)


def _shared(problem, config):
    """Bytes of dynamic shared memory: two buffers, or the filters before that."""
    weights = 32 * config.warps_f * window_of(problem).steps * 32
    buffer = -(-buffer_bytes(problem, *tile_of(problem, config.pixels)) // 16) * 16
    return max(2 * buffer, weights), buffer


def _counts(problem, config):
    """(tiles down an image, across it, in all, blocks along filters)"""
    rows, columns = tile_of(problem, config.pixels)
    down, across = ceil_div(problem.out[1], rows), ceil_div(problem.out[2], columns)
    return down, across, down * across * problem.n, ceil_div(problem.k, 32 * config.warps_f)


def configs(problem, device):
    """Those whose buffers fit, with at most a quarter of the filters past K."""
    found = [c for c in CONFIGS if c.blocks * (_shared(problem, c)[0] + 1024) <= device.shared_per_sm
             and _shared(problem, c)[0] <= device.shared_per_block and (problem.k > 32 * (c.warps_f - 1))]
    return sorted(found, key=lambda config: estimate(problem, device, config)) or [CONFIGS[-1]]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Tiles of the busiest multiprocessor, bound by instructions; or the memory."""
    p, window = problem, window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    _, _, tiles, filters = _counts(p, config)
    blocks = min(config.blocks, ceil_div(tiles * filters, device.sms))
    each = ceil_div(tiles * filters, device.sms * blocks)
    units = ceil_div(ceil_div(rows * columns, UNIT), config.warps_p)
    copies, waits = staging(p, rows, columns, config.threads)
    work = COST.tile + copies + units * (COST.unit + COST.step * window.steps)
    cycles = issue_cycles(work, config.threads // 32, blocks) + waits
    return Cost(launch=COST.start) + overlap(issue=each * cycles / device.clock_hz, memory=p.bytes / (COST.rate * device.bandwidth))


@functools.cache
def kernel(full):
    """Tiles of results, one after another."""
    config, window, output = full.config, full.window, full.output
    THREADS, WARPS_P, FILTERS, swap = config.threads, config.warps_p, 32 * config.warps_f, output.swap
    SHIFT = WARPS_P.bit_length() - 1
    STEPS, SLOTS, KPAIRS = window.steps, 2 * window.steps, 8 * window.steps
    MASKS, WF, C, COPIES = max(len(masked_slots(window)), 1), 8 * window.steps, window.c, window.copies
    MARGIN, BEFORE, STRIDE = window.margin, window.pad * window.c + window.lead, window.stride * window.c
    R, LEAD, LAST = window.r, window.lead, window.lead + window.s * window.c
    mma, find_offsets, load_rows = make_mma(full.dtype), make_offsets(window), make_load_rows(window, full.by_copies, THREADS)
    shift = make_shift(window, full.by_copies, THREADS)
    locate_k, split, store_results = make_locate(window), make_split(C), make_store(output, 8)
    setup = make_gather(output.op, output.channel_inner, output.has_classes).setup
    arrived = wait_copies(1)

    def step(k):
        """The products of step k; its words are A's where pixels are rows."""
        low, high = make_word(window, 2 * k), make_word(window, 2 * k + 1)

        @device_function
        def run(s):
            acc, xf, wf, at, offsets, masks = s
            for j in range(4):
                if swap:
                    xf[2 * j], xf[2 * j + 1] = low(at[j], offsets, masks), high(at[j], offsets, masks)
                else:
                    xf[(j >> 1) * 4 + (j & 1)] = low(at[j], offsets, masks)
                    xf[(j >> 1) * 4 + (j & 1) + 2] = high(at[j], offsets, masks)
            for i in range(2):
                for j in range(4):
                    if swap:
                        mma(acc, (i * 4 + j) * 4, wf, k * 8 + i * 4, xf, 2 * j)
                    else:
                        mma(acc, (i * 4 + j) * 4, xf, i * 4, wf, k * 8 + 2 * j)
        return run

    def chain(functions):
        if len(functions) == 1:
            return functions[0]
        first, second = chain(functions[:len(functions) // 2]), chain(functions[len(functions) // 2:])

        @device_function
        def both(s):
            first(s)
            second(s)
        return both
    steps = chain([step(k) for k in range(STEPS)])

    @device_function
    def in_group(j, g):
        """Which of 32 the g-th of group j is: a lane's results are then neighbours along columns."""
        return (g >> 1) * 8 + j * 2 + (g & 1)

    @device_function
    def store_filters(w, smem, f0, K, layout, tid):
        """w[filter][k] to shared memory, zero past K and outside the window."""
        for i in range(tid, FILTERS * KPAIRS, THREADS):
            f, pair = i // KPAIRS, i % KPAIRS
            r, j = locate_k(2 * pair)
            word = u32(0)
            for e in range(2):
                ok = f0 + f < K and r < R and j + e >= LEAD and j + e < LAST
                s, c = split(j + e - LEAD if ok else 0)
                at = layout.base + (f0 + f) * layout.k + r * layout.r + s * layout.s + c * layout.c
                word = word | (u32(load1_nc_if(w, at if ok else 0, 1 if ok else 0)) << 16 * e)
            store_shared_u32(smem + u32(i * 4), word)

    @device_function
    def load_filter(slot, s):
        """The words of one slot for the warp's filters."""
        wf, smem, first, g, t = s
        k, half = slot >> 1, slot & 1
        for j in range(4):
            f = first + (8 * j + g if swap else in_group(j, g))
            v = load_shared_u32(smem + u32((f * KPAIRS + slot * 4 + t) * 4))
            if swap:
                wf[k * 8 + (j >> 1) * 4 + 2 * half + (j & 1)] = v
            else:
                wf[k * 8 + 2 * j + half] = v
    load_filters = unrolled(SLOTS, load_filter)

    @device_function
    def store_run(i, s):
        """Eight neighbouring outputs of one row; 16 pixels or filters have two rows."""
        acc, run, unit, count, base, f, K, g, t, destination = s
        m, half = i >> 1, i & 1
        for j in range(4):
            run[2 * j] = acc[(m * 4 + j) * 4 + 2 * half]
            run[2 * j + 1] = acc[(m * 4 + j) * 4 + 2 * half + 1]
        if swap:
            row = f + 8 * i + g
            if row < K and unit + 8 * t < count:
                store_results(run, 0, row, base + unit + 8 * t, destination)
        else:
            pixel = unit + 8 * i + g
            if pixel < count:
                store_results(run, 0, base + pixel, f + 8 * t, destination)
    store_all = unrolled(4, store_run)

    @device_function
    def locate(index, tile, down, across):
        """(image, first output row, first output column) of a tile."""
        rest, column = divide_remainder(index, across)
        n, row = divide_remainder(rest, down)
        return n, row * tile.rows, column * tile.columns

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_fwd_small_c(x, w, y, tiles, tile, geometry, x_stride, w_layout, down, across, columns, parts, pitch, buffer_size, gather,
                         layout, residual_stride, alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row,
                         residual_column):
        ring = cuda.shared.array(0, u32)
        smem = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        warp_p, warp_f = warp & (WARPS_P - 1), warp >> SHIFT
        P, Q, K, H, W, stride_h, padding_h, dilation_h, rows = geometry
        f0 = cuda.blockIdx.y * FILTERS
        wf, xf, acc = cuda.local.array(WF, u32), cuda.local.array(8, u32), cuda.local.array(32, f32)
        run, at = cuda.local.array(8, f32), cuda.local.array(4, u32)
        offsets, masks = cuda.local.array(SLOTS, u32), cuda.local.array(MASKS, u32)

        # filters to registers
        store_filters(w, smem, f0, K, w_layout, tid)
        cuda.syncthreads()
        load_filters(0, (wf, smem, 32 * warp_f, g, t))
        find_offsets(offsets, masks, t, dilation_h * pitch)
        cuda.syncthreads()

        product = setup(0, gather)
        epilogue = ProgramParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column,
                                 ())
        index = cuda.blockIdx.x
        n, p0, q0 = locate(index, tile, down, across)
        buffer = 0
        load_rows(smem, x, n * x_stride.n, p0 * stride_h - padding_h, q0 * STRIDE - MARGIN, rows, H, W * C, x_stride, pitch, parts,
                  tid)
        commit_copies()
        while index < tiles:
            # load the next tile
            n, p0, q0 = locate(index, tile, down, across)
            following = index + cuda.gridDim.x
            if following < tiles:
                n1, p1, q1 = locate(following, tile, down, across)
                load_rows(smem + u32((1 - buffer) * buffer_size), x, n1 * x_stride.n, p1 * stride_h - padding_h, q1 * STRIDE - MARGIN,
                          rows, H, W * C, x_stride, pitch, parts, tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            shift(smem + u32(buffer * buffer_size), rows, pitch, parts, tid)
            begin = smem + u32(buffer * buffer_size + (MARGIN - BEFORE) * 2)
            count = min(tile.rows, P - p0) * min(tile.columns, Q - q0)
            base = (n * P + p0) * Q + q0
            destination = Destination(K, base + count if swap else K, y, gather, product, layout, residual_stride, epilogue)

            # multiply and write back, 32 pixels at a time
            for unit in range(32 * warp_p, count, 32 * WARPS_P):
                for j in range(4):
                    i = unit + (in_group(j, g) if swap else 8 * j + g)
                    p, q = divide_remainder(min(i, count - 1), columns)
                    e = q * STRIDE
                    if COPIES == 2:
                        e = e + (rows * (pitch >> 1) - 1 if (e & 1) != 0 else 0)
                    at[j] = begin + u32(p * stride_h * pitch + e * 2)
                for k in range(32):
                    acc[k] = f32(0)
                steps((acc, xf, wf, at, offsets, masks))
                store_all(0, (acc, run, unit, count, base, f0 + 32 * warp_f, K, g, t, destination))
            cuda.syncthreads()
            buffer = 1 - buffer
            index = following
    return conv_fwd_small_c


def build(problem, device, config):
    """One launch with as many blocks as fit on the device, or as there are tiles."""
    p, view, window = problem, view_of(problem), window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    down, across, tiles, filters = _counts(p, config)
    swap, by_copies = swapped(view), are_copies(p)
    output = output_of(view, swap, largest(16 // p.y.itemsize, columns) if swap else 8)
    full = KernelConfig(config, p.dtype, window, by_copies, output)
    shared, buffer = _shared(p, config)
    pitch = window.pitch(columns) * 2
    n, c, _, h, w = p.x_strides
    weights = FilterLayout(view.plain_row, view.plain_channel, view.plain_taps[1], view.plain_taps[2], view.plain_base)
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "x"), Argument(pointer, "w"), Argument(element(p.y.dtype).pointer, "y"), Argument("int32", tiles),
                 Argument(TileShape, TileShape(rows, columns)), Argument(Geometry, geometry_of(p, rows)),
                 Argument(RowStrides, RowStrides(h, w, c, n)), Argument(FilterLayout, weights),
                 *(Argument(Divisor, divisor(v)) for v in (down, across, columns, pitch // (16 if by_copies else 4))),
                 Argument("int32", pitch), Argument("int32", buffer), *view.arguments(), *view.output_arguments(), *p.epilogue_arguments())
    grid = min(tiles, max(device.sms * config.blocks // filters, 1))
    return (Launch(kernel(full), (grid, filters, 1), (config.threads, 1, 1), arguments, shared=shared),)


ALGORITHM = Algorithm(op="conv_fwd", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
