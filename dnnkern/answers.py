"""What `dispatch.explain` and `dispatch.find_algorithms` answer. No call needs them, and to make such a class takes half a millisecond."""
from dataclasses import dataclass, field

from .algorithm import Note


@dataclass(frozen=True)
class Candidate:
    """An algorithm's answer for one problem: a reason why it cannot run, or its predicted time and workspace.

    `why` it was chosen: "preferred", "quick to simulate", "measured" or "predicted". The predicted time is the sum of `terms`, in
    milliseconds by name (`engine.cost.TERMS`); `hidden` are those that overlap longer ones.
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
