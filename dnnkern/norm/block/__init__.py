"""A part of a warp, a warp, or one block per row: the row is read once, held in registers, and written.

Forward, 4 to 1024 threads hold up to eight 16-byte vectors each (`device.rows`), with a residual four. Rows that a warp holds have no
barrier; where they are short, a group of threads loads several before it looks at the first, since one alone would keep little memory
busy. Backward, blocks go through the rows, and their threads, up to 512 of them, keep the sums of up to 24 columns each in registers.
Longer rows than a block holds are `cluster`'s.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm
from . import backward as _backward, backward_config as _backward_config
from .forward import WARP, build, layout, make_config, max_vectors, refusal, seconds, vectors

LANES = (8, 16, 32, 64, 128, 256, 512, 1024)
FORWARD = (4, *LANES)
ROWS = 4  # of a group that are loaded at once, where they are short


def supports(problem):
    """Rows that a block's registers hold."""
    if (reason := refusal(problem)) is not None:
        return reason
    most = max(lanes * max_vectors(lanes, problem) for lanes in LANES)
    if vectors(problem) > most:
        return f"rows of {problem.form.length} elements are {vectors(problem)} vectors of {layout(problem)[1]} bytes; a block holds {most}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """The groups of threads that hold a row and of which not half are idle."""
    count, found = vectors(problem), []
    for lanes in FORWARD:
        each = ceil_div(count, lanes)
        if each <= max_vectors(lanes, problem) and (lanes == FORWARD[0] or count > lanes // 2):
            found.append(make_config(problem, lanes, each))
            if lanes <= WARP and 2 * each <= max_vectors(lanes, problem) and not layout(problem)[2]:
                found.append(make_config(problem, lanes, each, min(ROWS, max_vectors(lanes, problem) // each)))
    return found


def backward_supports(problem):
    """Rows whose columns' sums a block's registers hold."""
    if (reason := _backward_config.refusal(problem)) is not None:
        return reason
    count, most = _backward_config.vectors(problem), LANES[-2] * _backward_config.max_vectors(problem)
    _, vector_bytes = _backward_config.layout(problem)
    if count > most:
        return f"rows of {problem.form.length} elements are {count} vectors of {vector_bytes} bytes; a block holds {most}"
    return None


def backward_configs(problem, device):
    """As forward, each with several numbers of rows in flight."""
    count, most, found = _backward_config.vectors(problem), _backward_config.max_vectors(problem), []
    for lanes in LANES[:-1]:
        each = ceil_div(count, lanes)
        if each <= (most if lanes > WARP else min(4, most)) and (lanes == LANES[0] or count > lanes // 2):
            found += _backward_config.make_configs(problem, device, lanes, each)
    return found


ALGORITHMS = (*(Algorithm(op=op, name="block", supports=supports, workspace=workspace, estimate=seconds, build=build, configs=configs,
                          programs=True, bits=("loads", "stores")) for op in ("layer_norm_fwd", "rms_norm_fwd")),
              *(Algorithm(op=op, name="block", supports=backward_supports, workspace=_backward.workspace, estimate=_backward.seconds,
                          build=_backward.build, configs=backward_configs) for op in ("layer_norm_bwd", "rms_norm_bwd")))
