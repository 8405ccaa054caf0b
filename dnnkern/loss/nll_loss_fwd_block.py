"""One block for few rows whose losses are added: a thread has a row, and the block adds up what they found. One launch."""
import functools

from ..device import cuda, jit
from ..device.block import make_block_reduce_pair, merge_sums
from ..device.convert import element
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost
from ..host.launch import Argument, Launch
from ._math import kind_of, make_inverse, make_terms
from ._rows import make_look
from ._totals import weight_argument, weight_step

COST = constants("loss/nll_block")

LEAST_THREADS, MOST = 128, 1024


def supports(problem):
    """Few rows, and a sum of their losses."""
    if not 1 <= problem.rows <= MOST or problem.reduction == "none":
        return f"{problem.rows} rows, reduction {problem.reduction}; expected 1 to {MOST}, whose losses are added"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _threads(problem):
    return LEAST_THREADS if problem.rows <= LEAST_THREADS else MOST


def estimate(problem, device, config):
    """What a block waits for."""
    return LAUNCH + Cost(waits=COST.block + COST.thread * _threads(problem))


@functools.cache
def kernel(kind, dims, threads, dependent):
    """The sum of the rows' losses, or their weighted mean."""
    load, Real, (look, _), THREADS, SCRATCH = element(kind.dtype).load, kind.real, make_look(kind), threads, threads // 8
    row_offsets, reduce = make_row_offsets64(dims, ("logp", "targets")), make_block_reduce_pair(merge_sums, threads)
    conclude, MEAN, inverse, begin = make_terms(kind).conclude, kind.mean, make_inverse(kind.compute), make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def nll_loss_fwd_block(logp, targets, weight, loss, rows, classes, logp_step, weight_step, ignore, sizes, strides):
        begin()
        scratch, total, weights = cuda.shared.array(SCRATCH, Real), Real(0), Real(0)
        for row in range(cuda.threadIdx.x, rows, THREADS):
            offsets = row_offsets(row, sizes, strides)
            label, w = look(targets, offsets.targets, weight, weight_step, classes, ignore)
            score = Real(0)
            if label >= 0:
                score = load(logp, offsets.logp + label * logp_step)
            total += conclude(label, Real(-score), Real(0), Real(0), Real(0), w, Real(1), Real(0))
            if MEAN:
                weights += w
        total, weights = reduce(total, weights, Real(0), scratch, 0)
        if cuda.threadIdx.x == 0:
            loss[0] = total * inverse(weights) if MEAN else total
    return nll_loss_fwd_block


def build(problem, device, config):
    """One launch."""
    p, kind, wanted, threads = problem, kind_of(problem), ("scores", "targets"), _threads(problem)
    order = [p.places_of.index(name) for name in wanted]
    sizes, strides = row_arguments64([type(d)(d.size, tuple(d.strides[k] for k in order)) for d in p.form.outer], len(wanted))
    arguments = (Argument(element(p.dtype).pointer, "logp"), Argument(f"{kind.labels}*", "targets"), weight_argument(p),
                 Argument(f"{p.compute}*", "loss"), Argument("int32", p.rows), Argument("int64", p.classes),
                 Argument("int64", p.step("scores")), Argument("int64", weight_step(p)), Argument("int64", p.ignore_index),
                 Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(kind, len(sizes), threads, dependent), (1, 1, 1), (threads, 1, 1), arguments, dependent=dependent),)


ALGORITHM = Algorithm(op="nll_loss_fwd", name="block", supports=supports, workspace=workspace, estimate=estimate, build=build)
