"""What functions of single elements, and programs of them, cost, in instructions."""
import functools

from ..device.pointwise import WITH_SLOPE
from .constants import constants
from .cost import Cost, issue_seconds

COST, PROGRAM, EPILOGUE = constants("act/elements"), constants("fused/program"), constants("engine/program_epilogue")

OF_MODES = {**dict.fromkeys(("identity", "relu", "leaky_relu", "prelu", "hard_sigmoid", "hard_swish", "add", "sub", "mul", "max", "min",
                             "neg", "abs", "ceil", "floor", "add_square", "binary_select", "scale", "gen_index", WITH_SLOPE),
                            "light"),
            **dict.fromkeys(("sigmoid", "swish", "exp", "sqrt", "rsqrt", "reciprocal", "div", "elu", "selu", "celu", "softsign"),
                            "medium"),
            **dict.fromkeys(("gelu", "gelu_tanh"), "heavy")}
"""Function -> name of its instructions of an element, from load to store; "other" if it is not here. Of gelu by either formula."""


def mode_instructions(mode):
    """Of an element of an activation, from load to store."""
    return getattr(COST, OF_MODES.get(mode, "other"))


def instructions_of(function):
    """Of an element, from load to store."""
    if function.op == "glu_bwd":
        return 2 * mode_instructions(function.mode)
    if function.is_condition:
        return COST.light
    return mode_instructions(function.mode)


@functools.cache
def program_instructions(program):
    """Of an element: its functions, conversions of what is loaded, and of what is rounded on the way."""
    moved = len(program.operands) + sum(step.round_to is not None for step in program.steps)
    return PROGRAM.value * moved + steps_instructions(program)


def steps_instructions(program):
    """Of an element, the program's functions alone."""
    return sum(instructions_of(step.function) - PROGRAM.apart for step in program.steps)


def epilogue_seconds(problem, warps, device, shown=1.0):
    """What the functions of a problem's program take at the end of tiles of so many warps, which hide little of what each waits for;
    `shown`: the share of it that nothing hides. Programs that reduce rows are counted by `row_tiles.row_seconds`."""
    program = problem.program
    if program is None or program.row_steps:
        return Cost()
    instructions = program_instructions(program)
    instructions = instructions * EPILOGUE.reduced if program.reductions else max(0, instructions - EPILOGUE.free)
    return Cost(issue=shown * EPILOGUE.hiding / warps * issue_seconds(problem.y.size, instructions, device))
