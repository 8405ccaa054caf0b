"""Scores in memory: a product, the softmax of their rows, another product, and a pass that divides.

    s = q k'     probabilities of s, not yet divided, sums of rows     o' = p v     o = o' / sums

Products are matmul's, of whatever algorithm is the fastest for them (`_unfused`): with 16-bit operands on tensor cores, for any heads,
those of 512 elements of an image decoder's attention, say. Scores and o' are float32, float64 of float64; probabilities have v's dtype.

By its estimate, which no GPU has confirmed yet, it loses to algorithms that keep scores on the chip wherever these know the heads: bound by
memory, and by products that masks would spare.
"""
import functools

from ...device import cuda, device_function, i32, i64, jit
from ...device.block import make_block_reduce
from ...device.convert import element
from ...device.fastmath import maximum
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.warp import add
from ...dispatch import Algorithm, Note
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.plan import Plan, planned
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._addresses import row_strides_argument, strides_argument
from .._flash import make_powers
from .._parameters import added_arguments, kind_of, number_arguments
from .._scores import NEG_INF, make_attends, make_terms
from .._unfused import (COST, LOADS, THREADS, alike, elements_of, find_row, least_products, matrix_bytes, operand, parts_of, refusal,
                        rows_argument, scores)


def supports(problem):
    """Whole sequences, heads of any size."""
    return refusal(problem, ("q",))


def workspace(problem, device, config):
    """Scores, probabilities, and results before they are divided, of a part; what products need."""
    return planned(_plan, problem, device, config).bytes


def estimate(problem, device, config):
    """The products, and the passes."""
    return planned(_plan, problem, device, config).cost + Cost(waits=COST.fwd)


def bound(problem, device):
    """The products by whatever is fastest, and the passes."""
    p, pairs = problem, problem.batch * problem.heads * problem.rows * problem.keys
    products = least_products(p, device, ((pairs, p.d), (pairs // p.keys * p.dv, p.keys)))
    return COST.fwd + 2 * LAUNCH + products + memory_seconds(pairs * (ITEMSIZE[p.compute] + p.q.itemsize) * COST.slower, device)


def build(problem, device, config):
    """Four launches, or more, for each part."""
    return planned(_plan, problem, device, config).launches()


def _plan(problem, device, config):
    p, plan, parts, item = problem, Plan(device), parts_of(problem), ITEMSIZE[problem.compute]
    most, rows = parts[0], p.group * p.rows
    s_at = plan.part(most.matrices * matrix_bytes(p, p.compute))
    p_at = s_at if p.dtype == p.compute else plan.part(most.matrices * matrix_bytes(p, p.dtype))
    sums_at, o_at = plan.part(most.matrices * rows * item), plan.part(most.matrices * rows * p.dv * item)

    def body(plan, part):
        (q, q_at), (k, k_at), (v, v_at) = (operand(p, name, part) for name in "qkv")
        result = Tensor.packed((part.images, part.heads, rows, p.dv), p.compute)
        plan.product({"a": q_at, "b": k_at, "y": s_at}, a=q, b=k, y=scores(p, part, p.compute), transpose_b=True)
        moved = memory_seconds(elements_of(p, part) * (item + p.q.itemsize), device)
        instructions = 2 * (COST.score + p.score_instructions) + COST.dropout * (p.dropout > 0)
        plan.add(LAUNCH + overlap(issue=issue_seconds(elements_of(p, part), instructions, device), memory=moved * COST.slower),
                 lambda: (_probabilities_launch(p, part, s_at, p_at, sums_at),))
        plan.product({"a": p_at, "b": v_at, "y": o_at}, a=scores(p, part, p.dtype), b=v, y=result)
        plan.add(LAUNCH + Cost(memory=memory_seconds(result.nbytes + result.size * p.o.itemsize, device)),
                 lambda: (_divide_launch(p, part, o_at, sums_at),))
    plan.repeat(parts, body, alike(p, "qkv"))
    return plan


@functools.cache
def probabilities_kernel(kind, with_lse):
    """A row a block: exponentials of its scores by the largest of them, 0 where it does not attend; what sums are multiplied by; lse."""
    T, terms, powers, attends = kind.real, make_terms(kind), make_powers(kind.compute), make_attends(kind)
    most, total = make_block_reduce(maximum, THREADS), make_block_reduce(add, THREADS)
    store, load_sink, SINK = element(kind.dtype).store, element(kind.sink or kind.dtype).load, bool(kind.sink)
    BIAS, MASK, SCRATCH, STEP = bool(kind.bias), kind.mask, THREADS // 16, LOADS * THREADS

    @device_function
    def score_of(dot, i, j, of_head, line, bias_column, mask, mask_at, mask_column, slope, shift, keys, bounds, scale, softcap):
        """The score of a product; -inf where the row does not attend to the key."""
        value = T(NEG_INF)
        if attends(i, j, shift, keys, bounds) and (not MASK or terms.permits(mask, mask_at + j * mask_column)):
            at = line + j * bias_column if BIAS else i64(0)
            value = terms.score(dot, j - i - shift, slope, of_head, terms.where(at, i, j), scale, softcap)
        return value

    @jit(launch_bounds=(THREADS, 8))
    def sdpa_fwd_probabilities(dots, probabilities, sums, lse, rows, lse_strides, bias, bias_strides, mask, mask_strides, sink, sink_step,
                               bounds, scale, softcap, seed, offset, threshold, factor):
        of_most, of_total = cuda.shared.array(SCRATCH, T), cuda.shared.array(SCRATCH, T)
        t, line = cuda.threadIdx.x, cuda.blockIdx.x
        image, h, i = find_row(line, rows)
        queries, keys = i32(rows.queries.d), rows.keys
        shift, slope, of_head = terms.shift(queries, keys), terms.slope(h, rows.all_heads), terms.of_head(bias, image, h)
        bias_line = image * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
        mask_at = image * mask_strides.batch + h * mask_strides.head + i * mask_strides.row
        begin, end = terms.key_range(i, queries, keys, bounds)
        at, x = i64(line) * rows.pitch, cuda.local.array(LOADS, T)
        row_max = T(NEG_INF)
        for first in range(begin + t, end, STEP):
            for u in range(LOADS):
                j = first + u * THREADS
                x[u] = dots[at + j] if j < end else T(0)
            for u in range(LOADS):
                j = first + u * THREADS
                if j < end:
                    row_max = maximum(row_max, score_of(x[u], i, j, of_head, bias_line, bias_strides.column, mask, mask_at,
                                                        mask_strides.column, slope, shift, keys, bounds, scale, softcap))
        row_max = powers.attended(most(row_max, of_most, 0))
        level = powers.level(row_max)
        row_sum, dropped = T(0), terms.seed_of(seed, offset)
        for first in range(t, keys, STEP):
            for u in range(LOADS):
                j = first + u * THREADS
                x[u] = dots[at + j] if j >= begin and j < end else T(0)
            for u in range(LOADS):
                j = first + u * THREADS
                p = T(0)
                if j >= begin and j < end and row_max != T(NEG_INF):
                    p = powers.rise(score_of(x[u], i, j, of_head, bias_line, bias_strides.column, mask, mask_at, mask_strides.column,
                                             slope, shift, keys, bounds, scale, softcap), level)
                    row_sum = T(row_sum + p)
                    p = terms.kept(p, dropped, image * rows.all_heads + h, i, j, threshold, factor)
                if j < keys:
                    store(probabilities, at + j, p)
        row_sum = total(row_sum, of_total, 0)
        if t == 0:
            share, value = T(0), T(NEG_INF)
            if row_max != T(NEG_INF):
                share = T(1)
                if SINK:
                    logit = T(load_sink(sink, h * sink_step))
                    top = powers.level(maximum(row_max, logit))
                    share = powers.fall(level, top)
                    row_sum, level = T(T(row_sum * share) + powers.rise(logit, top)), top
                value = powers.total(level, row_sum)
                share = T(share * powers.inverse(row_sum))
            sums[line] = share
            if with_lse:
                lse[image * lse_strides.batch + h * lse_strides.head + i * lse_strides.row] = value
    return sdpa_fwd_probabilities


@functools.cache
def divide_kernel(dtype):
    """o, an element a thread: what was found, by what its row is multiplied by."""
    store = element(dtype).store

    @jit(launch_bounds=THREADS)
    def sdpa_fwd_divide(found, sums, o, count, elements, rows, strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            line, column = divide_remainder(index, elements)
            image, h, i = find_row(line, rows)
            at = image * strides.batch + h * strides.head + i * strides.row + column * strides.column
            share = sums[line]
            store(o, at, found[index] * share if share != 0 else share)
    return sdpa_fwd_divide


def _probabilities_launch(problem, part, s_at, p_at, sums_at):
    p, kind, compute = problem, kind_of(problem), f"{problem.compute}*"
    arguments = (Argument(compute, *s_at), Argument(element(p.dtype).pointer, *p_at), Argument(compute, *sums_at),
                 Argument(compute, "lse" if p.lse else "o"), rows_argument(p, part), row_strides_argument(p), *added_arguments(p),
                 *number_arguments(p))
    return Launch(probabilities_kernel(kind, p.lse is not None), (part.matrices * p.group * p.rows, 1, 1), (THREADS, 1, 1), arguments)


def _divide_launch(problem, part, o_at, sums_at):
    p, count = problem, part.matrices * problem.group * problem.rows * problem.dv
    arguments = (Argument(f"{p.compute}*", *o_at), Argument(f"{p.compute}*", *sums_at), Argument(element(p.o.dtype).pointer, "o"),
                 Argument("int32", count), Argument(Divisor, divisor(p.dv)), rows_argument(p, part), strides_argument(p, "o"))
    return Launch(divide_kernel(p.o.dtype), (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments)


ALGORITHM = Algorithm(op="sdpa_fwd", name="unfused", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      bound=bound, notes=Note.TENSOR_CORE, programs=True)
