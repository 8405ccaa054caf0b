"""A block a sequence and direction, a thread a hidden unit: straight from the definition, every option.

Blocks share nothing, so that a sequence's steps follow each other by barriers alone, and each sum has one order. States pass from step to
step as they are returned, rounded to their type; cell states, and gradients on their way back, as they are summed. Backward the gradients
before the gates' functions take the gates' place in the reserve; those of inputs and weights, which need all steps, are launches of their
own, a thread an element.
"""
from ...dispatch import Algorithm
from ...transform._estimate import LAUNCH, divisions_seconds, moved_seconds
from .._problem import OPS
from .backward import data_launches, data_scratch, weights_launches
from .forward import THREADS, forward_launches, forward_scratch

STEP = 2e-6  # seconds of a step's barriers and latencies, a guess


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """States and gradients that are not rounded, results between layers."""
    if problem.op == OPS[0]:
        return forward_scratch(problem)[-1]
    return data_scratch(problem)[-1] if problem.op == OPS[1] else 0


def estimate(problem, device, config):
    """Each product is two loads of its own."""
    p, spec = problem, problem.spec
    blocks = p.samples * spec.directions
    busy = min(1.0, blocks * THREADS / (2048 * device.sms)) if p.op != OPS[2] else 1.0
    issue = divisions_seconds(p.flops / 2, 8, device) / max(busy, 1e-3)
    chain = 0 if p.op == OPS[2] else spec.num_layers * p.steps * STEP
    return LAUNCH * 2 * spec.num_layers + chain + max(issue, moved_seconds(p.bytes, device))


def build(problem, device, config):
    """A launch or two a layer; for weights one each."""
    return {OPS[0]: forward_launches, OPS[1]: data_launches, OPS[2]: weights_launches}[problem.op](problem)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in OPS)
