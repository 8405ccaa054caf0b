"""Who knows which earlier events have happened: vector clocks.

A launch has one time line. An *agent* is a thread of a block, or something that acts for one asynchronously and has a slot of its own. A
clock says of every agent of one block up to when everything the agent did happens before the clock's owner goes on; of other blocks it
says so only where there was synchronisation across blocks. `fences` is the part of it that proxy fences have made visible to
asynchronous agents, and `freed` says of more that its reads are over, not what threads wrote. Clocks are immutable and shared: a barrier
hands one object to all its threads, and joins are remembered by identity.

Barriers of threads do not cover asynchronous agents: the times of those start at `ASYNCHRONOUS`, beyond all times of threads.
"""
import numpy as np

from . import trace
from .errors import Misuse

SLOTS = 320
ASYNCHRONOUS = 1 << 40


class Fences:
    """What asynchronous agents may rely on of what threads did: times by agent, for each block's number.

    `elsewhere` came from fences for all memory, `shared` from those and the ones for shared memory alone; up to `floor` it is everything.
    """
    __slots__ = "shared", "elsewhere", "floor"

    def __init__(self, shared, elsewhere, floor):
        self.shared, self.elsewhere, self.floor = shared, elsewhere, floor

    def join(self, other):
        """Both together."""
        if other is self or other is NO_FENCES:
            return self
        if self is NO_FENCES:
            return other
        shared = later_by_block(self.shared, other.shared)
        elsewhere = later_by_block(self.elsewhere, other.elsewhere)
        return Fences(shared, elsewhere, max(self.floor, other.floor))


NO_FENCES = Fences({}, {}, 0)


class Clock:
    """Times by agent of block number `block`; `remote` and `freed` map blocks' numbers to such vectors."""
    __slots__ = "block", "times", "remote", "fences", "freed"

    def __init__(self, block, times, remote, fences, freed):
        self.block, self.times, self.remote, self.fences, self.freed = block, times, remote, fences, freed

    def of(self, block):
        """Times by agent of a block, or None."""
        return self.times if block == self.block else self.remote.get(block)

    def replaced(self, times=None, fences=None, freed=None):
        """The same but for what is given."""
        return Clock(self.block, self.times if times is None else times, self.remote, fences or self.fences,
                     self.freed if freed is None else freed)

    def knowing(self, agents, time):
        """The same, and all that an agent of the own block, or several, did until `time`."""
        times = self.times.copy()
        times[agents] = time
        return self.replaced(times)

    def fenced(self, where, floor):
        """The same, all of it visible to asynchronous agents; in "shared" or in "global" memory, or in "all", where everybody knows
        `floor`."""
        known = {self.block: self.times, **self.remote}
        fences = Fences({} if where == "global" else known, {} if where == "shared" else known, floor if where == "all" else 0)
        return self.replaced(fences=self.fences.join(fences))

    def freeing(self, other):
        """The same, and that the reads `other` knows of are over."""
        freed = later_by_block(later_by_block(self.freed, other.freed), {other.block: other.times, **other.remote})
        return self.replaced(freed=freed)


def _later(a, b):
    return a if b is a else np.maximum(a, b)


def later_by_block(a, b):
    """What is known by `a` or by `b`, both vectors by block number."""
    if a is b or not b:
        return a
    out = dict(a)
    for block, times in b.items():
        out[block] = _later(times, out.get(block, times))
    return out


class Clocks:
    """Clocks of one block."""

    def __init__(self, block, nthreads):
        self.block, self.n, self.names, self.remedies, self._joins = block, nthreads, [], [], {}
        self.start = Clock(block, np.zeros(nthreads + SLOTS, np.int64), {}, NO_FENCES, {})

    def slot(self, name, remedy=""):
        """Number of a new asynchronous agent; `remedy` says what orders accesses after its own."""
        if len(self.names) == SLOTS:
            raise Misuse(f"more than {SLOTS} asynchronous agents in a block")
        self.names.append(name)
        self.remedies.append(remedy)
        if trace.ACTIVE is not None:
            trace.ACTIVE.started(self.block, self.n + len(self.names) - 1)
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
        return clock.replaced(times)

    def meet(self, clocks, tids, now):
        """Clock with which the threads `tids` leave a barrier that they enter with `clocks`."""
        distinct = list({id(c): c for c in clocks}.values())
        out = self.join(distinct[0], distinct[-1]) if len(distinct) < 3 else _join_all(distinct)
        times = out.times.copy()
        times[tids] = now
        return out.replaced(times)


def _join_all(clocks):
    """What is known by any of several clocks of one block."""
    fences = list({id(c.fences): c.fences for c in clocks}.values())
    together = Fences(_latest([f.shared for f in fences]), _latest([f.elsewhere for f in fences]), max(f.floor for f in fences))
    times = np.maximum.reduce(list({id(c.times): c.times for c in clocks}.values()))
    return Clock(clocks[0].block, times, _latest([c.remote for c in clocks]), together if fences != [NO_FENCES] else NO_FENCES,
                 _latest([c.freed for c in clocks]))


def _latest(known):
    """`later_by_block` of many."""
    by_block = {}
    for vectors in {id(v): v for v in known}.values():
        for block, times in vectors.items():
            by_block.setdefault(block, {})[id(times)] = times
    return {block: np.maximum.reduce(list(some.values())) if len(some) > 1 else next(iter(some.values()))
            for block, some in by_block.items()}


def _join(a, b):
    times, remote = a.times, a.remote
    if a.block == b.block:
        times = _later(times, b.times)
    else:
        remote = later_by_block(remote, {b.block: b.times})
    theirs = b.remote
    if a.block in theirs:
        times = _later(times, theirs[a.block])
        theirs = {block: v for block, v in theirs.items() if block != a.block}
    return Clock(a.block, times, later_by_block(remote, theirs), a.fences.join(b.fences), later_by_block(a.freed, b.freed))
