"""`split_kv` on Hopper's tensor cores, for many rows and wide heads: 64 rows that share a head of the cache are a block's tile of queries.

    producer (one lane)      keys, box by box of 64 columns, and a step later their values, by pieces of 32 keys, through TMA into two rings
    first warpgroup          s = q k' (wgmma) -> exponentials in registers -> 16 bits, in the order in which wgmma takes them from there
                             -> sums of the first columns += p v (wgmma)
    second, of wide values   sums of the other columns += p v, with p through shared memory

- A step takes 64 keys. The products of its values run while the scores of the next one are computed and become exponentials.
- Boxes go back to the producer one by one, as soon as they are multiplied: queries of 576 elements leave memory for little more than one
  tile of keys and of values, and of these nearly all is always on its way.
- Sums of 512 columns are two warpgroups' registers. The first one alone has scores; it tells the second a tile of probabilities, and by
  what rows have to be scaled.
- Of values of up to 256 columns one warpgroup has all, and a multiprocessor has two blocks where they fit.
- The level that exponentials are taken by may lag behind the largest score by 2**8 (`_fragments`): sums are hardly ever scaled.
- Keys are cut into ranges, whose parts a second launch merges, where one each would leave multiprocessors without work.

Values of keys that a sequence has not, or that are before every row's window, are set to zero in shared memory: what they are must not
matter, and 0 times NaN is NaN. Probabilities are rounded to 16 bits, as those of `sdpa_fwd` on tensor cores are. Sources: FlashMLA
(DeepSeek, 2025) for two warpgroups that share the columns of the sums, FlashAttention-4's lazy scaling.
"""
import functools
from dataclasses import replace

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.barrier import barrier_sync
from ....device.convert import element
from ....device.dependent import launch_dependent_grids, wait_for_previous_grid
from ....device.fastmath import rcp
from ....device.groups import make_reader
from ....device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ....device.mbarrier import fence_async_shared, fence_mbarrier_init
from ....device.pipeline import make_pipeline
from ....device.registers import make_register_claim, make_register_release
from ....device.stmatrix import stmatrix_x4
from ....device.tma import prefetch_tensor_map, tensor_map_address
from ....device.vec import advance, load_shared_f32, pin, shared_address, store2, store_shared_4u32, store_shared_f32
from ....device.warp import any_lane, elect, uniform
from ....device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ....dispatch import Algorithm, Note
from ....engine.constants import constants
from ....engine.cost import Cost, overlap
from ....engine.hopper import ROW
from ....host.launch import Argument, Launch
from ..._fragments import SLACK, make_normalize, make_online_softmax, make_pack, make_store_rows, quad_sum, scale_rows
from ..._modifiers import make_cap, make_keep
from ..._parameters import Sequences, Strides
from ..._scores import LN2, LOG2E, NEG_INF, make_terms
from ..._wgmma import ALIGNMENT, COLUMNS, addressable, array_map
from .._ranges import (lines_of, make_places, make_range, merge_launch, merge_seconds, parts_bytes, refusal, shape_arguments,
                       sink_arguments, tiles_of)
from ..sdpa_decode_naive import cache_arguments, lse_argument
from .producer import Paging, make_produce
from .tiles import BOX, CHUNK, FACTORS, HEIGHT, PIECE, SLICE, WIDTH, configs, words_of

COST = constants("attention/decode_wgmma")

WIDEST_KEY, WIDEST_VALUE, LEAST_PAGE = 576, 512, 16
FIRST = 32  # keys of a step that are looked at first


def supports(problem):
    """Halves that TMA can read, in pages of whole boxes."""
    p = problem
    if reason := refusal(p, bias=False):
        return reason
    if p.dtype not in ("float16", "bfloat16"):
        return f"{p.dtype}; expected float16 or bfloat16"
    if not p.capacity or p.capacity >= LIMIT // 2:
        return f"{p.capacity} keys of a sequence; expected 1 to 2**30 - 1"
    if p.d > WIDEST_KEY or p.dv > WIDEST_VALUE or p.d % CHUNK or p.dv % CHUNK or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected multiples of {CHUNK}, {WIDEST_KEY} and {WIDEST_VALUE} at most"
    for name, t in (("k_cache", p.k_cache), ("v_cache", p.v_cache)):
        if not addressable(p, t):
            return f"{name} has strides {t.strides} and alignment {t.alignment}: TMA takes rows that lie 16 bytes, or multiples, apart"
    if p.q.strides[-1] != 1 or not words_of(p):
        return f"{p.q}; expected rows of whole words of four bytes"
    if p.page_table is not None and (p.page % LEAST_PAGE or p.page % WIDTH and WIDTH % p.page):
        return f"pages of {p.page} keys; expected {LEAST_PAGE}, {2 * LEAST_PAGE} or a multiple of {WIDTH}"
    elements = p.batch * p.kv_heads * (p.group * p.rows + HEIGHT) * 2 * max(p.d, p.dv, 1024)
    return None if elements < LIMIT else f"{p.batch} sequences of {p.heads} heads; expected fewer than 2**31 elements of tiles"


def workspace(problem, device, config):
    """What ranges leave, where there are several."""
    return parts_bytes(problem, config.parts, config.splits)


def estimate(problem, device, config):
    """Steps of the busiest multiprocessor: their products, or their bytes, from memory for one tile of rows and from the L2 for others."""
    p, c = problem, config
    blocks, slots = lines_of(p, HEIGHT) * c.splits, c.blocks * device.sms
    waves, busy = ceil_div(blocks, slots), min(blocks, slots)
    steps = ceil_div(ceil_div(p.seen, WIDTH), c.splits)
    products = 2 * HEIGHT * WIDTH * (COLUMNS * c.boxes[0] + p.dv) / 4096 * ceil_div(busy, device.sms)
    moved = WIDTH * (p.d + p.dv) * p.q.itemsize * busy / device.bandwidth
    each = waves * steps
    work = overlap(math=each * (products + COST.step) / (COST.clock * device.clock_hz),
                   memory=each * (moved / tiles_of(p, HEIGHT) / COST.rate), l2=each * (moved / COST.l2))
    return Cost(launch=COST.launch, waves=waves * COST.block, reduction=merge_seconds(p, c.parts, c.splits, device)) + work


@functools.cache
def kernel(config):
    """A tile of 64 rows and a range of keys a block."""
    c, kind = config, config.kind
    terms, range_of, (sum_at, score_at) = make_terms(kind), make_range(WIDTH), make_places(c.parts)
    (K_BOXES, V_BOXES), (FIRST_COLUMNS, OTHER_COLUMNS), (K_SLOTS, V_SLOTS) = c.boxes, c.columns, c.rings
    P_AT, K_AT, V_AT, REST = c.places
    GROUPS, THREADS, STAGE, D, SPLIT, SINK, WITH_LSE = c.groups, c.threads, c.stage, c.d, c.splits > 1, bool(kind.sink), c.lse
    FOLLOWED, WINDOWED, ADJUSTED, CAPPED = GROUPS > 1, c.windowed, c.adjusted, kind.softcap
    SCORES, SUMS, MORE_SUMS, WORDS = WIDTH // 2, FIRST_COLUMNS // 2, OTHER_COLUMNS // 2, WIDTH // 4
    RAW, LINES, STEP_LOG = 4 * K_BOXES, 16 * GROUPS, WIDTH.bit_length() - 1
    FIRST_BOXES = FIRST_COLUMNS // COLUMNS if FOLLOWED else V_BOXES
    by_row, V_CONST = matrix_descriptor(16, 1024, 128), matrix_descriptor(SLICE, 1024, 128)
    multiply_k = make_wgmma(WIDTH, kind.dtype, steps=4)
    multiply_early, multiply_late = (make_wgmma(FIRST_COLUMNS, kind.dtype, steps=2, a="registers", a_words=steps, b_major="mn", b_step=128)
                                     for steps in ((0, 1), (2, 3)))
    multiply_other = make_wgmma(OTHER_COLUMNS, kind.dtype, steps=2, b_major="mn", b_step=128) if FOLLOWED else None
    older_done, scores_alone, scores_first = make_wgmma_wait(1, 0), make_wgmma_wait(0, SCORES), make_wgmma_wait(2, SCORES)
    sums_done, other_sums_done = make_wgmma_wait(0, SUMS), make_wgmma_wait(0, MORE_SUMS)
    release_registers, claim_registers = make_register_release(c.registers[0]), make_register_claim(c.registers[1])
    online_softmax, normalize = make_online_softmax(WIDTH, FIRST), make_normalize(SINK)
    keep, cap = make_keep(WIDTH, WINDOWED), make_cap(WIDTH)
    pack, hold_scores = make_pack(kind.dtype, WORDS), pin(SCORES)
    store, store_others = (make_store_rows(kind.dtype, columns, columns, c.pairs) for columns in c.columns)
    load_sink, produce = element(kind.sink or kind.dtype).load, make_produce(c)
    _, _, fetch_q, _ = make_reader(kind.dtype, CHUNK, c.words)

    # of boxes of keys, of pieces of values, and of the probabilities that the four warps of `lead` write and those of `follow` read
    k_pipe, v_pipe, p_pipe = make_pipeline(K_SLOTS), make_pipeline(V_SLOTS, consumers=GROUPS), make_pipeline(1, consumers=4, producers=4)
    V_BARS = k_pipe.bytes

    @device_function
    def row_place(b, g, row, many, per, group, strides):
        """(where row number `row` of a head of the cache lies, its head)."""
        member, i = divide_remainder(row if row < many else 0, per)
        h = g * group + member
        return b * strides.batch + h * strides.head + i * strides.row, h

    @device_function
    def fetch_queries(q, base, b, g, row0, many, per, group, strides, thread):
        """The tile of queries into swizzled shared memory, 16 bytes a thread at a time; zeros behind the last row and the last element."""
        raw = cuda.local.array(RAW, u32)
        line, piece = thread >> 3, thread & 7
        for r in range(0, HEIGHT, LINES):
            row = row0 + line + r
            at, _ = row_place(b, g, row, many, per, group, strides)
            source = advance(q, at)
            for box in range(K_BOXES):
                column = piece * CHUNK + box * COLUMNS
                fetch_q(raw, 4 * box, source, column, i32(row < many and column < D))
            to = base + u32((line + r) * ROW) + u32(piece ^ (line & 7)) * 16
            for box in range(K_BOXES):
                store_shared_4u32(to + u32(box * BOX), raw[4 * box], raw[4 * box + 1], raw[4 * box + 2], raw[4 * box + 3])
        fence_async_shared()
        barrier_sync(1, 128 * GROUPS)

    def make_values(first_box, boxes, barrier):
        """Device function ``values(base, bars, state, at, least, last, thread)`` -> descriptor of a warpgroup's part of a piece,
        values of the keys from `at` on, once it is there; those of keys that are not from `least` to `last` become zero."""
        @device_function
        def values(base, bars, state, at, least, last, thread):
            v_pipe.consumer_wait(bars, state)
            to = base + (V_AT + first_box * SLICE) + state.stage * STAGE
            if at + PIECE > last or (WINDOWED and at < least):
                for part in range(thread, PIECE * CHUNK, 128):
                    j = at + (part >> 3)
                    if j >= last or j < least:
                        for box in range(boxes):
                            store_shared_4u32(to + u32(box * SLICE) + u32(part * 16), 0, 0, 0, 0)
                fence_async_shared()
                barrier_sync(barrier, 128)
            return descriptor(V_CONST, to)
        return values
    first_values, other_values = make_values(0, FIRST_BOXES, 2), make_values(FIRST_BOXES, V_BOXES - FIRST_BOXES, 3)

    @device_function
    def multiply_keys(scores, base, bars, state, thread):
        """The scores of the next step, on their way; gives the state of the last box, and the next one."""
        before = state
        for box in range(K_BOXES):
            k_pipe.consumer_wait(bars, state)
            multiply_k(scores, descriptor(by_row, base + u32(box * BOX)), descriptor(by_row, base + K_AT + state.stage * BOX),
                       i32(box > 0))
            if box > 0:
                older_done(scores)
                k_pipe.consumer_release(bars, before, thread)
            before, state = state, k_pipe.next(state)
        return before, state

    @device_function
    def to_scores(x, at, column, lows, highs, every, scale, softcap):
        """Of the products: what they are beside the scale, and which of them there are."""
        if ADJUSTED:
            if CAPPED:
                cap(x, scale, softcap)
            else:
                for i in range(SCORES):
                    x[i] = f32(x[i] * scale)
        if at + WIDTH > every[1] or (WINDOWED and at < every[0]):
            before = at + column
            keep(x, lows[0] - before, highs[0] - before, lows[1] - before, highs[1] - before)

    @device_function
    def tell(bars, state, factors, factors_at, lane):
        """The second warpgroup has what it needs of these rows: their factors, and before them what this warp has written."""
        if lane & 3 == 0:
            store_shared_f32(factors_at, factors[0])
            store_shared_f32(factors_at + 32, factors[1])
        fence_async_shared()
        cuda.syncwarp()
        if lane == 0:
            p_pipe.producer_commit(bars, state)

    @device_function
    def tell_step(words, rescale, base, bars, state, factors_at, warp, lane):
        """A step's probabilities in shared memory, and what sums are multiplied by before."""
        p_pipe.producer_acquire(bars, state)
        mine = warp * 16 + (lane & 15)
        for i in range(WIDTH // 16):
            piece = u32(i32(i * 2 + (lane >> 4)) ^ (mine & 7)) * 16
            stmatrix_x4(base + P_AT + u32(mine * ROW) + piece, words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3])
        tell(bars, state, rescale, factors_at, lane)
        return p_pipe.next(state)

    @device_function
    def leave(sums, columns, first_column, partial, part, r, row, many, column):
        """Sums of rows r and r + 8 to the workspace."""
        for h in range(2):
            if row + 8 * h < many:
                to = advance(partial, sum_at(part, r + 8 * h, first_column + column))
                for j in range(columns // 8):
                    store2(to, 8 * j, (sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]))

    @device_function
    def lead(partial, o, o_strides, sink, sink_step, lse, lse_strides, base, bars, where, ends, span_of, per, group, scaling, thread):
        """Scores, their exponentials, and the sums of the first columns."""
        k_bars, v_bars, p_bars = bars
        b, g, row0, many, part, parts = where
        first, count, least, last, keys, bounds = ends
        scale, softcap = scaling
        softmax_scale = f32(LOG2E) if ADJUSTED else scale
        scores, sums, words = cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32), cuda.local.array(WORDS, u32)
        row_max, ref_max, row_sum = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        rescale, most = cuda.local.array(2, f32), cuda.local.array(2, f32)
        lows, highs = cuda.local.array(2, i32), cuda.local.array(2, i32)
        lane, warp = thread & 31, thread >> 5
        r, column = warp * 16 + (lane >> 2), (lane & 3) * 2
        row = row0 + r
        factors_at = p_bars.full + 16 + u32(4 * r)
        slack = SLACK * rcp(softmax_scale)
        for i in range(SUMS):
            sums[i] = f32(0)
        for h in range(2):
            row_max[h], ref_max[h], row_sum[h], rescale[h] = f32(NEG_INF), f32(0), f32(0), f32(0)
            lows[h], highs[h] = i32(0), i32(0)
            if row + 8 * h < many:
                _, i = divide_remainder(row + 8 * h, per)
                begin, end = terms.key_range(i, i32(per.d), keys, bounds)
                lows[h], highs[h] = max(begin, least), min(end, last)
        k_state, v_state, p_state = k_pipe.consumer_start(), v_pipe.consumer_start(), p_pipe.producer_start()
        at, left = first, count
        if left > 0:
            before, k_state = multiply_keys(scores, base, k_bars, k_state, thread)
            scores_alone(scores)
            k_pipe.consumer_release(k_bars, before, thread)
            to_scores(scores, at, column, lows, highs, span_of, scale, softcap)
            online_softmax(scores, most, row_max, ref_max, row_sum, rescale, softmax_scale, slack)
            pack(words, scores)
            if FOLLOWED:
                p_state = tell_step(words, rescale, base, p_bars, p_state, factors_at, warp, lane)
        while left > 1:
            left = left - 1
            before, k_state = multiply_keys(scores, base, k_bars, k_state, thread)
            early, late = v_state, v_pipe.next(v_state)
            multiply_early(sums, words, first_values(base, v_bars, early, at, least, last, thread), 1)
            multiply_late(sums, words, first_values(base, v_bars, late, at + PIECE, least, last, thread), 1)
            v_state = v_pipe.next(late)
            at = at + WIDTH
            scores_first(scores)
            k_pipe.consumer_release(k_bars, before, thread)
            to_scores(scores, at, column, lows, highs, span_of, scale, softcap)
            rescaled = online_softmax(scores, most, row_max, ref_max, row_sum, rescale, softmax_scale, slack)
            sums_done(sums)
            v_pipe.consumer_release(v_bars, early, thread)
            v_pipe.consumer_release(v_bars, late, thread)
            hold_scores(scores)  # the words were the product's until now
            pack(words, scores)
            if rescaled:
                scale_rows(sums, FIRST_COLUMNS // 8, rescale)
            if FOLLOWED:
                p_state = tell_step(words, rescale, base, p_bars, p_state, factors_at, warp, lane)
        if left > 0:
            late = v_pipe.next(v_state)
            multiply_early(sums, words, first_values(base, v_bars, v_state, at, least, last, thread), 1)
            multiply_late(sums, words, first_values(base, v_bars, late, at + PIECE, least, last, thread), 1)
            sums_done(sums)
            v_pipe.consumer_release(v_bars, v_state, thread)
            v_pipe.consumer_release(v_bars, late, thread)

        for h in range(2):
            row_sum[h] = quad_sum(row_sum[h])
        if SPLIT:
            leave(sums, FIRST_COLUMNS, 0, partial, part, r, row, many, column)
            for h in range(2):
                if column == 0 and row + 8 * h < many:
                    top_at, total_at = score_at(part, parts, r + 8 * h)
                    partial[top_at] = ref_max[h] * LN2 if row_max[h] != NEG_INF else f32(NEG_INF)
                    partial[total_at] = row_sum[h]
        else:
            upper, head = row_place(b, g, row, many, per, group, o_strides)
            lower, other_head = row_place(b, g, row + 8, many, per, group, o_strides)
            own, other = f32(0), f32(0)
            if SINK:
                own, other = load_sink(sink, head * sink_step), load_sink(sink, other_head * sink_step)
            rescale[0], upper_lse = normalize(ref_max[0], row_sum[0], own)
            rescale[1], lower_lse = normalize(ref_max[1], row_sum[1], other)
            if WITH_LSE and column == 0:
                if row < many:
                    at, _ = row_place(b, g, row, many, per, group, lse_strides)
                    lse[at] = upper_lse
                if row + 8 < many:
                    at, _ = row_place(b, g, row + 8, many, per, group, lse_strides)
                    lse[at] = lower_lse
            if FOLLOWED:
                p_pipe.producer_acquire(p_bars, p_state)
                tell(p_bars, p_state, rescale, factors_at, lane)
            store(sums, rescale, advance(o, upper), advance(o, lower), o_strides.column, row < many, row + 8 < many, column)

    @device_function
    def follow(partial, o, o_strides, base, bars, where, ends, per, group, thread):
        """The sums of the other columns."""
        _, v_bars, p_bars = bars
        b, g, row0, many, part, _ = where
        at, left, least, last, _, _ = ends
        sums, rescale = cuda.local.array(MORE_SUMS, f32), cuda.local.array(2, f32)
        lane, warp = thread & 31, thread >> 5
        r, column = warp * 16 + (lane >> 2), (lane & 3) * 2
        row = row0 + r
        factors_at, of_p = p_bars.full + 16 + u32(4 * r), descriptor(by_row, base + P_AT)
        of_late = descriptor(by_row, base + (P_AT + 2 * PIECE))
        for i in range(MORE_SUMS):
            sums[i] = f32(0)
        v_state, p_state = v_pipe.consumer_start(), p_pipe.consumer_start()
        while left > 0:
            p_pipe.consumer_wait(p_bars, p_state)
            rescale[0], rescale[1] = load_shared_f32(factors_at), load_shared_f32(factors_at + 32)
            if any_lane(rescale[0] != f32(1) or rescale[1] != f32(1)):
                scale_rows(sums, OTHER_COLUMNS // 8, rescale)
            early, late = v_state, v_pipe.next(v_state)
            multiply_other(sums, of_p, other_values(base, v_bars, early, at, least, last, thread), i32(1))
            multiply_other(sums, of_late, other_values(base, v_bars, late, at + PIECE, least, last, thread), i32(1))
            v_state = v_pipe.next(late)
            older_done(sums)
            v_pipe.consumer_release(v_bars, early, thread)
            other_sums_done(sums)
            v_pipe.consumer_release(v_bars, late, thread)
            cuda.syncwarp()
            p_pipe.consumer_release(p_bars, p_state, lane)
            p_state = p_pipe.next(p_state)
            at, left = at + WIDTH, left - 1
        if SPLIT:
            leave(sums, OTHER_COLUMNS, FIRST_COLUMNS, partial, part, r, row, many, column)
        else:
            upper, _ = row_place(b, g, row, many, per, group, o_strides)
            lower, _ = row_place(b, g, row + 8, many, per, group, o_strides)
            p_pipe.consumer_wait(p_bars, p_state)
            rescale[0], rescale[1] = load_shared_f32(factors_at), load_shared_f32(factors_at + 32)
            step = FIRST_COLUMNS * o_strides.column
            store_others(sums, rescale, advance(o, i64(upper + step)), advance(o, i64(lower + step)), o_strides.column, row < many,
                         row + 8 < many, column)

    @jit(launch_bounds=(THREADS, c.blocks))
    def sdpa_decode_split_kv_wgmma(q, k, v, o, lse, partial, of_keys, table, sink, lines, tiles, heads_of, per, sizes, page, splits,
                                   q_strides, o_strides, key_step, table_strides, sink_step, lse_strides, bounds, scale, softcap):
        shared = cuda.shared.array(0, u32)
        k_map, v_map = tensor_map_address(k), tensor_map_address(v)
        base = (shared_address(shared, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        told = base + REST
        rings = told + (16 + FACTORS)
        bars = k_pipe.barriers(rings), v_pipe.barriers(rings + V_BARS), p_pipe.barriers(told)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(k_map)
            prefetch_tensor_map(v_map)
            k_pipe.init(bars[0])
            v_pipe.init(bars[1])
            p_pipe.init(bars[2])
            fence_mbarrier_init()
        cuda.syncthreads()
        wait_for_previous_grid()
        launch_dependent_grids()

        # the block's rows, and keys of its range that some row sees
        group, many = sizes.group, sizes.rows
        split, line = divide_remainder(cuda.blockIdx.x, lines)
        place, tile = divide_remainder(line, tiles)
        b, g = divide_remainder(place, heads_of)
        row0 = tile * HEIGHT
        _, _, _, keys = terms.lengths(b, Sequences(of_keys, of_keys, 0, key_step), i32(per.d), sizes.capacity)
        oldest, every_end = terms.key_range(0, i32(per.d), keys, bounds)
        every_begin, _ = terms.key_range(i32(per.d) - 1, i32(per.d), keys, bounds)
        first, last = range_of(split, splits, oldest, keys)
        first, last, least = uniform(first), uniform(last), uniform(max(first, oldest))
        count = (max(last - first, 0) + (WIDTH - 1)) >> STEP_LOG
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(k_map, v_map, base, bars, (first, count, last, b, g), Paging(table, table_strides, page, sizes.pages))
        else:
            claim_registers()
            thread = tid & 127
            fetch_queries(q, base, b, g, row0, many, per, group, q_strides, tid - 128)
            part, parts = i64(line) * splits[0] + split, i64(lines.d) * splits[0]
            where, ends = (b, g, row0, many, part, parts), (first, count, least, last, keys, bounds)
            every = (uniform(every_begin), uniform(min(every_end, last)))
            if role == 1:
                lead(partial, o, o_strides, sink, sink_step, lse, lse_strides, base, bars, where, ends, every, per, group, (scale, softcap),
                     thread)
            if FOLLOWED and role == 2:
                follow(partial, o, o_strides, base, bars, where, ends, per, group, thread)
    return sdpa_decode_split_kv_wgmma


def build(problem, device, config):
    """One launch, or two."""
    p, pointer, splits = problem, element(problem.dtype).pointer, config.splits
    rows = config.page or WIDTH
    *strides, bounds, scale, softcap = cache_arguments(p)
    if not config.adjusted:
        scale = Argument("float32", p.scale * LOG2E)
    sink, _ = sink_arguments(p)
    arguments = (Argument(pointer, "q"), array_map(p, "k_cache", p.k_cache, rows), array_map(p, "v_cache", p.v_cache, min(rows, PIECE)),
                 Argument(pointer, "o"), lse_argument(p), Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"),
                 Argument("int32*", "page_table"), sink, *shape_arguments(p, HEIGHT), Argument(Divisor, divisor(max(p.page, 1))),
                 Argument(Divisor, divisor(splits)), *(Argument(Strides, p.strides(t)) for t in (p.q, p.o)), *strides, bounds, scale,
                 softcap)
    launch = Launch(kernel(replace(config, splits=min(splits, 2))), (lines_of(p, HEIGHT) * splits, 1, 1), (config.threads, 1, 1), arguments,
                    shared=config.shared, dependent=True)
    return (launch, merge_launch(p, config.parts, splits, True)) if splits > 1 else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")
