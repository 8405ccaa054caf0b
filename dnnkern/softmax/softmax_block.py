"""A block a row: the row is read once into registers, and one barrier stands between its loads and its stores.

64 to 1024 threads hold up to eight units of 16 bytes each (backward, where there are two arrays, four): 16 Ki float32 or 32 Ki halves,
backward half of that. While one block of a multiprocessor waits others load, so that
many small blocks with many units a thread are better than a few large ones. Short rows are `warp`'s, longer ones `cluster`'s.
"""
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ._rows import build, make_config, most_units, refusal, seconds, units

LANES = (64, 128, 256, 512, 1024)


def supports(problem):
    """Rows that a block's registers hold."""
    most = max(lanes * most_units(lanes, problem) for lanes in LANES)
    if units(problem) > most:
        return f"rows of {problem.form.length} elements are {units(problem)} units of {problem.unit[0]} bytes; a block holds {most}"
    return refusal(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """The groups of threads that hold a row and of which not half are idle."""
    count = units(problem)
    return [make_config(problem, device, lanes, ceil_div(count, lanes)) for lanes in LANES
            if ceil_div(count, lanes) <= most_units(lanes, problem) and (lanes == LANES[0] or count > lanes // 2)]


ALGORITHMS = tuple(Algorithm(op=op, name="block", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs)
                   for op in ("softmax_fwd", "softmax_bwd"))
