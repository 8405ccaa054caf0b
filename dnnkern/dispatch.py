"""Chooses the algorithm of a problem: prediction (`get_algorithm`), measurement (`find_algorithms`), reasons (`explain`).

Which algorithms there are, and where, is `registry`'s; its functions for users are here too.
"""
import contextlib
import functools
import logging
import os
from typing import TYPE_CHECKING

from .algorithm import Algorithm, Note, NotSupported, cheapest, problem_record
from .device import _environment
from .host import chosen as on_disk
from .host import memo
from .host.device import Device, current_device
from .host.device import device as device_of
from .host.paths import cache_dir
from .host.scalars import integer, shown
from .host.suggest import nearest, unknown_keyword
from .preference import DEVICE, VARIABLE, block, current, quick_to_simulate
from .registry import (algorithms, choices_changed, declare, families, is_as_installed, named, no_operation, operation_of,  # noqa: F401
                       register, unregister, when_choices_change)

if TYPE_CHECKING:
    from .answers import Candidate, Perf

log = logging.getLogger("dnnkern.dispatch")
# Algorithms with these notes are chosen only if the caller allows them.
OPT_IN = Note.NONDETERMINISTIC
# Keywords of every public function that select the algorithm, and their defaults.
CHOICE = {"algo": None, "allow": Note.NONE, "workspace_limit": None, "exclude": Note.NONE}
CONFIGURATIONS = 6  # measured per algorithm, the most promising first
LONG_REFERENCE = 0.3  # seconds of the naive algorithm above which one of these is the reference:
INSTEAD_OF_NAIVE = "tiled", "rows", "flash_simt", "step"

_watching: list[list] = []


@contextlib.contextmanager
def watch():
    """Collect the problems of calls of public functions in the block: those of first calls, or first since `choices_changed`.

    >>> import numpy as np, dnnkern
    >>> choices_changed()
    >>> with watch() as problems:
    ...     y = dnnkern.activation_fwd(np.zeros(4, np.float32), "relu")
    >>> [str(problem) for problem in problems]
    ['activation_fwd 4 float32 relu']
    """
    problems = []
    _watching.append(problems)
    try:
        yield problems
    finally:
        _watching[:] = [w for w in _watching if w is not problems]  # another list may hold the same problems


def bound(problem):
    """Report the problem of a call to `watch`."""
    for problems in _watching:
        problems.append(problem)


def check_choice(function, *, algo=None, allow=Note.NONE, workspace_limit=None, exclude=Note.NONE, **unknown):
    """Check the keywords that select the algorithm of a call to `function`; TypeError or ValueError."""
    if unknown:
        raise TypeError(unknown_keyword(function, next(iter(unknown))))
    if algo is not None and not isinstance(algo, str):
        raise TypeError(f"{function}: algo={shown(algo)}; expected the name of an algorithm")
    for name, notes in (("allow", allow), ("exclude", exclude)):
        if not isinstance(notes, Note):
            raise TypeError(f"{function}: {name}={shown(notes)}; expected a dnnkern.dispatch.Note")
    if workspace_limit is not None:
        integer(function, "workspace_limit", workspace_limit, 0)


def refusal(algorithm, problem, device, *, allow=Note.NONE, workspace_limit=None, exclude=Note.NONE) -> str | None:
    """Why an algorithm cannot or may not solve a problem; None if it can."""
    reason = algorithm.refusal(problem, device)
    if reason:
        return reason
    if algorithm.notes & exclude:
        return f"is {', '.join((algorithm.notes & exclude).names)}, which the caller excludes"
    if algorithm.notes & OPT_IN & ~allow:
        return f"is {', '.join((algorithm.notes & OPT_IN & ~allow).names)}, which the caller does not allow (allow=Note.NONDETERMINISTIC)"
    if workspace_limit is not None:
        need = algorithm.least_workspace(problem, device)
        if need > workspace_limit:
            return f"needs {need} bytes of workspace, the limit is {workspace_limit}"
    return None


def preference(given=None) -> str | None:
    """The given preference, else that of the innermost `prefer`, else DNNKERN_PREFER's, else None."""
    name, what = (given, "prefer") if given is not None else (current(), VARIABLE)
    if name is not None:
        _check_preference(name, what)
    return name


def prefer(name):
    """In the block, calls of this thread (or task) that force no algorithm use the one of this name wherever it can solve the problem.

    Parameters
    ----------
    name : str or None
        Name of an algorithm, such as "naive" (``python -m dnnkern list`` prints them). "device" is the choice of a GPU: the default on a
        GPU, while the simulator, which assumes an H200, otherwise takes what is quick to simulate. None cancels the preference of an
        enclosing block.

    Raises
    ------
    ValueError
        No operation has an algorithm of this name.
    TypeError
        Not a string.

    Notes
    -----
    The environment variable ``DNNKERN_PREFER`` takes the same names and applies outside of such blocks. If the preferred algorithm cannot
    solve a problem, or not within the limits of the call, dispatch chooses as without a preference. ``algo=`` is never overridden.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> with dnnkern.dispatch.prefer("naive"):
    ...     dnnkern.softmax_fwd(np.zeros((1, 4), np.float32))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    if name is not None:
        _check_preference(name, "prefer: name")
    return block(name)


def _check_preference(name, what):
    if not isinstance(name, str):
        raise TypeError(f"{what} is {shown(name)}; expected the name of an algorithm, {DEVICE!r} or None")
    if name in (DEVICE, "naive"):
        return
    known = {a.name for a in algorithms()}
    if name not in known:
        raise ValueError(f"{what} is {name!r}, and no algorithm has that name{nearest(name, (DEVICE, *known))} (python -m dnnkern list "
                         "prints all)")


def get_algorithm(op, problem, *, algo=None, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, device=None,
                  prefer=None) -> Algorithm:
    """The algorithm to use: the preferred one (`prefer`), else the find database's answer, else the lowest estimate. Measures nothing.

    In the simulator, without a preference, it is one that is likely to be quick to simulate.

    Parameters
    ----------
    op : str
        Operation: "matmul", "conv_fwd", ...
    problem : problem of that operation
    algo : str, optional
        Force this algorithm.
    workspace_limit : int, optional
        Bytes it may use.
    allow : Note
        NONDETERMINISTIC algorithms are chosen only with this flag.
    exclude : Note
        Algorithms with any of these notes are not chosen.
    device : Device, optional
        Default: the current one.
    prefer : str, optional
        A preference for this choice, as in `dnnkern.dispatch.prefer`; default: the current one.

    Returns
    -------
    Algorithm
        Bound to its configuration.

    Raises
    ------
    NotSupported
        A forced algorithm that cannot run, or limits that no algorithm meets; the message has each candidate's reason.
    """
    check_choice("get_algorithm", algo=algo, workspace_limit=workspace_limit, allow=allow, exclude=exclude)
    if workspace_limit is not None:
        workspace_limit = integer("get_algorithm", "workspace_limit", workspace_limit)
    return _chosen(op, problem, algo, workspace_limit, allow, exclude, device or device_of(current_device()), preference(prefer))[0]


@functools.lru_cache(maxsize=4096)
def _chosen(op, problem, algo, workspace_limit, allow, exclude, device, preferred):
    limits = {"allow": allow, "workspace_limit": workspace_limit, "exclude": exclude}
    if algo is not None:
        forced = named(op, algo)
        reason = refusal(forced, problem, device, **limits)
        if reason:
            raise NotSupported(f"{op}: algorithm {algo!r} cannot solve {problem}: {reason}")
        return forced.configured(problem, device, workspace_limit), "forced"
    keeps = on_disk.KEEPS and is_as_installed() and not (device.is_simulated and preferred != DEVICE)
    wish = preferred if preferred != DEVICE else None  # which is the default of devices
    asked = keeps and on_disk.question(problem, allow, workspace_limit, exclude, wish, _measured_until(op, device))
    answer = _chosen_earlier(op, problem, device, limits, asked) if asked else None
    if answer is None:
        answer = _choose(op, problem, device, limits, preferred)
        if asked and answer[1] in ("measured", "predicted"):
            on_disk.keep(op, device, asked, *_kept(*answer))
    chosen, why = answer
    if _environment.words("DNNKERN_LOG", ("dispatch",)):
        _log_to_stderr()
        from .host.repeat import command
        log.info("%s -> %s (%s %.4g ms)  %s", problem, chosen, why, 1e3 * chosen.seconds(problem, device), command("explain", problem))
    return answer


def _choose(op, problem, device, limits, preferred):
    """(algorithm, why) by the preference, the database or the estimates."""
    known, workspace_limit = algorithms(op), limits["workspace_limit"]
    reasons = {a.name: refusal(a, problem, device, **limits) for a in known}
    able = [a for a in known if reasons[a.name] is None]
    if not able:
        raise NotSupported(f"{op}: no algorithm solves {problem} within the given limits:\n"
                           + "\n".join(f"  {name}: {reason}" for name, reason in reasons.items()))
    chosen, why = next((a.configured(problem, device, workspace_limit) for a in able if a.name == preferred), None), "preferred"
    if chosen is None and device.is_simulated and preferred != DEVICE:
        chosen, why = quick_to_simulate(able, problem, device, workspace_limit), "quick to simulate"
    if chosen is None and (folder := cache_dir()) is not None and (folder / "find").is_dir():  # else spare the first call an import
        from . import find
        chosen, why = find.best_known(op, problem, device, able, tuple(known), workspace_limit), "measured"
    if chosen is None:
        ((chosen, _),), why = cheapest(able, problem, device, workspace_limit, choosing=True), "predicted"
    return chosen, why


def _chosen_earlier(op, problem, device, limits, asked):
    """(algorithm, why) as an earlier process chose, of whose family only the one file has to be imported; None where nothing is known, or
    it can no longer be so."""
    known = on_disk.recall(op, device, asked)
    if known is None:
        return None
    name, why, config, source = known
    try:
        algorithm = named(op, name, source)
    except NotSupported:
        return None
    if refusal(algorithm, problem, device, **limits) is not None:
        return None
    configs = algorithm.configs(problem, device) if algorithm.configs is not None else [None]
    bound = next((b for b in map(algorithm.bound_to, configs) if b.config_text == config), None)
    limit = limits["workspace_limit"]
    if bound is None or limit is not None and bound.workspace(problem, device, bound.config) > limit:
        return None
    return bound if bound.config is not None else algorithm, why


def _kept(algorithm, why):
    """A choice as it is kept."""
    return algorithm.name, why, algorithm.config_text, algorithm.source


def line_for_packs(problem, device) -> bytes:
    """The line of a kernel pack that says what is chosen for a problem of calls without any wishes; NotSupported if nothing can be."""
    asked = on_disk.question(problem, Note.NONE, None, Note.NONE, None, None)
    return on_disk.line_of(asked, *_kept(*_chosen(problem.op, problem, None, None, Note.NONE, Note.NONE, device, None)))


def _measured_until(op, device):
    """What changes with every measurement of an operation."""
    folder = cache_dir()
    try:
        return os.stat(folder / "find" / device.folder / op).st_mtime_ns if folder is not None else None
    except OSError:
        return None


when_choices_change(_chosen.cache_clear)
when_choices_change(memo.forget)


@functools.cache
def _log_to_stderr():
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def explain(op, problem, *, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, device=None, prefer=None) -> "list[Candidate]":
    """Every algorithm's answer for a problem: why it cannot solve it, or its predicted time; the chosen one first, then by time. Of a
    problem without elements, for which nothing runs, the list is empty.

    >>> import dnnkern
    >>> first = explain("matmul", dnnkern.problem("matmul", a=("64x64", "bfloat16"), b=("64x64", "bfloat16")))[0]
    >>> abs(sum(first.terms.values()) - first.time_ms) < 1e-12
    True
    """
    from .answers import Candidate
    device, limits = device or device_of(current_device()), {"allow": allow, "workspace_limit": workspace_limit, "exclude": exclude}
    check_choice("explain", **limits)
    if problem.is_empty:
        return []
    try:
        chosen, why = _chosen(op, problem, None, workspace_limit, allow, exclude, device, preference(prefer))
    except NotSupported:
        chosen, why = None, ""
    rows = []
    for algorithm in algorithms(op):
        reason = refusal(algorithm, problem, device, **limits)
        if reason is not None:
            rows.append(Candidate(algorithm.name, reason, notes=algorithm.notes))
            continue
        is_chosen = chosen is not None and algorithm.name == chosen.name
        bound = chosen if is_chosen else algorithm.configured(problem, device, workspace_limit)
        cost = bound.cost(problem, device)
        rows.append(Candidate(bound.name, None, 1e3 * float(cost), bound.workspace(problem, device, bound.config), bound.notes,
                              bound.config_text, is_chosen, why * is_chosen,
                              *({name: 1e3 * seconds for name, seconds in side.items() if seconds} for side in (cost.terms, cost.hidden))))
    return sorted(rows, key=lambda c: (not c.chosen, c.reason is not None, c.time_ms or 0.0))


def find_algorithms(op, problem, *, arrays=None, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, save=True,
                    device=None) -> "list[Perf]":
    """Measure every algorithm and configuration that can solve a problem; fastest first.

    The candidates run interleaved on inputs rotated past the L2; times are medians, by CUDA events (wall clock in the simulator). The
    result is stored in the find database, which `get_algorithm` consults first, unless a candidate was skipped for its workspace or its
    notes. Simulator times do not predict a device's and are not stored.

    Parameters
    ----------
    arrays : tuple, optional
        The operands, in the problem's order; default: random ones.
    workspace_limit, allow, exclude
        As in `get_algorithm`; excluded algorithms are not measured.
    save : bool
        Write to the database.

    Returns
    -------
    list of Perf

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C: its `found`, if it has one, is the list of what was measured by then. Nothing of it is stored.
    """
    from . import find
    check_choice("find_algorithms", workspace_limit=workspace_limit, allow=allow, exclude=exclude)
    if problem.is_empty:
        return []
    device, operation, known = device or device_of(current_device()), operation_of(op), tuple(algorithms(op))
    perfs = find.measure(operation, problem, candidates(op, problem, device, allow=allow, exclude=exclude),
                         reference_of(op, problem, device), device, arrays=arrays, workspace_limit=workspace_limit)
    # An incomplete list would hide the candidates that were skipped.
    whole = not any(a.notes & exclude for a in known) and (workspace_limit is None or all(p.memory <= workspace_limit for p in perfs))
    if save and find.STORES and whole and any(p.status == "ok" for p in perfs):
        find.store(op, problem, device, known, perfs)
        forget(operation)
    return perfs


def candidates(op, problem, device, *, allow=Note.NONE, exclude=Note.NONE, configurations=CONFIGURATIONS) -> list[Algorithm]:
    """Every algorithm that can solve a problem, bound to each of its most promising configurations."""
    able = [a for a in algorithms(op) if refusal(a, problem, device, allow=allow, exclude=exclude) is None]
    return [v for a in able for v in a.variants(problem, device)[:configurations]]


def reference_of(op, problem, device) -> Algorithm:
    """The reference algorithm: naive, or, if that would take long, one that is as exact and nearly as simple."""
    by_name = {a.name: a for a in algorithms(op)}
    if "naive" not in by_name:
        raise ValueError(f"{op} has no naive algorithm to compare with")
    naive = by_name["naive"].configured(problem, device)
    instead = next((by_name[name] for name in INSTEAD_OF_NAIVE if name in by_name), None)
    if instead is None or naive.seconds(problem, device) < LONG_REFERENCE or instead.reason(problem):
        return naive
    return instead.configured(problem, device)


def measured(op, problem, device=None) -> dict[str, float]:
    """The best measured milliseconds of each algorithm, from the find database."""
    from . import find
    times = {}
    for time_ms, _, name, _ in find.load(op, problem, device or device_of(current_device()), tuple(algorithms(op))):  # fastest first
        times.setdefault(name, time_ms)
    return times


def forget(operation=None):
    """Drop what was read of the database and every choice that rests on it; plans stay, they are right whichever is chosen."""
    from . import find
    find.forget()
    _chosen.cache_clear()
    if operation is not None:
        operation.forget()


def __getattr__(name):
    if name in ("Candidate", "Perf"):
        from . import answers
        return getattr(answers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Algorithm", "Candidate", "Device", "Note", "NotSupported", "Perf", "algorithms", "explain", "find_algorithms", "get_algorithm",
           "prefer", "problem_record", "register", "unregister"]
