"""A convolution on Hopper's tensor cores that loads a tile of pixels once for all taps, with the filters in shared memory.

    global --TMA, zeros in the padding--> a tile of pixels and its halo --wgmma, each tap from another pixel on--> accumulators --> TMA

A tile of the result is `lines` by 8 pixels and 64 or 32 channels. Its operand is a box of the source with 64 channels, 128 bytes, per
pixel; the box is `(R - 1) * dilation` lines and `(S - 1) * dilation` columns larger than the tile. Eight pixels of a line are eight rows of
the left operand, and the descriptor has the stride from line to line; so the operand of a tap is the same box, from another pixel on. That
works because the swizzle permutes 16-byte vectors by their address, wherever an operand begins. In three dimensions a box is one plane.

A block loads its filters once, all taps of them, and walks over its tiles. Each of its consumer warpgroups has every n-th tile and its own
stages, so while one stores its results, through the stage that held its pixels, the others multiply. An array that the epilogue adds comes
by TMA too, to a box of the warpgroup's own: a tile's is loaded when the pixels of its next tile are, if those have a stage by then.

Of groups of up to 64 channels, those that are in one step make a tile's columns together: their filters are written to shared memory as
blocks on the diagonal of one matrix, with zeros between them. The zeros cost nothing: a product waits for its left operand, whatever its
columns.

An image that a program makes is made in the stage, once for all taps: pixels of the padding, which TMA filled with zeros, are left alone.

Reductions of the results are made of a tile's sums when its stage has been given back; a warp keeps the states of its channels from tile to
tile, and writes them at the end.
"""
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...device import cuda, device_function, f32, i32, jit, u32
from ...device._parameters import structure
from ...device.barrier import barrier_sync
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.cp_async import commit_copies, wait_copies
from ...device.epilogue import EpilogueSpec, ProgramParams
from ...device.index import Divisor, ceil_div, divide_remainder
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init
from ...device.pipeline import PipelineState, make_pipeline
from ...device.unroll import unrolled
from ...device.tma import bulk_commit, make_bulk_wait_read, prefetch_tensor_map, tensor_map_address, tma_load_5d, tma_store_5d
from ...device.vec import address, advance, as_u32, load_shared_4u32, shared_address, store_shared_4u32
from ...device.warp import elect, uniform
from ...device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ...engine.hopper import ROW, boxes_descriptor
from ...engine.hopper_columns import make_columns
from ...engine.hopper_stores import kept_reductions, make_fetch, make_fill, make_staged, stores_aside
from ...engine.tile_states import WARP_COLUMNS, Reducing, WarpRows

if TYPE_CHECKING:
    from ...engine.prologues import Made

WIDE, CHANNELS = 8, 64  # pixels of a tile's line; input channels of a step
BARRIERS = 256          # bytes
WHOLE = 5               # the barrier of all consumers; those below are one's own
BEYOND = 2 ** 31 - 1    # the row of a pixel outside the result


@dataclass(frozen=True)
class Body:
    """What the kernel is compiled for.

    `taps` and `dilations` along d, h and w; `blocks` of 64 input channels; `columns`: output channels of a tile; `steps` of 16 channels of
    a block, 4 unless its only block has fewer; `reverse`: the first tap reads the last pixel; `major`: the filter's contiguous dimension,
    "k" for input channels, "mn" for output channels; `staged`: what the epilogue reads through shared memory, see `staged_addend`;
    `pairs`: what it reads in pairs of columns, see `paired_columns`; `by_ring`: what is staged has boxes of its own, otherwise the threads
    copy it to the stage; `made`: what the image is made of, with the operands that come in pairs of channels;
    `group`: channels of a group, where there are several.
    """
    dtype: str
    taps: tuple
    dilations: tuple
    blocks: int
    steps: int
    columns: int
    lines: int
    consumers: int
    stages: int
    reverse: bool
    major: str
    epilogue: EpilogueSpec
    staged: str | int | None = None
    pairs: tuple = ()
    by_ring: bool = False
    made: "Made | None" = None
    made_pairs: tuple = ()
    group: int = 0

    def __post_init__(self):
        steps = self.taps[0] * self.blocks
        if self.lines not in (8, 16) or self.columns not in (32, 64) or self.consumers not in (1, 2, 3, 4) or self.stages < min(steps, 2):
            raise ValueError(f"{self.lines} lines, {self.columns} columns, {self.consumers} consumers, {self.stages} stages; expected 8 or "
                             f"16 lines, 32 or 64 columns, 1 to 4 consumers, at least {min(steps, 2)} stages for {steps} boxes")
        if max(self.box) > 256:
            raise ValueError(f"a tile with its halo is {self.box[0]} x {self.box[1]} pixels; the most is 256")

    @property
    def box(self):
        """Lines and columns of the source's box."""
        (_, r, s), (_, dr, ds) = self.taps, self.dilations
        return self.lines + (r - 1) * dr, WIDE + (s - 1) * ds

    @property
    def stage(self):
        """Bytes of a stage, a multiple of the swizzle's pattern."""
        return ceil_div(self.box[0] * self.box[1] * ROW, 1024) * 1024

    @property
    def filters(self):
        """Bytes of all taps' filters."""
        return math.prod(self.taps) * self.blocks * self.columns * ROW

    @property
    def shared(self):
        """Bytes of dynamic shared memory."""
        return 1024 + self.filters + self.consumers * (self.stages * self.stage + self.by_ring * self.results) + BARRIERS

    @property
    def results(self):
        """Bytes of a tile's results."""
        return self.lines * WIDE * self.columns * 2

    @property
    def threads(self):
        return 128 * (self.consumers + 1)


class Source(NamedTuple):
    """Extents of the image along d, h, w, and its channels."""
    deep: i32
    high: i32
    wide: i32
    channels: i32


GroupFilters = structure("GroupFilters", ("uint16*", "int32", "int32"))
"""The filters of groups, and elements from one to the next, and from tap to tap."""


class Tiles(NamedTuple):
    """Tiles of a plane and of a line of tiles, planes of an image; leading padding along d, h, w."""
    plane: Divisor
    line: Divisor
    planes: Divisor
    padding_d: i32
    padding_h: i32
    padding_w: i32


@functools.cache
def _make_pixels(body):
    """Device function ``make(at, depth, line, column, block, source, thread, operands)``: the pixels of a box at the shared address `at`,
    whose first one in the image is given, of 64 channels from 64 * `block` on; by 128 threads, for wgmma to read. Host function."""
    from ...engine.hopper_made import make_columns, make_word  # programs are imported where there is one
    word, columns = make_word(body.made, body.made_pairs, False), make_columns(body.made.program, body.made_pairs)
    WIDTH, PIXELS = body.box[1], body.box[0] * body.box[1]

    @device_function
    def make(at, depth, line, column, block, source, thread, operands):
        piece = thread & 7  # of 16 bytes, in all of the thread's pixels
        c = block * CHANNELS + piece * 8
        if 0 <= depth < source.deep and c < source.channels:
            first, second = columns(c, operands), columns(c + 2, operands)
            third, fourth = columns(c + 4, operands), columns(c + 6, operands)
            for pixel in range(thread >> 3, PIXELS, 16):
                h, w = line + pixel // WIDTH, column + pixel % WIDTH
                if 0 <= h < source.high and 0 <= w < source.wide:
                    to = at + u32(pixel * ROW + ((piece ^ (pixel & 7)) << 4))
                    x0, x2, x4, x6 = load_shared_4u32(to)
                    store_shared_4u32(to, word(x0, first, 0, c, 0, operands), word(x2, second, 0, c + 2, 0, operands),
                                      word(x4, third, 0, c + 4, 0, operands), word(x6, fourth, 0, c + 6, 0, operands))
    return make


@functools.cache
def _make_spread(body):
    """Device function ``spread(filters, given, first, thread)``: the `GroupFilters` of 64 channels from `first` on as blocks on the
    diagonal of each tap's matrix, by the threads of all consumers. Host function."""
    ALL, PART, GROUP, THREADS, REVERSE = math.prod(body.taps), body.columns * ROW, body.group, 128 * body.consumers, body.reverse
    PIECES = body.columns * ROW // 16

    @device_function
    def pair(of_tap, row, c):
        return of_tap[(c & GROUP - 1) >> 1] if (row ^ c) < GROUP else u32(0)  # a power of two

    @device_function
    def write(i, s):
        at, source, tap_step, row, c = s
        tap = ALL - 1 - i if REVERSE else i
        of_tap = as_u32(advance(source, tap * tap_step))
        store_shared_4u32(at + u32(i * PART), pair(of_tap, row, c), pair(of_tap, row, c + 2), pair(of_tap, row, c + 4),
                          pair(of_tap, row, c + 6))
    write_all = unrolled(ALL, write)

    @device_function
    def spread(filters, given, first, thread):
        w, step, tap_step = given
        for piece in range(thread, PIECES, THREADS):
            row, chunk = piece >> 3, piece & 7
            write_all(0, (filters + u32(row * ROW + ((chunk ^ (row & 7)) << 4)), advance(w, (first + row) * step), tap_step,
                          row, chunk * 8))
    return spread


@functools.cache
def _make_reductions(body):
    """(``start((own,))``, ``reduce(acc, own, plane, line, column, first_column, thread, extents, of)`` of a tile's sums, ``finish(own,
    block, first_column, thread, scratch, of)`` of all consumers' states, length and type of `own`); `of`: (channels, the epilogue's
    arguments, the states' parameter). Without reductions they do nothing. Host function."""
    found = kept_reductions(body.epilogue, body.columns, 4 * body.consumers)
    if found is None:
        return (device_function(lambda s: None),
                device_function(lambda acc, own, plane, line, column, first_column, thread, extents, of: None),
                device_function(lambda own, block, first_column, thread, scratch, of: None), 1, f32)
    begin, end, finish_states, TILES, SUMS = found.begin, found.end, found.finish, body.lines // 8, body.columns // 2
    chunks = unrolled(body.columns // WARP_COLUMNS, found.chunk)

    @device_function
    def reduce(acc, own, plane, line, column, first_column, thread, extents, of):
        n, e, states = of
        high, wide = extents
        lane, first, w = thread & 31, line + (thread >> 5) * 2, column + ((thread & 31) >> 2)
        for tile in range(TILES):
            h, pixel = first + 8 * tile, min(w, wide - 1)
            rows = WarpRows((plane * high + min(h, high - 1)) * wide + pixel, (plane * high + min(h + 1, high - 1)) * wide + pixel,
                            h < high and w < wide, h + 1 < high and w < wide, 0, True)
            s = acc, tile * SUMS, own, rows, first_column, lane, Reducing(n, e, 0, states)
            begin((own,))
            chunks(0, s)
            end(s)

    @device_function
    def finish(own, block, first_column, thread, scratch, of):
        n, e, states = of
        finish_states(own, block, first_column, thread, scratch, Reducing(n, e, 0, states))
    return found.start, reduce, finish, found.count, found.type


@functools.cache
def halo_kernel(body):
    """All tiles, one persistent launch."""
    (T, R, S), (DT, DR, DS), BLOCKS, LINES, STAGES, STAGE = body.taps, body.dilations, body.blocks, body.lines, body.stages, body.stage
    CONSUMERS, SLOTS, TILES, PITCH = body.consumers, body.consumers * body.stages, body.lines // 8, body.box[1] * ROW
    TAPS, STEPS, FILTERS, RING, THREADS, FORWARD = R * S, T * BLOCKS, body.filters, SLOTS * STAGE, body.threads, body.major == "k"
    COLUMNS, BOX, REVERSE = body.columns, body.box[0] * body.box[1] * ROW, body.reverse
    SUMS, PART, RESULTS = TILES * COLUMNS // 2, COLUMNS * ROW, 64 * 2 * COLUMNS
    A_CONST = matrix_descriptor(16, PITCH, 128)
    B_CONST = matrix_descriptor(16, 1024, 128) if FORWARD else boxes_descriptor(COLUMNS)
    multiply = make_wgmma(COLUMNS, body.dtype, steps=body.steps, tiles=TILES, b_major=body.major, b_step=2 if FORWARD else 2 * COLUMNS,
                          a_tile=8 * PITCH // 16)
    wait_all, wait_older, have_left = make_wgmma_wait(0, SUMS), make_wgmma_wait(1, 0), make_bulk_wait_read(0)
    # consumers have rings of their own, whose barriers lie side by side
    pipe, rings, of_filters = make_pipeline(STAGES), make_pipeline(SLOTS), make_pipeline(1, consumers=0)
    one_box, boxes = make_pipeline(1), make_pipeline(CONSUMERS)  # of what is added
    BY_RING, ADDENDS, ALL_RESULTS = body.by_ring, RING, body.results
    BARS = RING + BY_RING * CONSUMERS * ALL_RESULTS
    READY, ARRIVED = BARS + rings.bytes, BARS + rings.bytes + of_filters.bytes
    LAG = CONSUMERS if STEPS < STAGES else 0  # tiles by which they are loaded later than the pixels
    fill = make_fill(body.epilogue, body.staged, 2 * COLUMNS, body.pairs)
    STORES, STAGED = stores_aside(body.epilogue), body.staged is not None and not BY_RING
    staged_array, arrived, PIXELS = make_staged(body.epilogue, body.staged) if STAGED else None, wait_copies(0), 64 * TILES
    (WORDS, read_columns, _), PAIRS = make_columns(body.epilogue, body.pairs, 2 * COLUMNS), bool(body.pairs)
    CHUNKS, fetch_piece = COLUMNS // 8, make_fetch(2 * COLUMNS)  # pieces of 16 bytes in a pixel's results
    MADE, make_pixels = body.made is not None, body.made and _make_pixels(body)
    start, reduce, finish, OWN, T_OWN = _make_reductions(body)
    GROUPED, spread, CONSUMING = body.group > 0, body.group and _make_spread(body), 128 * body.consumers

    @device_function
    def locate(t, tiles):
        """(plane of all images, line, column) of tile number t."""
        plane, inside = divide_remainder(t, tiles.plane)
        line, column = divide_remainder(inside, tiles.line)
        return plane, line * LINES, column * WIDE

    @device_function
    def of_consumer(state, consumer):
        """A consumer's state among the stages of all consumers."""
        return PipelineState(u32(consumer * STAGES) + state.stage, state.phase)

    @device_function
    def box_of(consumer, phase):
        """The state of a consumer's box."""
        return PipelineState(u32(consumer), phase)

    @device_function
    def load_addend(addend_map, ring, bars, phase, consumer, t, first_column, tiles):
        """The part of tile `t` of what is added, to the consumer's box."""
        plane, line, column = locate(t, tiles)
        image, depth = divide_remainder(plane, tiles.planes)
        to = box_of(consumer, phase)
        boxes.producer_acquire(bars, to)
        bar = boxes.producer_expect(bars, to, ALL_RESULTS)
        for tile in range(TILES):
            tma_load_5d(ring + ADDENDS + to.stage * ALL_RESULTS + u32(tile * RESULTS), addend_map, bar, first_column, column,
                        line + 8 * tile, depth, image)

    @device_function
    def load_filters(w_map, filters, ready, first_column):
        bar = of_filters.producer_expect(ready, of_filters.producer_start(), FILTERS)
        for d in range(T):
            for tap in range(TAPS):
                t, r, s = d, tap // S, tap % S
                if REVERSE:
                    t, r, s = T - 1 - t, R - 1 - r, S - 1 - s
                for block in range(BLOCKS):
                    at = filters + u32(((d * BLOCKS + block) * TAPS + tap) * PART)
                    if FORWARD:
                        tma_load_5d(at, w_map, bar, block * CHANNELS, s, r, t, first_column)
                    else:
                        tma_load_5d(at, w_map, bar, first_column, s, r, t, block * CHANNELS)

    @device_function
    def produce(x_map, w_map, addend_map, filters, ring, bars, ready, arrived_bars, first, stride, first_column, count, tiles):
        if not GROUPED:
            load_filters(w_map, filters, ready, first_column)
        t, consumer, begin = first, 0, pipe.producer_start()
        if BY_RING:
            end, phase = count + LAG * stride, one_box.producer_start().phase
        else:
            end = count
        state = begin
        while t < end:
            if not BY_RING or t < count:
                plane, line, column = locate(t, tiles)
                image, depth = divide_remainder(plane, tiles.planes)
                state = begin
                for step in range(STEPS):
                    to = of_consumer(state, consumer)
                    rings.producer_acquire(bars, to)
                    bar = rings.producer_expect(bars, to, BOX)
                    d, block = step // BLOCKS, step % BLOCKS
                    channel = first_column if GROUPED else block * CHANNELS
                    tma_load_5d(ring + to.stage * STAGE, x_map, bar, channel, column - tiles.padding_w, line - tiles.padding_h,
                                depth + d * DT - tiles.padding_d, image)
                    state = pipe.next(state)
            if BY_RING:
                late = t - LAG * stride
                if late >= first and late < count:
                    load_addend(addend_map, ring, arrived_bars, phase, consumer, late, first_column, tiles)
                if late >= first and consumer == CONSUMERS - 1:
                    phase = phase ^ 1
            consumer = consumer + 1
            if consumer == CONSUMERS:
                consumer, begin = 0, state
            t = t + stride

    @device_function
    def pixel_at(row, line, column, plane, extents):
        """(number of the tile's pixel `row` among all pixels, whether there is such a pixel)."""
        high, wide = extents
        h, w = line + (row >> 3), column + (row & 7)
        return (plane * high + min(h, high - 1)) * wide + min(w, wide - 1), h < high and w < wide

    @device_function
    def fetch(at, plane, line, column, first_column, thread, n, extents, e):
        """The staged array's pixels to where their results will lie, 16 bytes a copy."""
        array, pitch = staged_array(e)
        for part in range(PIXELS * CHUNKS // 128):
            row, c = (part * 128 + thread) // CHUNKS, thread % CHUNKS
            pixel, inside = pixel_at(row, line, column, plane, extents)
            channel = first_column + c * 8
            fetch_piece(at, row, c, address(array, pixel * pitch + min(channel, n - 8)), inside and channel < n)
        commit_copies()
        arrived()

    @device_function
    def store(acc, y_map, at, plane, line, column, first_column, planes, thread, barrier, n, extents, e, columns, addend,
              arrived_bars, turn):
        """Results through the stage at `at`, whose pixels are no longer needed."""
        lane, warp = thread & 31, thread >> 5
        high, wide = extents
        barrier_sync(barrier, 128)
        if STAGED:
            fetch(at, plane, line, column, first_column, thread, n, extents, e)
            barrier_sync(barrier, 128)
        if BY_RING:
            boxes.consumer_wait(arrived_bars, turn)
        for tile in range(TILES):
            h = line + 8 * tile + 2 * warp
            w = min(column + (lane >> 2), wide - 1)
            r0 = (plane * high + min(h, high - 1)) * wide + w
            r1 = (plane * high + min(h + 1, high - 1)) * wide + w
            if STORES:  # not what lies outside
                r0 = r0 if h < high and column + (lane >> 2) < wide else BEYOND
                r1 = r1 if h + 1 < high and column + (lane >> 2) < wide else BEYOND
            part = u32(tile * RESULTS)
            fill(acc, tile * (COLUMNS // 2), at + part, r0, r1, first_column + (lane & 3) * 2, lane, warp, n, e, columns, 0,
                 (addend if BY_RING else at) + part)
        fence_async_shared()
        barrier_sync(barrier, 128)
        if BY_RING:
            boxes.consumer_release(arrived_bars, turn, thread)
        if thread == 0:
            image, depth = divide_remainder(plane, planes)
            for tile in range(TILES):
                if line + 8 * tile < high:
                    tma_store_5d(y_map, at + u32(tile * RESULTS), first_column, column, line + 8 * tile, depth, image)
            bulk_commit()
            have_left()

    @device_function
    def consume(y_map, filters, ring, bars, ready, arrived_bars, first, stride, first_column, count, tiles, consumer, thread, n, extents,
                e, source, operands, states):
        acc = cuda.local.array(SUMS, f32)
        turn = box_of(consumer, one_box.consumer_start().phase)
        addend = ring + ADDENDS + turn.stage * ALL_RESULTS
        state, t = pipe.consumer_start(), first + consumer * stride
        columns = cuda.local.array(max(WORDS, 1), u32)
        if PAIRS:
            read_columns(columns, first_column, first_column + (thread & 3) * 2, n, e)
        own = cuda.local.array(OWN, T_OWN)
        start((own,))
        if not GROUPED:
            of_filters.consumer_wait(ready, of_filters.consumer_start())
        while t < count:
            plane, line, column = locate(t, tiles)
            at, read = ring, pipe.consumer_start()
            for step in range(STEPS):
                here = of_consumer(state, consumer)
                at = ring + here.stage * STAGE
                rings.consumer_wait(bars, here)
                if MADE:
                    _, depth = divide_remainder(plane, tiles.planes)
                    make_pixels(at, depth + step // BLOCKS * DT - tiles.padding_d, line - tiles.padding_h, column - tiles.padding_w,
                                step % BLOCKS, source, thread, operands)
                    fence_async_shared()
                    barrier_sync(consumer + 1, 128)
                for tap in range(TAPS):
                    pixel = at + u32((tap // S) * (DR * PITCH) + (tap % S) * (DS * ROW))
                    b = filters + u32((step * TAPS + tap) * PART)
                    multiply(acc, descriptor(A_CONST, pixel), descriptor(B_CONST, b), i32(tap + step > 0))
                    if tap == 0 and step > 0:  # the previous step's products are complete
                        wait_older(acc)
                        rings.consumer_release(bars, read, thread)
                read, state = here, pipe.next(state)
            wait_all(acc)
            store(acc, y_map, at, plane, line, column, first_column, tiles.planes, thread, consumer + 1, n, extents, e, columns,
                  addend, arrived_bars, turn)
            turn = PipelineState(turn.stage, turn.phase ^ 1)
            rings.consumer_release(bars, read, thread)
            reduce(acc, own, plane, line, column, first_column, thread, extents, (n, e, states))
            t = t + CONSUMERS * stride
        finish(own, first, first_column, consumer * 128 + thread, filters, (n, e, states))

    @jit(launch_bounds=(THREADS, 1))
    def conv_halo_wgmma(x, w, y, addend, count, parts, tiles, n, high, wide, alpha, beta, bias, bias_stride, prior, prior_row, prior_column,
                        residual, residual_row, residual_column, extras, source, operands, states):
        shared = cuda.shared.array(0, u32)
        x_map, y_map = tensor_map_address(x), tensor_map_address(y)
        w_map = x_map if GROUPED else tensor_map_address(w)
        addend_map = tensor_map_address(addend if BY_RING else y)
        filters = (shared_address(shared, 0) + 1023) & 0xFFFFFC00
        ring = filters + FILTERS
        bars, ready, arrived_bars = rings.barriers(ring + BARS), of_filters.barriers(ring + READY), boxes.barriers(ring + ARRIVED)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(x_map)
            if not GROUPED:
                prefetch_tensor_map(w_map)
            of_filters.init(ready)
            rings.init(bars)
            if BY_RING:
                boxes.init(arrived_bars)
            fence_mbarrier_init()
        cuda.syncthreads()
        launch_dependent_grids()
        wait_for_previous_grid()
        role = uniform(tid >> 7)
        first, part = divide_remainder(cuda.blockIdx.x, parts)  # blocks divide the output channels
        stride, _ = divide_remainder(cuda.gridDim.x, parts)
        first_column = part * COLUMNS
        if role == 0:
            if tid < 32:
                if elect():
                    produce(x_map, w_map, addend_map, filters, ring, bars, ready, arrived_bars, first, stride, first_column, count, tiles)
        else:
            if GROUPED:
                spread(filters, w, first_column, tid - 128)
                fence_async_shared()
                barrier_sync(WHOLE, CONSUMING)
            e = ProgramParams(alpha, beta, bias, bias_stride, prior, prior_row, prior_column, residual, residual_row, residual_column,
                              extras)
            consume(y_map, filters, ring, bars, ready, arrived_bars, first, stride, first_column, count, tiles, role - 1, tid & 127, n,
                    (high, wide), e, source, operands, states)
    return conv_halo_wgmma
