"""One thread per output, neighbours along the width: the kernel of `channels` (pool_fwd_channels.py) with one channel per thread.

Arbitrary strides, windows and layout. Where channels come first and rows are contiguous, a warp's loads of a tap are contiguous, or as far
apart as the stride of the window, in lines that the L1 has after the first of them. Indices have 32 bits, without divisions; up to nine
loads are in flight. `rows` is faster where windows have one size and rows are aligned.
"""
from ..dispatch import Algorithm
from ..engine.cost import Cost
from ._chunks import numbers_refusal
from .pool_fwd_channels import COST, launches, seconds


def supports(problem):
    """Sizes that fit 32-bit indices."""
    return numbers_refusal(problem, problem.y.size)


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A load of a warp meets a line for each 128 bytes between its first element and its last."""
    spread = min(128, abs(problem.x_strides[-1]) * problem.steps[2] * problem.x.itemsize)
    return Cost(waves=COST.elements) + seconds(problem, 1, max(4, spread), device)


def build(problem, device, config):
    """One launch."""
    return launches(problem, 1, True, device)


ALGORITHMS = tuple(Algorithm(op=op, name="elements", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             programs=True)
                   for op in ("max_pool_fwd", "avg_pool_fwd"))
