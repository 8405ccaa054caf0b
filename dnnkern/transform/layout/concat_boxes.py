"""Each array into its box of the result, by the best of the copies that `transpose` and `strided_slice` have: a launch per array.

Where the parts of the result are aligned, that is `copy`; where they are not, as after an array of odd rows, `rows`, whose stores of 16
bytes are aligned whatever x is; an array that lies transposed goes through `tiled`. Many small arrays pay a launch each.
"""
from ...dispatch import Algorithm
from ...engine.moves import move_launches, move_seconds


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """That of the copies, one after the other."""
    return sum(move_seconds(box, device) for _, box in problem.boxes)


def build(problem, device, config):
    """A launch per array."""
    return tuple(launch for name, box in problem.boxes for launch in move_launches(box, device, source=(name, 0), target=("y", 0)))


ALGORITHM = Algorithm(op="concat", name="boxes", supports=supports, workspace=workspace, estimate=estimate, build=build)
