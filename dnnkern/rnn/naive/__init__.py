"""One block per sequence and direction, one thread per hidden unit: straight from the definition, every option.

Blocks share nothing, so that a sequence's steps follow each other by barriers alone, and each sum has one order. States pass from step to
step as they are returned, rounded to their type; cell states, and gradients on their way back, as they are summed. Backward the gradients
before the gates' functions take the gates' place in the reserve; those of inputs and weights, which need all steps, are launches of their
own, one thread per element.
"""
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, occupied, overlap
from .._problem import OPS
from .backward import data_launches, data_scratch, weights_launches
from .forward import THREADS, forward_launches, forward_scratch

COST = constants("rnn/naive")


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """States and gradients that are not rounded, results between layers."""
    if problem.op == OPS[0]:
        return forward_scratch(problem)[-1]
    return data_scratch(problem)[-1] if problem.op == OPS[1] else 0


def estimate(problem, device, config):
    """Each product is two loads of its own, and each weight's gradient a division that tells a thread its row."""
    p, spec = problem, problem.spec
    blocks = p.samples * spec.directions
    busy = occupied(blocks * THREADS, COST.resident, device) if p.op != OPS[2] else 1.0
    issue = issue_seconds(p.flops / 2, COST.multiply_add, device) / max(busy, COST.least_share)
    if p.op == OPS[2]:
        issue += issue_seconds(p.outputs[0].size, COST.weight, device)
    chain = 0 if p.op == OPS[2] else spec.num_layers * p.steps * COST.step
    return LAUNCH * 2 * spec.num_layers + Cost(waits=chain) + overlap(issue=issue, memory=memory_seconds(p.bytes, device))


def build(problem, device, config):
    """A launch or two a layer; for weights one each."""
    return {OPS[0]: forward_launches, OPS[1]: data_launches, OPS[2]: weights_launches}[problem.op](problem)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)
