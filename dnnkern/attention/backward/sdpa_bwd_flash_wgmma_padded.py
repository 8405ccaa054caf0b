"""`flash_wgmma` and `flash_wgmma_roles` for rows that TMA cannot read: heads of 110 or 238 elements, operands with arbitrary strides, masks
of 1000 keys.

    q, k, v, do, the mask: those with such rows -> copies in the workspace, 16 bytes, or multiples, from row to row -> `flash_wgmma`, or
                                                   that with two roles

The copies are read and written once; `flash_mma`, which loads such rows element by element, loads them again for each tile, and heads of
more than 128 elements are `flash_simt`'s, on CUDA cores. Gradients are written as they are, by pairs or by elements.
"""
from dataclasses import dataclass

from ...dispatch import Algorithm, Note
from .._padded import begin_of_copies, copied_bytes, copy_seconds, padded, refusal, slowed, with_copies
from . import flash_wgmma, flash_wgmma_roles


@dataclass(frozen=True)
class Config:
    """Whether warpgroups have two roles, and that algorithm's configuration."""
    roles: bool
    inner: object

    @property
    def base(self):
        """The algorithm."""
        return flash_wgmma_roles if self.roles else flash_wgmma

    def __str__(self):
        return f"{self.inner}{' in two roles' * self.roles}"


def supports(problem):
    """16-bit elements, and some rows that are no multiple of 16 bytes apart."""
    return refusal(problem, flash_wgmma)


def configs(problem, device):
    """Those of `flash_wgmma` for the copies, and of `flash_wgmma_roles`, if it takes them; it adds by an instruction that the processor has
    no form of."""
    p = padded(problem)
    found = [Config(False, c) for c in flash_wgmma.configs(p, device)]
    if not device.is_processor and flash_wgmma_roles.supports(p) is None:
        found += [Config(True, c) for c in flash_wgmma_roles.configs(p, device)]
    return found


def begin_of(problem, device, config):
    """Where the copies begin, after what the algorithm needs."""
    return begin_of_copies(config.base.workspace(problem, device, config.inner))


def workspace(problem, device, config):
    """What the algorithm needs, and the copies."""
    return begin_of(padded(problem), device, config) + copied_bytes(problem)


def estimate(problem, device, config):
    """The copies, and the algorithm."""
    cost = config.base.estimate(padded(problem), device, config.inner)
    return copy_seconds(problem, device) + slowed(cost)


def build(problem, device, config):
    """The copies' launches, and the algorithm's."""
    p = padded(problem)
    return with_copies(problem, device, begin_of(p, device, config), config.base.build(p, device, config.inner))


ALGORITHM = Algorithm(op="sdpa_bwd", name="flash_wgmma_padded", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a", programs=True)
