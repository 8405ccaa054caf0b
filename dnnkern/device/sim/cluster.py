"""Clusters: the barrier of their threads, and each other's shared memory.

An address in the cluster's window is that of the place in its own block plus the block's rank + 1 in the bits from 24 on; without those it
is an address of the block itself. Accesses to another block's memory are in its order of accesses like the block's own. Besides, they must
come after its start and before its end: the accessing thread knows of something the block did or announced, and some thread of the block,
when it ends, of the access.
"""
import numpy as np

from ..host_memory import POISON
from . import engine, order, proxy
from .collective import threads_of, together
from .engine import park, wake
from .errors import Misuse, Race
from .mbarrier import barrier_at, released

WINDOW = 24
_NOWHERE = type("Nowhere", (), {"base": 0, "size": 0})  # in the place of the memory of a block that has ended


class Phase:
    """One use of the cluster's barrier. `known` is what the threads of each block, by number, made known when they arrived."""
    __slots__ = "arrived", "known", "waiters", "open"

    def __init__(self):
        self.arrived, self.known, self.waiters, self.open = set(), {}, [], False


class Barrier:
    """The barrier of a cluster. `owed` is the phase in which a thread has arrived, until it waits."""

    def __init__(self, blocks):
        self.blocks, self.phase, self.owed = blocks, Phase(), {}
        for block in blocks:
            block.watchers.append(self.without)

    def arrive(self, threads, release):
        """Threads of a warp arrive."""
        for t in threads:
            if t in self.owed:
                raise Misuse(f"cluster_arrive: thread {t.tid} has arrived already and not waited: cluster_wait must come in between")
        block = threads[0].block
        clocks = block.clocks
        if release:
            clock, released, _, acquired, _ = order.offer(threads)
        else:  # that the block has started, and what a fence covers, that of initialised mbarriers too
            clock, released, acquired = clocks.start, None, None
            fences = block.__dict__.get("init_fences", {})
            for t in threads:
                clock = clocks.join(clocks.join(clock, t.released), fences.get(t))
        phase = self.phase
        offered = clock, released, None, acquired, None
        phase.known[block.number] = order.join_offers(clocks, phase.known.get(block.number), offered)
        for t in threads:
            self.owed[t] = phase
            phase.arrived.add(t)
        self.open_if_all()

    def open_if_all(self):
        phase = self.phase
        if len(phase.arrived) == sum(b.live for b in self.blocks):
            self.phase, phase.open = Phase(), True
            wake(phase.waiters)

    def without(self, thread):
        """A thread has returned."""
        self.phase.arrived.discard(thread)
        if self.phase.arrived:
            self.open_if_all()

    def wait(self, thread):
        phase = self.owed.pop(thread, None)
        if phase is None:
            raise Misuse(f"cluster_wait: thread {thread.tid} has not arrived: cluster_arrive must come first")
        while not phase.open:
            park(phase.waiters, lambda: f"cluster barrier: {len(phase.arrived)} of {sum(b.live for b in self.blocks)} threads have arrived")
        for offered in phase.known.values():
            order.take(thread, offered)


def _barrier(thread):
    of_cluster = thread.block.cluster[0].__dict__
    if "cluster_barrier" not in of_cluster:
        of_cluster["cluster_barrier"] = Barrier(thread.block.cluster)
    return of_cluster["cluster_barrier"]


def _arrive(name, release):
    def arrived(values):
        _barrier(engine.CURRENT).arrive(threads_of(values), release)
        return True

    def arrive():
        together(name, None, arrived, whole=False)
    return arrive


cluster_arrive, cluster_arrive_relaxed = _arrive("cluster_arrive", True), _arrive("cluster_arrive_relaxed", False)


def _waited(values):
    threads = threads_of(values)
    order.examine(threads[0].block, threads)  # what they did since they arrived, not knowing yet what the barrier makes known
    return True


def cluster_wait():
    """Twin of barrier.cluster.wait."""
    together("cluster_wait", None, _waited, whole=False)
    _barrier(engine.CURRENT).wait(engine.CURRENT)


def cluster_rank():
    """Number of the running block in its cluster."""
    block = engine.CURRENT.block
    return block.cluster.index(block)


def cluster_size():
    """Blocks of the running block's cluster."""
    return len(engine.CURRENT.block.cluster)


def remote_address(address, rank):
    """Twin of mapa: the place of `address` in the block `rank`."""
    size, rank = cluster_size(), int(rank)
    if not 0 <= rank < size:
        raise Misuse(f"remote_address: rank {rank} in a cluster of {size} blocks")
    return int(address) & (1 << WINDOW) - 1 | rank + 1 << WINDOW


def reach(block, what, counted=False):
    """The running thread accesses the shared memory of `block`, which must have started, and will have to outlive that; `counted`: a
    barrier there does the latter."""
    thread = engine.CURRENT
    if block is thread.block:
        return
    if thread.clock.of(block.number) is None:
        raise Race(f"{what}: {thread} accesses the shared memory of block {block.index}, and nothing says that it has started: a cluster "
                   "barrier must come first")
    if not block.live:
        raise Race(f"{what}: {thread} accesses the shared memory of block {block.index}, which has ended: a cluster barrier is missing "
                   "behind the access, in both blocks")
    if counted:
        return
    block.visits[thread] = block.launch.now + 1, what  # a later examination than any so far, so whoever knows of that knows of this


def leave(block):
    """The block ends: whoever has accessed its shared memory has told it that this is over."""
    launch = block.launch
    clocks = {id(t.clock): t.clock for t in block.threads}.values()
    for thread, (time, what) in block.visits.items():
        number = thread.block.number
        if launch.floor < time and not any(c.of(number) is not None and c.of(number)[thread.tid] >= time for c in clocks):
            raise Race(f"{what}: {thread} accesses the shared memory of block {block.index}, which ends, and nothing orders the two: a "
                       "cluster barrier is missing behind the access, in both blocks")
    if block.visits and block.shared.number is not None:
        launch.memories[block.shared.number] = _NOWHERE


def locate(address, nbytes, what, counted=False):
    """Shared memory and the first byte in it, of an access that a barrier of the block counts or not; what turns an element number there
    into a log entry is ``code(memory, dtype)``."""
    thread, address = engine.CURRENT, int(address)
    rank = address >> WINDOW
    if rank > len(thread.block.cluster):
        raise Misuse(f"{what}: {address:#x} is no address in a cluster of {len(thread.block.cluster)} blocks")
    block = thread.block.cluster[rank - 1] if rank else thread.block
    memory = block.shared
    byte = (address & (1 << WINDOW) - 1) - memory.base
    if byte % nbytes or not 0 <= byte <= memory.used - nbytes:
        raise Misuse(f"{what}: {nbytes} bytes at address {memory.base + byte:#x} of block {block.index} are misaligned or outside its "
                     f"{memory.base:#x} .. {memory.base + memory.used:#x}")
    reach(block, what, counted)
    return memory, byte


def code(memory, dtype):
    """What turns an element number in a block's shared memory into an entry of the running thread's logs."""
    thread = engine.CURRENT
    if memory.block is thread.block:
        return memory.code(dtype)
    memories = thread.block.launch.memories
    if memory.number is None:
        memory.number = len(memories)
        memories.append(memory)
    return memory.number * 8 + dtype.itemsize.bit_length() - 1 << 40


def load(address, dtype):
    """Twin of ld.shared::cluster."""
    memory, byte = locate(address, dtype.itemsize, "ld.shared::cluster")
    k = byte // dtype.itemsize
    engine.CURRENT.reads.append(k + code(memory, dtype))
    return memory.elements(dtype)[k]


def store(address, value, dtype):
    """Twin of st.shared::cluster."""
    memory, byte = locate(address, dtype.itemsize, "st.shared::cluster")
    k = byte // dtype.itemsize
    engine.CURRENT.writes.append(k + code(memory, dtype))
    memory.elements(dtype)[k] = value


class Sent:
    """A store under way to the shared memory of a block; it lands when somebody waits at the barrier that it reports to."""
    arrivals = 0

    def __init__(self, barrier, memory, k, value, dtype, clock):
        self.barrier, self.memory, self.k, self.value, self.dtype, self.clock = barrier, memory, k, value, dtype, clock
        self.phase, self.nbytes = barrier.phase, dtype.itemsize

    def __str__(self):
        return f"a store of {self.nbytes} bytes"

    def land(self):
        """The value arrives, and that its sender's reads are over."""
        self.memory.elements(self.dtype)[self.k] = self.value
        self.barrier.reads = self.barrier.block.clocks.join(self.barrier.reads, self.clock)


def store_async(address, value, bar, dtype):
    """Twin of st.async."""
    what, thread = "store_async", engine.CURRENT
    if len(thread.block.cluster) == 1:
        raise Misuse(f"{what}: the launch has no clusters")
    memory, byte = locate(address, dtype.itemsize, what, counted=True)
    block, rank = memory.block, int(bar) >> WINDOW
    if rank != int(address) >> WINDOW:
        raise Misuse(f"{what}: address {int(address):#x} and barrier {int(bar):#x} are in different blocks")
    barrier = barrier_at(block, int(bar) & (1 << WINDOW) - 1, what, fenced=block is not thread.block)
    clock = released(thread)
    proxy.Access(block, barrier.slot, [clock], generic=True).runs("write", memory, np.array([byte]), dtype.itemsize)
    memory.raw[byte:byte + dtype.itemsize] = POISON
    if block is not thread.block:
        barrier.visits[thread] = barrier.phase, block.launch.now
    barrier.enqueue(what, Sent(barrier, memory, byte // dtype.itemsize, value, dtype, clock))


class Copied:
    """A copy in flight to the shared memory of a block; it lands when somebody waits at the barrier that it reports to."""
    arrivals = 0

    def __init__(self, barrier, memory, byte, data):
        self.memory, self.byte, self.data, self.phase, self.nbytes = memory, byte, data, barrier.phase, len(data)

    def __str__(self):
        return f"a copy of {self.nbytes} bytes of shared memory"

    def land(self):
        """The bytes arrive."""
        self.memory.raw[self.byte:self.byte + self.nbytes] = self.data


def copy_async(address, source, nbytes, bar):
    """Twin of cp.async.bulk between blocks. It reads its source at once."""
    what, thread, nbytes = "copy_async", engine.CURRENT, int(nbytes)
    memory, byte = locate(address, 16, what, counted=True)
    block, own, rank = memory.block, thread.block.shared, int(bar) >> WINDOW
    begin = int(source) - own.base
    if rank != int(address) >> WINDOW:
        raise Misuse(f"{what}: address {int(address):#x} and barrier {int(bar):#x} are in different blocks")
    if begin % 16 or nbytes % 16 or not 0 <= begin <= own.used - nbytes or byte > memory.used - nbytes:
        raise Misuse(f"{what}: {nbytes} bytes from {int(source):#x} to {int(address):#x} are misaligned or outside a block's memory")
    barrier = barrier_at(block, int(bar) & (1 << WINDOW) - 1, what, fenced=block is not thread.block)
    clock = released(thread)
    proxy.Access(block, barrier.slot, [clock]).runs("write", memory, np.array([byte]), nbytes)
    data = own.raw[begin:begin + nbytes].copy()
    memory.raw[byte:byte + nbytes] = POISON
    if block is not thread.block:
        barrier.visits[thread] = barrier.phase, block.launch.now
    barrier.enqueue(what, Copied(barrier, memory, byte, data))
