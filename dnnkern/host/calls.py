"""What ran on this library's kernels beneath another framework, and what on the framework's own and why."""
import threading
from typing import NamedTuple

from ..device._fork import in_forked_child

MOST_REASONS = 64  # of an operator; further ones are counted together
OTHERS = "other reasons"


class Row(NamedTuple):
    """Calls of one operator: by this library, or for one reason by the framework.

    Attributes
    ----------
    op : str
        The framework's operator, or a function of this library.
    ours : bool
        Whether this library's kernels ran.
    why : str or None
        Why they did not.
    calls : int
        How often kernels ran, or the framework took the operator back.
    seconds : float
        Host time of the calls; on a GPU kernels run after they are launched.
    """
    op: str
    ours: bool
    why: str | None
    calls: int
    seconds: float


class Record:
    """Counts calls of one operator, from several threads: ``+=`` of a number to an attribute calls nothing, so that no other thread
    interrupts it, and reasons, which are rarer, take a lock."""
    __slots__ = "op", "calls", "nanoseconds", "refused"

    def __init__(self, op):
        self.op = op
        self.clear()

    def clear(self):
        """Forget all calls."""
        self.calls = self.nanoseconds = 0
        self.refused = {}

    def count(self, nanoseconds):
        """Count a call that this library computed."""
        self.calls += 1
        self.nanoseconds += nanoseconds

    def refuse(self, why, nanoseconds=0):
        """Count a call that the framework computes."""
        with _lock:
            counted = self.refused.get(why)
            if counted is None:
                counted = self.refused.setdefault(why if len(self.refused) < MOST_REASONS else OTHERS, [0, 0])
            counted[0] += 1
            counted[1] += nanoseconds

    def rows(self):
        """The `Row` of each kind of call."""
        if self.calls:
            yield Row(self.op, True, None, self.calls, self.nanoseconds / 1e9)
        for why, (calls, nanoseconds) in self.refused.items():
            yield Row(self.op, False, why, calls, nanoseconds / 1e9)


class Calls:
    """The records of a framework's operators."""

    def __init__(self):
        self._records = {}

    def record(self, op) -> Record:
        """The one record of an operator."""
        found = self._records.get(op)
        return found if found is not None else self._records.setdefault(op, Record(op))

    def rows(self, reset) -> list:
        """All `Row`s, the longest first; with `reset` calls count from 0 again."""
        with _lock:
            rows = [row for each in list(self._records.values()) for row in each.rows()]
            if reset:
                for each in self._records.values():
                    each.clear()
        return sorted(rows, key=lambda row: -row.seconds)


def _unlock():
    global _lock
    _lock = threading.Lock()


_unlock()
in_forked_child(_unlock)
