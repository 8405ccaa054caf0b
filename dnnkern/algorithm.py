"""What an algorithm is, and what is said of it: the data of the registry (`dispatch`) and of what was measured (`find`)."""
from dataclasses import asdict, dataclass, field
from enum import Flag, auto
from typing import Callable

from .engine.cost import Cost
from .host.paths import plain


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
        Predicted seconds: a number, or a `Cost`, whose terms `explain` shows.
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
    source : str
        The file that binds it, from the folder that holds the package: "dnnkern/conv/winograd/__init__.py". Discovery sets it.
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
    source: str = field(default="", compare=False)

    def refusal(self, problem, device) -> str | None:
        """Why it cannot solve a problem on a device; None if it can."""
        return (device.supports(self.arch) or self.supports(problem)
                or (self.fits(problem, device) if self.fits is not None and not problem.is_empty else None))

    def configured(self, problem, device, workspace_limit=None) -> "Algorithm":
        """Bound to the configuration with the least estimate among those within the limit; itself where there is no choice."""
        return self if self.configs is None or self.config is not None else self._best(problem, device, workspace_limit)[0]

    def predicted(self, problem, device, workspace_limit=None, choosing=False) -> tuple:
        """As `configured`, and its `seconds`."""
        if self.configs is None or self.config is not None:
            return self, self.seconds(problem, device, choosing)
        bound, estimate = self._best(problem, device, workspace_limit)
        return bound, bound.seconds(problem, device, choosing) if device.is_processor else float(estimate)

    def _best(self, problem, device, workspace_limit):
        """(bound to the configuration with the least estimate, that estimate)."""
        candidates = [c for c in self.configs(problem, device)
                      if workspace_limit is None or self.workspace(problem, device, c) <= workspace_limit]
        if not candidates:
            raise NotSupported(f"{self}: no configuration fits {problem}"
                               + (f" in {workspace_limit} bytes of workspace" if workspace_limit is not None else ""))
        estimates = [self.estimate(problem, device, c) for c in candidates]
        least = min(estimates)
        return self._bound(candidates[estimates.index(least)]), least

    def _bound(self, config):
        """`dataclasses.replace`, which takes longer than most estimates."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, config=config)
        return other

    def cost(self, problem, device, choosing=False) -> Cost:
        """What a call is predicted to take, in terms; `choosing`: with a share of the time to compile, where a choice has to count it."""
        if device.is_processor:
            from .host import processor
            return processor.cost(self, problem, device, choosing)
        return Cost.of(self.estimate(problem, device, self.config))

    def seconds(self, problem, device, choosing=False) -> float:
        """What a call is predicted to take, as `cost`."""
        return float(self.cost(problem, device, choosing))

    def least_workspace(self, problem, device) -> int:
        """Bytes that its most frugal configuration needs."""
        configs = (self.config,) if self.configs is None or self.config is not None else self.configs(problem, device)
        return min((self.workspace(problem, device, c) for c in configs), default=0)

    def variants(self, problem, device) -> list:
        """One algorithm for each configuration, the most promising first."""
        if self.configs is None or self.config is not None:
            return [self]
        ranked = sorted(self.configs(problem, device), key=lambda c: self.estimate(problem, device, c))
        return [self._bound(c) for c in ranked]

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

    `why` the chosen one is that: "preferred", "quick to simulate", "measured" or "predicted". `terms`: what the predicted time is the sum
    of, in milliseconds by name (`engine.cost.TERMS`); `hidden`: what overlaps longer terms.
    """
    algo: str
    reason: str | None
    time_ms: float | None = None
    memory: int | None = None
    notes: Note = Note.NONE
    config: str = ""
    chosen: bool = False
    why: str = ""
    terms: dict = field(default_factory=dict, compare=False)
    hidden: dict = field(default_factory=dict, compare=False)


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


def problem_record(problem) -> dict:
    """A problem as JSON data, for the database and the bench results; infinities as text, which JSON has no number for."""
    return plain(asdict(problem))


__all__ = ["Algorithm", "Candidate", "Note", "NotSupported", "Perf", "problem_record"]
