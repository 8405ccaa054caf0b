"""One launch a layer: recurrent weights stay in the registers of a cluster, which has some sequences to itself.

As `persistent`, whose kernel it is, but the blocks that share sequences are a cluster, and meet at its barrier instead of in global memory:
a fraction of the time. Clusters share nothing, so that any number of sequences is solved, in as many waves as it takes; what limits it is
the size of the state, all of whose matrix a cluster of 16 blocks must hold.
"""
from ..dispatch import Algorithm
from ..matmul._plan import planned
from ._persistent_plan import CLUSTERS, PLANS, configs_of, refusal
from ._persistent_plan import fits as fits_at_once


def supports(problem):
    """No projection; whole copies of 16 bytes."""
    return refusal(problem)


def fits(problem, device):
    """A direction's weights in the registers of a cluster."""
    return fits_at_once(problem, device, CLUSTERS)


def configs(problem, device):
    """Units and sequences of a block, most promising first."""
    return configs_of(problem, device, CLUSTERS)


def workspace(problem, device, config):
    """The input's sums of all steps, two sets of states."""
    return planned(PLANS[problem.op], problem, device, config).bytes


def estimate(problem, device, config):
    """The product before, and the chain of steps."""
    return planned(PLANS[problem.op], problem, device, config).seconds


def build(problem, device, config):
    """A few launches a layer."""
    return planned(PLANS[problem.op], problem, device, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="cluster", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, fits=fits, arch="sm_90+") for op in PLANS)
