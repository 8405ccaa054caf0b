"""`flash_wgmma` for rows that TMA cannot read: heads of 53 or 212 elements, operands with arbitrary strides, masks of 1000 keys.

    q, k, v, the mask: those with such rows -> copies in the workspace, 16 bytes, or multiples, from row to row -> `flash_wgmma`

The copies are read and written once, at memory's rate; `flash_mma`, which loads such rows element by element, loads keys and values again
for each tile of queries. It wins from a few tiles of queries on, and loses where all rows are short: a launch for each copy.
"""
from ...dispatch import Algorithm, Note
from .._padded import begin_of_copies, copied_bytes, copy_seconds, padded, refusal, slowed, with_copies
from . import flash_wgmma as base


def supports(problem):
    """16-bit elements, and some rows that are no multiple of 16 bytes apart."""
    return refusal(problem, base)


def configs(problem, device):
    """Those of `flash_wgmma` for the copies."""
    return base.configs(padded(problem), device)


def workspace(problem, device, config):
    """What `flash_wgmma` needs, and the copies."""
    return begin_of_copies(base.workspace(padded(problem), device, config)) + copied_bytes(problem)


def estimate(problem, device, config):
    """The copies, and `flash_wgmma`."""
    cost = base.estimate(padded(problem), device, config)
    return copy_seconds(problem, device) + slowed(cost)


def build(problem, device, config):
    """The copies' launches, and those of `flash_wgmma`."""
    p = padded(problem)
    return with_copies(problem, device, begin_of_copies(base.workspace(p, device, config)), base.build(p, device, config))


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_wgmma_padded", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)
