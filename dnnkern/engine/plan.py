"""Plans of operations that are several launches, matrix products among them: steps in order, and who has which part of the workspace.

An array has named dimensions, and becomes an operand of a product where some of them are one dimension in memory (`collapsed`).
"""
import copy
import functools

from ..host.memo import kept
from ..matmul import MatmulProblem
from .cost import Cost, deferred
from .embed import Place, embedded, priced, scratch_bytes

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

    Plans are made to be estimated far more often than to be launched. So what a step launches, kernels above all, is made when launches
    are asked for.

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
        self._whole = self

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
        self._take(more)
        self._steps.append(step)

    def _take(self, more):
        self.seconds = float.__add__(self.seconds, more)
        self._costs.append(more)

    def repeat(self, parts, body, kind=None):
        """Steps that ``body(plan, part)`` adds for each of several parts; it deals out no workspace.

        They take the same time for all parts, or for those with the same `kind(part)`. So they are estimated once for each kind, however
        many parts there are.
        """
        kinds = {}
        for part in parts if kind else ():
            kinds.setdefault(kind(part), []).append(part)
        for alike in kinds.values() if kind else [parts] if parts else ():
            alone = self._apart(body, alike[0])
            self._take(len(alike) * alone.cost)
            self._scratch = max(self._scratch, alone._scratch)
        self._steps.append(lambda: (launch for part in parts for launch in self._apart(body, part).launches()))

    def _apart(self, body, part):
        """A plan of what the body adds alone."""
        plan = copy.copy(self)
        plan.seconds, plan._costs, plan._steps = 0.0, [], []
        body(plan, part)
        return plan

    def product(self, places, scalars=(), **operands):
        """Add a product; `operands` are `MatmulProblem`'s, `places` theirs."""
        self.add(*self.chosen(places, scalars, **operands))

    def chosen(self, places, scalars=(), **operands):
        """A product that is not added yet: what `add` takes, as often as the product is computed."""
        problem, device = MatmulProblem(math=self.math, **operands), self.device
        found = priced(problem, device, self.rank + 1)
        algorithm, cost = found[min(self.rank, len(found) - 1)]
        self._scratch = max(self._scratch, scratch_bytes(algorithm, problem, device))

        @functools.cache
        def step():
            return embedded(algorithm, problem, device, {"workspace": Place("workspace", self._whole.workspace), **places}, scalars)
        return cost, step


@kept(256)
def planned(make, problem, device, config) -> Plan:
    """``make(problem, device, config)``, remembered: a plan's bytes, time and launches are asked for one after the other."""
    return make(problem, device, config)
