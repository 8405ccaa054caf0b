"""Rows beyond a block's registers, still read once: spread over the blocks of a cluster, or partly in shared memory.

Two to eight blocks hold a row in their registers, 128 Ki float32 or 256 Ki halves, backward half of that. After its own reduction each
block writes its part into the shared memory of all others, a barrier of the cluster lets them read, and each merges the parts in the order
of the blocks: once a row. Forward, a single block can hold 64 Ki float32 as well, where shared memory has room: its threads bring further
units there by cp.async and read them back one at a time.
"""
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ._rows import build, make_config, most_units, refusal, seconds, units

LANES, CLUSTERS = (128, 256, 512), (2, 4, 8)
SHARED = (*((lanes, registers) for lanes in (64, 128, 256, 512) for registers in (8, 2)), (1024, 4))
"""Threads, and units of each in registers where others are in shared memory: many, or few for the sake of more threads."""
MOST_SHARED = 24                # units of a thread there
RESERVED = 8192                 # bytes of shared memory for everything else


def supports(problem):
    """float32 sums of rows that eight blocks hold."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    most = max(lanes * CLUSTERS[-1] * most_units(lanes, problem) for lanes in LANES)
    if units(problem) > most:
        return f"rows of {problem.form.length} elements are {units(problem)} units of {problem.unit[0]} bytes; a cluster holds {most}"
    return refusal(problem)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Clusters of which not half is idle, and single blocks with shared memory."""
    count, found = units(problem), []
    for lanes in LANES:
        for blocks in CLUSTERS:
            each = ceil_div(count, lanes * blocks)
            if each <= most_units(lanes, problem) and (count > lanes * blocks // 2 or (lanes, blocks) == (LANES[0], CLUSTERS[0])):
                found.append(make_config(problem, device, lanes, each, cluster=blocks))
    for lanes, registers in SHARED:
        shared = ceil_div(count, lanes) - registers
        room = min(device.shared_per_block - RESERVED, MOST_SHARED * lanes * 16)
        if len(problem.arrays) == 2 and problem.unit[0] == 16 and 0 < shared * lanes * 16 <= room:
            found.append(make_config(problem, device, lanes, registers, shared))
    return found


ALGORITHMS = tuple(Algorithm(op=op, name="cluster", supports=supports, workspace=workspace, estimate=seconds, build=build,
                             configs=configs, arch="sm_90+") for op in ("softmax_fwd", "softmax_bwd"))
