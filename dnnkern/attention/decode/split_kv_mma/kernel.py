"""The kernel of `split_kv_mma`: tiles of 16 keys from the cache to a warp's registers, products there, then warps and blocks meet.

A thread has, of a tile of 16 keys, 16 bytes at a time:

    of K    keys `lane / 4` and `lane / 4 + 8`, chunks `lane % 4` and every fourth after it
    of V    keys `2 (lane % 4)` and its neighbour, and the same of the last eight; chunks `lane / 4` and every eighth after it
    scores  of these keys of K, and of the rows that it has of the values: `2 (lane % 4)` and its neighbour of each eight
"""
import functools

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.cluster import cluster_arrive_relaxed, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ....device.convert import element
from ....device.dependent import launch_dependent_grids, wait_for_previous_grid
from ....device.fastmath import maximum
from ....device.groups import make_reader
from ....device.index import ceil_div, divide, divide_remainder, divisor
from ....device.mma import make_mma
from ....device.numeric import permute_bytes
from ....device.vec import (advance, load_shared_4f32, load_shared_4u32, pin, prefetch_l2, shared_address, store4_from, store_shared_4f32,
                            store_shared_4u32)
from ....device.warp import any_lane, broadcast, shuffle_xor
from ..._flash import make_powers
from ..._scores import NEG_INF, make_terms
from .._pages import make_place
from .._parameters import Lengths, Outputs, Paging, Scoring
from .._ranges import make_merge, make_places, make_range, make_store_output
from .config import CHUNK, EIGHT, KEYS, LANES
from .parameters import Cache, Cursor, Fragments, Rows, Span, Tile

LINE = 64  # elements of a line of the L2
GOLDEN = 0x9E3779B1  # 2**32 times the golden ratio: multiples of it are spread evenly


@functools.cache
def kernel(config, dependent):
    """A tile of rows and a range of keys per block, of which each warp takes every so many-th tile of keys."""
    kind, terms, powers = config.kind, make_terms(config.kind), make_powers(config.kind.compute)
    EIGHTS, ROWS, WIDTH, PITCH, D, E = config.eights, config.rows, config.width, config.pitch, config.d, config.e
    KC, VC, TILES, WARPS, THREADS, PAGED = config.k_chunks, config.v_chunks, config.tiles, config.warps, config.threads, config.paged
    OWN, SPAN, STEP = 2 * EIGHTS, TILES * KEYS, WARPS * TILES * KEYS  # a thread's rows; keys of a warp's turn, of a block's
    K_TILE, V_TILE, WINDOWED, BIAS = 2 * KC * 4, 4 * VC * 4, config.windowed, bool(kind.bias)
    forget, forget_own = pin(TILES), pin(2)

    # ---- which tile, which keys

    range_of, BY_STEP = make_range(kind, KEYS), divisor(STEP)

    @device_function
    def tile_of(block, shape, splits):
        """The `Tile` of a block."""
        number, split = divide_remainder(block, splits)
        head, tile = divide_remainder(number, shape.tiles)
        return Tile(split, number, head, tile * ROWS)

    @device_function
    def span_of(block, split, warp, b, shape, lengths, splits):
        """The `Span` of a warp."""
        keys, oldest, begin, end = range_of(split, splits, b, shape, lengths)
        first = begin + warp * SPAN
        turns = divide(max(end - first, 0) + (STEP - 1), BY_STEP)
        spread = (block * i64(GOLDEN)) & 0xFFFFFFFF  # a 2**32th of the turns, as if by chance
        return Span(keys, max(begin, oldest), end, first, turns, first + i32((spread * turns) >> 32) * STEP)

    @device_function
    def after(start, span):
        """The first key of a warp's next turn: after its last turn comes its first."""
        following = start + STEP
        return following if following < span.end else span.first

    @device_function
    def query_at(b, g, row, shape, strides):
        """Where row number `row` of a head of the cache lies in q, or its bias."""
        member, i = divide_remainder(row if row < shape.rows else 0, shape.queries)
        return b * strides.batch + (g * shape.group + member) * strides.head + i * strides.row

    # ---- from memory to registers

    place, (WORDS_Q, WORDS_K, WORDS_V) = make_place(PAGED), config.words
    _, _, fetch_q, _ = make_reader(kind.dtype, CHUNK, WORDS_Q)
    _, _, fetch_k, _ = make_reader(kind.dtype, CHUNK, WORDS_K, constant=False)
    _, _, fetch_v, _ = make_reader(kind.dtype, CHUNK, WORDS_V, constant=False)
    K_WHOLE, V_WHOLE, MEETING = D == 4 * CHUNK * KC, E == WIDTH, config.meeting

    @device_function
    def find(cursor, start, span, shape, paging):
        """Look up the pages of a turn's tiles."""
        forget_own(cursor.own)
        b = divide(cursor.own[1], shape.kv_heads)
        for u in range(TILES):
            j = start + u * KEYS
            cursor.rows[u] = j if j < span.end else 0
            if PAGED:
                cursor.pages[u], cursor.rows[u] = place(b, cursor.rows[u], paging)
        forget(cursor.rows)  # or each address would have registers of its own, to be stepped

    @device_function
    def load_keys(raw, start, cache, cursor, span, shape):
        """Both keys of a thread of each tile."""
        own, strides = cursor.own, cache.k_strides
        forget_own(own)
        key, column = (own[0] >> 2) & 7, (own[0] & 3) * CHUNK
        b, g = divide_remainder(own[1], shape.kv_heads)
        for u in range(TILES):
            at = (cursor.pages[u] if PAGED else b) * strides.batch + g * strides.head + column
            for half in range(2):
                j = start + u * KEYS + half * EIGHT + key
                exists = j < span.end
                if WINDOWED:
                    exists = exists and j >= span.begin
                row = advance(cache.k, at + (cursor.rows[u] + half * EIGHT + key) * i64(i32(strides.row)))
                for c in range(KC):
                    inside = exists
                    if not K_WHOLE:
                        inside = exists and column + c * 4 * CHUNK < D
                    fetch_k(raw, u * K_TILE + (half * KC + c) * 4, row, c * 4 * CHUNK, inside)

    @device_function
    def load_values(raw, start, cache, cursor, span, shape):
        """The values of the four keys of a thread of each tile: two neighbours of the first eight, two of the last."""
        own, strides = cursor.own, cache.v_strides
        forget_own(own)
        key, column = 2 * (own[0] & 3), ((own[0] >> 2) & 7) * CHUNK
        b, g = divide_remainder(own[1], shape.kv_heads)
        for u in range(TILES):
            at = (cursor.pages[u] if PAGED else b) * strides.batch + g * strides.head + column
            for n in range(4):
                j = start + u * KEYS + (n // 2) * EIGHT + n % 2 + key
                exists = j < span.end
                if WINDOWED:
                    exists = exists and j >= span.begin
                row = advance(cache.v, at + (cursor.rows[u] + (n // 2) * EIGHT + n % 2 + key) * i64(i32(strides.row)))
                for c in range(VC):
                    inside = exists
                    if not V_WHOLE:
                        inside = exists and column + c * EIGHT * CHUNK < E
                    fetch_v(raw, u * V_TILE + (n * VC + c) * 4, row, c * EIGHT * CHUNK, inside)

    @device_function
    def share_queries(q, strides, to, raw, bias_at, bias_strides, tile, b, g, shape, warp, key, quad):
        """Queries into shared memory, in the order in which products read them, by the first warp; where the rows' biases begin."""
        for n in range(EIGHTS):
            row = tile.row0 + n * EIGHT + key
            if BIAS and warp == 0 and quad == 0:
                bias_at[n * EIGHT + key] = query_at(b, g, row, shape, bias_strides)
            at = query_at(b, g, row, shape, strides)
            for c in range(KC):
                column = (quad + c * 4) * CHUNK
                if warp == 0:
                    fetch_q(raw, 0, advance(q, at), column, row < shape.rows and column < D)
                    store_shared_4u32(to + u32((n * KC + c) * 16 * LANES), raw[0], raw[1], raw[2], raw[3])
        cuda.syncthreads()

    # ---- scores and their softmax

    mma, pack, unpack, ALIKE = make_mma(kind.dtype), element(kind.dtype).pack, element(kind.dtype).unpack, config.alike
    SCORES = TILES * EIGHTS * 4

    @device_function
    def begin_rows(rows, tile, span, shape, lengths, key, pair):
        """No key yet; which keys each row attends to."""
        for r in range(OWN):
            rows.row_max[r], rows.row_sum[r] = f32(NEG_INF), f32(0)
            rows.begins[r], rows.ends[r] = i32(0), i32(-LANES)
            row = tile.row0 + (r // 2) * EIGHT + pair + r % 2
            if row < shape.rows:
                _, i = divide_remainder(row, shape.queries)
                begin, end = terms.key_range(i, i32(shape.queries.d), span.keys, lengths.bounds)
                rows.begins[r], rows.ends[r] = max(begin, span.begin) - key, min(end, span.end) - key

    @device_function
    def multiply_keys(fragments, q_at):
        """scores = K q^T."""
        k, q, left, scores = fragments.k, fragments.q, fragments.left, fragments.scores
        for s in range(SCORES):
            scores[s] = f32(0)
        for u in range(TILES):
            for c in range(KC):
                for n in range(EIGHTS):
                    q[4 * n], q[4 * n + 1], q[4 * n + 2], q[4 * n + 3] = load_shared_4u32(q_at + u32((n * KC + c) * 16 * LANES))
                for half in range(2):
                    for w in range(2):
                        left[2 * w] = k[u * K_TILE + c * 4 + 2 * half + w]
                        left[2 * w + 1] = k[u * K_TILE + (KC + c) * 4 + 2 * half + w]
                    for n in range(EIGHTS):
                        mma(scores, (u * EIGHTS + n) * 4, left, 0, q, 4 * n + 2 * half)

    @device_function
    def mask_scores(scores, rows, start, own, span, scoring):
        """Products become scores, -inf where a row does not attend to the key; whether some row's maximum grows."""
        forget_own(own)
        key, pair, grown = (own[0] >> 2) & 7, 2 * (own[0] & 3), i32(0)
        for n in range(EIGHTS):
            for p in range(2):
                top = f32(NEG_INF)
                for u in range(TILES):
                    for half in range(2):
                        s = (u * EIGHTS + n) * 4 + 2 * half + p
                        j, x = start + (u * KEYS + half * EIGHT), f32(NEG_INF)
                        if ALIKE:
                            attends = j + key < span.end
                            if WINDOWED:
                                attends = attends and j + key >= span.begin
                        else:
                            attends = j >= rows.begins[2 * n + p] and j < rows.ends[2 * n + p]
                        if attends:
                            at = i64(0)
                            if BIAS:
                                at = rows.bias_at[pair + n * EIGHT + p] + (j + key) * scoring.bias_strides.column
                            x = terms.score(scores[s], 0, f32(0), scoring.bias, at, scoring.scale, scoring.softcap)
                        scores[s] = x
                        top = maximum(top, x)
                top = maximum(top, shuffle_xor(top, 16))
                top = maximum(top, shuffle_xor(top, 8))
                top = maximum(top, shuffle_xor(top, 4))
                rows.new_max[2 * n + p] = powers.attended(maximum(rows.row_max[2 * n + p], top))
                if rows.new_max[2 * n + p] != rows.row_max[2 * n + p]:
                    grown = 1
        return grown

    @device_function
    def rescale(acc, rows):
        """Accumulators and sums relative to the new maxima."""
        for n in range(EIGHTS):
            for p in range(2):
                r = 2 * n + p
                fall = f32(1)
                if rows.row_max[r] != NEG_INF:
                    fall = powers.fall(powers.level(rows.row_max[r]), powers.level(rows.new_max[r]))
                rows.row_max[r], rows.row_sum[r] = rows.new_max[r], rows.row_sum[r] * fall
                for s in range(VC * 8):
                    acc[n * VC * 16 + 2 * s + p] = acc[n * VC * 16 + 2 * s + p] * fall

    @device_function
    def transposed(word, source, selector):
        """Of words of two rows of a key, with keys along the groups of four lanes, those of two keys of a row, with rows along them."""
        return permute_bytes(broadcast(word, source), broadcast(word, source + 4), selector)

    @device_function
    def exponentiate(fragments, rows, own):
        """Scores become probabilities: the right operand of the product with V, with keys where scores have rows."""
        scores, high, low = fragments.scores, fragments.high, fragments.low
        forget_own(own)
        source = 8 * (own[0] & 3) + ((own[0] >> 3) & 3)
        selector = u32(0x7632) if own[0] & 4 else u32(0x5410)
        for n in range(EIGHTS):
            for p in range(2):
                level = powers.level(rows.row_max[2 * n + p])
                for u in range(TILES):
                    for half in range(2):
                        s = (u * EIGHTS + n) * 4 + 2 * half + p
                        scores[s] = powers.rise(scores[s], level)
                        rows.row_sum[2 * n + p] = rows.row_sum[2 * n + p] + scores[s]
            for u in range(TILES):
                for half in range(2):
                    s = (u * EIGHTS + n) * 4 + 2 * half
                    word = pack(scores[s], scores[s + 1])
                    x, y = unpack(word)
                    rest = pack(scores[s] - x, scores[s + 1] - y)
                    high[(u * EIGHTS + n) * 2 + half] = transposed(word, source, selector)
                    low[(u * EIGHTS + n) * 2 + half] = transposed(rest, source, selector)

    # ---- values

    @device_function
    def multiply_values(fragments):
        """acc += V^T p."""
        v, left, acc = fragments.v, fragments.left, fragments.acc
        for u in range(TILES):
            for c in range(VC):
                for w in range(4):
                    for m in range(2):
                        x, y = v[u * V_TILE + (2 * m * VC + c) * 4 + w], v[u * V_TILE + ((2 * m + 1) * VC + c) * 4 + w]
                        left[2 * m] = permute_bytes(x, y, 0x5410)
                        left[2 * m + 1] = permute_bytes(x, y, 0x7632)
                    for n in range(EIGHTS):
                        mma(acc, ((n * VC + c) * 4 + w) * 4, left, 0, fragments.high, (u * EIGHTS + n) * 2)
                        mma(acc, ((n * VC + c) * 4 + w) * 4, left, 0, fragments.low, (u * EIGHTS + n) * 2)

    # ---- the block that comes in this one's place

    LOG_LINES = (ceil_div(max(D, E), LINE) - 1).bit_length()  # of threads that prefetch a key, or its values
    TURNS, Q_LINES = ceil_div(KEYS << LOG_LINES, LANES), ceil_div(D, LINE)

    @device_function
    def prefetch_rows(x, at, step, j0, span, lane, width):
        """Into the L2: keys `j0` to `j0 + 16`, or their values, as far as they are in the span, from element `at` of x on."""
        for n in range(TURNS):
            item = lane + n * LANES
            r, column = item >> LOG_LINES, (item & ((1 << LOG_LINES) - 1)) * LINE
            if j0 + r >= span.begin and j0 + r < span.end and column < width:
                prefetch_l2(advance(x, at + r * step + column))

    @device_function
    def prefetch_next(block, q, q_strides, cache, cursor, shape, lengths, paging, splits):
        """Bring the first tiles of a block into the L2, so that memory is not idle until it asks for them."""
        lane, warp = cursor.own[0] & 31, cursor.own[0] >> 5
        if block < cuda.gridDim.x:
            tile = tile_of(block, shape, splits)
            b, g = divide_remainder(tile.head, shape.kv_heads)
            cursor.own[1] = tile.head
            span = span_of(block, tile.split, warp, b, shape, lengths, splits)
            find(cursor, span.start, span, shape, paging)
            for u in range(TILES):
                j, page, row = span.start + u * KEYS, cursor.pages[u] if PAGED else b, i64(cursor.rows[u])
                k_at = page * cache.k_strides.batch + g * cache.k_strides.head + row * cache.k_strides.row
                prefetch_rows(cache.k, k_at, cache.k_strides.row, j, span, lane, D)
                v_at = page * cache.v_strides.batch + g * cache.v_strides.head + row * cache.v_strides.row
                prefetch_rows(cache.v, v_at, cache.v_strides.row, j, span, lane, E)
            row = tile.row0 + (lane & (ROWS - 1))
            if warp == 0 and row < shape.rows:
                for c in range(Q_LINES):
                    prefetch_l2(advance(q, query_at(b, g, row, shape, q_strides) + c * LINE))

    # ---- warps meet

    ITEM, MAX_AT = ROWS * PITCH, WARPS * ROWS * PITCH
    SUM_AT = MAX_AT + WARPS * ROWS

    @device_function
    def share_rows(memory, acc, rows, own):
        """A warp's accumulators and row_sum into shared memory, relative to the block's row_max."""
        forget_own(own)
        group, pair, warp = (own[0] >> 2) & 7, 2 * (own[0] & 3), own[0] >> 5
        for r in range(OWN):
            if group == 0:
                memory[MAX_AT + warp * ROWS + (pair + (r // 2) * EIGHT + r % 2)] = rows.row_max[r]
        cuda.syncthreads()
        for n in range(EIGHTS):
            for p in range(2):
                row, top = pair + n * EIGHT + p, rows.row_max[2 * n + p]
                for w in range(WARPS):
                    top = maximum(top, memory[MAX_AT + w * ROWS + row])
                fall = f32(0)
                if rows.row_max[2 * n + p] != NEG_INF:
                    fall = powers.fall(powers.level(rows.row_max[2 * n + p]), powers.level(top))
                total = rows.row_sum[2 * n + p] * fall
                total = total + shuffle_xor(total, 16)
                total = total + shuffle_xor(total, 8)
                total = total + shuffle_xor(total, 4)
                if group == 0:
                    memory[SUM_AT + warp * ROWS + row] = total
                for c in range(VC):
                    at = shared_address(memory, warp * ITEM + row * PITCH + (group + c * EIGHT) * CHUNK)
                    for w in range(2):
                        s = ((n * VC + c) * 4 + 2 * w) * 4 + p
                        store_shared_4f32(at + u32(16 * w), acc[s] * fall, acc[s + 2] * fall, acc[s + 4] * fall, acc[s + 6] * fall)
        cuda.syncthreads()

    @device_function
    def add_warps(values, memory, r, column):
        """(row_max, row_sum) of a row of the block, and four of its values."""
        row_max, row_sum = f32(NEG_INF), f32(0)
        for e in range(4):
            values[e] = f32(0)
        for w in range(WARPS):
            row_max = maximum(row_max, memory[MAX_AT + w * ROWS + r])
            row_sum = row_sum + memory[SUM_AT + w * ROWS + r]
            some = load_shared_4f32(shared_address(memory, w * ITEM + (r * PITCH + column)))
            for e in range(4):
                values[e] = values[e] + some[e]
        return row_max, row_sum

    # ---- blocks of a cluster meet; the result

    CLUSTERED, RANGES, SHARE = config.clustered, config.splits, config.share  # of clusters the kernel knows the number of ranges
    PUSHED_AT, PUSH, FOURS, SPLIT = config.merging // 4, ROWS * SHARE, WIDTH // 4, config.splits > 1
    PUSHED_ROWS_AT = PUSHED_AT + RANGES * PUSH
    BY_SHARE, BY_SHARE_FOURS, BY_FOURS = divisor(SHARE), divisor(SHARE // 4), divisor(FOURS)
    merge, store_output, (values_at, scores_at) = make_merge(kind), make_store_output(config.parts), make_places(config.parts)

    @device_function
    def push(memory, values, row_max, row_sum, split, r, four):
        """Write values, and what they are relative to, into the shared memory of the block that merges them."""
        rank, own_four = divide_remainder(four, BY_SHARE_FOURS)
        at = PUSHED_AT + (split * PUSH + r * SHARE + 4 * own_four)
        to = remote_address(shared_address(memory, at), u32(rank))
        for e in range(4):
            store_remote_f32(to + u32(4 * e), values[e])
        if four < RANGES:
            to = remote_address(shared_address(memory, PUSHED_ROWS_AT + (split * 2 * ROWS + r)), u32(four))
            store_remote_f32(to, row_max)
            store_remote_f32(to + 4 * ROWS, row_sum)

    @device_function
    def store_tile(memory, partial, outputs, shape, tile, splits, thread):
        """Add up the warps: to the other blocks of the cluster, to the workspace, or as the result."""
        values = cuda.local.array(4, f32)
        b, g = divide_remainder(tile.head, shape.kv_heads)
        count = min(shape.rows - tile.row0, ROWS)
        for item in range(thread, count * FOURS, THREADS):
            r, four = divide_remainder(item, BY_FOURS)
            column = 4 * four
            row_max, row_sum = add_warps(values, memory, r, column)
            if CLUSTERED:
                push(memory, values, row_max, row_sum, tile.split, r, four)
            elif SPLIT:
                part, parts = i64(tile.number) * splits.d + tile.split, i64(shape.all_tiles.d) * splits.d
                store4_from(partial, values_at(part, r, column), values, 0)
                if column == 0:
                    max_at, sum_at = scores_at(part, parts, r)
                    partial[max_at], partial[sum_at] = row_max, row_sum
            else:
                for e in range(4):
                    store_output(outputs, shape, b, g, tile.row0 + r, column + e, row_max, row_sum, values[e])
        if CLUSTERED:
            cluster_sync()
            for item in range(thread, count * SHARE, THREADS):
                r, column = divide_remainder(item, BY_SHARE)
                column = tile.split * SHARE + column
                if column < E:
                    row_max, row_sum, value = merge(memory, PUSHED_AT + item, PUSH, PUSHED_ROWS_AT + r, PUSHED_ROWS_AT + ROWS + r, 2 * ROWS,
                                                    RANGES)
                    store_output(outputs, shape, b, g, tile.row0 + r, column, row_max, row_sum, value)

    # ---- the kernel

    OVERLAPS, DEPENDENT, BIASES = config.overlaps, dependent, ROWS if BIAS else 1
    K_ALL, V_ALL, QUERIES, WEIGHTS, ACC = TILES * K_TILE, TILES * V_TILE, EIGHTS * 4, TILES * EIGHTS * 2, EIGHTS * VC * 16

    @jit(launch_bounds=(THREADS, config.blocks))
    def sdpa_decode_split_kv_mma(q, k, v, o, lse, partial, of_keys, table, sink, shape, page, splits, slots, q_strides, k_strides,
                                 v_strides, o_strides, key_step, table_strides, sink_step, lse_strides, bounds, scale, softcap, bias,
                                 bias_strides):
        memory, bias_at = cuda.shared.array(0, f32, alignment=16), cuda.shared.array(BIASES, i64)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        key, quad = lane >> 2, lane & 3
        if CLUSTERED:
            cluster_arrive_relaxed()
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        lengths, paging = Lengths(of_keys, key_step, bounds), Paging(table, table_strides, page, shape.pages)
        cache, scoring = Cache(k, v, k_strides, v_strides), Scoring(scale, softcap, bias, bias_strides)
        block = cuda.blockIdx.x
        tile = tile_of(block, shape, splits)
        b, g = divide_remainder(tile.head, shape.kv_heads)
        span = span_of(block, tile.split, warp, b, shape, lengths, splits)

        # keys and values of the first turn, the pages of the next one, and the queries
        cursor = Cursor(cuda.local.array(2, i32), cuda.local.array(TILES, i32), cuda.local.array(TILES, i32))
        cursor.own[0], cursor.own[1] = thread, tile.head
        fragments = Fragments(cuda.local.array(K_ALL, u32), cuda.local.array(V_ALL, u32), cuda.local.array(QUERIES, u32),
                              cuda.local.array(4, u32), cuda.local.array(WEIGHTS, u32), cuda.local.array(WEIGHTS, u32),
                              cuda.local.array(SCORES, f32), cuda.local.array(ACC, f32))
        start, left = span.start, span.turns
        find(cursor, start, span, shape, paging)
        load_keys(fragments.k, start, cache, cursor, span, shape)
        if OVERLAPS:
            load_values(fragments.v, start, cache, cursor, span, shape)
            find(cursor, after(start, span), span, shape, paging)
        q_at = shared_address(memory, 0) + u32(MEETING + 16 * lane)
        share_queries(q, q_strides, q_at, fragments.q, bias_at, bias_strides, tile, b, g, shape, warp, key, quad)
        for s in range(ACC):
            fragments.acc[s] = f32(0)
        rows = Rows(cuda.local.array(OWN, f32), cuda.local.array(OWN, f32), cuda.local.array(OWN, f32), cuda.local.array(OWN, i32),
                    cuda.local.array(OWN, i32), bias_at)
        begin_rows(rows, tile, span, shape, lengths, key, 2 * quad)

        while left > 0:
            left = left - 1
            following = after(start, span) if left > 0 else span.end
            multiply_keys(fragments, q_at)
            if OVERLAPS:
                load_keys(fragments.k, following, cache, cursor, span, shape)
                if EIGHTS == 1:
                    cuda.syncwarp()  # or ptxas moves the loads to the end of the loop
            grown = mask_scores(fragments.scores, rows, start, cursor.own, span, scoring)
            if any_lane(grown):
                rescale(fragments.acc, rows)
            exponentiate(fragments, rows, cursor.own)
            if not OVERLAPS:
                load_values(fragments.v, start, cache, cursor, span, shape)
                find(cursor, following, span, shape, paging)
            multiply_values(fragments)
            if OVERLAPS:
                load_values(fragments.v, following, cache, cursor, span, shape)
                find(cursor, after(following, span), span, shape, paging)
            else:
                load_keys(fragments.k, following, cache, cursor, span, shape)
            start = following

        forget_own(cursor.own)
        block = broadcast(cuda.blockIdx.x, 0)  # the same, but what followed from it needs no registers until now
        if not CLUSTERED:
            prefetch_next(block + slots, q, q_strides, cache, cursor, shape, lengths, paging, splits)
        share_rows(memory, fragments.acc, rows, cursor.own)
        if CLUSTERED:
            cluster_wait()
        store_tile(memory, partial, Outputs(o, o_strides, sink, sink_step, lse, lse_strides), shape, tile_of(block, shape, splits), splits,
                   cursor.own[0])
    return sdpa_decode_split_kv_mma
