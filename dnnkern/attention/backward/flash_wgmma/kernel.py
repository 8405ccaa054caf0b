"""The kernel of `flash_wgmma`, backward: the steps of its consumers. `producer` has the other warpgroup, `tiles` which tile a block takes,
`parameters` what they pass to each other."""
import functools
from dataclasses import replace

from ....device import cuda, device_function, f32, i32, jit, u32
from ....device.atomic import fetch_add_u32
from ....device.barrier import barrier_sync
from ....device.fastmath import ex2, fma
from ....device.index import ceil_div
from ....device.mbarrier import fence_async_shared, fence_mbarrier_init
from ....device.pipeline import PipelineState
from ....device.registers import make_register_claim, make_register_release
from ....device.stmatrix import stmatrix_x4
from ....device.tma import prefetch_tensor_map, tensor_map_address
from ....device.vec import advance, load_shared_2f32, shared_address, store_shared_4f32, store_shared_4u32
from ....device.warp import elect, uniform
from ....device.wgmma import descriptor, make_wgmma_wait
from ....engine.hopper import ROW
from ..._fragments import (make_apply_mask_of_keys_transposed, make_apply_mask_tile_transposed, make_pack, make_single_store, make_split,
                           make_store)
from ..._modifiers import (Dropout, Scoring, bit_of, make_add_bias_transposed, make_adjust_with_derivatives, make_apply_mask_transposed,
                           levels_of, make_capped, make_draw_transposed, make_tile_levels, words_of_bits)
from ..._parameters import Sequences
from ..._scores import LOG2E, make_terms
from ..._wgmma import ALIGNMENT, COLUMNS
from .gemms import make_gemms
from .parameters import Added, Maps, Options, Outputs, Shared, Step, Thread, Work
from .producer import make_addresses, make_pipes, make_producers
from .tiles import make_tiles


@functools.cache
def kernel(config, down):
    """dk and dv of a tile of keys of one head of k and v per block, and its part of dq."""
    kind, s, at = config.kind, config.shape, config.layout
    terms, tiles, (do_at, ds_at) = make_terms(kind), make_tiles(config, down), make_addresses(config)
    multiply_s, multiply_dp, multiply_dk, multiply_dv, multiply_dq, BY_ROW, BY_COLUMN, OF_DS, OF_KEYS = make_gemms(config)
    pipes = kv_pipe, q_pipe, dq_pipe, dq_free_pipe, do_pipe, bias_pipe = make_pipes(config)
    HEIGHT, WIDTH, GROUPS, CONSUMERS, PACKED = s.height, s.width, s.groups, 128 * s.groups, kind.packed
    DROPOUT, CAPPED, STAGED = kind.dropout, kind.softcap or kind.score_mod is not None, config.staged
    ADJUSTED, MASKED, MASKED_KEYS, BY_TILES = config.adjusted and not CAPPED, config.mask == "rows", config.mask == "keys", config.by_tiles
    OF_DK, OF_DV, SPLIT, SERIAL, PIECES = config.only != "dv", config.only != "dk", config.split, config.serial, config.pieces
    (Q_BOXES, V_BOXES), KV_BOX, Q_BOX, V_AT, SINGLE_DO = config.boxes, HEIGHT * ROW, WIDTH * ROW, at.v, config.single_do
    DS_BOX, DS_LINE, SCORES, WORDS = HEIGHT * config.ds_line, config.ds_line, WIDTH // 2, WIDTH // 4

    # ---- tiles in shared memory

    # pieces of what lies past the end of a sequence are zero unless it is another sequence
    LIMITED_ROWS, LIMITED_KEYS = (limits and (PACKED or not SPLIT) for limits in (kind.limits_rows, kind.limits_keys))
    BIAS_BOX, BIAS_BOXES, BIAS_ROWS = 64 * DS_LINE, ceil_div(WIDTH, 64), min(WIDTH, 64)

    @device_function
    def clear_rows(to, boxes, box, past, rows, thread):
        """Rows of a tile of so many become zero from row `past` on: zero times the next sequence's elements might be NaN."""
        for part in range(max(past, 0) * 8 + (thread.group * 128 + thread.number), rows * 8, CONSUMERS):
            for b in range(PIECES * boxes):
                store_shared_4u32(to + u32(b * box) + u32(part * 16), 0, 0, 0, 0)

    @device_function
    def wait_for_keys(shared, tile, thread):
        """k and v; what is after the last key is multiplied for dq, by zeros."""
        kv_pipe.consumer_wait(shared.kv, kv_pipe.consumer_start())
        if LIMITED_KEYS and tile.key + HEIGHT > tile.keys:
            clear_rows(shared.base, Q_BOXES, KV_BOX, tile.keys - tile.key, HEIGHT, thread)
            if OF_DK:
                clear_rows(shared.base + V_AT, V_BOXES, KV_BOX, tile.keys - tile.key, HEIGHT, thread)
            fence_async_shared()
            barrier_sync(1, CONSUMERS)

    @device_function
    def wait_for_queries(step, shared, tile, q_state, do_state, ds_state, thread):
        """q and do."""
        q_pipe.consumer_wait(shared.q, q_state)
        if SINGLE_DO:
            do_pipe.consumer_wait(shared.do, do_state)
        if LIMITED_ROWS and step.row + WIDTH > tile.rows:
            left = tile.rows - step.row
            clear_rows(step.q, Q_BOXES, Q_BOX, left, WIDTH, thread)
            clear_rows(step.do, V_BOXES, Q_BOX, left, WIDTH, thread)
            if STAGED:
                bias_pipe.consumer_wait(shared.bias, ds_state)
                for b in range(BIAS_BOXES):
                    clear_rows(step.ds + u32(b * DS_BOX), GROUPS, BIAS_BOX, i32(left - 64 * b), BIAS_ROWS, thread)
            fence_async_shared()
            barrier_sync(1, CONSUMERS)

    # ---- scores

    added = replace(kind, softcap=False, score_mod=None, score_mod_bprop=None, bias="" if STAGED else kind.bias)
    adjust = make_adjust_with_derivatives(added, WIDTH, True)
    add_bias, LEVELED = make_add_bias_transposed(kind.bias, WIDTH, DS_BOX) if STAGED else None, levels_of(kind) is not None
    apply_mask = make_apply_mask_transposed(WIDTH, config.left, config.right)
    apply_mask_tile = make_apply_mask_tile_transposed(WIDTH, DS_BOX)
    apply_mask_of_keys = make_apply_mask_of_keys_transposed(WIDTH, terms.permits)
    levels = make_tile_levels(kind, WIDTH, True) if LEVELED else None
    scores_first, scores_done = make_wgmma_wait(1, SCORES), make_wgmma_wait(0, SCORES)

    @device_function
    def start_products(x, dp, of_k, of_v, step):
        """s = k q' and dp = v do'; dv takes no dp."""
        multiply_s(x, of_k, descriptor(BY_ROW, step.q))
        if OF_DK:
            multiply_dp(dp, of_v, descriptor(BY_ROW, step.do))
        else:
            for c in range(SCORES):
                dp[c] = f32(0)
        if CAPPED or not OF_DK:
            scores_done(x)
        else:
            scores_first(x)

    @device_function
    def finish_scores(x, scratch, step, scoring, tile, key, shared, ds_state, work, options, h, thread):
        """Products become scores: bias, ALiBi, mask; with a `score_mod` of tanh that, and masked."""
        if LEVELED:
            levels(x, key, step.row + thread.column, scoring.last_row, scoring.last_key, scoring.scale, scoring.bias)
        if ADJUSTED:
            adjust(x, scratch, key, step.row, thread.column, scoring)
        if BY_TILES:
            bias_pipe.consumer_wait(shared.bias, ds_state)
            own = step.ds + u32(thread.group) * BIAS_BOX
            if STAGED:
                add_bias(x, own, thread.warp, thread.lane, f32(1) if ADJUSTED else scoring.scale)
            if MASKED:
                apply_mask_tile(x, own, thread.warp, thread.lane)
            if not OF_DK:
                cuda.syncwarp()
                bias_pipe.consumer_release(shared.bias, ds_state, thread.lane)
        if MASKED_KEYS:
            strides = options.mask_strides
            apply_mask_of_keys(x, options.mask, tile.sequence * strides.batch + h * strides.head, key, scoring.last_key, strides.column)
        end, _ = terms.key_range(min(step.row + WIDTH, tile.rows) - 1, tile.rows, tile.keys, work.bounds)
        _, last = terms.key_range(step.row, tile.rows, tile.keys, work.bounds)
        if end > tile.key or last < tile.key + HEIGHT:
            apply_mask(x, key - scoring.shift, step.row, thread.column, tile.keys - key, work.bounds)

    # ---- p = exp(s - lse), ds = p (dp - delta)

    TOGETHER, STATS_AT, STATS, bit = config.stats_rows, at.stats, config.stats, bit_of

    @device_function
    def stats_of(at, j, column):
        """lse, or delta, of the fragment's columns 8 j + column and the next one: of so many queries they lie together."""
        return load_shared_2f32(at + u32(4 * (8 * j + 8 * j // TOGETHER * TOGETHER + column)))

    @device_function
    def both_of(at, j, column):
        return stats_of(at, j, column), stats_of(at + 4 * TOGETHER, j, column)

    @device_function
    def share(k, kept, factor):
        """What dropout makes of a probability."""
        if DROPOUT:
            return factor if (kept[k >> 5] >> bit(k)) & 1 else f32(0)
        return f32(1)
    capped = make_capped(kind, WIDTH, both_of, share)

    @device_function
    def probabilities(x, stats, column, softmax_scale):
        for j in range(WIDTH // 8):
            lse = stats_of(stats, j, column)
            for h in range(2):
                for e in range(2):
                    x[4 * j + 2 * h + e] = ex2(fma(x[4 * j + 2 * h + e], softmax_scale, -lse[e]))

    @device_function
    def dscores(p, dp, stats, column, kept, factor):
        for j in range(WIDTH // 8):
            delta = stats_of(stats + 4 * TOGETHER, j, column)
            for h in range(2):
                for e in range(2):
                    k = 4 * j + 2 * h + e
                    if DROPOUT:
                        part = share(k, kept, factor)
                        dp[k] = p[k] * fma(dp[k], part, -delta[e])
                        p[k] = p[k] * part
                    else:
                        dp[k] = p[k] * (dp[k] - delta[e])

    @device_function
    def softmax_gradient(x, dp, step, scoring, key, kept, factor, softmax_scale, shared, q_state, do_state, thread):
        """x becomes p, after dropout, and dp ds, but for the scale; gives the state of the next do."""
        stats = shared.base + STATS_AT + q_state.stage * STATS
        if not CAPPED:
            probabilities(x, stats, thread.column, softmax_scale)
        if OF_DK:
            scores_done(dp)
        if SINGLE_DO:  # dv takes none
            cuda.syncwarp()
            do_pipe.consumer_release(shared.do, do_state, thread.lane)
            do_state = do_pipe.next(do_state)
        if CAPPED:
            capped(0, (x, dp, stats, step.row, key, thread.column, scoring, kept, factor))
        else:
            dscores(x, dp, stats, thread.column, kept, factor)
        return do_state

    # ---- dv and dk

    (DK_COLUMNS, DV_COLUMNS), (DK_BOX, DV_BOX) = (tuple(n // 2 for n in columns) for columns in (config.columns, config.gemm_columns))

    def make_add_boxes(multiply, box_columns, boxes):
        """Device function ``add_boxes(acc, box, words, at)``: what a tile adds to dk or dv, box by box of columns of which the first is in
        flight, rounded to the nearest: tensor cores may truncate whatever they add."""
        done = make_wgmma_wait(0, box_columns)

        @device_function
        def add_boxes(acc, box, words, at):
            done(box)
            add_box(acc, 0, box, box_columns)
            for b in range(1, boxes):
                multiply(box, words, descriptor(BY_COLUMN, at + u32(b * Q_BOX)))
                done(box)
                add_box(acc, b * box_columns, box, box_columns)
        return add_boxes

    @device_function
    def add_box(acc, first, box, count):
        for c in range(count):
            acc[first + c] = acc[first + c] + box[c]
    add_dk, add_dv = make_add_boxes(multiply_dk, DK_BOX, Q_BOXES), make_add_boxes(multiply_dv, DV_BOX, V_BOXES)
    dk_done, dv_done = make_wgmma_wait(0, DK_COLUMNS), make_wgmma_wait(0, DV_COLUMNS)

    @device_function
    def finish_gradients(acc_dk, acc_dv, box, ds_words, step):
        """Wait for what a step adds to dk and dv."""
        if SERIAL:
            multiply_dk(box, ds_words, descriptor(BY_COLUMN, step.q))
        if SPLIT:
            add_dk(acc_dk, box, ds_words, step.q)
        elif OF_DK:
            dk_done(acc_dk)
        if OF_DV and not SPLIT:
            dv_done(acc_dv)

    # ---- dq

    TRANSPOSED, (_, COLUMNS_BEFORE, _), COUNTS = config.transposed, config.dq_parts[-1], tuple(n for _, _, n in config.dq_parts)
    TILES, BLOCKS = ceil_div(COUNTS[0], COLUMNS), config.dq // 2048  # of a part's transpose, of 64 columns; of 16 columns
    BY_ROWS, DQ_ROWS = WIDTH == 64 * GROUPS, COUNTS[0] // 8 * 2048
    DS_BUFFERS, DS_PIECE, DQ_AT = config.ds_buffers, config.ds // PIECES, at.dq
    DQ_COLUMNS = TILES * SCORES if config.transposed else COUNTS[0] // 2
    dq_done = make_wgmma_wait(0 if SERIAL else 1, DQ_COLUMNS)

    @device_function
    def store_ds(words, to, thread):
        """ds as columns of 64 queries, or of all, a line of memory per key."""
        key = thread.group * 64 + thread.warp * 16 + (thread.lane & 15)
        for piece in range(PIECES):
            for i in range(WIDTH // 16):
                k = piece * WORDS + 4 * i
                chunk = u32((i % 4 * 2 + (thread.lane >> 4)) ^ (key * DS_LINE >> 7 & (DS_LINE // 16 - 1))) * 16
                stmatrix_x4(to + u32(piece * DS_PIECE + i // 4 * DS_BOX) + u32(key * DS_LINE) + chunk, words[k], words[k + 1], words[k + 2],
                            words[k + 3])

    @device_function
    def publish_ds(words, step, thread):
        """ds to shared memory, where all warpgroups read it."""
        if DS_BUFFERS == 1:  # until all have read the former one
            barrier_sync(1, CONSUMERS)
        elif BY_TILES:  # until the warpgroup has read the bias
            barrier_sync(thread.group + 2, 128)
        store_ds(words, step.ds, thread)
        fence_async_shared()
        barrier_sync(1, CONSUMERS)

    @device_function
    def start_dq(acc, step, base, group):
        """A warpgroup's columns, or queries, of ds' k, or of the transpose. Where it has fewer columns, or none, it multiplies as many and
        leaves them."""
        own_keys = base + u32(group) * (COLUMNS_BEFORE // COLUMNS * KV_BOX) if COUNTS[-1] else base
        if TRANSPOSED:
            multiply_dq(acc, descriptor(OF_KEYS, own_keys), descriptor(OF_DS, step.ds))
        elif BY_ROWS:
            multiply_dq(acc, descriptor(OF_DS, step.ds + u32(group) * DS_BOX), descriptor(OF_KEYS, base))
        else:
            multiply_dq(acc, descriptor(OF_DS, step.ds), descriptor(OF_KEYS, own_keys))

    @device_function
    def store_columns(acc, to, count, number):
        """A warpgroup's columns of the part of dq, block after block."""
        own = to + u32(number * 16)
        for j in range(count // 8):
            store_shared_4f32(own, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3])
            own = own + 2048

    @device_function
    def store_transposed(acc, to, first, thread):
        """The same of a transposed part, warp after warp: a block of shared memory has 16 columns, and box number `first` begins."""
        for tile in range(TILES):
            block = i32(4 * (first + tile) + thread.warp)
            if block < BLOCKS:
                own = to + u32(block * 2048 + thread.lane * 16)
                for j in range(WIDTH // 8):
                    k = tile * SCORES + 4 * j
                    store_shared_4f32(own, acc[k], acc[k + 1], acc[k + 2], acc[k + 3])
                    own = own + 512

    @device_function
    def finish_dq(acc, shared, ds_state, thread):
        """Hand the part of dq to the thread that adds it."""
        dq_done(acc)
        if BY_TILES:
            cuda.syncwarp()
            bias_pipe.consumer_release(shared.bias, ds_state, thread.lane)
        dq_free_pipe.consumer_wait(shared.dq_free, PipelineState(u32(0), ds_state.stage ^ 1))  # a phase per step
        to = shared.base + DQ_AT
        if TRANSPOSED:
            store_transposed(acc, to, i32(thread.group * TILES), thread)
        elif BY_ROWS:
            store_columns(acc, to + u32(thread.group) * DQ_ROWS, COUNTS[0], thread.number)
        elif thread.group == 0:
            store_columns(acc, to, COUNTS[0], thread.number)
        else:
            store_columns(acc, to + COLUMNS_BEFORE // 8 * 2048, COUNTS[-1], thread.number)
        fence_async_shared()
        cuda.syncwarp()
        if thread.lane == 0:
            dq_pipe.producer_commit(shared.dq, ds_state)

    # ---- the results, and the steps

    store_dk, store_dv = map(functools.partial(make_single_store if SPLIT else make_store, kind.dtype), config.columns,
                             (config.d, config.e), config.pairs)

    @device_function
    def key_of(first, thread):
        """The first of a thread's two keys of a tile."""
        return first + thread.group * 64 + thread.warp * 16 + (thread.lane >> 2)

    @device_function
    def write_back(acc_dk, acc_dv, factors, outputs, keys, scale, shared, work, thread):
        """dk and dv; the tile is located again: nothing of it is kept in registers until here."""
        image, kv_head, first = tiles.locate(shared.tile, work)
        key, first_key, written = key_of(first, thread), 0, work.sizes.keys
        if GROUPS == 2:  # nor is the thread's offset: it would spill
            key = first + ((cuda.threadIdx.x >> 5) - 4) * 16 + (thread.lane >> 2)
        if PACKED:
            _, written, _, first_key, _ = tiles.extent(shared.tile, image, work)
        if OF_DK:
            if not SPLIT:
                dk_done(acc_dk)
            for r in range(2):
                factors[r] = scale if key + 8 * r < keys else f32(0)
            strides = outputs.dk_strides
            to = advance(outputs.dk, image * strides.batch + kv_head * strides.head + first_key * strides.row)
            store_dk(acc_dk, factors, to, strides, key, written, thread.column)
        if OF_DV:
            if not SPLIT:
                dv_done(acc_dv)
            for r in range(2):
                factors[r] = f32(1) if key + 8 * r < keys else f32(0)
            strides = outputs.dv_strides
            to = advance(outputs.dv, image * strides.batch + kv_head * strides.head + first_key * strides.row)
            store_dv(acc_dv, factors, to, strides, key, written, thread.column)

    RING_AT, STAGE = at.ring, config.stage
    pack, draw = make_split(WORDS) if SPLIT else make_pack(kind.dtype, WORDS), make_draw_transposed(WIDTH)
    DK, DV, BOX, ALL_WORDS, KEPT = DK_COLUMNS, DV_COLUMNS, max(DK_BOX, DV_BOX) if SPLIT else 1, PIECES * WORDS, words_of_bits(WIDTH)

    @device_function
    def step_at(row, shared, q_state, ds_state):
        """The `Step` of a tile of queries."""
        q = shared.base + RING_AT + q_state.stage * STAGE
        return Step(row, q, do_at(shared.base, q), ds_at(shared.base, ds_state.stage))

    @device_function
    def consume(outputs, shared, tile, work, options, thread):
        key, shift = key_of(tile.key, thread), terms.shift(tile.rows, tile.keys)
        x, dp = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32)
        acc_dk, acc_dv, acc_dq = cuda.local.array(DK, f32), cuda.local.array(DV, f32), cuda.local.array(DQ_COLUMNS, f32)
        ds_words, p_words, box = cuda.local.array(ALL_WORDS, u32), cuda.local.array(ALL_WORDS, u32), cuda.local.array(BOX, f32)
        factors, nothing, kept = cuda.local.array(2, f32), cuda.local.array(1, f32), cuda.local.array(KEPT, u32)
        softmax_scale = f32(LOG2E) if ADJUSTED or STAGED else options.scale * LOG2E
        if OF_DK:
            for c in range(DK):
                acc_dk[c] = f32(0)
        if OF_DV:
            for c in range(DV):
                acc_dv[c] = f32(0)
        q_state, do_state, ds_state = q_pipe.consumer_start(), do_pipe.consumer_start(), bias_pipe.consumer_start()
        wait_for_keys(shared, tile, thread)
        keys_at = shared.base + u32(thread.group) * (64 * ROW)
        of_k, of_v = descriptor(BY_ROW, keys_at), descriptor(BY_ROW, keys_at + V_AT)
        row, member, slope = tile.begin, 0, terms.slope(tile.head, work.heads.all)
        while tiles.is_left(row, tile) and member < work.heads.group:
            h, step = tile.head + member, step_at(row, shared, q_state, ds_state)
            bias_at = tile.sequence * options.bias_strides.batch + h * options.bias_strides.head
            scoring = Scoring(shift, slope, terms.of_head(options.bias, tile.sequence, h), bias_at, options.bias_strides, tile.rows - 1,
                              tile.keys - 1, options.scale, options.softcap)

            # s = k q', dp = v do'; then p and ds
            wait_for_queries(step, shared, tile, q_state, do_state, ds_state, thread)
            if DROPOUT:
                draw(kept, Dropout(options.seed, tile.sequence * work.heads.all + h, options.threshold, options.factor), key, row,
                     thread.lane)
            start_products(x, dp, of_k, of_v, step)
            finish_scores(x, nothing, step, scoring, tile, key, shared, ds_state, work, options, h, thread)
            do_state = softmax_gradient(x, dp, step, scoring, key, kept, options.factor, softmax_scale, shared, q_state, do_state,
                                        thread)

            # dv += p do; of float32 p do is multiplied while ds is split
            if OF_DV:
                pack(p_words, x)
            if SPLIT:
                multiply_dv(box, p_words, descriptor(BY_COLUMN, step.do))
            if SERIAL:
                add_dv(acc_dv, box, p_words, step.do)
            if OF_DK:
                pack(ds_words, dp)
            if OF_DV and not SPLIT:
                multiply_dv(acc_dv, p_words, descriptor(BY_COLUMN, step.do), 1)

            # dq = ds' k from shared memory, dk += ds q
            if OF_DK:
                publish_ds(ds_words, step, thread)
                if SPLIT and not SERIAL:
                    add_dv(acc_dv, box, p_words, step.do)
                start_dq(acc_dq, step, shared.base, thread.group)
                if not SPLIT:
                    multiply_dk(acc_dk, ds_words, descriptor(BY_COLUMN, step.q), 1)
                elif not SERIAL:
                    multiply_dk(box, ds_words, descriptor(BY_COLUMN, step.q))
                finish_dq(acc_dq, shared, ds_state, thread)
            ds_state = bias_pipe.next(ds_state)
            finish_gradients(acc_dk, acc_dv, box, ds_words, step)

            # the next step
            cuda.syncwarp()  # lse and delta have been read too
            q_pipe.consumer_release(shared.q, q_state, thread.lane)
            q_state, former = q_pipe.next(q_state), member
            row, member = tiles.next(row, member, tile, shared.tile, work)
            if member != former:
                slope = terms.slope(tile.head + member, work.heads.all)
        write_back(acc_dk, acc_dv, factors, outputs, tile.keys, options.scale, shared, work, thread)

    # ---- the kernel

    producers, BARS, SIZES = make_producers(config, down), at.barriers, [pipe.bytes for pipe in pipes]
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), config.registers))
    Q_BARS, DQ_BARS, FREE_BARS, DO_BARS, BIAS_BARS, TILE = (BARS + sum(SIZES[:n]) for n in range(1, 7))

    @jit(launch_bounds=(s.threads, 1))
    def sdpa_bwd_flash_wgmma(k_map, v_map, q_map, do_map, bias_map, dk, dk_strides, dv, dv_strides, stats, dq, counts, ticket, sizes, order,
                             heads, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds,
                             scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(k_map), tensor_map_address(v_map), tensor_map_address(q_map), tensor_map_address(do_map),
                    tensor_map_address(bias_map))
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        shared = Shared(base, kv_pipe.barriers(base + BARS), q_pipe.barriers(base + Q_BARS), do_pipe.barriers(base + DO_BARS),
                        dq_pipe.barriers(base + DQ_BARS), dq_free_pipe.barriers(base + FREE_BARS), bias_pipe.barriers(base + BIAS_BARS),
                        base + TILE)
        work = Work(sizes, heads, order, Sequences(of_rows, of_keys, row_step, key_step), bounds, bias)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(maps.k)
            prefetch_tensor_map(maps.v)
            prefetch_tensor_map(maps.q)
            prefetch_tensor_map(maps.do)
            kv_pipe.init(shared.kv)
            q_pipe.init(shared.q)
            do_pipe.init(shared.do)
            dq_pipe.init(shared.dq)
            dq_free_pipe.init(shared.dq_free)
            bias_pipe.init(shared.bias)
            fence_mbarrier_init()
            tiles.publish(shared.tile, i32(fetch_add_u32(ticket, 1)), work)
        cuda.syncthreads()
        # each role reads the tile for itself: what all had in common would be kept in memory, producers have few registers
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    tile = tiles.read(shared.tile, work)
                    if not PACKED or tile.key < tile.keys:  # more tiles are counted than sequences have
                        producers.load(maps, shared, tile, stats, work)
            elif tid >= 96:
                if BY_TILES and elect():
                    producers.load_bias(maps.bias, bias_strides if STAGED else mask_strides, shared, tiles.read(shared.tile, work), work)
            elif OF_DK:
                if elect():
                    producers.add_to_dq(shared, tiles.read(shared.tile, work), Added(dq, counts), work, u32((tid >> 5) - 1))
        else:
            claim_registers()
            tile, group, number = tiles.read(shared.tile, work), role - 1, tid & 127
            lane, warp = number & 31, number >> 5
            if not PACKED or tile.key < tile.keys:
                consume(Outputs(dk, dk_strides, dv, dv_strides), shared, tile, work,
                        Options(scale, softcap, bias, bias_strides, mask, mask_strides, terms.seed_of(seed, offset), threshold,
                                factor),
                        Thread(group, number, warp, lane, (lane & 3) * 2))
    return sdpa_bwd_flash_wgmma
