"""Engines: the ways in which a graph can run. One is an algorithm for the step that takes the longest, with dispatch's choice for the
others; a plan is an engine with a configuration, the knob KERNEL_CFG."""
from dataclasses import dataclass

from .. import dispatch
from ..algorithm import Note
from ..host.device import current_device
from ..host.device import device as device_of
from ._enums import behavior_note, heur_mode, knob_type
from ._errors import InvalidValue, cudnnGraphNotSupportedError
from ._kernels import WORTH_COMPILING
from ._lower import lower
from ._partition import cuts
from ._plan import choose, library_notes
from .ops import OPERATIONS


@dataclass(frozen=True)
class knob:
    """What an engine may be made with: values from `min_value` to `max_value` in steps of `stride`."""
    type: knob_type
    max_value: int
    min_value: int
    stride: int


class Engines:
    """The engines of a graph on the current device.

    Parameters
    ----------
    spec : GraphSpec
    kernels : KernelCache, optional
        That its plans share.
    cut : int, optional
        Which of `cuts(spec)`; default: that with the least predicted time.
    """

    def __init__(self, spec, kernels=None, cut=None):
        self.spec, self.device, self.kernels = spec, device_of(current_device()), kernels
        self._first = self._main = self._able = None
        candidates = cuts(spec)
        lowered = {k: lower(spec, parts, OPERATIONS) for k, parts in enumerate(candidates) if cut in (None, k)}
        if not lowered:
            raise InvalidValue(f"cut {cut} of {len(candidates)}")
        self.cut = next(iter(lowered)) if len(lowered) == 1 else min(lowered, key=lambda k: self._cost(lowered[k]))
        self.steps, self.temporaries = lowered[self.cut]

    def _cost(self, lowered):
        """The predicted time of a cut; a multiple where kernels have to be compiled though there is a cache of them."""
        try:
            plan = self._chosen(lowered)
            return plan.seconds * (1.0 if plan.is_held else WORTH_COMPILING)
        except cudnnGraphNotSupportedError:
            return float("inf")

    def _chosen(self, lowered, exclude=Note.NONE):
        return choose(self.spec, *lowered, self.device, 0, exclude, kernels=self.kernels)

    def first(self, exclude=Note.NONE):
        """Dispatch's choice for every step."""
        if exclude or self._first is None:
            plan = self._chosen((self.steps, self.temporaries), exclude)
            plan.engine = self._engine_of(plan)
            if exclude:
                return plan
            self._first = plan
        return self._first

    @property
    def main(self):
        """Index of the step that takes the longest, of those that do arithmetic between elements if there are any; None if nothing is
        computed."""
        if self._main is None:
            plan = self._chosen((self.steps, self.temporaries))
            able = [(getattr(s.problem, "flops", 0) > 0, a.seconds(s.problem, self.device), -k)
                    for k, (s, a) in enumerate(zip(self.steps, plan.algorithms)) if a]
            self._main = (-max(able)[-1],) if able else (None,)
        return self._main[0]

    @property
    def algorithms(self):
        """Those that solve the main step, in the registry's order."""
        if self._able is None:
            if self.main is None:
                self._able = [None]
            else:
                problem = self.steps[self.main].problem
                self._able = [a for a in dispatch.algorithms(problem.op) if dispatch.refusal(a, problem, self.device) is None]
        return self._able

    def _engine_of(self, plan):
        names = [a and a.name for a in self.algorithms]
        main = plan.algorithms[self.main] if self.main is not None else None
        return names.index(main.name) if main is not None and main.name in names else 0

    @property
    def count(self):
        """How many there are."""
        return len(self.algorithms)

    def _checked(self, engine):
        if not 0 <= engine < self.count:
            raise InvalidValue(f"engine {engine} of {self.count}; expected 0 to {self.count - 1}")
        return self.algorithms[engine]

    def knobs(self, engine):
        """Those of an engine."""
        algorithm = self._checked(engine)
        if algorithm is None or algorithm.configs is None:
            return []
        count = len(list(algorithm.configs(self.steps[self.main].problem, self.device)))
        return [knob(knob_type.KERNEL_CFG, count - 1, 0, 1)] if count > 1 else []

    def plan(self, engine, knobs):
        """The plan of an engine with these knobs."""
        algorithm, problem = self._checked(engine), None if self.main is None else self.steps[self.main].problem
        for kind in knobs:
            if kind is not knob_type.KERNEL_CFG:
                raise cudnnGraphNotSupportedError(f"engine {engine} has no knob {kind.name}; expected KERNEL_CFG",
                                                  "GRAPH_EXECUTION_PLAN_CREATION_FAILED")
        forced = {}
        if algorithm is not None:
            if knob_type.KERNEL_CFG in knobs and algorithm.configs is not None:
                configs, index = list(algorithm.configs(problem, self.device)), knobs[knob_type.KERNEL_CFG]
                if not 0 <= index < len(configs):
                    raise cudnnGraphNotSupportedError(f"engine {engine}: KERNEL_CFG {index}; expected 0 to {len(configs) - 1}",
                                                      "GRAPH_EXECUTION_PLAN_CREATION_FAILED")
                algorithm = algorithm.bound_to(configs[index])
            forced[self.main] = algorithm.configured(problem, self.device)
        return choose(self.spec, self.steps, self.temporaries, self.device, engine, forced=forced, kernels=self.kernels)

    def plans(self, modes):
        """The list that `create_execution_plans` makes; without modes one to which plans are added."""
        return Plans(self, modes)


class Plans:
    """Plans of a graph, the best first, and the filters that are set. Those after the first are made when they are asked for."""

    def __init__(self, engines, modes):
        self.engines, self.modes, self.added, self.filters, self.excluded = engines, modes, [], [], Note.NONE
        self._all = None

    def add(self, plan):
        """One more."""
        self.added.append(plan)
        self._all = None

    def first(self):
        """The best that passes the filters; `cudnnGraphNotSupportedError` if none does."""
        if self.modes:
            try:
                plan = self.engines.first(self.excluded)
                if self._passes(plan):
                    return plan
            except cudnnGraphNotSupportedError:
                if not self.excluded:
                    raise
        plans = self.all()
        if not plans:
            raise cudnnGraphNotSupportedError(f"no plan of the graph {self.engines.spec.name!r} passes the filters; there are "
                                              f"{', '.join(p.name for p in self._unfiltered()) or 'none'}")
        return plans[0]

    def _passes(self, plan):
        return all(passes(plan) for passes in self.filters)

    def _unfiltered(self):
        found = []
        if self.modes:
            best = self.engines.first(self.excluded) if not self.excluded else None
            try:
                best = best or self.engines.first(self.excluded)
                found.append(best)
            except cudnnGraphNotSupportedError:
                pass
            fallback = heur_mode.FALLBACK in self.modes
            others = [self.engines.plan(k, {}) for k, a in enumerate(self.engines.algorithms)
                      if a is not None and (best is None or k != best.engine) and (fallback or a.name != "naive")]
            found += sorted(others, key=lambda plan: plan.seconds)
        return found + self.added

    def all(self):
        """Those that pass the filters."""
        if self._all is None:
            self._all = [plan for plan in self._unfiltered() if self._passes(plan)]
        return self._all

    def _filter(self, passes):
        self.filters.append(passes)
        self._all = None

    # ---- filters

    def without_engines(self, names):
        """Leave out plans by name."""
        self._filter(lambda plan: not any(plan.name.startswith(n) or n == f"eng{plan.engine}" for n in names))

    def within(self, workspace):
        """Leave out those that need more workspace."""
        self._filter(lambda plan: plan.workspace + plan.room <= workspace)

    def with_notes(self, notes):
        """Keep those that have all of these."""
        self._filter(lambda plan: all(n in _notes_of(plan, n) for n in notes))

    def without_notes(self, notes):
        """Leave out those that have any of these."""
        self.excluded |= library_notes(n for n in notes if not isinstance(n, behavior_note))
        self._filter(lambda plan: not any(n in _notes_of(plan, n) for n in notes))


def _notes_of(plan, note):
    return plan.behavior_notes if isinstance(note, behavior_note) else plan.numerical_notes
