"""Kernels of depthwise convolutions, channels last, with rows by TMA: a block slides down a strip of the image, one row per step.

    global --TMA, zeros in the padding--> ring of rows in shared memory --one load per pixel--> registers --fma--> `depth` output rows

A block has `groups` groups of `vector` channels and `strips` strips of `columns.tile` pixels, a thread one of each. At each step it reads
the pixels of its strip's windows in one row of the source (in `advance` rows with a stride), converts each once, and adds it to all outputs
that read it: those of `depth` rows, the oldest of which is complete after the step. So a row is read from shared memory and converted once,
not once per row of taps, and the loop has no test of the image's border. When all threads have read a row, its stage of the ring is
refilled with the row `stages` steps ahead. A large filter reads many rows of zeros above and below the image, which cost no arithmetic.

Backward filter loads the rows of dy the same way; those of the last `depth` steps stay in registers, and each tap has an accumulator: of
many taps with two channels a thread.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.epilogue import EpilogueSpec
from ...device.groups import make_reader
from ...device.index import ceil_div, ceil_divide, divide_remainder, divmod_unsigned
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init, mbarrier_arrive_expect, mbarrier_init, mbarrier_wait
from ...device.tma import prefetch_tensor_map, tensor_map_address, tma_load_4d
from ...device.unroll import unrolled
from ...device.vec import advance, load_shared_2f32, load_shared_2u32, load_shared_4f32, load_shared_4u32, load_shared_u32, shared_address
from ...device.warp import elect, uniform
from ...host.dtypes import ITEMSIZE
from .._taps import Axis, make_multiply_row
from .._vectors import make_biases, make_finish
from .filter_kernel import make_add_rows
from .kernel import make_filters

TURNED = 600  # multiply-adds of steps that are unrolled
KEPT = 48  # taps of a thread that stay in registers; more are read from shared memory as they are met


class ImageRowStrides(NamedTuple):
    """Of an image's rows, in elements."""
    n: i64
    h: i64


class Coordinates(NamedTuple):
    """TMA coordinates of a step: of x, and column and row of dy."""
    channel: i32
    column: i32
    row: i32
    n: i32
    column_y: i32
    row_y: i32


@dataclass(frozen=True)
class Rows:
    """What the kernels are compiled for; `vector` is 4 or 2; `low`: the image has few rows, 2: which are one copy, each in its stage."""
    dtype: str
    rows: Axis
    columns: Axis
    flip: int
    vector: int
    groups: int
    strips: int
    stages: int
    put_words: int
    residual_words: int
    result_step: int
    residual_step: int
    epilogue: EpilogueSpec
    blocks: int
    low: int = 0

    @property
    def threads(self):
        return ceil_div(self.groups * self.strips, 32) * 32

    @property
    def channels(self):
        """Of a block."""
        return self.groups * self.vector

    @property
    def advance(self):
        """Source rows per step."""
        return self.rows.tile * self.rows.advance[0] // self.rows.advance[1]

    @property
    def hop(self):
        """Source pixels from one strip to the next."""
        return self.columns.tile * self.columns.advance[0] // self.columns.advance[1]

    @property
    def depth(self):
        """Steps in which an output reads the source."""
        return ceil_div(self.rows.groups, self.advance)

    @property
    def width(self):
        """Pixels of a row in shared memory."""
        return (self.strips - 1) * self.hop + self.columns.groups

    @property
    def row_bytes(self):
        return self.width * self.channels * ITEMSIZE[self.dtype]

    @property
    def source_bytes(self):
        """Bytes of the source in a stage; those of one copy follow each other."""
        return self.advance * self.row_bytes if self.low > 1 else ceil_div(self.advance * self.row_bytes, 128) * 128

    @property
    def gradient_bytes(self):
        """Bytes of dy in a stage."""
        return ceil_div(self.strips * self.columns.tile * self.channels * ITEMSIZE[self.dtype], 128) * 128

    @property
    def skips(self):
        """Whether the steps of rows of zeros are left out, which a large filter reads above and below each image, and any filter of a low
        one."""
        return self.depth > 3 or self.low > 0

    @property
    def turns(self):
        """Unrolled steps of backward filter: the rows of dy are a ring of registers, without moves."""
        return self.depth if self.depth * self.columns.tile * self.rows.taps * self.columns.taps * self.vector <= TURNED else 1

    # for `make_filters`

    @property
    def dtype_w(self):
        return self.dtype

    @property
    def part(self):
        return self.vector

    @property
    def across(self):
        return self.groups


def _make_pixels(body, mask):
    """(length, fetch, unpack): the pixels whose bits are in `mask` from shared memory to raw words, and those to floats."""
    V, WORDS = body.vector, body.vector * ITEMSIZE[body.dtype] // 4
    PIXEL, COUNT = body.channels * ITEMSIZE[body.dtype], mask.bit_length()
    load = {1: load_shared_u32, 2: load_shared_2u32, 4: load_shared_4u32}[WORDS]
    _, _, _, unpack_group = make_reader(body.dtype, V, 1)

    @device_function
    def fetch(raw, at):
        for g in range(COUNT):
            if (mask >> g) & 1:
                k = g * WORDS
                if WORDS == 4:
                    raw[k], raw[k + 1], raw[k + 2], raw[k + 3] = load(at + u32(g * PIXEL))
                elif WORDS == 2:
                    raw[k], raw[k + 1] = load(at + u32(g * PIXEL))
                else:
                    raw[k] = load(at + u32(g * PIXEL))

    @device_function
    def unpack(values, k, raw):
        for g in range(COUNT):
            if (mask >> g) & 1:
                unpack_group(values, k + g * V, raw, g * WORDS)
    return COUNT * WORDS, fetch, unpack


def _make_load_taps(vector):
    """Device function ``load_taps(taps, k, address)``: a tap of all channels of a thread from shared memory to taps[k:]."""
    @device_function
    def load_taps(taps, k, address):
        if vector == 4:
            taps[k], taps[k + 1], taps[k + 2], taps[k + 3] = load_shared_4f32(address)
        else:
            taps[k], taps[k + 1] = load_shared_2f32(address)
    return load_taps


def _make_add_row(body, gradient):
    """Device function ``add_row(u, (acc, values, taps, turn))``: add row `u` of a step's source rows to all outputs that read it.

    `values` are the row's pixels, `acc` the accumulators of `depth` output rows, `taps` the filter in registers or its shared address. With
    `gradient` `acc` has the accumulators of the taps, `taps` the pixels of `depth` rows of dy.
    """
    V, rows, columns, ADV, M = body.vector, body.rows, body.columns, body.advance, body.depth
    R, S, TH = rows.taps, columns.taps, rows.tile
    AH, BH, CH, EH = rows.relation
    H0, NH = rows.first, rows.groups
    KEEP, TAP = R * S * V <= KEPT or gradient, 4 * body.channels
    LINE = S * V

    multiply_row, load_taps = make_multiply_row(columns, V, gradient), _make_load_taps(V)

    @device_function
    def line(k, s):
        acc, values, taps, turn, u = s
        # the oldest output row first: accumulators move on by one row per step
        m, j = M - 1 - k // TH, k % TH
        i = m * ADV + u
        total = EH * (i + H0) - AH * j - CH
        if i < NH and total % BH == 0:
            r = total // BH
            if 0 <= r and r < R:
                if KEEP:
                    multiply_row(0, (acc, values, taps, (m + M - turn) % M * TH + j, r * S))
                else:
                    tap_row = cuda.local.array(LINE, f32)
                    for t in range(S):
                        load_taps(tap_row, t * V, taps + u32((r * S + t) * TAP))
                    multiply_row(0, (acc, values, tap_row, m * TH + j, 0))
    lines = unrolled(M * TH, line)

    @device_function
    def add_row(u, s):
        acc, values, taps, turn = s
        lines(0, (acc, values, taps, turn, u))
    return add_row


@functools.cache
def rows_kernel(body, most_taps):
    """y, or dx: a block computes `steps` steps of outputs of its strips."""
    V, GROUPS, STRIPS, THREADS, BLOCKS, STAGES = body.vector, body.groups, body.strips, body.threads, body.blocks, body.stages
    rows, columns, ADV, M = body.rows, body.columns, body.advance, body.depth
    TH, TW, H0, W0 = rows.tile, columns.tile, rows.first, columns.first
    HOP, CHANNELS, ITEM, ROW, STAGE = body.hop, body.channels, ITEMSIZE[body.dtype], body.row_bytes, body.source_bytes
    EACH, WARM, NTAPS = TH * TW * V, M - 1, rows.taps * columns.taps
    NACC, SHARED, BYTES, KEEP = M * EACH, most_taps * CHANNELS, ADV * ROW, NTAPS * V <= KEPT
    NKEPT, STEP_Y, STEP_E, SKIPS = NTAPS * V if KEEP else 1, body.result_step, body.residual_step, body.skips
    ONE_COPY = body.low > 1
    LENGTH, fetch, unpack = _make_pixels(body, columns.used)
    VALUES = columns.groups * V
    add_row, load_filters, load_taps = _make_add_row(body, False), make_filters(body, most_taps), _make_load_taps(V)
    finish, load_biases = make_finish(body.epilogue, V, body.put_words, body.residual_words), make_biases(body.epilogue, V, False)

    @device_function
    def read_row(u, s):
        acc, taps, at, stage, full, source, warp, more, (channel, column, row, n) = s
        raw, values = cuda.local.array(LENGTH, u32), cuda.local.array(VALUES, f32)
        fetch(raw, at + u32(u * ROW))
        if not ONE_COPY and u == ADV - 1:
            fence_async_shared()  # order these reads before TMA's writes: zeros of the padding arrive at once
            cuda.syncthreads()
            if warp == 0 and more:
                if elect():
                    mbarrier_arrive_expect(full, BYTES)
                    tma_load_4d(stage, source, full, channel, column, row, n)
        unpack(values, 0, raw)
        add_row(u, (acc, values, taps, 0))
    read_rows = unrolled(ADV, read_row)

    @device_function
    def output(k, s):
        acc, first, result, biases, alpha, beta, residual, column, width = s
        if column + k < width:
            finish(acc, (M - 1) * EACH + (first + k) * V, result, k * STEP_Y, biases, alpha, beta, residual, k * STEP_E)
    outputs = unrolled(TW, output)

    @device_function
    def output_row(j, s):
        acc, result, biases, alpha, beta, residual, row, column, height, width, row_stride, row_stride_e = s
        if row + j < height:
            outputs(0, (acc, j * TW, advance(result, j * row_stride), biases, alpha, beta,
                        advance(residual, j * row_stride_e), column, width))
    output_rows = unrolled(TH, output_row)

    @device_function
    def move_on(acc):
        for a in range(NACC - EACH):
            acc[NACC - 1 - a] = acc[NACC - 1 - a - EACH]
        for a in range(EACH):
            acc[a] = f32(0)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_rows(source_map, w, result, residual, bias, steps, parts, tiles_w, tiles_h, channels, all_taps, shift_h, shift_w,
                            source_height, height, width, result_stride, residual_stride, bias_stride, alpha, beta, w_stride, tap_stride):
        ring, filters = cuda.shared.array(0, u32), cuda.shared.array(SHARED, f32, alignment=16)
        barriers, source, tid = cuda.shared.array(STAGES, i64), tensor_map_address(source_map), cuda.threadIdx.x
        full, first_stage = shared_address(barriers, 0), (shared_address(ring, 0) + 127) & 0xFFFFFF80
        warp = uniform(tid >> 5)
        rest, part = divide_remainder(cuda.blockIdx.x, parts)
        rest, tile_w = divide_remainder(rest, tiles_w)
        n, tile_h = divide_remainder(rest, tiles_h)
        step0, column0, first = tile_h * steps, tile_w * (STRIPS * TW), part * CHANNELS
        source_row, source_column = step0 * ADV + shift_h + H0, tile_w * (STRIPS * HOP) + shift_w + W0
        total = steps + WARM
        begin, end = 0, total  # steps that read rows of the image; sums are zeros before, and complete after
        if SKIPS:
            begin = min(max(-source_row, 0) // ADV, WARM)
            end = max(begin, min(total, ceil_divide(max(source_height - source_row, 0), ADV)))
            source_row = source_row + begin * ADV
        if tid == 0:
            prefetch_tensor_map(source)
            for s in range(STAGES):
                mbarrier_init(full + u32(8 * s), 1)
            fence_mbarrier_init()
        launch_dependent_grids()  # what follows may begin, and wait, as soon as there is room
        wait_for_previous_grid()
        if ONE_COPY and tid == 0:
            mbarrier_arrive_expect(full, STAGES * BYTES)
            tma_load_4d(first_stage, source, full, first, source_column, source_row, n)
        elif tid == 0:
            for s in range(STAGES):
                if s < end - begin:
                    mbarrier_arrive_expect(full + u32(8 * s), BYTES)
                    tma_load_4d(first_stage + u32(s * STAGE), source, full + u32(8 * s), first, source_column,
                                source_row + s * ADV, n)
        load_filters(filters, w, first, channels, all_taps, w_stride, tap_stride)
        cuda.syncthreads()
        lane, group = divmod_unsigned(tid, GROUPS)
        active = lane < STRIPS and first + group * V < channels
        lane = min(lane, STRIPS - 1)  # threads past the last strip read the last, and write nothing
        channel, column = first + group * V, column0 + lane * TW
        acc, biases = cuda.local.array(NACC, f32), cuda.local.array(V, f32)
        for v in range(V):
            biases[v] = f32(0)
        if active:
            load_biases(biases, bias, bias_stride, channel)
        for a in range(NACC):
            acc[a] = f32(0)
        at_taps, taps = shared_address(filters, group * V), cuda.local.array(NKEPT, f32)
        if KEEP:
            for t in range(NTAPS):
                load_taps(taps, t * V, at_taps + u32(t * (4 * CHANNELS)))
        offset = u32(lane * (HOP * CHANNELS * ITEM) + group * (V * ITEM))
        row_stride, row_stride_e = i32(result_stride.h), i32(residual_stride.h)
        row = (step0 - WARM + begin) * TH
        # NOTE: carried from step to step; computed from the row, the compiler would do it for every store
        result_row = advance(result, n * result_stride.n + row * row_stride + (column * STEP_Y + channel))
        residual_row = advance(residual, n * residual_stride.n + row * row_stride_e + (column * STEP_E + channel))
        stage, phase, bottom = 0, u32(0), height if active else 0
        if ONE_COPY:
            mbarrier_wait(full, phase)
        for step in range(begin, end):
            move_on(acc)
            bar, to, more = full + u32(8 * stage), first_stage + u32(stage * STAGE), step + STAGES < end
            if not ONE_COPY:
                mbarrier_wait(bar, phase)
            where = (first, source_column, source_row + (step - begin + STAGES) * ADV, n)
            if KEEP:
                read_rows(0, (acc, taps, to + offset, to, bar, source, warp, more, where))
            else:
                read_rows(0, (acc, at_taps, to + offset, to, bar, source, warp, more, where))
            stage = stage + 1
            if stage == STAGES:
                stage, phase = 0, phase ^ 1
            if step >= WARM:
                output_rows(0, (acc, result_row, biases, alpha, beta, residual_row, row, column, bottom, width, row_stride, row_stride_e))
            row = row + TH
            result_row, residual_row = advance(result_row, TH * row_stride), advance(residual_row, TH * row_stride_e)
        if SKIPS:
            for step in range(end, total):
                move_on(acc)
                if step >= WARM:
                    output_rows(0, (acc, result_row, biases, alpha, beta, residual_row, row, column, bottom, width, row_stride,
                                    row_stride_e))
                row = row + TH
                result_row, residual_row = advance(result_row, TH * row_stride), advance(residual_row, TH * row_stride_e)
    return conv_depthwise_rows


@functools.cache
def rows_sums_kernel(body):
    """Partial sums of dw, [split][k][tap]: a block computes every `splits`-th task, a strip of an image."""
    V, GROUPS, STRIPS, THREADS, BLOCKS, STAGES = body.vector, body.groups, body.strips, body.threads, body.blocks, body.stages
    rows, columns, ADV, M, flip = body.rows, body.columns, body.advance, body.depth, body.flip
    R, S, TW, H0, W0 = rows.taps, columns.taps, columns.tile, rows.first, columns.first
    HOP, CHANNELS, ITEM, ROW = body.hop, body.channels, ITEMSIZE[body.dtype], body.row_bytes
    SOURCE, BYTES = body.source_bytes, ADV * body.row_bytes + STRIPS * TW * body.channels * ITEMSIZE[body.dtype]
    STAGE = SOURCE + body.gradient_bytes
    EACH, NACC, NTAPS = TW * V, R * S * V, R * S
    NDY, SHARED, TURNS, SKIPS = M * EACH, STRIPS * S * body.channels, body.turns, body.skips
    AT, TASK, ROW_X, COLUMN_X, ROW_Y, COLUMN_Y, IMAGE = range(7)  # position of the next step to load, and of the step at hand
    LENGTH, fetch, unpack = _make_pixels(body, columns.used)
    LENGTH_Y, fetch_y, unpack_y = _make_pixels(body, (1 << TW) - 1)
    VALUES = columns.groups * V
    add_row = _make_add_row(body, True)

    @device_function
    def load(stage, maps, full, where):
        x_map, y_map = maps
        mbarrier_arrive_expect(full, BYTES)
        tma_load_4d(stage, x_map, full, where.channel, where.column, where.row, where.n)
        tma_load_4d(stage + SOURCE, y_map, full, where.channel, where.column_y, where.row_y, where.n)

    @device_function
    def read_row(u, s):
        acc, dy, turn, at, at_y, stage, full, maps, warp, more, where, row, height = s
        raw, values = cuda.local.array(LENGTH, u32), cuda.local.array(VALUES, f32)
        raw_y = cuda.local.array(LENGTH_Y, u32)
        fetch(raw, at + u32(u * ROW))
        if u == 0:
            fetch_y(raw_y, at_y)
        if u == ADV - 1:
            fence_async_shared()  # order these reads before TMA's writes: zeros of the padding arrive at once
            cuda.syncthreads()
            if warp == 0 and more:
                if elect():
                    load(stage, maps, full, where)
        if u == 0:
            unpack_y(dy, (M - turn) % M * EACH, raw_y)
        if not SKIPS or 0 <= row + u and row + u < height:
            unpack(values, 0, raw)
            add_row(u, (acc, values, dy, turn))
    read_rows = unrolled(ADV, read_row)

    @device_function
    def task_origin(task, s):
        """(row of x, column of x, row of dy, column of dy, image) at which a task begins."""
        steps, tiles_w, tiles_h, shift_h, shift_w = s
        rest, tile_w = divide_remainder(task, tiles_w)
        n, tile_h = divide_remainder(rest, tiles_h)
        row = tile_h * steps
        return (row * ADV + shift_h + H0, tile_w * (STRIPS * HOP) + shift_w + W0, row, tile_w * (STRIPS * TW), n)

    @device_function
    def begin_task(ahead, task, layout):
        ahead[AT] = 0
        ahead[ROW_X], ahead[COLUMN_X], ahead[ROW_Y], ahead[COLUMN_Y], ahead[IMAGE] = task_origin(task, layout)
        ahead[TASK] = task

    @device_function
    def next_step(ahead, first, steps, height):
        """TMA coordinates of the next step to load; past the task's last row of dy, those of a row outside."""
        row_y = ahead[ROW_Y] + ahead[AT] if ahead[AT] < steps else height
        return Coordinates(first, ahead[COLUMN_X], ahead[ROW_X] + ahead[AT] * ADV, ahead[IMAGE], ahead[COLUMN_Y], row_y)

    @device_function
    def advance_step(ahead, whole, splits, layout):
        ahead[AT] = ahead[AT] + 1
        if ahead[AT] == whole:
            begin_task(ahead, ahead[TASK] + splits, layout)

    @device_function
    def step(turn, s):
        acc, dy, ring, ahead, here, first_stage, full, offset, offset_y, maps, warp, first, left, whole, splits, heights, layout = s
        if TURNS == 1:
            for a in range(NDY - EACH):
                dy[NDY - 1 - a] = dy[NDY - 1 - a - EACH]
        bar, to = full + u32(8 * ring[0]), first_stage + u32(ring[0] * STAGE)
        mbarrier_wait(bar, ring[1])
        read_rows(0, (acc, dy, turn, to + offset, to + offset_y, to, bar, maps, warp, left - turn > STAGES,
                      next_step(ahead, first, layout[0], heights[0]), here[ROW_X] + here[AT] * ADV, heights[1]))
        advance_step(ahead, whole, splits, layout)
        if SKIPS:
            advance_step(here, whole, splits, layout)
        ring[0] = ring[0] + 1
        if ring[0] == STAGES:
            ring[0], ring[1] = 0, ring[1] ^ 1
    steps_of_turn = unrolled(TURNS, step)

    add_rows = make_add_rows(f32, R, S, V, GROUPS, STRIPS, THREADS, flip)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_rows_sums(x_map, dy_map, partial, steps, whole, tasks, splits, parts, tiles_w, tiles_h, channels, shift_h, shift_w,
                                 height, image_height, elements):
        ring, shared = cuda.shared.array(0, u32), cuda.shared.array(SHARED, f32, alignment=16)
        barriers = cuda.shared.array(STAGES, i64)
        maps = tensor_map_address(x_map), tensor_map_address(dy_map)
        full, first_stage = shared_address(barriers, 0), (shared_address(ring, 0) + 127) & 0xFFFFFF80
        tid = cuda.threadIdx.x
        warp = uniform(tid >> 5)
        split, part = divide_remainder(cuda.blockIdx.x, parts)
        first, layout = part * CHANNELS, (steps, tiles_w, tiles_h, shift_h, shift_w)
        total = ceil_divide(tasks - split, splits) * whole
        if tid == 0:
            prefetch_tensor_map(maps[0])
            prefetch_tensor_map(maps[1])
            for s in range(STAGES):
                mbarrier_init(full + u32(8 * s), 1)
            fence_mbarrier_init()
        wait_for_previous_grid()
        ahead, here = cuda.local.array(7, i32), cuda.local.array(7, i32)
        begin_task(ahead, split, layout)
        begin_task(here, split, layout)
        for s in range(STAGES):
            if s < total:
                if tid == 0:
                    load(first_stage + u32(s * STAGE), maps, full + u32(8 * s), next_step(ahead, first, steps, height))
                advance_step(ahead, whole, splits, layout)
        cuda.syncthreads()
        lane, group = divmod_unsigned(tid, GROUPS)
        strip = min(lane, STRIPS - 1)  # threads past the last strip read the last, and their sums are not added
        offset = u32(strip * (HOP * CHANNELS * ITEM) + group * (V * ITEM))
        offset_y = SOURCE + u32(strip * (TW * CHANNELS * ITEM) + group * (V * ITEM))
        acc, dy = cuda.local.array(NACC, f32), cuda.local.array(NDY, f32)
        for a in range(NACC):
            acc[a] = f32(0)
        for a in range(NDY):
            dy[a] = f32(0)
        ring_at = cuda.local.array(2, i32)
        ring_at[0], ring_at[1] = 0, 0
        for left in range(total, 0, -TURNS):
            steps_of_turn(0, (acc, dy, ring_at, ahead, here, first_stage, full, offset, offset_y, maps, warp, first, left, whole,
                              splits, (height, image_height), layout))
        launch_dependent_grids()
        add_rows(0, (acc, shared, tid, lane, group, lane < STRIPS, advance(partial, split * i64(elements)), first, channels, 0,
                     (NTAPS, NTAPS)))
    return conv_depthwise_rows_sums
