"""What acts asynchronously, tensor cores and bulk copies: agents beside the threads, in the order of memory accesses.

Threads start such an agent and hand it what they know. But it sees memory through another proxy than they do: of plain accesses, its
starters' own included, it knows only those that a proxy fence (fence.proxy.async) has passed on since, which is `Clock.fences`; of other
asynchronous agents it knows what its starters have waited for. What it does itself nobody knows before waiting for it: barriers of threads
do not cover the times from `clocks.ASYNCHRONOUS` on.
"""
import numpy as np

from . import order
from .clocks import ASYNCHRONOUS, SLOTS

NOBODY = 1 << 62


def agent(block, name, remedy=""):
    """Number in the block of the asynchronous agent `name`, made at its first use; `remedy` says how threads wait for it."""
    agents = block.__dict__.setdefault("agents", {})
    if name not in agents:
        agents[name] = block.clocks.slot(name, remedy)
    return agents[name]


def fence(thread, where="all"):
    """fence.proxy.async: agents started from here on, by whoever knows of it, see all that `thread` knows of; or what is in "shared" or
    "global" memory only."""
    block, launch = thread.block, thread.block.launch
    launch.asynchronous = True
    order.examine(block, (thread,))
    thread.clock = block.clocks.release(thread.clock, thread.tid, launch.now, block.floor).fenced(where, launch.floor)
    block.uniform = False


def learn(block, threads, slot, time):
    """`threads` of the block have waited for what agent number `slot` did up to `time`."""
    made = {}
    for t in threads:
        clock = t.clock
        if clock.times[slot] < time:
            if id(clock) not in made:
                made[id(clock)] = clock.knowing(slot, time), clock
            t.clock = made[id(clock)][0]
    block.uniform = False


def now(block):
    """The time, to agents: later than all that was started."""
    return ASYNCHRONOUS + block.launch.now


class Starters(order.Knowledge):
    """What an agent of `block` knows that is started by threads with `clocks`: what all of them do.

    `shared`: it accesses shared memory, for which there are fences of their own. `reads`: what it knows of reads, which need no fence.
    """

    def __init__(self, block, clocks, shared=True, reads=False):
        self.launch, self.home, self.clocks, self.shared, self.reads = block.launch, block, clocks, shared, reads
        self.block, self.stride = block.number, block.n + SLOTS
        self.floor = self.oldest = 0
        self.only_a_fence = False

    def same(self, tids):
        """Nobody: what an agent does is in no order with what it did before."""
        return np.full(len(tids), NOBODY)

    def unknown(self, tids, agents, times):
        """Which of the accesses (agent, time) the agent does not know of."""
        known, plain = np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
        owners, local = np.divmod(agents, self.stride)
        for owner in np.unique(owners).tolist():
            at = np.flatnonzero(owners == owner)
            of_each = [self._times(clock, owner, local[at]) for clock in self.clocks]
            plain[at] = np.minimum.reduce([p for p, _ in of_each])
            known[at] = np.minimum.reduce([k for _, k in of_each])
        bad = known < times
        if bad.any():
            first = bad.argmax()
            self.only_a_fence = bool(plain[first] >= times[first])
        return bad

    def _times(self, clock, owner, who):
        """Up to when a starter with `clock` knows the agents `who` of block number `owner`, and up to when it does so through its proxy."""
        threads = who < self.home.n
        plain = np.where(threads, self.home.floor if owner == self.block and self.block == clock.block else self.launch.floor, 0)
        if clock.of(owner) is not None:
            plain = np.maximum(plain, clock.of(owner)[who])
        if owner in clock.freed:  # covers what agents have done, copies that are over, and of what threads have done the reads
            plain = np.maximum(plain, np.where(threads & (not self.reads), 0, clock.freed[owner][who]))
        if self.reads:
            return plain, plain
        fences = clock.fences
        fenced = (fences.shared if self.shared else fences.elsewhere).get(owner)
        return plain, np.where(threads, fences.floor if fenced is None else np.maximum(fenced[who], fences.floor), plain)

    def remedy(self, tid, agent):
        if self.only_a_fence:
            return "a fence_async is missing between them: plain accesses are in another proxy than those of tensor cores and bulk copies"
        block, local = divmod(agent, self.stride)
        if local < self.home.n:
            return "who started it has not synchronised with that thread since"
        return self.launch.clocks[block].remedies[local - self.home.n] or f"a wait for {self.name(agent)} is missing between them"


class Access:
    """One action of an agent: the accesses to memory that it makes as one, all at one time.

    `generic`: the agent is in the proxy of the threads, and needs no fence.
    """

    def __init__(self, block, slot, clocks, generic=False):
        launch = block.launch
        launch.asynchronous = True
        launch.now += 1
        self.block, self.slot, self.clocks, self.generic, self.time = block, slot, clocks, generic, ASYNCHRONOUS + launch.now

    def _touch(self, kind, buffer, elements, size_log):
        shadow = order.shadow_of(buffer)
        if shadow is None:
            return
        cells, agents = shadow.cells(elements, np.full(len(elements), self.slot), size_log)
        shared = buffer.index == 0
        readers = Starters(self.block, self.clocks, shared, reads=True)
        known = readers if self.generic else Starters(self.block, self.clocks, shared)
        if kind == "read":
            shadow.read(cells, agents, known, self.time)
        elif kind == "write":
            shadow.write(cells, agents, known, self.time, readers)
        else:
            shadow.update(cells, agents, known, self.time, readers=readers)

    def read(self, pieces):
        """Check the order of a read of aligned pieces of 16 bytes of shared memory, counted from its first byte, and remember it."""
        self._touch("read", self.block.shared, pieces, 4)

    def runs(self, kind, buffer, starts, length):
        """The same for a "read", "write" or "update" of `length` bytes from each of the bytes `starts` of a buffer on."""
        if length and len(starts):
            odd = int(np.bitwise_or.reduce(starts)) | length
            size_log = 2 if odd % 4 == 0 else 1 if odd % 2 == 0 else 0
            self._touch(kind, buffer, ((starts >> size_log)[:, None] + np.arange(length >> size_log)).ravel(), size_log)
