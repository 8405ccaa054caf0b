"""Convolutions of images with one to four channels, a network's first layers, on tensor cores: rows of the image once in shared memory.

A block owns some rows of results, or a part of one row, of one image: their windows' rows of x come to shared memory once (cp.async, 16
bytes at a time where x is packed with channels last, otherwise element by element), into the other half of a double buffer while the block
computes. Every tap reads them there: a window's part in one row of the filter is a run of S C elements, so that k, padded as a whole
instead of tap by tap, is 160 for 7x7 filters on 3 channels, and a fragment of 16 pixels and 16 k is four words a lane (`rows`).

A warp multiplies 32 pixels at a time by 32 filters, whose fragments it keeps in registers: blocks are as many as fit on the device, and
take one tile after another. Pixels are the rows of the product where the channels of y are contiguous, its columns where pixels are; the
fragments' rows are permuted so that a lane holds eight neighbouring results, one store of 16 bytes.

Bound by writing y: 7x7 with stride 2 from 3 to 64 channels reads 1 byte for every 5 that it writes.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.epilogue import ResidualParams
from ...device.index import ceil_div, divide_remainder, divisor
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
from .rows import (UNIT, Window, are_copies, buffer_bytes, issue_cycles, make_place, make_places, make_shift, make_split, make_stage,
                   make_word, masked_slots, rows_of, staging, tile_of, window_of, window_refusal)

COST = constants("conv/small_c_fwd")


@dataclass(frozen=True)
class Config:
    """Pixels of a tile, about; warps along pixels and, 32 each, along filters; blocks on a multiprocessor."""
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
    """What a kernel is compiled for; `by_copies`: rows come 16 bytes at a time."""
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
    """Those whose buffers fit, a quarter of the filters at most being beyond K."""
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
    mma, places, stage_rows = make_mma(full.dtype), make_places(window), make_stage(window, full.by_copies, THREADS)
    shift = make_shift(window, full.by_copies, THREADS)
    place, split, put = make_place(window), make_split(C), make_store(output, 8)
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
    def stage_filters(w, shared, f0, K, strides, tid):
        """w[filter][k], zero beyond K and between windows."""
        for i in range(tid, FILTERS * KPAIRS, THREADS):
            f, pair = i // KPAIRS, i % KPAIRS
            r, j = place(2 * pair)
            word = u32(0)
            for e in range(2):
                ok = f0 + f < K and r < R and j + e >= LEAD and j + e < LAST
                s, c = split(j + e - LEAD if ok else 0)
                at = strides[4] + (f0 + f) * strides[0] + r * strides[2] + s * strides[3] + c * strides[1]
                word = word | (u32(load1_nc_if(w, at if ok else i64(0), 1 if ok else 0)) << u32(16 * e))
            store_shared_u32(shared + u32(i * 4), word)

    @device_function
    def load_filter(slot, s):
        """The words of one slot for the warp's filters."""
        wf, shared, first, g, t = s
        k, half = slot >> 1, slot & 1
        for j in range(4):
            f = first + (8 * j + g if swap else in_group(j, g))
            v = load_shared_u32(shared + u32((f * KPAIRS + slot * 4 + t) * 4))
            if swap:
                wf[k * 8 + (j >> 1) * 4 + 2 * half + (j & 1)] = v
            else:
                wf[k * 8 + 2 * j + half] = v
    load_filters = unrolled(SLOTS, load_filter)

    @device_function
    def store_run(i, s):
        """Eight neighbouring results: of 16 pixels or filters two rows, each in turn."""
        acc, run, unit, count, base, f, K, g, t, state = s
        m, half = i >> 1, i & 1
        for j in range(4):
            run[2 * j] = acc[(m * 4 + j) * 4 + 2 * half]
            run[2 * j + 1] = acc[(m * 4 + j) * 4 + 2 * half + 1]
        if swap:
            row = f + 8 * i + g
            if row < K and unit + 8 * t < count:
                put(run, 0, row, base + unit + 8 * t, state)
        else:
            pixel = unit + 8 * i + g
            if pixel < count:
                put(run, 0, base + pixel, f + 8 * t, state)
    store_all = unrolled(4, store_run)

    @device_function
    def locate(tile, counts, down, across):
        """(image, first row, first column) of results of a tile."""
        rest, column = divide_remainder(tile, across)
        n, row = divide_remainder(rest, down)
        return n, row * counts[0], column * counts[1]

    @jit(launch_bounds=(THREADS, config.blocks))
    def conv_fwd_small_c(x, w, y, tiles, counts, image, x_strides, w_strides, down, across, columns, parts, pitch, buffer_size,
                         gather, layout, residual_stride, alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual,
                         residual_row, residual_column):
        ring = cuda.shared.array(0, u32)
        shared = shared_address(ring, 0)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        g, t = lane >> 2, lane & 3
        warp_p, warp_f = warp & (WARPS_P - 1), warp >> SHIFT
        P, Q, K, H, W, stride_h, pad_h, step_h, rows = image
        f0 = cuda.blockIdx.y * FILTERS
        wf, xf, acc = cuda.local.array(WF, u32), cuda.local.array(8, u32), cuda.local.array(32, f32)
        run, at = cuda.local.array(8, f32), cuda.local.array(4, u32)
        offsets, masks = cuda.local.array(SLOTS, u32), cuda.local.array(MASKS, u32)
        stage_filters(w, shared, f0, K, w_strides, tid)
        cuda.syncthreads()
        load_filters(0, (wf, shared, 32 * warp_f, g, t))
        places(offsets, masks, t, step_h * pitch)
        cuda.syncthreads()
        product = setup(0, gather)
        epilogue = ResidualParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
        tile = cuda.blockIdx.x
        n, p0, q0 = locate(tile, counts, down, across)
        buffer = 0
        stage_rows(shared, x, n * x_strides[3], p0 * stride_h - pad_h, q0 * STRIDE - MARGIN, rows, H, W * C,
                   x_strides, pitch, parts, tid)
        commit_copies()
        while tile < tiles:
            n, p0, q0 = locate(tile, counts, down, across)
            following = tile + cuda.gridDim.x
            if following < tiles:
                n1, p1, q1 = locate(following, counts, down, across)
                stage_rows(shared + u32((1 - buffer) * buffer_size), x, n1 * x_strides[3], p1 * stride_h - pad_h,
                           q1 * STRIDE - MARGIN, rows, H, W * C, x_strides, pitch, parts, tid)
            commit_copies()
            arrived()
            cuda.syncthreads()
            shift(shared + u32(buffer * buffer_size), rows, pitch, parts, tid)
            begin = shared + u32(buffer * buffer_size + (MARGIN - BEFORE) * 2)
            count = min(counts[0], P - p0) * min(counts[1], Q - q0)
            base = (n * P + p0) * Q + q0
            state = Destination(K, base + count if swap else K, y, gather, product, layout, residual_stride, epilogue)
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
                store_all(0, (acc, run, unit, count, base, f0 + 32 * warp_f, K, g, t, state))
            cuda.syncthreads()
            buffer = 1 - buffer
            tile = following
    return conv_fwd_small_c


def build(problem, device, config):
    """One launch: as many blocks as the device runs at once, or tiles."""
    p, view, window = problem, view_of(problem), window_of(problem)
    rows, columns = tile_of(p, config.pixels)
    down, across, tiles, filters = _counts(p, config)
    swap, by_copies = swapped(view), are_copies(p)
    output = output_of(view, swap, largest(16 // p.y.itemsize, columns) if swap else 8)
    full = KernelConfig(config, p.dtype, window, by_copies, output)
    shared, buffer = _shared(p, config)
    pitch = window.pitch(columns) * 2
    n, c, _, h, w = p.x_strides
    image = (p.out[1], p.out[2], p.k, p.image[1], p.image[2], p.strides[1], p.pads_before[1], p.dilations[1], rows_of(p, rows))
    weights = (view.plain_row, view.plain_channel, view.plain_taps[1], view.plain_taps[2], view.plain_base)
    pointer = element(p.dtype).pointer
    arguments = (Argument(pointer, "x"), Argument(pointer, "w"), Argument(element(p.y.dtype).pointer, "y"), Argument("int32", tiles),
                 Argument("int32x2", (rows, columns)), Argument("int32x9", image), Argument("int64x4", (h, w, c, n)),
                 Argument("int64x5", weights), Argument("uint32x3", divisor(down)), Argument("uint32x3", divisor(across)),
                 Argument("uint32x3", divisor(columns)), Argument("uint32x3", divisor(pitch // (16 if by_copies else 4))),
                 Argument("int32", pitch), Argument("int32", buffer), *view.arguments(), *view.output_arguments(), *p.epilogue_arguments())
    grid = min(tiles, max(device.sms * config.blocks // filters, 1))
    return (Launch(kernel(full), (grid, filters, 1), (config.threads, 1, 1), arguments, shared=shared),)


ALGORITHM = Algorithm(op="conv_fwd", name="small_c", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, notes=Note.TENSOR_CORE, arch="sm_80+")
