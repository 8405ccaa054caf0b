"""The kernel of the gradients by tiles of keys, as `sdpa_bwd_flash_wgmma` describes it."""
import functools
from dataclasses import replace
from typing import NamedTuple

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.atomic import fetch_add_u32
from ....device.barrier import barrier_sync
from ....device.grid import add_released, load_acquired
from ....device.index import ceil_div, divide_remainder, divisor
from ....device.mbarrier import (fence_async_global, fence_async_shared, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect,
                                 mbarrier_init, mbarrier_wait)
from ....device.pipeline import Barriers, make_pipeline
from ....device.registers import make_register_claim, make_register_release
from ....device.stmatrix import stmatrix_x4
from ....device.tma import (bulk_commit, bulk_load, bulk_reduce_add_f32, bulk_store, make_bulk_wait, make_bulk_wait_read,
                            prefetch_tensor_map, tensor_map_address, tma_load_4d)
from ....device.vec import address, advance, shared_address, store_shared_4f32, store_shared_4u32
from ....device.warp import elect, uniform
from ....device.wgmma import descriptor, make_wgmma_wait
from ....engine.hopper import ROW
from ..._fragments import make_pack, make_single_store, make_split, make_store
from ..._modifiers import make_add_bias_transposed, make_apply_mask_transposed
from ..._parameters import Sequences
from ..._scores import LOG2E, make_terms
from ..._wgmma import ALIGNMENT, COLUMNS
from .._dscores import make_slopes, make_turned_kept, make_turned_steps
from .products import make_products
from .tiles import make_tickets, make_walk


class Bars(NamedTuple):
    """Barriers: of the tiles that stay, of the ring of queries, of the part of dq (one for each of two threads, one for all), of do's own
    stage, of the two tiles of the bias."""
    resident: Barriers
    rows: Barriers
    part_full: u32
    part_empty: u32
    single: Barriers
    bias_full: u32
    bias_empty: u32


@functools.cache
def kernel(config, down):
    """dk and dv of a tile of keys of one head of theirs a block, and its part of dq."""
    kind, s = config.kind, config.shape
    terms, apply_mask = make_terms(kind), make_apply_mask_transposed(s.width, config.left, config.right)
    DOWN, PACKED, CAPPED, STAGED = down, kind.packed, kind.softcap, config.staged
    adjust, _ = make_slopes(replace(kind, softcap=False, bias="" if STAGED else kind.bias), s.width, True)
    (tell, place_of, extent_of, work_of, tiles_of), (is_left, following) = make_tickets(config, down), make_walk(s.width, down)
    exponentials, slopes, capped = make_turned_steps(kind, s.width, config.together)
    DROPOUT, MASKS = kind.dropout, ceil_div(s.width, 64)
    find_kept = make_turned_kept(s.width) if DROPOUT else None
    add_bias = make_add_bias_transposed(kind.bias, s.width, s.height * config.line) if STAGED else None
    HEIGHT, WIDTH, THREADS, STAGES, GROUPS = s.height, s.width, s.threads, config.stages, s.groups
    (Q_COLUMNS, V_COLUMNS), (Q_BOXES, V_BOXES) = config.columns, config.boxes
    SECOND, RING, SINGLE_AT, SLOPES, PART, NUMBERS, BARS = config.places
    (FIRST_BYTES, SECOND_BYTES), STAGE, RESIDENT, SINGLE = config.passing, config.stage, sum(config.resident), config.single
    SLOPE_BYTES, PART_BYTES, NUMBER_BYTES = config.slopes, config.part, config.numbers
    TOGETHER, TURNED, LINE, TILES = config.together, config.turned, config.line, ceil_div(config.parts[0][2], COLUMNS)
    SPLIT, CROWDED, PIECES, TURNS = config.split, config.crowded, config.pieces, config.turns
    SCORES, SUMS, SUMS_V, WORDS = WIDTH // 2, Q_COLUMNS // 2, V_COLUMNS // 2, WIDTH // 4
    (BOX, BOX_V), ALL_WORDS = (n // 2 for n in config.passed), PIECES * WORDS
    PASSED = max(BOX, BOX_V) if SPLIT else 1
    PARTS = TILES * SCORES if TURNED else config.parts[0][2] // 2
    STAY, PASS, SLOPE_BOX, SLOPE_PIECE = HEIGHT * ROW, WIDTH * ROW, HEIGHT * LINE, config.slopes // PIECES
    OF_DK, OF_DV = config.only != "dv", config.only != "dk"
    ORDERED, ADJUSTED = config.ordered, config.adjusted and not CAPPED
    # pieces of what lies behind a sequence are zero unless it is another one
    LIMITED_ROWS, LIMITED_KEYS = (limits and (PACKED or not SPLIT) for limits in (kind.limits_rows, kind.limits_keys))
    BY_WIDTH, BY_HEIGHT = divisor(WIDTH), divisor(HEIGHT)
    # tiles of the bias come to where ds will lie: of each warpgroup's keys 64 rows, or all, of 128 bytes
    BIAS_BOX, BIAS_BOXES, BIAS_ROWS = 64 * LINE, ceil_div(WIDTH, 64), min(WIDTH, 64)
    BLOCKS, BLOCKS_TURNED = config.parts[0][2] // 8, config.part // 2048
    score, value, by_first, by_second, by_keys, by_row, by_column, OF_SLOPES, OF_KEYS = make_products(config)
    BY_ROWS, (_, COLUMNS_BEFORE, _), COUNTS = WIDTH == 64 * GROUPS, config.parts[-1], tuple(n for _, _, n in config.parts)
    scores_first, slopes_done = make_wgmma_wait(1, SCORES), make_wgmma_wait(0, SCORES)
    part_first = make_wgmma_wait(0 if CROWDED else 1, PARTS)
    sums_done, values_done, box_done, box_values_done = (make_wgmma_wait(0, n) for n in (SUMS, SUMS_V, BOX, BOX_V))
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), config.registers))
    source_free, drained = make_bulk_wait_read(0), make_bulk_wait(0)
    # the tiles of k and v, which stay; those of rows, which every warp releases; do where it has one stage of its own
    stay_pipe, pipe = make_pipeline(1, consumers=0), make_pipeline(STAGES, consumers=4 * GROUPS)
    single_pipe = make_pipeline(1, consumers=4 * GROUPS)
    ROW_BARS = stay_pipe.bytes
    PART_BARS = ROW_BARS + pipe.bytes
    SINGLE_BARS = PART_BARS + 24
    BIAS_BARS = SINGLE_BARS + single_pipe.bytes
    TOLD = BIAS_BARS + 32
    pack = make_split(WORDS) if SPLIT else make_pack(kind.dtype, WORDS)
    store, store_values = map(functools.partial(make_single_store if SPLIT else make_store, kind.dtype), config.columns,
                              (config.d, config.e), config.pairs)

    @device_function
    def release(empty, slot, lane):
        """The warp has read a stage, its levels and deltas too."""
        cuda.syncwarp()
        if lane == 0:
            mbarrier_arrive(empty + 8 * slot)

    @device_function
    def load_tile(to, boxes, box, array, bar, row, h, image, images):
        for piece in range(PIECES):
            for b in range(boxes):
                tma_load_4d(to + u32((piece * boxes + b) * box), array, bar, b * COLUMNS, row, h, image + piece * images)

    @device_function
    def second_of(base, tile):
        """Where do of a stage is."""
        return base + SINGLE_AT if SINGLE else tile + FIRST_BYTES

    @device_function
    def slopes_of(base, turn):
        """Where ds of a step is, and before it the bias."""
        return base + SLOPES + turn * SLOPE_BYTES if TURNS == 2 else base + SLOPES

    @device_function
    def produce(maps, base, bars, where, firsts, members, numbers, padded, heads, batch):
        stay, stay_second, passing, passing_second = maps
        sequence, line_head, other_head, start, begin, end = where
        first_row, first_key, place = firsts
        image, images, key = 0 if PACKED else sequence, 1 if PACKED else batch, first_key + start
        bar = stay_pipe.producer_expect(bars.resident, stay_pipe.producer_start(), u32(RESIDENT))
        load_tile(base, Q_BOXES, STAY, stay, bar, key, line_head, image, images)
        if OF_DK:
            load_tile(base + SECOND, V_BOXES, STAY, stay_second, bar, key, line_head, image, images)
        state, single, at, member = pipe.producer_start(), single_pipe.producer_start(), begin, i32(0)
        while is_left(at, end) and member < members:
            h = other_head + member
            line = (image * heads + h) * i64(padded) + (place + at)
            pipe.producer_acquire(bars.rows, state)
            to = base + RING + state.stage * STAGE
            bar = pipe.producer_expect(bars.rows, state, u32(STAGE + NUMBER_BYTES))
            load_tile(to, Q_BOXES, PASS, passing, bar, first_row + at, h, image, images)
            bulk_load(base + NUMBERS + state.stage * NUMBER_BYTES, address(numbers, 2 * line), NUMBER_BYTES, bar)
            if SINGLE:
                single_pipe.producer_acquire(bars.single, single)
                bar = single_pipe.producer_expect(bars.single, single, u32(SECOND_BYTES))
                single = single_pipe.next(single)
            load_tile(second_of(base, to), V_BOXES, PASS, passing_second, bar, first_row + at, h, image, images)
            state = pipe.next(state)
            at, member = following(at, member, begin, end, members)

    @device_function
    def produce_bias(array, strides, base, bars, where, members):
        """Brings a step's tile as soon as ds of two steps before has been multiplied."""
        image, _, other_head, start, begin, end = where
        image, at, member, turn, phase = image if strides.batch else 0, begin, i32(0), u32(1), u32(1)
        while is_left(at, end) and member < members:
            h, to, bar = other_head + member if strides.head else 0, slopes_of(base, turn), bars.bias_full + 8 * turn
            mbarrier_wait(bars.bias_empty + 8 * turn, phase)
            mbarrier_arrive_expect(bar, SLOPE_BYTES)
            for b in range(BIAS_BOXES):
                for g in range(GROUPS):
                    tma_load_4d(to + u32(b * SLOPE_BOX + g * BIAS_BOX), array, bar, start + 64 * g, at + 64 * b, h, image)
            turn = turn ^ 1
            phase = phase ^ turn
            at, member = following(at, member, begin, end, members)

    @device_function
    def add_parts(base, bars, where, place, members, sums, counts, tiles_of_rows, sizes, own):
        """What this block adds to dq, every other tile of rows: until an addition has come through and been announced the other thread has
        begun the next one."""
        sequence, _, other_head, start, begin, end = where
        heads, rows, keys, bounds = sizes
        image = 0 if PACKED else sequence
        mine, _ = divide_remainder(start, BY_HEIGHT)
        first, _ = divide_remainder(place, BY_WIDTH)
        first = (image * heads + other_head) * tiles_of_rows + first  # of all tiles of rows the first one of these heads'
        step, source, at, member = i32(0), base + PART, begin, i32(0)
        while is_left(at, end) and member < members:
            if step & 1 == own:
                m, _ = divide_remainder(at, BY_WIDTH)
                m = first + member * tiles_of_rows + m
                mbarrier_wait(bars.part_full + u32(8 * own), (step >> 1) & 1)
                to = address(sums, m * i64(PART_BYTES // 4))
                if ORDERED:
                    low, high = tiles_of(at, rows, keys, bounds)
                    before = mine - low if DOWN else high - mine
                    while load_acquired(advance(counts, i64(m))) != u32(before):
                        pass
                    fence_async_global()
                    if before == 0:
                        bulk_store(to, source, PART_BYTES)
                    else:
                        bulk_reduce_add_f32(to, source, PART_BYTES)
                    bulk_commit()
                    source_free()
                    mbarrier_arrive(bars.part_empty)
                    drained()
                    fence_async_global()
                    add_released(advance(counts, i64(m)), 1)
                else:
                    bulk_reduce_add_f32(to, source, PART_BYTES)
                    bulk_commit()
                    source_free()
                    mbarrier_arrive(bars.part_empty)
            step = step + 1
            at, member = following(at, member, begin, end, members)
        drained()

    @device_function
    def clear_rows(to, boxes, box, behind, rows, thread):
        """Rows of a tile of so many become zero from `behind` on: zero times what is there might be NaN."""
        for unit in range(max(behind, 0) * 8 + thread, rows * 8, 128 * GROUPS):
            for b in range(PIECES * boxes):
                store_shared_4u32(to + u32(b * box) + u32(unit * 16), 0, 0, 0, 0)

    @device_function
    def add_box(sums, first, passed, count):
        """What a tile adds to some columns, rounded to the nearest: tensor cores may truncate whatever they add."""
        for c in range(count):
            sums[first + c] = sums[first + c] + passed[c]

    @device_function
    def add_values(values, passed, words, tile):
        """The columns of dv; those of the first box are under way."""
        box_values_done(passed)
        add_box(values, 0, passed, BOX_V)
        for b in range(1, V_BOXES):
            by_second(passed, words, descriptor(by_column, tile + u32(b * PASS)))
            box_values_done(passed)
            add_box(values, b * BOX_V, passed, BOX_V)

    @device_function
    def add_keys(sums, passed, words, tile):
        """The same of dk."""
        box_done(passed)
        add_box(sums, 0, passed, BOX)
        for b in range(1, Q_BOXES):
            by_first(passed, words, descriptor(by_column, tile + u32(b * PASS)))
            box_done(passed)
            add_box(sums, b * BOX, passed, BOX)

    @device_function
    def put_slopes(words, to, group, warp, lane):
        """ds as columns of 64 rows, or of all, a line of memory a key."""
        key = group * 64 + warp * 16 + (lane & 15)
        for piece in range(PIECES):
            for i in range(WIDTH // 16):
                k, place = piece * WORDS + 4 * i, u32((i % 4 * 2 + (lane >> 4)) ^ (key * LINE >> 7 & (LINE // 16 - 1))) * 16
                stmatrix_x4(to + u32(piece * SLOPE_PIECE + i // 4 * SLOPE_BOX) + u32(key * LINE) + place, words[k], words[k + 1],
                            words[k + 2], words[k + 3])

    @device_function
    def put_part(part, to, count, thread):
        """A warpgroup's columns of the part of dq, block after block."""
        for j in range(count // 8):
            store_shared_4f32(to + u32(2048 * j) + u32(thread * 16), part[4 * j], part[4 * j + 1], part[4 * j + 2], part[4 * j + 3])

    @device_function
    def put_turned(part, to, first, warp, lane):
        """The same of a transposed part, warp after warp: a block of shared memory has 16 columns, and box number `first` begins."""
        for tile in range(TILES):
            block = i32(4 * (first + tile) + warp)
            if block < BLOCKS_TURNED:
                for j in range(WIDTH // 8):
                    k = tile * SCORES + 4 * j
                    store_shared_4f32(to + u32(block * 2048) + u32(512 * j) + u32(lane * 16), part[k], part[k + 1], part[k + 2],
                                      part[k + 3])

    @device_function
    def consume(outs, base, bars, where, members, limits, scaling, dropping, group, thread, told, order, sequences, sizes):
        image, line_head, other_head, start, begin, end = where
        rows, keys, shift, bounds, heads = limits
        all_keys = sizes.keys
        scale, softcap, bias, bias_strides = scaling
        seed, offset, threshold, factor = dropping
        seed = terms.seed_of(seed, offset)
        lane, warp = thread & 31, thread >> 5
        line, column = start + group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2
        softmax_scale = f32(LOG2E) if ADJUSTED or STAGED else scale * LOG2E
        x, y = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32)
        sums, values, part = cuda.local.array(SUMS, f32), cuda.local.array(SUMS_V, f32), cuda.local.array(PARTS, f32)
        words, words_p, passed = cuda.local.array(ALL_WORDS, u32), cuda.local.array(ALL_WORDS, u32), cuda.local.array(PASSED, f32)
        factors, nothing, kept = cuda.local.array(2, f32), cuda.local.array(1, f32), cuda.local.array(MASKS, u32)
        if OF_DK:
            for c in range(SUMS):
                sums[c] = f32(0)
        if OF_DV:
            for c in range(SUMS_V):
                values[c] = f32(0)
        state, single, turn, bias_phase = pipe.consumer_start(), single_pipe.consumer_start(), u32(1), u32(0)
        stay_pipe.consumer_wait(bars.resident, stay_pipe.consumer_start())
        if LIMITED_KEYS and start + HEIGHT > keys:  # what is behind the last key is multiplied for dq, by zeros
            clear_rows(base, Q_BOXES, STAY, keys - start, HEIGHT, group * 128 + thread)
            if OF_DK:
                clear_rows(base + SECOND, V_BOXES, STAY, keys - start, HEIGHT, group * 128 + thread)
            fence_async_shared()
            barrier_sync(1, 128 * GROUPS)
        mine = base + u32(group) * (64 * ROW)
        own_keys = base + u32(group) * (COLUMNS_BEFORE // COLUMNS * STAY) if COUNTS[-1] else base
        a, a_second = descriptor(by_row, mine), descriptor(by_row, mine + SECOND)
        at, member, slope = begin, i32(0), terms.slope(other_head, heads)
        while is_left(at, end) and member < members:
            h = other_head + member
            head = image * heads + h
            bias_at = image * bias_strides.batch + h * bias_strides.head
            scoring = (shift, slope, bias, bias_at, bias_strides, rows - 1, keys - 1, scale, softcap)
            drawing = (seed, head, threshold, factor)
            pipe.consumer_wait(bars.rows, state)
            tile = base + RING + state.stage * STAGE
            second, of_ds = second_of(base, tile), slopes_of(base, turn)
            if SINGLE:
                single_pipe.consumer_wait(bars.single, single)
            if LIMITED_ROWS and at + WIDTH > rows:
                clear_rows(tile, Q_BOXES, PASS, rows - at, WIDTH, group * 128 + thread)
                clear_rows(second, V_BOXES, PASS, rows - at, WIDTH, group * 128 + thread)
                if STAGED:
                    mbarrier_wait(bars.bias_full + 8 * turn, bias_phase)
                    for b in range(BIAS_BOXES):
                        clear_rows(of_ds + u32(b * SLOPE_BOX), GROUPS, BIAS_BOX, i32(rows - at - 64 * b), BIAS_ROWS,
                                   group * 128 + thread)
                fence_async_shared()
                barrier_sync(1, 128 * GROUPS)
            if DROPOUT:
                find_kept(kept, drawing, line, at, lane)
            score(x, a, descriptor(by_row, tile))
            if OF_DK:
                value(y, a_second, descriptor(by_row, second))
            else:  # slopes that nobody asks for
                for c in range(SCORES):
                    y[c] = f32(0)
            if CAPPED or not OF_DK:
                slopes_done(x)
            else:
                scores_first(x)
            if ADJUSTED:
                adjust(x, nothing, line, at, column, scoring)
            if STAGED:
                mbarrier_wait(bars.bias_full + 8 * turn, bias_phase)
                bias_phase = bias_phase ^ turn ^ 1
                add_bias(x, of_ds + u32(group) * BIAS_BOX, warp, lane, f32(1) if ADJUSTED else scale)
                if not OF_DK:
                    release(bars.bias_empty, turn, lane)
                    turn = turn ^ 1
            seen, _ = terms.key_range(min(at + WIDTH, rows) - 1, rows, keys, bounds)
            _, last = terms.key_range(at, rows, keys, bounds)
            if seen > start or last < start + HEIGHT:
                apply_mask(x, line - shift, at, column, keys - line, bounds)
            levels = base + NUMBERS + state.stage * NUMBER_BYTES
            deltas = levels + 4 * TOGETHER
            if CAPPED:
                if OF_DK:
                    slopes_done(y)
                if SINGLE:
                    cuda.syncwarp()
                    single_pipe.consumer_release(bars.single, single, lane)
                    single = single_pipe.next(single)
                capped(x, y, levels, deltas, line, at, column, scoring, kept, factor)
            else:
                exponentials(x, levels, column, softmax_scale)
                if OF_DK:
                    slopes_done(y)
                if SINGLE:
                    cuda.syncwarp()
                    single_pipe.consumer_release(bars.single, single, lane)
                    single = single_pipe.next(single)
                slopes(x, y, deltas, column, kept, factor)
            if OF_DV:
                pack(words_p, x)
            if SPLIT:
                by_second(passed, words_p, descriptor(by_column, second))
            if CROWDED:
                add_values(values, passed, words_p, second)
            if OF_DK:
                pack(words, y)
            if OF_DV and not SPLIT:
                by_second(values, words_p, descriptor(by_column, second), 1)
            if OF_DK:
                if TURNS == 1:  # until all have read the former one
                    barrier_sync(1, 128 * GROUPS)
                elif STAGED:  # until the warpgroup has read the bias
                    barrier_sync(group + 2, 128)
                put_slopes(words, of_ds, group, warp, lane)
                fence_async_shared()
                barrier_sync(1, 128 * GROUPS)
                if SPLIT and not CROWDED:
                    add_values(values, passed, words_p, second)
                if TURNED:
                    by_keys(part, descriptor(OF_KEYS, own_keys), descriptor(OF_SLOPES, of_ds))
                elif BY_ROWS:
                    by_keys(part, descriptor(OF_SLOPES, of_ds + u32(group) * SLOPE_BOX), descriptor(OF_KEYS, base))
                else:  # where a warpgroup has fewer columns, or none, it multiplies as many and leaves them
                    by_keys(part, descriptor(OF_SLOPES, of_ds), descriptor(OF_KEYS, own_keys))
                if not SPLIT:
                    by_first(sums, words, descriptor(by_column, tile), 1)
                elif not CROWDED:
                    by_first(passed, words, descriptor(by_column, tile))
                part_first(part)
                if STAGED:
                    release(bars.bias_empty, turn, lane)
                mbarrier_wait(bars.part_empty, turn)
                to = base + PART
                if TURNED:
                    put_turned(part, to, i32(group * TILES), warp, lane)
                elif BY_ROWS:
                    put_part(part, to + u32(group) * (BLOCKS * 2048), COUNTS[0], thread)
                elif group == 0:
                    put_part(part, to, COUNTS[0], thread)
                else:
                    put_part(part, to + COLUMNS_BEFORE // 8 * 2048, COUNTS[-1], thread)
                fence_async_shared()
                turn = turn ^ 1
                release(bars.part_full, turn, lane)
            if SPLIT:
                if CROWDED:
                    by_first(passed, words, descriptor(by_column, tile))
                add_keys(sums, passed, words, tile)
            elif OF_DK:
                sums_done(sums)
            if OF_DV and not SPLIT:
                values_done(values)
            cuda.syncwarp()  # it has read a stage, its levels and deltas too
            pipe.consumer_release(bars.rows, state, lane)
            state = pipe.next(state)
            own = member
            at, member = following(at, member, begin, end, members)
            if member != own:
                slope = terms.slope(other_head + member, heads)
        out, out_strides, out_second, second_strides = outs
        image, line_head, start = place_of(told, order, sequences, sizes)  # once more: nothing of it is kept in registers until here
        key, written = i32(0), all_keys
        if PACKED:
            _, written, _, key, _ = extent_of(told, image, sequences, sizes)
        line = start + group * 64 + warp * 16 + (lane >> 2)
        if OF_DK:
            if not SPLIT:
                sums_done(sums)
            for r in range(2):
                factors[r] = scale if line + 8 * r < keys else f32(0)
            to_keys = advance(out, image * out_strides.batch + line_head * out_strides.head + key * out_strides.row)
            store(sums, factors, to_keys, out_strides, line, written, column)
        if OF_DV:
            if not SPLIT:
                values_done(values)
            for r in range(2):
                factors[r] = f32(1) if line + 8 * r < keys else f32(0)
            to_values = advance(out_second, i64(image * second_strides.batch + line_head * second_strides.head
                                                + key * second_strides.row))
            store_values(values, factors, to_values, second_strides, line, written, column)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_bwd_flash_wgmma(k_map, v_map, q_map, do_map, bias_map, dk, dk_strides, dv, dv_strides, brought, sums, counts, ticket, sizes,
                             order, counts_of_heads, of_rows, of_keys,
                             row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap, seed,
                             offset, threshold, factor):
        shared = cuda.shared.array(0, u32)
        maps = (tensor_map_address(k_map), tensor_map_address(v_map), tensor_map_address(q_map), tensor_map_address(do_map))
        of_bias = tensor_map_address(bias_map)
        base = (shared_address(shared, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        first = base + BARS
        bars = Bars(stay_pipe.barriers(first), pipe.barriers(first + ROW_BARS), first + PART_BARS, first + (PART_BARS + 16),
                    single_pipe.barriers(first + SINGLE_BARS), first + BIAS_BARS, first + (BIAS_BARS + 16))
        told = first + TOLD
        sequences = Sequences(of_rows, of_keys, row_step, key_step)
        tid = cuda.threadIdx.x
        if tid == 0:
            for k in range(4):
                prefetch_tensor_map(maps[k])
            stay_pipe.init(bars.resident)
            pipe.init(bars.rows)
            single_pipe.init(bars.single)
            for k in range(2):
                mbarrier_init(bars.part_full + u32(8 * k), 4 * GROUPS)
                mbarrier_init(bars.bias_full + u32(8 * k), 1)
                mbarrier_init(bars.bias_empty + u32(8 * k), 4 * GROUPS)
            mbarrier_init(bars.part_empty, 1)
            fence_mbarrier_init()
            tell(told, i32(fetch_add_u32(ticket, 1)), order, sequences, sizes)
        cuda.syncthreads()
        members, heads = counts_of_heads[0], counts_of_heads[1]
        # each role finds its tile for itself: what all had in common would be kept in memory, producers have few registers
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    where, firsts, _, keys = work_of(told, order, sequences, sizes, members, bounds)
                    if not PACKED or where.start < keys:
                        produce(maps, base, bars, where, firsts, members, brought, sizes.padded, heads, sizes.batch)
            elif tid >= 96:
                if STAGED and elect():
                    where, _, _, _ = work_of(told, order, sequences, sizes, members, bounds)
                    produce_bias(of_bias, bias_strides, base, bars, where, members)
            elif OF_DK:
                if elect():
                    where, (_, _, place), rows, keys = work_of(told, order, sequences, sizes, members, bounds)
                    add_parts(base, bars, where, place, members, sums, counts, sizes.tiles, (heads, rows, keys, bounds),
                              (tid >> 5) - 1)
        else:
            claim_registers()
            where, _, rows, keys = work_of(told, order, sequences, sizes, members, bounds)
            limits = (rows, keys, terms.shift(rows, keys), bounds, heads)
            if not PACKED or where.start < keys:  # more tiles are counted than sequences have
                consume((dk, dk_strides, dv, dv_strides), base, bars, where, members, limits, (scale, softcap, bias, bias_strides),
                        (seed, offset, threshold, factor), role - 1, tid & 127, told, order, sequences, sizes)
    return sdpa_bwd_flash_wgmma
