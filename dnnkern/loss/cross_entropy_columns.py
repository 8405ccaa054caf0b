"""Classes that are not innermost, as those of pixels with channels first: threads along the contiguous dimension, 16 bytes of columns each.

Every column is a row of classes. A thread walks them with several loads in flight, for each of its columns a maximum, a sum of exponentials
and the label's score, which it picks up on the way; backward it writes what it has read. A vector is 16 bytes where columns are aligned to
that in all arrays, else an element. Nothing is exchanged between threads, so that few columns leave a GPU idle: those are `rows`'s.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i32, i64, jit, u32
from ..device.block import make_block_reduce_pair, merge_sums
from ..device.convert import element
from ..device.fastmath import maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import Dim, RowLayout, RowForm, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, flight_rate, issue_seconds, memory_seconds, occupied, overlap, sector_waste, tail
from ..host.launch import Argument, Launch
from ._math import Kind, kind_of, make_inverse, make_slope, make_terms
from ._rows import BACKWARD, FORWARD, arrays, make_look, steps
from ._totals import loss_launches, loss_workspace, needs_totals, totals_launches, totals_workspace

COST = constants("loss/columns")

THREADS = 128
BATCHES = (2, 4, 8)


@dataclass(frozen=True)
class Config:
    """What the kernels are compiled for.

    Attributes
    ----------
    kind : Kind
    vector : int
        Bytes.
    dims : int
        Dimensions besides the classes and the columns, 1 at least.
    batch : int
        Classes that a thread loads at once.
    """
    kind: Kind
    vector_bytes: int
    dims: int
    batch: int

    @property
    def layout(self):
        """A vector at a time."""
        return RowLayout(self.kind.dtype, self.vector_bytes, 1, self.batch)

    def __str__(self):
        return f"{self.batch} x {self.vector_bytes} bytes"


def _columns(problem):
    """The dimension that is contiguous in all arrays of scores, or None; it is the last one if there is one."""
    outer, at = problem.form.outer, [problem.places_of.index(name) for name in problem.whole]
    return outer[-1] if outer and all(outer[-1].strides[k] == 1 for k in at) else None


def supports(problem):
    """A dimension besides the classes that is contiguous in all arrays of scores."""
    form, columns = problem.form, _columns(problem)
    if columns is None:
        return "no dimension besides the classes is contiguous in all arrays"
    if not form.rows or form.length >= 2 ** 30 or columns.size >= 2 ** 30 or form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.length} classes, {columns.size} columns, {form.rows} rows; expected some, below 2**30 and 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """Forward a loss for each block and the weight of its labels; backward the totals."""
    return loss_workspace(problem, _blocks(problem, config)[1])[2] if problem.is_forward else totals_workspace(problem)


def _unit(problem):
    itemsize = problem.scores.itemsize
    per, form, at = 16 // itemsize, problem.form, [problem.places_of.index(name) for name in problem.whole]
    strides = [d.strides[k] for d in (*form.row, *form.outer[:-1]) for k in at]
    fits = all(getattr(problem, name).alignment >= 16 for name in problem.whole)
    return 16 if fits and not any(v % per for v in (*strides, _columns(problem).size)) else itemsize


def configs(problem, device):
    """Few or many loads at once."""
    most = 4 if problem.is_soft or problem.compute == "float64" else 8
    dims, kind, vector_bytes = max(1, len(problem.form.outer) - 1), kind_of(problem), _unit(problem)
    return list(dict.fromkeys(Config(kind, vector_bytes, dims, min(batch, most, problem.classes)) for batch in BATCHES))


def _blocks(problem, config):
    """(blocks along the columns of one batch, all blocks)."""
    columns = _columns(problem).size
    across = ceil_div(columns * problem.scores.itemsize, config.vector_bytes * THREADS)
    return across, across * (problem.rows // columns)


def estimate(problem, device, config):
    """Bytes; short runs of columns; idle threads; loads in flight."""
    kind, itemsize, columns = kind_of(problem), problem.scores.itemsize, _columns(problem).size
    across, blocks = _blocks(problem, config)
    again = problem.targets.nbytes if kind.soft and not problem.is_forward else 0
    waste = sector_waste(min(THREADS * config.vector_bytes, columns * itemsize), config.vector_bytes)
    idle = across * THREADS * config.vector_bytes / (columns * itemsize)
    share = occupied(blocks * THREADS, COST.enough, device)
    rate = flight_rate(config.batch * config.vector_bytes * (1 + kind.soft), COST.in_flight)
    each = COST.element + COST.shares * kind.shares
    issue = issue_seconds((problem.scores.size * each + COST.row * problem.rows) * idle / share, 1, device)
    moved = memory_seconds((problem.bytes + again) * waste, device) / (rate * share)
    more = needs_totals(problem) if not problem.is_forward else problem.reduction != "none"
    work = overlap(memory=moved, issue=issue, waits=problem.classes / config.batch * COST.batch)
    return LAUNCH * (1 + more) + work.slowed(tail=tail(blocks, COST.blocks, device))


@functools.cache
def forward_kernel(config, dependent):
    """The losses of columns, and the logarithms of their sums of exponentials."""
    kind, layout = config.kind, config.layout
    vec, do, (look, finish) = make_row(layout), make_terms(kind), make_look(kind)
    power, shift, anchor, weigh, aim, load = do.power, do.shift, do.anchor, do.weigh, do.aim, element(kind.dtype).load
    Real, E, WORDS, NOTHING, BATCH = kind.real, layout.elements, layout.words, -math.inf, config.batch
    SOFT, SHARES, COUNTED, begin = kind.soft, kind.shares, kind.soft or bool(kind.weight), make_follow(dependent)
    MORE, SUMS, EACH, MEAN, SCRATCH = WORDS if SOFT else 1, E if SHARES else 1, kind.each, kind.mean, THREADS // 8
    row_offsets, hold, reduce = make_row_offsets(config.dims, FORWARD), pin(WORDS), make_block_reduce_pair(merge_sums, THREADS)

    @jit(launch_bounds=(THREADS, 3))
    def cross_entropy_fwd_columns(logits, targets, weight, loss, weights, lse, classes, groups, across, target_column, loss_column,
                                  lse_column, logits_step, targets_step, weight_step, ignore, keep, share, divisors, strides):
        begin()
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        values, low, aims = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        m, total, score = cuda.local.array(E, Real), cuda.local.array(E, Real), cuda.local.array(E, Real)
        base, aimed, sum_aimed = cuda.local.array(SUMS, Real), cuda.local.array(SUMS, Real), cuda.local.array(SUMS, Real)
        labels = cuda.local.array(E, i32)
        loss_of_all, weight_of_all = Real(0), Real(0)
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * THREADS + cuda.threadIdx.x
        if group < groups:
            offsets = row_offsets(batch, divisors, strides)
            column = i64(group) * E
            x, t = advance(logits, offsets.scores + column), targets
            if SOFT:
                t = advance(targets, offsets.targets + column)
            for e in range(E):
                m[e] = Real(NOTHING)
                total[e] = Real(0)
                score[e] = Real(0)
                labels[e] = 0
                if not SOFT:
                    label, _ = look(targets, offsets.targets + (column + e) * target_column, weight, i64(0), classes, ignore)
                    labels[e] = i32(label)
                if SHARES:
                    base[e] = anchor(load(x, i64(e)))
                    aimed[e] = Real(0)
                    sum_aimed[e] = Real(0)
            for first in range(0, classes, BATCH):
                for k in range(BATCH):
                    c = first + k
                    vec.load_vector(words, k, advance(x, c * logits_step), 0, 1, c < classes)
                    if SOFT:
                        vec.load_vector(more, k, advance(t, c * targets_step), 0, 1, c < classes)
                for e in range(E):
                    low[e] = m[e]
                for k in range(BATCH):
                    if first + k < classes:
                        vec.unpack(values, words, k)
                        for e in range(E):
                            m[e] = maximum(m[e], values[e])
                for e in range(E):
                    now = shift(m[e])
                    total[e] = total[e] * power(low[e] - now)
                    low[e] = now
                hold(words)
                for k in range(BATCH):
                    c = first + k
                    if c < classes:
                        vec.unpack(values, words, k)
                        w = Real(1)
                        if SHARES:
                            w = weigh(weight, c * weight_step)
                        if SOFT:
                            vec.unpack(aims, more, k)
                        for e in range(E):
                            total[e] += power(values[e] - low[e])
                            if not SOFT:
                                if c == labels[e]:
                                    score[e] = values[e]
                            if SHARES:
                                q = aim(aims[e], w, keep, share)
                                if COUNTED:
                                    aimed[e] += q
                                sum_aimed[e] += q * (values[e] - base[e])
            for e in range(E):
                w, origin, aimed_at, products = Real(0), Real(0), Real(classes), Real(0)
                if not SOFT:
                    if labels[e] >= 0:
                        w = weigh(weight, labels[e] * weight_step)
                if SHARES:
                    origin, products = base[e], sum_aimed[e]
                    if COUNTED:
                        aimed_at = aimed[e]
                loss_at, lse_at = offsets.loss + (column + e) * loss_column, offsets.lse + (column + e) * lse_column
                value = finish(loss, loss_at, lse, lse_at, i64(labels[e]), score[e], w, m[e], total[e], origin, aimed_at, products, keep,
                               share)
                loss_of_all += value
                weight_of_all += w
        if not EACH:
            scratch = cuda.shared.array(SCRATCH, Real)
            loss_of_all, weight_of_all = reduce(loss_of_all, weight_of_all, Real(0), scratch, 0)
            if cuda.threadIdx.x == 0:
                loss[cuda.blockIdx.x] = loss_of_all
                if MEAN:
                    weights[i64(cuda.blockIdx.x)] = weight_of_all
    return cross_entropy_fwd_columns


@functools.cache
def backward_kernel(config, dependent):
    """The gradients of columns."""
    kind, layout = config.kind, config.layout
    vec, do, slope, (look, _) = make_row(layout), make_terms(kind), make_slope(kind), make_look(kind)
    power, weigh, aim = do.power, do.weigh, do.aim
    Real, E, WORDS, BATCH, inverse = kind.real, layout.elements, layout.words, config.batch, make_inverse(kind.compute)
    SOFT, SHARES, WEIGHTED, MEAN, READS = kind.soft, kind.shares, bool(kind.weight), kind.mean, kind.reads
    MORE = WORDS if SOFT else 1
    row_offsets, begin = make_row_offsets(config.dims, BACKWARD), make_follow(dependent)

    @jit(launch_bounds=(THREADS, 3))
    def cross_entropy_bwd_columns(dloss, scores, targets, lse, weight, gradient, totals, classes, groups, across, dloss_column,
                                  target_column, lse_column, scores_step, targets_step, gradient_step, weight_step, ignore, keep, share,
                                  scale, divisors, strides):
        begin()
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        values, aims = cuda.local.array(E, Real), cuda.local.array(E, Real)
        low, probability = cuda.local.array(E, Real), cuda.local.array(E, Real)
        target, each = cuda.local.array(E, Real), cuda.local.array(E, Real)
        labels = cuda.local.array(E, i32)
        batch, part = divide_remainder(cuda.blockIdx.x, across)
        group = part * THREADS + cuda.threadIdx.x
        if group < groups:
            offsets = row_offsets(batch, divisors, strides)
            column = i64(group) * E
            x, t, y = scores, targets, advance(gradient, offsets.gradient + column)
            if READS:
                x = advance(scores, offsets.scores + column)
            if SOFT:
                t = advance(targets, offsets.targets + column)
            for e in range(E):
                each[e] = Real(0)
            if SOFT:
                for first in range(0, classes, BATCH):
                    for k in range(BATCH):
                        c = first + k
                        vec.load_vector(more, k, advance(t, c * targets_step), 0, 1, c < classes)
                    for k in range(BATCH):
                        c = first + k
                        if c < classes:
                            vec.unpack(aims, more, k)
                            w = weigh(weight, c * weight_step)
                            for e in range(E):
                                each[e] += aim(aims[e], w, keep, share)
            factor = inverse(totals[0]) if MEAN else Real(1)
            for e in range(E):
                g = dloss[offsets.dloss + (column + e) * dloss_column] * scale * factor
                label, w, aimed = i64(0), Real(0), each[e]
                if not SOFT:
                    label, w = look(targets, offsets.targets + (column + e) * target_column, weight, weight_step, classes, ignore)
                    if SHARES:
                        aimed = totals[1] if WEIGHTED else Real(classes)
                labels[e] = i32(label)
                probability[e], target[e], each[e] = slope(label, g, w, aimed, keep, share)
                low[e] = Real(0)
                if READS:
                    low[e] = lse[offsets.lse + (column + e) * lse_column]
            for first in range(0, classes, BATCH):
                for k in range(BATCH):
                    c = first + k
                    if READS:
                        vec.load_vector(words, k, advance(x, c * scores_step), 0, 1, c < classes)
                    if SOFT:
                        vec.load_vector(more, k, advance(t, c * targets_step), 0, 1, c < classes)
                for k in range(BATCH):
                    c = first + k
                    if c < classes:
                        if READS:
                            vec.unpack(values, words, k)
                        w = Real(1)
                        if SHARES:
                            w = weigh(weight, c * weight_step)
                        if SOFT:
                            vec.unpack(aims, more, k)
                        for e in range(E):
                            value = probability[e]
                            if READS:
                                value = probability[e] * power(values[e] - low[e])
                                if labels[e] == -1:
                                    value = Real(0)
                            if SHARES:
                                value = value - each[e] * aim(aims[e], w, keep, share)
                            if not SOFT:
                                if c == labels[e]:
                                    value = value - target[e]
                            values[e] = value
                        vec.pack(words, k, values)
                        vec.store_vector(advance(y, c * gradient_step), 0, 1, words, k)
    return cross_entropy_bwd_columns


def build(problem, device, config):
    """The columns' launch, before or after those of the totals."""
    p, names = problem, FORWARD if problem.is_forward else BACKWARD
    columns, (across, blocks) = _columns(p), _blocks(p, config)
    order = [p.places_of.index(name) if name in p.places_of else 0 for name in names]
    outer = tuple(Dim(d.size, tuple(d.strides[k] for k in order)) for d in p.form.outer[:-1])
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(names)),), outer))
    singles = ("targets", "loss", "lse") if p.is_forward else ("dloss", "targets", "lse")
    along = [columns.strides[p.places_of.index(name)] if name in p.places_of and name not in p.whole else 0 for name in singles]
    vectors = columns.size * p.scores.itemsize // config.vector_bytes
    arguments = (*arrays(p, blocks), Argument("int32", p.classes), Argument("int32", vectors),
                 Argument("uint32x3", divisor(across)), *(Argument("int64", s) for s in along), *steps(p),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    dependent = device.capability >= (9, 0)
    kernel = (forward_kernel if p.is_forward else backward_kernel)(config, dependent)
    rows = Launch(kernel, (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
    return (rows, *loss_launches(p, blocks, device)) if p.is_forward else (*totals_launches(p, device), rows)


ALGORITHMS = tuple(Algorithm(op=op, name="columns", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("cross_entropy_fwd", "cross_entropy_bwd", "nll_loss_bwd"))
