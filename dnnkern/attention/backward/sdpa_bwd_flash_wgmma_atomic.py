"""`flash_wgmma` without an order of what tiles of keys add to dq: none waits for another, and dq is not the same each time."""
import functools

from ...dispatch import Algorithm, Note
from .flash_wgmma import build, configs, estimate, supports, workspace

ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma_atomic", supports=supports, workspace=workspace,
                      configs=functools.partial(configs, ordered=False), estimate=estimate, build=build,
                      notes=Note.TENSOR_CORE | Note.NONDETERMINISTIC, arch="sm_90a", programs=True)
