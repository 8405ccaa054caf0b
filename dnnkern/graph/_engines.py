"""Engines: the ways in which a graph can run. One is a cut and an algorithm for its step that takes the longest, with dispatch's choice
for the others; a plan is an engine with a configuration, the knob KERNEL_CFG."""
import contextlib
import math
from dataclasses import dataclass, replace
from functools import cached_property

from .. import dispatch
from ..algorithm import Note
from ..device import HOST_MEMORY
from ..host.device import current_device, device_count
from ..host.device import device as device_of
from ..host.driver import CudaError
from ._enums import behavior_note, heur_mode, knob_type
from ._errors import InvalidValue, cudnnGraphNotSupportedError
from ._kernels import WORTH_COMPILING
from ._lower import lower
from ._partition import between, cuts, spelled_cuts
from ._plan import choose, library_notes
from ._tune import known_plans
from .ops import OPERATIONS


@dataclass(frozen=True)
class knob:
    """What an engine may be made with: values from `min_value` to `max_value` in steps of `stride`."""
    type: knob_type
    max_value: int
    min_value: int
    stride: int


class Cut:
    """One cut of a graph as steps, and the algorithms for the step that takes the longest."""

    def __init__(self, spec, number, parts, device, kernels):
        self.spec, self.number, self.device, self.kernels = spec, number, device, kernels
        self.steps, self.temporaries = lower(spec, parts, OPERATIONS)

    def plan(self, engine=0, exclude=Note.NONE, forced=None):
        """Dispatch's choice for every step that is not in `forced`, {index of a step: Algorithm}."""
        return choose(self.spec, self.steps, self.temporaries, self.device, engine, exclude, forced, self.kernels, self.number)

    @property
    def bytes(self):
        """That its steps move together: what one writes for another counts twice."""
        return sum(step.problem.bytes for step in self.steps)

    @property
    def text(self):
        """The nodes of each step."""
        return " | ".join(" + ".join(step.nodes) for step in self.steps)

    @cached_property
    def _chosen(self):
        """(predicted time, whether no kernel has to be compiled) of the plan with dispatch's choices; infinity where a step has none."""
        try:
            plan = self.plan()
            return plan.seconds, plan.is_held
        except cudnnGraphNotSupportedError:
            return float("inf"), True

    @property
    def seconds(self):
        """The predicted time; infinity where a step has no algorithm."""
        return self._chosen[0]

    @property
    def cost(self):
        """What cuts are chosen by: the predicted time; a multiple where kernels have to be compiled though there is a cache of them."""
        seconds, is_held = self._chosen
        return seconds * (1.0 if is_held else WORTH_COMPILING)

    @cached_property
    def main(self):
        """Index of the step that takes the longest, of those that do arithmetic between elements if there are any; None if nothing is
        computed."""
        able = [(getattr(s.problem, "flops", 0) > 0, a.seconds(s.problem, self.device), -k)
                for k, (s, a) in enumerate(zip(self.steps, self.plan().algorithms)) if a]
        return -max(able)[-1] if able else None

    @cached_property
    def algorithms(self):
        """Those that solve the main step, in the registry's order; [None] where there is none."""
        if self.main is None:
            return [None]
        problem = self.steps[self.main].problem
        return [a for a in dispatch.algorithms(problem.op) if dispatch.refusal(a, problem, self.device) is None]

    def variants(self, algorithm, count):
        """So many of the most promising configurations of an algorithm for the main step."""
        problem = self.steps[self.main].problem
        return [algorithm.configured(problem, self.device)] if count == 1 else algorithm.variants(problem, self.device)[:count]

    @property
    def naive(self):
        """{index of a step: its naive algorithm}, of those that have one which can solve it."""
        found = {}
        for k, step in enumerate(self.steps):
            for a in dispatch.algorithms(step.op):
                if a.name == "naive" and not step.problem.is_empty and dispatch.refusal(a, step.problem, self.device) is None:
                    found[k] = a.configured(step.problem, self.device)
        return found


def _with_so_many(device, sm_count):
    """A device as if it had only so many multiprocessors."""
    if sm_count is None:
        return device
    if not 1 <= sm_count <= device.sms:
        raise InvalidValue(f"sm_count is {sm_count}; expected 1 to {device.sms}, which {device.name} has")
    return replace(device, sms=sm_count)


def device_here():
    """The current device; None where there is none."""
    try:
        count = device_count()
    except CudaError:  # no driver, or one without a GPU
        return None
    return device_of(current_device()) if count else None


class Engines:
    """The engines of a graph on a device: those of the cut with the least predicted time, then those of the others.

    Parameters
    ----------
    spec : GraphSpec
    kernels : KernelCache, optional
        That its plans share.
    cut : int, optional
        Which of `spelled_cuts(spec)`, `cuts(spec)` and `between(spec)`, one after the other; default: that of the first two with the least
        predicted time, and all others.
    sm_count : int, optional
        Multiprocessors that plans are made for; default: all.
    device : Device, optional
        Default: the current one. Plans for one that is not here are compiled, and run where they are deserialized.
    """

    def __init__(self, spec, kernels=None, cut=None, sm_count=None, device=None):
        self.spec, self.device, self._first = spec, _with_so_many(device or device_of(current_device()), sm_count), None
        self.kernels = kernels = None if HOST_MEMORY and not self.device.is_here else kernels  # another process compiles them there
        found = [*spelled_cuts(spec), *((spec, parts) for parts in cuts(spec))]
        self._between = len(found) if cut is None else None  # the number of the first of them
        if cut is not None and cut >= len(found):
            found += [(spec, parts) for parts in between(spec)]
        made = [Cut(of, k, parts, self.device, kernels) for k, (of, parts) in enumerate(found) if cut in (None, k)]
        if not made:
            raise InvalidValue(f"cut {cut} of {len(found)}")
        best = made[0] if len(made) == 1 else min(made, key=lambda c: c.cost)
        self.one_by_one, self.quick = made[-1], [best, *(c for c in made if c is not best)]
        self.cut, self.steps, self.temporaries = best.number, best.steps, best.temporaries

    @cached_property
    def cuts(self):
        """All `Cut`s, those between the first ones too."""
        more = between(self.spec) if self._between is not None else ()
        return [*self.quick, *(Cut(self.spec, self._between + k, parts, self.device, self.kernels) for k, parts in enumerate(more))]

    def cut_of(self, number):
        """The `Cut` of a number; InvalidValue where there is none."""
        found = next((c for c in self.quick if c.number == number), None) or next((c for c in self.cuts if c.number == number), None)
        if found is None:
            raise InvalidValue(f"cut {number} of {len(self.cuts)}")
        return found

    @cached_property
    def _numbered(self):
        return [(cut, algorithm) for cut in self.cuts for algorithm in cut.algorithms]

    @property
    def count(self):
        """How many there are."""
        return len(self._numbered)

    def _checked(self, engine):
        if not 0 <= engine < self.count:
            raise InvalidValue(f"engine {engine} of {self.count}; expected 0 to {self.count - 1}")
        return self._numbered[engine]

    def knobs(self, engine):
        """Those of an engine."""
        cut, algorithm = self._checked(engine)
        if algorithm is None or algorithm.configs is None:
            return []
        count = len(list(algorithm.configs(cut.steps[cut.main].problem, self.device)))
        return [knob(knob_type.KERNEL_CFG, count - 1, 0, 1)] if count > 1 else []

    def plan(self, engine, knobs):
        """The plan of an engine with these knobs."""
        cut, algorithm = self._checked(engine)
        for kind in knobs:
            if kind is not knob_type.KERNEL_CFG:
                raise cudnnGraphNotSupportedError(f"engine {engine} has no knob {kind.name}; expected KERNEL_CFG",
                                                  "GRAPH_EXECUTION_PLAN_CREATION_FAILED")
        if algorithm is None:
            return cut.plan(engine)
        problem = cut.steps[cut.main].problem
        if knob_type.KERNEL_CFG in knobs and algorithm.configs is not None:
            configs, index = list(algorithm.configs(problem, self.device)), knobs[knob_type.KERNEL_CFG]
            if not 0 <= index < len(configs):
                raise cudnnGraphNotSupportedError(f"engine {engine}: KERNEL_CFG {index}; expected 0 to {len(configs) - 1}",
                                                  "GRAPH_EXECUTION_PLAN_CREATION_FAILED")
            algorithm = algorithm.bound_to(configs[index])
        return cut.plan(engine, forced={cut.main: algorithm.configured(problem, self.device)})

    # ---- rankings

    @cached_property
    def known(self):
        """The plans that `pygraph.autotune` measured, of this process or another, the fastest first."""
        return known_plans(self)

    def forget(self):
        """Ask for `known` again."""
        vars(self).pop("known", None)

    def first(self, exclude=Note.NONE):
        """The plan to take: the fastest of `known`, else dispatch's choice for every step of the best cut; without these notes."""
        if self.known and not exclude:
            return self.known[0]
        return self.estimated(exclude)

    def estimated(self, exclude=Note.NONE):
        """Dispatch's choice for every step of the cut with the least predicted time."""
        if exclude:
            return self._named(self.quick[0], self.quick[0].plan(exclude=exclude))
        if self._first is None:
            self._first = self._named(self.quick[0], self.quick[0].plan())
        return self._first

    def leading(self, mode, exclude=Note.NONE):
        """The first plan of a mode's ranking that was not measured."""
        if mode is heur_mode.FALLBACK:
            return self._named(self.one_by_one, self.one_by_one.plan(exclude=exclude))
        if mode is heur_mode.B:
            cut = min(self.cuts, key=lambda c: c.cost)
            if cut is not self.quick[0]:
                return self._named(cut, cut.plan(exclude=exclude))
        return self.estimated(exclude)

    def ranked(self, mode, exclude=Note.NONE):
        """The plans of a mode, the best first: A and OPENSOURCE one of each engine of few cuts; B of all cuts, with several
        configurations; FALLBACK one node a part, and the naive algorithms."""
        makers = [lambda: self.leading(mode, exclude)]
        if mode is heur_mode.FALLBACK:
            makers += [lambda cut=cut: self._named(cut, cut.plan(0, exclude, {cut.main: cut.naive[cut.main]}))
                       for cut in self.quick if cut.main in cut.naive]
            makers.append(lambda: self._named(self.one_by_one, self.one_by_one.plan(0, exclude, self.one_by_one.naive)))
            return _made(makers)
        some, count = (self.cuts, dispatch.CONFIGURATIONS) if mode is heur_mode.B else (self.quick, 1)
        others = [lambda: self.estimated(exclude)]
        others += [lambda cut=cut, bound=bound: self._named(cut, cut.plan(0, exclude, {cut.main: bound}))
                   for cut in some for a in cut.algorithms if a is not None and a.name != "naive" for bound in cut.variants(a, count)]
        return _made(makers) + sorted(_made(others), key=lambda plan: plan.seconds)

    def _named(self, cut, plan):
        """A plan with the number of its engine; 0 where it is of none."""
        main = None if cut.main is None else plan.algorithms[cut.main]
        names, order = [a and a.name for a in cut.algorithms], self.quick if cut in self.quick else self.cuts
        before = sum(len(c.algorithms) for c in order[:order.index(cut)])
        plan.engine = before + (names.index(main.name) if main and main.name in names else 0)
        return plan

    def plans(self, modes):
        """The list that `create_execution_plans` makes; without modes one to which plans are added."""
        return Plans(self, modes)


def _made(makers):
    """The plans that functions make, but those of steps that nothing can solve."""
    found = []
    for make in makers:
        with contextlib.suppress(cudnnGraphNotSupportedError):
            found.append(make())
    return found


class Plans:
    """Plans of a graph, the best first, and the filters that are set. Those after the first are made when they are asked for.

    Attributes
    ----------
    times : {Plan: float}
        Seconds of those that were measured, which go before the others, the fastest first.
    """

    def __init__(self, engines, modes):
        self.engines, self.modes, self.added, self.filters, self.excluded = engines, tuple(modes), [], [], Note.NONE
        self.times, self._all, self._same = {}, None, {}

    def add(self, plan):
        """One more."""
        self.added.append(plan)
        self._all = None

    def ranked_by(self, times):
        """From now on the plans of {plan: seconds} are the first."""
        self.times, self._all = dict(times), None

    @property
    def is_whole(self):
        """Whether it has every plan that its modes have, the fast ones among them: nothing was added, or left out."""
        return bool(set(self.modes) - {heur_mode.FALLBACK}) and not (self.filters or self.excluded or self.added)

    def first(self):
        """The best that passes the filters; `cudnnGraphNotSupportedError` if none does."""
        if self.modes and not self.times:
            plan = next((plan for plan in self._known() if self._passes(plan)), None)
            if plan is not None:
                return plan
            try:
                plan = self._one(self.engines.leading(self.modes[0], self.excluded))
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

    def _one(self, plan):
        """The plan itself, or one that was made before and is the same."""
        return self._same.setdefault(plan.identity, plan)

    def _known(self):
        return [self._one(plan) for plan in self.engines.known] if self.modes and self.modes[0] is not heur_mode.FALLBACK else []

    def _unfiltered(self):
        found = self._known() + [self._one(plan) for mode in self.modes for plan in self.engines.ranked(mode, self.excluded)]
        return sorted([*dict.fromkeys(found), *self.added], key=lambda plan: self.times.get(plan, math.inf))

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
