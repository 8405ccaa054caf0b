"""One block per row: the row is read once into registers, and one barrier separates its loads from its stores.

64 to 1024 threads hold up to eight 16-byte vectors each (backward, where there are two inputs, four): 16 Ki float32 or 32 Ki 16-bit
elements, backward half of that. While one block of a multiprocessor waits others load, so many small blocks with many vectors per thread
beat a few large ones. Short rows are better with `warp`, longer ones need `cluster`.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm
from ._config import make_config, max_vectors, refusal, row_vectors, seconds
from ._kernel import build

LANES = (64, 128, 256, 512, 1024)


def supports(problem):
    """Rows that a block's registers hold."""
    return refusal(problem, max(lanes * max_vectors(lanes, problem) for lanes in LANES), "block")


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Blocks of which at least half the threads have work."""
    count = row_vectors(problem)
    return [make_config(problem, device, lanes, ceil_div(count, lanes)) for lanes in LANES
            if ceil_div(count, lanes) <= max_vectors(lanes, problem) and (lanes == LANES[0] or count > lanes // 2)]


ALGORITHMS = tuple(Algorithm(op=op, name="block", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             programs=op == "softmax_fwd") for op in ("softmax_fwd", "softmax_bwd"))
