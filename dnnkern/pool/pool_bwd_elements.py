"""A patch of up to 2x2 pixels of one channel per thread, neighbours along the width: the kernel of `channels` (pool_bwd_channels.py) with
one channel.

Arbitrary strides, windows and layout. Where channels come first, the loads of a warp are contiguous, and so are its stores.
"""
from ..dispatch import Algorithm
from ._chunks import numbers_refusal
from .pool_bwd_channels import build, dilated_refusal, patches, seconds


def supports(problem):
    """Sizes that fit 32-bit indices; averages without dilation."""
    return dilated_refusal(problem) or numbers_refusal(problem, problem.x.size)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Patches of one pixel, of two, and of four."""
    return patches(problem, 1, True)


def estimate(problem, device, config):
    """A load of a warp meets a line for each 128 bytes between its first element and its last."""
    return seconds(problem, config, max(4, min(128, abs(problem.y_strides[-1]) * problem.x.itemsize)), device)


ALGORITHMS = tuple(Algorithm(op=op, name="elements", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_bwd", "avg_pool_bwd"))
