"""One thread per eight elements of a row of the result: two passes over the cached keys that the query attends to, from the definition.

Where the cache has pages, each key's page is looked up. Arbitrary strides and sizes, every option; each sum has one order.
"""
import functools
from typing import NamedTuple

from ...device import cuda, i32, i64, jit
from ...device.convert import element
from ...device.fastmath import exp, log, maximum
from ...device.index import ceil_div, divided
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch
from .._naive import CHUNK, THREADS, Vector, chunks_of, make_dot
from .._parameters import Sequences, Strides
from .._scores import NEG_INF, between, make_terms
from ._pages import make_place
from ._parameters import (Paging, bias_arguments, cache_arguments, decode_kind, factor_arguments, lse_argument, operand_arguments,
                          page_argument, scaled, sink_arguments)

COST = constants("attention/decode_naive")


class Sizes(NamedTuple):
    """Query heads, those per head of k and v, queries of a sequence (of all, packed), keys that the cache has room for, elements of a row
    of q and k, of a row of v and o, pages, and threads per row of o."""
    heads: i64
    group: i64
    rows: i64
    capacity: i64
    d: i64
    dv: i64
    pages: i64
    chunks: i64


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Two passes, in which every thread of a row computes its products again; few rows keep few threads busy."""
    p = problem
    chunks = chunks_of(p.dv)
    threads = p.images * p.heads * p.rows * chunks
    issue = issue_seconds(threads * p.seen * 2 * p.d, COST.multiply_add, device)
    waves = ceil_div(threads, COST.resident * device.sms)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(p.bytes, device), waits=waves * 2 * p.seen * p.d * COST.alone)


@functools.cache
def kernel(kind, paged, with_lse, packed, cache, scaled):
    """`CHUNK` elements of a row of o per thread; the first one of a row also writes lse."""
    terms, place, T = make_terms(kind), make_place(paged), kind.real
    dot, load, store = make_dot(kind.dtype, T, cache), element(cache).load, element(kind.dtype).store
    SCALED_K, SCALED_V = scaled
    load_sink, SINK = element(kind.sink or kind.dtype).load, bool(kind.sink)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_decode_naive(q, k, v, o, lse, of_keys, table, sink, threads, sizes, page, q_strides, k_strides, v_strides, o_strides, key_step,
                          table_strides, sink_step, lse_strides, bounds, scale, softcap, bias, bias_strides, of_rows, row_step, batch,
                          scale_k, scale_v):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if index < threads:
            v_scale, paging = T(1), Paging(table, table_strides, page, i32(sizes.pages))
            if SCALED_K:
                scale = T(scale * scale_k[0])
            if SCALED_V:
                v_scale = T(scale_v[0])
            rest, chunk = divided(index, sizes.chunks)
            rest, t = divided(rest, sizes.rows)
            image, h = divided(rest, sizes.heads)
            kv_head, rows, b, i, keys = h // sizes.group, i32(sizes.rows), image, i32(t), i32(0)
            if packed:
                b, i, rows = i64(terms.find(i32(t), of_rows, row_step, batch)), i32(0), i32(0)
                if batch > 0:
                    first_row = between(of_rows[b * row_step], 0, sizes.rows)
                    rows = between(of_rows[(b + 1) * row_step], first_row, sizes.rows) - first_row
                    i = i32(t) - first_row
            if not packed or batch > 0:
                _, _, _, keys = terms.lengths(b, Sequences(of_keys, of_keys, 0, key_step), rows, sizes.capacity)
            begin, end = terms.key_range(i, rows, keys, bounds)
            q_row = Vector(q, image * q_strides.batch + h * q_strides.head + t * q_strides.row, q_strides.column)
            bias_at = image * bias_strides.batch + h * bias_strides.head + t * bias_strides.row

            row_max = T(NEG_INF)
            for j in range(begin, end):
                there, row = place(b, j, paging)
                at = there * k_strides.batch + kv_head * k_strides.head + row * k_strides.row
                product = dot(q_row, Vector(k, at, k_strides.column), sizes.d)
                row_max = maximum(row_max, terms.score(product, 0, T(0), bias, bias_at + j * bias_strides.column, scale, softcap))
            ref_max, row_sum = T(0), T(0)
            if row_max != T(NEG_INF):
                ref_max = row_max
                if SINK:
                    sink_logit = T(load_sink(sink, h * sink_step))
                    ref_max = maximum(row_max, sink_logit)
                    row_sum = exp(T(sink_logit - ref_max))

            acc = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                acc[c] = T(0)
            column = chunk * CHUNK
            for j in range(begin, end):
                there, row = place(b, j, paging)
                at = there * k_strides.batch + kv_head * k_strides.head + row * k_strides.row
                product = dot(q_row, Vector(k, at, k_strides.column), sizes.d)
                p = exp(T(terms.score(product, 0, T(0), bias, bias_at + j * bias_strides.column, scale, softcap) - ref_max))
                row_sum = T(row_sum + p)
                at = there * v_strides.batch + kv_head * v_strides.head + row * v_strides.row
                for c in range(CHUNK):
                    if column + c < sizes.dv:
                        acc[c] = T(acc[c] + p * T(load(v, at + (column + c) * v_strides.column)))
            o_at = image * o_strides.batch + h * o_strides.head + t * o_strides.row
            for c in range(CHUNK):
                if column + c < sizes.dv:
                    value = T(0)
                    if row_sum != T(0):
                        value = T(T(acc[c] / row_sum) * v_scale)
                    store(o, o_at + (column + c) * o_strides.column, value)
            if with_lse and chunk == 0:
                value = T(NEG_INF)
                if row_sum != T(0):
                    value = T(ref_max + log(row_sum))
                lse[image * lse_strides.batch + h * lse_strides.head + t * lse_strides.row] = value
    return sdpa_decode_naive


def build(problem, device, config):
    """One launch."""
    p, chunks = problem, chunks_of(problem.dv)
    threads = p.images * p.heads * p.rows * chunks
    sizes = p.heads, p.group, p.rows, p.capacity, p.d, p.dv, p.pages, chunks
    arguments = (*operand_arguments(p), lse_argument(p),
                 Argument("int32*", "seq_len_kv"), Argument("int32*", "page_table"),
                 sink_arguments(p)[0], Argument("int64", threads), Argument(Sizes, sizes), page_argument(p),
                 *(Argument(Strides, p.strides(t)) for t in (p.q, p.k_cache, p.v_cache, p.o)), *cache_arguments(p),
                 *bias_arguments(p), Argument("int32*", "cu_seqlens_q"),
                 Argument("int64", p.cu_seqlens_q.strides[0] if p.packed else 0), Argument("int32", p.batch),
                 *factor_arguments())
    kernel_of = kernel(decode_kind(p), p.page_table is not None, p.lse is not None, p.packed, p.k_cache.dtype, scaled(p))
    return (Launch(kernel_of, (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="sdpa_decode", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
