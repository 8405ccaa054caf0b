"""One kernel a step: the recurrent product and the cells together.

It is `persistent`'s kernel with one step of a layer for each launch: weights come into registers anew, mostly from the L2, states and cell
states pass through memory, and the end of a launch is the barrier. So any number of blocks will do, and R may be larger than all
registers. Against `step` it spares a launch a step, and writing and reading its sums.
"""
from ..dispatch import Algorithm
from ..matmul._plan import planned
from ._persistent_plan import PLANS, SINGLE, configs_of, refusal
from ._persistent_plan import fits as fits_at_once


def supports(problem):
    """No projection; whole copies of 16 bytes."""
    return refusal(problem)


def fits(problem, device):
    """Some rows of R and a line in a block."""
    return fits_at_once(problem, device, SINGLE)


def configs(problem, device):
    """Units and sequences of a block, most promising first."""
    return configs_of(problem, device, SINGLE)


def workspace(problem, device, config):
    """The input's sums of all steps, two sets of states."""
    return planned(PLANS[problem.op], problem, device, config).bytes


def estimate(problem, device, config):
    """The products over all steps, and a launch a step."""
    return planned(PLANS[problem.op], problem, device, config).seconds


def build(problem, device, config):
    """A launch a step and layer, and those of products over all steps."""
    return planned(PLANS[problem.op], problem, device, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="fused_step", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, fits=fits, arch="sm_80+") for op in PLANS)
