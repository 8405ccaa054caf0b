"""A product and a kernel a step: everything that does not wait for the states is one product over all steps.

    forward      sums = x W of all steps;  then a step:  states R;  cells: sums + products -> gates, states
    by data      a step back: cells: gates' gradients;  their product with R;  then dx = gates' gradients W, of all steps
    by weights   the transposed gates' gradients of all steps times inputs and states before; their sums for the biases

Products are the library's own (`engine.plan`), on tensor cores where dtype and device have them; between two kernels sums are in float32.
Sequences that are over keep their states: a step's product has a row for each sequence, whatever its length. What lies after the end of
a sequence goes through the forward product like any input, and nobody reads what comes of it; for the weights, where it would be
multiplied by zeros, it is left out of a copy.

Two launches per step, each a few microseconds: with few sequences or small states that is all the time it takes. They are captured once and
replayed as a graph (`host.graphs`), or the host would take longer than the device.
"""
from ...dispatch import Algorithm
from ...engine.plan import planned
from .._plan import least_step_seconds, too_many
from .._problem import OPS
from .backward import data_plan
from .forward import forward_plan
from .weights import configs_of, weights_plan

_PLANS = dict(zip(OPS, (forward_plan, data_plan, weights_plan)))


def supports(problem):
    """What 32-bit integers can count."""
    return too_many(problem)


def _plan(problem, device, config):
    return planned(_PLANS[problem.op], problem, device, config)


def workspace(problem, device, config):
    """Sums of all steps, states, products of a step, and the products' own."""
    return _plan(problem, device, config).bytes


def estimate(problem, device, config):
    """The sum of all launches' estimates."""
    return _plan(problem, device, config).cost


def bound(problem, device):
    """All steps, one after the other."""
    return 0.0 if problem.op == OPS[2] else problem.spec.num_layers * problem.steps * least_step_seconds(problem, device)


def build(problem, device, config):
    """Two launches per step and layer, and those of products over all steps."""
    return _plan(problem, device, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="step", supports=supports, workspace=workspace, estimate=estimate, build=build, bound=bound,
                             configs=configs_of if op == OPS[2] else None) for op in OPS)
