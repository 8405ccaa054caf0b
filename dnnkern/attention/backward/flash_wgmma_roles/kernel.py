"""The kernel of `flash_wgmma_roles`: the steps of its two warpgroups that multiply."""
import functools

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.atomic import add4_f32, fetch_add_u32
from ....device.barrier import barrier_sync
from ....device.cluster import (cluster_arrive, cluster_arrive_relaxed, cluster_rank, cluster_wait, copy_async, remote_address,
                                store_remote_u32)
from ....device.fastmath import ex2, fma
from ....device.index import divide_remainder, divisor
from ....device.mbarrier import fence_async_shared, fence_mbarrier_init, mbarrier_free_remote
from ....device.pipeline import PipelineState
from ....device.registers import make_register_claim, make_register_release
from ....device.tma import prefetch_tensor_map, tensor_map_address
from ....device.vec import advance, load_shared_f32, shared_address, store4
from ....device.warp import elect, uniform
from ....device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ....engine.hopper import ROW
from ..._modifiers import make_apply_mask
from ..._parameters import Sequences
from ..._scores import LOG2E, make_terms
from ..._wgmma import ALIGNMENT
from ..flash_wgmma.parameters import Work
from ..flash_wgmma.tiles import make_ranges, make_tiles
from .config import PIECE, THREADS
from .fragments import make_fragments
from .parameters import Maps, Shared, Thread
from .producer import make_boxes, make_pipes, make_producers


@functools.cache
def kernel(config, down):
    """dk and dv of a tile of keys of one head of k and v per block, and its part of dq."""
    kind, s, at, tiles, pipes = config.kind, config.shape, config.layout, make_tiles(config, down), make_pipes(config)
    kv_pipe, q_pipe, do_pipe, p_pipe, rest_pipe, given_pipe, taken_pipe, empty_pipe, turn_pipe, added_pipe = pipes
    terms, HEIGHT, WIDTH, SCORES = make_terms(kind), s.own, s.width, s.own // 2
    PAIR, OTHER_K_AT, OTHER_DS_AT, LAST, (boxes_of, box_at) = s.blocks > 1, at.other_k, at.other_ds, config.dq_boxes - 1, make_boxes(config)
    (Q_BOXES, V_BOXES), BOX, PASSING_BOX, (Q_BYTES, DO_BYTES), STATS = config.boxes, config.box, s.width * ROW, config.passing, config.stats
    V_AT, Q_AT, DO_AT, P_AT, REST_AT, DS_AT, STATS_AT = at.v, at.q, at.do, at.p, at.rest, at.ds, at.stats
    apply_mask, BLOCKS, REST_IS_DS = make_apply_mask(HEIGHT, config.left, config.right), config.dq_blocks, config.stages[3] == 0
    BY_PIECE, BY_HEIGHT, LINE, DOWN = divisor(PIECE), divisor(s.height), BLOCKS * 16 * PIECE, down
    _, key_tiles = make_ranges(kind, s.height, s.width)
    store_tile, store_parts, dscores, write_dk, write_dv = make_fragments(config)

    # ---- products: queries, or columns of the gradients, are rows

    def of_rows(steps):
        a, b = (tuple(step // 4 * (box // 16) + step % 4 * 2 for step in range(steps)) for box in (PASSING_BOX, BOX))
        return make_wgmma(HEIGHT, kind.dtype, steps=steps, a_step=a, b_step=b, fresh=True)

    def of_columns(boxes):
        return make_wgmma(HEIGHT, kind.dtype, steps=WIDTH // 16, tiles=boxes, a_major="mn", a_step=128, b_step=2, a_tile=PASSING_BOX // 16)
    (multiply_s, multiply_dp), (multiply_dk, multiply_dv) = map(of_rows, config.steps), map(of_columns, config.boxes)
    multiply_dq, multiply_more = (make_wgmma(WIDTH, kind.dtype, steps=HEIGHT // 16, a_major="mn", b_major="mn", a_step=128, b_step=128,
                                             fresh=fresh) for fresh in (True, False))
    BY_ROW, OF_PASSING, OF_BOX = (matrix_descriptor(leading, 1024, 128) for leading in (16, PASSING_BOX, BOX))
    DK, DV, DQ = Q_BOXES * SCORES, V_BOXES * SCORES, WIDTH // 2
    scores_done, dv_first, dv_done, dk_done = (make_wgmma_wait(*n) for n in ((0, SCORES), (1, DV), (0, DV), (0, DK)))
    dq_first, dq_done, dk_first = make_wgmma_wait(1, DQ), make_wgmma_wait(0, DQ), make_wgmma_wait(1, DK)

    # ---- probabilities and dv

    @device_function
    def stats_at(shared, q_state, row):
        """Where lse of a thread's first row is: those of 32 rows lie together, followed by their deltas."""
        return shared.base + STATS_AT + q_state.stage * STATS + u32(4 * ((row >> 5) * 64 + (row & 31)))

    @device_function
    def mask(x, row, own_key, tile, work, thread):
        end, _ = terms.key_range(min(row + WIDTH, tile.rows) - 1, tile.rows, tile.keys, work.bounds)
        _, last = terms.key_range(row, tile.rows, tile.keys, work.bounds)
        if end > own_key or last < own_key + HEIGHT:
            own = row + terms.shift(tile.rows, tile.keys) + thread.warp * 16 + (thread.lane >> 2)
            apply_mask(x, own, own_key, thread.column, tile.keys, work.bounds)

    @device_function
    def probabilities(x, lse, softmax_scale):
        for j in range(HEIGHT // 8):
            for h in range(2):
                for e in range(2):
                    x[4 * j + 2 * h + e] = ex2(fma(x[4 * j + 2 * h + e], softmax_scale, -lse[h]))

    @device_function
    def start_scores(x, shared, q_state):
        """s = q k'."""
        q_pipe.consumer_wait(shared.q, q_state)
        multiply_s(x, descriptor(BY_ROW, shared.base + Q_AT + q_state.stage * Q_BYTES), descriptor(BY_ROW, shared.base))

    @device_function
    def release_dv(shared, do_state, p_state, thread):
        cuda.syncwarp()
        do_pipe.consumer_release(shared.do, do_state, thread.lane)
        p_pipe.consumer_release(shared.p, p_state, thread.lane)

    @device_function
    def sum_dv(dv, strides, shared, tile, rank, scale, work, thread):
        x, acc, lse = cuda.local.array(SCORES, f32), cuda.local.array(DV, f32), cuda.local.array(2, f32)
        softmax_scale = scale * LOG2E
        for c in range(DV):
            acc[c] = 0
        q_state, do_state, p_state = q_pipe.consumer_start(), do_pipe.consumer_start(), p_pipe.producer_start()
        rest_state, row, member = rest_pipe.producer_start(), tile.begin, 0
        if tiles.is_left(row, tile):
            kv_pipe.consumer_wait(shared.kv, kv_pipe.consumer_start())
            start_scores(x, shared, q_state)
            scores_done(x)
            while True:
                stats = stats_at(shared, q_state, thread.warp * 16 + (thread.lane >> 2))
                lse[0], lse[1] = load_shared_f32(stats), load_shared_f32(stats + 32)
                mask(x, row, tile.key + rank * HEIGHT, tile, work, thread)
                probabilities(x, lse, softmax_scale)
                cuda.syncwarp()
                q_pipe.consumer_release(shared.q, q_state, thread.lane)
                p_pipe.producer_acquire(shared.p, p_state)
                p_at = shared.base + P_AT + p_state.stage * BOX
                rest_pipe.producer_acquire(shared.rest, rest_state)
                store_parts(x, p_at, shared.base + REST_AT, thread)
                fence_async_shared()
                barrier_sync(1, 128)
                if thread.lane == 0:
                    p_pipe.producer_commit(shared.p, p_state)

                # dv' += do' p beside the scores of the next step
                do_pipe.consumer_wait(shared.do, do_state)
                multiply_dv(acc, descriptor(OF_PASSING, shared.base + DO_AT + do_state.stage * DO_BYTES), descriptor(BY_ROW, p_at), 1)
                row, member = tiles.next(row, member, tile, shared.tile, work)
                if not (tiles.is_left(row, tile) and member < work.heads.group):
                    break
                q_state = q_pipe.next(q_state)
                start_scores(x, shared, q_state)
                dv_first(acc)
                release_dv(shared, do_state, p_state, thread)
                do_state, p_state, rest_state = do_pipe.next(do_state), p_pipe.next(p_state), rest_pipe.next(rest_state)
                scores_done(x)
            dv_done(acc)
            release_dv(shared, do_state, p_state, thread)
            p_state = p_pipe.next(p_state)
        p_pipe.producer_acquire(shared.p, p_state)  # the other warpgroup has read what was there
        image, kv_head, first = tiles.locate(shared.tile, work)
        out = advance(dv, image * strides.batch + kv_head * strides.head)
        through = shared.base + P_AT + p_state.stage * BOX
        write_dv(0, (acc, 1.0, through, 1, out, strides, first + rank * HEIGHT, work.sizes.keys, thread))

    # ---- gradients of scores, dk and dq

    @device_function
    def add_box(acc, box, to, stored, thread):
        """What a box of columns has for dq, 16 bytes of a thread's registers at a time."""
        if 4 * box + thread.warp < BLOCKS:
            at = advance(to, box * 2048)
            for j in range(WIDTH // 8):
                own = advance(at, (j >> 2) * LINE + (j & 3) * 128)
                if stored:
                    store4(own, 0, (acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]))
                else:
                    add4_f32(own, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3])

    @device_function
    def place_in_dq(row, member, tile, work, dq, thread):
        """Where what a thread has of a tile's part of dq is added; and whether it is the first to be added, which is stored."""
        n, _ = divide_remainder(row, BY_PIECE)
        n = (tile.sequence * work.heads.all + tile.head + member) * work.sizes.tiles + n
        mine, _ = divide_remainder(tile.key, BY_HEIGHT)
        low, high = key_tiles(row, tile.rows, tile.keys, work.bounds)
        return advance(dq, n * i64(LINE) + (thread.warp * 512 + thread.lane * 4)), mine == (low if DOWN else high)

    @device_function
    def wait_for_turn(step, shared):
        turn_pipe.consumer_wait(shared.turn, turn_pipe.state_at(step))

    @device_function
    def tell_added(step, shared, thread):
        cuda.syncwarp()
        if thread.lane == 0:
            added_pipe.producer_commit(shared.added, added_pipe.state_at(step))

    @device_function
    def start_dq(acc, box, shared):
        multiply_dq(acc, descriptor(OF_BOX, box_at(shared.base, box)), descriptor(OF_BOX, shared.base + DS_AT))

    @device_function
    def start_dk(acc, q_state, shared):
        q_at = shared.base + Q_AT + q_state.stage * Q_BYTES
        multiply_dk(acc, descriptor(OF_PASSING, q_at), descriptor(BY_ROW, shared.base + DS_AT), 1)

    @device_function
    def finish_dq(acc, b, shared):
        """What the other block's keys have for box number b of this block's columns."""
        multiply_more(acc, descriptor(OF_BOX, box_at(shared.base + OTHER_K_AT, b)), descriptor(OF_BOX, shared.base + OTHER_DS_AT), 1)

    @device_function
    def exchange(step, rank, shared, thread):
        """One thread sends ds to the other block, once that has multiplied the former one."""
        if thread.number == 0:
            now = given_pipe.state_at(step)
            empty_pipe.consumer_wait(shared.empty, PipelineState(now.stage, now.phase ^ 1))
            given_pipe.producer_expect(shared.given, now, BOX)
            copy_async(remote_address(shared.base + OTHER_DS_AT, 1 - rank), shared.base + DS_AT, BOX,
                       remote_address(given_pipe.full_barrier(shared.given, now), 1 - rank))

    @device_function
    def wait_for_other(step, rank, shared, thread):
        """Until the other block's ds is there, which it is told."""
        given_pipe.consumer_wait(shared.given, given_pipe.state_at(step))
        if thread.number == 0:
            mbarrier_free_remote(shared.taken.full, 1 - rank)

    @device_function
    def release_ds(step, rank, shared, thread):
        """ds of both blocks has been multiplied."""
        if PAIR:
            taken_pipe.consumer_wait(shared.taken, taken_pipe.state_at(step))
        cuda.syncwarp()
        if REST_IS_DS:
            rest_pipe.consumer_release(shared.rest, rest_pipe.consumer_start(), thread.lane)
        if PAIR and thread.lane == 0:
            mbarrier_free_remote(shared.empty.full, 1 - rank)

    @device_function
    def wait_for_do(step, shared):
        do_pipe.consumer_wait(shared.do, do_pipe.state_at(step))

    @device_function
    def start_dp(dp, step, shared):
        """dp = do v'."""
        do_state = do_pipe.state_at(step)
        multiply_dp(dp, descriptor(BY_ROW, shared.base + DO_AT + do_state.stage * DO_BYTES), descriptor(BY_ROW, shared.base + V_AT))

    @device_function
    def publish_ds(dp, delta, step, shared, thread):
        """dp becomes ds, which goes to shared memory."""
        q_state, p_state = q_pipe.state_at(step), p_pipe.state_at(step)
        q_pipe.consumer_wait(shared.q, q_state)
        stats = stats_at(shared, q_state, thread.warp * 16 + (thread.lane >> 2)) + 128
        delta[0], delta[1] = load_shared_f32(stats), load_shared_f32(stats + 32)
        p_pipe.consumer_wait(shared.p, p_state)
        if not PAIR:
            scores_done(dp)
        dscores(dp, delta, shared.base + P_AT + p_state.stage * BOX, shared.base + REST_AT, thread)
        cuda.syncwarp()
        do_pipe.consumer_release(shared.do, do_pipe.state_at(step), thread.lane)
        p_pipe.consumer_release(shared.p, p_state, thread.lane)
        if not REST_IS_DS:
            rest_pipe.consumer_release(shared.rest, rest_pipe.consumer_start(), thread.lane)
        barrier_sync(2, 128)  # all warps have multiplied the former ds, or read that of p
        store_tile(dp, 0, 1.0, shared.base + DS_AT, thread)
        fence_async_shared()
        barrier_sync(2, 128)

    @device_function
    def sum_alone(dp, acc, part, delta, dq, shared, tile, rank, work, thread):
        """The steps of a block alone."""
        step, row, member = u32(0), tile.begin, 0
        while tiles.is_left(row, tile) and member < work.heads.group:
            wait_for_do(step, shared)
            start_dp(dp, step, shared)
            publish_ds(dp, delta, step, shared, thread)
            q_state = q_pipe.state_at(step)
            to, stored = place_in_dq(row, member, tile, work, dq, thread)
            wait_for_turn(step, shared)
            start_dq(part, 0, shared)
            start_dk(acc, q_state, shared)
            dq_first(part)
            add_box(part, 0, to, stored, thread)
            for b in range(1, Q_BOXES):
                start_dq(part, b, shared)
                if b == 1:
                    dk_done(acc)
                dq_done(part)
                add_box(part, b, to, stored, thread)
            if Q_BOXES == 1:
                dk_done(acc)
            tell_added(step, shared, thread)
            q_pipe.consumer_release(shared.q, q_state, thread.lane)
            release_ds(step, rank, shared, thread)
            step = step + 1
            row, member = tiles.next(row, member, tile, shared.tile, work)

    @device_function
    def sum_with_other(dp, acc, part, more, delta, dq, shared, tile, rank, work, thread):
        """The steps of one of two blocks: while ds is exchanged dk, and what this block's keys have for dq, are multiplied, and dp of the
        next step while the last columns of dq leave. Of an odd number of boxes of columns the second block multiplies its last twice."""
        step, row, member = u32(0), tile.begin, 0
        first, boxes = boxes_of(rank)
        last = boxes - 1
        if tiles.is_left(row, tile):
            wait_for_do(step, shared)
            start_dp(dp, step, shared)
            scores_done(dp)
            while True:
                publish_ds(dp, delta, step, shared, thread)
                exchange(step, rank, shared, thread)
                q_state = q_pipe.state_at(step)
                start_dq(part, first, shared)
                if LAST == 1:
                    start_dq(more, first + last, shared)
                start_dk(acc, q_state, shared)
                to, stored = place_in_dq(row, member, tile, work, dq, thread)
                wait_for_other(step, rank, shared, thread)
                wait_for_turn(step, shared)
                finish_dq(part, 0, shared)
                if LAST == 1:
                    finish_dq(more, last, shared)
                    dk_first(acc)
                    dq_first(part)
                    add_box(part, first, to, stored, thread)
                    dq_done(more)
                else:
                    dk_done(acc)
                    dq_done(part)
                cuda.syncwarp()
                q_pipe.consumer_release(shared.q, q_state, thread.lane)
                release_ds(step, rank, shared, thread)
                row, member = tiles.next(row, member, tile, shared.tile, work)
                if not (tiles.is_left(row, tile) and member < work.heads.group):
                    break
                wait_for_do(step + 1, shared)
                start_dp(dp, step + 1, shared)
                if LAST < boxes:
                    add_box(more if LAST == 1 else part, first + LAST, to, stored, thread)
                tell_added(step, shared, thread)
                scores_done(dp)
                step = step + 1
            if LAST < boxes:
                add_box(more if LAST == 1 else part, first + LAST, to, stored, thread)
            tell_added(step, shared, thread)

    @device_function
    def sum_dk(dk, strides, dq, shared, tile, rank, scale, work, thread):
        dp, acc, delta = cuda.local.array(SCORES, f32), cuda.local.array(DK, f32), cuda.local.array(2, f32)
        part, more = cuda.local.array(DQ, f32), cuda.local.array(DQ, f32)
        for c in range(DK):
            acc[c] = 0
        if tiles.is_left(tile.begin, tile):
            kv_state = kv_pipe.consumer_start()
            kv_pipe.consumer_wait(shared.kv, kv_state)
            kv_pipe.consumer_wait(shared.kv, kv_pipe.next(kv_state))
        if PAIR:
            sum_with_other(dp, acc, part, more, delta, dq, shared, tile, rank, work, thread)
        else:
            sum_alone(dp, acc, part, delta, dq, shared, tile, rank, work, thread)
        image, kv_head, first = tiles.locate(shared.tile, work)
        out = advance(dk, image * strides.batch + kv_head * strides.head)
        barrier_sync(2, 128)
        write_dk(0, (acc, scale, shared.base + DS_AT, 2, out, strides, first + rank * HEIGHT, work.sizes.keys, thread))

    # ---- the kernel

    producers, BARS, SIZES = make_producers(config, down), at.barriers, [pipe.bytes for pipe in pipes]
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), config.registers))
    (Q_BARS, DO_BARS, P_BARS, REST_BARS, GIVEN_BARS, TAKEN_BARS, EMPTY_BARS, TURN_BARS, ADDED_BARS, TILE) = (
        BARS + sum(SIZES[:n]) for n in range(1, 11))

    @device_function
    def take_tile(ticket, rank, shared, work):
        """The next tile, for both blocks of a cluster."""
        if rank == 0 and cuda.threadIdx.x == 0:
            number = fetch_add_u32(ticket, 1)
            tiles.publish(shared.tile, i32(number), work)
            if PAIR:
                store_remote_u32(remote_address(shared.tile, 1), number)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_bwd_flash_wgmma_roles(k_map, v_map, q_map, do_map, dk, dk_strides, dv, dv_strides, stats, dq, counts, ticket, sizes, order,
                                   heads, bounds, scale):
        memory = cuda.shared.array(0, u32)
        maps = Maps(tensor_map_address(k_map), tensor_map_address(v_map), tensor_map_address(q_map), tensor_map_address(do_map))
        base = (shared_address(memory, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        shared = Shared(base, kv_pipe.barriers(base + BARS), q_pipe.barriers(base + Q_BARS), do_pipe.barriers(base + DO_BARS),
                        p_pipe.barriers(base + P_BARS), rest_pipe.barriers(base + REST_BARS), given_pipe.barriers(base + GIVEN_BARS),
                        taken_pipe.barriers(base + TAKEN_BARS), empty_pipe.barriers(base + EMPTY_BARS),
                        turn_pipe.barriers(base + TURN_BARS), added_pipe.barriers(base + ADDED_BARS), base + TILE)
        work = Work(sizes, heads, order, Sequences(0, 0, 0, 0), bounds, 0)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(maps.k)
            prefetch_tensor_map(maps.v)
            prefetch_tensor_map(maps.q)
            prefetch_tensor_map(maps.do)
            kv_pipe.init(shared.kv)
            q_pipe.init(shared.q)
            do_pipe.init(shared.do)
            p_pipe.init(shared.p)
            rest_pipe.init(shared.rest)
            given_pipe.init(shared.given)
            taken_pipe.init(shared.taken)
            empty_pipe.init(shared.empty)
            turn_pipe.init(shared.turn)
            added_pipe.init(shared.added)
            fence_mbarrier_init()
        rank = 0
        if PAIR:
            rank = uniform(cluster_rank())
            cluster_arrive_relaxed()
            cluster_wait()
        take_tile(ticket, rank, shared, work)
        if PAIR:
            cluster_arrive()
            cluster_wait()
        else:
            cuda.syncthreads()
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    producers.load(maps, shared, tiles.read(shared.tile, work), rank, stats, work)
            elif tid < 96:
                if elect():
                    producers.take_turns(shared, tiles.read(shared.tile, work), rank, counts, work, u32((tid >> 5) - 1))
        else:
            claim_registers()
            number = tid & 127
            thread = Thread(number, number >> 5, number & 31, (number & 3) * 2)
            tile = tiles.read(shared.tile, work)
            if role == 1:
                sum_dv(dv, dv_strides, shared, tile, rank, scale, work, thread)
            else:
                sum_dk(dk, dk_strides, dq, shared, tile, rank, scale, work, thread)
        if PAIR:  # no block ends while the other may reach for its memory
            cluster_arrive()
            cluster_wait()
    return sdpa_bwd_flash_wgmma_roles
