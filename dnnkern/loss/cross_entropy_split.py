"""Rows cut into pieces, for rows so few that a block each leaves most of a GPU idle.

Forward, blocks leave in the workspace what they have found of a piece: its maximum, its sum of exponentials, and where every class has a
share of the target two more sums. One warp per row merges the pieces, always in the same order. Backward a piece needs nothing of the
others, but for probabilities, whose sum over a row the blocks of a first launch leave in pieces.
"""
import functools
import math

from ..device import cuda, i64, jit, u32
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_sums
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import make_row, make_row_offsets
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, narrow_rate, occupied, overlap, sector_waste
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import kind_of, make_terms
from ._rows import (FORWARD, arrays, backward_kernel, forward_kernel, in_flight, make_arguments, make_config, make_look, refusal,
                    row_places, steps, vectors)
from ._totals import loss_launches, loss_workspace, totals_launches, totals_workspace, weight_argument, weight_step

COST = constants("loss/split")

THREADS, WARPS = 256, 4
SCRATCH = THREADS // 16
BLOCKS = 8  # of a multiprocessor that are worth a piece


def supports(problem):
    """Pieces within 32 bits."""
    if problem.rows * THREADS >= 2 ** 31 - 2 ** 20:
        return f"{problem.rows} rows in up to {THREADS} pieces; expected fewer than 2**31 - 2**20 of them"
    return refusal(problem)


def _config(problem):
    return make_config(problem, THREADS, min(4, in_flight(problem)), split=True)


def _pieces(problem, device):
    """(pieces of a row, vectors of a piece): whole turns of a block."""
    count, turn = vectors(problem), THREADS * _config(problem).registers
    wanted = max(1, min(THREADS, ceil_div(BLOCKS * device.sms, problem.rows), ceil_div(count, turn)))
    size = ceil_div(ceil_div(count, wanted), turn) * turn
    return ceil_div(count, size), size


def _offset(problem):
    """Byte offset of what pieces leave."""
    return -(-(loss_workspace(problem, problem.rows)[2] if problem.is_forward else totals_workspace(problem)) // 16) * 16


def _kept(problem):
    """Numbers that a piece leaves."""
    return 4 if problem.is_forward else int(problem.is_soft)


def workspace(problem, device, config):
    """Four numbers a piece forward, one backward for probabilities, besides what rows and totals need."""
    return _offset(problem) + problem.rows * _pieces(problem, device)[0] * _kept(problem) * ITEMSIZE[problem.compute]


def estimate(problem, device, config):
    """Bytes, or instructions; two launches more forward than backward. Rows that are left whole are `rows`'s."""
    kind, itemsize, pieces = kind_of(problem), problem.scores.itemsize, _pieces(problem, device)[0]
    count = problem.rows * pieces
    again = problem.targets.nbytes if kind.soft and not problem.is_forward else 0
    share = occupied(count * THREADS, COST.enough, device)
    idle = max(1.0, THREADS * _config(problem).registers / vectors(problem)) ** 0.5
    rate = narrow_rate(problem.vector[0], itemsize)
    strided = max(sector_waste(itemsize, itemsize) if abs(problem.step(name)) > 1 else 1 for name in problem.whole)
    each = COST.element + COST.shares * kind.shares + COST.weight * bool(kind.weight) * kind.shares
    issue = issue_seconds(problem.scores.size * each + COST.thread * count * THREADS, 1, device)
    moved = memory_seconds(problem.bytes + again, device) * strided
    launches = 3 if problem.is_forward else 1 + (kind.soft or kind.mean)
    work = overlap(memory=moved / rate, issue=issue).slowed(idle=idle / share, slower=COST.whole if pieces == 1 else 1.0)
    return launches * LAUNCH + (Cost(launch=COST.between) + work if problem.is_forward else work.slowed(slower=COST.bwd))


@functools.cache
def merge_kernel(kind, dims, dependent):
    """The loss of each row and the logarithm of its sum of exponentials, one warp per row, from what its pieces left."""
    Real, do, load, (look, finish) = kind.real, make_terms(kind), element(kind.dtype).load, make_look(kind)
    merge, anchor, SOFT, SHARES, COUNTED = do.merge, do.anchor, kind.soft, kind.shares, kind.soft or bool(kind.weight)
    row_offsets, NOTHING, BLOCK, EACH, MEAN = make_row_offsets(dims, FORWARD), -math.inf, 32 * WARPS, kind.each, kind.mean
    merge_warp, merge_two = make_block_reduce_pair(merge, BLOCK, 32), make_block_reduce_pair(merge_sums, BLOCK, 32)
    begin = make_follow(dependent)

    @jit(launch_bounds=BLOCK)
    def cross_entropy_fwd_merge(logits, targets, weight, loss, weights, lse, partial, rows, classes, pieces, logits_step, targets_step,
                                weight_step, ignore, keep, share, divisors, strides):
        begin()
        scratch = cuda.shared.array(1, Real)
        lane, row = cuda.threadIdx.x & 31, cuda.blockIdx.x * WARPS + (cuda.threadIdx.x >> 5)
        if row < rows:
            offsets = row_offsets(row, divisors, strides)
            m, total, aimed, sum_aimed = Real(NOTHING), Real(0), Real(0), Real(0)
            for k in range(lane, pieces, 32):
                at = 4 * (row * i64(pieces) + k)
                m, total = merge(m, total, partial[at], partial[at + 1], Real(0))
                aimed += partial[at + 2]
                sum_aimed += partial[at + 3]
            m, total = merge_warp(m, total, Real(0), scratch, 0)
            aimed, sum_aimed = merge_two(aimed, sum_aimed, Real(0), scratch, 0)
            if lane == 0:
                base, score = Real(0), Real(0)
                if SHARES:
                    base = anchor(load(logits, offsets.scores))
                if not COUNTED:
                    aimed = Real(classes)
                label, w = look(targets, offsets.targets, weight, weight_step, classes, ignore)
                if not SOFT:
                    if label >= 0:
                        score = load(logits, offsets.scores + label * logits_step)
                value = finish(loss, offsets.loss, lse, offsets.lse, label, score, w, m, total, base, aimed, sum_aimed, keep, share)
                if not EACH:
                    loss[row] = value
                if MEAN:
                    weights[row] = w
    return cross_entropy_fwd_merge


@functools.cache
def aims_kernel(config):
    """The sum of what is aimed at in a piece: of weighted probabilities."""
    kind, layout = config.kind, config.layout()
    vec, do, Real, reduce = make_row(layout), make_terms(kind), kind.real, make_block_reduce(add, THREADS)
    weigh, aim = do.weigh, do.aim
    E, WORDS, EDGE_SLOTS, EDGES, REGISTERS = layout.elements, layout.words, layout.edge_slots, layout.edges, config.registers
    row_offsets, TURN = make_row_offsets(config.dims, ("targets",)), THREADS * REGISTERS

    @jit(launch_bounds=(THREADS, 3))
    def cross_entropy_aims(targets, weight, partial, classes, pieces, size, targets_step, weight_step, keep, share, divisors, strides):
        scratch, words = cuda.shared.array(SCRATCH, Real), cuda.local.array(WORDS, u32)
        values, edges = cuda.local.array(E, Real), cuda.local.array(EDGE_SLOTS, Real)
        lane = cuda.threadIdx.x
        row, piece = divide_remainder(cuda.blockIdx.x, pieces)
        offsets = row_offsets(row, divisors, strides)
        t = advance(targets, offsets.targets)
        prologue, vectors = vec.split(t, classes)
        aimed = Real(0)
        if piece == 0:
            vec.load_edges(edges, t, prologue, vectors, classes, lane)
            for k in range(EDGES):
                j = lane + k * THREADS
                i = j if j < prologue else j + vectors * E
                if i < classes:
                    aimed += aim(edges[k], weigh(weight, i * weight_step), keep, share)
        for first in range(piece * size, min(vectors, piece * size + size), TURN):
            left = vectors - first
            vec.load(words, advance(t, i64(first) * E * targets_step), prologue, left, lane, targets_step)
            for c in range(REGISTERS):
                i = lane + c * THREADS
                if i < left:
                    vec.unpack(values, words, c)
                    at = prologue + (first + i) * E
                    for e in range(E):
                        aimed += aim(values[e], weigh(weight, i64(at + e) * weight_step), keep, share)
        aimed = reduce(aimed, scratch, 0)
        if lane == 0:
            partial[i64(cuda.blockIdx.x)] = aimed
    return cross_entropy_aims


def build(problem, device, config):
    """The pieces' launch; forward that of the rows after it, backward for probabilities that of their sums before it."""
    p, kind, config, numbers = problem, kind_of(problem), _config(problem), f"{problem.compute}*"
    (pieces, size), dependent = _pieces(p, device), device.capability >= (9, 0)
    grid, block = (p.rows * pieces, 1, 1), (THREADS, 1, 1)
    partial = Argument(numbers, "workspace", _offset(p))
    if p.is_forward:
        last = (*arrays(p, p.rows), partial, Argument("int32", p.rows), Argument("int32", p.classes), Argument("int32", pieces), *steps(p),
                *row_places(p, FORWARD))
        return (Launch(forward_kernel(config, dependent), grid, block, make_arguments(p, p.rows, _offset(p), pieces, size),
                       dependent=dependent),
                Launch(merge_kernel(kind, config.dims, dependent), (ceil_div(p.rows, WARPS), 1, 1), (32 * WARPS, 1, 1), last,
                       dependent=dependent),
                *loss_launches(p, p.rows, device))
    apply = Launch(backward_kernel(config, dependent), grid, block,
                   make_arguments(p, p.rows, _offset(p) if kind.soft else None, pieces, size), dependent=dependent)
    if not kind.soft:
        return *totals_launches(p, device), apply
    arguments = (Argument(element(p.dtype).pointer, "targets"), weight_argument(p), partial, Argument("int32", p.classes),
                 Argument("uint32x3", divisor(pieces)), Argument("int32", size), Argument("int64", p.step("targets")),
                 Argument("int64", weight_step(p)), Argument(p.compute, p.keep), Argument(p.compute, p.share), *row_places(p, ("targets",)))
    return Launch(aims_kernel(config), grid, block, arguments), apply


ALGORITHMS = tuple(Algorithm(op=op, name="split", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("cross_entropy_fwd", "cross_entropy_bwd", "nll_loss_bwd"))
