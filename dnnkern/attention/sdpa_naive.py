"""One thread a few elements of a row of the result: two passes over the keys that it sees, straight from the definition.

The first finds the largest score, the second sums exponentials and what they weigh; nothing is shared between threads, which compute every
product of a query and a key again. Backward a launch leaves the sum of do * o of each row, one sums dq over the keys, one dk and dv over
the rows and heads that see a key, and one, where it is asked for, the bias's gradient over all that share an element. Any strides and
sizes, every option; each sum has one order.
"""
import functools

from ..device import cuda, device_function, i32, i64, jit
from ..device.convert import element
from ..device.fastmath import exp, log, maximum
from ..device.index import ceil_div
from ..device.index import divided
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._checks import broadcast_strides
from ._scores import (NOTHING, added_arguments, kind_of, make_terms, number_arguments, scale_arguments, scaled, sequence_arguments)
from .backward._delta import Numbers
from .backward._dsink import dsink_launches, dsink_seconds

COST = constants("attention/naive")

THREADS, CHUNK = 128, 8


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """Backward a number a row."""
    return 0 if problem.is_forward else rows_of(problem) * ITEMSIZE[problem.compute]


def rows_of(problem):
    """Rows of all heads."""
    return problem.images * problem.heads * problem.rows


def chunks_of(elements):
    """Threads of a row: each has so many elements."""
    return max(1, ceil_div(elements, CHUNK))


def estimate(problem, device, config):
    """Two passes, in which every thread of a row computes its products again."""
    p = problem
    per_pair = 2 * p.d * chunks_of(p.dv) if p.is_forward else (2 * p.d + 2 * p.dv) * (chunks_of(p.d) + chunks_of(max(p.d, p.dv)))
    launches = LAUNCH if p.is_forward else LAUNCH * 3 + dsink_seconds(p, device)
    issue = issue_seconds(p.pairs * p.heads * per_pair, COST.multiply_add, device)
    return launches + overlap(issue=issue, memory=memory_seconds(p.bytes, device))


@functools.cache
def make_dot(dtype, real, other=None):
    """Device function ``dot(a, at, step, b, b_at, b_step, n)``: the sum of n products; b is of `other`, or of a's dtype."""
    load, load_b, T = element(dtype).load, element(other or dtype).load, real

    @device_function
    def dot(a, at, step, b, b_at, b_step, n):
        total = T(0)
        for c in range(n):
            total = T(total + T(load(a, at + c * step)) * T(load_b(b, b_at + c * b_step)))
        return total
    return dot


@functools.cache
def make_row(kind, of_keys=False):
    """Device function ``row(image, t, sequences, sizes)`` -> (sequence, first row, rows, first key, keys): of row t, or of key t, of an
    image."""
    terms, PACKED = make_terms(kind), kind.packed

    @device_function
    def row(image, t, sequences, sizes):
        b, first, rows, key, keys = i32(image), i32(0), i32(0), i32(0), i32(0)
        if PACKED:
            rows_offsets, keys_offsets, row_step, key_step = sequences
            b = terms.find(i32(t), keys_offsets if of_keys else rows_offsets, key_step if of_keys else row_step, i32(sizes[0]))
        if b < sizes[0]:  # there may be rows, and no sequence
            first, rows, key, keys = terms.lengths(b, sequences, sizes[3], sizes[4])
        return b, first, rows, key, keys
    return row


@functools.cache
def forward_kernel(kind, out, with_lse, scaled):
    """`CHUNK` elements of a row of o a thread; the first one of a row also writes lse. `scaled` are which of q, k and v have a factor."""
    terms, row, T = make_terms(kind), make_row(kind), kind.real
    dot, load, store = make_dot(kind.dtype, T), element(kind.dtype).load, element(out).store
    OF_Q, OF_K, OF_V = scaled
    load_sink, SINK = element(kind.sink or kind.dtype).load, bool(kind.sink)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_fwd_naive(q, k, v, o, lse, threads, sizes, q_strides, k_strides, v_strides, o_strides, lse_strides, of_rows, of_keys, row_step,
                       key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap, seed, offset,
                       threshold, factor, scale_q, scale_k, scale_v):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        seed = terms.seed_of(seed, offset)
        if index < threads:
            of_v = T(1)
            if OF_Q:
                scale = T(scale * scale_q[0])
            if OF_K:
                scale = T(scale * scale_k[0])
            if OF_V:
                of_v = T(scale_v[0])
            rest, chunk = divided(index, sizes[7])
            rest, t = divided(rest, sizes[3])
            image, h = divided(rest, sizes[1])
            b, first_row, rows, first_key, keys = row(image, t, (of_rows, of_keys, row_step, key_step), sizes)
            i, head = i32(t - first_row), i32(b * sizes[1] + h)
            first, last = terms.span(i, rows, keys, bounds)
            shift, slope = terms.shift(rows, keys), terms.slope(h, sizes[1])
            q_at = image * q_strides[0] + h * q_strides[1] + t * q_strides[2]
            g = h // sizes[2]
            k_at = image * k_strides[0] + g * k_strides[1] + first_key * k_strides[2]
            v_at = image * v_strides[0] + g * v_strides[1] + first_key * v_strides[2]
            bias_at = image * bias_strides[0] + h * bias_strides[1] + i * bias_strides[2]
            mask_at = image * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2]

            most = T(NOTHING)
            for j in range(first, last):
                if terms.permits(mask, mask_at + j * mask_strides[3]):
                    product = dot(q, q_at, q_strides[3], k, k_at + j * k_strides[2], k_strides[3], sizes[5])
                    x = terms.score(product, j - i - shift, slope, bias, bias_at + j * bias_strides[3], scale, softcap)
                    most = maximum(most, x)
            level, total = T(0), T(0)
            if most != T(NOTHING):
                level = most
                if SINK:
                    own = T(load_sink(sink, i64(h * sink_step)))
                    level = maximum(most, own)
                    total = exp(T(own - level))

            sums = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                sums[c] = T(0)
            begin = chunk * CHUNK
            for j in range(first, last):
                if terms.permits(mask, mask_at + j * mask_strides[3]):
                    product = dot(q, q_at, q_strides[3], k, k_at + j * k_strides[2], k_strides[3], sizes[5])
                    x = terms.score(product, j - i - shift, slope, bias, bias_at + j * bias_strides[3], scale, softcap)
                    p = exp(T(x - level))
                    total = T(total + p)
                    p = terms.kept(p, seed, head, i, j, threshold, factor)
                    for c in range(CHUNK):
                        if begin + c < sizes[6]:
                            sums[c] = T(sums[c] + p * T(load(v, v_at + j * v_strides[2] + (begin + c) * v_strides[3])))

            o_at = image * o_strides[0] + h * o_strides[1] + t * o_strides[2]
            for c in range(CHUNK):
                if begin + c < sizes[6]:
                    value = T(0)
                    if total != T(0):
                        value = T(T(sums[c] / total) * of_v)
                    store(o, o_at + (begin + c) * o_strides[3], value)
            if with_lse and chunk == 0:
                value = T(NOTHING)
                if total != T(0):
                    value = T(level + log(total))
                lse[image * lse_strides[0] + h * lse_strides[1] + t * lse_strides[2]] = value
    return sdpa_fwd_naive


@functools.cache
def delta_kernel(kind):
    """The sum of do * o of a row a thread."""
    T, dot = kind.real, make_dot(kind.dtype, kind.real)

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_delta(do, o, delta, count, sizes, do_strides, o_strides):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if index < count:
            rest, t = divided(index, sizes[3])
            image, h = divided(rest, sizes[1])
            do_at = image * do_strides[0] + h * do_strides[1] + t * do_strides[2]
            o_at = image * o_strides[0] + h * o_strides[1] + t * o_strides[2]
            delta[index] = T(dot(do, do_at, do_strides[3], o, o_at, o_strides[3], sizes[6]))
    return sdpa_delta


@functools.cache
def make_pair(kind):
    """Device function ``pair(...)`` -> (the derivative by the product of q and k but for `scale`, by the score, the probability after
    dropout) of row i and key j of a sequence."""
    terms, T = make_terms(kind), kind.real
    dot = make_dot(kind.dtype, T)

    @device_function
    def pair(q, q_at, q_step, k, k_at, k_step, do, do_at, do_step, v, v_at, v_step, sizes, i, j, shift, slope, bias, bias_at, mask, mask_at,
             total, delta, head, scale, softcap, seed, threshold, factor):
        product = dot(q, q_at, q_step, k, k_at, k_step, sizes[5])
        x, derivative = terms.slanted(product, j - i - shift, slope, bias, bias_at, scale, softcap)
        p, by_score, used = T(0), T(0), T(0)
        if total != T(NOTHING) and terms.permits(mask, mask_at):
            p = exp(T(x - total))
            used = terms.kept(p, seed, head, i, j, threshold, factor)
            by_p = terms.kept(dot(do, do_at, do_step, v, v_at, v_step, sizes[6]), seed, head, i, j, threshold, factor)
            by_score = T(p * T(by_p - delta))
        return T(by_score * derivative), by_score, used
    return pair


@functools.cache
def rows_kernel(kind):
    """`CHUNK` elements of a row of dq a thread."""
    terms, row, pair, T = make_terms(kind), make_row(kind), make_pair(kind), kind.real
    load, store = element(kind.dtype).load, element(kind.dtype).store

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dq_naive(q, k, v, do, dq, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dq_strides, lse_strides,
                      of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds, scale, softcap,
                      seed, offset, threshold, factor):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        seed = terms.seed_of(seed, offset)
        if index < threads:
            line, chunk = divided(index, sizes[7])
            rest, t = divided(line, sizes[3])
            image, h = divided(rest, sizes[1])
            b, first_row, rows, first_key, keys = row(image, t, (of_rows, of_keys, row_step, key_step), sizes)
            i, head = i32(t - first_row), i32(b * sizes[1] + h)
            first, last = terms.span(i, rows, keys, bounds)
            shift, slope = terms.shift(rows, keys), terms.slope(h, sizes[1])
            q_at = image * q_strides[0] + h * q_strides[1] + t * q_strides[2]
            do_at = image * do_strides[0] + h * do_strides[1] + t * do_strides[2]
            g = h // sizes[2]
            k_at = image * k_strides[0] + g * k_strides[1] + first_key * k_strides[2]
            v_at = image * v_strides[0] + g * v_strides[1] + first_key * v_strides[2]
            bias_at = image * bias_strides[0] + h * bias_strides[1] + i * bias_strides[2]
            mask_at = image * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2]
            total, own = lse[image * lse_strides[0] + h * lse_strides[1] + t * lse_strides[2]], delta[line]

            sums = cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                sums[c] = T(0)
            begin = chunk * CHUNK
            for j in range(first, last):
                at = k_at + j * k_strides[2]
                slant, _, _ = pair(q, q_at, q_strides[3], k, at, k_strides[3], do, do_at, do_strides[3], v, v_at + j * v_strides[2],
                                   v_strides[3], sizes, i, j, shift, slope, bias, bias_at + j * bias_strides[3], mask,
                                   mask_at + j * mask_strides[3], total, own, head, scale, softcap, seed, threshold, factor)
                for c in range(CHUNK):
                    if begin + c < sizes[5]:
                        sums[c] = T(sums[c] + slant * T(load(k, at + (begin + c) * k_strides[3])))
            dq_at = image * dq_strides[0] + h * dq_strides[1] + t * dq_strides[2]
            for c in range(CHUNK):
                if begin + c < sizes[5]:
                    store(dq, dq_at + (begin + c) * dq_strides[3], T(sums[c] * scale))
    return sdpa_dq_naive


@functools.cache
def keys_kernel(kind):
    """`CHUNK` elements of a row of dk and of dv a thread: the sum over the heads of the group and the rows that see the key."""
    terms, row, pair, T = make_terms(kind), make_row(kind, of_keys=True), make_pair(kind), kind.real
    load, store = element(kind.dtype).load, element(kind.dtype).store

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dkv_naive(q, k, v, do, dk, dv, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides,
                       lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds,
                       scale, softcap, seed, offset, threshold, factor):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        seed = terms.seed_of(seed, offset)
        if index < threads:
            rest, chunk = divided(index, sizes[7])
            rest, t = divided(rest, sizes[4])
            image, g = divided(rest, sizes[1] // sizes[2])
            b, first_row, rows, first_key, keys = row(image, t, (of_rows, of_keys, row_step, key_step), sizes)
            j, shift = i32(t - first_key), terms.shift(rows, keys)
            first, last = terms.column(j, rows, keys, bounds)
            k_at = image * k_strides[0] + g * k_strides[1] + t * k_strides[2]
            v_at = image * v_strides[0] + g * v_strides[1] + t * v_strides[2]

            of_k, of_v = cuda.local.array(CHUNK, T), cuda.local.array(CHUNK, T)
            for c in range(CHUNK):
                of_k[c] = T(0)
                of_v[c] = T(0)
            begin = chunk * CHUNK
            for member in range(sizes[2]):
                h = g * sizes[2] + member
                slope, head = terms.slope(h, sizes[1]), i32(b * sizes[1] + h)
                for i in range(first, last):
                    s = i64(first_row) + i
                    q_at = image * q_strides[0] + h * q_strides[1] + s * q_strides[2]
                    do_at = image * do_strides[0] + h * do_strides[1] + s * do_strides[2]
                    bias_at = image * bias_strides[0] + h * bias_strides[1] + i * bias_strides[2] + j * bias_strides[3]
                    mask_at = image * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2] + j * mask_strides[3]
                    total = lse[image * lse_strides[0] + h * lse_strides[1] + s * lse_strides[2]]
                    own = delta[(image * sizes[1] + h) * sizes[3] + s]
                    slant, _, used = pair(q, q_at, q_strides[3], k, k_at, k_strides[3], do, do_at, do_strides[3], v, v_at, v_strides[3],
                                          sizes, i, j, shift, slope, bias, bias_at, mask, mask_at, total, own, head, scale, softcap,
                                          seed, threshold, factor)
                    for c in range(CHUNK):
                        if begin + c < sizes[5]:
                            of_k[c] = T(of_k[c] + slant * T(load(q, q_at + (begin + c) * q_strides[3])))
                        if begin + c < sizes[6]:
                            of_v[c] = T(of_v[c] + used * T(load(do, do_at + (begin + c) * do_strides[3])))
            dk_at = image * dk_strides[0] + g * dk_strides[1] + t * dk_strides[2]
            dv_at = image * dv_strides[0] + g * dv_strides[1] + t * dv_strides[2]
            for c in range(CHUNK):
                if begin + c < sizes[5]:
                    store(dk, dk_at + (begin + c) * dk_strides[3], T(of_k[c] * scale))
                if begin + c < sizes[6]:
                    store(dv, dv_at + (begin + c) * dv_strides[3], of_v[c])
    return sdpa_dkv_naive


@functools.cache
def bias_kernel(kind):
    """An element of the bias's gradient a thread: the sum over all pairs that share it."""
    terms, pair, T = make_terms(kind), make_pair(kind), kind.real
    store = element(kind.bias).store

    @jit(launch_bounds=(THREADS, 3))
    def sdpa_dbias_naive(q, k, v, do, dbias, lse, delta, threads, sizes, q_strides, k_strides, v_strides, do_strides, dbias_strides, shape,
                         lse_strides, of_rows, of_keys, row_step, key_step, bias, bias_strides, mask, mask_strides, sink, sink_step, bounds,
                         scale, softcap, seed, offset, threshold, factor):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        seed = terms.seed_of(seed, offset)
        if index < threads:
            rest, j0 = divided(index, shape[3])
            rest, i0 = divided(rest, shape[2])
            b0, h0 = divided(rest, shape[1])
            to = b0 * dbias_strides[0] + h0 * dbias_strides[1] + i0 * dbias_strides[2] + j0 * dbias_strides[3]
            by_bias = T(0)
            for b in range(b0, b0 + 1 if shape[0] > 1 else sizes[0]):
                _, rows, _, keys = terms.lengths(i32(b), (of_rows, of_keys, row_step, key_step), sizes[3], sizes[4])
                shift = terms.shift(rows, keys)
                for h in range(h0, h0 + 1 if shape[1] > 1 else sizes[1]):
                    slope, head, g = terms.slope(h, sizes[1]), i32(b * sizes[1] + h), h // sizes[2]
                    for i in range(i0, i0 + 1 if shape[2] > 1 else i64(rows)):
                        first, last = terms.span(i32(i), rows, keys, bounds)
                        q_at = b * q_strides[0] + h * q_strides[1] + i * q_strides[2]
                        do_at = b * do_strides[0] + h * do_strides[1] + i * do_strides[2]
                        if shape[3] > 1:
                            first, last = max(first, i32(j0)), min(last, i32(j0 + 1))
                        for j in range(first, last):
                            k_at = b * k_strides[0] + g * k_strides[1] + j * k_strides[2]
                            v_at = b * v_strides[0] + g * v_strides[1] + j * v_strides[2]
                            bias_at = b * bias_strides[0] + h * bias_strides[1] + i * bias_strides[2] + j * bias_strides[3]
                            mask_at = b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2] + j * mask_strides[3]
                            total = lse[b * lse_strides[0] + h * lse_strides[1] + i * lse_strides[2]]
                            own = delta[(b * sizes[1] + h) * sizes[3] + i]
                            _, one, _ = pair(q, q_at, q_strides[3], k, k_at, k_strides[3], do, do_at, do_strides[3], v, v_at, v_strides[3],
                                             sizes, i32(i), j, shift, slope, bias, bias_at, mask, mask_at, total, own, head, scale,
                                             softcap, seed, threshold, factor)
                            by_bias = T(by_bias + one)
            store(dbias, to, by_bias)
    return sdpa_dbias_naive


# ---- launches

def sizes_argument(problem, chunks):
    """Kernel parameter `sizes`: sequences, heads, heads a group, rows, keys, elements of q's and v's heads, threads a row."""
    p = problem
    return Argument("int64x8", (p.batch, p.heads, p.group, p.rows, p.keys, p.d, p.dv, chunks))


def stride_arguments(problem, *tensors):
    """Strides along batch, heads, rows and elements."""
    return tuple(Argument("int64x4", problem.strides(t)) for t in tensors)


def launch(kernel, threads, arguments):
    """A thread each."""
    return Launch(kernel, (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments)


def delta_launch(problem):
    """The launch that leaves the sums of do * o in the workspace."""
    p, pointer, count = problem, element(problem.dtype).pointer, rows_of(problem)
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument(f"{p.compute}*", "workspace"), Argument("int64", count),
                 sizes_argument(p, 1), *stride_arguments(p, p.do, p.o))
    return launch(delta_kernel(kind_of(p)), count, arguments)


def bias_launch(problem):
    """The launch of the bias's gradient, which finds the sums of do * o in the workspace."""
    p, t = problem, problem.dbias
    shape = (1,) * (4 - t.ndim) + t.shape
    arguments = (*_operands(p), Argument(element(t.dtype).pointer, "dbias"), *_saved(p), Argument("int64", t.size), sizes_argument(p, 1),
                 *stride_arguments(p, p.q, p.k, p.v, p.do), Argument("int64x4", broadcast_strides(t)), Argument("int64x4", shape),
                 Argument("int64x3", p.lse_strides), *sequence_arguments(p), *added_arguments(p), *number_arguments(p))
    return launch(bias_kernel(kind_of(p)), t.size, arguments)


def _operands(p):
    return tuple(Argument(element(p.dtype).pointer, name) for name in ("q", "k", "v", "do"))


def _saved(p):
    return Argument(f"{p.compute}*", "lse"), Argument(f"{p.compute}*", "workspace")


def build(problem, device, config):
    """One launch; backward three or four, each where its result has elements."""
    p, kind, pointer = problem, kind_of(problem), element(problem.dtype).pointer
    common = Argument("int64x3", p.lse_strides), *sequence_arguments(p), *added_arguments(p), *number_arguments(p)
    if p.is_forward:
        chunks = chunks_of(p.dv)
        threads = rows_of(p) * chunks
        arguments = (*(Argument(pointer, name) for name in ("q", "k", "v")), Argument(element(p.o.dtype).pointer, "o"),
                     Argument(f"{p.compute}*", "lse" if p.lse else "o"), Argument("int64", threads), sizes_argument(p, chunks),
                     *stride_arguments(p, p.q, p.k, p.v, p.o), *common, *scale_arguments())
        return (launch(forward_kernel(kind, p.o.dtype, p.lse is not None, scaled(p)), threads, arguments),)
    launches = (delta_launch(p),) if rows_of(p) else ()
    if p.dq.size:
        threads = rows_of(p) * chunks_of(p.d)
        arguments = (*_operands(p), Argument(pointer, "dq"), *_saved(p), Argument("int64", threads), sizes_argument(p, chunks_of(p.d)),
                     *stride_arguments(p, p.q, p.k, p.v, p.do, p.dq), *common)
        launches += (launch(rows_kernel(kind), threads, arguments),)
    if p.dk.size or p.dv_out.size:
        chunks = chunks_of(max(p.d, p.dv))
        threads = p.images * p.kv_heads * p.keys * chunks
        arguments = (*_operands(p), Argument(pointer, "dk"), Argument(pointer, "dv"), *_saved(p), Argument("int64", threads),
                     sizes_argument(p, chunks), *stride_arguments(p, p.q, p.k, p.v, p.do, p.dk, p.dv_out), *common)
        launches += (launch(keys_kernel(kind), threads, arguments),)
    if p.dbias is not None and p.dbias.size:
        launches += (bias_launch(p),)
    return launches + dsink_launches(p, Numbers(0, p.rows, 0, 0))


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("sdpa_fwd", "sdpa_bwd"))
