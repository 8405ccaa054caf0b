"""The keys of a sequence cut into ranges, a block each: every key and value is read once, 16 bytes a thread, by a part of a warp a key.

- The rows that share a head of the cache, of all heads of its group, are one tile of up to eight rows: a thread has its 16 bytes' part of
  every row's query and of every row's sums in registers, and a product takes a few shuffles within the part of the warp.
- A part of a warp has several keys under way and its own largest scores and sums, so that nothing is exchanged before the end, when the
  parts meet once in shared memory.
- A sequence has as many ranges as fill the device. What they leave, a largest score, a sum and a row of sums each, a second launch merges.
  With one range there is one launch.
- Where the cache has pages, a key's place is looked up on the way.

Memory bounds it where an element has four bytes or more; with halves the conversions and shuffles of each key do.
"""
import functools
from dataclasses import dataclass, replace

from ...device import cuda, device_function, i32, i64, jit
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.fastmath import maximum
from ...device.groups import access_words, make_reader
from ...device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance
from ...device.warp import add, make_reduce
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._flash import make_powers
from .._parameters import Kind, Sequences, Strides
from .._scores import NEG_INF, make_terms
from ._ranges import (Parts, lines_of, make_joined, make_places, make_range, make_result, merge_launch, merge_seconds, parts_bytes, refusal,
                      shape_arguments, sink_arguments, tiles_of)
from .sdpa_decode_naive import (bias_arguments, cache_arguments, decode_kind, factor_arguments, lse_argument, make_place, operand_arguments,
                                scaled)

COST = constants("attention/decode_simt")

THREADS, TILE, LANES = 128, 8, 32
WIDEST = 4 * LANES  # chunks of 16 bytes of a row
BLOCKS = 4  # of a multiprocessor, to have enough bytes under way


@dataclass(frozen=True)
class Config:
    """What kernels are compiled for: 32-bit words of an access to q, k and v, sizes of the heads, rows of a tile; into how many ranges the
    keys are cut; whether lse is an output; the caches' dtype, and whether keys and values have factors."""
    kind: Kind
    paged: bool
    words: tuple
    d: int
    e: int
    rows: int
    splits: int
    lse: bool
    cache: str
    scaled: tuple

    @property
    def chunk(self):
        """Elements of a cache in 16 bytes."""
        return 16 // ITEMSIZE[self.cache]

    @property
    def chunks(self):
        """Of a row, the longer of q's and v's."""
        return max(self.d, self.e) // self.chunk

    @property
    def held(self):
        """Chunks of a row that a thread has."""
        return ceil_div(self.chunks, LANES)

    @property
    def lanes(self):
        """Threads of a key: a power of two."""
        return 1 << (ceil_div(self.chunks, self.held) - 1).bit_length()

    @property
    def groups(self):
        """Keys of a block at a time."""
        return THREADS // self.lanes

    @property
    def ahead(self):
        """Keys of a part of a warp whose loads are under way together."""
        return max(1, 4 // self.held // (2 if self.rows * self.held > 4 else 1))

    @property
    def width(self):
        """Columns of a tile."""
        return self.lanes * self.held * self.chunk

    @property
    def parts(self):
        """What its ranges leave."""
        return Parts(self.kind, self.rows, self.width, self.e, self.lse)

    @property
    def shared(self):
        """Bytes in which the parts of a block meet."""
        return ITEMSIZE[self.kind.compute] * self.groups * self.rows * (self.width + 2)

    def __str__(self):
        return f"{self.rows} rows, {self.lanes} lanes a key, {self.splits} ranges"


def supports(problem):
    """Rows of whole accesses."""
    p, per = problem, 16 // problem.k_cache.itemsize
    if reason := refusal(p, of_bytes=True):
        return reason
    if max(p.d, p.dv) > WIDEST * per:
        return f"heads of {p.d} and {p.dv} elements; expected {WIDEST * per} at most"
    if p.d % per or p.dv % per or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected multiples of {per}"
    if any(t.strides[-1] != 1 for t in (p.q, p.k_cache, p.v_cache)):
        return "the elements of a head are not contiguous"
    elements = p.batch * p.kv_heads * (p.group * p.rows + TILE) * 2 * max(p.d, p.dv, 1024)
    return None if elements < LIMIT else f"{p.batch} sequences of {p.heads} heads; expected fewer than 2**31 elements of tiles"


def _tile(problem):
    """Rows of a tile: a power of two, eight at most, fewer of wide heads, and of 8-bit floats, of which a thread has 16 of a row."""
    p = problem
    item = p.k_cache.itemsize
    most = TILE // max(1, ceil_div(max(p.d, p.dv) * item, 512)) // (2 if item in (1, 8) else 1)
    return min(max(most, 1), 1 << (p.group * p.rows - 1).bit_length())


def configs(problem, device):
    """Ranges by powers of two, as long as each has a few keys for every part of a warp."""
    p, per = problem, 16 // problem.k_cache.itemsize
    words = tuple(access_words(t, per, p.strides(t)[:-1]) for t in (p.q, p.k_cache, p.v_cache))
    found, splits = [], 1
    while not found or splits <= 1024 and p.seen >= 32 * splits:
        found.append(Config(decode_kind(p), p.page_table is not None, words, p.d, p.dv, _tile(p), splits, p.lse is not None,
                            p.k_cache.dtype, scaled(p)))
        splits *= 2
    return found


def _lines(problem):
    """Tiles of rows."""
    return lines_of(problem, _tile(problem))


def workspace(problem, device, config):
    """What ranges leave, where there are several."""
    return parts_bytes(problem, config.parts, config.splits)


def estimate(problem, device, config):
    """Bytes, where enough blocks are there to have them under way, or instructions, of which half of what could be is issued; each block
    has a beginning and an end; and the merge."""
    p, c = problem, config
    blocks, tiles = _lines(p) * c.splits, tiles_of(p, c.rows)
    share = min(1.0, blocks / (BLOCKS * device.sms))
    moved = memory_seconds(p.bytes + (tiles - 1) * p.bytes / COST.again, device)
    each = c.held * c.chunk * COST.element * (c.rows + 1) + c.rows * (COST.halving * c.lanes.bit_length() + COST.row)
    issue = issue_seconds(p.batch * p.kv_heads * tiles * p.seen * c.lanes, COST.issue * each, device)
    waves = ceil_div(blocks, BLOCKS * 2 * device.sms)
    return (LAUNCH + overlap(memory=moved / share, issue=issue / share, waits=waves * COST.wave)
            + Cost(waves=COST.ends, reduction=merge_seconds(p, c.parts, c.splits, device)))


@functools.cache
def range_kernel(config, dependent):
    """A tile of rows and a range of keys a block."""
    kind, T = config.kind, config.kind.real
    terms, powers, place = make_terms(kind), make_powers(kind.compute), make_place(config.paged)
    joined, result, (sum_at, score_at) = make_joined(kind), make_result(config.parts), make_places(config.parts)
    range_of, DEPENDENT = make_range(1), dependent
    ROWS, LANES_OF, HELD, CHUNK, GROUPS, AHEAD = config.rows, config.lanes, config.held, config.chunk, config.groups, config.ahead
    WIDTH, D, E, SPLIT = config.width, config.d, config.e, config.splits > 1
    OWN, STEP = HELD * CHUNK, AHEAD * GROUPS
    Q, Q_LENGTH, fetch_q, unpack_q = make_reader(kind.dtype, CHUNK, config.words[0])
    K, K_LENGTH, fetch_k, unpack_k = make_reader(config.cache, CHUNK, config.words[1])
    V, V_LENGTH, fetch_v, unpack_v = make_reader(config.cache, CHUNK, config.words[2])
    SUMS, SCORES, K_ALL, V_ALL, ITEM = ROWS * OWN, ROWS * AHEAD, AHEAD * HELD * K_LENGTH, AHEAD * HELD * V_LENGTH, ROWS * WIDTH
    TOPS, TOTALS = GROUPS * ITEM, GROUPS * (ITEM + ROWS)
    SIZE, MULTIPLIER, SHIFT = divisor(WIDTH)
    total_of, BIAS = make_reduce(add, LANES_OF), bool(kind.bias)
    STARTS, (OF_K, OF_V) = ROWS if BIAS else 1, config.scaled

    @device_function
    def query(r, s):
        """A row's query, in the threads of each key; the keys that it attends to, and where its bias begins."""
        q, queries, lows, highs, starts, b, g, row0, many, sizes, per, q_strides, bias_strides, lane, keys, last, bounds = s
        row = row0 + r
        there = row < many
        member, i = divide_remainder(row if there else 0, per)
        lows[r], highs[r] = i32(0), i32(0)
        if there:
            low, high = terms.key_range(i, i32(per.d), keys, bounds)
            lows[r], highs[r] = low, min(high, last)
        h = i64(g * sizes.group + member)
        at = b * q_strides.batch + h * q_strides.head + i * q_strides.row
        if BIAS:
            starts[r] = b * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
        raw = cuda.local.array(Q_LENGTH, Q)
        for c in range(HELD):
            column = (lane + c * LANES_OF) * CHUNK
            fetch_q(raw, 0, advance(q, at), column, i32(there and column < D))
            unpack_q(queries, r * OWN + c * CHUNK, raw, 0)
    queries_all = unrolled(ROWS, query)

    @device_function
    def multiply(r, s):
        """Products of a row with a key."""
        queries, keys, scores, u = s
        total = T(0)
        for c in range(OWN):
            total = T(total + queries[r * OWN + c] * keys[c])
        scores[r * AHEAD + u] = total_of(total)
    multiply_all = unrolled(ROWS, multiply)

    @device_function
    def online_softmax(r, s):
        """The largest score of a row, what that makes of its sums, and probabilities in place of scores."""
        scores, sums, row_max, row_sum, lows, highs, starts, j0, bias, bias_step, scale, softcap = s
        top = row_max[r]
        for u in range(AHEAD):
            j, x, at = j0 + u * GROUPS, T(NEG_INF), i64(0)
            if j >= lows[r] and j < highs[r]:
                if BIAS:
                    at = starts[r] + j * bias_step
                x = terms.score(scores[r * AHEAD + u], 0, T(0), bias, at, scale, softcap)
            scores[r * AHEAD + u] = x
            top = maximum(top, x)
        level = powers.level(top)
        if row_max[r] != T(NEG_INF):
            fall = powers.fall(powers.level(row_max[r]), level)
            row_sum[r] = T(row_sum[r] * fall)
            for c in range(OWN):
                sums[r * OWN + c] = T(sums[r * OWN + c] * fall)
        row_max[r] = top
        for u in range(AHEAD):
            p = powers.rise(scores[r * AHEAD + u], level)
            scores[r * AHEAD + u] = p
            row_sum[r] = T(row_sum[r] + p)
    online_softmax_all = unrolled(ROWS, online_softmax)

    @device_function
    def weigh(r, s):
        """A key's values, weighed by a row's probability."""
        sums, values, scores, u = s
        for c in range(OWN):
            sums[r * OWN + c] = T(sums[r * OWN + c] + scores[r * AHEAD + u] * values[c])
    weigh_all = unrolled(ROWS, weigh)

    @device_function
    def leave(r, s):
        """A part's sums, for the block."""
        memory, sums, row_max, row_sum, group, lane, of_v = s
        for c in range(HELD):
            for e in range(CHUNK):
                memory[group * ITEM + r * WIDTH + (lane + c * LANES_OF) * CHUNK + e] = T(sums[r * OWN + c * CHUNK + e] * of_v)
        if lane == 0:
            memory[TOPS + group * ROWS + r] = row_max[r]
            memory[TOTALS + group * ROWS + r] = row_sum[r]
    leave_all = unrolled(ROWS, leave)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_decode_split_kv(q, k, v, o, lse, partial, of_keys, table, sink, lines, tiles, heads_of, per, sizes, page, splits, q_strides,
                             k_strides, v_strides, o_strides, key_step, table_strides, sink_step, lse_strides, bounds, scale, softcap, bias,
                             bias_strides, scale_k, scale_v):
        memory = cuda.shared.array(0, T)
        thread = cuda.threadIdx.x
        lane, group = thread % LANES_OF, thread // LANES_OF
        split, line = divide_remainder(cuda.blockIdx.x, lines)
        place_of, tile = divide_remainder(line, tiles)
        b, g = divide_remainder(place_of, heads_of)
        row0, many = tile * ROWS, sizes.rows
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        _, _, _, keys = terms.lengths(b, Sequences(of_keys, of_keys, 0, key_step), i32(per.d), sizes.capacity)

        if OF_K:
            scale = T(scale * scale_k[0])
        # the keys of this range, of those that any row sees
        oldest, _ = terms.key_range(0, i32(per.d), keys, bounds)
        first, last = range_of(split, splits, oldest, keys)
        queries, sums = cuda.local.array(SUMS, T), cuda.local.array(SUMS, T)
        row_max, row_sum, scores = cuda.local.array(ROWS, T), cuda.local.array(ROWS, T), cuda.local.array(SCORES, T)
        lows, highs, starts = cuda.local.array(ROWS, i32), cuda.local.array(ROWS, i32), cuda.local.array(STARTS, i64)
        of_k, of_v, some = cuda.local.array(K_ALL, K), cuda.local.array(V_ALL, V), cuda.local.array(OWN, T)
        for c in range(SUMS):
            sums[c] = T(0)
        for r in range(ROWS):
            row_max[r], row_sum[r] = T(NEG_INF), T(0)
        queries_all(0, (q, queries, lows, highs, starts, b, g, row0, many, sizes, per, q_strides, bias_strides, lane, keys, last, bounds))
        for start in range(first, last, STEP):
            j0 = start + group
            for u in range(AHEAD):
                j = j0 + u * GROUPS
                there = j < last
                number, row = place(b, j if there else 0, table, table_strides, page, sizes.pages)
                k_at = number * k_strides.batch + g * k_strides.head + row * k_strides.row
                v_at = number * v_strides.batch + g * v_strides.head + row * v_strides.row
                for c in range(HELD):
                    column = (lane + c * LANES_OF) * CHUNK
                    inside = there and column < D
                    fetch_k(of_k, (u * HELD + c) * K_LENGTH, advance(k, k_at), column, i32(inside))
                    inside = there and column < E
                    fetch_v(of_v, (u * HELD + c) * V_LENGTH, advance(v, v_at), column, i32(inside))
            for u in range(AHEAD):
                for c in range(HELD):
                    unpack_k(some, c * CHUNK, of_k, (u * HELD + c) * K_LENGTH)
                multiply_all(0, (queries, some, scores, u))
            online_softmax_all(0, (scores, sums, row_max, row_sum, lows, highs, starts, j0, bias, bias_strides.column, scale, softcap))
            for u in range(AHEAD):
                for c in range(HELD):
                    unpack_v(some, c * CHUNK, of_v, (u * HELD + c) * V_LENGTH)
                weigh_all(0, (sums, some, scores, u))
        leave_all(0, (memory, sums, row_max, row_sum, group, lane, T(scale_v[0]) if OF_V else T(1)))
        cuda.syncthreads()

        for item in range(thread, ITEM, THREADS):
            r, column = divide_remainder(item, (SIZE, MULTIPLIER, SHIFT))
            top, total, value = joined(memory, item, ITEM, memory, TOPS + r, memory, TOTALS + r, ROWS, GROUPS)
            if SPLIT:
                part, count = i64(i64(i64(line) * splits[0]) + split), i64(i64(lines.d) * splits[0])
                partial[sum_at(part, r, column)] = value
                if column == 0:
                    top_at, total_at = score_at(part, count, r)
                    partial[top_at], partial[total_at] = top, total
            else:
                result(o, b, g, row0 + r, many, column, top, total, value, sizes.group, per, o_strides, sink, sink_step,
                       lse, lse_strides)
    return sdpa_decode_split_kv


def build(problem, device, config):
    """One launch, or two."""
    p, splits = problem, config.splits
    dependent = device.capability >= (9, 0)
    sink, sink_step = sink_arguments(p)
    arguments = (*operand_arguments(p), lse_argument(p),
                 Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"), Argument("int32*", "page_table"), sink,
                 *shape_arguments(p, config.rows), Argument(Divisor, divisor(max(p.page, 1))), Argument(Divisor, divisor(splits)),
                 *(Argument(Strides, p.strides(t)) for t in (p.q, p.k_cache, p.v_cache, p.o)), *cache_arguments(p),
                 *bias_arguments(p), *factor_arguments())
    kernel = range_kernel(replace(config, splits=min(splits, 2)), dependent)
    launch = Launch(kernel, (_lines(p) * splits, 1, 1), (THREADS, 1, 1), arguments, shared=config.shared, dependent=dependent)
    return (launch, merge_launch(p, config.parts, splits, dependent)) if splits > 1 else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build)
