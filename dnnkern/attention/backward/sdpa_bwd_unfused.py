"""Scores in memory: two products, a pass over their rows, three products.

    s = q k', y = do v'     p and ds of them, by lse and delta     dv = p' do, dk = scale ds' q, dq = scale ds k

Products are matmul's, of whatever algorithm is the fastest for them (`_unfused`). The pass has no sum: each of the others has one order, so
that results are deterministic. p and ds have the operands' dtype, as on their way to tensor cores anywhere. The gradient of a bias and of a
sink are computed as `flash_simt` does.

By its estimate, which no GPU has confirmed yet, kernels that keep scores on the chip win with 16 bits where they know a head's size; with
float32 heads of more than 128 elements leave them few registers, and the products here are faster by more than their scores take.
"""
import functools

from ...device import cuda, i32, i64, jit
from ...device.convert import element
from ...dispatch import Algorithm, Note
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.plan import Plan, planned
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from .._addresses import row_strides_argument
from .._modifiers import Dropout, Scoring
from .._parameters import added_arguments, kind_of, number_arguments, softmax_scale
from .._scores import make_attends, make_terms
from .._unfused import (COST, LOADS, THREADS, alike, elements_of, find_row, least_products, matrix_bytes, operand, parts_of, refusal,
                        rows_argument, scores)
from ..sdpa_naive import workspace as deltas_bytes
from ._dbias import dbias_launches, dbias_seconds, sums_bytes
from ._delta import RowStats, delta_launch
from ._dsink import dsink_launches, dsink_seconds
from .sdpa_bwd_flash_simt import make_load_row_lse, make_softmax_gradient

ARRAYS = "q", "k", "v", "do", "dq", "dk", "dv"


def supports(problem):
    """Whole sequences, heads of any size."""
    return refusal(problem, ("q", "do", "dq"))


def workspace(problem, device, config):
    """Deltas; two arrays of scores, and what becomes of them, of a part; what products need, and sums of the bias's gradient."""
    return planned(_plan, problem, device, config).bytes


def estimate(problem, device, config):
    """The products, and the pass."""
    return planned(_plan, problem, device, config).cost + Cost(waits=COST.bwd)


def bound(problem, device):
    """The products by whatever is fastest, and the pass."""
    p, pairs = problem, problem.batch * problem.heads * problem.rows * problem.keys
    rows, keys = pairs // p.keys, pairs // p.rows
    products = least_products(p, device, ((pairs, p.d), (pairs, p.dv), (keys * p.dv, p.rows), (keys * p.d, p.rows), (rows * p.d, p.keys)))
    return COST.bwd + 2 * LAUNCH + products + memory_seconds(2 * pairs * (ITEMSIZE[p.compute] + p.q.itemsize) * COST.slower, device)


def build(problem, device, config):
    """The deltas' launch; six launches, or more, for each part; those of the bias and the sink."""
    return planned(_plan, problem, device, config).launches()


def _plan(problem, device, config):
    p, plan, parts, compute = problem, Plan(device), parts_of(problem), problem.compute
    most, item, scale = parts[0], ITEMSIZE[problem.compute], {"alpha": softmax_scale(problem)}
    delta_at = plan.part(deltas_bytes(p, device, config))
    s_at, y_at = (plan.part(most.matrices * matrix_bytes(p, compute)) for _ in range(2))
    p_at, ds_at = (s_at, y_at) if p.dtype == compute else (plan.part(most.matrices * matrix_bytes(p, p.dtype)) for _ in range(2))
    stats = RowStats(delta_at.offset, p.rows, 0, plan.part(sums_bytes(p, 0, device)).offset)
    plan.add(LAUNCH + Cost(memory=memory_seconds(p.o.nbytes + p.do.nbytes, device)), lambda: (delta_launch(p),))

    def body(plan, part):
        of = {name: operand(p, name, part) for name in ARRAYS}

        def product(a, b, y, **more):
            """Of operands, each with where it is."""
            plan.product({"a": a[1], "b": b[1], "y": y[1]}, scale if "scaled" in more else (), a=a[0], b=b[0], y=y[0], **more)
        dots, made = scores(p, part, compute), scores(p, part, p.dtype)
        product(of["q"], of["k"], (dots, s_at), transpose_b=True)
        product(of["do"], of["v"], (dots, y_at), transpose_b=True)
        moved = memory_seconds(2 * elements_of(p, part) * (item + p.q.itemsize), device)
        instructions = COST.gradient + p.score_instructions + COST.dropout * (p.dropout > 0)
        plan.add(LAUNCH + overlap(issue=issue_seconds(elements_of(p, part), instructions, device), memory=moved * COST.slower),
                 lambda: (_gradients_launch(p, part, s_at, y_at, p_at, ds_at, delta_at),))
        product((made, p_at), of["do"], of["dv"], transpose_a=True)
        product((made, ds_at), of["q"], of["dk"], transpose_a=True, scaled=True)
        product((made, ds_at), of["k"], of["dq"], scaled=True)
    plan.repeat(parts, body, alike(p, ARRAYS))
    plan.add(Cost() + dbias_seconds(p, 0, device) + dsink_seconds(p, device),
             lambda: dbias_launches(p, device, stats) + dsink_launches(p, stats))
    return plan


@functools.cache
def gradients_kernel(kind):
    """A row a block: probabilities, after dropout, and the gradients of its scores, 0 where it does not attend."""
    T, terms, attends = kind.real, make_terms(kind), make_attends(kind)
    gradient, load_row_lse, store = make_softmax_gradient(kind), make_load_row_lse(kind), element(kind.dtype).store
    BIAS, MASK, STEP = bool(kind.bias), kind.mask, LOADS * THREADS

    @jit(launch_bounds=(THREADS, 8))
    def sdpa_bwd_gradients(dots, products, probabilities, ds, lse, delta, rows, lse_strides, bias, bias_strides, mask, mask_strides, sink,
                           sink_step, bounds, scale, softcap, seed, offset, threshold, factor):
        t, line = cuda.threadIdx.x, cuda.blockIdx.x
        image, h, i = find_row(line, rows)
        queries, keys = i32(rows.queries.d), rows.keys
        shift, head = terms.shift(queries, keys), image * rows.all_heads + h
        bias_line = image * bias_strides.batch + h * bias_strides.head + i * bias_strides.row
        mask_at = image * mask_strides.batch + h * mask_strides.head + i * mask_strides.row
        scoring = Scoring(shift, terms.slope(h, rows.all_heads), terms.of_head(bias, image, h), bias_line, bias_strides, queries - 1,
                          keys - 1, scale, softcap)
        dropout = Dropout(terms.seed_of(seed, offset), head, threshold, factor)
        row_lse = load_row_lse(lse, image * lse_strides.batch + h * lse_strides.head + i * lse_strides.row, True)
        row_delta, at = delta[i64(head) * queries + i], i64(line) * rows.pitch
        x, y = cuda.local.array(LOADS, T), cuda.local.array(LOADS, T)
        for first in range(t, keys, STEP):
            for u in range(LOADS):
                j = first + u * THREADS
                x[u] = dots[at + j] if j < keys else T(0)
                y[u] = products[at + j] if j < keys else T(0)
            for u in range(LOADS):
                j = first + u * THREADS
                visible = attends(i, j, shift, keys, bounds) and (not MASK or terms.permits(mask, mask_at + j * mask_strides.column))
                bias_at = bias_line + j * bias_strides.column if BIAS and visible else i64(0)
                of_score, p = gradient(x[u], y[u], visible, i, j, bias_at, row_lse, row_delta, scoring, dropout)
                if j < keys:
                    store(probabilities, at + j, p)
                    store(ds, at + j, of_score)
    return sdpa_bwd_gradients


def _gradients_launch(problem, part, s_at, y_at, p_at, ds_at, delta_at):
    p, compute, pointer = problem, f"{problem.compute}*", element(problem.dtype).pointer
    arguments = (Argument(compute, *s_at), Argument(compute, *y_at), Argument(pointer, *p_at), Argument(pointer, *ds_at),
                 Argument(compute, "lse"), Argument(compute, *delta_at), rows_argument(p, part), row_strides_argument(p),
                 *added_arguments(p), *number_arguments(p))
    return Launch(gradients_kernel(kind_of(p)), (part.matrices * p.group * p.rows, 1, 1), (THREADS, 1, 1), arguments)


ALGORITHM = Algorithm(op="sdpa_bwd", name="unfused", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      bound=bound, notes=Note.TENSOR_CORE, programs=True)
