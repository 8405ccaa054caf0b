"""What acts asynchronously, tensor cores and bulk copies: agents beside the threads, in the order of memory accesses.

Threads start such an agent and hand it what they know. But it sees memory through another proxy than they do: of plain accesses, its
starters' own included, it knows only those that a proxy fence (fence.proxy.async) has passed on since, which is `Clock.fenced`; of other
asynchronous agents it knows what its starters have waited for. What it does itself nobody knows before waiting for it: barriers of threads
do not cover the times from `clocks.ASYNCHRONOUS` on.
"""
import numpy as np

from . import order
from .clocks import ASYNCHRONOUS, SLOTS, Clock


def agent(block, name):
    """Number in the block of the asynchronous agent `name`, made at its first use."""
    agents = block.__dict__.setdefault("agents", {})
    if name not in agents:
        agents[name] = block.clocks.slot(name)
    return agents[name]


def fence(thread):
    """fence.proxy.async: agents started from here on, by whoever knows of it, see all that `thread` knows of."""
    block = thread.block
    order.examine(block, (thread,))
    clock, n = thread.clock, block.n
    fenced = clock.times.copy()
    np.maximum(fenced[:n], block.floor, out=fenced[:n])
    fenced[thread.tid] = block.launch.now
    thread.clock = Clock(clock.block, clock.times, fenced, clock.remote)
    block.uniform = False


def learn(block, threads, slot, time):
    """`threads` of the block have waited for what agent number `slot` did up to `time`."""
    made = {}
    for t in threads:
        clock = t.clock
        if clock.times[slot] < time:
            if id(clock) not in made:
                times = clock.times.copy()
                times[slot] = time
                made[id(clock)] = Clock(clock.block, times, clock.fenced, clock.remote), clock
            t.clock = made[id(clock)][0]
    block.uniform = False


class Starters(order.Knowledge):
    """What an agent knows that is started by threads of `block` with `clocks`: what all of them do."""

    def __init__(self, block, clocks):
        self.launch, self.home, self.clocks = block.launch, block, clocks
        self.block, self.stride = block.number, block.n + SLOTS
        self.floor = self.oldest = 0
        self.only_a_fence = False

    def unknown(self, tids, agents, times):
        """Which of the accesses (agent, time) the agent does not know of."""
        known, plain = np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
        owners, local = np.divmod(agents, self.stride)
        for owner in np.unique(owners):
            at = np.flatnonzero(owners == owner)
            where = local[at]
            if owner == self.block:
                synchronised = np.where(where < self.home.n, self.home.floor, 0)
                plain[at] = np.minimum.reduce([np.maximum(c.times[where], synchronised) for c in self.clocks])
                known[at] = np.minimum.reduce([np.where(where < self.home.n, c.fenced[where], c.times[where]) for c in self.clocks])
            else:
                of_all = [c.of(int(owner)) for c in self.clocks]
                if not any(v is None for v in of_all):
                    known[at] = np.minimum.reduce([v[where] for v in of_all])
                known[at] = plain[at] = np.maximum(known[at], self.launch.floor)
        bad = known < times
        if bad.any():
            first = bad.argmax()
            self.only_a_fence = bool(plain[first] >= times[first])
        return bad

    def remedy(self, tid, agent):
        if self.only_a_fence:
            return "a fence_async is missing between them: plain accesses are in another proxy than those of tensor cores and bulk copies"
        if agent // self.stride == self.block and agent % self.stride > self.home.n:
            return f"a wait for {self.name(agent)} is missing between them"
        return "a barrier is missing between them"


class Access:
    """One access of an agent to shared memory, in aligned pieces of 16 bytes: `pieces` counts them from the memory's first byte."""

    def __init__(self, block, slot, clocks):
        block.launch.now += 1
        self.block, self.slot, self.time = block, slot, ASYNCHRONOUS + block.launch.now
        self.known = Starters(block, clocks)

    def read(self, pieces):
        """Check the order of a read of the pieces and remember it."""
        shadow = order.shadow_of(self.block.shared)
        if shadow is not None:
            shadow.read(*shadow.cells(pieces, np.full(len(pieces), self.slot), 4), self.known, self.time)

    def write(self, pieces):
        """Check the order of a write of the pieces and remember it."""
        shadow = order.shadow_of(self.block.shared)
        if shadow is not None:
            shadow.write(*shadow.cells(pieces, np.full(len(pieces), self.slot), 4), self.known, self.time)
