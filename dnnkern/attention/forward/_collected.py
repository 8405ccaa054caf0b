"""Attention on Hopper's tensor cores with tiles of keys that are accumulated apart: the products of each start from zero, and threads add
them to the others in float32, which also rescales the others. What is common to types that take it, and their kernel; `flash_wgmma` is the
same without that.

Tensor cores may accumulate more coarsely than float32: products of 8-bit floats with some 14 bits, others with all 24 but truncated, so
that each addition to a large sum takes up to a unit from it, always toward zero. In a tile that is a few additions, over all keys hundreds.
"""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, f32, i32, i64, jit, u32, u64
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.fastmath import fma, rcp
from ...device.index import divide_remainder, divisor
from ...device.mbarrier import fence_mbarrier_init
from ...device.pipeline import make_pipeline
from ...device.registers import make_register_claim, make_register_release
from ...device.scheduler import make_channel, make_dynamic, make_longest_first, make_static
from ...device.tma import bulk_load, prefetch_tensor_map, tensor_map_address, tma_load_4d
from ...device.unroll import unrolled
from ...device.vec import address, advance, pin, shared_address
from ...device.warp import elect, uniform
from ...device.wgmma import descriptor, make_wgmma_wait, matrix_descriptor
from ...engine.hopper import GROUP, ROW
from ...host.launch import Argument, Launch
from .._fragments import make_factors, make_normalize_rows, make_online_softmax, make_row_maxima
from .._modifiers import make_adjust, make_apply_dropout, make_apply_mask
from .._parameters import RowStrides, Sequences, Strides, added_arguments, number_arguments, scale_arguments, sequence_arguments
from .._quantization import quantization_argument
from .._scores import LOG2E, NEG_INF, make_terms
from .._wgmma import ALIGNMENT, order_argument, tile_count
from ._parts import Dropout, Outputs, Query, Scoring, Shared, Sizes, Softmax, Span, Thread, Work


class Maps(NamedTuple):
    """Addresses of tensor maps, transposed values, and the elements of these from one image to the next, and from one head to the next."""
    q: u64
    k: u64
    v: u64
    transposed: object
    head: object


class Scales(NamedTuple):
    """What products are multiplied by, the result, and it once more where its type has few bits; the sink's logit."""
    scoring: Scoring
    o: f32
    output: f32
    sink: object
    sink_step: i64
    quantization: object


@functools.cache
def kernel(config):
    """Tiles of 64 rows a warpgroup."""
    kind, s, terms = config.kind, config.shape, make_terms(config.kind)
    GROUPS, WIDTH, HEIGHT, STAGES, E = s.groups, s.width, s.height, config.stages, config.columns
    (K_BYTES, V_BYTES), Q_BYTES, (K_AT, V_AT, BARS), Q_BOX, BOX = config.stage, config.q_bytes, config.places, HEIGHT * ROW, WIDTH * ROW
    ADJUSTED, DROPOUT, DRAWN, COUNT, SUMS = config.adjusted, kind.dropout, config.drawn, config.parts, E // 2
    q_pipe = make_pipeline(1, consumers=GROUPS)
    k_pipe = v_pipe = make_pipeline(STAGES, consumers=GROUPS)
    # bytes have one ring: a stage has keys, and the values of the tile before, which a step wants with them; so it waits once
    ONE = config.transposed

    # ---- tiles

    schedule, channel = make_dynamic() if DRAWN else make_static(), make_channel(4 * GROUPS)
    locate, BY_WIDTH, BEGINS = make_longest_first(HEIGHT), divisor(WIDTH), config.begins

    @device_function
    def span_of(i0, image, work):
        """The `Span` of a tile."""
        _, rows, _, keys = terms.lengths(image, work.sequences, work.sizes.rows, work.sizes.keys)
        begin, full_end = terms.key_range(i0, rows, keys, work.bounds)
        begin = begin & -BEGINS
        full_begin, end = terms.key_range(min(i0 + HEIGHT, rows) - 1, rows, keys, work.bounds)
        count, _ = divide_remainder(max(min(end, keys) - begin, 1) + (WIDTH - 1), BY_WIDTH)
        return Span(0, 0, rows, keys, terms.shift(rows, keys), begin, count, full_begin, full_end)

    # ---- producer

    PIECES, (K_BOXES, V_BOXES), COLUMNS, TRANSPOSED = config.pieces, config.boxes, config.box_columns, config.transposed

    @device_function
    def load_plane(to, boxes, box, array, bar, row, h, image):
        for b in range(boxes):
            tma_load_4d(to + u32(b * box), array, bar, b * COLUMNS, row, h, image)

    @device_function
    def load_tile(to, boxes, box, array, bar, row, h, image, images):
        """A tile of q, k or v: one plane, or three."""
        load_plane(to, boxes, box, array, bar, row, h, image)
        if PIECES > 1:  # a loop of no turns would keep the compiler from unrolling the one around it
            for piece in range(1, PIECES):
                load_plane(to + u32(piece * boxes * box), boxes, box, array, bar, row, h, image + piece * images)

    @device_function
    def produce(maps, shared, work, counter):
        q_state, k_state, v_state = q_pipe.producer_start(), k_pipe.producer_start(), v_pipe.producer_start()
        tile_state, images = channel.pipe.producer_start(), work.sizes.batch
        t = schedule.first()
        while t < work.tiles:
            if DRAWN:  # the consumers learn this tile's number, and the next one is on its way
                tile_state = channel.send(shared.tile, tile_state, t, 0, 0)
            following = schedule.next(t, counter)
            image, h, g, i0 = locate(t, work.order)
            span = span_of(i0, image, work)
            left = span.count
            key = span.begin + (left - 1) * WIDTH
            values = image * maps.head[0] + g * maps.head[1]
            while left >= 0:
                if ONE:
                    k_pipe.producer_acquire(shared.k, k_state)
                    nbytes = (K_BYTES if left > 0 else 0) + (V_BYTES if left < span.count else 0)
                    bar = k_pipe.producer_expect(shared.k, k_state, nbytes)
                if left > 0:
                    if not ONE:
                        k_pipe.producer_acquire(shared.k, k_state)
                        bar = k_pipe.producer_expect(shared.k, k_state, K_BYTES)
                    load_tile(shared.base + K_AT + k_state.stage * K_BYTES, K_BOXES, BOX, maps.k, bar, key, g, image, images)
                    if not ONE:
                        k_state = k_pipe.next(k_state)
                if left == span.count:
                    q_pipe.producer_acquire(shared.q, q_state)
                    of_q = q_pipe.producer_expect(shared.q, q_state, Q_BYTES)
                    load_tile(shared.base, K_BOXES, Q_BOX, maps.q, of_q, i0, h, image, images)
                    q_state = q_pipe.next(q_state)
                else:  # values are needed a step later than their keys
                    if not ONE:
                        v_pipe.producer_acquire(shared.v, v_state)
                        bar = v_pipe.producer_expect(shared.v, v_state, V_BYTES)
                    to = shared.base + V_AT + (k_state if ONE else v_state).stage * V_BYTES
                    if TRANSPOSED:
                        bulk_load(to, address(maps.transposed, values + i64(key + WIDTH) * E), V_BYTES, bar)
                    else:
                        load_tile(to, V_BOXES, BOX, maps.v, bar, key + WIDTH, g, image, images)
                    if not ONE:
                        v_state = v_pipe.next(v_state)
                if ONE:
                    k_state = k_pipe.next(k_state)
                left, key = left - 1, key - WIDTH
            t = following
        if DRAWN:  # there are no more
            channel.send(shared.tile, tile_state, work.tiles, 0, 0)

    # ---- consumers: scores

    multiply_k, multiply_v = config.make_products()
    by_row, apply_mask = matrix_descriptor(16, 1024, 128), make_apply_mask(WIDTH, config.left, config.right)
    adjust, apply_dropout = make_adjust(kind, WIDTH) if ADJUSTED else None, make_apply_dropout(WIDTH) if DROPOUT else None
    raise_and_sum = make_online_softmax(WIDTH, s.first, config.raised, config.quantized.amax_s)

    @device_function
    def start_scores(scores, of_q, shared, state):
        """Wait for a stage with a tile of keys, and issue q k'."""
        k_pipe.consumer_wait(shared.k, state)
        multiply_k(scores, of_q, descriptor(by_row, shared.base + K_AT + state.stage * K_BYTES))

    @device_function
    def finish_scores(scores, key, query, span, scoring, shared, state, work, thread):
        """Release the keys, unless values are in their stage; products become scores: cap, bias, ALiBi, mask. Gives the ring's state."""
        if not ONE:
            k_pipe.consumer_release(shared.k, state, thread.number)
        if ADJUSTED:
            adjust(scores, query.row, query.position, key, thread.column, work.sizes.rows - 1, work.sizes.keys - 1, scoring.scale,
                   query.slope, scoring.softcap, scoring.bias, query.bias_at, scoring.bias_strides)
        if key < span.full_begin or key + WIDTH > span.full_end:
            apply_mask(scores, query.position, key, thread.column, span.keys, work.bounds)
        return state if ONE else k_pipe.next(state)

    @device_function
    def online_softmax(scores, state, key, query, softmax_scale, slack, dropout, thread):
        """Scores become probabilities, by the reference maxima."""
        raise_and_sum(scores, state.most, state.row_max, state.ref_max, state.row_sum, state.rescale, softmax_scale, slack)
        if DROPOUT:
            apply_dropout(scores, dropout.seed, query.head, query.row, key, thread.lane, dropout.threshold, dropout.factor)

    # ---- consumers: values

    PART, PART_BYTES, V_CONST, acc_done = SUMS // COUNT, config.part_bytes, config.of_values, make_wgmma_wait(0, SUMS // COUNT)

    @device_function
    def start_values(tile, words, shared, state):
        """Wait for a tile of values, where it has a ring, and issue p v of the first part of its columns, from zero; where it is."""
        if not ONE:
            v_pipe.consumer_wait(shared.v, state)
        values = shared.base + V_AT + state.stage * V_BYTES
        multiply_v(tile, words, descriptor(V_CONST, values))
        return values

    @device_function
    def collect(part, acc, before, tile):
        """A tile's sums join the accumulators, which are rescaled."""
        for j in range(PART // 4):
            for k in range(4):
                i = part * PART + 4 * j + k
                acc[i] = fma(acc[i], before[k // 2], tile[4 * j + k])

    @device_function
    def next_part(part, state):
        """The sums of one more part of the columns, in the registers of the one before."""
        acc, before, tile, words, values = state
        collect(part - 1, acc, before, tile)
        multiply_v(tile, words, descriptor(V_CONST, values + u32(part * PART_BYTES)))
        acc_done(tile)
    next_parts = unrolled(COUNT - 1, next_part) if COUNT > 1 else None

    @device_function
    def finish_values(acc, before, tile, words, values, shared, state, thread):
        """Wait for what is in flight, compute further parts, the last of which is left to `collect`, and release the values."""
        acc_done(tile)
        if COUNT > 1:
            next_parts(1, (acc, before, tile, words, values))
        v_pipe.consumer_release(shared.k if ONE else shared.v, state, thread.number)
        return v_pipe.next(state)

    # ---- consumers: output

    load_sink, normalize_rows, store = element(kind.sink or kind.dtype).load, make_normalize_rows(bool(kind.sink)), config.make_store()
    SINK, LIMITED, WITH_LSE, RAISED = bool(kind.sink), kind.limits_rows, config.lse, config.raised
    RESCALED, AMAX_S, factors = config.quantized.scale_o, config.quantized.amax_s, make_factors(config.quantized)
    largest_probabilities, raise_maxima = make_row_maxima(config.quantized, SUMS)

    @device_function
    def finish_softmax(state, h, scales, softmax_scale):
        """`rescale` becomes what accumulators are multiplied by, `row_sum` lse, and the exact maxima in `most` probabilities."""
        sink_logit = f32(0)
        if SINK:
            sink_logit = f32(load_sink(scales.sink, h * scales.sink_step))
        for r in range(2):
            state.ref_max[r] = state.ref_max[r] - RAISED
        normalize_rows(state.ref_max, state.row_sum, state.rescale, sink_logit)
        largest_probabilities(state.most, state.ref_max, state.rescale, softmax_scale)

    @device_function
    def write_back(acc, state, maxima, outputs, query, span, h, image, scales, thread, work):
        """The rows, divided by their sums, and lse."""
        o_strides, lse_strides = outputs.o_strides, outputs.lse_strides
        for r in range(2):
            state.rescale[r] = state.rescale[r] * scales.o
        raise_maxima(maxima, acc, state.most, state.rescale, query.row, span.rows)
        if RESCALED:
            for r in range(2):
                state.rescale[r] = state.rescale[r] * scales.output
        if LIMITED:  # rows past the sequence's last
            for r in range(2):
                if query.row + 8 * r >= span.rows:
                    state.rescale[r], state.row_sum[r] = f32(0), f32(NEG_INF)
        of_o = advance(outputs.o, image * o_strides.batch + h * o_strides.head)
        store(acc, state.rescale, of_o, o_strides, query.row, work.sizes.rows, thread.column)
        if WITH_LSE and thread.column == 0:
            lse_at = image * lse_strides.batch + h * lse_strides.head + query.row * lse_strides.row
            if query.row < work.sizes.rows:
                outputs.lse[lse_at] = state.row_sum[0]
            if query.row + 8 < work.sizes.rows:
                outputs.lse[lse_at + 8 * lse_strides.row] = state.row_sum[1]

    # ---- consumers: the loop

    MOST = 4 if AMAX_S else 2
    SCORES, WORDS, SLACK, pack, hold_scores = WIDTH // 2, config.words, config.slack, config.make_pack(), pin(WIDTH // 2)
    scores_alone, scores_first = make_wgmma_wait(0, SCORES), make_wgmma_wait(1, SCORES)

    @device_function
    def consume(outputs, shared, work, scales, dropout, thread):
        scoring = scales.scoring
        softmax_scale = f32(LOG2E) if ADJUSTED else scoring.scale
        slack = SLACK * rcp(softmax_scale)
        scores, acc, tile = cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32), cuda.local.array(PART, f32)
        words, before = cuda.local.array(WORDS, u32), cuda.local.array(2, f32)
        softmax = Softmax(cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32),
                          cuda.local.array(MOST, f32))
        maxima = cuda.local.array(2, f32)  # of all tiles
        maxima[0], maxima[1] = f32(0), f32(0)
        of_q = descriptor(by_row, shared.base + u32(thread.group) * GROUP)
        q_state, k_state, v_state = q_pipe.consumer_start(), k_pipe.consumer_start(), v_pipe.consumer_start()
        tile_state = channel.pipe.consumer_start()
        t = schedule.first()
        while True:
            # the next tile
            if DRAWN:
                t, _, _ = channel.receive(shared.tile, tile_state, thread.lane)
                t = uniform(t)
                tile_state = channel.pipe.next(tile_state)
            if t >= work.tiles:
                break
            image, h, _, i0 = locate(t, work.order)
            span = span_of(i0, image, work)
            span = Span(0, 0, span.rows, span.keys, span.shift, span.begin, uniform(span.count), uniform(span.full_begin),
                        uniform(span.full_end))
            left = span.count
            key = span.begin + (left - 1) * WIDTH
            query = Query(i0 + thread.row, i0 + thread.row + span.shift, image * work.sizes.heads + h, terms.slope(h, work.sizes.heads),
                          image * scoring.bias_strides.batch + h * scoring.bias_strides.head)
            for i in range(SUMS):
                acc[i] = f32(0)
            for r in range(2):
                softmax.row_max[r], softmax.ref_max[r], softmax.row_sum[r], before[r] = f32(NEG_INF), f32(0), f32(0), f32(0)
                if AMAX_S:
                    softmax.most[2 + r] = f32(NEG_INF)
            q_pipe.consumer_wait(shared.q, q_state)

            # scores of the last tile of keys: no values to add yet
            start_scores(scores, of_q, shared, k_state)
            scores_alone(scores)
            if ONE:
                k_pipe.consumer_release(shared.k, k_state, thread.number)
                k_state = k_pipe.next(k_state)
            k_state = finish_scores(scores, key, query, span, scoring, shared, k_state, work, thread)
            online_softmax(scores, softmax, key, query, softmax_scale, slack, dropout, thread)
            pack(words, scores)
            left = left - 1

            # scores of a tile of keys beside the values of the tile after it
            while left > 0:
                key = key - WIDTH
                start_scores(scores, of_q, shared, k_state)
                values = start_values(tile, words, shared, k_state if ONE else v_state)
                scores_first(scores)
                k_state = finish_scores(scores, key, query, span, scoring, shared, k_state, work, thread)
                online_softmax(scores, softmax, key, query, softmax_scale, slack, dropout, thread)
                if ONE:
                    k_state = finish_values(acc, before, tile, words, values, shared, k_state, thread)
                else:
                    v_state = finish_values(acc, before, tile, words, values, shared, v_state, thread)
                hold_scores(scores)  # the words were the products' until now
                pack(words, scores)
                collect(COUNT - 1, acc, before, tile)
                before[0], before[1] = softmax.rescale[0], softmax.rescale[1]
                left = left - 1

            # values of the first tile of keys
            q_pipe.consumer_release(shared.q, q_state, thread.number)
            q_state = q_pipe.next(q_state)
            if ONE:
                k_pipe.consumer_wait(shared.k, k_state)
            values = start_values(tile, words, shared, k_state if ONE else v_state)
            finish_softmax(softmax, h, scales, softmax_scale)
            if ONE:
                k_state = finish_values(acc, before, tile, words, values, shared, k_state, thread)
            else:
                v_state = finish_values(acc, before, tile, words, values, shared, v_state, thread)
            collect(COUNT - 1, acc, before, tile)
            write_back(acc, softmax, maxima, outputs, query, span, h, image, scales, thread, work)
            if not DRAWN:
                t = schedule.next(t, None)
        factors.raise_by_warp(scales.quantization, maxima)

    # ---- the kernel

    (SCALED_Q, SCALED_K, SCALED_V), QUANTIZED = config.scaled, any(config.quantized)
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), s.registers))
    TILE_BARS = BARS + q_pipe.bytes
    K_BARS = TILE_BARS + channel.bytes
    V_BARS = K_BARS + k_pipe.bytes

    def sdpa_fwd(q, k, v, transposed, of_head, images, o, o_strides, lse, lse_strides, counter, sink, sink_step, tiles, order, rows,
                 keys, of_rows, of_keys, row_step, key_step, bias, bias_strides, bounds, scale, softcap, seed, offset, threshold,
                 factor, scale_q, scale_k, scale_v, quantization):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(q), tensor_map_address(k), tensor_map_address(v), transposed, of_head)
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        if ONE:
            base = u32(uniform(i32(base)))  # or it is computed anew in each step
        shared = Shared(base, q_pipe.barriers(base + BARS), k_pipe.barriers(base + K_BARS), v_pipe.barriers(base + V_BARS),
                        base + TILE_BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(maps.q)
            prefetch_tensor_map(maps.k)
            if not TRANSPOSED:
                prefetch_tensor_map(maps.v)
            q_pipe.init(shared.q)
            k_pipe.init(shared.k)
            if not ONE:
                v_pipe.init(shared.v)
            if DRAWN:
                channel.init(shared.tile)
            fence_mbarrier_init()
        cuda.syncthreads()
        launch_dependent_grids()
        wait_for_previous_grid()
        work = Work(tiles, order, Sequences(of_rows, of_keys, row_step, key_step), Sizes(images, i32(order.inner.d), rows, keys), bounds,
                    bias)
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(maps, shared, work, counter)
        else:
            claim_registers()
            o_scale = factor
            if SCALED_Q:
                scale = scale * scale_q[0]
            if SCALED_K:
                scale = scale * scale_k[0]
            if SCALED_V:
                o_scale = o_scale * scale_v[0]
            if QUANTIZED:
                o_scale = o_scale * factors.of_result(quantization)
            group, number = role - 1, tid & 127
            lane, warp = number & 31, number >> 5
            thread = Thread(group, number, warp, lane, group * 64 + warp * 16 + (lane >> 2), (lane & 3) * 2)
            # dropout's factor is in the scale of o
            consume(Outputs(u64(0), o, o_strides, lse, lse_strides), shared, work,
                    Scales(Scoring(scale, softcap, bias, bias_strides), o_scale, factors.of_output(quantization), sink, sink_step,
                           quantization),
                    Dropout(terms.seed_of(seed, offset), threshold, f32(1)), thread)
    sdpa_fwd.__name__ = sdpa_fwd.__qualname__ = f"sdpa_fwd_{config.algorithm}"
    return jit(launch_bounds=(s.threads, 1))(sdpa_fwd)


def main_launch(problem, config, device, maps, steps, counter):
    """The launch of the kernel: as many blocks as the device holds, or as there are tiles. `maps` are tensor maps of q, k and v, `steps`
    those of images and heads of values that are transposed; the counter is at that byte of the workspace."""
    p, s = problem, config.shape
    tiles = tile_count(p, s.height)
    bias, bias_strides, _, _, *of_sink = added_arguments(p)
    bounds, scale, *others = number_arguments(p)
    if not config.adjusted:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (*maps, Argument("uint8*", "workspace"), Argument("int64x2", steps), Argument("int32", p.images),
                 Argument(element(p.o.dtype).pointer, "o"), Argument(Strides, p.strides(p.o)),
                 Argument("float32*", "lse" if p.lse else "o"), Argument(RowStrides, p.lse_strides),
                 Argument("uint32*", "workspace", offset=counter), *of_sink, Argument("int32", tiles), order_argument(p, s.height),
                 Argument("int32", p.rows), Argument("int32", p.keys), *sequence_arguments(p), bias, bias_strides, bounds, scale, *others,
                 *scale_arguments(), quantization_argument(p))
    return Launch(kernel(config), (min(tiles, device.sms), 1, 1), (s.threads, 1, 1), arguments, shared=config.shared, dependent=True)
