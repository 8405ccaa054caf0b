"""One thread per element, a launch per array: the plainest copies, each into its part of the result."""
from ...dispatch import Algorithm
from . import transpose_naive


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """That of the copies."""
    return sum(transpose_naive.estimate(box, device, None) for _, box in problem.boxes)


def build(problem, device, config):
    """A launch per array."""
    return tuple(launch for name, box in problem.boxes
                 for launch in transpose_naive.build(box, device, None, source=(name, 0), target=("y", 0)))


ALGORITHM = Algorithm(op="concat", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
