"""Order of memory accesses: logs become checks here, at every synchronisation, whatever the schedule was.

Threads log their accesses and go on. A thread's log is examined at the latest when the thread synchronises, before anybody else learns of
what it did; so the logs not examined yet are never ordered among themselves, those examined are in the shadows of their buffers (see
`shadow`), and whole blocks are examined in a few NumPy operations. What orders memory:

- syncthreads the threads of a block, syncwarp the lanes that take part, a grid sync all threads;
- across those: a fence, then an atomic operation, by one thread; an atomic operation on the same element, then a fence, by the other.
  Barriers pass both halves on: all threads may fence and one, after a syncthreads, do the atomic operation. threadfence_block will do
  within a block. Shuffles, votes and atomic operations alone order nothing.

A thread that returns counts as having come to all later barriers of its block.
"""
import functools
from itertools import chain

import numpy as np

from .arrays import GLOBAL_SHIFT, SHARED_SHIFT
from .clocks import SLOTS
from .config import config
from .engine import STATS
from .errors import Race, annotate
from .shadow import Shadow

EXAMINE_AT = 1 << 18  # accesses of returned threads of a block that are kept before they are examined


class Knowledge:
    """What the threads of a block know of all agents: an agent's number in the launch is `stride` times its block's number, plus its own.

    `floor`: all threads know all that threads of their block did up to then. `oldest`: they know all that anybody did to the buffer, which
    is up to `floor` too if it is `private`: no other block can access it.
    """

    def __init__(self, block, private):
        self.launch, self.home = block.launch, block
        self.block, self.stride, self.floor = block.number, block.n + SLOTS, block.floor
        self.oldest = self.floor if private else self.launch.floor

    def agents(self, tids):
        return tids + self.block * self.stride

    def agent(self, tid):
        return tid + self.block * self.stride

    same = agents  # whose earlier accesses are in order with those of `tids` without any synchronisation

    def unknown(self, tids, agents, times):
        """Which of the accesses (agent, time) the threads `tids` do not know of."""
        if not len(tids):
            return np.zeros(0, bool)
        known = np.full(len(tids), self.launch.floor)
        owners, local = np.divmod(agents, self.stride)
        clocks = self._clocks(tids)
        for owner in set(owners.tolist()):
            of_owner = owners == owner
            if owner == self.block:
                known[of_owner] = max(self.floor, self.launch.floor)
            for clock, of_clock in clocks:
                times_of = clock.of(owner)
                if times_of is not None:
                    some = np.flatnonzero(of_owner & of_clock)
                    known[some] = np.maximum(known[some], times_of[local[some]])
        return known < times

    def _clocks(self, tids):
        """[(clock, which of `tids` are of threads that have it)]"""
        threads = self.home.threads
        if self.home.uniform:
            return [(threads[0].clock, True)]
        members, which = np.unique(tids, return_inverse=True)
        clocks = [threads[tid].clock for tid in members.tolist()]
        keys = list(map(id, clocks))
        distinct = dict(zip(keys, clocks))
        if len(distinct) == 1:
            return [(clocks[0], True)]
        keys = np.array(keys)[which]
        return [(clock, keys == key) for key, clock in distinct.items()]

    def name(self, agent):
        block, local = divmod(agent, self.stride)
        if block == self.block:
            return self.home.clocks.name(local)
        return f"{self.launch.clocks[block].name(local)} of block {self.launch.indices[block]}"

    def remedy(self, tid, agent):
        block, local = divmod(agent, self.stride)
        if local >= self.home.n and self.launch.clocks[block].remedies[local - self.home.n]:
            return self.launch.clocks[block].remedies[local - self.home.n]
        if any(b.number == block for b in self.home.cluster if b is not self.home):
            return "between blocks of a cluster it takes a cluster barrier (cluster_arrive by the one, cluster_wait by the other)"
        if block != self.block:
            return ("between blocks it takes a grid sync, or threadfence then an atomic operation on one side, and on the other an atomic "
                    "operation on the same element, then threadfence")
        if local > self.home.n:  # the first slot is of atomic operations
            return f"a wait for {self.home.clocks.name(local)} is missing between them"
        if local >> 5 == tid >> 5:
            return "a syncwarp or syncthreads is missing between them"
        return "a syncthreads is missing between them"


def examine(block, threads, remember=True):
    """Check and empty the logs of `threads`, all of `block`; `remember=False` if no thread of the block will ever be unaware of them."""
    threads = [t for t in threads if t.reads or t.writes or t.atomics]
    if not threads:
        return
    launch = block.launch
    launch.now += 1
    STATS["examinations"] += 1
    parts, tids = {}, np.array([t.tid for t in threads])
    for kind, logs in (("writes", [t.writes for t in threads]), ("atomics", [t.atomics for t in threads]),
                       ("reads", [t.reads for t in threads])):
        lengths = list(map(len, logs))
        total = sum(lengths)
        if total:
            entries = np.fromiter(chain.from_iterable(logs), np.int64, total)
            STATS["accesses"] += total
            for log in logs:
                log.clear()
            _sort(parts, kind, entries, np.repeat(tids, lengths))
    for index, kinds in parts.items():
        shared = index == 0
        shadow = shadow_of(block.shared if shared else launch.memories[index])
        if shadow is None:
            continue
        private = shared and not block.clustered
        known = Knowledge(block, private)
        for elements, tids, size_log in kinds.get("writes", ()):
            shadow.write(*shadow.cells(elements, tids, size_log), known, launch.now)
        for elements, tids, size_log in kinds.get("atomics", ()):
            shadow.update(*shadow.cells(elements, tids, size_log), known, launch.now)
        for elements, tids, size_log in kinds.get("reads", ()):
            shadow.read(*shadow.cells(elements, tids, size_log), known, launch.now, remember or not private)


def shadow_of(buffer):
    """What is remembered about `buffer`; None if it is not tracked."""
    if not (config.track_global if buffer.index else config.track_shared):
        return None
    if buffer.shadow is None:
        buffer.shadow = Shadow(buffer)
    return buffer.shadow


def _sort(parts, kind, entries, tids):
    """Part `entries` by buffer and element size: parts[buffer index][kind] is a list of (elements, tids, log of the size)."""
    small = entries < 1 << GLOBAL_SHIFT
    codes = np.where(small, entries >> SHARED_SHIFT, entries >> GLOBAL_SHIFT)
    first = int(codes[0])
    single = bool((codes == first).all())
    for code in (first,) if single else np.unique(codes).tolist():
        if code < 8:
            index, size_log, shift = 0, code, SHARED_SHIFT
        else:
            index, size_log, shift = code >> 3, code & 7, GLOBAL_SHIFT
        chosen = slice(None) if code == first and single else codes == code
        parts.setdefault(index, {}).setdefault(kind, []).append((entries[chosen] & ((1 << shift) - 1), tids[chosen], size_log))


HALVES = "released", "released_block", "acquired", "acquired_block"


def _merge(clocks, threads):
    """What one of `threads` has released or is about to acquire, all of them have or are."""
    for half in HALVES:
        merged = None
        for t in threads:
            merged = clocks.join(merged, getattr(t, half))
        if merged is not None:
            for t in threads:
                setattr(t, half, merged)


def _meet(block, threads):
    clock = block.clocks.meet([t.clock for t in threads], [t.tid for t in threads], block.launch.now)
    for t in threads:
        t.clock = clock
    _merge(block.clocks, threads)


def meet_block(block):
    """All threads of the block synchronise."""
    examine(block, block.threads, remember=False)
    if not block.uniform:
        _meet(block, block.threads)
        block.uniform = True
    block.floor = block.launch.now


def meet(threads):
    """Some threads of one block synchronise: the lanes of a syncwarp, or those who meet at a named barrier."""
    block = threads[0].block
    examine(block, threads)
    _meet(block, threads)
    block.uniform = False


def offer(threads):
    """What `threads` of one block know and have done, for others to `take`: a clock, and halves of patterns of fences."""
    block = threads[0].block
    examine(block, threads)
    clocks = block.clocks
    clock = clocks.meet([t.clock for t in threads], [t.tid for t in threads], block.launch.now)
    np.maximum(clock.times[:block.n], block.floor, out=clock.times[:block.n])
    return clock, *(functools.reduce(clocks.join, (getattr(t, half) for t in threads)) for half in HALVES)


def join_offers(clocks, a, b):
    """One offer of two; None offers nothing."""
    return a or b if a is None or b is None else tuple(map(clocks.join, a, b))


def take(thread, offered):
    """`thread`, which has been examined, knows from here on what was offered."""
    clocks = thread.block.clocks
    thread.clock = clocks.join(thread.clock, offered[0])
    for half, value in zip(HALVES, offered[1:]):
        setattr(thread, half, clocks.join(getattr(thread, half), value))
    thread.block.uniform = False


def meet_grid(launch):
    """All threads of the launch synchronise."""
    for block in launch.blocks:
        meet_block(block)
    if launch.asynchronous:  # what asynchronous agents did, and the fences for them, no floor covers
        together = None
        for block in launch.blocks:
            together = block.clocks.join(together, block.threads[0].clock)
        for block in launch.blocks:
            clock = block.clocks.join(block.threads[0].clock, together)
            for thread in block.threads:
                thread.clock = clock
    launch.floor = launch.now
    for block in launch.blocks:
        block.floor = launch.now


def leave(thread):
    """`thread` returns from the kernel."""
    block = thread.block
    block.logged += len(thread.reads) + len(thread.writes) + len(thread.atomics)
    if block.logged > EXAMINE_AT:
        block.logged = 0
        examine(block, [t for t in block.threads if t.done])


def close(block):
    """The block has ended."""
    examine(block, block.threads)


def fence(thread, device):
    """threadfence (`device`) or threadfence_block."""
    block = thread.block
    clocks, launch = block.clocks, block.launch
    examine(block, (thread,))
    thread.clock = clocks.join(thread.clock, thread.acquired_block)
    if device:
        thread.clock = clocks.join(thread.clock, thread.acquired)
    thread.released_block = clocks.release(thread.clock, thread.tid, launch.now, block.floor)
    block.uniform = False
    if device:
        thread.released = thread.released_block


class Location:
    """An element that atomic operations synchronise through: clocks released to it, for all and for the threads of one block."""
    __slots__ = "device", "block"

    def __init__(self):
        self.device, self.block = None, {}


def atomic(thread, buffer, byte, dtype, changes):
    """An atomic operation on the element at `byte` of `buffer`: a meeting point of fences.

    What follows a fence and changes memory is itself part of what is passed on: whoever learns of it may then, say, reset a counter by a
    plain store. It is examined at once, and on record under an agent that all such operations of a block share.
    """
    block, launch = thread.block, thread.block.launch
    number, clocks, locations = block.number, block.clocks, launch.locations
    key = buffer.index or -1 - number, byte
    location = locations.get(key)
    if thread.released_block is None:
        thread.atomics.append(byte // dtype.itemsize + buffer.code(dtype))
        if location is None:
            return
    elif changes:
        launch.now += 1
        shadow = shadow_of(buffer)
        if shadow is not None:
            size_log, known = dtype.itemsize.bit_length() - 1, Knowledge(block, buffer.index == 0 and not block.clustered)
            shadow.update(*shadow.cells(np.array([byte >> size_log]), np.array([thread.tid]), size_log), known, launch.now,
                          known.agent(block.atomic_slot))
        thread.clock = clocks.release(thread.clock, block.atomic_slot, launch.now, 0)
        thread.released_block = clocks.release(thread.released_block, block.atomic_slot, launch.now, 0)
        if thread.released is not None:
            thread.released = clocks.release(thread.released, block.atomic_slot, launch.now, 0)
    else:
        thread.atomics.append(byte // dtype.itemsize + buffer.code(dtype))
    if location is None:
        location = locations[key] = Location()
    block.uniform = False
    seen_device, seen_block = location.device, location.block.get(number)
    if thread.released is not None:
        location.device = clocks.join(seen_device, thread.released)
    if thread.released_block is not None:
        location.block[number] = clocks.join(seen_block, thread.released_block)
    thread.acquired = clocks.join(thread.acquired, seen_device)
    thread.acquired_block = clocks.join(thread.acquired_block, seen_block)


def blame(launch, error, thread):
    """After the failure of `thread`, or a deadlock: what `error` may come from, a read of nothing or a race, is added to it."""
    for entry in thread.reads if thread is not None else ():
        size_log = entry >> SHARED_SHIFT
        if size_log < 8:
            memory, byte = thread.block.shared, (entry & (1 << SHARED_SHIFT) - 1) << size_log
            if memory.nothing and (memory.raw[byte:byte + (1 << size_log)] == memory.nothing).all():  # zeros are mostly written ones
                annotate(error, f"the thread has read {memory.describe(byte)}, which nothing has written")
                break
    try:
        for block in launch.blocks:
            examine(block, block.threads)
    except Race as race:
        annotate(error, f"and there is a race, perhaps the cause of this: {race}")
