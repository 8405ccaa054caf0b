"""Algorithms and their descriptions: the data of the registry (`dispatch`) and of measurements (`find`)."""
import bisect
from dataclasses import asdict, dataclass, field
from enum import Flag, auto
from math import inf
from typing import Callable

from .engine.cost import Cost
from .host.paths import plain

ROUNDING = 1 + 1e-9  # a bound and an estimate may add up the same terms in different orders


class Note(Flag):
    """Properties that a caller may have to allow or want to avoid, in cuDNN's vocabulary."""
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
        """Names of the flags that are set; before Python 3.11 `name` is None for several."""
        return [note.name for note in Note if note & self]


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
        The first reason why it cannot, or None. About correctness only.
    fits : callable(problem, device) -> str or None, optional
        The first reason why it cannot run on a device of its architecture, or None: for example blocks that must be resident at once.
    workspace : callable(problem, device, config) -> int
        Bytes.
    estimate : callable(problem, device, config) -> float
        Predicted seconds: a number, or a `Cost`, whose terms `explain` shows.
    build : callable(problem, device, config) -> tuple of Launch
        The launches.
    configs : callable(problem, device) -> sequence of Config, optional
        Every configuration that can solve the problem. Without it there is just one, and `config` is None in the calls above.
    best : callable(problem, device) -> Config, optional
        The configuration of least estimate, the first in the order of `configs` if there are several, where it is found sooner than by
        asking them all.
    bound : callable(problem, device) -> float, optional
        Seconds that no configuration's `estimate` is below, found in a few microseconds. Whoever looks for the least estimate asks only
        those algorithms whose bound is lower than what was found; without one it is 0, and the algorithm is always asked.
    config_bound : callable(problem, device, config) -> float, optional
        The same for one configuration, where its estimate takes much longer.
    notes : Note
    math : str
        Its arithmetic: "exact", "tf32", ...; `supports` refuses problems that do not allow it.
    arch : str
        "sm_70+", or an exact "sm_90a".
    programs : bool
        Whether it runs the program of a problem that has one, see `device.program`.
    bits : tuple of str
        "loads" and "stores", where it takes such of a program by bits.
    prologues : bool
        Whether it makes operands by programs as it loads them, see `engine.prologues`.
    reductions : bool
        Whether it reduces values of its program, see `device.program`.
    rows : bool
        Whether its program may have steps that reduce each row of the result, see `device.program`.
    dual : bool
        Whether it multiplies by a second right operand, `b_dual`, where a problem has one.
    config : Config or None
        The configuration this object is bound to; `configured` binds it.
    idea : str
        One line, the first of its file's docstring; set by discovery.
    source : str
        The file that binds it, relative to the folder that contains the package: "dnnkern/conv/winograd/__init__.py"; set by discovery.
    """
    op: str
    name: str
    supports: Callable
    workspace: Callable
    estimate: Callable
    build: Callable
    configs: Callable | None = None
    fits: Callable | None = None
    best: Callable | None = None
    bound: Callable | None = None
    config_bound: Callable | None = None
    notes: Note = Note.NONE
    math: str = "exact"
    arch: str = "sm_70+"
    programs: bool = False
    bits: tuple = ()
    prologues: bool = False
    reductions: bool = False
    rows: bool = False
    dual: bool = False
    config: object = None
    idea: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    def refusal(self, problem, device) -> str | None:
        """Why it cannot solve a problem on a device; None if it can."""
        return (device.supports(self.arch) or self.reason(problem)
                or (self.fits(problem, device) if self.fits is not None and not problem.is_empty else None))

    def reason(self, problem) -> str | None:
        """Why it cannot solve a problem on any device; None if it can."""
        if not self.programs and getattr(problem, "program", None) is not None:
            return f"{self.name} runs no program"
        for what in getattr(getattr(problem, "program", None), "bits", ()):
            if what not in self.bits:
                return f"{self.name} has no {what} of bits"
        if not self.prologues and getattr(problem, "prologues", None):
            return f"{self.name} runs no prologue"
        if not self.reductions and getattr(getattr(problem, "program", None), "reductions", ()):
            return f"{self.name} runs no reductions"
        if not self.rows and getattr(getattr(problem, "program", None), "row_steps", ()):
            return f"{self.name} reduces no rows of its result"
        if not self.dual and getattr(problem, "b_dual", None) is not None:
            return f"{self.name} multiplies by one right operand"
        return self.supports(problem)

    def configured(self, problem, device, workspace_limit=None) -> "Algorithm":
        """Bound to the configuration with the lowest estimate within the limit; itself if there is no choice."""
        return self if self.configs is None or self.config is not None else self.least(problem, device, workspace_limit)[0]

    def least(self, problem, device, workspace_limit=None, below=inf) -> tuple | None:
        """(as `configured`, its estimate); None where the bounds of all configurations are above so many seconds."""
        if self.configs is None or self.config is not None:
            return self, self.estimate(problem, device, self.config)
        if self.best is not None and workspace_limit is None:
            config = self.best(problem, device)
            return self.bound_to(config), self.estimate(problem, device, config)
        candidates = [c for c in self.configs(problem, device)
                      if workspace_limit is None or self.workspace(problem, device, c) <= workspace_limit]
        if not candidates:
            raise NotSupported(f"{self}: no configuration fits {problem}"
                               + (f" in {workspace_limit} bytes of workspace" if workspace_limit is not None else ""))
        found = None
        for config in candidates:
            if self.config_bound is not None and self.config_bound(problem, device, config) > below * ROUNDING:
                continue
            seconds = self.estimate(problem, device, config)
            if found is None or seconds < found[1]:
                found = config, seconds
                below = min(below, seconds)
        return found and (self.bound_to(found[0]), found[1])

    def least_seconds(self, problem, device, choosing=False) -> float:
        """Seconds that the time it is predicted to take is not below, whatever the configuration."""
        if device.is_processor:
            return self.cost(problem, device, choosing)
        return self.bound(problem, device) if self.bound is not None else 0.0

    def bound_to(self, config):
        """Like `dataclasses.replace`, which takes longer than most estimates."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, config=config)
        return other

    def cost(self, problem, device, choosing=False) -> Cost:
        """The predicted time of a call, as terms; `choosing`: with a share of the compile time, where a choice has to count it."""
        if device.is_processor:
            from .host import processor
            return processor.cost(self, problem, device, choosing)
        return Cost.of(self.estimate(problem, device, self.config))

    def seconds(self, problem, device, choosing=False) -> float:
        """The predicted time of a call, as in `cost`."""
        return float(self.cost(problem, device, choosing))

    def least_workspace(self, problem, device) -> int:
        """Bytes of workspace of the configuration that needs the least."""
        configs = (self.config,) if self.configs is None or self.config is not None else self.configs(problem, device)
        return min((self.workspace(problem, device, c) for c in configs), default=0)

    def variants(self, problem, device) -> list:
        """One algorithm for each configuration, the most promising first."""
        if self.configs is None or self.config is not None:
            return [self]
        ranked = sorted(self.configs(problem, device), key=lambda c: self.estimate(problem, device, c))
        return [self.bound_to(c) for c in ranked]

    @property
    def is_deterministic(self):
        return Note.NONDETERMINISTIC not in self.notes

    @property
    def config_text(self) -> str:
        """The configuration as in the find database; "" if there is none."""
        return "" if self.config is None else str(self.config)

    def __str__(self):
        return f"{self.op}/{self.name}" + (f"[{self.config}]" if self.config is not None else "")


def cheapest(algorithms, problem, device, workspace_limit=None, count=1, choosing=False) -> list:
    """The `count` algorithms that are predicted to take the least time, bound to their best configurations: [(algorithm, seconds)].

    What they would be by the estimates of all; of equal ones the first. But algorithms are tried in the order of their bounds, and no
    more of them once the bounds are above what was found. `choosing`: as in `Algorithm.cost`.
    """
    bounds = sorted((a.least_seconds(problem, device, choosing), k) for k, a in enumerate(algorithms))
    found = []  # (seconds, index)
    bound_to = {}
    for bound, k in bounds:
        below = found[count - 1][0] if len(found) >= count else inf
        if bound > below * ROUNDING:
            break
        if device.is_processor:  # where the configuration does not matter
            bound_to[k], seconds = algorithms[k].configured(problem, device, workspace_limit), bound
        elif (best := algorithms[k].least(problem, device, workspace_limit, below)) is None:
            continue
        else:
            bound_to[k], seconds = best
        bisect.insort(found, (seconds, k))
    return [(bound_to[k], seconds) for seconds, k in found[:count]]


def problem_record(problem) -> dict:
    """A problem as JSON data, for the database and the bench results; infinities are text, since JSON has no number for them."""
    return plain(asdict(problem))


__all__ = ["Algorithm", "Note", "NotSupported", "problem_record"]
