"""The kernel of `flash_wgmma`, forward: its producer and the steps of its consumers; `_parts` has what they pass to each other."""
import functools
from dataclasses import replace

from ....device import cuda, device_function, f32, i32, jit, u32
from ....device.barrier import barrier_sync
from ....device.convert import element
from ....device.dependent import launch_dependent_grids, wait_for_previous_grid
from ....device.fastmath import rcp
from ....device.index import divide_remainder, divisor
from ....device.ldmatrix import ldmatrix_x4
from ....device.mbarrier import fence_async_shared, fence_mbarrier_init
from ....device.pipeline import make_pipeline
from ....device.registers import make_register_claim, make_register_release
from ....device.scheduler import make_channel, make_dynamic, make_longest_first, make_static
from ....device.stmatrix import stmatrix_x4
from ....device.tma import (bulk_commit, make_bulk_wait, make_bulk_wait_read, prefetch_tensor_map, tensor_map_address, tma_load_4d,
                            tma_store_4d)
from ....device.vec import advance, as_u32, load_shared_4u32, pin, shared_address, store4, store_shared_4u32
from ....device.warp import elect, uniform
from ....device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ....engine.hopper import GROUP, ROW
from ....host.dtypes import ITEMSIZE
from ..._fragments import (SLACK, make_apply_mask_tile, make_normalize_rows, make_online_softmax, make_pack, make_row_words, make_store,
                           scale_rows)
from ..._modifiers import make_add_bias, make_adjust, make_apply_dropout, make_apply_mask
from ..._parameters import Sequences
from ..._scores import LOG2E, NEG_INF, make_extent, make_terms, make_tile
from ..._wgmma import ALIGNMENT, COLUMNS
from .._parts import Dropout, Maps, Outputs, Query, Scoring, Shared, Softmax, Span, Thread, Work


@functools.cache
def counter_kernel():
    """Sets the tile scheduler's counter to zero."""
    @jit(launch_bounds=32)
    def sdpa_fwd_tiles(counter):
        launch_dependent_grids()
        wait_for_previous_grid()
        if cuda.threadIdx.x == 0:
            counter[0] = u32(0)
    return sdpa_fwd_tiles


@functools.cache
def kernel(config):
    """A tile of 64 queries per warpgroup."""
    kind, s = config.kind, config.shape
    terms, tile_of, lengths = make_terms(kind), make_tile(kind.packed, s.height), make_extent(kind)
    GROUPS, WIDTH, HEIGHT, STAGES, WARPS = s.groups, s.width, s.height, config.stages, 4 * s.groups
    STEPS, E, K_BYTES, V_BYTES, Q_BYTES = config.steps, config.columns, *config.stage, config.tiles[0]
    (K_BOXES, V_BOXES), (O_AT, K_AT, V_AT, BARS) = config.boxes, config.places
    Q_BOX, BOX, SCORES, ACC, WORDS = HEIGHT * ROW, WIDTH * ROW, WIDTH // 2, E // 2, WIDTH // 4
    # q: whether it is held in registers, and so leaves shared memory at once, where o has memory of its own
    HELD, APART, EARLY = s.held, config.apart, s.held and config.apart
    PACKED, ADJUSTED, DROPOUT, STAGED = kind.packed, config.adjusted, kind.dropout, config.staged
    PUBLISHED, TMA_STORE = config.drawn or PACKED, config.by_tma  # numbers of tiles, by the producer; o through TMA
    BIAS_AT, BIAS_BYTES, BIAS_BOX = config.bias_place, config.bias_stage, HEIGHT * ROW
    BIAS_COLUMNS = ROW // ITEMSIZE[kind.bias] if STAGED else 1
    MASKED, BY_ROWS, MASK_AT, MASK_STAGE = bool(config.mask), config.mask == "rows", config.mask_place, config.mask_stage
    MASK_BYTES, BESIDE = (HEIGHT if BY_ROWS else 1) * WIDTH * MASKED, STAGED or MASKED
    q_pipe = make_pipeline(1, consumers=WARPS if EARLY else GROUPS)
    k_pipe, v_pipe = make_pipeline(STAGES, consumers=WARPS if BESIDE else GROUPS), make_pipeline(STAGES, consumers=GROUPS)

    # ---- tiles

    SKIPS = kind.documents >= 0
    schedule, channel = make_dynamic() if config.drawn else make_static(), make_channel(WARPS)
    locate, BY_WIDTH = make_longest_first(1, config.by_head), divisor(WIDTH)

    @device_function
    def tile_at(t, work):
        """(sequence, head, head of k and v, first query) of tile number t."""
        image, h, kv_head, tile = locate(t, work.order)
        sequence, i0 = tile_of(image, tile, work.sequences.rows, work.sequences.row_step, work.sizes.batch, work.sizes.rows)
        return sequence, h, kv_head, i0

    @device_function
    def span_of(i0, sequence, work):
        """The `Span` of a tile."""
        first_row, rows, first_key, keys = lengths(sequence, work.sequences, work.sizes.batch, work.sizes.rows, work.sizes.keys)
        if PACKED and sequence == work.sizes.batch:
            keys = 0
        begin, full_end = terms.key_range(i0, rows, keys, work.bounds)
        if MASKED:  # TMA begins at multiples of 16 bytes
            begin = begin & -16
        elif DROPOUT or STAGED:
            begin = begin & -8
        full_begin, end = terms.key_range(min(i0 + HEIGHT, rows) - 1, rows, keys, work.bounds)
        count, _ = divide_remainder(max(min(end, keys) - begin, 1) + (WIDTH - 1), BY_WIDTH)
        return Span(first_row, first_key, rows, keys, terms.shift(rows, keys), begin, count, full_begin, full_end)

    @device_function
    def next_there(key, i0, image, span, work):
        """The last tile of keys from this one down whose documents may be those of the queries; before `span.begin` if there is none."""
        while key >= span.begin and not terms.is_there(work.operands, image, i0, HEIGHT, key, WIDTH):
            key = key - WIDTH
        return key

    # ---- producer

    @device_function
    def load_boxes(to, boxes, box, array, bar, row, h, image):
        """A tile of q, k or v."""
        for b in range(boxes):
            tma_load_4d(to + u32(b * box), array, bar, b * COLUMNS, row, h, image)

    @device_function
    def load_bias(to, array, bar, key, row, h, image):
        """A tile of the bias."""
        for b in range(WIDTH // BIAS_COLUMNS):
            tma_load_4d(to + u32(b * BIAS_BOX), array, bar, key + b * BIAS_COLUMNS, row, h, image)

    @device_function
    def produce(maps, shared, work, bias_strides, counter):
        q_state, k_state, v_state = q_pipe.producer_start(), k_pipe.producer_start(), v_pipe.producer_start()
        tile_state = channel.pipe.producer_start()
        t = schedule.first()
        while t < work.tiles:
            sequence, h, kv_head, i0 = tile_at(t, work)
            span = span_of(i0, sequence, work)
            image, left = 0 if PACKED else sequence, span.count
            if PACKED and (i0 < 0 or i0 >= span.rows):  # more tiles are counted than sequences have
                left = -1
            elif PUBLISHED:
                tile_state = channel.send(shared.tile, tile_state, t, sequence, i0)
            following = schedule.next(t, counter)
            key = span.first_key + span.begin + (span.count - 1) * WIDTH
            if SKIPS:  # the first one is worked on whatever it has
                key = max(next_there(key, i0, image, span, work), span.begin)
            of_values = key
            bias_image, bias_head = image if bias_strides.batch else 0, h if bias_strides.head else 0
            while left >= 0:
                if left > 0:
                    k_pipe.producer_acquire(shared.k, k_state)
                    bar = k_pipe.producer_expect(shared.k, k_state, K_BYTES + BIAS_BYTES + MASK_BYTES)
                    load_boxes(shared.base + K_AT + k_state.stage * K_BYTES, K_BOXES, BOX, maps.k, bar, key, kv_head, image)
                    if STAGED:
                        load_bias(shared.base + BIAS_AT + k_state.stage * BIAS_BYTES, maps.bias, bar, key, i0, bias_head, bias_image)
                    if MASKED:
                        tma_load_4d(shared.base + MASK_AT + k_state.stage * MASK_STAGE, maps.bias, bar, key, i0 if BY_ROWS else 0,
                                    bias_head, bias_image)
                    k_state = k_pipe.next(k_state)
                if left == span.count:
                    q_pipe.producer_acquire(shared.q, q_state)
                    bar = q_pipe.producer_expect(shared.q, q_state, Q_BYTES)
                    load_boxes(shared.base, K_BOXES, Q_BOX, maps.q, bar, span.first_row + i0, h, image)
                    q_state = q_pipe.next(q_state)
                else:  # values are needed a step later than their keys
                    if not SKIPS:
                        of_values = key + WIDTH
                    v_pipe.producer_acquire(shared.v, v_state)
                    bar = v_pipe.producer_expect(shared.v, v_state, V_BYTES)
                    load_boxes(shared.base + V_AT + v_state.stage * V_BYTES, V_BOXES, BOX, maps.v, bar, of_values, kv_head, image)
                    v_state = v_pipe.next(v_state)
                if SKIPS:
                    of_values = key
                    key = next_there(key - WIDTH, i0, image, span, work) if left > 0 else key
                    left = -1 if left <= 0 else 1 if key >= span.begin else 0
                else:
                    left, key = left - 1, key - WIDTH
            t = following
        if PUBLISHED:  # there are no more
            channel.send(shared.tile, tile_state, work.tiles, 0, 0)

    # ---- consumers: scores

    by_row = matrix_descriptor(16, 1024, 128)
    q_steps, k_steps = (tuple(step // 4 * (box // 16) + step % 4 * 2 for step in range(STEPS)) for box in (Q_BOX, BOX))
    multiply_k = make_wgmma(WIDTH, kind.dtype, steps=STEPS, a="registers" if HELD else "shared", a_step=q_steps, b_step=k_steps)
    apply_mask = make_apply_mask(WIDTH, config.left, config.right)
    add_bias = make_add_bias(kind.bias, WIDTH, BIAS_BOX) if STAGED else None
    adjust = make_adjust(replace(kind, bias="") if STAGED else kind, WIDTH) if ADJUSTED else None
    apply_mask_tile = make_apply_mask_tile(WIDTH, config.mask) if MASKED else None

    @device_function
    def hold_queries(held, q_at, thread):
        """q of the warp's 16 rows into registers."""
        row, half = u32(thread.warp * 16 + (thread.lane & 15)), u32(thread.lane >> 4)
        for i in range(u32(STEPS)):
            ldmatrix_x4(held, 4 * i, q_at + i // 4 * Q_BOX + row * ROW + ((i % 4 * 2 + half) ^ (row & 7)) * 16)

    @device_function
    def start_scores(scores, held, q_at, shared, state):
        """Wait for a tile of keys and issue q k'."""
        k_pipe.consumer_wait(shared.k, state)
        of_k = descriptor(by_row, shared.base + K_AT + state.stage * K_BYTES)
        if HELD:
            multiply_k(scores, held, of_k, 0)
        else:
            multiply_k(scores, descriptor(by_row, q_at), of_k, 0)

    @device_function
    def finish_scores(scores, key, query, span, scoring, shared, state, work, thread):
        """Release the keys; products become scores: cap, bias, ALiBi, mask. Gives the ring's next state."""
        if not BESIDE:
            k_pipe.consumer_release(shared.k, state, thread.number)
        if ADJUSTED:
            adjust(scores, query.row, query.position, key, thread.column, work.sizes.rows - 1, work.sizes.keys - 1, scoring.scale,
                   query.slope, scoring.softcap, scoring.bias, query.bias_at, scoring.bias_strides)
        if STAGED:
            add_bias(scores, shared.base + BIAS_AT + state.stage * BIAS_BYTES, thread.group * 64 + thread.warp * 16, thread.lane,
                     f32(1) if ADJUSTED else scoring.scale)
        if MASKED:
            apply_mask_tile(scores, shared.base + MASK_AT + state.stage * MASK_STAGE, thread.group * 64 + thread.warp * 16, thread.lane)
        if BESIDE:
            cuda.syncwarp()
            k_pipe.consumer_release(shared.k, state, thread.lane)
        if key < span.full_begin or key + WIDTH > span.full_end:
            apply_mask(scores, query.position, key, thread.column, span.keys, work.bounds)
        return k_pipe.next(state)

    # ---- consumers: values

    V_CONST, PADDED = matrix_descriptor(BOX, 1024, 128), kind.limits_keys
    multiply_v = make_wgmma(E, kind.dtype, steps=WIDTH // 16, a="registers", b_major="mn", b_step=128)

    @device_function
    def start_values(acc, words, shared, state):
        """Wait for a tile of values and issue acc += p v."""
        v_pipe.consumer_wait(shared.v, state)
        multiply_v(acc, words, descriptor(V_CONST, shared.base + V_AT + state.stage * V_BYTES), 1)

    @device_function
    def clear_values(key, keys, shared, state, thread):
        """Values past a sequence's last key become zero: p is 0 there, but 0 times NaN is NaN."""
        if key + WIDTH > keys:
            v_pipe.consumer_wait(shared.v, state)
            to = shared.base + V_AT + state.stage * V_BYTES
            for part in range(max(keys - key, 0) * 8 + (thread.group * 128 + thread.number), WIDTH * 8, 128 * GROUPS):
                for box in range(u32(V_BOXES)):
                    store_shared_4u32(to + box * BOX + u32(part * 16), 0, 0, 0, 0)
            fence_async_shared()
            barrier_sync(GROUPS + 1, 128 * GROUPS)

    # ---- consumers: output

    row_words, store_elements = make_row_words(kind.dtype, ACC), make_store(kind.dtype, E, config.e, config.pairs)
    drained, source_free = make_bulk_wait(0), make_bulk_wait_read(0)
    CHUNKS, WITH_LSE = config.e // 8, config.lse

    @device_function
    def store_boxes(acc, factors, map_o, o, o_strides, staging, row, left, h, image, thread):
        """The 64 rows through shared memory and TMA, which writes whole boxes; packed, the first `left` of them, 16 bytes per thread."""
        line, half, none = u32(thread.warp * 16 + (thread.lane & 15)), u32(thread.lane >> 4), u32(0)
        for i in range(u32(4 * V_BOXES)):
            a, b, c, d = none, none, none, none
            if 16 * i < E:
                a, b = row_words(acc, 2 * i, factors)
            if 16 * i + 8 < E:
                c, d = row_words(acc, 2 * i + 1, factors)
            stmatrix_x4(staging + i // 4 * Q_BOX + line * ROW + ((i % 4 * 2 + half) ^ (line & 7)) * 16, a, b, c, d)
        fence_async_shared()
        barrier_sync(thread.group + 1, 128)
        if not PACKED:
            if thread.number == 0:
                for b in range(V_BOXES):
                    tma_store_4d(map_o, staging + u32(b * Q_BOX), b * COLUMNS, row, h, image)
                bulk_commit()
        else:
            line, chunk = thread.number >> 3, thread.number & 7
            source = staging + u32(line * ROW) + u32(chunk ^ (line & 7)) * 16
            to = advance(o, h * o_strides.head + (row + line) * o_strides.row + chunk * 8)
            for b in range(V_BOXES):
                for r in range(0, 64, 16):
                    if line + r < left and chunk + b * 8 < CHUNKS:
                        store4(as_u32(advance(to, r * o_strides.row + b * COLUMNS)), 0,
                               load_shared_4u32(source + u32(b * Q_BOX + r * ROW)))
            if not APART:
                barrier_sync(thread.group + 1, 128)  # q may come

    @device_function
    def write_back(acc, rescale, row_lse, outputs, q_at, shared, q_state, span, i0, query, h, image, thread, work):
        """The rows, divided by their sums, and lse; q is released where o takes its memory or nobody has done it."""
        o, o_strides, lse, lse_strides = outputs.o, outputs.o_strides, outputs.lse, outputs.lse_strides
        written = span.rows if PACKED else work.sizes.rows
        barrier_sync(thread.group + 1, 128)
        if TMA_STORE:
            tile_row = i0 + thread.group * 64
            store_boxes(acc, rescale, outputs.map, o, o_strides, q_at + O_AT, span.first_row + tile_row, span.rows - tile_row, h, image,
                        thread)
            if not APART and thread.number == 0:
                source_free()
                q_pipe.consumer_release(shared.q, q_state, 0)
        else:
            if not EARLY:
                q_pipe.consumer_release(shared.q, q_state, thread.number)
            of_o = advance(o, image * o_strides.batch + h * o_strides.head + span.first_row * o_strides.row)
            store_elements(acc, rescale, of_o, o_strides, query.row, written, thread.column)
        if WITH_LSE and thread.column == 0:
            lse_at = image * lse_strides.batch + h * lse_strides.head + (span.first_row + query.row) * lse_strides.row
            if query.row < written:
                lse[lse_at] = row_lse[0]
            if query.row + 8 < written:
                lse[lse_at + 8 * lse_strides.row] = row_lse[1]

    # ---- consumers: softmax, and the loop

    pack, hold_scores, raise_and_sum = make_pack(kind.dtype, WORDS), pin(SCORES), make_online_softmax(WIDTH, s.first)
    apply_dropout = make_apply_dropout(WIDTH) if DROPOUT else None
    normalize_rows, load_sink = make_normalize_rows(bool(kind.sink)), element(kind.sink or kind.dtype).load
    scores_alone, scores_first, acc_done = make_wgmma_wait(0, SCORES), make_wgmma_wait(1, SCORES), make_wgmma_wait(0, ACC)
    HELD_WORDS, SINK, LIMITED = 4 * STEPS * HELD, bool(kind.sink), kind.limits_rows

    @device_function
    def online_softmax(scores, state, key, query, softmax_scale, slack, dropout, thread):
        """Scores become probabilities, by the reference maxima; whether accumulators have to be rescaled."""
        rescaled = raise_and_sum(scores, state.most, state.row_max, state.ref_max, state.row_sum, state.rescale, softmax_scale, slack)
        if DROPOUT:
            apply_dropout(scores, dropout.seed, query.head, query.row, key, thread.lane, dropout.threshold, dropout.factor)
        return rescaled

    @device_function
    def finish_softmax(state, query, rows, h, sink, sink_step):
        """`rescale` becomes what accumulators are multiplied by, `row_sum` lse."""
        sink_logit = f32(0)
        if SINK:
            sink_logit = f32(load_sink(sink, h * sink_step))
        normalize_rows(state.ref_max, state.row_sum, state.rescale, sink_logit)
        if LIMITED:  # rows past the sequence's last
            for r in range(2):
                if query.row + 8 * r >= rows:
                    state.rescale[r], state.row_sum[r] = f32(0), f32(NEG_INF)

    @device_function
    def tile_of_queries(t, published, work):
        """(sequence, head, first query, image) of a consumer's tile."""
        sequence, h, _, tile = locate(t, work.order)
        i0, image = tile * HEIGHT, sequence
        if PACKED:
            sequence, i0, image = uniform(published[1]), uniform(published[2]), i32(0)
        return sequence, h, i0, image

    @device_function
    def following(left, key, i0, image, span, work):
        """(how many tiles are left, with documents 1 for any, and what the next one is a tile before)."""
        if SKIPS:
            key = uniform(next_there(key - WIDTH, i0, image, span, work)) + WIDTH
            return 1 if key > span.begin else 0, key
        return left - 1, key

    @device_function
    def consume(outputs, sink, sink_step, shared, work, scoring, dropout, thread):
        softmax_scale = f32(LOG2E) if ADJUSTED or STAGED else scoring.scale
        slack = SLACK * rcp(softmax_scale)
        scores, acc = cuda.local.array(SCORES, f32), cuda.local.array(ACC, f32)
        words, held = cuda.local.array(WORDS, u32), cuda.local.array(HELD_WORDS or 1, u32)
        softmax = Softmax(cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32),
                          cuda.local.array(2, f32))
        q_at = shared.base + u32(thread.group) * GROUP
        q_state, k_state, v_state = q_pipe.consumer_start(), k_pipe.consumer_start(), v_pipe.consumer_start()
        tile_state, published = channel.pipe.consumer_start(), (0, 0, 0)
        t = schedule.first()
        while True:
            # the next tile
            if PUBLISHED:
                published = channel.receive(shared.tile, tile_state, thread.lane)
                t = uniform(published[0])
                tile_state = channel.pipe.next(tile_state)
            if t >= work.tiles:
                break
            sequence, h, i0, image = tile_of_queries(t, published, work)
            span = span_of(i0, sequence, work)
            span = Span(span.first_row, span.first_key, span.rows, span.keys, span.shift, span.begin, uniform(span.count),
                        uniform(span.full_begin), uniform(span.full_end))
            left = span.count
            key = span.begin + (left - 1) * WIDTH
            if terms.skips():
                key = uniform(max(next_there(key, i0, image, span, work), span.begin))
            modifiers = Scoring(scoring.scale, scoring.softcap, terms.of_head(scoring.bias, image, h), scoring.bias_strides)
            query = Query(i0 + thread.row, i0 + thread.row + span.shift, sequence * work.sizes.heads + h, terms.slope(h, work.sizes.heads),
                          image * scoring.bias_strides.batch + h * scoring.bias_strides.head)
            for i in range(ACC):
                acc[i] = f32(0)
            for r in range(2):
                softmax.row_max[r], softmax.ref_max[r], softmax.row_sum[r] = f32(NEG_INF), f32(0), f32(0)
            q_pipe.consumer_wait(shared.q, q_state)
            if HELD:
                hold_queries(held, q_at, thread)
                if EARLY:
                    cuda.syncwarp()
                    q_pipe.consumer_release(shared.q, q_state, thread.lane)

            # scores of the last tile of keys: no values to add yet
            start_scores(scores, held, q_at, shared, k_state)
            scores_alone(scores)
            k_state = finish_scores(scores, key, query, span, modifiers, shared, k_state, work, thread)
            online_softmax(scores, softmax, key, query, softmax_scale, slack, dropout, thread)
            pack(words, scores)
            if PADDED:
                clear_values(key, span.keys, shared, v_state, thread)
            left, key = following(left, key, i0, image, span, work)

            # scores of a tile of keys beside the values of the tile after it
            while left > 0:
                key = key - WIDTH
                start_scores(scores, held, q_at, shared, k_state)
                start_values(acc, words, shared, v_state)
                scores_first(scores)
                k_state = finish_scores(scores, key, query, span, modifiers, shared, k_state, work, thread)
                rescaled = online_softmax(scores, softmax, key, query, softmax_scale, slack, dropout, thread)
                acc_done(acc)
                v_pipe.consumer_release(shared.v, v_state, thread.number)
                v_state = v_pipe.next(v_state)
                hold_scores(scores)  # the words were the product's until now
                pack(words, scores)
                if rescaled:
                    scale_rows(acc, E // 8, softmax.rescale)
                left, key = following(left, key, i0, image, span, work)

            # values of the first tile of keys
            if TMA_STORE and APART and thread.number == 0:
                if not EARLY:
                    q_pipe.consumer_release(shared.q, q_state, 0)
                source_free()  # what the tile before left from
            start_values(acc, words, shared, v_state)
            finish_softmax(softmax, query, span.rows, h, sink, sink_step)
            acc_done(acc)
            v_pipe.consumer_release(shared.v, v_state, thread.number)
            v_state = v_pipe.next(v_state)
            write_back(acc, softmax.rescale, softmax.row_sum, outputs, q_at, shared, q_state, span, i0, query, h, image, thread, work)
            q_state = q_pipe.next(q_state)
            if not PUBLISHED:
                t = schedule.next(t, None)
        if TMA_STORE and thread.number == 0:
            drained()

    # ---- the kernel

    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), s.registers))
    TILE_BARS = BARS + q_pipe.bytes
    K_BARS = TILE_BARS + channel.bytes
    V_BARS = K_BARS + k_pipe.bytes

    @jit(launch_bounds=(s.threads, 1))
    def sdpa_fwd_flash_wgmma(q, k, v, o_map, o, o_strides, lse, lse_strides, counter, sink, sink_step, tiles, order, sizes, of_rows,
                             of_keys, row_step, key_step, bias, bias_tiles, bias_strides, bounds, scale, softcap, seed, offset, threshold,
                             factor):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(q), tensor_map_address(k), tensor_map_address(v), tensor_map_address(o_map),
                    tensor_map_address(bias_tiles))
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        shared = Shared(base, q_pipe.barriers(base + BARS), k_pipe.barriers(base + K_BARS), v_pipe.barriers(base + V_BARS),
                        base + TILE_BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(maps.q)
            prefetch_tensor_map(maps.k)
            prefetch_tensor_map(maps.v)
            q_pipe.init(shared.q)
            k_pipe.init(shared.k)
            v_pipe.init(shared.v)
            if PUBLISHED:
                channel.init(shared.tile)
            fence_mbarrier_init()
        cuda.syncthreads()
        launch_dependent_grids()
        wait_for_previous_grid()
        work = Work(tiles, order, Sequences(of_rows, of_keys, row_step, key_step), sizes, bounds, bias)
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(maps, shared, work, bias_strides, counter)
        else:
            claim_registers()
            group, number = role - 1, tid & 127
            lane, warp = number & 31, number >> 5
            thread = Thread(group, number, warp, lane, group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2)
            consume(Outputs(maps.o, o, o_strides, lse, lse_strides), sink, sink_step, shared, work,
                    Scoring(scale, softcap, bias, bias_strides), Dropout(terms.seed_of(seed, offset), threshold, factor), thread)
    return sdpa_fwd_flash_wgmma
