"""One thread per row of classes: walks over it for the maximum, for the sums, and backward for the gradient.

Straight from the definition, for arbitrary strides and any number of rows; neighbouring threads read neighbouring rows, so that loads are
coalesced only where rows lie across memory. Sums are of stretches of 256 elements, each added up by itself, which loses less to rounding.
"""
import functools
import math

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.fastmath import log, maximum
from ..device.index import ceil_div
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ..host.launch import Argument, Launch
from ._math import BACKWARD, FORWARD, kind_of, make_inverse, make_slope, make_terms
from ._totals import (loss_arguments, loss_launches, loss_workspace, totals_arguments, totals_launches, totals_workspace, weight_argument,
                      weight_step)

COST = constants("loss/naive")

THREADS, STRETCH = 128, 256


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """Forward a loss for each row and the weight of its label; backward the totals."""
    return loss_workspace(problem, problem.rows)[2] if problem.is_forward else totals_workspace(problem)


def estimate(problem, device, config):
    """A 32-byte sector a load; few rows keep few threads busy, each waiting for memory at every element."""
    walks = (2 if problem.is_forward else 2 if problem.lse is not None else 1) * len(problem.whole)
    moved = memory_seconds(walks * problem.scores.size * SECTOR, device)
    waves = -(-problem.rows // (COST.resident * device.sms))
    issue = issue_seconds(problem.scores.size, COST.element * walks, device)
    return 2 * LAUNCH + overlap(memory=moved, issue=issue, waits=waves * walks * problem.classes * COST.wait)


@functools.cache
def forward_kernel(kind, dims):
    """The loss of a row, and the logarithm of its sum of exponentials, a row a thread."""
    load, Real, do = element(kind.dtype).load, kind.real, make_terms(kind)
    power, shift, anchor, label_of, weigh, aim, conclude = do.power, do.shift, do.anchor, do.label, do.weigh, do.aim, do.conclude
    SOFT, SHARES, EACH, MEAN = kind.soft, kind.shares, kind.each, kind.mean
    row_offsets, NOTHING = make_row_offsets64(dims, FORWARD), -math.inf

    @jit(launch_bounds=THREADS)
    def cross_entropy_fwd_naive(logits, targets, weight, loss, weights, lse, rows, classes, logits_step, targets_step, weight_step, ignore,
                                keep, share, sizes, strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            offsets = row_offsets(row, sizes, strides)
            at, to = offsets.scores, offsets.targets
            m = Real(NOTHING)
            for c in range(classes):
                m = maximum(m, load(logits, at + c * logits_step))
            low, base = shift(m), anchor(load(logits, at))
            total, aimed, sum_aimed = Real(0), Real(0), Real(0)
            for first in range(0, classes, STRETCH):
                part, aims, products = Real(0), Real(0), Real(0)
                for c in range(first, min(first + STRETCH, classes)):
                    x = load(logits, at + c * logits_step)
                    part += power(x - low)
                    if SHARES:
                        t = Real(0)
                        if SOFT:
                            t = load(targets, to + c * targets_step)
                        q = aim(t, weigh(weight, c * weight_step), keep, share)
                        aims += q
                        products += q * (x - base)
                total += part
                aimed += aims
                sum_aimed += products
            z = log(total)
            lse[offsets.lse] = m + z
            label, x, w = i64(0), Real(0), Real(0)
            if not SOFT:
                label = label_of(targets, to, classes, ignore)
                if label >= 0:
                    x = load(logits, at + label * logits_step)
                    w = weigh(weight, label * weight_step)
            value = conclude(label, m - x + z, m - base + z, aimed, sum_aimed, w, keep, share)
            if EACH:
                loss[offsets.loss] = value
            else:
                loss[row] = value
            if MEAN:
                weights[row] = w
    return cross_entropy_fwd_naive


@functools.cache
def backward_kernel(kind, dims):
    """The gradient of a row, a row a thread."""
    load, store = element(kind.dtype).load, element(kind.dtype).store
    Real, do, slope = kind.real, make_terms(kind), make_slope(kind)
    power, inverse, label_of, weigh, aim = do.power, make_inverse(kind.compute), do.label, do.weigh, do.aim
    SOFT, SMOOTH, WEIGHTED, MEAN, READS = kind.soft, kind.smooth, bool(kind.weight), kind.mean, kind.reads
    row_offsets = make_row_offsets64(dims, BACKWARD)

    @jit(launch_bounds=THREADS)
    def cross_entropy_bwd_naive(dloss, scores, targets, lse, weight, gradient, totals, rows, classes, scores_step, targets_step,
                                gradient_step, weight_step, ignore, keep, share, scale, sizes, strides):
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            offsets = row_offsets(row, sizes, strides)
            at, to, into = offsets.scores, offsets.targets, offsets.gradient
            g = dloss[offsets.dloss] * scale
            if MEAN:
                g = g * inverse(totals[0])
            label, w, low, aimed = i64(0), Real(0), Real(0), Real(0)
            if READS:
                low = lse[offsets.lse]
            if SOFT:
                for c in range(classes):
                    t = load(targets, to + c * targets_step)
                    aimed += aim(t, weigh(weight, c * weight_step), keep, share)
            else:
                label = label_of(targets, to, classes, ignore)
                if label >= 0:
                    w = weigh(weight, label * weight_step)
                if SMOOTH:
                    aimed = totals[1] if WEIGHTED else Real(classes)
            probability, target, each = slope(label, g, w, aimed, keep, share)
            for c in range(classes):
                value = probability
                if READS:
                    if label != -1:
                        value = probability * power(load(scores, at + c * scores_step) - low)
                if SOFT or SMOOTH:
                    t = Real(0)
                    if SOFT:
                        t = load(targets, to + c * targets_step)
                    value = value - each * aim(t, weigh(weight, c * weight_step), keep, share)
                if not SOFT:
                    if c == label:
                        value = value - target
                store(gradient, into + c * gradient_step, value)
    return cross_entropy_bwd_naive


def build(problem, device, config):
    """The rows' launch, before or after those of the totals."""
    p, kind = problem, kind_of(problem)
    wanted = ("scores", "targets", "loss", "lse") if p.is_forward else ("dloss", "scores", "targets", "lse", "gradient")
    order = [p.places_of.index(name) if name in p.places_of else 0 for name in wanted]
    dims = [type(d)(d.size, tuple(d.strides[k] for k in order)) for d in p.form.outer]
    sizes, strides = row_arguments64(dims, len(wanted))
    pointer, numbers = element(p.dtype).pointer, f"{p.compute}*"
    targets = Argument(pointer if kind.soft else f"{kind.labels}*", "targets")
    scores = Argument(pointer, p.named[0 if p.is_forward else 1][0])
    targets_step = p.step("targets") if kind.soft else 0
    middle = (Argument("int64", weight_step(p)), Argument("int64", p.ignore_index), Argument(p.compute, p.keep),
              Argument(p.compute, p.share))
    last = Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides)
    counts = (Argument("int64", p.rows), Argument("int64", p.classes), Argument("int64", p.step("scores") if "scores" in p.whole else 0),
              Argument("int64", targets_step))
    grid, block = (ceil_div(p.rows, THREADS), 1, 1), (THREADS, 1, 1)
    if p.is_forward:
        arguments = (scores, targets, weight_argument(p), *loss_arguments(p, p.rows), Argument(numbers, "lse"), *counts, *middle, *last)
        rows = (Launch(forward_kernel(kind, len(sizes)), grid, block, arguments),) if p.rows else ()
        return *rows, *loss_launches(p, p.rows, device)
    scale = 1 / p.rows if p.reduction == "mean" and kind.soft else 1.0
    lse = Argument(numbers, "lse" if kind.reads else "dloss")
    arguments = (Argument(numbers, "dloss"), scores, targets, lse, weight_argument(p), Argument(pointer, p.named[-1][0]),
                 totals_arguments(p), *counts, Argument("int64", p.step("gradient")), *middle, Argument(p.compute, scale), *last)
    return *totals_launches(p, device), Launch(backward_kernel(kind, len(sizes)), grid, block, arguments)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("cross_entropy_fwd", "cross_entropy_bwd", "nll_loss_bwd"))
