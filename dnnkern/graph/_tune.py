"""`pygraph.autotune`: plans measured against each other on the caller's buffers, and their order in the find database."""
import contextlib
import json
import math
from functools import partial

from .. import dispatch
from ..answers import Perf
from ..device import HOST_MEMORY
from ..host.arrays import kind_of
from ..host.paths import cache_dir
from ..preference import DEVICE
from ._errors import ExecutionFailed, InvalidVariantPack, WorkspaceTooSmall
from ._record import plan_of

OP = "graph"
"""What the database calls the operation; its problem is the graph without names, a result's configuration the plan's `record`."""
KNOWN = 4  # plans that are taken from it


def known_plans(engines) -> list:
    """The plans of a graph that were measured, the fastest first, of those that there still are; none where the caller prefers others."""
    folder = cache_dir()
    if folder is None or not (folder / "find" / engines.device.folder / OP).is_dir() or dispatch.preference() not in (None, DEVICE):
        return []
    from .. import find
    plans = []
    for *_, record in find.load(OP, engines.spec.anonymous, engines.device, _algorithms(engines)):
        try:
            plans.append(plan_of(engines, json.loads(record)))
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue  # of an algorithm, a configuration or a cut that is no more
        if len(plans) == KNOWN:
            break
    return plans


def _algorithms(engines):
    """All that a plan may be made of."""
    return tuple(a for op in sorted({step.op for cut in engines.quick for step in cut.steps}) for a in dispatch.algorithms(op))


def tune(plans, runners, pack, workspace, stream) -> list:
    """Measure built plans and order them; the best has run last.

    Parameters
    ----------
    plans : Plans
    runners : {Plan: Runner}
        Of those that are measured.
    pack : dict
    workspace : array or address
    stream : int or None

    Returns
    -------
    list of Perf
        The fastest first.
    """
    first = next(iter(runners.values()))
    pack = first.by_uid(pack)
    _expect_apart(first, pack)
    try:
        ready = {plan: runner.prepared(pack, workspace, stream) for plan, runner in runners.items()}
    except WorkspaceTooSmall:
        need = most_workspace(runners)
        raise WorkspaceTooSmall(f"autotune: the workspace is too small; the plans need {need} bytes (get_autotune_workspace_size)",
                                need) from None
    times, failed = _times(ready, first.plan.device.index)
    if not times:
        raise ExecutionFailed("autotune: no plan ran: " + "; ".join(f"{plan.name}: {reason}" for plan, reason in failed.items()))
    plans.ranked_by(times)
    runners[min(times, key=times.get)].run(pack, workspace, stream)
    perfs = sorted((_perf(plan, times.get(plan), failed.get(plan)) for plan in runners), key=lambda perf: (perf.time_ms, perf.memory))
    _store(plans, runners, perfs)
    return perfs


def most_workspace(plans) -> int:
    """Bytes of workspace that each of these plans has enough of."""
    return max(plan.workspace + plan.room for plan in plans)


def _expect_apart(runner, pack):
    """Raise where a result has memory in common with an operand: plans that run again would read what they wrote."""
    spans = {}
    for uid in runner.pointers:
        with contextlib.suppress(TypeError, RuntimeError):  # of what is no buffer, which is refused later
            spans[uid] = _span(pack.get(uid), runner.needs[uid][0])
    for out in runner.results.intersection(spans):
        for other in spans.keys() - runner.results:
            (a, end), (b, other_end) = spans[out], spans[other]
            if b >= end or a >= other_end:
                continue
            ragged = not (runner.needs[out][0] and runner.needs[other][0])
            if ragged or runner.share(out, other, b - a):
                raise InvalidVariantPack(f"autotune: the buffers of {runner.label(out)} and {runner.label(other)} overlap; expected "
                                         "results apart from operands, since every plan runs several times")


def _span(buffer, need):
    """(address of a buffer, end of what a plan touches of it); ragged ones, which need 0 bytes, as far as they reach."""
    if type(buffer) is int:
        return buffer, buffer + max(need, 1)
    kind = kind_of(buffer)
    address = kind.describe(buffer)[1]
    return address, address + (need or kind.tensor(buffer).extent[1])


def _times(ready, index):
    """({plan: seconds}, {plan: why it has none}) of calls that are prepared."""
    from ..find import heats
    from ..host import driver
    from ..host.timing import Clock, Contender
    contenders, failed = [], {}
    with Clock(index) as clock:
        if not HOST_MEMORY:  # whatever makes the buffers may be on another stream
            driver.cuCtxSynchronize()
        for plan, (_, executable, values, *_) in ready.items():
            call = partial(executable.execute, values, clock.stream)
            try:
                call()
                clock.synchronize()
            except Exception as error:  # a plan that fails must not hide the others
                failed[plan] = f"{type(error).__name__}: {error}"
                continue
            contenders.append(Contender(plan, lambda k, call=call: call()))
        times = heats(contenders, clock)
        clock.synchronize()
    return {plan: sample.median for plan, sample in times.items()}, failed


def _perf(plan, seconds, error):
    algorithms = [a for a in plan.algorithms if a]
    return Perf(algo=plan.name, status=error or "ok", time_ms=math.inf if seconds is None else 1e3 * seconds, memory=plan.workspace,
                determinism=all(a.is_deterministic for a in algorithms), math_type=", ".join(dict.fromkeys(a.math for a in algorithms)),
                notes=plan.notes, config=json.dumps(plan.record))


def _store(plans, measured, perfs):
    """Write what was measured to the find database; an incomplete list would hide the plans that were left out."""
    from .. import find
    engines = plans.engines
    if find.STORES and plans.is_whole and set(plans.all()) == set(measured):
        find.store(OP, engines.spec.anonymous, engines.device, _algorithms(engines), perfs)
        engines.forget()
