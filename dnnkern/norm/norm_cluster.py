"""Rows beyond a block's registers, still read once: the blocks of a cluster hold one together, or one block has a part in shared memory.

Forward, two to eight blocks have up to eight 16-byte vectors per thread: 128 Ki float32 or 256 Ki 16-bit elements, with a residual half of
that. After its own reduction each block writes its mean, squared distances and count into the shared memory of all others, a barrier of the
cluster lets them read, and each merges the parts in the order of the blocks: once in a block's life. A single block holds 64 Ki float32 as
well, where shared memory has room: its threads bring further vectors there by cp.async and read them back one at a time. Backward, clusters
of up to sixteen go through the rows as `block`'s blocks do; every step they send each other two sums a row.
"""
from ..device import ring
from ..device.index import ceil_div
from ..dispatch import Algorithm
from .block import backward as _backward, backward_config as _backward_config
from .block.forward import build, layout, make_config, max_vectors, refusal, seconds, vectors

LANES, CLUSTERS = (256, 512), (2, 4, 8)
SHARED = (64, 128, 256, 512)  # threads with eight vectors in registers and others in shared memory
MOST_SHARED = 24              # vectors of a thread there
RESERVED = 8192               # bytes of shared memory for everything else


def supports(problem):
    """float32 sums of rows that eight blocks hold."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    if (reason := refusal(problem)) is not None:
        return reason
    most = max(lanes * CLUSTERS[-1] * max_vectors(lanes, problem) for lanes in LANES)
    if vectors(problem) > most:
        return (f"rows of {problem.form.length} elements are {vectors(problem)} vectors of {layout(problem)[1]} bytes; a cluster holds "
                f"{most}")
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Clusters of which not half is idle, and single blocks with shared memory."""
    count, found = vectors(problem), []
    for lanes in LANES:
        for blocks in CLUSTERS:
            each = ceil_div(count, lanes * blocks)
            if each <= max_vectors(lanes, problem) and (count > lanes * blocks // 2 or (lanes, blocks) == (LANES[0], CLUSTERS[0])):
                found.append(make_config(problem, lanes, each, cluster=blocks))
    for lanes in SHARED:
        registers = max_vectors(lanes, problem)
        shared = ceil_div(count, lanes) - registers
        room = min(device.shared_per_block - RESERVED, MOST_SHARED * 16 * lanes)
        if problem.residual is None and layout(problem)[1] == 16 and 0 < shared * lanes * 16 <= room:
            found.append(make_config(problem, lanes, registers, shared=shared, shared_per_sm=device.shared_per_sm))
    return found


def backward_supports(problem):
    """float32 sums of rows whose columns' sums eight blocks hold."""
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    if (reason := _backward_config.refusal(problem)) is not None:
        return reason
    count, most = _backward_config.vectors(problem), LANES[-1] * ring.CLUSTERS[-1] * _backward_config.max_vectors(problem)
    _, vector_bytes = _backward_config.layout(problem)
    if count > most:
        return f"rows of {problem.form.length} elements are {count} vectors of {vector_bytes} bytes; a cluster holds {most}"
    return None


def backward_configs(problem, device):
    """Clusters of which not half is idle, each with several numbers of rows in flight."""
    count, most, found = _backward_config.vectors(problem), _backward_config.max_vectors(problem), []
    for lanes in LANES:
        for blocks in ring.cluster_sizes(device):
            each = ceil_div(count, lanes * blocks)
            if each <= most and (count > lanes * blocks // 2 or (lanes, blocks) == (LANES[0], ring.CLUSTERS[0])):
                found += _backward_config.make_configs(problem, device, lanes, each, blocks)
    return found


ALGORITHMS = (*(Algorithm(op=op, name="cluster", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                          arch="sm_90+", programs=True, bits=("loads", "stores")) for op in ("layer_norm_fwd", "rms_norm_fwd")),
              *(Algorithm(op=op, name="cluster", supports=backward_supports, workspace=_backward.workspace, estimate=_backward.seconds,
                          build=_backward.build, configs=backward_configs, arch="sm_90+") for op in ("layer_norm_bwd", "rms_norm_bwd")))
