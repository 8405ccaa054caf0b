"""Tensor cores of Hopper: a warp feeds tiles of q, k and v through TMA, warpgroups multiply, and scores never leave registers.

    producer (one lane)     tile number -> q; k and v, tile by tile of keys from the last to the first, into two rings
    consumers (64 rows)     s = q k' (wgmma) -> exponentials in registers -> 16 bits, in the order in which wgmma takes them from there
                            -> sums += p v (wgmma) -> at the end divided, through shared memory and TMA to o

- The sums of a tile of keys run while the exponentials of the next one are computed: a step of a warpgroup issues both products, waits for
  the scores, takes their exponentials, and only then waits for the sums. Two or three warpgroups fill each other's gaps.
- The level that exponentials are taken by may lag behind the largest score by 2**8 (`_fragments`): sums are hardly ever scaled.
- Tiles of keys that no row of a tile sees are left out, and masks are applied only where some row sees a part.
- Blocks persist. Where tiles have unlike numbers of keys they come longest first and blocks draw them from a counter, which a first launch
  sets to zero; which block has a tile makes no difference to its result.
- A bias of every row and key comes by tiles with those of k; heads of images that share one are worked on together.
- Of packed sequences TMA reads what lies behind a sequence too, the next one: masks hide its keys, its values are set to zero in shared
  memory, and results leave by threads, which know where its rows begin.

What a mask hides takes no part, but a tile's values that are not finite reach all its rows: 0 times them is NaN. Sources: FlashAttention-3
(Shah et al., 2024) for the overlap, FlashAttention-4's lazy scaling.
"""
import functools
from dataclasses import replace

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.barrier import barrier_sync
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.fastmath import rcp
from ...device.index import divide_remainder, divisor
from ...device.ldmatrix import ldmatrix_x4
from ...device.mbarrier import fence_async_shared, fence_mbarrier_init
from ...device.pipeline import make_pipeline
from ...device.registers import make_register_claim, make_register_release
from ...device.scheduler import make_channel, make_dynamic, make_longest_first, make_static
from ...device.stmatrix import stmatrix_x4
from ...device.tma import (bulk_commit, make_bulk_wait, make_bulk_wait_read, prefetch_tensor_map, tensor_map_address, tma_load_4d,
                           tma_store_4d)
from ...device.vec import advance, as_u32, load_shared_4u32, pin, shared_address, store4, store_shared_4u32
from ...device.warp import elect, uniform
from ...device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from ...dispatch import Algorithm, Note
from ...engine.hopper import GROUP, ROW
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._flash import LOG2E, make_extent, make_tile
from .._fragments import (SLACK, is_adjusted, is_bent, make_absorb, make_add_bias, make_adjust, make_drop, make_pack, make_row_words,
                          make_shares, make_store, multiply_rows, stored_in_pairs)
from .._masks import make_hide
from .._scores import NOTHING, added_arguments, kind_of, make_terms, number_arguments, sequence_arguments
from .._wgmma import (ALIGNMENT, COLUMNS, Config, Shape, array_map, bias_map, is_by_head, is_by_tiles, is_uneven,
                      order_arguments, refusal, stored_by_tma, tile_count, tile_seconds)

SHAPES = (Shape(3, 80, 64), Shape(3, 128, 48), Shape(2, 128, 48, held=True), Shape(2, 128, 48), Shape(2, 80, 48), Shape(2, 64, 32),
          Shape(1, 64, 32))


def supports(problem):
    """16-bit rows that TMA can read."""
    return refusal(problem, packed=True)


def configs(problem, device):
    """Shapes whose fragments fit registers and whose rings fit shared memory."""
    p, found, by_tma, staged = problem, [], stored_by_tma(problem), is_by_tiles(problem, problem.bias)
    pairs, adjusted = stored_in_pairs(p, p.o) and not by_tma, is_bent(p) if staged else is_adjusted(p)
    for shape in SHAPES:
        drawn = is_uneven(p) and tile_count(p, shape.height) > device.sms
        try:
            found.append(Config(kind_of(p), p.d, p.dv, shape, p.left >= 0, p.right >= 0, adjusted, p.lse is not None, drawn, by_tma,
                                pairs, staged, is_by_head(p)))
        except ValueError:
            continue
    return found


def workspace(problem, device, config):
    """The number of the next tile, where blocks draw them."""
    return 4 * config.drawn


def estimate(problem, device, config):
    """Steps of the busiest block."""
    return tile_seconds(problem, config, device, staged=config.staged)


@functools.cache
def counter_kernel():
    """Tiles are counted from zero."""
    @jit(launch_bounds=32)
    def sdpa_fwd_tiles(counter):
        launch_dependent_grids()
        wait_for_previous_grid()
        if cuda.threadIdx.x == 0:
            counter[0] = u32(0)
    return sdpa_fwd_tiles


@functools.cache
def kernel(config):
    """Tiles of 64 rows a warpgroup."""
    kind, s = config.kind, config.shape
    terms, tile_of, lengths = make_terms(kind), make_tile(kind.packed, s.height), make_extent(kind)
    locate = make_longest_first(1, config.by_head)
    GROUPS, WIDTH, HEIGHT, THREADS, STAGES = s.groups, s.width, s.height, s.threads, config.stages
    STEPS, E, K_BYTES, V_BYTES, Q_BYTES = config.steps, config.columns, *config.stage, config.tiles[0]
    K_BOXES, V_BOXES = config.boxes
    O_AT, K_AT, V_AT, BARS = config.places
    APART, HELD, DRAWN, BY_TMA, WITH_LSE = config.apart, s.held, config.drawn, config.by_tma, config.lse
    SCORES, SUMS, WORDS, HELD_WORDS = WIDTH // 2, E // 2, WIDTH // 4, 4 * STEPS * HELD
    Q_BOX, BOX = HEIGHT * ROW, WIDTH * ROW
    EARLY, SINK, LIMITED = HELD and APART, bool(kind.sink), kind.limits_rows
    ADJUSTED, DROPOUT, PADDED, PACKED = config.adjusted, kind.dropout, kind.limits_keys, kind.packed
    TOLD, STAGED, BIAS_AT, BIAS_BYTES, BIAS_BOX = DRAWN or PACKED, config.staged, config.bias_place, config.bias_stage, HEIGHT * ROW
    BIAS_COLUMNS = ROW // ITEMSIZE[kind.bias] if STAGED else 1
    BIAS_BOXES = WIDTH // BIAS_COLUMNS
    CHUNKS, WARPS, PARTS = config.e // 8, 4 * GROUPS, divisor(WIDTH)
    by_row = matrix_descriptor(16, 1024, 128)
    V_CONST = matrix_descriptor(BOX, 1024, 128)
    k_steps = tuple(step // 4 * (BOX // 16) + step % 4 * 2 for step in range(STEPS))
    q_steps = tuple(step // 4 * (Q_BOX // 16) + step % 4 * 2 for step in range(STEPS))
    multiply_k = make_wgmma(WIDTH, kind.dtype, steps=STEPS, a="registers" if HELD else "shared", a_step=q_steps, b_step=k_steps)
    multiply_v = make_wgmma(E, kind.dtype, steps=WIDTH // 16, a="registers", b_major="mn", b_step=128)
    scores_alone, scores_first, sums_done = make_wgmma_wait(0, SCORES), make_wgmma_wait(1, SCORES), make_wgmma_wait(0, SUMS)
    release_registers, claim_registers = (make(n) for make, n in zip((make_register_release, make_register_claim), s.registers))
    absorb, hide, shares = make_absorb(WIDTH, s.first), make_hide(WIDTH, config.left, config.right), make_shares(SINK)
    add_bias = make_add_bias(kind.bias, WIDTH, BIAS_BOX) if STAGED else None
    adjust = make_adjust(replace(kind, bias="") if STAGED else kind, WIDTH) if ADJUSTED else None
    drop = make_drop(WIDTH) if DROPOUT else None
    pack, hold_scores, row_words = make_pack(kind.dtype, WORDS), pin(SCORES), make_row_words(kind.dtype, SUMS)
    store_elements = make_store(kind.dtype, E, config.e, config.pairs)
    load_sink, drained, source_free = element(kind.sink or kind.dtype).load, make_bulk_wait(0), make_bulk_wait_read(0)
    schedule, channel = make_dynamic() if DRAWN else make_static(), make_channel(WARPS)
    q_pipe, tile_pipe = make_pipeline(1, consumers=WARPS if EARLY else GROUPS), channel.pipe
    k_pipe, v_pipe = make_pipeline(STAGES, consumers=WARPS if STAGED else GROUPS), make_pipeline(STAGES, consumers=GROUPS)
    TILES_AT = q_pipe.bytes
    K_BARS = TILES_AT + channel.bytes
    V_BARS = K_BARS + k_pipe.bytes

    @device_function
    def place_of(t, order, numbers):
        """(sequence, head, head of k and v, first row) of tile number t."""
        sequences, all_rows, _, _, batch, _ = numbers
        image, h, g, tile = locate(t, order)
        sequence, i0 = tile_of(image, tile, sequences[0], sequences[2], batch, all_rows)
        return sequence, h, g, i0

    @device_function
    def extent(i0, sequence, numbers):
        """(first row and key of the sequence, its rows, a row's own place less its number, keys, first key, tiles of keys, first key of all
        rows, behind the last key of all)."""
        sequences, all_rows, all_keys, bounds, batch, _ = numbers
        row, rows, key, keys = lengths(sequence, sequences, batch, all_rows, all_keys)
        if PACKED and sequence == batch:
            keys = 0
        first, every_end = terms.span(i0, rows, keys, bounds)
        if DROPOUT or STAGED:  # TMA begins at multiples of 16 bytes
            first = first & -8
        every_begin, last = terms.span(min(i0 + HEIGHT, rows) - 1, rows, keys, bounds)
        tiles, _ = divide_remainder(max(min(last, keys) - first, 1) + (WIDTH - 1), PARTS)
        return (row, key), rows, terms.shift(rows, keys), keys, first, tiles, every_begin, every_end

    @device_function
    def load_tile(to, boxes, box, array, bar, row, h, image):
        for b in range(boxes):
            tma_load_4d(to + u32(b * box), array, bar, b * COLUMNS, row, h, image)

    @device_function
    def produce(q_map, k_map, v_map, bias_map, bias_strides, base, bars, tiles, order, numbers, counter):
        q_bars, tiles_at, k_bars, v_bars = bars
        q_state, k_state, v_state = q_pipe.producer_start(), k_pipe.producer_start(), v_pipe.producer_start()
        tile_state = tile_pipe.producer_start()
        t = schedule.first()
        while t < tiles:
            sequence, h, g, i0 = place_of(t, order, numbers)
            (row, key), rows, _, _, first, count, _, _ = extent(i0, sequence, numbers)
            image, left = 0 if PACKED else sequence, count
            if PACKED and (i0 < 0 or i0 >= rows):  # more tiles are counted than sequences have
                left = -1
            elif TOLD:  # the consumers learn this tile's number
                tile_state = channel.send(tiles_at, tile_state, t, sequence, i0)
            after = schedule.next(t, counter)
            at = key + first + (count - 1) * WIDTH
            bias_image, bias_head = image if bias_strides[0] else 0, h if bias_strides[1] else 0
            while left >= 0:
                if left > 0:
                    k_pipe.producer_acquire(k_bars, k_state)
                    bar = k_pipe.producer_expect(k_bars, k_state, u32(K_BYTES + BIAS_BYTES))
                    load_tile(base + K_AT + k_state.stage * K_BYTES, K_BOXES, BOX, k_map, bar, at, g, image)
                    if STAGED:
                        to = base + BIAS_AT + k_state.stage * BIAS_BYTES
                        for b in range(BIAS_BOXES):
                            tma_load_4d(u32(to + u32(b * BIAS_BOX)), bias_map, bar, i32(at + b * BIAS_COLUMNS), i0, bias_head, bias_image)
                    k_state = k_pipe.next(k_state)
                if left == count:
                    q_pipe.producer_acquire(q_bars, q_state)
                    bar = q_pipe.producer_expect(q_bars, q_state, u32(Q_BYTES))
                    load_tile(base, K_BOXES, Q_BOX, q_map, bar, row + i0, h, image)
                    q_state = q_pipe.next(q_state)
                else:  # values are needed a step later than their keys
                    v_pipe.producer_acquire(v_bars, v_state)
                    bar = v_pipe.producer_expect(v_bars, v_state, u32(V_BYTES))
                    load_tile(base + V_AT + v_state.stage * V_BYTES, V_BOXES, BOX, v_map, bar, at + WIDTH, g, image)
                    v_state = v_pipe.next(v_state)
                left, at = left - 1, at - WIDTH
            t = after
        if TOLD:  # there are no more
            channel.send(tiles_at, tile_state, tiles, 0, 0)

    @device_function
    def store_boxes(sums, factors, o_map, o, o_strides, staging, row, left, h, image, warp, lane, thread, group):
        """The 64 rows through shared memory and TMA, which reads whole boxes; packed, 16 bytes a thread at a time, those that are left."""
        mine, none = warp * 16 + (lane & 15), u32(0)
        for i in range(4 * V_BOXES):
            a, b, c, d = none, none, none, none
            if 16 * i < E:
                a, b = row_words(sums, 2 * i, factors)
            if 16 * i + 8 < E:
                c, d = row_words(sums, 2 * i + 1, factors)
            piece = u32((i % 4 * 2 + (lane >> 4)) ^ (mine & 7)) * 16
            stmatrix_x4(staging + u32(i // 4 * Q_BOX) + u32(mine * ROW) + piece, a, b, c, d)
        fence_async_shared()
        barrier_sync(u32(group + 1), u32(128))
        if not PACKED:
            if thread == 0:
                for b in range(V_BOXES):
                    tma_store_4d(o_map, staging + u32(b * Q_BOX), b * COLUMNS, row, h, image)
                bulk_commit()
        else:
            line, chunk = thread >> 3, thread & 7
            source = staging + u32(line * ROW) + u32(chunk ^ (line & 7)) * 16
            to = advance(o, h * o_strides[1] + (row + line) * o_strides[2] + chunk * 8)
            for b in range(V_BOXES):
                for r in range(0, 64, 16):
                    if line + r < left and chunk + b * 8 < CHUNKS:
                        store4(as_u32(advance(to, r * o_strides[2] + b * COLUMNS)), 0,
                               load_shared_4u32(source + u32(b * Q_BOX + r * ROW)))
            if not APART:
                barrier_sync(u32(group + 1), u32(128))  # q may come

    @device_function
    def to_scores(x, row, own, at, column, keys, every, numbers, scaling, bias_tile, bars, state):
        """Of the products: what they are beside the scale, and which of them there are."""
        every_begin, every_end = every
        if ADJUSTED:
            scale, slope, softcap, bias, bias_at, bias_strides = scaling
            adjust(x, row, own, at, column, numbers[1] - 1, numbers[2] - 1, scale, slope, softcap, bias, bias_at, bias_strides)
        if STAGED:
            tile, first_row, lane = bias_tile
            add_bias(x, tile, first_row, lane, f32(1) if ADJUSTED else scaling[0])
            cuda.syncwarp()
            k_pipe.consumer_release(bars, state, lane)
        if at < every_begin or at + WIDTH > every_end:
            hide(x, own, at, column, keys, numbers[3])

    @device_function
    def clear_values(bars, state, to, at, keys, thread):
        """Values behind a sequence's last key become zero: what they are must not matter, and zero times NaN is NaN."""
        if at + WIDTH > keys:
            v_pipe.consumer_wait(bars, state)
            for part in range(max(keys - at, 0) * 8 + thread, WIDTH * 8, 128 * GROUPS):
                for box in range(V_BOXES):
                    store_shared_4u32(to + u32(box * BOX) + u32(part * 16), u32(0), u32(0), u32(0), u32(0))
            fence_async_shared()
            barrier_sync(u32(GROUPS + 1), u32(128 * GROUPS))

    @device_function
    def consume(o_map, o, o_strides, lse, lse_strides, sink, sink_step, base, bars, tiles, order, numbers, scaling, dropping, group,
                thread):
        q_bars, tiles_at, k_bars, v_bars = bars
        all_rows, heads = numbers[1], numbers[5]
        scale, softcap, bias, bias_strides = scaling
        seed, offset, threshold, factor = dropping
        seed = terms.seed_of(seed, offset)
        steepness = f32(LOG2E) if ADJUSTED or STAGED else scale
        scores, sums = cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32)
        words, held = cuda.local.array(WORDS, u32), cuda.local.array(HELD_WORDS or 1, u32)
        tops, levels, totals = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
        falls, most = cuda.local.array(2, f32), cuda.local.array(2, f32)
        lane, warp = thread & 31, thread >> 5
        first_of_warp, column = group * 64 + warp * 16, (lane & 3) * 2
        own_row = first_of_warp + (lane >> 2)
        mine = warp * 16 + (lane & 15)
        q_at = base + u32(group) * GROUP
        staging = q_at + O_AT
        slack = SLACK * rcp(steepness)
        q_state, k_state, v_state = q_pipe.consumer_start(), k_pipe.consumer_start(), v_pipe.consumer_start()
        tile_state = tile_pipe.consumer_start()
        t = schedule.first()
        while True:
            if TOLD:
                told = channel.receive(tiles_at, tile_state, lane)
                t = uniform(told[0])
                tile_state = tile_pipe.next(tile_state)
            if t >= tiles:
                break
            sequence, h, _, tile = locate(t, order)
            i0, image = tile * HEIGHT, sequence
            if PACKED:
                sequence, i0, image = uniform(told[1]), uniform(told[2]), i32(0)
            (first_row, _), rows, shift, keys, first, count, every_begin, every_end = extent(i0, sequence, numbers)
            left, every_begin, every_end = uniform(count), uniform(every_begin), uniform(every_end)
            at = first + (left - 1) * WIDTH
            row = i0 + own_row
            own = row + shift
            slope, bias_at = terms.slope(h, heads), image * bias_strides[0] + h * bias_strides[1]
            scoring, every = (scale, slope, softcap, bias, bias_at, bias_strides), (every_begin, every_end)
            head, written = sequence * heads + h, rows if PACKED else all_rows
            for i in range(SUMS):
                sums[i] = f32(0)
            for r in range(2):
                tops[r], levels[r], totals[r] = f32(NOTHING), f32(0), f32(0)
            q_pipe.consumer_wait(q_bars, q_state)
            if HELD:
                for i in range(STEPS):
                    piece = u32(u32(i32(i % 4 * 2 + (lane >> 4)) ^ i32(mine & 7)) * u32(16))
                    ldmatrix_x4(held, 4 * i, u32(q_at + u32(i // 4 * Q_BOX) + u32(mine * ROW) + piece))
                if EARLY:
                    cuda.syncwarp()
                    q_pipe.consumer_release(q_bars, q_state, lane)

            # the last tile of keys: nothing to add it to yet
            k_pipe.consumer_wait(k_bars, k_state)
            of_k = descriptor(by_row, base + K_AT + k_state.stage * K_BYTES)
            if HELD:
                multiply_k(scores, held, of_k, i32(0))
            else:
                multiply_k(scores, descriptor(by_row, q_at), of_k, 0)
            scores_alone(scores)
            if not STAGED:
                k_pipe.consumer_release(k_bars, k_state, thread)
            bias_tile = (base + BIAS_AT + k_state.stage * BIAS_BYTES, first_of_warp, lane)
            to_scores(scores, row, own, at, column, keys, every, numbers, scoring, bias_tile, k_bars, k_state)
            k_state = k_pipe.next(k_state)
            absorb(scores, most, tops, levels, totals, falls, steepness, slack)
            if DROPOUT:
                drop(scores, seed, head, row, at, lane, threshold, factor)
            pack(words, scores)
            if PADDED:
                clear_values(v_bars, v_state, base + V_AT + v_state.stage * V_BYTES, at, keys, group * 128 + thread)
            left = left - 1
            while left > 0:
                at = at - WIDTH
                k_pipe.consumer_wait(k_bars, k_state)
                of_k = descriptor(by_row, base + K_AT + k_state.stage * K_BYTES)
                if HELD:
                    multiply_k(scores, held, of_k, i32(0))
                else:
                    multiply_k(scores, descriptor(by_row, q_at), of_k, 0)
                v_pipe.consumer_wait(v_bars, v_state)
                multiply_v(sums, words, descriptor(V_CONST, base + V_AT + v_state.stage * V_BYTES), 1)
                scores_first(scores)
                if not STAGED:
                    k_pipe.consumer_release(k_bars, k_state, thread)
                bias_tile = (base + BIAS_AT + k_state.stage * BIAS_BYTES, first_of_warp, lane)
                to_scores(scores, row, own, at, column, keys, every, numbers, scoring, bias_tile, k_bars, k_state)
                k_state = k_pipe.next(k_state)
                grown = absorb(scores, most, tops, levels, totals, falls, steepness, slack)
                if DROPOUT:
                    drop(scores, seed, head, row, at, lane, threshold, factor)
                sums_done(sums)
                v_pipe.consumer_release(v_bars, v_state, thread)
                v_state = v_pipe.next(v_state)
                hold_scores(scores)  # the words were the product's until now
                pack(words, scores)
                if grown:
                    multiply_rows(sums, E // 8, falls)
                left = left - 1

            if BY_TMA and APART and thread == 0:
                if not EARLY:
                    q_pipe.consumer_release(q_bars, q_state, 0)
                source_free()  # what the tile before left from
            v_pipe.consumer_wait(v_bars, v_state)
            multiply_v(sums, words, descriptor(V_CONST, base + V_AT + v_state.stage * V_BYTES), 1)
            own_score = f32(0)
            if SINK:
                own_score = f32(load_sink(sink, i64(i64(h) * sink_step)))
            shares(levels, totals, falls, own_score)
            sums_done(sums)
            v_pipe.consumer_release(v_bars, v_state, thread)
            v_state = v_pipe.next(v_state)
            if LIMITED:  # rows beyond the sequence's last
                if row >= rows:
                    falls[0], totals[0] = f32(0), f32(NOTHING)
                if row + 8 >= rows:
                    falls[1], totals[1] = f32(0), f32(NOTHING)
            barrier_sync(u32(group + 1), u32(128))
            if BY_TMA:
                begin = i0 + group * 64
                store_boxes(sums, falls, o_map, o, o_strides, staging, first_row + begin, rows - begin, h, image, warp, lane,
                            thread, group)
                if not APART and thread == 0:
                    source_free()
                    q_pipe.consumer_release(q_bars, q_state, 0)
            else:
                if not EARLY:
                    q_pipe.consumer_release(q_bars, q_state, thread)
                of_o = advance(o, i64(i64(image) * o_strides[0] + i64(h) * o_strides[1] + i64(first_row) * o_strides[2]))
                store_elements(sums, falls, of_o, o_strides, row, written, column)
            if WITH_LSE and column == 0:
                lse_at = image * lse_strides[0] + h * lse_strides[1] + (first_row + row) * lse_strides[2]
                if row < written:
                    lse[lse_at] = totals[0]
                if row + 8 < written:
                    lse[lse_at + 8 * lse_strides[2]] = totals[1]
            q_state = q_pipe.next(q_state)
            if not TOLD:
                t = schedule.next(t, None)
        if BY_TMA and thread == 0:
            drained()

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_fwd_flash_wgmma(q, k, v, o_map, o, o_strides, lse, lse_strides, counter, sink, sink_step, tiles, per_section, several, rest,
                             last, heads_of, group_of, row_tiles, sizes, of_rows, of_keys, row_step, key_step, bias, bias_tiles,
                             bias_strides, bounds, scale, softcap, seed, offset, threshold, factor):
        shared = cuda.shared.array(0, u32)
        q_map, k_map, v_map = tensor_map_address(q), tensor_map_address(k), tensor_map_address(v)
        to_o, bias_map = tensor_map_address(o_map), tensor_map_address(bias_tiles)
        base = (shared_address(shared, 0) + (ALIGNMENT - 1)) & (0xFFFFFFFF - (ALIGNMENT - 1))
        first = base + BARS
        bars = q_pipe.barriers(first), first + TILES_AT, k_pipe.barriers(first + K_BARS), v_pipe.barriers(first + V_BARS)
        tid = cuda.threadIdx.x
        if tid == 0:
            prefetch_tensor_map(q_map)
            prefetch_tensor_map(k_map)
            prefetch_tensor_map(v_map)
            q_pipe.init(bars[0])
            k_pipe.init(bars[2])
            v_pipe.init(bars[3])
            if TOLD:
                channel.init(bars[1])
            fence_mbarrier_init()
        cuda.syncthreads()
        launch_dependent_grids()
        wait_for_previous_grid()
        order = (per_section, several, rest, last, heads_of, group_of, row_tiles)
        numbers = ((of_rows, of_keys, row_step, key_step), sizes[2], sizes[3], bounds, sizes[0], sizes[1])
        role = uniform(tid >> 7)
        if role == 0:
            release_registers()
            if tid < 32:
                if elect():
                    produce(q_map, k_map, v_map, bias_map, bias_strides, base, bars, tiles, order, numbers, counter)
        else:
            claim_registers()
            consume(to_o, o, o_strides, lse, lse_strides, sink, sink_step, base, bars, tiles, order, numbers,
                    (scale, softcap, bias, bias_strides), (seed, offset, threshold, factor), role - 1, tid & 127)
    return sdpa_fwd_flash_wgmma


def build(problem, device, config):
    """A launch that sets the counter, where there is one, and as many blocks as the device holds, or as there are tiles."""
    p, s = problem, config.shape
    tiles = tile_count(p, s.height)
    q, counter = array_map(p, "q", p.q, s.height), Argument("uint32*", "workspace" if config.drawn else "q")
    bias, bias_strides, _, _, *of_sink = added_arguments(p)
    of_bias = bias_map("bias", p.bias, s.height) if config.staged else q
    bounds, scale, *others = number_arguments(p)
    if not config.adjusted and not config.staged:
        scale = Argument("float32", p.scale * LOG2E)
    arguments = (q, array_map(p, "k", p.k, s.width), array_map(p, "v", p.v, s.width),
                 array_map(p, "o", p.o, 64) if config.by_tma else q, Argument("uint16*", "o"), Argument("int64x4", p.strides(p.o)),
                 Argument("float32*", "lse" if p.lse else "o"), Argument("int64x3", p.lse_strides), counter, *of_sink,
                 Argument("int32", tiles), *order_arguments(p, s.height, config.by_head),
                 Argument("int32x4", (p.batch, p.heads, p.rows, p.keys)), *sequence_arguments(p), bias, of_bias, bias_strides, bounds,
                 scale, *others)
    main = Launch(kernel(config), (min(tiles, device.sms), 1, 1), (s.threads, 1, 1), arguments, shared=config.shared, dependent=True)
    if not config.drawn:
        return (main,)
    return Launch(counter_kernel(), (1, 1, 1), (32, 1, 1), (counter,), dependent=True), main


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_wgmma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")
