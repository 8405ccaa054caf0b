"""Which algorithm solves a problem: the registry, the prediction (`get`), the measurement (`find`) and the reasons (`explain`).

An algorithm is a file ``dnnkern/<family>/<op>_<name>.py`` that binds `ALGORITHM`, or `ALGORITHMS` where one idea serves several
directions of an operation. The files of a family are found when one of its operations is first used; nothing lists them.
"""
import contextlib
import functools
import importlib
import logging
import threading
from dataclasses import asdict, dataclass, field, replace
from enum import Flag, auto
from pathlib import Path
from typing import Callable

from .device import _environment
from .device._fork import in_forked_child
from .host.device import Device, current_device
from .host.device import device as device_of
from .host.paths import cache_dir, plain
from .host.scalars import integer, shown
from .host.suggest import nearest, unknown_keyword
from .preference import DEVICE, prefer, preference, quick_to_simulate

PACKAGE = Path(__file__).resolve().parent
log = logging.getLogger("dnnkern.dispatch")


class Note(Flag):
    """What a caller may have to allow or avoid; cuDNN's vocabulary."""
    NONE = 0
    TENSOR_CORE = auto()
    DOWN_CONVERT_INPUTS = auto()
    REDUCED_PRECISION_REDUCTION = auto()
    FFT = auto()
    NONDETERMINISTIC = auto()
    WINOGRAD = auto()
    STRICT_NAN_PROP = auto()
    WINOGRAD_TILE_4x4 = auto()
    WINOGRAD_TILE_6x6 = auto()

    @property
    def names(self) -> list[str]:
        """Of the flags that are set; `name` is None of several before Python 3.11."""
        return [note.name for note in Note if note & self]


# Algorithms with these notes are chosen only where the caller allows them.
OPT_IN = Note.NONDETERMINISTIC
# What decides the algorithm of a call, beside its problem: keywords of every public function, and their defaults.
CHOICE = {"algo": None, "allow": Note.NONE, "workspace_limit": None, "exclude": Note.NONE}


class NotSupported(RuntimeError):
    """A forced algorithm that cannot run, or limits that no algorithm meets. The message lists every candidate with its reason."""


@dataclass(frozen=True)
class Algorithm:
    """One way to solve one operation.

    Attributes
    ----------
    op, name : str
        As in the file's name.
    supports : callable(problem) -> str or None
        The first reason why it cannot, or None. Correctness alone.
    fits : callable(problem, device) -> str or None, optional
        The first reason why it cannot on a device that runs its code, or None: what must be resident at once, say.
    workspace : callable(problem, device, config) -> int
        Bytes.
    estimate : callable(problem, device, config) -> float
        Predicted seconds.
    build : callable(problem, device, config) -> tuple of Launch
        The launches.
    configs : callable(problem, device) -> sequence of Config, optional
        Every configuration that can solve the problem. Without it there is one, and `config` is None in the calls above.
    notes : Note
    math : str
        What its arithmetic is: "exact", "tf32", ...; `supports` refuses problems that do not allow it.
    arch : str
        "sm_70+", or an exact "sm_90a".
    config : Config or None
        The configuration this object is bound to; `configured` binds it.
    idea : str
        One line; discovery takes it from its file's docstring.
    """
    op: str
    name: str
    supports: Callable
    workspace: Callable
    estimate: Callable
    build: Callable
    configs: Callable | None = None
    fits: Callable | None = None
    notes: Note = Note.NONE
    math: str = "exact"
    arch: str = "sm_70+"
    config: object = None
    idea: str = field(default="", compare=False)

    def refusal(self, problem, device) -> str | None:
        """Why it cannot solve a problem on a device; None if it can."""
        return (device.supports(self.arch) or self.supports(problem)
                or (self.fits(problem, device) if self.fits is not None and not problem.is_empty else None))

    def configured(self, problem, device, workspace_limit=None) -> "Algorithm":
        """Bound to the configuration with the least estimate among those within the limit; itself where there is no choice."""
        if self.configs is None or self.config is not None:
            return self
        candidates = [c for c in self.configs(problem, device)
                      if workspace_limit is None or self.workspace(problem, device, c) <= workspace_limit]
        if not candidates:
            raise NotSupported(f"{self}: no configuration fits {problem}"
                               + (f" in {workspace_limit} bytes of workspace" if workspace_limit is not None else ""))
        return replace(self, config=min(candidates, key=lambda c: self.estimate(problem, device, c)))

    def seconds(self, problem, device, choosing=False) -> float:
        """What a call is predicted to take; `choosing`: with a share of the time to compile, where a choice has to count it."""
        if not device.is_processor:
            return self.estimate(problem, device, self.config)
        from .host import processor
        return (processor.cost if choosing else processor.seconds)(self, problem, device)

    def least_workspace(self, problem, device) -> int:
        """Bytes that its most frugal configuration needs."""
        configs = (self.config,) if self.configs is None or self.config is not None else self.configs(problem, device)
        return min((self.workspace(problem, device, c) for c in configs), default=0)

    def variants(self, problem, device) -> list:
        """One algorithm for each configuration, the most promising first."""
        if self.configs is None or self.config is not None:
            return [self]
        ranked = sorted(self.configs(problem, device), key=lambda c: self.estimate(problem, device, c))
        return [replace(self, config=c) for c in ranked]

    @property
    def is_deterministic(self):
        return Note.NONDETERMINISTIC not in self.notes

    @property
    def config_text(self) -> str:
        """How the find database writes the configuration; "" where there is none."""
        return "" if self.config is None else str(self.config)

    def __str__(self):
        return f"{self.op}/{self.name}" + (f"[{self.config}]" if self.config is not None else "")


@dataclass(frozen=True)
class Candidate:
    """An algorithm's answer for one problem: a reason why it cannot run, or its predicted time and workspace.

    `why` the chosen one is that: "preferred", "quick to simulate", "measured" or "predicted".
    """
    algo: str
    reason: str | None
    time_ms: float | None = None
    memory: int | None = None
    notes: Note = Note.NONE
    config: str = ""
    chosen: bool = False
    why: str = ""


@dataclass(frozen=True)
class Perf:
    """A measured algorithm, with cuDNN's fields."""
    algo: str
    status: str
    time_ms: float
    memory: int
    determinism: bool
    math_type: str
    notes: Note
    config: str = ""


_registry: dict[str, dict[str, Algorithm]] = {}
_discovered: set[str] = set()
_family_of: dict[str, str] = {}
_listeners: list[Callable] = []
_watching: list[list] = []


def _unlock():
    global _lock
    _lock = threading.RLock()


_unlock()
in_forked_child(_unlock)


def when_choices_change(forget: Callable):
    """Call `forget()` whenever an earlier answer of `get_algorithm` may no longer hold."""
    _listeners.append(forget)


def choices_changed():
    """A new algorithm, or a new measurement: whoever remembers a choice has to ask again."""
    _chosen.cache_clear()
    for forget in _listeners:
        forget()


@contextlib.contextmanager
def watch():
    """The problems of the public functions' calls while the block runs, in a list: of calls never made before, or not since
    `choices_changed`.

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
        _watching[:] = [w for w in _watching if w is not problems]  # another's list may hold the same problems


def bound(problem):
    """A call has become this problem: tell who watches."""
    for problems in _watching:
        problems.append(problem)


def declare(op, family):
    """An operation belongs to this family: its algorithms need no search in the others. Every front end says so."""
    _family_of[op] = family


def families() -> list[str]:
    """Names of the families that exist: folders with a `_problem.py`."""
    return sorted(p.parent.name for p in PACKAGE.glob("*/_problem.py"))


def _discover(family):
    with _lock:
        if family in _discovered:
            return
        whole = []  # registered together: a family that is broken anywhere is broken at every use
        for path in sorted((PACKAGE / family).glob("[a-z]*.py")):
            module = importlib.import_module(f"dnnkern.{family}.{path.stem}")
            found = getattr(module, "ALGORITHMS", None) or (getattr(module, "ALGORITHM", None),)
            if found == (None,):
                raise ImportError(f"{path.name} in {family}/ binds neither ALGORITHM nor ALGORITHMS (a helper's name starts with an "
                                  "underscore)")
            for algorithm in found:
                if len(found) == 1 and path.stem != f"{algorithm.op}_{algorithm.name}" or not path.stem.endswith(f"_{algorithm.name}"):
                    raise ImportError(f"{path.name} holds {algorithm}; its name must be {algorithm.op}_{algorithm.name}.py")
                whole.append(replace(algorithm, idea=(module.__doc__ or "").strip().split("\n")[0].rstrip(".")))
        for algorithm in whole:
            _add(algorithm)
        _discovered.add(family)


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm; from then on it competes in `get` and `find`.

    Raises
    ------
    TypeError
        What is given is no `Algorithm`.
    ValueError
        There is no such operation, or it has an algorithm of that name.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from dnnkern import dispatch
    >>> naive = dispatch.algorithms("matmul")[0]
    >>> mine = dispatch.register(replace(naive, name="mine"))
    >>> dispatch.unregister(mine)
    """
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"register: algorithm is {shown(algorithm)}; expected a dispatch.Algorithm")
    try:
        algorithms(algorithm.op)  # what the library has comes first
    except ValueError as error:
        raise ValueError(f"register: {error}") from None
    _add(algorithm)
    return algorithm


def _add(algorithm):
    with _lock:
        known = _registry.setdefault(algorithm.op, {})
        if algorithm.name in known:
            raise ValueError(f"register: {algorithm.op} already has an algorithm {algorithm.name!r}")
        known[algorithm.name] = algorithm
    choices_changed()


def unregister(algorithm: Algorithm):
    """Take an algorithm out again."""
    with _lock:
        _registry.get(algorithm.op, {}).pop(algorithm.name, None)
    choices_changed()


def no_operation(op, known):
    """The message where there is no such operation."""
    return f"no operation {shown(op)}{nearest(op, known) or '; there are ' + ', '.join(sorted(known))}"


def algorithms(op: str | None = None) -> list[Algorithm]:
    """The algorithms of an operation, or all of them."""
    if op is not None and not isinstance(op, str):
        raise TypeError(f"op={shown(op)}; expected the name of an operation")
    for family in [_family_of[op]] if op in _family_of else families():
        _discover(family)
    if op is None:
        return [a for known in _registry.values() for a in known.values()]
    if op not in _registry:
        raise ValueError(no_operation(op, _registry))
    return list(_registry[op].values())


def named(op, algo) -> Algorithm:
    """The algorithm of an operation that has this name; NotSupported if none has."""
    known = {a.name: a for a in algorithms(op)}
    if algo not in known:
        raise NotSupported(f"{op}: algo={shown(algo)}; expected one of {', '.join(map(repr, known))}{nearest(algo, known)}")
    return known[algo]


def check_choice(function, *, algo=None, allow=Note.NONE, workspace_limit=None, exclude=Note.NONE, **unknown):
    """TypeError or ValueError unless these are what decides the algorithm of a call to `function`, and no more."""
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


def get_algorithm(op, problem, *, algo=None, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, device=None,
                  prefer=None) -> Algorithm:
    """The algorithm to use, never measured here: the preferred one (`prefer`), else the find database's answer, else the least estimate.

    In the simulator, where nothing is preferred, that is what is likely to be quick to simulate.

    Parameters
    ----------
    op : str
        Operation, as in the names of its algorithms' files.
    problem : problem of that operation
    algo : str, optional
        Force this algorithm.
    workspace_limit : int, optional
        Bytes it may use.
    allow : Note
        NONDETERMINISTIC algorithms are chosen only if this has the flag.
    exclude : Note
        Algorithms that have any of these notes are not chosen.
    device : Device, optional
        Default: the current one.
    prefer : str, optional
        A preference for this choice, as `dnnkern.dispatch.prefer` takes it; default: the one in force.

    Returns
    -------
    Algorithm
        Bound to its configuration.

    Raises
    ------
    NotSupported
        A forced algorithm that cannot, or limits nothing meets; the message gives each candidate's reason.
    """
    check_choice("get_algorithm", algo=algo, workspace_limit=workspace_limit, allow=allow, exclude=exclude)
    if workspace_limit is not None:
        workspace_limit = integer("get_algorithm", "workspace_limit", workspace_limit)
    return _chosen(op, problem, algo, workspace_limit, allow, exclude, device or device_of(current_device()), preference(prefer))[0]


@functools.lru_cache(maxsize=4096)
def _chosen(op, problem, algo, workspace_limit, allow, exclude, device, preferred):
    known, limits = algorithms(op), {"allow": allow, "workspace_limit": workspace_limit, "exclude": exclude}
    if algo is not None:
        forced = named(op, algo)
        reason = refusal(forced, problem, device, **limits)
        if reason:
            raise NotSupported(f"{op}: algorithm {algo!r} cannot solve {problem}: {reason}")
        return forced.configured(problem, device, workspace_limit), "forced"
    reasons = {a.name: refusal(a, problem, device, **limits) for a in known}
    able = [a for a in known if reasons[a.name] is None]
    if not able:
        raise NotSupported(f"{op}: nothing solves {problem} within the limits given:\n"
                           + "\n".join(f"  {name}: {reason}" for name, reason in reasons.items()))
    chosen, why = next((a.configured(problem, device, workspace_limit) for a in able if a.name == preferred), None), "preferred"
    if chosen is None and device.is_simulated and preferred != DEVICE:
        chosen, why = quick_to_simulate(able, problem, device, workspace_limit), "quick to simulate"
    if chosen is None and (folder := cache_dir()) is not None and (folder / "find").is_dir():  # else spare the first call an import
        from . import find
        chosen, why = find.best_known(op, problem, device, able, workspace_limit), "measured"
    if chosen is None:
        bound = [a.configured(problem, device, workspace_limit) for a in able]
        chosen, why = min(bound, key=lambda a: a.seconds(problem, device, choosing=True)), "predicted"
    if _environment.words("DNNKERN_LOG", ("dispatch",)):
        _log_to_stderr()
        log.info("%s -> %s (%s %.4g ms)", problem, chosen, why, 1e3 * chosen.seconds(problem, device))
    return chosen, why


@functools.cache
def _log_to_stderr():
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def explain(op, problem, *, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, device=None, prefer=None) -> list[Candidate]:
    """Every algorithm's answer for a problem: why it cannot, or what it would take; the chosen one first, then by predicted time."""
    device, limits = device or device_of(current_device()), {"allow": allow, "workspace_limit": workspace_limit, "exclude": exclude}
    check_choice("explain", **limits)
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
        rows.append(Candidate(bound.name, None, 1e3 * bound.seconds(problem, device),
                              bound.workspace(problem, device, bound.config), bound.notes, bound.config_text, is_chosen, why * is_chosen))
    return sorted(rows, key=lambda c: (not c.chosen, c.reason is not None, c.time_ms or 0.0))


def find_algorithms(op, problem, *, arrays=None, workspace_limit=None, allow=Note.NONE, exclude=Note.NONE, save=True,
                    device=None) -> list[Perf]:
    """Measure every algorithm and configuration that can solve a problem; fastest first.

    The candidates run interleaved on inputs rotated past the L2, timed with CUDA events (wall clock in the simulator), median. The
    result goes to the find database, where `get_algorithm` looks first, unless a candidate was skipped for its workspace or its notes. The
    simulator's times say nothing of a device, and are not stored.

    Parameters
    ----------
    arrays : tuple, optional
        The operands to measure on, in the problem's order; default: random ones.
    workspace_limit, allow, exclude
        As `get_algorithm`'s; what they rule out is not measured.
    save : bool
        Write to the database.

    Returns
    -------
    list of Perf
    """
    from . import find
    check_choice("find_algorithms", workspace_limit=workspace_limit, allow=allow, exclude=exclude)
    return find.measure(op, problem, arrays=arrays, workspace_limit=workspace_limit, allow=allow, exclude=exclude, save=save,
                        device=device or device_of(current_device()))


def problem_record(problem) -> dict:
    """A problem as JSON data, for the database and the bench results; infinities as text, which JSON has no number for."""
    return plain(asdict(problem))


__all__ = ["Algorithm", "Candidate", "Device", "Note", "NotSupported", "Perf", "algorithms", "explain", "find_algorithms", "get_algorithm",
           "prefer", "register", "unregister"]
