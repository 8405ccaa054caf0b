"""Several short dimensions, such as patches of pixels or permutations of six: a box of them through shared memory.

Where neighbours in x and neighbours in y are few along a single dimension, tiles of two dimensions are mostly empty, and single elements
use an eighth of a sector. A box of more dimensions has long runs of memory on both sides (`_staged`)::

    x [n][c][h][i][w][j]     a run: w and j, a row of pixels            blocks of i x j pixels to channels
    y [n][i][j][c][h][w]     a run: c, h and w, all of a channel's
    box [j][c][h][w]         as in y in shared memory; vectors along j come from x and are scattered

It needs extents with divisors, since all boxes are alike. `tiled` and `planes` are better where two dimensions are long.
"""
from ...dispatch import Algorithm
from ...engine.cost import LAUNCH
from ...host.memo import remembered
from .._problem import MOVES
from ._staged import RUNS, plan, staged_bound, staged_launch, staged_refusal, staged_seconds


def supports(problem):
    """Two dimensions at least, and neighbours along different ones."""
    return staged_refusal(problem.units)


def workspace(problem, device, config):
    """None."""
    return 0


@remembered
def _plans(problem):
    form = problem.units
    return {p.config: p for p in (plan(form, problem.alignments(form), wanted) for wanted in RUNS)}


def configs(problem, device):
    """Boxes with long runs, and smaller ones."""
    return list(_plans(problem))


def estimate(problem, device, config):
    """As `staged_seconds`."""
    return LAUNCH + staged_seconds(_plans(problem)[config], (problem.read_bytes, problem.y.nbytes), device)


def bound(problem, device):
    """The bytes."""
    return LAUNCH + staged_bound(problem.bytes, device)


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    return (staged_launch(_plans(problem)[config], problem.units, device, source, target),)


ALGORITHMS = tuple(Algorithm(op=op, name="staged", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                             bound=bound) for op in MOVES)
