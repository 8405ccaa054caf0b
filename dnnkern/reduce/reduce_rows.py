"""Threads side by side along the reduced elements: a part of a warp, a warp or a block a result.

Loads of 16 bytes, four under way in a thread, whatever rows begin and end at; states meet by shuffles, and in a block through shared
memory, so a short row takes no barrier. It is for dimensions that are contiguous in x and reduced, and results in plenty: where there are
only a few, most multiprocessors have nothing to do (`two_stage`).
"""
from ..dispatch import Algorithm
from ._choice import rows_ways, seconds
from ._rows import rows_launch, rows_refusal


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
    return (rows_launch(problem, config),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, configs=configs, workspace=workspace, estimate=seconds, build=build)
                   for op in ("reduce", "argreduce"))
