"""One launch a layer: recurrent weights stay in the registers of all multiprocessors, steps meet in global memory.

What waits for nothing, the input's products of all steps, is one matrix product before. Then a cooperative launch goes through all steps
(`_persistent`): a block has some units and some sequences, and a step costs a barrier of the blocks that share its sequences, a copy of
their states from the L2 and its part of the product, instead of two launches and all of R from memory.

It needs all blocks resident at once, one a multiprocessor, and all of R in their registers: `supports` says how much there is.
"""

from ..dispatch import Algorithm
from ..matmul._plan import planned
from ._persistent_plan import ALL, PLANS, configs_of, refusal
from ._persistent_plan import fits as fits_at_once


def supports(problem):
    """No projection; whole copies of 16 bytes."""
    return refusal(problem)


def fits(problem, device):
    """All blocks at once."""
    return fits_at_once(problem, device, ALL)


def configs(problem, device):
    """Units and sequences of a block, most promising first."""
    return configs_of(problem, device, ALL)


def workspace(problem, device, config):
    """The input's sums of all steps, two sets of states, counters."""
    return planned(PLANS[problem.op], problem, device, config).bytes


def estimate(problem, device, config):
    """The product before, and the chain of steps."""
    return planned(PLANS[problem.op], problem, device, config).seconds


def build(problem, device, config):
    """A few launches a layer."""
    return planned(PLANS[problem.op], problem, device, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="persistent", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, fits=fits, arch="sm_80+") for op in PLANS)
