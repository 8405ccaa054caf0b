"""Reductions along contiguous elements: a part of a warp, a warp or a block per result.

Loads of 16 bytes, four in flight per thread, whatever the alignment of the rows; states are merged by shuffles, and in a block through
shared memory, so a short row needs no barrier. For dimensions that are contiguous in x and reduced, and many results: few of them leave
most multiprocessors idle (`two_stage`).
"""
from ..dispatch import Algorithm
from ._choice import rows_ways, seconds
from ._rows import rows_launch, rows_refusal
from ._stages import DEPENDENT


def supports(problem):
    """Counters of 32 bits."""
    return rows_refusal(problem)


def configs(problem, device):
    """So many threads that each has a flight of loads, half and twice as many."""
    return rows_ways(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def build(problem, device, config):
    """One launch."""
    return (rows_launch(problem, config, device.capability >= DEPENDENT),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, configs=configs, workspace=workspace, estimate=seconds, build=build)
                   for op in ("reduce", "argreduce"))
