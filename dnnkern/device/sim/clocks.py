"""Who knows which earlier events have happened: vector clocks.

A launch has one time line. An *agent* is a thread of a block, or something that acts for one asynchronously and has a slot of its own. A
clock says of every agent of one block up to when everything the agent did happens before the clock's owner goes on; of other blocks it
says so only where there was synchronisation across blocks. `fenced` is the part of it that a proxy fence has made visible to
asynchronous agents. Clocks are immutable and shared: a barrier hands one object to all its threads, and joins are remembered by identity.

Barriers of threads do not cover asynchronous agents: the times of those start at `ASYNCHRONOUS`, beyond all times of threads.
"""
import numpy as np

from .errors import Misuse

SLOTS = 160
ASYNCHRONOUS = 1 << 40


class Clock:
    """Times by agent of block number `block`; `remote` maps other blocks' numbers to such vectors."""
    __slots__ = "block", "times", "fenced", "remote"

    def __init__(self, block, times, fenced, remote):
        self.block, self.times, self.fenced, self.remote = block, times, fenced, remote

    def of(self, block):
        """Times by agent of a block, or None."""
        return self.times if block == self.block else self.remote.get(block)


def _later(a, b):
    return a if b is a else np.maximum(a, b)


class Clocks:
    """Clocks of one block."""

    def __init__(self, block, nthreads):
        self.block, self.n, self.names, self._joins = block, nthreads, [], {}
        zero = np.zeros(nthreads + SLOTS, np.int64)
        self.start = Clock(block, zero, zero, {})

    def slot(self, name):
        """Number of a new asynchronous agent."""
        if len(self.names) == SLOTS:
            raise Misuse(f"more than {SLOTS} asynchronous agents in a block")
        self.names.append(name)
        return self.n + len(self.names) - 1

    def name(self, agent):
        return f"thread {agent}" if agent < self.n else self.names[agent - self.n]

    def join(self, a, b):
        """What is known to `a` or to `b`; of the block that `a` is of. None knows nothing."""
        if b is None or a is b:
            return a
        if a is None:
            return b
        key = id(a), id(b)
        hit = self._joins.get(key)
        if hit is None:
            if len(self._joins) > 1024:
                self._joins.clear()
            hit = self._joins[key] = (_join(a, b), a, b)  # holds a and b, so that their ids stay theirs
        return hit[0]

    def release(self, clock, tid, now, floor):
        """`clock` of thread `tid` with all that the thread has done until `now`, and the block's threads until `floor`."""
        times = clock.times.copy()
        np.maximum(times[:self.n], floor, out=times[:self.n])
        times[tid] = now
        return Clock(clock.block, times, clock.fenced, clock.remote)

    def meet(self, clocks, tids, now):
        """Clock with which the threads `tids` leave a barrier that they enter with `clocks`."""
        out = clocks[0]
        for c in {id(c): c for c in clocks}.values():
            out = self.join(out, c)
        times = out.times.copy()
        times[tids] = now
        return Clock(out.block, times, out.fenced, out.remote)


def _join(a, b):
    if a.block == b.block:
        times, fenced, remote = _later(a.times, b.times), _later(a.fenced, b.fenced), dict(a.remote)
    else:
        times, fenced, remote = a.times, a.fenced, dict(a.remote)
        remote[b.block] = _later(b.times, remote.get(b.block, b.times))
    for block, theirs in b.remote.items():
        if block == a.block:
            times = _later(times, theirs)
        else:
            remote[block] = _later(theirs, remote.get(block, theirs))
    return Clock(a.block, times, fenced, remote)
