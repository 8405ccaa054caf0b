"""What Hopper's convolutions share of an image that a program makes, see `engine.prologues`."""
from ..engine.programs import Steps


def prologue_refusal(problem):
    """Why an image cannot be made of what lies in shared memory, channel by channel, or None."""
    if problem.prologue_a is None:
        return None
    program = problem.prologue_a.program
    if problem.dtype not in ("float16", "bfloat16") or problem.x.itemsize > 2:
        return f"an image of {problem.x.dtype} of which a prologue makes {problem.dtype}; expected at most 16 bits, and 16"
    if problem.groups > 1:
        return f"a prologue, and {problem.groups} groups"
    others = [access for _, access in program.operands if access not in ("scalar", "value", "column")]
    return f"a prologue with operands by {', '.join(others)}; expected channels alone" if others else None


def making_of_image(problem):
    """The `Making` of the image, or None."""
    if problem.prologue_a is None:
        return None
    from ..engine.prologues import making_by
    return making_by(problem, "a", [Steps(0, strides[1]) for strides in problem.prologue_strides])
