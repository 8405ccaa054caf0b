"""A patch of up to 2x2 pixels of one channel a thread, neighbours along the width: the gradients of `channels` with one channel.

Whatever the strides, the windows and the layout. Where channels come first, the loads of a warp lie side by side, and so do its stores.
"""
from ..dispatch import Algorithm
from ._chunks import numbers_refusal
from .pool_bwd_channels import build, dilated_refusal, patches, seconds


def supports(problem):
    """What 32 bits can count; averages without dilation."""
    return dilated_refusal(problem) or numbers_refusal(problem, problem.x.size)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Patches of one pixel, of two, and of four."""
    return patches(problem, 1, True)


def estimate(problem, device, config):
    """A load of a warp meets a line for each 128 bytes between its first element and its last."""
    return seconds(problem, config, max(4, min(128, abs(problem.y_strides[4]) * problem.x.itemsize)), device)


ALGORITHMS = tuple(Algorithm(op=op, name="elements", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_bwd", "avg_pool_bwd"))
