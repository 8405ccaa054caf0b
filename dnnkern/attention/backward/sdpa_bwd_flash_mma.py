"""The gradients on tensor cores from Ampere on, in `flash_simt`'s order: one tile of queries per block for dq, one of keys for dk and dv.

    queries:  q, do | k, v tile by tile --> x = q k', y = do v' (mma.sync) -- ds in registers --> dq += ds k
    keys:     k, v | q, do tile by tile --> x = k q', y = v do' (mma.sync) -- p, ds in registers --> dv += p do, dk += ds q

- A warp has 16 queries, or keys. p and ds, rounded to 16 bits in registers, are the left operands of the products that accumulate them:
  nothing but the operands' tiles passes through shared memory.
- With delta = sum(do * o) of each row, which a launch leaves in the workspace, no sum goes over more than one block: no atomics, and each
  sum has one order, for seven products instead of five.
- The bias's gradient is computed by launches of its own (`_dbias`).
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, f32, i32, i64, jit, u32
from ...device.cp_async import commit_copies, wait_copies
from ...device.fastmath import ex2, fma
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.vec import load_shared_2f32, shared_address, store_shared_f32
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sm_issue_seconds
from ...host.launch import Argument, Launch
from .._addresses import row_strides_argument, strides_argument
from .._flash import fits, lines_arguments, refusal, tiles_of
from .._fragments import make_pack, make_store, stored_in_pairs
from .._mma import (Source, left_offset, make_loader, make_gemm, make_gemm_rs, mma_rate, right_offset, source_of,
                    right_offset_transposed, walk_seconds)
from .._modifiers import (Dropout, Scoring, is_adjusted, make_adjust_with_derivatives, make_apply_boolean_mask, make_apply_mask,
                          make_apply_mask_transposed, make_bend)
from .._parameters import Kind, Sequences, added_arguments, kind_of, number_arguments, sequence_arguments
from .._score_mod import document_bytes, document_launches
from .._scores import LOG2E, load_row_lse, make_extent, make_memory, make_terms, make_tile
from ..forward.sdpa_fwd_flash_mma import DTYPES, Threads
from ..sdpa_naive import delta_launch as ragged_delta_launch
from ..sdpa_naive import rows_of as row_count
from ._dbias import dbias_launches, dbias_seconds, sums_bytes
from ._delta import RowStats, delta_launch
from ._dsink import dsink_launches, dsink_seconds

COST = constants("attention/mma")

SHAPES = (Threads(4, 64, 2), Threads(4, 32, 2), Threads(8, 32, 1))
MOST_COLUMNS = 256  # of dk and dv together
WIDEST_DROPPED = 32
"""Columns of a tile with dropout: with more, loops have too many instructions to be unrolled, and arrays leave registers."""


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read and written, and a shape; whether the window has a left and a right bound, and whether scores are
    more than scaled products."""
    kind: Kind
    q: Source
    k: Source
    v: Source
    do: Source
    threads: Threads
    left: bool
    right: bool
    adjusted: bool
    pairs: tuple

    @property
    def shared(self):
        """Bytes of four tiles, and of a tile's lse and deltas."""
        t = self.threads
        return (t.height + t.width) * (self.q.pitch + self.v.pitch) + 8 * t.width

    @property
    def registers(self):
        """About how many a thread needs."""
        extra = self.threads.width // 2 * self.kind.bends + 24 * (self.adjusted or self.kind.dropout or self.kind.mask)
        return (self.q.width + self.v.width) // 2 + self.threads.width * 3 // 2 + 56 + extra

    def __str__(self):
        return f"{self.threads.height}x{self.threads.width} x{self.threads.blocks}"


def supports(problem):
    """16-bit heads, of q and v together up to 256 elements."""
    p = problem
    if p.dtype not in DTYPES:
        return f"dtype {p.dtype}; expected float16 or bfloat16"
    columns = sum(ceil_div(n, 16) * 16 for n in (p.d, p.dv))
    if columns > MOST_COLUMNS:
        return f"heads of {p.d} and {p.dv} elements; expected {MOST_COLUMNS} together at most, in whole steps of 16"
    return refusal(problem) or fits(p, 64)


def configs(problem, device):
    """Shapes that fit registers and shared memory; the last one whatever it takes."""
    p, found = problem, []
    sources = [source_of(t, p.strides(t)) for t in (p.q, p.k, p.v, p.do)]
    pairs = tuple(stored_in_pairs(p, t) for t in (p.dq, p.dk, p.dv_out))
    for t in SHAPES:
        config = Config(kind_of(p), *sources, t, p.left >= 0, p.right >= 0, is_adjusted(p), pairs)
        if t.blocks * (config.shared + 1024) <= device.shared_per_sm and config.shared <= device.shared_per_block and (
                config.registers <= 255 or t is SHAPES[-1]) and (not p.dropout or t.width <= WIDEST_DROPPED):
            found.append(config)
    return found


def stats_of(problem):
    """Where the workspace has the deltas."""
    count = row_count(problem)
    return RowStats(0, problem.rows, 0, ceil_div(count, 4) * 16)


def workspace(problem, device, config):
    """A number a row, what the bias's gradient needs, and the bits of a mask by documents."""
    return documents_at(problem, device) + document_bytes(problem)


def documents_at(problem, device):
    """Where those bits begin."""
    return stats_of(problem).end + sums_bytes(problem, 0, device)


def estimate(problem, device, config):
    """Seven products of whole tiles, and the instructions for probabilities, by how many warps a multiprocessor has."""
    p, t = problem, config.threads
    blocks = p.images * max(p.kv_heads, 1) * tiles_of(p, p.keys, t.height)
    rate = mma_rate(device)
    rows = p.pairs * p.heads / max(blocks, 1) / t.height + p.group * t.width / 2  # of a block
    products = 4 * config.q.width + 3 * config.v.width
    read = bool(config.kind.bias) + config.kind.mask
    issues = 2 * (COST.bwd_score + COST.bwd_read * read + COST.bwd_alibi * p.alibi + COST.bwd_softcap * (p.softcap > 0)
                  + COST.bwd_dropout * (p.dropout > 0) + p.score_instructions)  # of a score
    step = t.height * t.width * (products / (COST.bwd * rate / device.sms) + issue_seconds(issues, device.sms, device))
    slow = t.width * sm_issue_seconds(sum(COST.bwd_slow * s.width for s in (config.q, config.k, config.v, config.do) if not s.wide), device)
    seconds = 2 * walk_seconds(blocks, rows / t.width, step / 2, slow / 2, COST.bwd_latency, config, device)
    return (LAUNCH * 3 + dbias_seconds(p, 0, device) + dsink_seconds(p, device)
            + overlap(math=seconds, memory=memory_seconds(p.bytes, device)))


@functools.cache
def make_softmax_gradient(kind, width, transposed):
    """Device function ``gradient(x, y, row_lse, delta, derivatives, line, at, column, softmax_scale, dropout)`` of a tile of scores x and
    of products y of do and v: with p = exp(x - lse), x becomes p, after dropout, and y ds = p * (y - delta), but for the scale.

    `line` is the row, transposed the key, of the fragment's row r; `at` is the key, transposed the row, of column 0; `row_lse` and `delta`
    are arrays for the thread's two rows, transposed the shared addresses of those of column 0. `derivatives` has an element for each of x
    where there is a cap.
    """
    terms, CAPPED, DROPOUT = make_terms(kind), kind.softcap, kind.dropout

    @device_function
    def gradient(x, y, row_lse, delta, derivatives, line, at, column, softmax_scale, dropout):
        for j in range(width // 8):
            if transposed:
                lse_pair = load_shared_2f32(row_lse + u32(4 * (8 * j + column)))
                delta_pair = load_shared_2f32(delta + u32(4 * (8 * j + column)))
            for h in range(2):
                for e in range(2):
                    k, share = 4 * j + 2 * h + e, f32(1)
                    if transposed:
                        own_lse, own_delta = lse_pair[e], delta_pair[e]
                    else:
                        own_lse, own_delta = row_lse[h], delta[h]
                    if DROPOUT:
                        row, key = line + 8 * h, at + column + 8 * j + e
                        if transposed:
                            row, key = key, row
                        share = terms.kept(f32(1), dropout.seed, dropout.head, row, key, dropout.threshold, dropout.factor)
                    p = ex2(fma(x[k], softmax_scale, -own_lse))
                    ds = p * fma(y[k], share, -own_delta)
                    if CAPPED:
                        ds = ds * derivatives[k]
                    x[k], y[k] = p * share, ds
    return gradient


class _Parts:
    """What both kernels are made of: loaders of q, do, k and v, products, score modifiers; `transposed`: of tiles whose rows are keys."""

    def __init__(self, config, transposed):
        kind, t, make_hidden = config.kind, config.threads, make_apply_mask_transposed if transposed else make_apply_mask
        self.terms, self.extent, self.tile_of = make_terms(kind), make_extent(kind), make_tile(kind.packed, t.height)
        self.apply_mask = make_hidden(t.width, config.left, config.right)
        self.apply_boolean_mask = make_apply_boolean_mask(t.width, transposed)
        self.adjust = make_adjust_with_derivatives(kind, t.width, transposed)
        self.gradient, self.bend = make_softmax_gradient(kind, t.width, transposed), make_bend(kind, t.width, transposed)
        of_q, of_v = config.q, config.v
        self.score = make_gemm(kind.dtype, of_q.width // 16, t.width, of_q.pitch)
        self.value = make_gemm(kind.dtype, of_v.width // 16, t.width, of_v.pitch)
        self.by_q = make_gemm_rs(kind.dtype, t.width // 16, of_q.width, of_q.pitch)
        self.by_v = make_gemm_rs(kind.dtype, t.width // 16, of_v.width, of_v.pitch)
        self.pack = make_pack(kind.dtype, t.width // 4)
        heights = (t.width, t.height) if transposed else (t.height, t.width)
        self.loaders = [make_loader(s, n, t.count) for s, n in ((config.q, heights[0]), (config.do, heights[0]), (config.k, heights[1]),
                                                                (config.v, heights[1]))]
        self.stores = [make_store(kind.dtype, s.width, s.elements, pairs) for s, pairs in zip((of_q, of_q, of_v), config.pairs)]
        first, second = t.height * of_q.pitch, t.height * of_v.pitch
        self.offsets = first, first + second, first + second + t.width * of_q.pitch  # of the second resident tile, and those that pass
        self.lse_at = self.offsets[2] + t.width * of_v.pitch


@functools.cache
def rows_kernel(config):
    """dq of a tile of queries of one head per block."""
    kind, t, parts = config.kind, config.threads, _Parts(config, False)
    terms, extent, tile_of, apply_mask = parts.terms, parts.extent, parts.tile_of, parts.apply_mask
    adjust, gradient, bend = parts.adjust, parts.gradient, parts.bend
    score, value, by_q, pack, landed, store = parts.score, parts.value, parts.by_q, parts.pack, wait_copies(0), parts.stores[0]
    (load_q, load_do, load_k, load_v), apply_boolean_mask, MASK = parts.loaders, parts.apply_boolean_mask, kind.mask
    HEIGHT, WIDTH, PITCH, V_PITCH, E = t.height, t.width, config.q.pitch, config.v.pitch, config.q.width
    DO_AT, K_AT, V_AT = parts.offsets
    SCORES, SUMS, WORDS, PACKED, ADJUSTED = WIDTH // 2, E // 2, WIDTH // 4, kind.packed, config.adjusted
    memory_of = make_memory(kind.ragged, kind.paged)
    CAPS = SCORES if kind.bends else 1

    @jit(launch_bounds=(t.count, t.blocks))
    def sdpa_dq_flash_mma(q, k, v, do, dq, lse, delta, sizes, lines, heads_of, tiles, group_of_heads, q_strides, k_strides, v_strides,
                          do_strides, dq_strides, lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides,
                          sink, sink_step, bounds, scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, u32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        seed = terms.seed_of(seed, offset)
        rank, image_head = divide_remainder(cuda.blockIdx.x, lines)
        image, h = divide_remainder(image_head, heads_of)
        g, _ = divide_remainder(h, group_of_heads)
        batch, all_rows, all_keys = sizes
        b, i0 = tile_of(image, tiles - 1 - rank, of_rows, row_step, batch, all_rows)
        first_row, rows, first_key, keys = extent(b, Sequences(of_rows, of_keys, row_step, key_step), batch, all_rows, all_keys)
        if PACKED and b == batch:
            first_key, keys = 0, 0
        written = rows if PACKED else all_rows
        if i0 >= 0 and i0 < written:
            first, first_end = terms.key_range(i0, rows, keys, bounds)
            last_begin, last = terms.key_range(min(i0 + HEIGHT, rows) - 1, rows, keys, bounds)
            if i0 >= rows:
                last = first
            shift, slope, head = terms.shift(rows, keys), terms.slope(h, i32(heads_of.d)), b * i32(heads_of.d) + h
            of_q = memory_of.rows_of(q, q_strides, image, h, first_row, rows)
            of_do = memory_of.rows_of(do, do_strides, image, h, first_row, rows)
            of_dq = memory_of.rows_of(dq, dq_strides, image, h, first_row, rows)
            of_k = memory_of.keys_of(k, k_strides, image, g, first_key, keys)
            of_v = memory_of.keys_of(v, v_strides, image, g, first_key, keys)
            bias_at = image * bias_strides.batch + h * bias_strides.head
            mask_at = image * mask_strides.batch + h * mask_strides.head
            lse_at = memory_of.rows_at(lse_strides, image, rows) + h * lse_strides.head + first_row * lse_strides.row
            delta_at = image_head * i64(all_rows) + first_row
            row, column = i0 + warp * 16 + (lane >> 2), (lane & 3) * 2
            softmax_scale = f32(LOG2E) if ADJUSTED else scale * LOG2E
            scoring = Scoring(shift, slope, terms.of_head(bias, image, h), bias_at, bias_strides, rows - 1, keys - 1, scale, softcap)
            dropout = Dropout(seed, head, threshold, factor)
            of_rows_at, of_do_at = base + u32(warp * 16 * PITCH), base + DO_AT + u32(warp * 16 * V_PITCH)
            a, a_do = of_rows_at + left_offset(lane, PITCH), of_do_at + left_offset(lane, V_PITCH)
            b_k, b_v = base + K_AT + right_offset(lane, PITCH), base + V_AT + right_offset(lane, V_PITCH)
            transposed_k = base + K_AT + right_offset_transposed(lane, PITCH)

            x, y, sums = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32), cuda.local.array(SUMS, f32)
            words, left, right = cuda.local.array(WORDS, u32), cuda.local.array(4, u32), cuda.local.array(4, u32)
            row_lse, deltas, scales = cuda.local.array(2, f32), cuda.local.array(2, f32), cuda.local.array(2, f32)
            derivatives = cuda.local.array(CAPS, f32)
            for c in range(SUMS):
                sums[c] = f32(0)
            for r in range(2):
                i = row + 8 * r
                row_lse[r], deltas[r], scales[r] = load_row_lse(lse, lse_at + i * lse_strides.row, i < rows), f32(0), f32(0)
                if i < rows:
                    deltas[r], scales[r] = delta[delta_at + i], scale
            if first < last:
                load_q(base, of_q, i0, rows, (q_strides.row, q_strides.column), thread)
                load_do(base + DO_AT, of_do, i0, rows, (do_strides.row, do_strides.column), thread)
            for at in range(first, last, WIDTH):
                if not terms.is_there(bias, image, i0, HEIGHT, at, WIDTH):
                    continue
                load_k(base + K_AT, of_k, at, keys, (k_strides.row, k_strides.column), thread)
                load_v(base + V_AT, of_v, at, keys, (v_strides.row, v_strides.column), thread)
                commit_copies()
                landed()
                cuda.syncthreads()
                for c in range(SCORES):
                    x[c], y[c] = f32(0), f32(0)
                score(x, left, right, a, b_k)
                value(y, left, right, a_do, b_v)
                if ADJUSTED:
                    adjust(x, derivatives, row, at, column, scoring)
                if MASK:
                    apply_boolean_mask(x, row, i32(at), column, rows - 1, keys - 1, mask, mask_at, mask_strides)
                if at + WIDTH > first_end or at < last_begin:
                    apply_mask(x, row + shift, at, column, keys, bounds)
                gradient(x, y, row_lse, deltas, derivatives, row, at, column, softmax_scale, dropout)
                bend(0, (y, derivatives, row, at + column, rows - 1, keys - 1, scoring.bias))
                pack(words, y)
                by_q(sums, words, right, transposed_k)
                cuda.syncthreads()
            if terms.skips():  # nothing is on its way where all were left out
                commit_copies()
                landed()
            store(sums, scales, of_dq, dq_strides, row, memory_of.written(dq_strides, rows, written), column)
    return sdpa_dq_flash_mma


@functools.cache
def keys_kernel(config):
    """dk and dv of a tile of keys of one head of k and v per block."""
    kind, t, parts = config.kind, config.threads, _Parts(config, True)
    terms, extent, tile_of, apply_mask = parts.terms, parts.extent, parts.tile_of, parts.apply_mask
    adjust, gradient, bend = parts.adjust, parts.gradient, parts.bend
    score, value, by_q, by_v, pack, landed = parts.score, parts.value, parts.by_q, parts.by_v, parts.pack, wait_copies(0)
    (load_q, load_do, load_k, load_v), apply_boolean_mask, MASK = parts.loaders, parts.apply_boolean_mask, kind.mask
    _, store_dk, store_dv = parts.stores
    HEIGHT, WIDTH, PITCH, V_PITCH = t.height, t.width, config.q.pitch, config.v.pitch
    V_AT, Q_AT, DO_AT = parts.offsets
    LSE_AT, DELTA_AT = parts.lse_at, parts.lse_at + 4 * WIDTH
    SCORES, SUMS, SUMS_V, WORDS = WIDTH // 2, config.q.width // 2, config.v.width // 2, WIDTH // 4
    PACKED, ADJUSTED, CAPS = kind.packed, config.adjusted, SCORES if kind.bends else 1
    memory_of = make_memory(kind.ragged, kind.paged)

    @device_function
    def load_stats(base, lse, lse_at, lse_step, delta, delta_at, i, rows, thread):
        """lse and delta of a tile of rows."""
        if thread < WIDTH:
            mine, own = i + thread, f32(0)
            own_lse = load_row_lse(lse, lse_at + mine * lse_step, mine < rows)
            if mine < rows:
                own = delta[delta_at + mine]
            store_shared_f32(base + LSE_AT + u32(thread * 4), own_lse)
            store_shared_f32(base + DELTA_AT + u32(thread * 4), own)

    @jit(launch_bounds=(t.count, t.blocks))
    def sdpa_dkv_flash_mma(q, k, v, do, dk, dv, lse, delta, sizes, lines, heads_of, tiles, group, q_strides, k_strides, v_strides,
                           do_strides, dk_strides, dv_strides, lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask,
                           mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, u32)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        seed = terms.seed_of(seed, offset)
        tile, image_head = divide_remainder(cuda.blockIdx.x, lines)
        image, g = divide_remainder(image_head, heads_of)
        batch, all_rows, all_keys = sizes
        b, j0 = tile_of(image, tile, of_keys, key_step, batch, all_keys)
        first_row, rows, first_key, keys = extent(b, Sequences(of_rows, of_keys, row_step, key_step), batch, all_rows, all_keys)
        if PACKED and b == batch:
            first_row, rows = 0, 0
        written = keys if PACKED else all_keys
        if j0 >= 0 and j0 < written:
            first, _ = terms.query_range(j0, rows, keys, bounds)
            _, last = terms.query_range(min(j0 + HEIGHT, keys) - 1, rows, keys, bounds)
            last = min(last, rows)
            if j0 >= keys:
                last = first
            shift, heads = terms.shift(rows, keys), i32(heads_of.d) * group
            of_k = memory_of.keys_of(k, k_strides, image, g, first_key, keys)
            of_v = memory_of.keys_of(v, v_strides, image, g, first_key, keys)
            to_dk = memory_of.keys_of(dk, dk_strides, image, g, first_key, keys)
            to_dv = memory_of.keys_of(dv, dv_strides, image, g, first_key, keys)
            key, column = j0 + warp * 16 + (lane >> 2), (lane & 3) * 2
            softmax_scale = f32(LOG2E) if ADJUSTED else scale * LOG2E
            of_keys_at, of_values_at = base + u32(warp * 16 * PITCH), base + V_AT + u32(warp * 16 * V_PITCH)
            a, a_v = of_keys_at + left_offset(lane, PITCH), of_values_at + left_offset(lane, V_PITCH)
            b_q, b_do = base + Q_AT + right_offset(lane, PITCH), base + DO_AT + right_offset(lane, V_PITCH)
            transposed_q = base + Q_AT + right_offset_transposed(lane, PITCH)
            transposed_do = base + DO_AT + right_offset_transposed(lane, V_PITCH)

            x, y = cuda.local.array(SCORES, f32), cuda.local.array(SCORES, f32)
            sums, sums_v = cuda.local.array(SUMS, f32), cuda.local.array(SUMS_V, f32)
            words, left, right = cuda.local.array(WORDS, u32), cuda.local.array(4, u32), cuda.local.array(4, u32)
            derivatives, factors = cuda.local.array(CAPS, f32), cuda.local.array(2, f32)
            for c in range(SUMS):
                sums[c] = f32(0)
            for c in range(SUMS_V):
                sums_v[c] = f32(0)
            if first < last:
                load_k(base, of_k, j0, keys, (k_strides.row, k_strides.column), thread)
                load_v(base + V_AT, of_v, j0, keys, (v_strides.row, v_strides.column), thread)
            for member in range(group):
                h = g * group + member
                slope, head = terms.slope(h, heads), b * heads + h
                of_q = memory_of.rows_of(q, q_strides, image, h, first_row, rows)
                of_do = memory_of.rows_of(do, do_strides, image, h, first_row, rows)
                bias_at = image * bias_strides.batch + h * bias_strides.head
                mask_at = image * mask_strides.batch + h * mask_strides.head
                lse_at = memory_of.rows_at(lse_strides, image, rows) + h * lse_strides.head + first_row * lse_strides.row
                delta_at = (i64(image) * heads + h) * all_rows + first_row
                scoring = Scoring(shift, slope, terms.of_head(bias, image, h), bias_at, bias_strides, rows - 1, keys - 1, scale, softcap)
                for i0 in range(first, last, WIDTH):
                    if not terms.is_there(bias, image, i0, WIDTH, j0, HEIGHT):
                        continue
                    load_q(base + Q_AT, of_q, i0, rows, (q_strides.row, q_strides.column), thread)
                    load_do(base + DO_AT, of_do, i0, rows, (do_strides.row, do_strides.column), thread)
                    commit_copies()
                    load_stats(base, lse, lse_at, lse_strides.row, delta, delta_at, i0, rows, thread)
                    landed()
                    cuda.syncthreads()
                    for c in range(SCORES):
                        x[c], y[c] = f32(0), f32(0)
                    score(x, left, right, a, b_q)
                    value(y, left, right, a_v, b_do)
                    if ADJUSTED:
                        adjust(x, derivatives, key, i0, column, scoring)
                    if MASK:
                        apply_boolean_mask(x, key, i0, column, rows - 1, keys - 1, mask, mask_at, mask_strides)
                    begin, _ = terms.key_range(min(i0 + WIDTH, rows) - 1, rows, keys, bounds)
                    _, end = terms.key_range(i0, rows, keys, bounds)
                    if begin > j0 or end < j0 + HEIGHT:
                        apply_mask(x, key - shift, i0, column, keys - key, bounds)
                    gradient(x, y, base + LSE_AT, base + DELTA_AT, derivatives, key, i0, column, softmax_scale,
                             Dropout(seed, head, threshold, factor))
                    bend(0, (y, derivatives, key, i0 + column, rows - 1, keys - 1, scoring.bias))
                    pack(words, x)
                    by_v(sums_v, words, right, transposed_do)
                    pack(words, y)
                    by_q(sums, words, right, transposed_q)
                    cuda.syncthreads()
            if terms.skips():
                commit_copies()
                landed()
            for r in range(2):
                factors[r] = scale if key + 8 * r < keys else f32(0)
            store_dk(sums, factors, to_dk, dk_strides, key, memory_of.written(dk_strides, keys, written), column)
            for r in range(2):
                factors[r] = f32(1) if key + 8 * r < keys else f32(0)
            store_dv(sums_v, factors, to_dv, dv_strides, key, memory_of.written(dv_strides, keys, written), column)
    return sdpa_dkv_flash_mma


def build(problem, device, config):
    """Three launches, each where its result has elements, and that of the bias's gradient."""
    p, t = problem, config.threads
    given = tuple(Argument("uint16*", name) for name in ("q", "k", "v", "do"))
    saved = Argument("float32*", "lse"), Argument("float32*", "workspace"), Argument("int32x3", (p.batch, p.rows, p.keys))
    common = (row_strides_argument(p), *sequence_arguments(p), *added_arguments(p, documents_at(p, device)), *number_arguments(p))

    def strides(*outs):
        return tuple(strides_argument(p, name) for name in ("q", "k", "v", "do", *outs))

    def launch(kernel, tiles, heads, *arguments):
        return Launch(kernel, (tiles * p.images * heads, 1, 1), (t.count, 1, 1), arguments, shared=config.shared)
    launches = document_launches(p, documents_at(p, device))
    launches += ((ragged_delta_launch if p.ragged else delta_launch)(p),) if p.rows * p.heads * p.images else ()
    if p.dq.size:
        tiles = tiles_of(p, p.rows, t.height)
        launches += (launch(rows_kernel(config), tiles, p.heads, *given, Argument("uint16*", "dq"), *saved,
                            *lines_arguments(p, p.heads, tiles), Argument(Divisor, divisor(p.group)), *strides("dq"), *common),)
    if p.dk.size or p.dv_out.size:
        tiles = tiles_of(p, p.keys, t.height)
        launches += (launch(keys_kernel(config), tiles, p.kv_heads, *given, Argument("uint16*", "dk"), Argument("uint16*", "dv"), *saved,
                            *lines_arguments(p, p.kv_heads, tiles), Argument("int32", p.group), *strides("dk", "dv"), *common),)
    return launches + dbias_launches(p, device, stats_of(p)) + dsink_launches(p, stats_of(p))


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_mma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_80+", programs=True)
