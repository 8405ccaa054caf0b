"""A block a tile of rows: the scores of a tile of keys at a time, in registers, and sums that are scaled when the largest score grows.

    q, k -- shared memory, rows of 16-byte groups --> scores in registers -- exponentials --> shared memory, v -- sums in registers --> o

- Nothing of the size rows x keys exists. Each row has its largest score so far and the sum of exponentials by it; when a tile of keys
  brings a larger score, the sums of the row are multiplied by what the exponentials become less (Milakov and Gimelshein, 2018;
  FlashAttention, Dao et al., 2022).
- Tiles of keys that no row of the block sees are left out, and keys are compared with rows only in tiles that some row sees in part. Blocks
  with the most keys come first.
- The next tile of k is under way while exponentials and sums with v are computed, that of v during the scores: float32 and float64 by
  cp.async where rows are aligned, others through registers, where they are widened. Two barriers a tile of keys.
- A row's scores lie in a part of one warp: its maximum takes shuffles, and probabilities pass through shared memory by warps alone.

Multiply-adds bound it: with 8 x 4 or 4 x 4 products a thread 16 bytes from shared memory serve 11 or 8 of them. Tensor cores have no
part in it.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32, u64
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import maximum
from ...device.index import Divisor, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, shared_address
from ...device.warp import add, make_reduce
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, memory_seconds, overlap
from ...host.launch import Argument, Launch
from ...host.products import FLOATS
from .._addresses import row_strides_argument, stats_arguments, stats_of, strides_argument
from .._flash import blocks_seconds, fits, lines_arguments, make_powers, refusal, tiles_of
from .._parameters import Kind, Sequences, Strides, added_arguments, block_mask_arguments, kind_of, number_arguments, sequence_arguments
from .._scores import LOG_BLOCK, NEG_INF, is_block_there, make_attends, make_memory, make_next_tile, make_terms
from .._simt import Source, Threads, group_of, item_of, make_loader, make_products, make_row_store, padded, pitch_of, source_of, words_of
from ._parts import Dropout, Outputs
from ._tiles import Grid, make_locate

COST = constants("attention/simt")

SHAPES = (Threads(8, 4, 16, 16), Threads(4, 4, 16, 16), Threads(4, 4, 16, 8), Threads(4, 4, 8, 8), Threads(2, 2, 16, 4),
          Threads(2, 2, 8, 4))


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read and written, and who has what: `put` are the 32-bit words of a store to o."""
    kind: Kind
    q: Source
    k: Source
    v: Source
    threads: Threads
    put: int
    lse: bool
    stats: tuple

    @property
    def depth(self):
        """Columns of q's and k's tiles."""
        return padded(self.q.elements, group_of(self.kind.dtype))

    @property
    def pitch(self):
        return pitch_of(self.depth, self.kind.dtype)

    @property
    def width(self):
        """Columns of v's tile, a multiple of what the lanes have in groups of 16 bytes."""
        return padded(self.v.elements, self.threads.lanes * group_of(self.kind.dtype))

    @property
    def p_pitch(self):
        return self.threads.width + group_of(self.kind.dtype)

    @property
    def shared(self):
        """Bytes of the tiles of q, k, v and of the probabilities."""
        t = self.threads
        return item_of(self.kind.dtype) * ((t.height + t.width) * self.pitch + t.width * self.width + t.height * self.p_pitch)

    @property
    def registers(self):
        """About how many registers a thread needs."""
        t, item = self.threads, item_of(self.kind.dtype) // 4
        sums = t.rows * self.width // t.lanes
        return item * (sums + t.rows * t.columns + group_of(self.kind.dtype) * (t.rows + t.columns) + 3 * t.rows) + 48

    def __str__(self):
        return f"{self.threads.height}x{self.threads.width} by {self.threads.count} threads"


def supports(problem):
    """Heads of up to 256 elements, of 16 bits and more."""
    if problem.dtype not in FLOATS:
        return f"dtype {problem.dtype}; expected one of {', '.join(FLOATS)}"
    return refusal(problem, "block_mask", "score_max", "score_sum_exp") or fits(problem, SHAPES[-1].height)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Tiles whose sums fit registers and shared memory."""
    p, found = problem, []
    sources = [source_of(t, p.strides(t)) for t in (p.q, p.k, p.v)]
    put = words_of(p.o, p.strides(p.o))
    for threads in SHAPES:
        config = Config(kind_of(p), *sources, threads, put, p.lse is not None, stats_of(p))
        if config.shared <= device.shared_per_block and config.registers <= 220:
            found.append(config)
    return found


def estimate(problem, device, config):
    """Multiply-adds of whole tiles, by how many warps a multiprocessor has to hide them; partial tiles at the edges."""
    p, t = problem, config.threads
    blocks = p.images * p.heads * tiles_of(p, p.rows, t.height)
    rate = (device.fp64_rate if p.compute == "float64" else device.fp32_rate) / 2
    keys = p.pairs * p.heads / max(blocks, 1) / t.height + t.width / 2  # of a block
    work = t.height * keys * (config.depth + config.width)
    # of a thread's products and loads of 16 bytes, and of the exponentials, some 20 instructions each
    loads = (t.rows + t.columns) / (t.rows * t.columns) * COST.load
    issue = 1 + loads + (COST.exponentials * (2 if p.dropout else 1) + p.score_instructions) / (config.depth + config.width)
    math = blocks_seconds(blocks, work * issue, t, config.shared, config.registers, rate * COST.fwd, device)
    return LAUNCH + overlap(math=math, memory=memory_seconds(p.bytes, device))


class Rows(NamedTuple):
    """A thread's rows, arrays: accumulators, row_max, the reference maxima of exponentials, row_sum."""
    acc: object
    row_max: object
    ref_max: object
    row_sum: object


class Stats(NamedTuple):
    """Where the largest score of a row and its sum of exponentials go."""
    max: object
    max_strides: object
    sum: object
    sum_strides: object


class Scoring(NamedTuple):
    """What products become scores with, and where the head's bias and mask begin."""
    scale: object
    softcap: object
    slope: object
    bias: object
    bias_at: object
    bias_strides: Strides
    mask: object
    mask_at: object
    mask_strides: Strides
    bounds: object


@functools.cache
def kernel(config):
    """A tile of rows of one head a block."""
    kind, t, T = config.kind, config.threads, config.kind.real
    terms, powers, attends = make_terms(kind), make_powers(kind.compute), make_attends(kind)
    locate, keys_of = make_locate(kind, t.height, t.width if kind.block_mask else 1)
    ROWS, COLUMNS, LANES, HEIGHT, WIDTH, THREADS = t.rows, t.columns, t.lanes, t.height, t.width, t.count
    G, ITEM, DEPTH, PITCH, VALUES, P_PITCH = (group_of(kind.dtype), item_of(kind.dtype), config.depth, config.pitch, config.width,
                                              config.p_pitch)
    K_AT, GROUPS, SUMS, SCORES = HEIGHT * PITCH, DEPTH // G, ROWS * VALUES // LANES, ROWS * COLUMNS
    V_AT = K_AT + WIDTH * PITCH
    P_AT = V_AT + WIDTH * VALUES
    OWN, WITH_LSE, BIAS, MASK, (WITH_MAX, WITH_SUM) = VALUES // LANES, config.lse, bool(kind.bias), kind.mask, config.stats
    BLOCKS, next_tile = kind.block_mask, make_next_tile(kind.block_mask)
    memory_of = make_memory(kind.ragged, kind.paged)
    load_q = make_loader(config.q, HEIGHT, DEPTH, PITCH, THREADS)
    load_k = make_loader(config.k, WIDTH, DEPTH, PITCH, THREADS, memory_of.key_at)
    load_v = make_loader(config.v, WIDTH, VALUES, VALUES, THREADS, memory_of.key_at)
    transposed, straight = make_products(t, kind.dtype)
    multiply, weigh = transposed(0), straight(VALUES)
    most, total = make_reduce(maximum, LANES), make_reduce(add, LANES)
    store, landed = make_row_store(kind.dtype, config.v.elements, config.put, LANES, OWN), wait_copies(0)
    load_sink, SINK = element(kind.sink or kind.dtype).load, bool(kind.sink)

    @device_function
    def mask_score(x, i, j, whole, tile, scoring):
        """The score of a product of row i and key j; -inf where the row does not attend to the key."""
        attended = whole or attends(i, j, tile.shift, tile.keys, scoring.bounds)
        value = T(NEG_INF)
        if MASK and attended:
            at = scoring.mask_at + i * scoring.mask_strides.row + j * scoring.mask_strides.column
            attended = i < tile.rows and terms.permits(scoring.mask, at)
        if attended:
            at = i64(0)
            if BIAS:  # rows beyond the last are computed, too
                row_at = scoring.bias_at + i * scoring.bias_strides.row
                at = row_at + j * scoring.bias_strides.column if i < tile.rows else i64(0)
            at = terms.where(at, min(i, tile.rows - 1), j)
            value = terms.score(x, j - i - tile.shift, scoring.slope, scoring.bias, at, scoring.scale, scoring.softcap)
        return value

    @device_function
    def online_softmax(r, s):
        """Scores of a row of the thread, their maximum, the rescaled accumulators, probabilities."""
        x, rows, memory, p_at, i0, j0, whole, lane, tile, scoring, dropout = s
        i, row_max = i0 + r, rows.row_max[r]
        for c in range(COLUMNS):
            value = mask_score(x[r * COLUMNS + c], i, j0 + c * LANES, whole, tile, scoring)
            x[r * COLUMNS + c] = value
            row_max = maximum(row_max, value)
        row_max = powers.attended(most(row_max))
        ref_max = powers.level(row_max)
        if rows.row_max[r] != T(NEG_INF):
            fall = powers.fall(rows.ref_max[r], ref_max)
            rows.row_sum[r] = T(rows.row_sum[r] * fall)
            for c in range(OWN):
                rows.acc[r * OWN + c] = T(rows.acc[r * OWN + c] * fall)
        rows.row_max[r], rows.ref_max[r] = row_max, ref_max
        for c in range(COLUMNS):
            p = powers.rise(x[r * COLUMNS + c], ref_max)
            rows.row_sum[r] = T(rows.row_sum[r] + p)
            memory[p_at + r * P_PITCH + lane + c * LANES] = terms.kept(p, dropout.seed, tile.head, i, j0 + c * LANES, dropout.threshold,
                                                                       dropout.factor)

    @device_function
    def finish(r, s):
        """A row of the thread is divided by its sum and stored."""
        rows, i0, lane, tile, outputs, o, lse, sink, sink_at, stats = s
        i, ref_max, row_sum, top = i0 + r, rows.ref_max[r], total(rows.row_sum[r]), rows.row_max[r]
        if SINK and rows.row_max[r] != T(NEG_INF):
            sink_logit = T(load_sink(sink, sink_at))
            top = maximum(top, sink_logit)
            ref_max = powers.level(top)
            fall = powers.fall(rows.ref_max[r], ref_max)
            row_sum = T(T(row_sum * fall) + powers.rise(sink_logit, ref_max))
            for c in range(OWN):
                rows.acc[r * OWN + c] = T(rows.acc[r * OWN + c] * fall)
        exists = i < tile.rows and row_sum != T(0)
        share = T(0)
        if exists:
            share = powers.inverse(row_sum)
        for c in range(OWN):
            rows.acc[r * OWN + c] = T(rows.acc[r * OWN + c] * share) if exists else T(0)
        if i < tile.written:
            if i < memory_of.written(outputs.o_strides, tile.rows, tile.written):
                store(advance(o, i * outputs.o_strides.row), outputs.o_strides.column, lane, rows.acc, r * OWN)
            if WITH_MAX:
                if lane == 0 and i < memory_of.written(stats.max_strides, tile.rows, tile.written):
                    at = memory_of.rows_of(stats.max, stats.max_strides, tile.image, tile.h, i, tile.rows)
                    at[0] = top if exists else T(NEG_INF)
            if WITH_SUM:
                if lane == 0 and i < memory_of.written(stats.sum_strides, tile.rows, tile.written):
                    at = memory_of.rows_of(stats.sum, stats.sum_strides, tile.image, tile.h, i, tile.rows)
                    at[0] = row_sum if exists else T(0)
            if WITH_LSE and lane == 0 and i < memory_of.written(outputs.lse_strides, tile.rows, tile.written):
                value = T(NEG_INF)
                if exists:
                    value = powers.total(ref_max, row_sum)
                lse[i * outputs.lse_strides.row] = value
    online_softmax_all, finish_all = unrolled(ROWS, online_softmax), unrolled(ROWS, finish)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_fwd_flash_simt(q, k, v, o, lse, sizes, lines, heads_of, tiles, group_of_heads, q_strides, k_strides, v_strides, o_strides,
                            lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step,
                            bounds, scale, softcap, seed, offset, threshold, factor, block_mask, block_strides, score_max, max_strides,
                            score_sum, sum_strides):
        memory = cuda.shared.array(0, T)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, line = thread % LANES, thread // LANES
        dropout = Dropout(terms.seed_of(seed, offset), threshold, factor)
        tile = locate(Grid(lines, heads_of, tiles, group_of_heads, sizes), Sequences(of_rows, of_keys, row_step, key_step))
        if tile.i0 >= 0 and tile.i0 < tile.written:
            span, keys = keys_of(tile, bounds), tile.keys
            of_q = memory_of.rows_of(q, q_strides, tile.image, tile.h, tile.first_row, tile.rows)
            of_k = memory_of.keys_of(k, k_strides, tile.image, tile.kv_head, tile.first_key, keys)
            of_v = memory_of.keys_of(v, v_strides, tile.image, tile.kv_head, tile.first_key, keys)
            q_steps, k_steps = (q_strides.row, q_strides.column), memory_of.steps(k_strides, tile.image)
            v_steps = memory_of.steps(v_strides, tile.image)
            scoring = Scoring(scale, softcap, terms.slope(tile.h, i32(heads_of.d)), terms.of_head(bias, tile.image, tile.h),
                              tile.image * bias_strides.batch + tile.h * bias_strides.head, bias_strides, mask,
                              tile.image * mask_strides.batch + tile.h * mask_strides.head, mask_strides, bounds)
            q_at = base + u32(line * ROWS * PITCH * ITEM)
            k_at = base + u32((K_AT + lane * PITCH) * ITEM)
            v_at = base + u32((V_AT + lane * G) * ITEM)
            p_at, i0 = P_AT + line * ROWS * P_PITCH, tile.i0 + line * ROWS

            rows = Rows(cuda.local.array(SUMS, T), cuda.local.array(ROWS, T), cuda.local.array(ROWS, T), cuda.local.array(ROWS, T))
            x = cuda.local.array(SCORES, T)
            for c in range(SUMS):
                rows.acc[c] = T(0)
            for r in range(ROWS):
                rows.row_max[r], rows.row_sum[r], rows.ref_max[r] = T(NEG_INF), T(0), T(0)
            blocks_at = tile.image * block_strides.batch + tile.h * block_strides.head + (tile.i0 >> LOG_BLOCK) * block_strides.row
            first = next_tile(span.begin, span.end, block_mask, blocks_at, block_strides)
            if first < span.end:
                load_q(base, of_q, tile.i0, tile.rows, q_steps, thread)
                load_k(base + K_AT * ITEM, of_k, first, keys, k_steps, thread)
                commit_copies()
                landed()
                cuda.syncthreads()
                load_v(base + V_AT * ITEM, of_v, first, keys, v_steps, thread)
                commit_copies()
            for key in range(first, span.end, WIDTH):
                if BLOCKS:
                    if not is_block_there(block_mask, blocks_at, key, block_strides):
                        continue
                for c in range(SCORES):
                    x[c] = T(0)
                multiply(x, q_at, k_at, PITCH, GROUPS)
                landed()
                cuda.syncthreads()  # v has come, k is free
                following = next_tile(key + WIDTH, span.end, block_mask, blocks_at, block_strides)
                if following < span.end:
                    load_k(base + K_AT * ITEM, of_k, following, keys, k_steps, thread)
                commit_copies()

                whole = key + WIDTH <= span.full_end and key >= span.full_begin
                online_softmax_all(0, (x, rows, memory, p_at, i0, key + lane, whole, lane, tile, scoring, dropout))
                cuda.syncwarp()
                weigh(rows.acc, base + u32(p_at * ITEM), P_PITCH, v_at, VALUES, WIDTH)
                landed()
                cuda.syncthreads()  # k has come, v and the probabilities are free
                if following < span.end:
                    load_v(base + V_AT * ITEM, of_v, following, keys, v_steps, thread)
                commit_copies()

            finish_all(0, (rows, i0, lane, tile, Outputs(u64(0), o, o_strides, lse, lse_strides),
                           memory_of.rows_of(o, o_strides, tile.image, tile.h, tile.first_row, tile.rows),
                           memory_of.rows_of(lse, lse_strides, tile.image, tile.h, tile.first_row, tile.rows), sink, tile.h * sink_step,
                           Stats(score_max, max_strides, score_sum, sum_strides)))
    return sdpa_fwd_flash_simt


def build(problem, device, config):
    """One launch, a block a tile of rows."""
    p, t, pointer = problem, config.threads, element(problem.dtype).pointer
    tiles = tiles_of(p, p.rows, t.height)
    arguments = (*(Argument(pointer, name) for name in ("q", "k", "v", "o")), Argument(f"{p.compute}*", "lse" if p.lse else "o"),
                 Argument("int32x3", (p.batch, p.rows, p.keys)), *lines_arguments(p, p.heads, tiles),
                 Argument(Divisor, divisor(p.group)), *(strides_argument(p, name) for name in ("q", "k", "v", "o")),
                 row_strides_argument(p), *sequence_arguments(p), *added_arguments(p), *number_arguments(p),
                 *block_mask_arguments(p), *stats_arguments(p))
    return (Launch(kernel(config), (tiles * p.images * p.heads, 1, 1), (t.count, 1, 1), arguments, shared=config.shared),)


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_simt", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, arch="sm_80+", programs=True)
