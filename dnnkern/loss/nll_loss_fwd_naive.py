"""One thread per row, which reads its target and then the one element that counts.

There is nothing to share between rows and nothing to read twice: a sector of 32 bytes per row is what memory moves, whoever asks for it.
"""
import functools

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.ahead import make_follow
from ..engine.cost import LAUNCH, SECTOR, Cost, memory_seconds
from ..host.launch import Argument, Launch
from ._math import kind_of, make_terms
from ._rows import make_look
from ._totals import loss_arguments, loss_launches, loss_workspace, weight_argument, weight_step

COST = constants("loss/nll_naive")

THREADS = 256


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """A loss for each row and the weight of its label."""
    return loss_workspace(problem, problem.rows)[2]


def estimate(problem, device, config):
    """A sector a row."""
    return 2 * LAUNCH + Cost(waves=COST.block, memory=memory_seconds(problem.rows * (SECTOR + COST.row), device))


@functools.cache
def kernel(kind, dims, dependent):
    """The loss of a row, a row a thread."""
    load, Real, (look, _) = element(kind.dtype).load, kind.real, make_look(kind)
    row_offsets = make_row_offsets64(dims, ("logp", "targets", "loss"))
    conclude, EACH, MEAN, begin = make_terms(kind).conclude, kind.each, kind.mean, make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def nll_loss_fwd_naive(logp, targets, weight, loss, weights, rows, classes, logp_step, weight_step, ignore, sizes, strides):
        begin()
        row = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if row < rows:
            offsets = row_offsets(row, sizes, strides)
            label, w = look(targets, offsets.targets, weight, weight_step, classes, ignore)
            score = Real(0)
            if label >= 0:
                score = load(logp, offsets.logp + label * logp_step)
            value = conclude(label, Real(-score), Real(0), Real(0), Real(0), w, Real(1), Real(0))
            loss[offsets.loss if EACH else row] = value
            if MEAN:
                weights[row] = w
    return nll_loss_fwd_naive


def build(problem, device, config):
    """The rows' launch, and those that add losses up."""
    p, kind, wanted = problem, kind_of(problem), ("scores", "targets", "loss")
    order = [p.places_of.index(name) for name in wanted]
    sizes, strides = row_arguments64([type(d)(d.size, tuple(d.strides[k] for k in order)) for d in p.form.outer], len(wanted))
    arguments = (Argument(element(p.dtype).pointer, "logp"), Argument(f"{kind.labels}*", "targets"), weight_argument(p),
                 *loss_arguments(p, p.rows), Argument("int64", p.rows), Argument("int64", p.classes), Argument("int64", p.step("scores")),
                 Argument("int64", weight_step(p)), Argument("int64", p.ignore_index), Argument(f"int64x{len(sizes)}", sizes),
                 Argument(f"int64x{len(strides)}", strides))
    dependent = device.capability >= (9, 0)
    rows = (Launch(kernel(kind, len(sizes), dependent), (ceil_div(p.rows, THREADS), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),) if p.rows else ()
    return *rows, *loss_launches(p, p.rows, device)


ALGORITHM = Algorithm(op="nll_loss_fwd", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
