"""`split_kv` on tensor cores: a warp takes 16 keys at a time straight from the cache into the registers that its products read.

- The rows that share a head of the cache are the eight columns, or sixteen, of both products: scores [key][row] = K q^T, and sums [element]
  [row] = V^T p, so that a few rows waste nothing, and a row's largest score and factors are in the threads that have its sums.
- Which element of a head is which k of an instruction is anybody's choice, as long as it is the same for q and K: a thread has 16 bytes of
  a row, which are k of two instructions. Of V it has 16 bytes of each of four keys; pairs of keys share a word after a permutation of
  bytes. Nothing passes through shared memory on its way.
- Loads of the next keys replace those of K as soon as the scores are there, and those of V as soon as they are weighed: a warp always has
  one of the two under way. (Of heads of more than 128 elements either is loaded when the other is done.) Warps meet once, at the end of
  their range.
- Ranges meet in a second launch, whose blocks begin beside the last ranges where these leave room for them; or, where there are two and a
  block has a multiprocessor or half of one, as a cluster whose blocks write what each merges into the other's shared memory.
- Warps begin with different keys of their ranges and go around, so that blocks do not walk in step through caches that are a power of two
  apart.
- A multiprocessor has registers for twelve warps, or eight: as blocks of few, for many sequences, each of which is then one range and needs
  no merge, or of many, which leave fewer ranges of a long sequence; whichever fills the device in one wave.
- Between a block's last loads and the first ones of the block that takes its place memory would be idle. So a block, done with its keys,
  has the first tiles of that one brought into the L2, and only then meets.
- A probability is the sum of two halves, what the first leaves out being in the second: it is as exact as a float32 to 16 bits, or more.

Memory bounds it.
"""
import functools
from dataclasses import replace

from ....device import cuda, device_function, f32, i32, i64, jit, u32
from ....device.cluster import cluster_arrive_relaxed, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ....device.convert import element
from ....device.dependent import launch_dependent_grids, wait_for_previous_grid
from ....device.fastmath import maximum
from ....device.groups import make_reader
from ....device.index import LIMIT, Divisor, ceil_div, divide, divide_remainder, divisor
from ....device.mma import make_mma
from ....device.numeric import permute_bytes
from ....device.vec import (advance, load_shared_4f32, load_shared_4u32, pin, prefetch_l2, shared_address, store4_from, store_shared_4f32,
                            store_shared_4u32)
from ....device.warp import any_lane, broadcast, shuffle_xor
from ....dispatch import Algorithm, Note
from ....host.launch import Argument, Launch
from ..._flash import make_powers
from ..._parameters import Sequences, Strides
from ..._scores import NEG_INF, make_terms
from .._ranges import (lines_of, make_joined, make_places, make_range, make_result, merge_launch, parts_bytes, refusal, shape_arguments,
                       sink_arguments)
from ..sdpa_decode_naive import bias_arguments, cache_arguments, lse_argument, make_place
from .config import CHUNK, EIGHT, KEYS, LANES, configs, estimate, words_of

WIDEST = 256
HALVES = ("float16", "bfloat16")
LINE = 64  # elements in a line of the L2
GOLDEN = 0x9E3779B1  # 2**32 by the golden ratio: multiples of it are spread evenly


def supports(problem):
    """Halves, rows of whole accesses, and pages of whole tiles."""
    p = problem
    if reason := refusal(p):
        return reason
    if p.dtype not in HALVES:
        return f"{p.dtype}; expected {' or '.join(HALVES)}"
    if p.capacity >= LIMIT // 2:
        return f"{p.capacity} keys of a sequence; expected fewer than 2**30"
    if max(p.d, p.dv) > WIDEST or p.d % CHUNK or p.dv % CHUNK or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected multiples of {CHUNK}, {WIDEST} at most"
    if any(t.strides[-1] != 1 for t in (p.q, p.k_cache, p.v_cache)):
        return "the elements of a head are not contiguous"
    if not all(words_of(p)):
        return f"{p.q}, {p.k_cache}, {p.v_cache}; expected rows of whole words of four bytes"
    if p.page_table is not None and p.page % KEYS:
        return f"pages of {p.page} keys; expected multiples of {KEYS}"
    step = max(abs(p.strides(t)[2]) for t in (p.k_cache, p.v_cache))
    if step * KEYS >= LIMIT:
        return f"keys {step} elements apart; expected fewer than 2**27"
    elements = p.batch * p.kv_heads * (p.group * p.rows + 2 * EIGHT) * 2 * max(p.d, p.dv, 1024)
    return None if elements < LIMIT else f"{p.batch} sequences of {p.heads} heads; expected fewer than 2**31 elements of tiles"


def workspace(problem, device, config):
    """What ranges leave, where there are several and a launch of its own merges them."""
    return 0 if config.clustered else parts_bytes(problem, config.parts, config.splits)


@functools.cache
def kernel(config, dependent):
    """A tile of rows and a range of keys a block, every so many-th 16 of them a warp."""
    kind = config.kind
    terms, powers, place = make_terms(kind), make_powers(kind.compute), make_place(config.paged)
    joined = make_joined(kind)
    range_of, result, (sum_at, score_at) = make_range(KEYS), make_result(config.parts), make_places(config.parts)
    EIGHTS, ROWS, WIDTH, PITCH, D, E = config.eights, config.rows, config.width, config.pitch, config.d, config.e
    KC, VC, TILES, SPLIT, DEPENDENT = config.k_chunks, config.v_chunks, config.tiles, config.splits > 1, dependent
    PAGED, OVERLAPS, ALIKE, WINDOWED = config.paged, config.overlaps, config.alike, config.windowed
    K_WHOLE, V_WHOLE = D == 4 * CHUNK * KC, E == WIDTH
    WARPS, THREADS, BIAS = config.warps, config.threads, bool(kind.bias)
    STARTS = 2 * EIGHTS if BIAS else 1
    OWN, SPAN, STEP = 2 * EIGHTS, TILES * KEYS, WARPS * TILES * KEYS  # a thread's rows; a warp's keys, a block's
    _, _, fetch_q, _ = make_reader(kind.dtype, CHUNK, config.words[0])
    _, _, fetch_k, _ = make_reader(kind.dtype, CHUNK, config.words[1], constant=False)
    _, _, fetch_v, _ = make_reader(kind.dtype, CHUNK, config.words[2], constant=False)
    forget, forget_own = pin(TILES), pin(2)
    mma, pack, unpack = make_mma(kind.dtype), element(kind.dtype).pack, element(kind.dtype).unpack
    K_TILE, V_TILE, QUERIES = 2 * KC * 4, 4 * VC * 4, EIGHTS * 4
    K_ALL, V_ALL, SCORES, SUMS = TILES * K_TILE, TILES * V_TILE, TILES * EIGHTS * 4, EIGHTS * VC * 16
    WEIGHTS, MEETING = TILES * EIGHTS * 2, config.meeting
    ITEM, TOPS = ROWS * PITCH, WARPS * ROWS * PITCH
    TOTALS = TOPS + WARPS * ROWS
    CLUSTERED, RANGES, SHARE = config.clustered, config.splits, config.share  # of clusters the kernel knows the number of ranges
    PUSHED, PUSH = config.merging // 4, ROWS * SHARE
    LEVELS = PUSHED + RANGES * PUSH
    OF_SHARE, OF_SHARE_FOURS = divisor(SHARE), divisor(SHARE // 4)
    FOURS = WIDTH // 4
    BRINGERS_LOG = (ceil_div(max(D, E), LINE) - 1).bit_length()  # of threads that bring a key, or its values
    BRINGERS, LINES = 1 << BRINGERS_LOG, ceil_div(D, LINE)
    BROUGHT = ceil_div(KEYS * BRINGERS, LANES)
    OF_FOURS, OF_STEP = divisor(FOURS), divisor(STEP)

    @device_function
    def base(number, g, strides):
        """Where a head of a page begins, or of a sequence."""
        return number * strides.batch + g * strides.head

    @device_function
    def fetch_keys(raw, k, j0, first, last, own, numbers, rows, heads_of, strides):
        """Both rows of a thread of each tile of 16 keys."""
        forget_own(own)
        group, lane_column = (own[0] >> 2) & 7, (own[0] & 3) * CHUNK
        b, g = divide_remainder(own[1], heads_of)
        for u in range(TILES):
            at = base(numbers[u] if PAGED else b, g, strides) + lane_column
            for half in range(2):
                j = j0 + u * KEYS + half * EIGHT + group
                there = j < last
                if WINDOWED:
                    there = there and j >= first
                row = advance(k, at + (rows[u] + half * EIGHT + group) * i64(i32(strides.row)))
                for c in range(KC):
                    inside = there
                    if not K_WHOLE:
                        inside = there and lane_column + c * 4 * CHUNK < D
                    fetch_k(raw, u * K_TILE + (half * KC + c) * 4, row, c * 4 * CHUNK, i32(inside))

    @device_function
    def fetch_values(raw, v, j0, first, last, own, numbers, rows, heads_of, strides):
        """The four keys of a thread of each tile: two neighbours of the first eight, two of the last."""
        forget_own(own)
        pair, lane_column = 2 * (own[0] & 3), ((own[0] >> 2) & 7) * CHUNK
        b, g = divide_remainder(own[1], heads_of)
        for u in range(TILES):
            at = base(numbers[u] if PAGED else b, g, strides) + lane_column
            for n in range(4):
                j = j0 + u * KEYS + (n // 2) * EIGHT + n % 2 + pair
                there = j < last
                if WINDOWED:
                    there = there and j >= first
                row = advance(v, at + (rows[u] + (n // 2) * EIGHT + n % 2 + pair) * i64(i32(strides.row)))
                for c in range(VC):
                    inside = there
                    if not V_WHOLE:
                        inside = there and lane_column + c * EIGHT * CHUNK < E
                    fetch_v(raw, u * V_TILE + (n * VC + c) * 4, row, c * EIGHT * CHUNK, i32(inside))

    @device_function
    def find(numbers, rows, own, j0, last, heads_of, table, table_strides, page, pages):
        """Where tiles of keys lie."""
        forget_own(own)
        b = divide(own[1], heads_of)
        for u in range(TILES):
            j = j0 + u * KEYS
            rows[u] = j if j < last else 0
            if PAGED:
                numbers[u], rows[u] = place(b, rows[u], table, table_strides, page, pages)
        forget(rows)  # or each address would have registers of its own, to be stepped

    @device_function
    def after(j, j0, last):
        """Where a warp goes on: at its first keys behind its last ones."""
        following = j + STEP
        return following if following < last else j0

    @device_function
    def where(block, splits, tiles):
        """(range, line, sequence and head of the cache as one number, first row) of a block."""
        line, split = divide_remainder(block, splits)
        place_of, tile = divide_remainder(line, tiles)
        return split, line, place_of, tile * ROWS

    @device_function
    def share(block, split, warp, b, per, sizes, splits, of_keys, key_step, bounds):
        """Keys of a sequence; of a block's range the first one that anybody sees, and behind the last; a warp's first one, how many turns
        it takes, and where it begins."""
        _, _, _, keys = terms.lengths(b, Sequences(of_keys, of_keys, 0, key_step), i32(per.d), sizes.capacity)
        oldest, _ = terms.key_range(0, i32(per.d), keys, bounds)
        first, last = range_of(split, splits, oldest, keys)
        j0 = first + warp * SPAN
        turns = divide(max(last - j0, 0) + (STEP - 1), OF_STEP)
        spread = (block * i64(GOLDEN)) & 0xFFFFFFFF  # a 2**32th of the turns, as if by chance
        start = j0 + i32((spread * turns) >> 32) * STEP
        return keys, max(first, oldest), last, j0, turns, start

    @device_function
    def query(b, g, row, many, per, sizes, strides):
        """Where row number `row` of a head of the cache lies in q."""
        member, i = divide_remainder(row if row < many else 0, per)
        return b * strides.batch + (g * sizes.group + member) * strides.head + i * strides.row

    @device_function
    def bring(x, at, step, j0, first, last, lane, width):
        """Into the L2: 16 rows from element `at` of x on, as far as they are `first` to `last`, where `j0` is the first one."""
        for n in range(BROUGHT):
            item = lane + n * LANES
            r, column = item >> BRINGERS_LOG, (item & (BRINGERS - 1)) * LINE
            if j0 + r >= first and j0 + r < last and column < width:
                prefetch_l2(advance(x, at + r * step + column))

    @device_function
    def turned(word, from_, selector):
        """Of words of two rows of a key, with keys along the groups of four lanes, those of two keys of a row, with rows along them."""
        return permute_bytes(broadcast(word, from_), broadcast(word, from_ + 4), selector)

    @jit(launch_bounds=(THREADS, config.blocks))
    def sdpa_decode_split_kv_mma(q, k, v, o, lse, partial, of_keys, table, sink, lines, tiles, heads_of, per, sizes, page, splits, slots,
                                 q_strides, k_strides, v_strides, o_strides, key_step, table_strides, sink_step, lse_strides, bounds, scale,
                                 softcap, bias, bias_strides):
        memory = cuda.shared.array(0, f32)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        group, quad = lane >> 2, lane & 3
        if CLUSTERED:
            cluster_arrive_relaxed()
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        block, many = cuda.blockIdx.x, sizes.rows
        split, _, place_of, row0 = where(block, splits, tiles)
        b, g = divide_remainder(place_of, heads_of)
        keys, least, last, j0, turns, start = share(block, split, warp, b, per, sizes, splits, of_keys, key_step, bounds)

        # keys and values of the first tiles, where those of the next ones lie, and the queries
        pair, own = 2 * quad, cuda.local.array(2, i32)
        own[0], own[1] = thread, place_of  # what follows from it is computed again in every turn, for want of registers
        of_k, of_v, queries = cuda.local.array(K_ALL, u32), cuda.local.array(V_ALL, u32), cuda.local.array(QUERIES, u32)
        numbers, rows = cuda.local.array(TILES, i32), cuda.local.array(TILES, i32)
        find(numbers, rows, own, start, last, heads_of, table, table_strides, page, sizes.pages)
        fetch_keys(of_k, k, start, least, last, own, numbers, rows, heads_of, k_strides)
        if OVERLAPS:
            fetch_values(of_v, v, start, least, last, own, numbers, rows, heads_of, v_strides)
            find(numbers, rows, own, after(start, j0, last), last, heads_of, table, table_strides, page, sizes.pages)
        own_queries = shared_address(memory, 0) + u32(MEETING + 16 * lane)
        for n in range(EIGHTS):
            row = row0 + n * EIGHT + group
            at = query(b, g, row, many, per, sizes, q_strides)
            for c in range(KC):
                column = (quad + c * 4) * CHUNK
                if warp == 0:
                    fetch_q(queries, 0, advance(q, at), column, i32(row < many and column < D))
                    store_shared_4u32(own_queries + u32((n * KC + c) * 16 * LANES), queries[0], queries[1], queries[2], queries[3])
        cuda.syncthreads()

        sums, scores = cuda.local.array(SUMS, f32), cuda.local.array(SCORES, f32)
        row_max, row_sum, news = cuda.local.array(OWN, f32), cuda.local.array(OWN, f32), cuda.local.array(OWN, f32)
        lows, highs = cuda.local.array(OWN, i32), cuda.local.array(OWN, i32)  # less the thread's own key of a tile
        high, low = cuda.local.array(WEIGHTS, u32), cuda.local.array(WEIGHTS, u32)
        fragment, starts = cuda.local.array(4, u32), cuda.local.array(STARTS, i64)
        for s in range(SUMS):
            sums[s] = f32(0)
        for r in range(OWN):
            row_max[r], row_sum[r] = f32(NEG_INF), f32(0)
            lows[r], highs[r] = i32(0), i32(-LANES)
            if BIAS:
                starts[r] = i64(0)
            row = row0 + (r // 2) * EIGHT + pair + r % 2
            if row < many:
                member, i = divide_remainder(row, per)
                if BIAS:
                    h = i64(g * sizes.group + member)
                    starts[r] = b * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
                begin, end = terms.key_range(i, i32(per.d), keys, bounds)
                lows[r], highs[r] = max(begin, least) - group, min(end, last) - group

        while turns > 0:
            turns = turns - 1
            following = after(start, j0, last) if turns > 0 else last
            # scores [key][row]
            for s in range(SCORES):
                scores[s] = f32(0)
            for u in range(TILES):
                for c in range(KC):
                    for n in range(EIGHTS):
                        queries[4 * n], queries[4 * n + 1], queries[4 * n + 2], queries[4 * n + 3] = load_shared_4u32(
                            own_queries + u32((n * KC + c) * 16 * LANES))
                    for half in range(2):
                        for w in range(2):
                            fragment[2 * w] = of_k[u * K_TILE + c * 4 + 2 * half + w]
                            fragment[2 * w + 1] = of_k[u * K_TILE + (KC + c) * 4 + 2 * half + w]
                        for n in range(EIGHTS):
                            mma(scores, (u * EIGHTS + n) * 4, fragment, 0, queries, 4 * n + 2 * half)
            if OVERLAPS:
                fetch_keys(of_k, k, following, least, last, own, numbers, rows, heads_of, k_strides)
                if EIGHTS == 1:
                    cuda.syncwarp()  # or ptxas moves the loads to the end of the loop

            # the largest score of each row; sums shrink where one has grown
            forget_own(own)
            group, rescaled = (own[0] >> 2) & 7, i32(0)
            for n in range(EIGHTS):
                for p in range(2):
                    top = f32(NEG_INF)
                    for u in range(TILES):
                        for half in range(2):
                            s = (u * EIGHTS + n) * 4 + 2 * half + p
                            j, x = start + (u * KEYS + half * EIGHT), f32(NEG_INF)
                            if ALIKE:
                                seen = j + group < last
                                if WINDOWED:
                                    seen = seen and j + group >= least
                            else:
                                seen = j >= lows[2 * n + p] and j < highs[2 * n + p]
                            if seen:
                                at = i64(0)
                                if BIAS:
                                    at = starts[2 * n + p] + (j + group) * bias_strides.column
                                x = terms.score(scores[s], 0, f32(0), bias, at, scale, softcap)
                            scores[s] = x
                            top = maximum(top, x)
                    top = maximum(top, shuffle_xor(top, 16))
                    top = maximum(top, shuffle_xor(top, 8))
                    top = maximum(top, shuffle_xor(top, 4))
                    news[2 * n + p] = maximum(row_max[2 * n + p], top)
                    if news[2 * n + p] != row_max[2 * n + p]:
                        rescaled = 1
            if any_lane(rescaled):
                for n in range(EIGHTS):
                    for p in range(2):
                        r = 2 * n + p
                        fall = f32(1)
                        if row_max[r] != NEG_INF:
                            fall = powers.fall(powers.level(row_max[r]), powers.level(news[r]))
                        row_max[r], row_sum[r] = news[r], row_sum[r] * fall
                        for s in range(VC * 8):
                            sums[n * VC * 16 + 2 * s + p] = sums[n * VC * 16 + 2 * s + p] * fall

            # probabilities, with keys where scores have rows
            forget_own(own)
            source = 8 * (own[0] & 3) + ((own[0] >> 3) & 3)
            selector = u32(0x7632) if own[0] & 4 else u32(0x5410)
            for n in range(EIGHTS):
                for p in range(2):
                    level = powers.level(row_max[2 * n + p])
                    for u in range(TILES):
                        for half in range(2):
                            s = (u * EIGHTS + n) * 4 + 2 * half + p
                            scores[s] = powers.rise(scores[s], level)
                            row_sum[2 * n + p] = row_sum[2 * n + p] + scores[s]
                for u in range(TILES):
                    for half in range(2):
                        s = (u * EIGHTS + n) * 4 + 2 * half
                        word = pack(scores[s], scores[s + 1])
                        x, y = unpack(word)
                        rest = pack(scores[s] - x, scores[s + 1] - y)
                        high[(u * EIGHTS + n) * 2 + half] = turned(word, source, selector)
                        low[(u * EIGHTS + n) * 2 + half] = turned(rest, source, selector)

            if not OVERLAPS:
                fetch_values(of_v, v, start, least, last, own, numbers, rows, heads_of, v_strides)
                find(numbers, rows, own, following, last, heads_of, table, table_strides, page, sizes.pages)

            # sums [element][row]
            for u in range(TILES):
                for c in range(VC):
                    for w in range(4):
                        for m in range(2):
                            x, y = of_v[u * V_TILE + (2 * m * VC + c) * 4 + w], of_v[u * V_TILE + ((2 * m + 1) * VC + c) * 4 + w]
                            fragment[2 * m] = permute_bytes(x, y, u32(0x5410))
                            fragment[2 * m + 1] = permute_bytes(x, y, u32(0x7632))
                        for n in range(EIGHTS):
                            mma(sums, ((n * VC + c) * 4 + w) * 4, fragment, 0, high, (u * EIGHTS + n) * 2)
                            mma(sums, ((n * VC + c) * 4 + w) * 4, fragment, 0, low, (u * EIGHTS + n) * 2)
            if OVERLAPS:
                fetch_values(of_v, v, following, least, last, own, numbers, rows, heads_of, v_strides)
                find(numbers, rows, own, after(following, j0, last), last, heads_of, table, table_strides, page, sizes.pages)
            else:
                fetch_keys(of_k, k, following, least, last, own, numbers, rows, heads_of, k_strides)
            start = following

        # the first tiles of the block that comes in this one's place, so that memory is not idle until it asks for them
        forget_own(own)
        block = broadcast(cuda.blockIdx.x, 0)  # the same, but what followed from it needs no registers until now
        if not CLUSTERED:
            beyond, lane, warp = block + slots, own[0] & 31, own[0] >> 5
            if beyond < cuda.gridDim.x:
                split, _, place_of, row0 = where(beyond, splits, tiles)
                b, g = divide_remainder(place_of, heads_of)
                own[1] = place_of
                _, least, last, _, _, start = share(beyond, split, warp, b, per, sizes, splits, of_keys, key_step, bounds)
                find(numbers, rows, own, start, last, heads_of, table, table_strides, page, sizes.pages)
                for u in range(TILES):
                    j, number, row = start + u * KEYS, numbers[u] if PAGED else b, i64(rows[u])
                    bring(k, base(number, g, k_strides) + row * k_strides.row, k_strides.row, j, least, last, lane, D)
                    bring(v, base(number, g, v_strides) + row * v_strides.row, v_strides.row, j, least, last, lane, E)
                row = row0 + (lane & (ROWS - 1))
                if warp == 0 and row < many:
                    for c in range(LINES):
                        prefetch_l2(advance(q, query(b, g, row, many, per, sizes, q_strides) + c * LINE))

        # the warps' sums, by the block's largest scores
        forget_own(own)
        group, pair, warp = (own[0] >> 2) & 7, 2 * (own[0] & 3), own[0] >> 5
        for r in range(OWN):
            if group == 0:
                memory[TOPS + warp * ROWS + (pair + (r // 2) * EIGHT + r % 2)] = row_max[r]
        cuda.syncthreads()
        for n in range(EIGHTS):
            for p in range(2):
                row, top = pair + n * EIGHT + p, row_max[2 * n + p]
                for w in range(WARPS):
                    top = maximum(top, memory[TOPS + w * ROWS + row])
                fall = f32(0)
                if row_max[2 * n + p] != NEG_INF:
                    fall = powers.fall(powers.level(row_max[2 * n + p]), powers.level(top))
                total = row_sum[2 * n + p] * fall
                total = total + shuffle_xor(total, 16)
                total = total + shuffle_xor(total, 8)
                total = total + shuffle_xor(total, 4)
                if group == 0:
                    memory[TOTALS + warp * ROWS + row] = total
                for c in range(VC):
                    at = shared_address(memory, warp * ITEM + row * PITCH + (group + c * EIGHT) * CHUNK)
                    for w in range(2):
                        s = ((n * VC + c) * 4 + 2 * w) * 4 + p
                        store_shared_4f32(at + u32(16 * w), sums[s] * fall, sums[s + 2] * fall, sums[s + 4] * fall,
                                          sums[s + 6] * fall)
        cuda.syncthreads()
        whole = cuda.local.array(4, f32)
        split, line, place_of, row0 = where(block, splits, tiles)
        b, g = divide_remainder(place_of, heads_of)
        if CLUSTERED:
            cluster_wait()
        for item in range(own[0], min(many - row0, ROWS) * FOURS, THREADS):
            r, four = divide_remainder(item, OF_FOURS)
            column, top, total = 4 * four, f32(NEG_INF), f32(0)
            for e in range(4):
                whole[e] = f32(0)
            for w in range(WARPS):
                top = maximum(top, memory[TOPS + w * ROWS + r])
                total = total + memory[TOTALS + w * ROWS + r]
                values = load_shared_4f32(shared_address(memory, w * ITEM + (r * PITCH + column)))
                for e in range(4):
                    whole[e] = whole[e] + values[e]
            if CLUSTERED:
                rank, own_four = divide_remainder(four, OF_SHARE_FOURS)
                at = PUSHED + (split * PUSH + r * SHARE + 4 * own_four)
                to = remote_address(shared_address(memory, at), u32(rank))
                for e in range(4):
                    store_remote_f32(to + u32(4 * e), whole[e])
                if four < RANGES:
                    to = remote_address(shared_address(memory, LEVELS + (split * 2 * ROWS + r)), u32(four))
                    store_remote_f32(to, top)
                    store_remote_f32(to + 4 * ROWS, total)
            elif SPLIT:
                part, count = i64(i64(i64(line) * splits[0]) + split), i64(i64(lines.d) * splits[0])
                store4_from(partial, sum_at(part, r, column), whole, 0)
                if column == 0:
                    top_at, total_at = score_at(part, count, r)
                    partial[top_at], partial[total_at] = top, total
            else:
                for e in range(4):
                    result(o, b, g, row0 + r, many, column + e, top, total, whole[e], sizes.group, per, o_strides, sink,
                           sink_step, lse, lse_strides)
        if CLUSTERED:
            cluster_sync()
            for item in range(own[0], min(many - row0, ROWS) * SHARE, THREADS):
                r, column = divide_remainder(item, OF_SHARE)
                column = split * SHARE + column
                if column < E:
                    top, total, value = joined(memory, PUSHED + item, PUSH, memory, LEVELS + r, memory, LEVELS + ROWS + r,
                                               2 * ROWS, RANGES)
                    result(o, b, g, row0 + r, many, column, top, total, value, sizes.group, per, o_strides, sink, sink_step,
                           lse, lse_strides)
    return sdpa_decode_split_kv_mma


def build(problem, device, config):
    """One launch, or two."""
    p, pointer, splits = problem, element(problem.dtype).pointer, config.splits
    dependent, slots = device.capability >= (9, 0), config.blocks * device.sms
    sink, sink_step = sink_arguments(p)
    arguments = (*(Argument(pointer, name) for name in ("q", "k_cache", "v_cache", "o")), lse_argument(p),
                 Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"), Argument("int32*", "page_table"), sink,
                 *shape_arguments(p, config.rows), Argument(Divisor, divisor(max(p.page, 1))), Argument(Divisor, divisor(splits)),
                 Argument("int32", slots),
                 *(Argument(Strides, p.strides(t)) for t in (p.q, p.k_cache, p.v_cache, p.o)), *cache_arguments(p),
                 *bias_arguments(p))
    compiled = config if config.clustered else replace(config, splits=min(splits, 2))
    launch = Launch(kernel(compiled, dependent), (lines_of(p, config.rows) * splits, 1, 1), (config.threads, 1, 1), arguments,
                    config.shared, (splits if config.clustered else 1, 1, 1), dependent=dependent)
    return (launch, merge_launch(p, config.parts, splits, dependent)) if splits > 1 and not config.clustered else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv_mma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_80+")
