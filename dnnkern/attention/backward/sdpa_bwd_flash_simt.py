"""One tile of queries per block for dq and one tile of keys per block for dk and dv: probabilities are computed again, in registers.

    queries:  q, do | k, v tile by tile --> x = q k', y = do v' --> ds --> dq += ds k
    keys:     k, v | q, do tile by tile --> x = k q', y = v do' --> p, ds --> dv += p do, dk += ds q

- With delta = sum(do * o) of each row, which a launch leaves in the workspace, ``ds = p * (do @ v.T - delta)``: nothing of the size queries
  x keys exists, and no sum goes over more than one block. So there are no atomics, and each sum has one order.
- ds and p are computed in registers and pass through shared memory, by warps alone, to be multiplied.
- Scores are computed twice, seven products instead of five; what is saved is the order of adding dq, which blocks of keys would share.
- The bias's gradient is computed by launches of its own (`_dbias`).
"""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.cp_async import commit_copies, wait_copies
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.unroll import unrolled
from ...device.vec import advance, shared_address
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, memory_seconds, overlap
from ...host.launch import Argument, Launch
from .._addresses import row_strides_argument, strides_argument
from .._flash import WIDEST, blocks_seconds, fits, lines_arguments, make_powers, refusal, tiles_of
from .._modifiers import Dropout, Scoring
from .._parameters import Kind, Sequences, added_arguments, kind_of, number_arguments, sequence_arguments
from .._scores import NEG_INF, make_attends, make_extent, make_memory, make_terms, make_tile
from .._simt import (Mask, Sequence, Source, Threads, group_of, item_of, make_loader, make_products, make_row_store, padded, pitch_of,
                     source_of, words_of)
from ..sdpa_naive import delta_launch as ragged_delta_launch
from ..sdpa_naive import workspace as deltas_bytes
from ._dbias import dbias_launches, dbias_seconds, sums_bytes
from ._delta import RowStats, delta_launch
from ._dsink import dsink_launches, dsink_seconds

COST = constants("attention/simt")

SHAPES = (Threads(4, 4, 16, 16), Threads(4, 4, 16, 8), Threads(4, 4, 8, 8), Threads(2, 4, 16, 8), Threads(2, 2, 16, 4), Threads(2, 2, 8, 4))


@dataclass(frozen=True)
class Config:
    """The options, how arrays are read and written, and who has what: `puts` are the 32-bit words of stores to dq, dk and dv."""
    kind: Kind
    q: Source
    k: Source
    v: Source
    do: Source
    threads: Threads
    puts: tuple

    @property
    def depth(self):
        """Columns of the tiles of q and k, a multiple of what the lanes have in groups of 16 bytes."""
        return padded(self.q.elements, self.threads.lanes * group_of(self.kind.dtype))

    @property
    def width(self):
        """Columns of the tiles of v and do."""
        return padded(self.v.elements, self.threads.lanes * group_of(self.kind.dtype))

    @property
    def pitches(self):
        """Of q and k, of v and do, of ds and p."""
        dtype = self.kind.dtype
        return pitch_of(self.depth, dtype), pitch_of(self.width, dtype), self.threads.width + group_of(dtype)

    def shared(self, passed):
        """Bytes of four tiles, and of `passed` tiles of scores."""
        t, (of_q, of_v, own) = self.threads, self.pitches
        return item_of(self.kind.dtype) * ((t.height + t.width) * (of_q + of_v) + passed * t.height * own)

    @property
    def registers(self):
        """About how many registers each thread needs."""
        t, item = self.threads, item_of(self.kind.dtype) // 4
        sums = t.rows * (self.width + self.depth) // t.lanes
        return item * (sums + 2 * t.rows * t.columns + group_of(self.kind.dtype) * (t.rows + t.columns) + 2 * t.rows) + 64

    def __str__(self):
        return f"{self.threads.height}x{self.threads.width} by {self.threads.count} threads"


def supports(problem):
    """Heads of up to 256 elements, of 128 in float64, whose accumulators take twice the registers."""
    return refusal(problem) or fits(problem, SHAPES[-1].height, WIDEST // 2 if problem.compute == "float64" else WIDEST)


def configs(problem, device):
    """Tiles whose accumulators fit registers and shared memory."""
    p, found = problem, []
    sources = [source_of(t, p.strides(t)) for t in (p.q, p.k, p.v, p.do)]
    puts = tuple(words_of(t, p.strides(t)) for t in (p.dq, p.dk, p.dv_out))
    for threads in SHAPES:
        config = Config(kind_of(p), *sources, threads, puts)
        if config.shared(2) <= device.shared_per_block and config.registers <= 210:
            found.append(config)
    return found


def stats_of(problem, device, config):
    """Where the workspace has the deltas; sums of the bias's gradient come after them."""
    return RowStats(0, problem.rows, 0, ceil_div(deltas_bytes(problem, device, config), 16) * 16)


def workspace(problem, device, config):
    """The deltas, and sums of the bias's gradient."""
    sums = sums_bytes(problem, 0, device)
    return stats_of(problem, device, config).end + sums if sums else deltas_bytes(problem, device, config)


def estimate(problem, device, config):
    """Seven products of whole tiles, by how many warps a multiprocessor has to hide what they wait for."""
    p, t = problem, config.threads
    blocks = p.images * max(p.kv_heads, 1) * tiles_of(p, p.keys, t.height)
    rate = (device.fp64_rate if p.compute == "float64" else device.fp32_rate) / 2
    products = 4 * config.depth + 3 * config.width
    rows = p.pairs * p.heads / max(blocks, 1) / t.height + p.group * t.width / 2  # of a block
    of_scores = COST.exponentials_bwd * (2 if p.dropout else 1) + p.score_instructions
    issue = 1 + (t.rows + t.columns) / (t.rows * t.columns) * COST.load + of_scores / products
    seconds = blocks_seconds(blocks, t.height * rows * products * issue, t, config.shared(2), config.registers, rate * COST.bwd, device)
    after = dbias_seconds(p, 0, device) + dsink_seconds(p, device)
    return LAUNCH * 3 + after + overlap(math=seconds, memory=memory_seconds(p.bytes, device))


class _Parts:
    """What both kernels are made of."""

    def __init__(self, config):
        kind, t = config.kind, config.threads
        self.terms = make_terms(kind)
        self.extent, self.tile_of = make_extent(kind), make_tile(kind.packed, t.height)
        transposed, straight = make_products(t, kind.dtype)
        self.product, self.by_depth, self.by_width = transposed(0), straight(config.depth), straight(config.width)
        self.groups = config.depth // group_of(kind.dtype), config.width // group_of(kind.dtype)
        self.loaders = {}
        for name, height in (("q", t.height), ("k", t.width), ("v", t.width), ("do", t.height)):
            wide, pitch = (config.depth, config.pitches[0]) if name in "qk" else (config.width, config.pitches[1])
            for of, rows in (("rows", height), ("keys", t.height + t.width - height)):
                self.loaders[name, of] = make_loader(getattr(config, name), rows, wide, pitch, t.count)
        self.stores = [make_row_store(kind.dtype, s.elements, put, t.lanes, wide // t.lanes) for s, put, wide in zip(
            (config.q, config.k, config.v), config.puts, (config.depth, config.depth, config.width))]


class Sizes(NamedTuple):
    """Sequences, queries and keys of an array."""
    batch: i32
    rows: i32
    keys: i32


@functools.cache
def make_softmax_gradient(kind):
    """Device function ``gradient(x, y, visible, i, j, bias_at, row_lse, delta, scoring, dropout)`` -> (ds by the product but for the scale,
    the probability after dropout) of query i and key j, from the products of q and k and of do and v."""
    terms, powers, T, DROPOUT = make_terms(kind), make_powers(kind.compute), kind.real, kind.dropout

    @device_function
    def gradient(x, y, visible, i, j, bias_at, row_lse, delta, scoring, dropout):
        ds, used = T(0), T(0)
        if visible:
            at = terms.where(bias_at, i, j)
            score, derivative = terms.score_and_derivative(x, j - i - scoring.shift, scoring.slope, scoring.bias, at, scoring.scale,
                                                           scoring.softcap)
            p, share = powers.rise(score, row_lse), T(1)
            if DROPOUT:
                share = terms.kept(T(1), dropout.seed, dropout.head, i, j, dropout.threshold, dropout.factor)
            used = T(p * share)
            ds = terms.gradient(T(p * T(T(y * share) - delta)), derivative, scoring.bias, at)
        return ds, used
    return gradient


@functools.cache
def make_load_row_lse(kind):
    """Device function ``load_row_lse(lse, at, exists)``: that of a row as exponentials take it; one that makes its probabilities 0 where it
    attends to nothing."""
    T, ref_max = kind.real, make_powers(kind.compute).level

    @device_function
    def load_row_lse(lse, at, exists):
        value = T(math.inf)
        if exists:
            own = lse[at]
            if own != T(NEG_INF):
                value = ref_max(own)
        return value
    return load_row_lse


@functools.cache
def rows_kernel(config):
    """dq of a tile of queries of one head per block."""
    kind, t, T, parts = config.kind, config.threads, config.kind.real, _Parts(config)
    terms, attends, extent, tile_of = parts.terms, make_attends(kind), parts.extent, parts.tile_of
    product, weigh = parts.product, parts.by_depth
    gradient, load_row_lse, store, landed = make_softmax_gradient(kind), make_load_row_lse(kind), parts.stores[0], wait_copies(0)
    load_q, load_k, load_v, load_do = (parts.loaders[name, "rows"] for name in ("q", "k", "v", "do"))
    ROWS, COLUMNS, LANES, HEIGHT, WIDTH, THREADS = t.rows, t.columns, t.lanes, t.height, t.width, t.count
    ITEM, (PITCH, V_PITCH, P_PITCH), (GROUPS, V_GROUPS) = item_of(kind.dtype), config.pitches, parts.groups
    DO_AT = HEIGHT * PITCH
    K_AT = DO_AT + HEIGHT * V_PITCH
    V_AT = K_AT + WIDTH * PITCH
    P_AT = V_AT + WIDTH * V_PITCH
    OWN, SCORES, PACKED = config.depth // LANES, ROWS * COLUMNS, kind.packed
    memory_of = make_memory(kind.ragged, kind.paged)
    BIAS, MASK, SUMS = bool(kind.bias), kind.mask, ROWS * OWN
    G = group_of(kind.dtype)

    @device_function
    def gradients(r, s):
        """A row of the thread: ds, to shared memory."""
        x, y, row_lse, deltas, memory, p_at, i0, j0, lane, whole, sequence, scoring, mask, dropout = s
        for c in range(COLUMNS):
            i, j, k, bias_at = i0 + r, j0 + c * LANES, r * COLUMNS + c, i64(0)
            visible = i < sequence.rows and (whole or attends(i, j, sequence.shift, sequence.keys, sequence.bounds))
            if MASK and visible:
                visible = terms.permits(mask.data, mask.at + i * mask.strides.row + j * mask.strides.column)
            if BIAS and visible:
                bias_at = scoring.bias_at + i * scoring.bias_strides.row + j * scoring.bias_strides.column
            ds, _ = gradient(x[k], y[k], visible, i, j, bias_at, row_lse[r], deltas[r], scoring, dropout)
            memory[p_at + r * P_PITCH + lane + c * LANES] = ds
    gradients_all = unrolled(ROWS, gradients)

    @device_function
    def finish(r, s):
        sums, i0, lane, written, of_dq, dq_strides, scale = s
        for c in range(OWN):
            sums[r * OWN + c] = T(sums[r * OWN + c] * scale)
        if i0 + r < written:
            store(advance(of_dq, (i0 + r) * dq_strides.row), dq_strides.column, lane, sums, r * OWN)
    finish_all = unrolled(ROWS, finish)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_dq_flash_simt(q, k, v, do, dq, lse, delta, sizes, lines, heads_of, tiles, group_of_heads, q_strides, k_strides, v_strides,
                           do_strides, dq_strides, lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask,
                           mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, T)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, line = thread % LANES, thread // LANES
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
            sequence, dropout = Sequence(rows, keys, shift, bounds), Dropout(seed, head, threshold, factor)
            scoring = Scoring(shift, slope, terms.of_head(bias, image, h), bias_at, bias_strides, rows - 1, keys - 1, scale, softcap)
            own = i0 + line * ROWS
            sums, row_lse, deltas = cuda.local.array(SUMS, T), cuda.local.array(ROWS, T), cuda.local.array(ROWS, T)
            x, y = cuda.local.array(SCORES, T), cuda.local.array(SCORES, T)
            for c in range(SUMS):
                sums[c] = T(0)
            for r in range(ROWS):
                i = own + r
                row_lse[r], deltas[r] = load_row_lse(lse, lse_at + i * lse_strides.row, i < rows), T(0)
                if i < rows:
                    deltas[r] = delta[delta_at + i]
            if first < last:
                load_q(base, of_q, i0, rows, (q_strides.row, q_strides.column), thread)
                load_do(base + DO_AT * ITEM, of_do, i0, rows, (do_strides.row, do_strides.column), thread)
            p_at = P_AT + line * ROWS * P_PITCH
            for j0 in range(first, last, WIDTH):
                load_k(base + K_AT * ITEM, of_k, j0, keys, (k_strides.row, k_strides.column), thread)
                load_v(base + V_AT * ITEM, of_v, j0, keys, (v_strides.row, v_strides.column), thread)
                commit_copies()
                landed()
                cuda.syncthreads()
                for c in range(SCORES):
                    x[c], y[c] = T(0), T(0)
                product(x, base + u32(line * ROWS * PITCH * ITEM), base + u32((K_AT + lane * PITCH) * ITEM), PITCH,
                        GROUPS)
                product(y, base + u32((DO_AT + line * ROWS * V_PITCH) * ITEM),
                        base + u32((V_AT + lane * V_PITCH) * ITEM), V_PITCH, V_GROUPS)
                whole = j0 + WIDTH <= first_end and j0 >= last_begin
                gradients_all(0, (x, y, row_lse, deltas, memory, p_at, own, j0 + lane, lane, whole, sequence, scoring,
                                  Mask(mask, mask_at, mask_strides), dropout))
                cuda.syncwarp()
                weigh(sums, base + u32(p_at * ITEM), P_PITCH, base + u32((K_AT + lane * G) * ITEM), PITCH, WIDTH)
                cuda.syncthreads()
            finish_all(0, (sums, own, lane, memory_of.written(dq_strides, rows, written), of_dq, dq_strides, scale))
    return sdpa_dq_flash_simt


@functools.cache
def keys_kernel(config):
    """dk and dv of a tile of keys of one head of k and v per block."""
    kind, t, T, parts = config.kind, config.threads, config.kind.real, _Parts(config)
    terms, attends, extent, tile_of, product = parts.terms, make_attends(kind), parts.extent, parts.tile_of, parts.product
    by_depth, by_width, landed = parts.by_depth, parts.by_width, wait_copies(0)
    gradient, load_row_lse = make_softmax_gradient(kind), make_load_row_lse(kind)
    _, store_dk, store_dv = parts.stores
    load_q, load_k, load_v, load_do = (parts.loaders[name, "keys"] for name in ("q", "k", "v", "do"))
    ROWS, COLUMNS, LANES, HEIGHT, WIDTH, THREADS = t.rows, t.columns, t.lanes, t.height, t.width, t.count
    ITEM, (PITCH, V_PITCH, P_PITCH), (GROUPS, V_GROUPS) = item_of(kind.dtype), config.pitches, parts.groups
    V_AT = HEIGHT * PITCH
    Q_AT = V_AT + HEIGHT * V_PITCH
    DO_AT = Q_AT + WIDTH * PITCH
    S_AT = DO_AT + WIDTH * V_PITCH
    BETWEEN = HEIGHT * P_PITCH  # from ds to p
    OWN, OWN_V, SCORES = config.depth // LANES, config.width // LANES, ROWS * COLUMNS
    PACKED, memory_of = kind.packed, make_memory(kind.ragged, kind.paged)
    BIAS, MASK, SUMS, SUMS_V, G = bool(kind.bias), kind.mask, ROWS * OWN, ROWS * OWN_V, group_of(kind.dtype)

    @device_function
    def gradients(r, s):
        """A key of the thread: ds and p, to shared memory."""
        x, y, row_lse, deltas, memory, s_at, j0, i0, lane, whole, sequence, scoring, mask, dropout = s
        for c in range(COLUMNS):
            i, j, k, bias_at = i0 + c * LANES, j0 + r, r * COLUMNS + c, i64(0)
            visible = i < sequence.rows and (whole or attends(i, j, sequence.shift, sequence.keys, sequence.bounds))
            if MASK and visible:
                visible = terms.permits(mask.data, mask.at + i * mask.strides.row + j * mask.strides.column)
            if BIAS and visible:
                bias_at = scoring.bias_at + i * scoring.bias_strides.row + j * scoring.bias_strides.column
            ds, p = gradient(x[k], y[k], visible, i, j, bias_at, row_lse[c], deltas[c], scoring, dropout)
            to = s_at + r * P_PITCH + lane + c * LANES
            memory[to] = ds
            memory[to + BETWEEN] = p
    gradients_all = unrolled(ROWS, gradients)

    @device_function
    def finish(r, s):
        of_k, of_v, j0, lane, written, to_dk, dk_strides, to_dv, dv_strides, scale = s
        for c in range(OWN):
            of_k[r * OWN + c] = T(of_k[r * OWN + c] * scale)
        j = j0 + r
        if j < written[0]:
            store_dk(advance(to_dk, j * dk_strides.row), dk_strides.column, lane, of_k, r * OWN)
        if j < written[1]:
            store_dv(advance(to_dv, j * dv_strides.row), dv_strides.column, lane, of_v, r * OWN_V)
    finish_all = unrolled(ROWS, finish)

    @jit(launch_bounds=(THREADS, 1))
    def sdpa_dkv_flash_simt(q, k, v, do, dk, dv, lse, delta, sizes, lines, heads_of, tiles, group, q_strides, k_strides, v_strides,
                            do_strides, dk_strides, dv_strides, lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask,
                            mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset, threshold, factor):
        memory = cuda.shared.array(0, T)
        base = shared_address(memory, 0)
        thread = cuda.threadIdx.x
        lane, line = thread % LANES, thread // LANES
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
            last_key = min(j0 + HEIGHT, keys) - 1
            first, _ = terms.query_range(j0, rows, keys, bounds)
            _, last = terms.query_range(last_key, rows, keys, bounds)
            last = min(last, rows)
            if j0 >= keys:
                last = first
            shift, heads = terms.shift(rows, keys), i32(heads_of.d) * group
            of_k = memory_of.keys_of(k, k_strides, image, g, first_key, keys)
            of_v = memory_of.keys_of(v, v_strides, image, g, first_key, keys)
            to_dk = memory_of.keys_of(dk, dk_strides, image, g, first_key, keys)
            to_dv = memory_of.keys_of(dv, dv_strides, image, g, first_key, keys)
            sequence, own = Sequence(rows, keys, shift, bounds), j0 + line * ROWS
            sums, sums_v = cuda.local.array(SUMS, T), cuda.local.array(SUMS_V, T)
            row_lse, deltas = cuda.local.array(COLUMNS, T), cuda.local.array(COLUMNS, T)
            x, y = cuda.local.array(SCORES, T), cuda.local.array(SCORES, T)
            for c in range(SUMS):
                sums[c] = T(0)
            for c in range(SUMS_V):
                sums_v[c] = T(0)
            if first < last:
                load_k(base, of_k, j0, keys, (k_strides.row, k_strides.column), thread)
                load_v(base + V_AT * ITEM, of_v, j0, keys, (v_strides.row, v_strides.column), thread)
            s_at = S_AT + line * ROWS * P_PITCH
            for member in range(group):
                h = g * group + member
                slope, dropout = terms.slope(h, heads), Dropout(seed, b * heads + h, threshold, factor)
                of_q = memory_of.rows_of(q, q_strides, image, h, first_row, rows)
                of_do = memory_of.rows_of(do, do_strides, image, h, first_row, rows)
                bias_at = image * bias_strides.batch + h * bias_strides.head
                mask_at = image * mask_strides.batch + h * mask_strides.head
                lse_at = memory_of.rows_at(lse_strides, image, rows) + h * lse_strides.head + first_row * lse_strides.row
                delta_at = (i64(image) * heads + h) * all_rows + first_row
                scoring = Scoring(shift, slope, terms.of_head(bias, image, h), bias_at, bias_strides, rows - 1, keys - 1, scale, softcap)
                for i0 in range(first, last, WIDTH):
                    load_q(base + Q_AT * ITEM, of_q, i0, rows, (q_strides.row, q_strides.column), thread)
                    load_do(base + DO_AT * ITEM, of_do, i0, rows, (do_strides.row, do_strides.column), thread)
                    commit_copies()
                    for c in range(COLUMNS):
                        i = i0 + lane + c * LANES
                        row_lse[c], deltas[c] = load_row_lse(lse, lse_at + i * lse_strides.row, i < rows), T(0)
                        if i < rows:
                            deltas[c] = delta[delta_at + i]
                    landed()
                    cuda.syncthreads()
                    for c in range(SCORES):
                        x[c], y[c] = T(0), T(0)
                    product(x, base + u32(line * ROWS * PITCH * ITEM), base + u32((Q_AT + lane * PITCH) * ITEM),
                            PITCH, GROUPS)
                    product(y, base + u32((V_AT + line * ROWS * V_PITCH) * ITEM),
                            base + u32((DO_AT + lane * V_PITCH) * ITEM), V_PITCH, V_GROUPS)
                    begin, _ = terms.key_range(min(i0 + WIDTH, rows) - 1, rows, keys, bounds)
                    _, end = terms.key_range(i0, rows, keys, bounds)
                    whole = begin <= j0 and end >= j0 + HEIGHT
                    gradients_all(0, (x, y, row_lse, deltas, memory, s_at, own, i0 + lane, lane, whole, sequence, scoring,
                                      Mask(mask, mask_at, mask_strides), dropout))
                    cuda.syncwarp()
                    by_depth(sums, base + u32(s_at * ITEM), P_PITCH, base + u32((Q_AT + lane * G) * ITEM), PITCH,
                             WIDTH)
                    by_width(sums_v, base + u32((s_at + BETWEEN) * ITEM), P_PITCH,
                             base + u32((DO_AT + lane * G) * ITEM), V_PITCH, WIDTH)
                    cuda.syncthreads()
            both = memory_of.written(dk_strides, keys, written), memory_of.written(dv_strides, keys, written)
            finish_all(0, (sums, sums_v, own, lane, both, to_dk, dk_strides, to_dv, dv_strides, scale))
    return sdpa_dkv_flash_simt


def build(problem, device, config):
    """Three launches, each where its result has elements, and that of the bias's gradient."""
    p, t, pointer = problem, config.threads, element(problem.dtype).pointer
    given = tuple(Argument(pointer, name) for name in ("q", "k", "v", "do"))
    saved = Argument(f"{p.compute}*", "lse"), Argument(f"{p.compute}*", "workspace"), Argument(Sizes, (p.batch, p.rows, p.keys))
    common = (row_strides_argument(p), *sequence_arguments(p), *added_arguments(p), *number_arguments(p))

    def strides(*outs):
        return tuple(strides_argument(p, name) for name in ("q", "k", "v", "do", *outs))

    def launch(kernel, tiles, heads, passed, *arguments):
        return Launch(kernel, (tiles * p.images * heads, 1, 1), (t.count, 1, 1), arguments, shared=config.shared(passed))
    launches = ((ragged_delta_launch if p.ragged else delta_launch)(p),) if p.rows * p.heads * p.images else ()
    if p.dq.size:
        tiles = tiles_of(p, p.rows, t.height)
        launches += (launch(rows_kernel(config), tiles, p.heads, 1, *given, Argument(pointer, "dq"), *saved,
                            *lines_arguments(p, p.heads, tiles), Argument(Divisor, divisor(p.group)), *strides("dq"), *common),)
    if p.dk.size or p.dv_out.size:
        tiles = tiles_of(p, p.keys, t.height)
        launches += (launch(keys_kernel(config), tiles, p.kv_heads, 2, *given, Argument(pointer, "dk"), Argument(pointer, "dv"), *saved,
                            *lines_arguments(p, p.kv_heads, tiles), Argument("int32", p.group), *strides("dk", "dv"), *common),)
    stats = stats_of(p, device, config)
    return launches + dbias_launches(p, device, stats) + dsink_launches(p, stats)


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_simt", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, arch="sm_80+", programs=True)
