"""One warp, or a part of one, per row: several rows per warp, nothing but shuffles between load and store.

1 to 32 lanes hold a row in registers, up to eight 16-byte vectors each: 1024 float32 or 2048 16-bit elements, backward half of that.
Neighbouring groups have neighbouring rows, so that a warp reads contiguous memory even where rows are short. Loses on long rows: more
vectors per lane mean fewer warps in a multiprocessor, and there `block` wins.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm
from ._config import make_config, max_vectors, refusal, row_vectors, seconds
from ._kernel import build

LANES = 32


def supports(problem):
    """Rows that 32 lanes hold."""
    return refusal(problem, LANES * max_vectors(LANES, problem), "warp")


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """From one vector per lane to as many as there may be; four lanes at least share the unaligned edges."""
    count, least, found = row_vectors(problem), 4 if problem.vector[1] else 1, []
    for registers in (1, 2, 4, 8):
        lanes = min(LANES, max(least, 1 << (ceil_div(count, registers) - 1).bit_length()))
        if ceil_div(count, lanes) <= min(registers, max_vectors(LANES, problem)):
            found.append(make_config(problem, device, lanes, ceil_div(count, lanes)))
    return list(dict.fromkeys(found))


ALGORITHMS = tuple(Algorithm(op=op, name="warp", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             programs=op == "softmax_fwd") for op in ("softmax_fwd", "softmax_bwd"))
