"""A part of a warp, a warp or one block per row of classes, which is read once, whatever its length.

Forward, threads walk the row with several loads of 16 bytes in flight, and keep a maximum and a sum of exponentials each; backward they
walk it with loads and stores. Nothing waits before the row's end, so that many rows of a multiprocessor are in flight at once. Few rows
leave most of a GPU idle: they are `split`'s.
"""
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, contend, flight_rate, issue_seconds, memory_seconds, narrow_rate, occupied, overlap, sector_waste, tail
from ..host.launch import Launch
from ._math import kind_of
from ._rows import backward_kernel, forward_kernel, in_flight, make_arguments, make_config, refusal, vectors
from ._totals import loss_launches, loss_workspace, needs_totals, totals_launches, totals_workspace

COST = constants("loss/rows")

BLOCKS = (128, 256, 512)  # threads
NARROW = 16               # vectors per lane that a warp may walk


def supports(problem):
    """Rows and vectors within 32 bits."""
    return refusal(problem)


def workspace(problem, device, config):
    """Forward a loss for each block and the weight of its labels; backward the totals."""
    return loss_workspace(problem, _blocks(problem, config))[2] if problem.is_forward else totals_workspace(problem)


def _blocks(problem, config):
    return ceil_div(problem.rows, config.threads // config.lanes)


def configs(problem, device):
    """Parts of warps and warps for short rows, blocks for longer ones; four lanes at least deal out unaligned edges."""
    count, most, found = vectors(problem), in_flight(problem), []
    least = 4 if problem.vector[1] else 1
    for registers in (1, 2, 4, 8):
        lanes = min(32, max(least, 1 << (ceil_div(count, registers) - 1).bit_length()))
        if registers <= most and count <= NARROW * lanes:
            found.append(make_config(problem, lanes, min(registers, ceil_div(count, lanes))))
        for lanes in BLOCKS:
            if registers in (min(4, most), most) and count > lanes // 2:
                found.append(make_config(problem, lanes, min(registers, ceil_div(count, lanes))))
    return list(dict.fromkeys(found))


def estimate(problem, device, config):
    """Bytes at the rate that those in flight sustain, or instructions, or what resident blocks take one after another."""
    form, itemsize, kind = problem.form, problem.scores.itemsize, kind_of(problem)
    inputs = kind.soft + (kind.reads or problem.is_forward)
    again = problem.targets.nbytes if kind.soft and not problem.is_forward else 0
    weights = bool(kind.weight) and kind.shares
    flight = (max(1, inputs) + weights) * config.registers * config.vector_bytes * config.threads * config.blocks
    rate = flight_rate(flight, COST.in_flight) * narrow_rate(config.vector_bytes, itemsize)
    strided = max(sector_waste(itemsize, itemsize) if abs(problem.step(name)) > 1 else 1 for name in problem.whole)
    grid = _blocks(problem, config)
    share = occupied(grid * config.threads, COST.enough, device)
    idle = ceil_div(vectors(problem), config.lanes * config.registers) * config.lanes * config.registers / vectors(problem)
    each = COST.element + COST.shares * kind.shares + COST.weight * bool(kind.weight) * kind.shares
    issue = issue_seconds(problem.scores.size * each * idle + COST.thread * form.rows * config.lanes, 1, device) / share
    moved = memory_seconds(problem.bytes + again, device) * strided / (rate * share)
    turns = ceil_div(vectors(problem), config.lanes * config.registers)
    waiting = (COST.ends + COST.turn * turns) * max(1.0, grid / (device.sms * config.blocks))
    work = overlap(memory=moved, issue=issue).slowed(tail=tail(grid, config.blocks, device))
    more = needs_totals(problem) if not problem.is_forward else problem.reduction != "none"
    large = COST.large if config.lanes * config.registers >= 4096 else 1.0  # few blocks, which load and compute together
    return LAUNCH * (1 + more) + contend(COST.power, work, waits=waiting).slowed(slower=(COST.heads if config.unaligned else 1.0) * large)


def build(problem, device, config):
    """The rows' launch, before or after those of the totals."""
    p = problem
    dependent = device.capability >= (9, 0)
    kernel = (forward_kernel if p.is_forward else backward_kernel)(config, dependent)
    grid = _blocks(p, config)
    rows = Launch(kernel, (grid, 1, 1), (config.threads, 1, 1), make_arguments(p, grid), dependent=dependent)
    return (rows, *loss_launches(p, grid, device)) if p.is_forward else (*totals_launches(p, device), rows)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("cross_entropy_fwd", "cross_entropy_bwd", "nll_loss_bwd"))
