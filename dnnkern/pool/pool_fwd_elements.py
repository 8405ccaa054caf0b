"""One thread an element of y, neighbours along the width: `channels` with one channel.

Whatever the strides, the windows and the layout: where channels come first and rows are contiguous, a tap's loads of a warp lie side by
side, or as far apart as the window steps, in lines that the L1 has after the first of them. Numbers are of 32 bits and nothing is divided;
up to nine loads are under way at once. `rows` is faster where windows are ordinary and rows are aligned.
"""
from ..dispatch import Algorithm
from ._chunks import numbers_refusal
from .pool_fwd_channels import launches, seconds


def supports(problem):
    """What 32 bits can count."""
    return numbers_refusal(problem, problem.y.size)


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A load of a warp meets a line for each 128 bytes between its first element and its last."""
    spread = min(128, abs(problem.x_strides[4]) * problem.steps[2] * problem.x.itemsize)
    return seconds(problem, 1, max(4, spread), device)


def build(problem, device, config):
    """One launch."""
    return launches(problem, 1, True)


ALGORITHMS = tuple(Algorithm(op=op, name="elements", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
