"""A warp, or a part of one, a row: several rows a warp, nothing but shuffles between load and store.

1 to 32 lanes hold a row in registers, up to eight units of 16 bytes each: 1024 float32 or 2048 halves, backward half of that. Neighbouring
groups have neighbouring rows, so that a warp reads a run of memory even where rows are short. Long rows are its limit: more units a lane
mean fewer warps in a multiprocessor, and there `block` wins.
"""
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ._rows import build, make_config, most_units, refusal, seconds, units

LANES = 32


def supports(problem):
    """Rows that 32 lanes hold."""
    most = LANES * most_units(LANES, problem)
    if units(problem) > most:
        return f"rows of {problem.form.length} elements are {units(problem)} units of {problem.unit[0]} bytes; a warp holds {most}"
    return refusal(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """From one unit a lane to as many as there may be; four lanes at least deal out heads and tails."""
    count, least, found = units(problem), 4 if problem.unit[1] else 1, []
    for registers in (1, 2, 4, 8):
        lanes = min(LANES, max(least, 1 << (ceil_div(count, registers) - 1).bit_length()))
        if ceil_div(count, lanes) <= min(registers, most_units(LANES, problem)):
            found.append(make_config(problem, device, lanes, ceil_div(count, lanes)))
    return list(dict.fromkeys(found))


ALGORITHMS = tuple(Algorithm(op=op, name="warp", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs)
                   for op in ("softmax_fwd", "softmax_bwd"))
