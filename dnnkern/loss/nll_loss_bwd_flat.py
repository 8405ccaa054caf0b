"""Packed gradients, as one run of memory: a thread has two pieces of 16 bytes, whatever rows they lie in.

Nearly all of the gradient is zeros, and rows of an odd number of classes begin anywhere; here every store is of 16 aligned bytes. A piece
has elements of two rows at most. The sum of weights of up to 32 rows every warp finds itself, by one load, so that nothing goes before.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, i32, jit
from ..device.convert import element
from ..device.groups import make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.warp import lane_id, reduce_sum
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ..engine.offsets import LIMIT
from ..host.launch import Argument, Launch
from ._math import IGNORED, Kind, kind_of, make_inverse, make_slope
from ._rows import make_look
from ._totals import needs_totals, totals_arguments, totals_launches, totals_workspace, weight_argument, weight_step

COST = constants("loss/nll_flat")

THREADS, UNIT, PIECES, LANES = 256, 16, 2, 32


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: the kind of loss, whether warps add up the weights."""
    kind: Kind
    adds: bool

    def __str__(self):
        return f"{PIECES} x {UNIT} bytes" + ", weights in a warp" * self.adds


def supports(problem):
    """One packed run of memory, of rows of 16 bytes and more."""
    p, t = problem, problem.gradient
    if not t.is_packed or p.axis != t.ndim - 1 or t.alignment < UNIT:
        return f"the gradient has shape {t.shape}, strides {t.strides}, alignment {t.alignment}; expected classes last, packed, 16"
    if not p.rows or p.classes * t.itemsize < UNIT or t.size >= LIMIT - 2 ** 20:
        return f"{p.rows} rows of {p.classes} classes; expected some, of 16 bytes at least, fewer than 2**31 - 2**20 elements"
    return None


def _adds(problem):
    return needs_totals(problem) and problem.rows <= LANES


def workspace(problem, device, config):
    """The sum of weights, of many rows."""
    return 0 if config.adds else totals_workspace(problem)


def configs(problem, device):
    """One."""
    return [Config(kind_of(problem), _adds(problem))]


def estimate(problem, device, config):
    """Bytes at the rate of stores alone, instructions of a piece and of a warp with a label, and what a thread waits for."""
    p = problem
    pieces = ceil_div(p.gradient.nbytes, UNIT)
    threads = ceil_div(pieces, PIECES)
    turns = threads / min(threads, COST.resident * device.sms)
    launches = 1 + (needs_totals(p) and not config.adds)
    issue = issue_seconds(1, pieces * COST.piece + p.rows * COST.label, device)
    work = overlap(memory=memory_seconds(p.bytes, device) / COST.rate, issue=issue, waits=turns * COST.wait)
    return launches * LAUNCH + Cost(waits=COST.start) + work


@functools.cache
def kernel(config, dependent):
    """gradient[row, c] = 0, but for the row's label, or NaN of all."""
    kind, compute = config.kind, config.kind.compute
    Real, (look, _), slope, inverse, begin = kind.real, make_look(kind), make_slope(kind), make_inverse(compute), make_follow(dependent)
    E, MEAN, ADDS = UNIT // element(kind.dtype).storage.itemsize, kind.mean, config.adds
    put, store = make_writer(kind.dtype, E, 4), element(kind.dtype).store

    @device_function
    def of_row(dloss, targets, weight, row, dloss_step, targets_step, weight_step, classes, ignore, scale):
        label, w = look(targets, row * targets_step, weight, weight_step, classes, ignore)
        fill, drop, _ = slope(label, dloss[row * dloss_step] * scale, w, Real(0), Real(1), Real(0))
        return fill, drop, label

    @device_function
    def weights_of(targets, weight, rows, targets_step, weight_step, classes, ignore):
        a = Real(0)
        if lane_id() < rows:
            label, w = look(targets, lane_id() * targets_step, weight, weight_step, classes, ignore)
            if label >= 0:
                a = w
            elif label != IGNORED:
                a = Real(1)
        return reduce_sum(a)

    @jit(launch_bounds=(THREADS, 4))
    def nll_loss_bwd_flat(dloss, targets, weight, gradient, totals, rows, count, classes, size, dloss_step, targets_step, weight_step,
                          ignore):
        begin()
        fills, drops, labels = cuda.local.array(PIECES, Real), cuda.local.array(PIECES, Real), cuda.local.array(PIECES, i32)
        values, scale = cuda.local.array(E, Real), Real(1)
        if ADDS:
            scale = inverse(weights_of(targets, weight, rows, targets_step, weight_step, count, ignore))
        elif MEAN:
            scale = inverse(totals[0])
        first = (cuda.blockIdx.x * (PIECES * THREADS) + cuda.threadIdx.x) * E
        for u in range(PIECES):
            i = first + u * (THREADS * E)
            fills[u], drops[u], labels[u] = Real(0), Real(0), -1
            if i < size:
                row, _ = divide_remainder(i, classes)
                fills[u], drops[u], labels[u] = of_row(dloss, targets, weight, row, dloss_step, targets_step, weight_step, count, ignore,
                                                       scale)
        for u in range(PIECES):
            i = first + u * (THREADS * E)
            if i < size:
                row, c = divide_remainder(i, classes)
                here, after = labels[u] - c, c + E > count and row + 1 < rows
                if here >= 0 and here < E or after or i + E > size:
                    fill, drop, label = Real(0), Real(0), -1
                    if after:
                        fill, drop, label = of_row(dloss, targets, weight, row + 1, dloss_step, targets_step, weight_step, count, ignore,
                                                   scale)
                    for e in range(E):
                        value = fill if c + e >= count else fills[u]
                        if c + e == labels[u]:
                            value = value - drops[u]
                        elif c + e == count + label and label >= 0:
                            value = value - drop
                        if i + e < size:
                            store(gradient, i + e, value)
                else:
                    for e in range(E):
                        values[e] = fills[u]
                    put(gradient, i, values, 0)
    return nll_loss_bwd_flat


def build(problem, device, config):
    """One launch, after those that add up the weights of many rows."""
    p, kind, dependent = problem, kind_of(problem), device.capability >= (9, 0)
    pointer, numbers, per = element(p.dtype).pointer, f"{p.compute}*", UNIT // p.gradient.itemsize
    totals = Argument(numbers, "dloss") if config.adds else totals_arguments(p)
    dloss_step, targets_step = (p.strides[name][0] if p.scores.ndim > 1 else 0 for name in ("dloss", "targets"))
    arguments = (Argument(numbers, "dloss"), Argument(f"{kind.labels}*", "targets"), weight_argument(p), Argument(pointer, p.named[-1][0]),
                 totals, Argument("int32", p.rows), Argument("int32", p.classes), Argument("uint32x3", divisor(p.classes)),
                 Argument("int32", p.gradient.size), Argument("int64", dloss_step), Argument("int64", targets_step),
                 Argument("int64", weight_step(p)), Argument("int64", p.ignore_index))
    blocks = ceil_div(p.gradient.size, per * THREADS * PIECES)
    last = Launch(kernel(config, dependent), (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
    return (last,) if config.adds else (*totals_launches(p, device), last)


ALGORITHM = Algorithm(op="nll_loss_bwd", name="flat", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)
