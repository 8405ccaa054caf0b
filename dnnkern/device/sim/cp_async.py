"""cp.async: the twins of `dnnkern.device.cp_async`, and the arrival of copies at an mbarrier.

A copy lands when its thread waits, or somebody at the barrier that it reports to. Until then it is a write of the thread that has begun:
poison. It is another write when it lands, of the thread, or of the barrier's copies.
"""
from collections import deque

import numpy as np

from ..host_memory import POISON
from . import engine, order, proxy
from .errors import Misuse
from .mbarrier import own_barrier, released

_WORD = np.dtype(np.uint32)


class Copy:
    """`count` bytes from `first` on of `memory`, and zeros, to `size` bytes of shared memory from `byte` on.

    `access` is what it does for a barrier it reports to.
    """
    __slots__ = "byte", "size", "memory", "first", "count", "access", "landed"

    def __init__(self, byte, size, memory, first, count):
        self.byte, self.size, self.memory, self.first, self.count, self.access, self.landed = byte, size, memory, first, count, None, False

    def land(self, block):
        """Copy, and remember the accesses as those of the barrier."""
        if not self.landed:
            self.landed = True
            self.move(block)
            if self.count:
                self.access.runs("read", self.memory, np.array([self.first]), self.count)
            self.access.runs("write", block.shared, np.array([self.byte]), self.size)

    def move(self, block):
        """Copy the bytes."""
        shared, byte, count = block.shared.raw, self.byte, self.count
        if count:
            shared[byte:byte + count] = self.memory.raw[self.first:self.first + count]
        shared[byte + count:byte + self.size] = 0


class Copies:
    """What a thread has under way: copies not in a group yet, and groups, oldest first."""
    __slots__ = "open", "groups"

    def __init__(self):
        self.open, self.groups = [], deque()


def _copies(thread):
    of_block = thread.block.__dict__.setdefault("async_copies", {})
    found = of_block.get(thread.tid)
    if found is None:
        found = of_block[thread.tid] = Copies()
    return found


def _source(thread, at, count, size):
    for memory in thread.block.launch.memories[1:]:
        if memory.base <= at < memory.base + memory.size:
            byte = at - memory.base
            if at % size or byte + count > memory.size:
                raise Misuse(f"cp.async of {size} bytes from {memory.describe(byte)}: misaligned or beyond the end of its memory")
            return memory, byte
    raise Misuse(f"cp.async reads address {at:#x}, where there is no memory")


def _log(log, memory, byte, count):
    entry = (byte >> 2) + memory.code(_WORD)
    log.extend(range(entry, entry + (count + 3 >> 2)))


def make_copy(size):
    """Twin of cp.async of `size` bytes with a count of those that are read."""
    def copy(to, source, offset, count):
        thread = engine.current()
        shared, count = thread.block.shared, int(count)
        byte = int(to) - shared.base
        if byte % size or not 0 <= byte <= shared.used - size:
            raise Misuse(f"cp.async: {size} bytes to shared address {int(to):#x} are misaligned or outside the block's "
                         f"{shared.base:#x} .. {shared.base + shared.used:#x}")
        if not 0 <= count <= size:
            raise Misuse(f"cp.async of {size} bytes takes {count} from its source")
        memory, first = _source(thread, int(source) + int(offset), count, size) if count else (None, 0)
        shared.raw[byte:byte + size] = POISON
        _log(thread.writes, shared, byte, size)
        _copies(thread).open.append(Copy(byte, size, memory, first, count))
    return copy


def make_copy_if(size):
    """Twin of a predicated cp.async."""
    copy = make_copy(size)

    def copy_if(to, source, offset, ok):
        if ok:
            copy(to, source, offset, size)
    return copy_if


def commit():
    """Twin of cp.async.commit_group."""
    mine = _copies(engine.current())
    mine.groups.append(mine.open)
    mine.open = []


def make_wait(pending):
    """Twin of cp.async.wait_group."""
    def wait():
        thread = engine.current()
        block, groups = thread.block, _copies(thread).groups
        while len(groups) > pending:
            for copy in groups.popleft():
                if copy.access is not None:
                    copy.land(block)
                    order.examine(block, (thread,))
                    proxy.learn(block, (thread,), copy.access.slot, copy.access.time)
                    continue
                copy.move(block)
                if copy.count:
                    _log(thread.reads, copy.memory, copy.first, copy.count)
                _log(thread.writes, block.shared, copy.byte, copy.size)
    return wait


class Arrival:
    """An arrival at a barrier, once the copies have landed."""
    nbytes, arrivals = 0, 1

    def __init__(self, barrier, copies):
        self.block, self.copies, self.phase = barrier.block, copies, barrier.phase

    def __str__(self):
        return f"an arrival of {len(self.copies)} copies by cp.async"

    def land(self):
        for copy in self.copies:
            copy.land(self.block)


def arrive_copies(address):
    """Twin of cp.async.mbarrier.arrive.noinc."""
    barrier, thread = own_barrier(address, "mbarrier_arrive_copies"), engine.CURRENT
    access = proxy.Access(barrier.block, barrier.slot, [released(thread)], generic=True)
    mine, copies = _copies(thread), []
    for copy in (c for group in (*mine.groups, mine.open) for c in group):
        if copy.access is None:
            copy.access = access
            copies.append(copy)
    barrier.enqueue("mbarrier_arrive_copies", Arrival(barrier, copies))
