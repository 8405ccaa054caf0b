"""What ran on this library's kernels, and what on PyTorch's and why."""
import threading
from typing import NamedTuple

from ..device._fork import in_forked_child

MOST_REASONS = 64  # of an operator; further ones are counted together
OTHERS = "other reasons"


class Row(NamedTuple):
    """Calls of one operator: by this library, or for one reason by PyTorch.

    Attributes
    ----------
    op : str
        The aten operator.
    ours : bool
        Whether this library's kernels ran.
    why : str or None
        Why they did not.
    calls : int
    seconds : float
        Host time of the calls; on a GPU kernels run after they are launched.
    """
    op: str
    ours: bool
    why: str | None
    calls: int
    seconds: float


class Record:
    """Counts calls of one operator. Backward passes count from threads of their own: ``+=`` of a number to an attribute calls nothing, so
    that no other thread interrupts it, and reasons, which are rarer, take a lock."""
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

    def refuse(self, why, nanoseconds):
        """Count a call that PyTorch computed."""
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


_records = {}


def _unlock():
    global _lock
    _lock = threading.Lock()


_unlock()
in_forked_child(_unlock)


def record(op) -> Record:
    """The one record of an operator."""
    found = _records.get(op)
    return found if found is not None else _records.setdefault(op, Record(op))


def status(*, reset=False) -> list:
    """Calls of overridden operators so far, in this process.

    Parameters
    ----------
    reset : bool
        Count from 0 again afterwards.

    Returns
    -------
    list of Row
        One for each operator that ran on this library's kernels, and one for each reason why it ran on PyTorch's; the longest first.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> before = dnnkern.torch.status(reset=True)
    >>> with dnnkern.torch.enabled("mm"):
    ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
    ...     z = torch.ones(2, 3, dtype=torch.int64) @ torch.ones(3, 4, dtype=torch.int64)
    >>> for row in sorted(dnnkern.torch.status(reset=True)):
    ...     print(row.op, row.ours, row.why, row.calls)
    mm False dtype int64 1
    mm True None 1
    """
    with _lock:
        rows = [row for each in list(_records.values()) for row in each.rows()]
        if reset:
            for each in _records.values():
                each.clear()
    return sorted(rows, key=lambda row: -row.seconds)
