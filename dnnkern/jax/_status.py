"""What ran on this library's kernels, and what JAX compiled to its own and why."""
import threading
from typing import NamedTuple

from ..device._fork import in_forked_child


class Row(NamedTuple):
    """Calls of one operation: by this library, or for one reason by JAX.

    Attributes
    ----------
    op : str
        A function of this library, or under `enable` JAX's primitive.
    ours : bool
        Whether this library's kernels ran.
    why : str or None
        Why they did not.
    calls : int
        How often kernels ran; of JAX's own, how often the operation was compiled into a program.
    seconds : float
        Host time of the calls; on a GPU kernels run after they are launched. 0 for JAX's own.
    """
    op: str
    ours: bool
    why: str | None
    calls: int
    seconds: float


class Record:
    """Counts calls of one operation, from several threads."""

    def __init__(self, op):
        self.op, self.calls, self.nanoseconds, self.refused = op, 0, 0, {}

    def count(self, nanoseconds):
        """Count a call that this library computed."""
        with _lock:
            self.calls += 1
            self.nanoseconds += nanoseconds

    def refuse(self, why):
        """Count an operation that JAX compiles."""
        with _lock:
            self.refused[why] = self.refused.get(why, 0) + 1

    def rows(self):
        """The `Row` of each kind of call."""
        if self.calls:
            yield Row(self.op, True, None, self.calls, self.nanoseconds / 1e9)
        for why, calls in self.refused.items():
            yield Row(self.op, False, why, calls, 0.0)


_records = {}


def _unlock():
    global _lock
    _lock = threading.RLock()


_unlock()
in_forked_child(_unlock)


def record(op) -> Record:
    """The one record of an operation."""
    with _lock:
        return _records.setdefault(op, Record(op))


def status(*, reset=False) -> list:
    """Calls of this library's functions and of replaced operations so far, in this process.

    Programs run asynchronously: what has not finished (``block_until_ready``) may not be counted yet.

    Parameters
    ----------
    reset : bool
        Count from 0 again afterwards.

    Returns
    -------
    list of Row
        One for each operation that ran on this library's kernels, and one for each reason why JAX compiled its own; the longest first.

    Examples
    --------
    >>> import jax.numpy as jnp, dnnkern.jax
    >>> before = dnnkern.jax.status(reset=True)
    >>> y = dnnkern.jax.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).block_until_ready()
    >>> [(row.op, row.ours, row.calls) for row in dnnkern.jax.status(reset=True)]
    [('matmul', True, 1)]
    """
    with _lock:
        rows = [row for each in _records.values() for row in each.rows()]
        if reset:
            _records.clear()
    return sorted(rows, key=lambda row: -row.seconds)
