"""Plans of operations that are several launches, matrix products among them: steps in order, and who has which part of the workspace.

An array has named dimensions, and becomes an operand of a product where some of them are one dimension in memory (`collapsed`).
"""
import functools

from ..matmul import MatmulProblem
from .cost import Cost, deferred
from .embed import Place, choices, cost, embedded, scratch_bytes

LINE = 256  # parts of the workspace begin at multiples of it


def collapsed(sizes, strides):
    """The stride of one dimension that steps through all of these, the last one fastest; None where there is none."""
    step = whole = None
    for size, stride in reversed([v for v in zip(sizes, strides) if v[0] != 1]):
        if step is None:
            step = stride
        elif stride != whole:
            return None
        whole = size * stride
    return 1 if step is None else step


def alignment_at(alignment, *offsets):
    """The largest power of two up to 16 that divides an alignment and all offsets in bytes."""
    found = alignment
    for offset in offsets:
        found = min(found, offset & -offset or 16)
    return min(found, 16)


class Plan:
    """Launches: steps are added in order, each with its predicted time; workspace is dealt out in whole lines.

    Parameters
    ----------
    device : Device
    math : str, optional
        `MatmulProblem`'s, of all products.
    rank : int
        Which of the products with the least estimates are taken: 0 for the best.
    """

    def __init__(self, device, math=None, rank=0):
        self.device, self.math, self.rank = device, math, rank
        self.workspace, self.seconds, self._costs, self._steps, self._scratch = 0, 0.0, [], [], 0

    def part(self, nbytes) -> Place:
        """A part of the workspace."""
        place = Place("workspace", self.workspace)
        self.workspace += -(-nbytes // LINE) * LINE
        return place

    @property
    def bytes(self):
        """Workspace with the scratch that products share, which is its end."""
        return self.workspace + self._scratch

    @property
    def cost(self):
        """The sum of all steps' predicted times."""
        return deferred(self.seconds, lambda: sum(self._costs, Cost()))

    def launches(self) -> tuple:
        """All of them, in order."""
        return tuple(launch for step in self._steps for launch in step())

    def add(self, more, step):
        """A step: its predicted time, and a function that gives its launches, called once all parts are dealt out."""
        self.seconds = float.__add__(self.seconds, more)
        self._costs.append(more)
        self._steps.append(step)

    def product(self, places, scalars=(), **operands):
        """A product; `operands` are `MatmulProblem`'s, `places` theirs. Returns what `add` takes, to add it again."""
        problem, device = MatmulProblem(math=self.math, **operands), self.device
        found = choices(problem, device, self.rank + 1)
        chosen = found[min(self.rank, len(found) - 1)]
        self._scratch = max(self._scratch, scratch_bytes(chosen, problem, device))

        @functools.cache
        def step():
            return embedded(chosen, problem, device, {"workspace": Place("workspace", self.workspace), **places}, scalars)
        again = cost(chosen, problem, device), step
        self.add(*again)
        return again


@functools.lru_cache(maxsize=256)
def planned(make, problem, device, config) -> Plan:
    """``make(problem, device, config)``, remembered: a plan's bytes, time and launches are asked for one after the other."""
    return make(problem, device, config)
