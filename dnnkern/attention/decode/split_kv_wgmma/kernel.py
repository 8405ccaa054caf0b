"""The kernel of `split_kv_wgmma`: its producer, and the warpgroups `lead`, which has the scores, and `follow`."""
import functools

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.barrier import barrier_sync
from ....device.convert import element
from ....device.dependent import launch_dependent_grids, wait_for_previous_grid
from ....device.fastmath import rcp
from ....device.groups import make_reader
from ....device.index import divide_remainder
from ....device.mbarrier import fence_async_shared, fence_mbarrier_init
from ....device.pipeline import make_pipeline
from ....device.registers import make_register_claim, make_register_release
from ....device.stmatrix import stmatrix_x4
from ....device.tma import make_tma_load, prefetch_tensor_map, tensor_map_address
from ....device.vec import advance, load_shared_f32, pin, shared_address, store2, store_shared_4u32, store_shared_f32
from ....device.warp import any_lane, elect, uniform
from ....device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ....engine.hopper import ROW
from ..._fragments import SLACK, make_normalize, make_online_softmax, make_pack, make_store_rows, quad_sum, scale_rows
from ..._modifiers import make_cap, make_keep
from ..._scores import LN2, LOG2E, NEG_INF, between, make_terms
from ..._wgmma import ALIGNMENT, COLUMNS
from .._parameters import Lengths, Outputs, Paging, Scoring
from .._ranges import make_places, make_range
from .config import BOX, CHUNK, FACTORS, HEIGHT, PIECE, SLICE, WIDTH
from .parameters import Maps, Shared, Softmax, Span, Thread, Tile

FIRST = 32  # keys of a step that are looked at first


@functools.cache
def kernel(config):
    """A tile of 64 rows and a range of keys per block."""
    c, kind, terms = config, config.kind, make_terms(config.kind)
    (K_BOXES, V_BOXES), (FIRST_COLUMNS, OTHER_COLUMNS), (K_STAGES, V_STAGES) = c.boxes, c.columns, c.rings
    (P_AT, K_AT, V_AT, REST), GROUPS, STAGE, WINDOWED, FOLLOWED = c.places, c.groups, c.stage, c.windowed, c.groups > 1
    k_pipe, v_pipe = make_pipeline(K_STAGES), make_pipeline(V_STAGES, consumers=GROUPS)
    p_pipe = make_pipeline(1, consumers=4, producers=4)  # the warps of `follow` and of `lead`

    # ---- producer

    PAGED, K_ROWS = c.page > 0, c.page or WIDTH  # keys of a box
    V_ROWS, PAGES, load = min(K_ROWS, PIECE), WIDTH // K_ROWS, make_tma_load(4)

    @device_function
    def look_up(pages, j0, end, b, paging):
        """Pages of a step's keys, as the table has them; they are not looked at before they are needed, a step later."""
        if PAGED:
            for u in range(PAGES):
                j = j0 + u * K_ROWS
                number, _ = divide_remainder(j if j < end else 0, paging.page)
                pages[u] = paging.table[b * paging.strides.batch + number * paging.strides.page]

    @device_function
    def load_box(to, array, bar, column, j, tile, page, paging):
        """Keys j and on of 64 columns; out-of-range page indices are clamped."""
        image, row = tile.b, j
        if PAGED:
            _, row = divide_remainder(j, paging.page)
            image = between(page, 0, paging.pages - 1)
        load(to, array, bar, column, row, tile.g, image)

    @device_function
    def produce(maps, shared, tile, span, paging):
        """All of a range, step by step, values a step after their keys."""
        k_state, v_state = k_pipe.producer_start(), v_pipe.producer_start()
        ahead, current = cuda.local.array(PAGES, i32), cuda.local.array(PAGES, i32)
        if span.count > 0:
            look_up(ahead, span.first, span.end, tile.b, paging)
        for n in range(span.count + 1 if span.count > 0 else 0):
            key = span.first + n * WIDTH
            if n < span.count:
                for box in range(K_BOXES):
                    k_pipe.producer_acquire(shared.k, k_state)
                    bar = k_pipe.producer_expect(shared.k, k_state, BOX)
                    to = shared.base + K_AT + k_state.stage * BOX
                    for u in range(PAGES):
                        load_box(to + u32(u * K_ROWS * ROW), maps.k, bar, box * COLUMNS, key + u * K_ROWS, tile, ahead[u], paging)
                    k_state = k_pipe.next(k_state)
            if n > 0:
                for piece in range(WIDTH // PIECE):
                    v_pipe.producer_acquire(shared.v, v_state)
                    bar = v_pipe.producer_expect(shared.v, v_state, STAGE)
                    to = shared.base + V_AT + v_state.stage * STAGE
                    for box in range(V_BOXES):
                        for u in range(PIECE // V_ROWS):
                            line = piece * PIECE + u * V_ROWS
                            load_box(to + u32(box * SLICE + u * V_ROWS * ROW), maps.v, bar, box * COLUMNS, key + (line - WIDTH), tile,
                                     current[line // K_ROWS], paging)
                    v_state = v_pipe.next(v_state)
            for u in range(PAGES):
                current[u] = ahead[u]
            look_up(ahead, key + WIDTH, span.end, tile.b, paging)

    # ---- rows

    RAW, LINES, D = 4 * K_BOXES, 16 * GROUPS, c.d
    _, _, fetch_q, _ = make_reader(kind.dtype, CHUNK, c.words)

    @device_function
    def row_at(tile, row, shape, strides):
        """(where row number `row` of a head of the cache lies, its query head)."""
        member, i = divide_remainder(row if row < shape.rows else 0, shape.queries)
        h = tile.g * shape.group + member
        return tile.b * strides.batch + h * strides.head + i * strides.row, h

    @device_function
    def share_queries(q, strides, shared, tile, shape, thread):
        """The tile of queries into swizzled shared memory, 16 bytes per thread at a time; zeros past the last row and the last element."""
        raw = cuda.local.array(RAW, u32)
        line, piece = thread >> 3, thread & 7
        for r in range(0, HEIGHT, LINES):
            row = tile.row0 + line + r
            at, _ = row_at(tile, row, shape, strides)
            source = advance(q, at)
            for box in range(K_BOXES):
                column = piece * CHUNK + box * COLUMNS
                fetch_q(raw, 4 * box, source, column, row < shape.rows and column < D)
            to = shared.base + u32((line + r) * ROW) + u32(piece ^ (line & 7)) * 16
            for box in range(K_BOXES):
                store_shared_4u32(to + u32(box * BOX), raw[4 * box], raw[4 * box + 1], raw[4 * box + 2], raw[4 * box + 3])
        fence_async_shared()
        barrier_sync(1, 128 * GROUPS)

    # ---- scores

    by_row, SCORES, ADJUSTED, CAPPED = matrix_descriptor(16, 1024, 128), WIDTH // 2, c.adjusted, kind.softcap
    multiply_k, older_done = make_wgmma(WIDTH, kind.dtype, steps=4), make_wgmma_wait(1, 0)
    keep, cap = make_keep(WIDTH, WINDOWED), make_cap(WIDTH)

    @device_function
    def start_scores(scores, shared, state, thread):
        """Issue q k' of a step; the states of its last box, which `consumer_release` takes once it is done, and of the next one."""
        last = state
        for box in range(K_BOXES):
            k_pipe.consumer_wait(shared.k, state)
            multiply_k(scores, descriptor(by_row, shared.base + u32(box * BOX)),
                       descriptor(by_row, shared.base + K_AT + state.stage * BOX), i32(box > 0))
            if box > 0:
                older_done(scores)
                k_pipe.consumer_release(shared.k, last, thread.number)
            last, state = state, k_pipe.next(state)
        return last, state

    @device_function
    def mask_scores(x, key, softmax, span, scoring, thread):
        """Products become scores: scale, cap, mask."""
        if ADJUSTED:
            if CAPPED:
                cap(x, scoring.scale, scoring.softcap)
            else:
                for i in range(SCORES):
                    x[i] = f32(x[i] * scoring.scale)
        if key + WIDTH > span.full_end or (WINDOWED and key < span.full_begin):
            before = key + thread.column
            keep(x, softmax.begins[0] - before, softmax.ends[0] - before, softmax.begins[1] - before, softmax.ends[1] - before)

    # ---- values

    V_CONST, FIRST_BOXES = matrix_descriptor(SLICE, 1024, 128), FIRST_COLUMNS // COLUMNS if FOLLOWED else V_BOXES
    multiply_early, multiply_late = (make_wgmma(FIRST_COLUMNS, kind.dtype, steps=2, a="registers", a_words=steps, b_major="mn", b_step=128)
                                     for steps in ((0, 1), (2, 3)))
    multiply_other = make_wgmma(OTHER_COLUMNS, kind.dtype, steps=2, b_major="mn", b_step=128) if FOLLOWED else None

    def make_values(first_box, boxes, barrier):
        """Device function ``values(shared, state, key, span, thread)`` -> descriptor of a warpgroup's part of a piece, once it is there:
        values of the keys from `key` on. Those that no query attends to become zero: p is 0 there, but 0 times NaN is NaN."""
        @device_function
        def values(shared, state, key, span, thread):
            v_pipe.consumer_wait(shared.v, state)
            to = shared.base + (V_AT + first_box * SLICE) + state.stage * STAGE
            if key + PIECE > span.end or (WINDOWED and key < span.begin):
                for part in range(thread.number, PIECE * CHUNK, 128):
                    j = key + (part >> 3)
                    if j >= span.end or j < span.begin:
                        for box in range(boxes):
                            store_shared_4u32(to + u32(box * SLICE) + u32(part * 16), 0, 0, 0, 0)
                fence_async_shared()
                barrier_sync(barrier, 128)
            return descriptor(V_CONST, to)
        return values
    first_values, other_values = make_values(0, FIRST_BOXES, 2), make_values(FIRST_BOXES, V_BOXES - FIRST_BOXES, 3)

    @device_function
    def start_values(acc, words, shared, state, key, span, thread):
        """Issue acc += p v of the first columns of a step; the state of its second piece."""
        late = v_pipe.next(state)
        multiply_early(acc, words, first_values(shared, state, key, span, thread), 1)
        multiply_late(acc, words, first_values(shared, late, key + PIECE, span, thread), 1)
        return late

    # ---- from `lead` to `follow`

    @device_function
    def publish(factors, shared, state, thread):
        """Tell `follow` the factors of these rows, and that what this warp has written before is there."""
        if thread.lane & 3 == 0:
            store_shared_f32(thread.factors_at, factors[0])
            store_shared_f32(thread.factors_at + 32, factors[1])
        fence_async_shared()
        cuda.syncwarp()
        if thread.lane == 0:
            p_pipe.producer_commit(shared.p, state)

    @device_function
    def publish_step(words, rescale, shared, state, thread):
        """A step's probabilities into shared memory, and what accumulators are multiplied by before; the next state."""
        p_pipe.producer_acquire(shared.p, state)
        line = thread.warp * 16 + (thread.lane & 15)
        for i in range(WIDTH // 16):
            piece = u32((i * 2 + (thread.lane >> 4)) ^ (line & 7)) * 16
            stmatrix_x4(shared.base + P_AT + u32(line * ROW) + piece, words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3])
        publish(rescale, shared, state, thread)
        return p_pipe.next(state)

    @device_function
    def receive_factors(factors, thread):
        factors[0], factors[1] = load_shared_f32(thread.factors_at), load_shared_f32(thread.factors_at + 32)

    # ---- output

    SPLIT, SINK, WITH_LSE, (values_at, scores_at) = c.splits > 1, bool(kind.sink), c.lse, make_places(c.parts)
    store, store_others = (make_store_rows(kind.dtype, columns, columns, c.pairs) for columns in c.columns)
    load_sink, normalize = element(kind.sink or kind.dtype).load, make_normalize(SINK)

    @device_function
    def leave_rows(acc, columns, first_column, partial, tile, shape, thread):
        """Accumulators to the workspace."""
        for h in range(2):
            if thread.head_row + 8 * h < shape.rows:
                to = advance(partial, values_at(tile.part, thread.row + 8 * h, first_column + thread.column))
                for j in range(columns // 8):
                    store2(to, 8 * j, (acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]))

    @device_function
    def leave_scores(softmax, partial, tile, shape, thread):
        """row_max and row_sum to the workspace."""
        for h in range(2):
            if thread.column == 0 and thread.head_row + 8 * h < shape.rows:
                max_at, sum_at = scores_at(tile.part, tile.parts, thread.row + 8 * h)
                partial[max_at] = softmax.ref_max[h] * LN2 if softmax.row_max[h] != NEG_INF else f32(NEG_INF)
                partial[sum_at] = softmax.row_sum[h]

    @device_function
    def finish_rows(softmax, outputs, tile, shape, thread):
        """`rescale` becomes what accumulators are multiplied by; lse. Where the two rows of o lie."""
        row, strides, sink, step = thread.head_row, outputs.lse_strides, outputs.sink, outputs.sink_step
        upper, head = row_at(tile, row, shape, outputs.o_strides)
        lower, other_head = row_at(tile, row + 8, shape, outputs.o_strides)
        upper_sink, lower_sink = f32(0), f32(0)
        if SINK:
            upper_sink, lower_sink = load_sink(sink, head * step), load_sink(sink, other_head * step)
        softmax.rescale[0], upper_lse = normalize(softmax.ref_max[0], softmax.row_sum[0], upper_sink)
        softmax.rescale[1], lower_lse = normalize(softmax.ref_max[1], softmax.row_sum[1], lower_sink)
        if WITH_LSE and thread.column == 0:
            if row < shape.rows:
                at, _ = row_at(tile, row, shape, strides)
                outputs.lse[at] = upper_lse
            if row + 8 < shape.rows:
                at, _ = row_at(tile, row + 8, shape, strides)
                outputs.lse[at] = lower_lse
        return upper, lower

    # ---- the warpgroups

    ACC, OTHER_ACC, WORDS = FIRST_COLUMNS // 2, OTHER_COLUMNS // 2, WIDTH // 4
    scores_alone, scores_first = make_wgmma_wait(0, SCORES), make_wgmma_wait(2, SCORES)
    acc_done, other_acc_done = make_wgmma_wait(0, ACC), make_wgmma_wait(0, OTHER_ACC)
    online_softmax, pack, hold_scores = make_online_softmax(WIDTH, FIRST), make_pack(kind.dtype, WORDS), pin(SCORES)

    @device_function
    def begin_rows(softmax, span, shape, bounds, thread):
        """No key yet; which keys the thread's rows attend to."""
        for h in range(2):
            softmax.row_max[h], softmax.ref_max[h], softmax.row_sum[h], softmax.rescale[h] = f32(NEG_INF), f32(0), f32(0), f32(0)
            softmax.begins[h], softmax.ends[h] = i32(0), i32(0)
            if thread.head_row + 8 * h < shape.rows:
                _, i = divide_remainder(thread.head_row + 8 * h, shape.queries)
                begin, end = terms.key_range(i, i32(shape.queries.d), span.keys, bounds)
                softmax.begins[h], softmax.ends[h] = max(begin, span.begin), min(end, span.end)

    @device_function
    def lead(partial, outputs, shared, tile, span, shape, bounds, scoring, thread):
        """Scores, their softmax, and the accumulators of the first columns."""
        softmax_scale = f32(LOG2E) if ADJUSTED else scoring.scale
        scores, acc, words = cuda.local.array(SCORES, f32), cuda.local.array(ACC, f32), cuda.local.array(WORDS, u32)
        s = Softmax(cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32),
                    cuda.local.array(2, f32), cuda.local.array(2, i32), cuda.local.array(2, i32))
        slack = SLACK * rcp(softmax_scale)
        for i in range(ACC):
            acc[i] = f32(0)
        begin_rows(s, span, shape, bounds, thread)
        k_state, v_state, p_state = k_pipe.consumer_start(), v_pipe.consumer_start(), p_pipe.producer_start()
        key, left = span.first, span.count

        # scores of the first step: no values to add yet
        if left > 0:
            last, k_state = start_scores(scores, shared, k_state, thread)
            scores_alone(scores)
            k_pipe.consumer_release(shared.k, last, thread.number)
            mask_scores(scores, key, s, span, scoring, thread)
            online_softmax(scores, s.most, s.row_max, s.ref_max, s.row_sum, s.rescale, softmax_scale, slack)
            pack(words, scores)
            if FOLLOWED:
                p_state = publish_step(words, s.rescale, shared, p_state, thread)

        # scores of a step beside the values of the one before
        while left > 1:
            left = left - 1
            last, k_state = start_scores(scores, shared, k_state, thread)
            early, late = v_state, start_values(acc, words, shared, v_state, key, span, thread)
            v_state = v_pipe.next(late)
            key = key + WIDTH
            scores_first(scores)
            k_pipe.consumer_release(shared.k, last, thread.number)
            mask_scores(scores, key, s, span, scoring, thread)
            rescaled = online_softmax(scores, s.most, s.row_max, s.ref_max, s.row_sum, s.rescale, softmax_scale, slack)
            acc_done(acc)
            v_pipe.consumer_release(shared.v, early, thread.number)
            v_pipe.consumer_release(shared.v, late, thread.number)
            hold_scores(scores)  # the words were the product's until now
            pack(words, scores)
            if rescaled:
                scale_rows(acc, FIRST_COLUMNS // 8, s.rescale)
            if FOLLOWED:
                p_state = publish_step(words, s.rescale, shared, p_state, thread)

        # values of the last step
        if left > 0:
            late = start_values(acc, words, shared, v_state, key, span, thread)
            acc_done(acc)
            v_pipe.consumer_release(shared.v, v_state, thread.number)
            v_pipe.consumer_release(shared.v, late, thread.number)
        for h in range(2):
            s.row_sum[h] = quad_sum(s.row_sum[h])
        if SPLIT:
            leave_rows(acc, FIRST_COLUMNS, 0, partial, tile, shape, thread)
            leave_scores(s, partial, tile, shape, thread)
        else:
            upper, lower = finish_rows(s, outputs, tile, shape, thread)
            if FOLLOWED:
                p_pipe.producer_acquire(shared.p, p_state)
                publish(s.rescale, shared, p_state, thread)
            store(acc, s.rescale, advance(outputs.o, upper), advance(outputs.o, lower), outputs.o_strides.column,
                  thread.head_row < shape.rows, thread.head_row + 8 < shape.rows, thread.column)

    @device_function
    def follow(partial, outputs, shared, tile, span, shape, thread):
        """The accumulators of the other columns, with the probabilities of `lead`."""
        acc, rescale = cuda.local.array(OTHER_ACC, f32), cuda.local.array(2, f32)
        of_p, of_late = descriptor(by_row, shared.base + P_AT), descriptor(by_row, shared.base + (P_AT + 2 * PIECE))
        for i in range(OTHER_ACC):
            acc[i] = f32(0)
        v_state, p_state = v_pipe.consumer_start(), p_pipe.consumer_start()
        key, left = span.first, span.count
        while left > 0:
            p_pipe.consumer_wait(shared.p, p_state)
            receive_factors(rescale, thread)
            if any_lane(rescale[0] != f32(1) or rescale[1] != f32(1)):
                scale_rows(acc, OTHER_COLUMNS // 8, rescale)
            early, late = v_state, v_pipe.next(v_state)
            multiply_other(acc, of_p, other_values(shared, early, key, span, thread), 1)
            multiply_other(acc, of_late, other_values(shared, late, key + PIECE, span, thread), 1)
            v_state = v_pipe.next(late)
            older_done(acc)
            v_pipe.consumer_release(shared.v, early, thread.number)
            other_acc_done(acc)
            v_pipe.consumer_release(shared.v, late, thread.number)
            cuda.syncwarp()
            p_pipe.consumer_release(shared.p, p_state, thread.lane)
            p_state = p_pipe.next(p_state)
            key, left = key + WIDTH, left - 1
        if SPLIT:
            leave_rows(acc, OTHER_COLUMNS, FIRST_COLUMNS, partial, tile, shape, thread)
        else:
            strides = outputs.o_strides
            upper, _ = row_at(tile, thread.head_row, shape, strides)
            lower, _ = row_at(tile, thread.head_row + 8, shape, strides)
            p_pipe.consumer_wait(shared.p, p_state)
            receive_factors(rescale, thread)
            step = FIRST_COLUMNS * strides.column
            store_others(acc, rescale, advance(outputs.o, upper + step), advance(outputs.o, lower + step), strides.column,
                         thread.head_row < shape.rows, thread.head_row + 8 < shape.rows, thread.column)

    # ---- the kernel

    range_of, LOG_WIDTH, V_BARS = make_range(kind, WIDTH), WIDTH.bit_length() - 1, k_pipe.bytes
    release_registers, claim_registers = make_register_release(c.registers[0]), make_register_claim(c.registers[1])

    @device_function
    def span_of(split, splits, b, shape, lengths):
        """The `Span` of a block."""
        keys, oldest, first, end = range_of(split, splits, b, shape, lengths)
        queries = i32(shape.queries.d)
        _, full_end = terms.key_range(0, queries, keys, lengths.bounds)
        full_begin, _ = terms.key_range(queries - 1, queries, keys, lengths.bounds)
        first, end, begin = uniform(first), uniform(end), uniform(max(first, oldest))
        count = (max(end - first, 0) + (WIDTH - 1)) >> LOG_WIDTH
        return Span(first, count, begin, end, keys, full_begin, full_end)

    @jit(launch_bounds=(c.threads, c.blocks))
    def sdpa_decode_split_kv_wgmma(q, k, v, o, lse, partial, of_keys, table, sink, shape, page, splits, q_strides, o_strides, key_step,
                                   table_strides, sink_step, lse_strides, bounds, scale, softcap):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(k), tensor_map_address(v))
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        rings = base + (REST + 16 + FACTORS)
        shared = Shared(base, k_pipe.barriers(rings), v_pipe.barriers(rings + V_BARS), p_pipe.barriers(base + REST))
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(maps.k)
            prefetch_tensor_map(maps.v)
            k_pipe.init(shared.k)
            v_pipe.init(shared.v)
            p_pipe.init(shared.p)
            fence_mbarrier_init()
        cuda.syncthreads()
        wait_for_previous_grid()
        launch_dependent_grids()

        split, number = divide_remainder(cuda.blockIdx.x, shape.all_tiles)
        head, row_tile = divide_remainder(number, shape.tiles)
        b, g = divide_remainder(head, shape.kv_heads)
        span = span_of(split, splits, b, shape, Lengths(of_keys, key_step, bounds))
        tile = Tile(b, g, row_tile * HEIGHT, i64(number) * splits.d + split, i64(shape.all_tiles.d) * splits.d)
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(maps, shared, tile, span, Paging(table, table_strides, page, shape.pages))
        else:
            claim_registers()
            share_queries(q, q_strides, shared, tile, shape, tid - 128)
            span = Span(span.first, span.count, span.begin, span.end, span.keys, uniform(span.full_begin),
                        uniform(min(span.full_end, span.end)))
            thread, lane, warp = tid & 127, tid & 31, (tid & 127) >> 5
            row = warp * 16 + (lane >> 2)
            own = Thread(thread, warp, lane, row, tile.row0 + row, (lane & 3) * 2, shared.p.full + 16 + u32(4 * row))
            outputs = Outputs(o, o_strides, sink, sink_step, lse, lse_strides)
            if role == 1:
                lead(partial, outputs, shared, tile, span, shape, bounds, Scoring(scale, softcap, None, None), own)
            if FOLLOWED and role == 2:
                follow(partial, outputs, shared, tile, span, shape, own)
    return sdpa_decode_split_kv_wgmma
