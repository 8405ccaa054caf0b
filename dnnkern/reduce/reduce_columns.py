"""Reductions across contiguous elements: the columns of a matrix, each reduced.

Neighbouring threads read neighbouring groups of columns, 16 bytes each, and walk down the rows with four loads in flight; nothing is
exchanged before the end. For leading dimensions that are reduced. Few columns leave most multiprocessors idle (`two_stage`).
"""
from ..dispatch import Algorithm
from ._choice import columns_ways, seconds
from ._columns import columns_launch, columns_refusal
from ._stages import DEPENDENT


def supports(problem):
    """Kept elements that are contiguous in x."""
    return columns_refusal(problem)


def configs(problem, device):
    """Wide blocks, and taller ones."""
    return columns_ways(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def build(problem, device, config):
    """One launch."""
    return (columns_launch(problem, config, device.capability >= DEPENDENT),)


ALGORITHMS = tuple(Algorithm(op=op, name="columns", supports=supports, configs=configs, workspace=workspace, estimate=seconds, build=build)
                   for op in ("reduce", "argreduce"))
