"""Rows beyond a block's registers, still read once: spread over the blocks of a cluster, or partly in shared memory.

Two to eight blocks hold a row in their registers, 128 Ki float32 or 256 Ki 16-bit elements, backward half of that. Each block reduces its
part and writes the result into the shared memory of all others; after a barrier of the cluster each block merges the parts in the order of
the blocks, once per row. Forward, a single block can hold 64 Ki float32 as well: the vectors beyond its registers go to shared memory by
cp.async and are read back one at a time. So can the blocks of a cluster, several of which then are on a multiprocessor where one would be
alone: while one waits or stores, others load.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm
from ._config import make_config, max_vectors, refusal, row_vectors, seconds
from ._kernel import build

LANES, CLUSTERS = (128, 256, 512), (2, 4, 8)
OVERFLOWS = (*((lanes, registers) for lanes in (64, 128, 256, 512) for registers in (8, 2)), (1024, 4))
"""Threads, and vectors of each in registers where others are in shared memory: many, or few for the sake of more threads."""
MAX_SHARED_VECTORS = 24  # of a thread
PARTS_BYTES = 128 * 1024  # of rows that blocks of a cluster hold partly in shared memory; shorter ones fit several blocks whole
RESERVED_BYTES = 8192    # shared memory for everything else


def supports(problem):
    """float32 sums of rows that eight blocks hold."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    return refusal(problem, max(lanes * CLUSTERS[-1] * max_vectors(lanes, problem) for lanes in LANES), "cluster")


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Clusters of which at least half has work, and single blocks with shared memory."""
    count, found = row_vectors(problem), []
    for lanes in LANES:
        for blocks in CLUSTERS:
            each = ceil_div(count, lanes * blocks)
            if each <= max_vectors(lanes, problem) and (count > lanes * blocks // 2 or (lanes, blocks) == (LANES[0], CLUSTERS[0])):
                found.append(make_config(problem, device, lanes, each, cluster=blocks))
    for lanes, registers in OVERFLOWS:
        for blocks in (1, *CLUSTERS[:-1]):
            shared = ceil_div(count, lanes * blocks) - registers
            room = min(device.shared_per_block - RESERVED_BYTES, MAX_SHARED_VECTORS * lanes * 16)
            if len(problem.arrays) == 2 and problem.vector[0] == 16 and 0 < shared * lanes * 16 <= room:
                found.append(make_config(problem, device, lanes, registers, shared, blocks))
    return [c for c in found if not (c.shared and c.cluster > 1 and (c.blocks < 2 or c.lanes < LANES[0] or 16 * count < PARTS_BYTES))]


ALGORITHMS = tuple(Algorithm(op=op, name="cluster", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                             arch="sm_90+", programs=op == "softmax_fwd") for op in ("softmax_fwd", "softmax_bwd"))
