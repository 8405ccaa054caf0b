"""One thread per eight elements of a row of the result, straight from the definition.

    forward     a thread of o    pass 1 over the keys: row_max    pass 2: row_sum, and the values weighed by exp(score - row_max)
    backward    delta = sum of do * o, a thread per row
                dq: a thread sums over the keys of its query; dk, dv: over the queries, and heads, that attend to its key
                the bias's gradient: over all pairs that share its element

Threads share nothing: each computes every product of a query and a key again. Arbitrary strides and sizes, every option; each sum has one
order. It wins for results of a few rows, and is what the other algorithms are checked against.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import exp, fabs, log, maximum
from ..device.index import ceil_div, divided
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._addresses import row_strides_argument, stats_arguments, stats_of, strides_argument
from ._checks import broadcast_strides
from ._fragments import make_factors
from ._naive import CHUNK, THREADS, Dropout, Element, Pair, Scoring, Vector, chunks_of, make_dot, make_gradients
from ._parameters import (Sequences, Strides, added_arguments, block_mask_arguments, dropout_mask_arguments, kind_of, number_arguments,
                          scale_arguments, scaled, sequence_arguments)
from ._quantization import quantization_argument, quantized, reset_launches
from ._scores import LOG_BLOCK, NEG_INF, between, is_block_there, make_memory, make_terms
from .backward._delta import RowStats
from .backward._dsink import dsink_launches, dsink_seconds

COST = constants("attention/naive")


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """Backward one delta per row."""
    return 0 if problem.is_forward else rows_of(problem) * ITEMSIZE[problem.compute]


def rows_of(problem):
    """Rows of all heads."""
    return problem.images * problem.heads * problem.rows


def estimate(problem, device, config):
    """Two passes, in which every thread of a row computes its products again; however few there are, one after the other."""
    p = problem
    per_pair = 2 * p.d * chunks_of(p.dv) if p.is_forward else (2 * p.d + 2 * p.dv) * (chunks_of(p.d) + chunks_of(max(p.d, p.dv)))
    launches = LAUNCH if p.is_forward else LAUNCH * 3 + dsink_seconds(p, device)
    issue = issue_seconds(p.pairs * p.heads * per_pair, COST.multiply_add, device)
    keys = p.pairs / max(p.images * p.rows, 1)  # of a row
    return launches + overlap(issue=issue, memory=memory_seconds(p.bytes, device), waits=2 * keys * p.d * COST.alone)


class Sizes(NamedTuple):
    """Sequences, query heads, query heads per head of k and v, queries and keys of an array, elements of a row of q and k, of a row of v
    and o, and threads per row of the result."""
    batch: i64
    heads: i64
    group: i64
    rows: i64
    keys: i64
    d: i64
    dv: i64
    chunks: i64


class BiasShape(NamedTuple):
    """Of the bias's gradient."""
    batch: i64
    heads: i64
    rows: i64
    keys: i64


@functools.cache
def make_sequence_of(kind, of_keys=False):
    """Device function ``sequence_of(image, t, sequences, sizes)`` -> (sequence, first row, rows, first key, keys) of row, or key, t."""
    terms, PACKED = make_terms(kind), kind.packed

    @device_function
    def sequence_of(image, t, sequences, sizes):
        b, first, rows, key, keys = i32(image), i32(0), i32(0), i32(0), i32(0)
        if PACKED:
            offsets, step = (sequences.keys, sequences.key_step) if of_keys else (sequences.rows, sequences.row_step)
            b = terms.find(i32(t), offsets, step, i32(sizes.batch))
        if b < sizes.batch:  # there may be rows, and no sequence
            first, rows, key, keys = terms.lengths(b, sequences, sizes.rows, sizes.keys)
        return b, first, rows, key, keys
    return sequence_of


@functools.cache
def forward_kernel(kind, out, with_lse, scaled, stats, quantized):
    """`CHUNK` elements of a row of o per thread; the first one of a row also writes lse and, where `stats` says so, the largest score and
    the sum of exponentials. `scaled`: which of q, k and v have a factor; `quantized`: which of `_quantization` there are."""
    terms, sequence_of, T, memory = make_terms(kind), make_sequence_of(kind), kind.real, make_memory(kind.ragged, kind.paged)
    dot, load, store, RAGGED = make_dot(kind.dtype, T), element(kind.dtype).load, element(out).store, bool(kind.ragged)
    SCALED_Q, SCALED_K, SCALED_V = scaled
    load_sink, SINK, (WITH_MAX, WITH_SUM) = element(kind.sink or kind.dtype).load, bool(kind.sink), stats
    load_keep, KEEP, BLOCKS = element(kind.dropout_mask or kind.dtype).load, bool(kind.dropout_mask), kind.block_mask
    factors, AMAX_S, AMAX_O, QUANTIZED = make_factors(quantized), quantized.amax_s, quantized.amax_o, any(quantized)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_fwd_naive(q, k, v, o, lse, threads, sizes, q_strides, k_strides, v_strides, o_strides, lse_strides, of_rows, of_keys, row_step,
                       key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset,
                       threshold, factor, scale_q, scale_k, scale_v, block_mask, block_strides, keep, keep_strides, score_max,
                       max_strides, score_sum, sum_strides, quantization):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        seed = terms.seed_of(seed, offset)
        if index < threads:
            v_scale = T(1)
            if SCALED_Q:
                scale = T(scale * scale_q[0])
            if SCALED_K:
                scale = T(scale * scale_k[0])
            if SCALED_V:
                v_scale = T(scale_v[0])
            if QUANTIZED:
                v_scale = T(v_scale * factors.of_result(quantization))
            rest, chunk = divided(index, sizes.chunks)
            rest, t = divided(rest, sizes.rows)
            image, h = divided(rest, sizes.heads)
            b, first_row, rows, first_key, keys = sequence_of(image, t, Sequences(of_rows, of_keys, row_step, key_step), sizes)
            i, head = i32(t - first_row), i32(b * sizes.heads + h)
            begin, end = terms.key_range(i, rows, keys, bounds)
            shift, slope = terms.shift(rows, keys), terms.slope(h, sizes.heads)
            q_row = Vector(q, memory.rows_at(q_strides, image, rows) + h * q_strides.head + t * q_strides.row, q_strides.column)
            kv_head = h // sizes.group
            k_at = memory.keys_at(k_strides, image, keys) + kv_head * k_strides.head + first_key * k_strides.row
            v_at = memory.keys_at(v_strides, image, keys) + kv_head * v_strides.head + first_key * v_strides.row
            k_steps, v_steps = memory.steps(k_strides, image), memory.steps(v_strides, image)
            of_head = terms.of_head(bias, image, h)
            bias_at = image * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
            mask_at = image * mask_strides.batch + h * mask_strides.head + i * mask_strides.row
            keep_at = image * keep_strides.batch + h * keep_strides.head + i * keep_strides.row
            blocks_at = image * block_strides.batch + h * block_strides.head + (i >> LOG_BLOCK) * block_strides.row

            # the largest score
            row_max = T(NEG_INF)
            for j in range(begin, end):
                permitted = terms.permits(mask, mask_at + j * mask_strides.column)
                if BLOCKS:
                    permitted = permitted and is_block_there(block_mask, blocks_at, j, block_strides)
                if permitted:
                    product = dot(q_row, Vector(k, k_at + memory.key_at(j, k_steps), k_strides.column), sizes.d)
                    at = terms.where(bias_at + j * bias_strides.column, i, j)
                    x = terms.score(product, j - i - shift, slope, of_head, at, scale, softcap)
                    row_max = maximum(row_max, x)
            ref_max, row_sum = T(0), T(0)
            if row_max != T(NEG_INF):
                ref_max = row_max
                if SINK:
                    sink_logit = T(load_sink(sink, i64(h * sink_step)))
                    ref_max = maximum(row_max, sink_logit)
                    row_sum = exp(T(sink_logit - ref_max))

            # exponentials, and the sum of the values that they weigh
            acc = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                acc[c] = T(0)
            column, largest_p, largest_o = chunk * CHUNK, T(0), T(0)
            for j in range(begin, end):
                permitted = terms.permits(mask, mask_at + j * mask_strides.column)
                if BLOCKS:
                    permitted = permitted and is_block_there(block_mask, blocks_at, j, block_strides)
                if permitted:
                    product = dot(q_row, Vector(k, k_at + memory.key_at(j, k_steps), k_strides.column), sizes.d)
                    at = terms.where(bias_at + j * bias_strides.column, i, j)
                    x = terms.score(product, j - i - shift, slope, of_head, at, scale, softcap)
                    p = exp(T(x - ref_max))
                    row_sum = T(row_sum + p)
                    p = terms.kept(p, seed, head, i, j, threshold, factor)
                    if KEEP:
                        p = T(p * T(factor * T(load_keep(keep, keep_at + j * keep_strides.column))))
                    if AMAX_S:
                        largest_p = maximum(largest_p, fabs(p))
                    value_at = v_at + memory.key_at(j, v_steps)
                    for c in range(CHUNK):
                        if column + c < sizes.dv:
                            acc[c] = T(acc[c] + p * T(load(v, value_at + (column + c) * v_strides.column)))

            # write back
            written = not RAGGED or t < memory.written(o_strides, rows, sizes.rows)
            o_at = memory.rows_at(o_strides, image, rows) + h * o_strides.head + t * o_strides.row
            for c in range(CHUNK):
                if written and column + c < sizes.dv:
                    value = T(0)
                    if row_sum != T(0):
                        value = T(T(acc[c] / row_sum) * v_scale)
                    if AMAX_O:
                        largest_o = maximum(largest_o, fabs(value))
                    if QUANTIZED:
                        value = T(value * factors.of_output(quantization))
                    store(o, o_at + (column + c) * o_strides.column, value)
            if with_lse and chunk == 0 and (not RAGGED or t < memory.written(lse_strides, rows, sizes.rows)):
                value = T(NEG_INF)
                if row_sum != T(0):
                    value = T(ref_max + log(row_sum))
                lse[memory.rows_at(lse_strides, image, rows) + h * lse_strides.head + t * lse_strides.row] = value
            if WITH_MAX:
                if chunk == 0 and (not RAGGED or t < memory.written(max_strides, rows, sizes.rows)):
                    value = T(NEG_INF) if row_sum == T(0) else ref_max
                    score_max[memory.rows_at(max_strides, image, rows) + h * max_strides.head + t * max_strides.row] = value
            if WITH_SUM:
                if chunk == 0 and (not RAGGED or t < memory.written(sum_strides, rows, sizes.rows)):
                    score_sum[memory.rows_at(sum_strides, image, rows) + h * sum_strides.head + t * sum_strides.row] = row_sum
            if AMAX_S:
                if chunk == 0 and row_sum != T(0):
                    factors.raise_to(quantization.amax_s, T(largest_p / row_sum))
            if AMAX_O:
                if written:
                    factors.raise_to(quantization.amax_o, largest_o)
    return sdpa_fwd_naive


@functools.cache
def delta_kernel(kind):
    """delta, the sum of do * o of a row, per thread."""
    T, dot, rows_at, RAGGED = kind.real, make_dot(kind.dtype, kind.real), make_memory(kind.ragged, kind.paged).rows_at, bool(kind.ragged)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_delta(do, o, delta, count, sizes, do_strides, o_strides, of_rows, row_step):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if index < count:
            rest, t = divided(index, sizes.rows)
            image, h = divided(rest, sizes.heads)
            rows = sizes.rows
            if RAGGED:
                rows = between(of_rows[image * row_step], 0, rows)
            do_row = Vector(do, rows_at(do_strides, image, rows) + h * do_strides.head + t * do_strides.row, do_strides.column)
            o_row = Vector(o, rows_at(o_strides, image, rows) + h * o_strides.head + t * o_strides.row, o_strides.column)
            if not RAGGED or t < rows:
                delta[index] = T(dot(do_row, o_row, sizes.dv))
    return sdpa_delta


@functools.cache
def rows_kernel(kind):
    """`CHUNK` elements of a row of dq per thread."""
    terms, sequence_of, gradients, T = make_terms(kind), make_sequence_of(kind), make_gradients(kind), kind.real
    load, store = element(kind.dtype).load, element(kind.dtype).store
    rows_at, keys_at, *_, written_of = make_memory(kind.ragged, kind.paged)
    RAGGED = bool(kind.ragged)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dq_naive(q, k, v, do, dq, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dq_strides, lse_strides,
                      of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap,
                      seed, offset, threshold, factor, keep, keep_strides):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        dropout = Dropout(terms.seed_of(seed, offset), threshold, factor, keep, keep_strides)
        if index < threads:
            line, chunk = divided(index, sizes.chunks)
            rest, t = divided(line, sizes.rows)
            image, h = divided(rest, sizes.heads)
            b, first_row, rows, first_key, keys = sequence_of(image, t, Sequences(of_rows, of_keys, row_step, key_step), sizes)
            i, head = i32(t - first_row), i32(b * sizes.heads + h)
            begin, end = terms.key_range(i, rows, keys, bounds)
            shift, scoring = terms.shift(rows, keys), Scoring(scale, softcap, terms.slope(h, sizes.heads))
            of_head = terms.of_head(bias, image, h)
            q_row = Vector(q, rows_at(q_strides, image, rows) + h * q_strides.head + t * q_strides.row, q_strides.column)
            do_row = Vector(do, rows_at(do_strides, image, rows) + h * do_strides.head + t * do_strides.row, do_strides.column)
            kv_head = h // sizes.group
            k_at = keys_at(k_strides, image, keys) + kv_head * k_strides.head + first_key * k_strides.row
            v_at = keys_at(v_strides, image, keys) + kv_head * v_strides.head + first_key * v_strides.row
            bias_at = image * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
            mask_at = image * mask_strides.batch + h * mask_strides.head + i * mask_strides.row
            lse_at = rows_at(lse_strides, image, rows) + h * lse_strides.head + t * lse_strides.row
            if RAGGED:
                if i >= rows:  # it has none
                    lse_at = rows_at(lse_strides, image, rows)
            row_lse, row_delta = lse[lse_at], delta[line]

            acc = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                acc[c] = T(0)
            column = chunk * CHUNK
            for j in range(begin, end):
                k_row = Vector(k, k_at + j * k_strides.row, k_strides.column)
                v_row = Vector(v, v_at + j * v_strides.row, v_strides.column)
                ds, _, _ = gradients(Pair(head, i, j, j - i - shift), q_row, k_row, do_row, v_row,
                                     Element(of_head, terms.where(bias_at + j * bias_strides.column, i, j)),
                                     Element(mask, mask_at + j * mask_strides.column), row_lse, row_delta, sizes, scoring, dropout)
                for c in range(CHUNK):
                    if column + c < sizes.d:
                        acc[c] = T(acc[c] + ds * T(load(k, k_row.at + (column + c) * k_strides.column)))
            dq_at = rows_at(dq_strides, image, rows) + h * dq_strides.head + t * dq_strides.row
            for c in range(CHUNK):
                if (not RAGGED or t < written_of(dq_strides, rows, sizes.rows)) and column + c < sizes.d:
                    store(dq, dq_at + (column + c) * dq_strides.column, T(acc[c] * scale))
    return sdpa_dq_naive


@functools.cache
def keys_kernel(kind):
    """`CHUNK` elements of a row of dk and of dv per thread: the sum over the heads of the group and the queries that attend to the key."""
    terms, sequence_of, gradients, T = make_terms(kind), make_sequence_of(kind, of_keys=True), make_gradients(kind), kind.real
    load, store = element(kind.dtype).load, element(kind.dtype).store
    rows_at, keys_at, *_, written_of = make_memory(kind.ragged, kind.paged)
    RAGGED = bool(kind.ragged)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dkv_naive(q, k, v, do, dk, dv, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
                       lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds,
                       scale, softcap, seed, offset, threshold, factor, keep, keep_strides):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        dropout = Dropout(terms.seed_of(seed, offset), threshold, factor, keep, keep_strides)
        if index < threads:
            rest, chunk = divided(index, sizes.chunks)
            rest, t = divided(rest, sizes.keys)
            image, kv_head = divided(rest, sizes.heads // sizes.group)
            b, first_row, rows, first_key, keys = sequence_of(image, t, Sequences(of_rows, of_keys, row_step, key_step), sizes)
            j, shift = i32(t - first_key), terms.shift(rows, keys)
            begin, end = terms.query_range(j, rows, keys, bounds)
            k_row = Vector(k, keys_at(k_strides, image, keys) + kv_head * k_strides.head + t * k_strides.row, k_strides.column)
            v_row = Vector(v, keys_at(v_strides, image, keys) + kv_head * v_strides.head + t * v_strides.row, v_strides.column)

            acc_k, acc_v = cuda.local.array(CHUNK, T), cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                acc_k[c] = T(0)
                acc_v[c] = T(0)
            column = chunk * CHUNK
            for member in range(sizes.group):
                h = kv_head * sizes.group + member
                scoring, head = Scoring(scale, softcap, terms.slope(h, sizes.heads)), i32(b * sizes.heads + h)
                of_head = terms.of_head(bias, image, h)
                for i in range(begin, end):
                    s = i64(first_row) + i
                    q_row = Vector(q, rows_at(q_strides, image, rows) + h * q_strides.head + s * q_strides.row, q_strides.column)
                    do_row = Vector(do, rows_at(do_strides, image, rows) + h * do_strides.head + s * do_strides.row, do_strides.column)
                    bias_at = image * bias_strides.batch + h * bias_strides.head + i * bias_strides.row + j * bias_strides.column
                    mask_at = image * mask_strides.batch + h * mask_strides.head + i * mask_strides.row + j * mask_strides.column
                    row_lse = lse[rows_at(lse_strides, image, rows) + h * lse_strides.head + s * lse_strides.row]
                    row_delta = delta[(image * sizes.heads + h) * sizes.rows + s]
                    ds, _, p = gradients(Pair(head, i, j, j - i - shift), q_row, k_row, do_row, v_row,
                                         Element(of_head, terms.where(bias_at, i, j)), Element(mask, mask_at), row_lse,
                                         row_delta, sizes, scoring, dropout)
                    for c in range(CHUNK):
                        if column + c < sizes.d:
                            acc_k[c] = T(acc_k[c] + ds * T(load(q, q_row.at + (column + c) * q_strides.column)))
                        if column + c < sizes.dv:
                            acc_v[c] = T(acc_v[c] + p * T(load(do, do_row.at + (column + c) * do_strides.column)))
            dk_at = keys_at(dk_strides, image, keys) + kv_head * dk_strides.head + t * dk_strides.row
            dv_at = keys_at(dv_strides, image, keys) + kv_head * dv_strides.head + t * dv_strides.row
            for c in range(CHUNK):
                if (not RAGGED or t < written_of(dk_strides, keys, sizes.keys)) and column + c < sizes.d:
                    store(dk, dk_at + (column + c) * dk_strides.column, T(acc_k[c] * scale))
                if (not RAGGED or t < written_of(dv_strides, keys, sizes.keys)) and column + c < sizes.dv:
                    store(dv, dv_at + (column + c) * dv_strides.column, acc_v[c])
    return sdpa_dkv_naive


@functools.cache
def bias_kernel(kind):
    """An element of the bias's gradient per thread: the sum over all pairs that share it."""
    terms, gradients, T = make_terms(kind), make_gradients(kind), kind.real
    store, (rows_at, keys_at, *_) = element(kind.bias).store, make_memory(kind.ragged, kind.paged)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dbias_naive(q, k, v, do, dbias, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dbias_strides, shape,
                         lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds,
                         scale, softcap, seed, offset, threshold, factor, keep, keep_strides):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        dropout = Dropout(terms.seed_of(seed, offset), threshold, factor, keep, keep_strides)
        if index < threads:
            rest, j0 = divided(index, shape.keys)
            rest, i0 = divided(rest, shape.rows)
            b0, h0 = divided(rest, shape.heads)
            to = b0 * dbias_strides.batch + h0 * dbias_strides.head + i0 * dbias_strides.row + j0 * dbias_strides.column
            acc = T(0)
            for b in range(b0, b0 + 1 if shape.batch > 1 else sizes.batch):
                _, rows, _, keys = terms.lengths(i32(b), Sequences(of_rows, of_keys, row_step, key_step), sizes.rows, sizes.keys)
                shift = terms.shift(rows, keys)
                for h in range(h0, h0 + 1 if shape.heads > 1 else sizes.heads):
                    scoring, head = Scoring(scale, softcap, terms.slope(h, sizes.heads)), i32(b * sizes.heads + h)
                    kv_head = h // sizes.group
                    for i in range(i0, i0 + 1 if shape.rows > 1 else i64(rows)):
                        begin, end = terms.key_range(i32(i), rows, keys, bounds)
                        q_row = Vector(q, rows_at(q_strides, b, rows) + h * q_strides.head + i * q_strides.row, q_strides.column)
                        do_row = Vector(do, rows_at(do_strides, b, rows) + h * do_strides.head + i * do_strides.row, do_strides.column)
                        if shape.keys > 1:
                            begin, end = max(begin, i32(j0)), min(end, i32(j0 + 1))
                        for j in range(begin, end):
                            k_row = Vector(k, keys_at(k_strides, b, keys) + kv_head * k_strides.head + j * k_strides.row, k_strides.column)
                            v_row = Vector(v, keys_at(v_strides, b, keys) + kv_head * v_strides.head + j * v_strides.row, v_strides.column)
                            bias_at = b * bias_strides.batch + h * bias_strides.head + i * bias_strides.row + j * bias_strides.column
                            mask_at = b * mask_strides.batch + h * mask_strides.head + i * mask_strides.row + j * mask_strides.column
                            row_lse = lse[rows_at(lse_strides, b, rows) + h * lse_strides.head + i * lse_strides.row]
                            row_delta = delta[(b * sizes.heads + h) * sizes.rows + i]
                            _, ds, _ = gradients(Pair(head, i32(i), j, j - i32(i) - shift), q_row, k_row, do_row, v_row,
                                                 Element(bias, bias_at), Element(mask, mask_at), row_lse, row_delta, sizes, scoring,
                                                 dropout)
                            acc = T(acc + ds)
            store(dbias, to, acc)
    return sdpa_dbias_naive


# ---- launches

def sizes_argument(problem, chunks):
    """Kernel parameter `sizes`."""
    p = problem
    return Argument(Sizes, (p.batch, p.heads, p.group, p.rows, p.keys, p.d, p.dv, chunks))


def stride_arguments(problem, *names):
    """Kernel parameters, the strides of each array."""
    return tuple(strides_argument(problem, name) for name in names)


def launch(kernel, threads, arguments):
    """So many threads."""
    return Launch(kernel, (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments)


def delta_launch(problem):
    """The launch that leaves delta in the workspace."""
    p, pointer, count = problem, element(problem.dtype).pointer, rows_of(problem)
    lengths, _, step, _ = sequence_arguments(p)
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument(f"{p.compute}*", "workspace"), Argument("int64", count),
                 sizes_argument(p, 1), *stride_arguments(p, "do", "o"), lengths, step)
    return launch(delta_kernel(kind_of(p)), count, arguments)


def bias_launch(problem):
    """The launch of the bias's gradient, which reads delta from the workspace."""
    p, t = problem, problem.dbias
    shape = (1,) * (4 - t.ndim) + t.shape
    arguments = (*_operands(p), Argument(element(t.dtype).pointer, "dbias"), *_saved(p), Argument("int64", t.size), sizes_argument(p, 1),
                 *stride_arguments(p, "q", "k", "v", "do"), Argument(Strides, broadcast_strides(t)), Argument(BiasShape, shape),
                 row_strides_argument(p), *sequence_arguments(p), *added_arguments(p), *number_arguments(p), *dropout_mask_arguments(p))
    return launch(bias_kernel(kind_of(p)), t.size, arguments)


def _operands(p):
    return tuple(Argument(element(p.dtype).pointer, name) for name in ("q", "k", "v", "do"))


def _saved(p):
    return Argument(f"{p.compute}*", "lse"), Argument(f"{p.compute}*", "workspace")


def build(problem, device, config):
    """One launch; backward three or four, each where its result has elements."""
    p, kind, pointer = problem, kind_of(problem), element(problem.dtype).pointer
    common = row_strides_argument(p), *sequence_arguments(p), *added_arguments(p), *number_arguments(p)
    if p.is_forward:
        chunks = chunks_of(p.dv)
        threads = rows_of(p) * chunks
        arguments = (*(Argument(pointer, name) for name in ("q", "k", "v")), Argument(element(p.o.dtype).pointer, "o"),
                     Argument(f"{p.compute}*", "lse" if p.lse else "o"), Argument("int64", threads), sizes_argument(p, chunks),
                     *stride_arguments(p, "q", "k", "v", "o"), *common, *scale_arguments(),
                     *block_mask_arguments(p), *dropout_mask_arguments(p), *stats_arguments(p), quantization_argument(p))
        made = forward_kernel(kind, p.o.dtype, p.lse is not None, scaled(p), stats_of(p), quantized(p))
        return *reset_launches(p), launch(made, threads, arguments)
    common += dropout_mask_arguments(p)
    launches = (delta_launch(p),) if rows_of(p) else ()
    if p.dq.size:
        threads = rows_of(p) * chunks_of(p.d)
        arguments = (*_operands(p), Argument(pointer, "dq"), *_saved(p), Argument("int64", threads), sizes_argument(p, chunks_of(p.d)),
                     *stride_arguments(p, "q", "k", "v", "do", "dq"), *common)
        launches += (launch(rows_kernel(kind), threads, arguments),)
    if p.dk.size or p.dv_out.size:
        chunks = chunks_of(max(p.d, p.dv))
        threads = p.images * p.kv_heads * p.keys * chunks
        arguments = (*_operands(p), Argument(pointer, "dk"), Argument(pointer, "dv"), *_saved(p), Argument("int64", threads),
                     sizes_argument(p, chunks), *stride_arguments(p, "q", "k", "v", "do", "dk", "dv"), *common)
        launches += (launch(keys_kernel(kind), threads, arguments),)
    if p.dbias is not None and p.dbias.size:
        launches += (bias_launch(p),)
    return launches + dsink_launches(p, RowStats(0, p.rows, 0, 0))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build, programs=True)
                   for op in ("sdpa_fwd", "sdpa_bwd"))
