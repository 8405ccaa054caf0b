"""What is remembered about every place of a buffer: who wrote it last, who has read it or updated it atomically since.

Places are cells of four bytes, or fewer as soon as something smaller is accessed, so accesses are told apart to the byte. An access is in
order if the accessor knows of the earlier ones it conflicts with: of the last write always, of reads when it writes, of atomic updates
when it is not one. The last write is one agent and time a cell. Reads and atomic updates can be many: a `History` keeps the latest time
and one agent for each cell, and all of them in a list that is only searched where that does not settle the matter.
"""
import numpy as np

from .clocks import ASYNCHRONOUS
from .errors import Race
from .trace import key_of

SEVERAL_BLOCKS = -1
COMPACT = 1 << 16


class History:
    """Reads, or atomic updates, of the cells of one buffer since each cell was last written.

    `agent` is the agent where it was one; -2 - b where it were several of block number b; SEVERAL_BLOCKS.
    """

    def __init__(self, cells):
        self.time, self.agent = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        self.list, self.listed, self.limit = [], 0, COMPACT

    def add(self, cells, agents, known, now):
        """Agents of `known`'s block have accessed cells, at time `now`."""
        before, earlier = self.time[cells], self.agent[cells]
        fresh = before <= known.oldest
        own = -2 - known.block
        block_before = np.where(earlier >= 0, -2 - earlier // known.stride, earlier)
        self.time[cells] = np.maximum(before, now)  # an asynchronous agent's time stays: threads know nothing of it by their own barriers
        self.agent[cells] = agents
        mixed = (self.agent[cells] != agents) | ~fresh & (earlier != agents)
        if mixed.any():
            self.agent[cells[mixed]] = own
            foreign = mixed & ~fresh & (block_before != own)
            self.agent[cells[foreign]] = SEVERAL_BLOCKS
        self.list.append((cells, agents, np.full(len(cells), now)))
        self.listed += len(cells)

    def forget(self, cells):
        self.time[cells] = 0

    def conflict(self, cells, tids, known):
        """(place in `cells`, agent) of the first access in the history that the thread accessing the cell does not know of, or None."""
        time = self.time[cells]
        if time.max(initial=0) <= known.oldest:
            return None
        at = np.flatnonzero(time > known.oldest)
        who = self.agent[cells[at]]
        settled = (who == known.same(tids[at])) | (time[at] <= known.floor) & (
            (who == -2 - known.block) | (who >= 0) & (who // known.stride == known.block))
        at = at[~settled]
        if not len(at):
            return None
        single = self.agent[cells[at]] >= 0
        alone = at[single]
        bad = known.unknown(tids[alone], self.agent[cells[alone]], time[alone])
        if bad.any():
            k = int(alone[bad.argmax()])
            return k, int(self.agent[cells[k]])
        return self._search(at[~single], cells, tids, known)

    def _search(self, at, cells, tids, known):
        """`conflict` for the places `at`, by looking at every access on record."""
        if not len(at):
            return None
        listed, agents, times = self._flat()
        asked = np.zeros(len(self.time), bool)
        asked[cells[at]] = True
        wanted = np.flatnonzero(asked[listed])
        listed, agents, times = listed[wanted], agents[wanted], times[wanted]
        ranked = np.argsort(listed, kind="stable")
        first = np.searchsorted(listed, cells[at], "left", ranked)
        last = np.searchsorted(listed, cells[at], "right", ranked)
        pair = np.repeat(np.arange(len(at)), last - first)
        entry = ranked[np.arange(len(pair)) - np.repeat(np.cumsum(last - first) - (last - first), last - first) + first[pair]]
        who = tids[at[pair]]
        bad = (agents[entry] != known.same(who)) & known.unknown(who, agents[entry], times[entry])
        if not bad.any():
            return None
        k = int(bad.argmax())
        return int(at[pair[k]]), int(agents[entry[k]])

    def _flat(self):
        if len(self.list) > 1:
            self.list = [tuple(np.concatenate(column) for column in zip(*self.list))]
        return self.list[0]

    def compact(self, written, oldest):
        """Drop from the list what everybody knows, what a write has covered, and what an agent did to a cell before its latest access."""
        if self.listed <= self.limit:
            return
        cells, agents, times = self._flat()
        keep = (times > oldest) & (times % ASYNCHRONOUS > written[cells] % ASYNCHRONOUS)
        cells, agents, times = cells[keep], agents[keep], times[keep]
        key = cells * (agents.max(initial=0) + 1) + agents
        by = np.argsort(key, kind="stable")  # the list is in order of time, so the latest of equal keys stays last
        key = key[by]
        latest = by[np.append(key[1:] != key[:-1], True)] if len(key) else by
        self.list = [(cells[latest], agents[latest], times[latest])]
        self.listed = len(latest)
        self.limit = 2 * self.listed + COMPACT

    def split(self, factor):
        """Every cell becomes `factor` cells."""
        self.time, self.agent = np.repeat(self.time, factor), np.repeat(self.agent, factor)
        parts = np.arange(factor)
        self.list = [((c[:, None] * factor + parts).ravel(), np.repeat(a, factor), np.repeat(t, factor)) for c, a, t in self.list]
        self.listed *= factor


class Shadow:
    """The order of accesses to one buffer."""

    def __init__(self, buffer):
        self.buffer, self.unit_log = buffer, 2
        cells = (buffer.size >> 2) + 1
        self.written, self.writer = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        self.reads, self.atomics = History(cells), History(cells)

    def cells(self, elements, tids, size_log):
        """Cells of elements of 2**size_log bytes, and the accessing thread of each."""
        if size_log < self.unit_log:
            factor = 1 << self.unit_log - size_log
            self.written, self.writer = np.repeat(self.written, factor), np.repeat(self.writer, factor)
            self.reads.split(factor)
            self.atomics.split(factor)
            self.unit_log = size_log
        each = 1 << size_log - self.unit_log
        if each == 1:
            return elements, tids
        return (elements[:, None] * each + np.arange(each)).ravel(), np.repeat(tids, each)

    def write(self, cells, tids, known, now, readers=None):
        """Plain writes: `cells[k]` by thread `tids[k]` of the block whose knowledge is `known`, and of earlier reads `readers`."""
        self._after_write("writes it", cells, tids, known)
        self._after(self.reads, "writes it", "reads it", cells, tids, readers or known)
        self._after(self.atomics, "writes it", "updates it atomically", cells, tids, known)
        agents = known.agents(tids)
        self.written[cells] = now
        self.writer[cells] = agents
        other = self.writer[cells] != agents
        if other.any():
            k = int(other.argmax())
            self._race(cells[k], int(tids[k]), "writes it", int(self.writer[cells[k]]), "writes it", known)
        self.reads.forget(cells)
        self.atomics.forget(cells)

    def written_at(self, byte, nbytes):
        """Whether anything has written one of the bytes."""
        return bool(self.written[byte >> self.unit_log:(byte + nbytes - 1 >> self.unit_log) + 1].any())

    def update(self, cells, tids, known, now, agent=None, readers=None):
        """Atomic updates, to be remembered as done by `agent` if one is given; of earlier reads `readers` is known."""
        self._after_write("updates it atomically", cells, tids, known)
        self._after(self.reads, "updates it atomically", "reads it", cells, tids, readers or known)
        self.atomics.compact(self.written, known.oldest)
        self.atomics.add(cells, known.agents(tids) if agent is None else np.full(len(cells), agent), known, now)

    def read(self, cells, tids, known, now, remember=True):
        """Plain reads; not remembered where all agents that may write later will know of them anyway."""
        self._after_write("reads it", cells, tids, known)
        self._after(self.atomics, "reads it", "updates it atomically", cells, tids, known)
        if remember:
            self.reads.compact(self.written, known.oldest)
            self.reads.add(cells, known.agents(tids), known, now)

    def _after_write(self, verb, cells, tids, known):
        time = self.written[cells]
        if time.max(initial=0) <= known.oldest:
            return
        at = np.flatnonzero(time > known.oldest)
        time, writer = time[at], self.writer[cells[at]]
        bad = writer != known.same(tids[at])
        bad &= ~((time <= known.floor) & (writer // known.stride == known.block))
        if bad.any():
            at, time, writer = at[bad], time[bad], writer[bad]
            bad = known.unknown(tids[at], writer, time)
            if bad.any():
                k = int(bad.argmax())
                self._race(cells[at[k]], int(tids[at[k]]), verb, int(writer[k]), "writes it", known)

    def _after(self, history, verb, earlier, cells, tids, known):
        found = history.conflict(cells, tids, known)
        if found is not None:
            k, agent = found
            self._race(cells[k], int(tids[k]), verb, agent, earlier, known)

    def _race(self, cell, tid, verb, agent, earlier, known):
        byte, mine = int(cell) << self.unit_log, known.agent(tid)
        race = Race(f"{self.buffer.describe(byte)}: {known.name(mine)} {verb} and {known.name(agent)} {earlier}, and "
                    f"nothing orders the two: {known.remedy(tid, agent)}")
        race.memory, race.byte, race.size = key_of(self.buffer), byte, 1 << self.unit_log
        race.accesses = [(known.name(who), what, divmod(who, known.stride), what.split()[0].rstrip("s"))
                         for who, what in ((mine, verb), (agent, earlier))]
        raise race
