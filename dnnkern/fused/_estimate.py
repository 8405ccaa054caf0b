"""What programs cost beside their bytes."""
import functools

from ..engine.constants import constants
from ..engine.functions import instructions_of

COST = constants("fused/program")


@functools.cache
def instructions(program):
    """Of an element: its functions, conversions of what is loaded, and of what is rounded on the way."""
    moved = len(program.operands) + sum(step.round_to is not None for step in program.steps)
    return COST.value * moved + sum(instructions_of(step.function) - COST.apart for step in program.steps)
