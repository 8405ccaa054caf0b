"""Sums over rows: from a loss for each row or block to their sum or mean, and the sum of the weights of all labels.

Each block adds up a stretch and one block then adds what they left, always in the same order. Up to `FEW` numbers take one block, and one
launch.
"""
import functools

from ..device import cuda, f32, f64, i32, i64, jit
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_sums
from ..device.convert import element
from ..device.index import ceil_div
from ..device.rows import Dim, RowForm, make_row_offsets, make_row_offsets64, row_arguments, row_arguments64
from ..engine.ahead import make_follow
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._math import IGNORED, kind_of, make_inverse, make_terms

FEW, BLOCKS = 32768, 512
TYPES = {"float32": f32, "float64": f64}


def blocks_of(count):
    """Blocks that share the work on so many rows."""
    return 1 if count <= FEW else min(BLOCKS, ceil_div(count, 1024))


def threads_of(count):
    """Threads of a block: eight rows or more each, where one block does it all."""
    return 1024 if count > 2048 else 256


@functools.cache
def fold_kernel(compute, weighted, last, threads, dependent):
    """The sum of a stretch of values, and of weights; the `last` launch, of one block, divides by these or multiplies by `scale`."""
    Real, reduce = TYPES[compute], make_block_reduce_pair(merge_sums, threads)
    THREADS, SCRATCH, inverse, begin = threads, threads // 8, make_inverse(compute), make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def loss_fold(values, weights, sums, sums_of_weights, count, per, scale):
        begin()
        scratch = cuda.shared.array(SCRATCH, Real)
        thread, block = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        first = block * per
        end = min(first + per, count)
        a, w = Real(0), Real(0)
        for i in range(first + thread, end, i64(THREADS)):
            a += values[i]
            if weighted:
                w += weights[i]
        a, w = reduce(a, w, Real(0), scratch, 0)
        if thread == 0:
            if last:
                sums[0] = a * inverse(w) if weighted else a * scale
            else:
                sums[block] = a
                if weighted:
                    sums_of_weights[block] = w
    return loss_fold


def fold_bytes(count):
    """Bytes of workspace that `fold_launches` needs, a number each."""
    blocks = blocks_of(count)
    return 2 * blocks if blocks > 1 else 0


def fold_launches(device, compute, values, weights, result, count, scale, scratch):
    """Launches that leave in `result` (name, byte offset) the sum of `count` values times `scale`, or divided by that of weights.

    `values`, `weights` (or None) and `scratch` are byte offsets in the workspace.
    """
    pointer, size, blocks, weighted = f"{compute}*", ITEMSIZE[compute], blocks_of(count), weights is not None
    launches, dependent = [], device.capability >= (9, 0)

    def one(values, weights, target, second, count, grid, last):
        arguments = (Argument(pointer, "workspace", values), Argument(pointer, "workspace", weights or 0), Argument(pointer, *target),
                     Argument(pointer, "workspace", second), Argument("int64", count), Argument("int64", max(1, ceil_div(count, grid))),
                     Argument(compute, scale))
        threads = threads_of(count)
        launches.append(Launch(fold_kernel(compute, weighted, last, threads, dependent), (grid, 1, 1), (threads, 1, 1), arguments,
                               dependent=dependent))
    if blocks > 1:
        one(values, weights, ("workspace", scratch), scratch + blocks * size, count, blocks, False)
        values, weights, count = scratch, scratch + blocks * size if weighted else None, blocks
    one(values, weights, result, scratch, count, 1, True)
    return tuple(launches)


# ---- forward: what rows or blocks leave, and what becomes of it

def loss_workspace(problem, count):
    """(byte offset of the weights, of what folding needs, all bytes) where `count` losses are left to be added, for a forward problem."""
    size, kind = ITEMSIZE[problem.compute], kind_of(problem)
    if kind.each:
        return 0, 0, 0
    weights = count * size
    scratch = weights + count * size * kind.mean
    return weights, scratch, scratch + fold_bytes(count) * size


def loss_arguments(problem, count):
    """Kernel parameters `loss` and `weights`: where losses go, and the weights of their labels."""
    pointer, weights = f"{problem.compute}*", loss_workspace(problem, count)[0]
    if problem.reduction == "none":
        return Argument(pointer, "loss"), Argument(pointer, "loss")
    return Argument(pointer, "workspace"), Argument(pointer, "workspace", weights)


def loss_launches(problem, count, device):
    """What follows the rows: nothing where each keeps its loss."""
    kind, (weights, scratch, _), rows = kind_of(problem), loss_workspace(problem, count), problem.rows
    if kind.each:
        return ()
    mean = problem.reduction == "mean" and problem.is_soft
    scale = (1 / rows if rows else float("nan")) if mean else 1.0
    return fold_launches(device, problem.compute, 0, weights if kind.mean else None, ("loss", 0), count, scale, scratch)


# ---- backward: what must be known of all rows before one has a gradient

@functools.cache
def weigh_kernel(kind, dims, whole, threads, wide, dependent):
    """The sum of the weights of a stretch of rows' labels; with `whole` that of all classes' weights, by the first block."""
    Real, do, reduce = kind.real, make_terms(kind), make_block_reduce(add, threads)
    label, weigh, THREADS, SCRATCH, begin = do.label, do.weigh, threads, threads // 16, make_follow(dependent)
    row_offsets = (make_row_offsets64 if wide else make_row_offsets)(dims, ("targets",))

    @jit(launch_bounds=THREADS)
    def loss_weights(targets, weight, sums, total, rows, per, classes, weight_step, ignore, divisors, strides):
        begin()
        scratch = cuda.shared.array(SCRATCH, Real)
        thread, block = cuda.threadIdx.x, i64(cuda.blockIdx.x)
        first = block * per
        end = min(first + per, rows)
        a = Real(0)
        for i in range(first + thread, end, i64(THREADS)):
            offsets = row_offsets(i64(i) if wide else i32(i), divisors, strides)
            c = label(targets, offsets.targets, classes, ignore)
            if c >= 0:
                a += weigh(weight, c * weight_step)
            elif c != IGNORED:
                a += Real(1)
        a = reduce(a, scratch, 0)
        if thread == 0:
            sums[block] = a
        if whole:
            if block == 0:
                a = Real(0)
                for c in range(i64(thread), classes, i64(THREADS)):
                    a += weigh(weight, c * weight_step)
                a = reduce(a, scratch, 1)
                if thread == 0:
                    total[0] = a
    return loss_weights


def needs_totals(problem):
    """Whether a backward problem's rows wait for `totals_launches`."""
    kind = kind_of(problem)
    return kind.mean or kind.smooth and bool(kind.weight) and not kind.soft


def totals_workspace(problem):
    """Bytes that `totals_launches` needs: the two totals first, 16 bytes."""
    if not needs_totals(problem):
        return 0
    blocks = blocks_of(problem.rows)
    return 16 + ITEMSIZE[problem.compute] * (blocks + fold_bytes(blocks)) * (blocks > 1)


def totals_arguments(problem):
    """Kernel parameter `totals`: the sum of the labels' weights, and of the classes'."""
    return Argument(f"{problem.compute}*", "workspace" if needs_totals(problem) else "dloss")


def totals_launches(problem, device):
    """What goes before the rows of a backward problem."""
    if not needs_totals(problem):
        return ()
    kind, p, pointer, size = kind_of(problem), problem, f"{problem.compute}*", ITEMSIZE[problem.compute]
    blocks, at = blocks_of(p.rows), p.places_of.index("targets")
    outer, wide, threads = tuple(Dim(d.size, (d.strides[at],)) for d in p.form.outer), p.rows >= 2 ** 31, threads_of(p.rows)
    divisors, strides = row_arguments64(outer, 1) if wide else row_arguments(RowForm((Dim(1, (0,)),), outer))
    dependent = device.capability >= (9, 0)
    kernel = weigh_kernel(kind, max(1, len(outer)), kind.smooth and bool(kind.weight), threads, wide, dependent)
    arguments = (Argument(f"{kind.labels}*", "targets"), weight_argument(p), Argument(pointer, "workspace", 16 if blocks > 1 else 0),
                 Argument(pointer, "workspace", size), Argument("int64", p.rows), Argument("int64", ceil_div(p.rows, blocks)),
                 Argument("int64", p.classes), Argument("int64", weight_step(p)), Argument("int64", p.ignore_index),
                 Argument(f"{'int64' if wide else 'uint32'}x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    first = Launch(kernel, (blocks, 1, 1), (threads, 1, 1), arguments, dependent=dependent)
    if blocks == 1:
        return (first,)
    return first, *fold_launches(device, p.compute, 16, None, ("workspace", 0), blocks, 1.0, 16 + blocks * size)


def weight_argument(problem):
    """Kernel parameter `weight`; where there is none, what nobody reads."""
    if problem.weight is None:
        return Argument(element(problem.dtype).pointer, problem.named[-1][0])
    return Argument(element(problem.weight.dtype).pointer, "weight")


def weight_step(problem):
    """Element stride of the weights."""
    return problem.weight.strides[0] if problem.weight is not None else 0
