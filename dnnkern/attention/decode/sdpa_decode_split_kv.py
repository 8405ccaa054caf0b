"""Split-KV: the keys of a sequence are cut into ranges, a block each; each key is read once, by a part of a warp, 16 bytes per thread.

- The rows that share a head of the cache, of all heads of its group, are one tile of up to eight rows: a thread has its 16 bytes' part of
  each row's query and of each row's accumulators in registers, and a product takes a few shuffles within the part of the warp.
- Wide heads take several such parts of a thread; heads of no whole 16 bytes are read in smaller parts, at worst by single elements.
- A part of a warp has several keys in flight and its own row_max and row_sum, so that nothing is exchanged before the end, when the
  parts meet once in shared memory.
- A sequence has as many ranges as fill the device. What they leave, row_max, row_sum and the accumulators, a second launch merges.
  With one range there is one launch.
- Where the cache has pages, a key's page is looked up when it is loaded.

Limited by memory where an element has four bytes or more; with 16-bit elements by the conversions and shuffles of each key.
"""
import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from .._parameters import Kind, Strides
from .._scores import NEG_INF, make_terms
from ._pages import make_place
from ._parameters import (Lengths, Outputs, Paging, Scoring, bias_arguments, cache_arguments, decode_kind, factor_arguments, lines_of,
                          lse_argument, operand_arguments, page_argument, scaled, shape_argument, sink_arguments, tiles_of)
from ._ranges import Parts, make_merge, make_places, make_range, make_store_output, merge_launch, merge_seconds, parts_bytes, refusal

COST = constants("attention/decode_simt")

THREADS, TILE, LANES = 128, 8, 32
REGISTERS = 40  # of a thread for its part of a row; four chunks in any case
BLOCKS = 4  # of a multiprocessor, to have enough bytes under way


@dataclass(frozen=True)
class Config:
    """What kernels are compiled for: elements of a chunk, and 32-bit words of an access to q, k and v, sizes of the heads, rows of a tile;
    into how many ranges the keys are cut; whether lse is an output; the caches' dtype, and whether keys and values have factors."""
    kind: Kind
    paged: bool
    chunk: int
    words: tuple
    d: int
    e: int
    rows: int
    splits: int
    lse: bool
    cache: str
    scaled: tuple

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


def _chunk(problem):
    """Elements of the largest part of 16 bytes that divides a row of keys and one of values."""
    p = problem
    return math.gcd(p.d, p.dv, 16 // p.k_cache.itemsize)


def supports(problem):
    """Heads whose rows fit the registers of a warp."""
    p, chunk = problem, _chunk(problem)
    if reason := refusal(p, of_bytes=True):
        return reason
    widest = LANES * chunk * max(4, REGISTERS // (chunk * ITEMSIZE[p.compute] // 4))
    if not 0 < p.dv <= widest or p.d > widest:
        return f"heads of {p.d} and {p.dv} elements; expected 1 to {widest}"
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
    p, chunk = problem, _chunk(problem)
    words = tuple(access_words(t, chunk, p.strides(t)[:-1]) for t in (p.q, p.k_cache, p.v_cache))
    found, splits = [], 1
    while not found or splits <= 1024 and p.seen >= 32 * splits:
        found.append(Config(decode_kind(p), p.page_table is not None, chunk, words, p.d, p.dv, _tile(p), splits, p.lse is not None,
                            p.k_cache.dtype, scaled(p)))
        splits *= 2
    return found


def workspace(problem, device, config):
    """What ranges leave, where there are several."""
    return parts_bytes(problem, config.parts, config.splits)


def estimate(problem, device, config):
    """Bytes, where enough blocks are there to have them under way, or instructions, of which half of what could be is issued; each block
    has a beginning and an end; and the merge."""
    p, c = problem, config
    blocks, tiles = lines_of(p, c.rows) * c.splits, tiles_of(p, c.rows)
    share = min(1.0, blocks / (BLOCKS * device.sms))
    moved = memory_seconds(p.bytes + (tiles - 1) * p.bytes / COST.again, device)
    each = c.held * c.chunk * COST.element * (c.rows + 1) + c.rows * (COST.halving * c.lanes.bit_length() + COST.row)
    if c.chunk * ITEMSIZE[c.cache] < 16:
        each += 2 * c.held * COST.narrow
    issue = issue_seconds(p.batch * p.kv_heads * tiles * p.seen * c.lanes, COST.issue * each, device)
    waves = ceil_div(blocks, BLOCKS * 2 * device.sms)
    return (LAUNCH + overlap(memory=moved / share, issue=issue / share, waits=waves * COST.wave)
            + Cost(waves=COST.ends, reduction=merge_seconds(p, c.parts, c.splits, device)))


class Rows(NamedTuple):
    """A thread's part of the rows of a tile, arrays: of each row the query, accumulators, scores of the keys in flight, row_max, row_sum,
    the keys from `begins` to `ends` that it attends to, and where its bias begins."""
    queries: object
    acc: object
    scores: object
    row_max: object
    row_sum: object
    begins: object
    ends: object
    bias_at: object


@functools.cache
def range_kernel(config, dependent):
    """A tile of rows and a range of keys per block."""
    kind, T = config.kind, config.kind.real
    terms, powers = make_terms(kind), make_powers(kind.compute)
    ROWS, LANES_OF, HELD, CHUNK, GROUPS, AHEAD = config.rows, config.lanes, config.held, config.chunk, config.groups, config.ahead
    WIDTH, D, E, SPLIT = config.width, config.d, config.e, config.splits > 1
    OWN, STEP, ITEM = HELD * CHUNK, AHEAD * GROUPS, ROWS * WIDTH

    # ---- a row, r of a tile

    Q, Q_LENGTH, fetch_q, unpack_q = make_reader(kind.dtype, CHUNK, config.words[0])
    dot_sum, BIAS = make_reduce(add, LANES_OF), bool(kind.bias)

    @device_function
    def load_query(r, s):
        """The query, in the threads of each key; the keys that it attends to, and where its bias begins."""
        rows, q, strides, bias_strides, shape, lengths, span, b, g, row0, lane = s
        row = row0 + r
        exists = row < shape.rows
        member, i = divide_remainder(row if exists else 0, shape.queries)
        rows.begins[r], rows.ends[r] = i32(0), i32(0)
        if exists:
            begin, end = terms.key_range(i, i32(shape.queries.d), span.keys, lengths.bounds)
            rows.begins[r], rows.ends[r] = begin, min(end, span.end)
        h = i64(g * shape.group + member)
        at = b * strides.batch + h * strides.head + i * strides.row
        if BIAS:
            rows.bias_at[r] = b * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
        raw = cuda.local.array(Q_LENGTH, Q)
        for c in range(HELD):
            column = (lane + c * LANES_OF) * CHUNK
            fetch_q(raw, 0, advance(q, at), column, exists and column < D)
            unpack_q(rows.queries, r * OWN + c * CHUNK, raw, 0)

    @device_function
    def multiply_key(r, s):
        """The product with key u."""
        rows, key, u = s
        total = T(0)
        for c in range(OWN):
            total = T(total + rows.queries[r * OWN + c] * key[c])
        rows.scores[r * AHEAD + u] = dot_sum(total)

    @device_function
    def online_softmax(r, s):
        """Products become scores, and these probabilities; accumulators shrink where row_max has grown."""
        rows, j0, scoring = s
        row_max = rows.row_max[r]
        for u in range(AHEAD):
            j, x, at = j0 + u * GROUPS, T(NEG_INF), i64(0)
            if j >= rows.begins[r] and j < rows.ends[r]:
                if BIAS:
                    at = rows.bias_at[r] + j * scoring.bias_strides.column
                x = terms.score(rows.scores[r * AHEAD + u], 0, T(0), scoring.bias, at, scoring.scale, scoring.softcap)
            rows.scores[r * AHEAD + u] = x
            row_max = maximum(row_max, x)
        row_max = powers.attended(row_max)
        level = powers.level(row_max)
        if rows.row_max[r] != T(NEG_INF):
            fall = powers.fall(powers.level(rows.row_max[r]), level)
            rows.row_sum[r] = T(rows.row_sum[r] * fall)
            for c in range(OWN):
                rows.acc[r * OWN + c] = T(rows.acc[r * OWN + c] * fall)
        rows.row_max[r] = row_max
        for u in range(AHEAD):
            p = powers.rise(rows.scores[r * AHEAD + u], level)
            rows.scores[r * AHEAD + u] = p
            rows.row_sum[r] = T(rows.row_sum[r] + p)

    @device_function
    def add_values(r, s):
        """Add the values of key u, times its probability."""
        rows, values, u = s
        for c in range(OWN):
            rows.acc[r * OWN + c] = T(rows.acc[r * OWN + c] + rows.scores[r * AHEAD + u] * values[c])

    @device_function
    def share_row(r, s):
        """What the threads of a key have of the row, into shared memory."""
        memory, rows, group, lane, v_scale = s
        for c in range(HELD):
            for e in range(CHUNK):
                memory[group * ITEM + r * WIDTH + (lane + c * LANES_OF) * CHUNK + e] = T(rows.acc[r * OWN + c * CHUNK + e] * v_scale)
        if lane == 0:
            memory[MAX_AT + group * ROWS + r] = rows.row_max[r]
            memory[SUM_AT + group * ROWS + r] = rows.row_sum[r]

    load_queries, multiply_keys, update_rows, weigh_values, share_rows = (
        unrolled(ROWS, of_a_row) for of_a_row in (load_query, multiply_key, online_softmax, add_values, share_row))

    # ---- keys and values

    K, K_LENGTH, fetch_k, unpack_k = make_reader(config.cache, CHUNK, config.words[1])
    V, V_LENGTH, fetch_v, unpack_v = make_reader(config.cache, CHUNK, config.words[2])
    place = make_place(config.paged)

    @device_function
    def load_key(raw_k, raw_v, u, j, span, k, v, k_strides, v_strides, paging, b, g, lane):
        """A thread's part of key j and of its values, the u-th of those in flight."""
        exists = j < span.end
        number, row = place(b, j if exists else 0, paging)
        k_at = number * k_strides.batch + g * k_strides.head + row * k_strides.row
        v_at = number * v_strides.batch + g * v_strides.head + row * v_strides.row
        for c in range(HELD):
            column = (lane + c * LANES_OF) * CHUNK
            inside = exists and column < D
            fetch_k(raw_k, (u * HELD + c) * K_LENGTH, advance(k, k_at), column, inside)
            inside = exists and column < E
            fetch_v(raw_v, (u * HELD + c) * V_LENGTH, advance(v, v_at), column, inside)

    # ---- the kernel

    merge, store_output, (values_at, scores_at) = make_merge(kind), make_store_output(config.parts), make_places(config.parts)
    range_of, DEPENDENT, BY_WIDTH, (SCALED_K, SCALED_V) = make_range(kind, 1), dependent, divisor(WIDTH), config.scaled
    SUMS, SCORES, K_ALL, V_ALL = ROWS * OWN, ROWS * AHEAD, AHEAD * HELD * K_LENGTH, AHEAD * HELD * V_LENGTH
    MAX_AT, SUM_AT, BIASES = GROUPS * ITEM, GROUPS * (ITEM + ROWS), ROWS if BIAS else 1

    @device_function
    def store_tile(memory, partial, outputs, shape, split, splits, line, b, g, row0, thread):
        """The tile, merged from what the threads of each key had: to the workspace, or as the result."""
        for item in range(thread, ITEM, THREADS):
            r, column = divide_remainder(item, BY_WIDTH)
            row_max, row_sum, value = merge(memory, item, ITEM, MAX_AT + r, SUM_AT + r, ROWS, GROUPS)
            if SPLIT:
                part, count = i64(line) * splits.d + split, i64(shape.all_tiles.d) * splits.d
                partial[values_at(part, r, column)] = value
                if column == 0:
                    max_at, sum_at = scores_at(part, count, r)
                    partial[max_at], partial[sum_at] = row_max, row_sum
            else:
                store_output(outputs, shape, b, g, row0 + r, column, row_max, row_sum, value)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_decode_split_kv(q, k, v, o, lse, partial, of_keys, table, sink, shape, page, splits, q_strides, k_strides, v_strides,
                             o_strides, key_step, table_strides, sink_step, lse_strides, bounds, scale, softcap, bias, bias_strides,
                             scale_k, scale_v):
        memory = cuda.shared.array(0, T)
        thread = cuda.threadIdx.x
        lane, group = thread % LANES_OF, thread // LANES_OF
        split, line = divide_remainder(cuda.blockIdx.x, shape.all_tiles)
        head, tile = divide_remainder(line, shape.tiles)
        b, g = divide_remainder(head, shape.kv_heads)
        row0 = tile * ROWS
        if DEPENDENT:
            wait_for_previous_grid()
            launch_dependent_grids()
        if SCALED_K:
            scale = T(scale * scale_k[0])
        v_scale = T(scale_v[0]) if SCALED_V else T(1)
        lengths, paging = Lengths(of_keys, key_step, bounds), Paging(table, table_strides, page, shape.pages)
        scoring, span = Scoring(scale, softcap, bias, bias_strides), range_of(split, splits, b, shape, lengths)

        rows = Rows(cuda.local.array(SUMS, T), cuda.local.array(SUMS, T), cuda.local.array(SCORES, T), cuda.local.array(ROWS, T),
                    cuda.local.array(ROWS, T), cuda.local.array(ROWS, i32), cuda.local.array(ROWS, i32), cuda.local.array(BIASES, i64))
        raw_k, raw_v, some = cuda.local.array(K_ALL, K), cuda.local.array(V_ALL, V), cuda.local.array(OWN, T)
        for c in range(SUMS):
            rows.acc[c] = T(0)
        for r in range(ROWS):
            rows.row_max[r], rows.row_sum[r] = T(NEG_INF), T(0)
        load_queries(0, (rows, q, q_strides, bias_strides, shape, lengths, span, b, g, row0, lane))
        for start in range(span.begin, span.end, STEP):
            for u in range(AHEAD):
                load_key(raw_k, raw_v, u, start + group + u * GROUPS, span, k, v, k_strides, v_strides, paging, b, g, lane)
            for u in range(AHEAD):
                for c in range(HELD):
                    unpack_k(some, c * CHUNK, raw_k, (u * HELD + c) * K_LENGTH)
                multiply_keys(0, (rows, some, u))
            update_rows(0, (rows, start + group, scoring))
            for u in range(AHEAD):
                for c in range(HELD):
                    unpack_v(some, c * CHUNK, raw_v, (u * HELD + c) * V_LENGTH)
                weigh_values(0, (rows, some, u))
        share_rows(0, (memory, rows, group, lane, v_scale))
        cuda.syncthreads()
        outputs = Outputs(o, o_strides, sink, sink_step, lse, lse_strides)
        store_tile(memory, partial, outputs, shape, split, splits, line, b, g, row0, thread)
    return sdpa_decode_split_kv


def build(problem, device, config):
    """One launch, or two."""
    p, splits = problem, config.splits
    dependent = device.capability >= (9, 0)
    arguments = (*operand_arguments(p), lse_argument(p), Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"),
                 Argument("int32*", "page_table"), sink_arguments(p)[0], shape_argument(p, config.rows), page_argument(p),
                 Argument(Divisor, divisor(splits)), *(Argument(Strides, p.strides(t)) for t in (p.q, p.k_cache, p.v_cache, p.o)),
                 *cache_arguments(p), *bias_arguments(p), *factor_arguments())
    kernel = range_kernel(replace(config, splits=min(splits, 2)), dependent)
    launch = Launch(kernel, (lines_of(p, config.rows) * splits, 1, 1), (THREADS, 1, 1), arguments, shared=config.shared,
                    dependent=dependent)
    return (launch, merge_launch(p, config.parts, splits, dependent)) if splits > 1 else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build)
