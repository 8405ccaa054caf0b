"""mbarriers: the twins of `dnnkern.device.mbarrier`.

A `Barrier` counts phases, of which the hardware shows the parity alone; so a wait that passes because a barrier has run ahead by two phases
is noticed. What a phase makes known: all that its arrivals released, and that the copies which report to it have landed. Those land when
all else has come and somebody waits, the latest moment a GPU may choose (see `copies`).
"""
from bisect import bisect_right

import numpy as np

from . import engine, order, proxy, trace
from .clocks import ASYNCHRONOUS
from .engine import park, wake
from .errors import Misuse, Race

MOST = (1 << 20) - 1  # arrivals and bytes of a phase
_INT64 = np.dtype(np.int64)
_MARK = -0x4D62617272696572  # lies where a barrier is: memory of a barrier is nothing to read or write


class Barrier:
    """A barrier of `block` at a shared address, for `count` arrivals a phase.

    `phase` is under way: `pending` arrivals and `bytes` are missing, of which `queue` will bring some; `ended` are the times at which those
    before it were complete. `own` is what arrivals of the block have released, `others` those of other blocks, `reads` of these what only
    says that reads are over. `seen` is the latest phase somebody has waited for, `visits` the latest arrivals from other blocks, `uses` the
    latest of each thread.
    """

    def __init__(self, thread, address, count):
        block = thread.block
        self.block, self.address, self.count, self.pending, self.bytes, self.phase = block, address, count, count, 0, 0
        self.by, self.when, self.fenced = thread, block.launch.now + 1, False
        self.title = f"mbarrier {block.shared.describe(address - block.shared.base)}"
        self.slot = proxy.agent(block, f"a copy to {self.title}", "its barrier has not been waited for")
        self.own, self.others, self.reads = block.clocks.start, None, None
        self.waiters, self.queue, self.ended, self.seen, self.visits, self.uses = [], [], [], -1, {}, {}
        self.known = self.known_cluster = None

    def state(self):
        """Words for what is missing."""
        return (f"{self.title}: phase {self.phase} in progress, {self.pending} of {self.count} arrivals pending, {self.bytes} bytes "
                "outstanding" + f", {len(self.queue)} copies under way" * bool(self.queue))

    def advance(self):
        """Something has come: end the phase if it is complete, else wake who can bring what is under way."""
        if self.pending == 0 and self.bytes < 0:
            raise Misuse(f"{self.title}: {-self.bytes} bytes more than expected have landed in phase {self.phase}")
        if self.pending == 0 and self.bytes == 0:
            launch, clocks = self.block.launch, self.block.clocks
            launch.now += 1
            self.ended.append(ASYNCHRONOUS + launch.now)
            self.own = self.known = self.own.knowing(self.slot, self.ended[-1])
            if self.reads is not None:
                self.known = self.known.freeing(self.reads)
            self.known_cluster = clocks.join(self.known, self.others)
            self.phase, self.pending = self.phase + 1, self.count
            if trace.SCHEDULE is not None:
                trace.SCHEDULE.completes(self)
            wake(self.waiters, meet=False)
        elif self.can_land():
            wake(self.waiters, meet=False)

    def can_land(self):
        """Whether what is under way is all that is missing."""
        return self.queue and self.pending == sum(op.arrivals for op in self.queue)

    def enqueue(self, what, op):
        """`op` is under way: it has `nbytes`, `arrivals`, the present `phase`, and lands by ``land()``."""
        if sum(o.arrivals for o in self.queue) + op.arrivals > self.pending:
            raise Misuse(f"{what}: {op} at {self.state()}")
        self.queue.append(op)
        if trace.SCHEDULE is not None and not op.arrivals:
            trace.SCHEDULE.copies(self, op, engine.CURRENT)
        if self.can_land():
            wake(self.waiters, meet=False)

    def land(self):
        """What is under way arrives."""
        queue, self.queue = self.queue, []
        self.block.launch.idle = 0
        for op in queue:
            if op.phase != self.phase:
                raise Misuse(f"{self.title}: {op} was started in phase {op.phase} and lands in phase {self.phase}: fewer bytes were "
                             "expected than are copied, or the barrier had fewer arrivals to wait for")
            op.land()
            if trace.SCHEDULE is not None:
                trace.SCHEDULE.lands(self, op, engine.CURRENT)
            self.pending -= op.arrivals
            self.bytes -= op.nbytes
            self.advance()

    def arrive(self, what, n, expect=0):
        """`n` arrivals whose thread has been examined and whose clock is noted."""
        if not 1 <= n <= self.pending:
            raise Misuse(f"{what}: {n} arrivals, {self.pending} are pending at {self.state()}")
        self.expect(what, expect)
        if trace.SCHEDULE is not None:
            trace.SCHEDULE.arrives(self, engine.CURRENT)
        self.pending -= n
        self.advance()

    def expect(self, what, nbytes):
        """`nbytes` more must land."""
        self.bytes += nbytes
        if not 0 <= nbytes <= MOST or self.bytes > MOST:
            raise Misuse(f"{what}: {nbytes} bytes, {self.bytes} with what is outstanding; a phase counts up to {MOST}")

    def wanted(self, thread, parity):
        """The phase that a wait of the thread must see complete: it knows of the one before, and of none after that."""
        last = self.last(thread)
        return last + (last & 1 != parity)

    def last(self, thread):
        """The latest phase the thread knows to be complete, -1 for none."""
        return bisect_right(self.ended, thread.clock.times[self.slot]) - 1

    def passed(self, thread, parity, cluster):
        """The thread has seen that the phase of this parity is complete."""
        wanted, got = self.wanted(thread, parity), self.phase - 1
        if got != wanted:
            last = self.last(thread)
            raise Misuse(f"mbarrier_wait: thread {thread.tid} passes {self.title} with parity {parity} because phase {got} is complete, "
                         f"but knows of none after {f'phase {last}' if last >= 0 else 'its initialisation'}: the barrier runs ahead of it, "
                         "and parities tell only one phase from the next")
        self.seen = max(self.seen, got)
        self.use(thread)
        if wanted > self.last(thread):  # else it might have passed long ago
            thread.clock = thread.block.clocks.join(thread.clock, self.known_cluster if cluster else self.known)
            thread.block.uniform = False

    def missed(self, thread, parity):
        """Words for a wait for a phase that is over."""
        wanted = self.wanted(thread, parity)
        return f"; phase {wanted}, for which it waits, is over: the barrier has run ahead of it" * (wanted < self.phase)

    def use(self, thread):
        """The thread uses the barrier."""
        self.block.launch.now += 1
        self.uses[thread] = self.block.launch.now

    def users(self, thread):
        """Threads whose use is in no order with what `thread` does now."""
        own, launch, clock = self.block, self.block.launch, thread.clock
        for user, time in self.uses.items():
            times = clock.of(user.block.number)
            known = max(launch.floor, own.floor if user.block is own else 0, 0 if times is None else int(times[user.tid]))
            if user is not thread and known < time:
                yield user

    def close(self):
        """The block ends."""
        if self.queue:
            raise Misuse(f"block {self.block.index} ends while {self.queue[0]} to {self.title} is under way: nobody has waited for it")
        clocks = {id(t.clock): t.clock for t in self.block.threads}.values()
        for thread, (phase, time) in self.visits.items():
            number = thread.block.number
            if phase > self.seen and self.block.launch.floor < time and not any(
                    c.of(number) is not None and c.of(number)[thread.tid] >= time for c in clocks):
                raise Race(f"{thread} arrives at {self.title} of block {self.block.index}, which ends, and nothing orders the two: "
                           "nobody has waited for this phase, and no cluster barrier comes before the end")


def _barriers(block):
    """The block's barriers by address."""
    found = block.__dict__.get("mbarriers")
    if found is None:
        found = block.__dict__["mbarriers"] = {}

        def returned(thread):
            if not block.live:
                for barrier in found.values():
                    barrier.close()
        block.watchers.append(returned)
    return found


def _cell(block, address):
    return block.shared.elements(_INT64), int(address) - block.shared.base >> 3


def barrier_at(block, address, what, fenced=False):
    """The barrier at an address of `block` that the running thread uses; `fenced`: from another block, or for a copy."""
    thread, barrier = engine.current(), _barriers(block).get(int(address))
    if thread.block is not block and not block.live:
        raise Race(f"{what}: {thread} signals a barrier of block {block.index}, which has ended: a cluster barrier is missing "
                   "before its end")
    known = 0
    if barrier is not None and barrier.by is not thread:
        times = thread.clock.of(block.number)
        known = max(block.launch.floor, block.floor if thread.block is block else 0, 0 if times is None else int(times[barrier.by.tid]))
    if barrier is None or barrier.by is not thread and known < barrier.when:
        if barrier is None and thread.block is block:
            raise Misuse(f"{what}: there is no mbarrier at {int(address):#x}; initialised are "
                         f"{', '.join(hex(a) for a in _barriers(block)) or 'none'}")
        raise Race(f"{what}: {thread} uses the mbarrier at {int(address):#x} of block {block.index}, and nothing orders that after its "
                   f"initialisation: {'a syncthreads' if thread.block is block else 'a cluster barrier'} is missing between them")
    cells, k = _cell(block, address)
    if cells[k] != _MARK:
        raise Misuse(f"{what}: something has overwritten {barrier.title}")
    barrier.use(thread)
    if fenced and not barrier.fenced:
        raise Race(f"{what}: {barrier.title} may not be known yet where it is signalled: a fence_mbarrier_init is missing after "
                   "mbarrier_init")
    return barrier


def own_barrier(address, what):
    """The running thread's block's barrier at an address."""
    return barrier_at(engine.current().block, address, what)


def init(address, count):
    """Twin of mbarrier.init."""
    thread, address, count = engine.current(), int(address), int(count)
    block = thread.block
    memory, barriers = block.shared, _barriers(block)
    if address % 8 or not 0 <= address - memory.base <= memory.used - 8:
        raise Misuse(f"mbarrier_init: 8 bytes at {address:#x} are misaligned or outside the block's {memory.base:#x} .. "
                     f"{memory.base + memory.used:#x}")
    if address in barriers:
        raise Misuse(f"mbarrier_init: {barriers[address].title} is a barrier already; mbarrier_invalidate must come first")
    if not 1 <= count <= MOST:
        raise Misuse(f"mbarrier_init: {count} arrivals; expected 1 to {MOST}")
    block.launch.asynchronous = True
    _write(thread, address, _MARK)
    barriers[address] = Barrier(thread, address, count)


def _write(thread, address, value):
    cells, k = _cell(thread.block, address)
    cells[k] = value
    thread.writes.append(k + thread.block.shared.code(_INT64))


def invalidate(address):
    """Twin of mbarrier.inval."""
    barrier = own_barrier(address, "mbarrier_invalidate")
    if barrier.queue or barrier.waiters:
        raise Misuse(f"mbarrier_invalidate: {len(barrier.waiters)} threads wait at {barrier.state()}")
    for user in barrier.users(engine.CURRENT):
        raise Race(f"mbarrier_invalidate: {user} uses {barrier.title}, and nothing orders the two: a barrier is missing between them")
    barrier.close()
    _write(engine.CURRENT, int(address), -1)
    del _barriers(barrier.block)[int(address)]


def fence_init():
    """Twin of fence.mbarrier_init: a relaxed arrival at the cluster's barrier passes on what is before it."""
    thread = engine.current()
    thread.block.__dict__.setdefault("init_fences", {})[thread] = released(thread)
    _mark_fenced(thread)


def _mark_fenced(thread):
    """Copies may report to the barriers that the thread has initialised."""
    for barrier in _barriers(thread.block).values():
        barrier.fenced |= barrier.by is thread


def fence_async():
    """Twin of fence.proxy.async."""
    _fence("all")


def fence_async_shared():
    """Twin of fence.proxy.async for shared memory."""
    _fence("shared")


def fence_async_global():
    """Twin of fence.proxy.async for global memory."""
    proxy.fence(engine.current(), "global")


def _fence(where):
    thread = engine.current()
    _mark_fenced(thread)
    proxy.fence(thread, where)


def released(thread):
    """What the thread knows and has done."""
    order.examine(thread.block, (thread,))
    return thread.block.clocks.release(thread.clock, thread.tid, thread.block.launch.now, thread.block.floor)


def _arrive(address, what, n=1, expect=0):
    barrier, thread = own_barrier(address, what), engine.CURRENT
    barrier.own = thread.block.clocks.join(barrier.own, released(thread))
    barrier.arrive(what, int(n), int(expect))


def arrive(address):
    """Twin of mbarrier.arrive."""
    _arrive(address, "mbarrier_arrive")


def arrive_count(address, n):
    """Twin of mbarrier.arrive with a count."""
    _arrive(address, "mbarrier_arrive_count", n)


def arrive_expect(address, nbytes):
    """Twin of mbarrier.arrive.expect_tx."""
    _arrive(address, "mbarrier_arrive_expect", 1, nbytes)


def expect(address, nbytes):
    """Twin of mbarrier.expect_tx."""
    barrier = own_barrier(address, "mbarrier_expect")
    barrier.expect("mbarrier_expect", int(nbytes))


def _arrive_remote(address, rank, what, release):
    thread, rank = engine.current(), int(rank)
    cluster = thread.block.cluster
    if not 0 <= rank < len(cluster):
        raise Misuse(f"{what}: rank {rank} in a cluster of {len(cluster)} blocks")
    block = cluster[rank]
    barrier = barrier_at(block, address, what, fenced=block is not thread.block)
    clock, clocks = released(thread), block.clocks
    if block is not thread.block:
        barrier.visits[thread] = barrier.phase, block.launch.now
    if release and block is thread.block:
        barrier.own = clocks.join(barrier.own, clock)
    else:
        barrier.reads = clocks.join(barrier.reads, clock)
        if release:
            barrier.others = clocks.join(barrier.others, clock)
    barrier.arrive(what, 1)


def arrive_remote(address, rank):
    """Twin of mapa and mbarrier.arrive.release.cluster."""
    _arrive_remote(address, rank, "mbarrier_arrive_remote", True)


def free_remote(address, rank):
    """Twin of mapa and mbarrier.arrive.relaxed.cluster."""
    _arrive_remote(address, rank, "mbarrier_free_remote", False)


def _try(thread, barrier, parity, what):
    parity = int(parity)
    if parity not in (0, 1):
        raise Misuse(f"{what}: parity {parity}; expected 0 or 1")
    order.examine(thread.block, (thread,))
    return parity


def _wait(address, parity, what, cluster):
    barrier, thread = own_barrier(address, what), engine.CURRENT
    parity = _try(thread, barrier, parity, what)
    while barrier.phase & 1 == parity:
        if barrier.can_land():
            barrier.land()
        else:
            park(barrier.waiters, lambda: f"{what} parity {parity} on {barrier.state()}{barrier.missed(thread, parity)}")
    phase = barrier.wanted(thread, parity)
    barrier.passed(thread, parity, cluster)
    if trace.SCHEDULE is not None:
        trace.SCHEDULE.passes(thread, barrier, phase, what)


def wait(address, parity):
    """Twin of a loop of mbarrier.try_wait."""
    _wait(address, parity, "mbarrier_wait", False)


def wait_cluster(address, parity):
    """Twin of a loop of mbarrier.try_wait in the cluster's scope."""
    _wait(address, parity, "mbarrier_wait_cluster", True)


def test(address, parity):
    """Twin of mbarrier.test_wait: what is under way lands behind a test that has seen it missing."""
    barrier, thread = own_barrier(address, "mbarrier_test"), engine.CURRENT
    parity = _try(thread, barrier, parity, "mbarrier_test")
    if barrier.phase & 1 != parity:
        barrier.passed(thread, parity, False)
        return 1
    if barrier.can_land():
        barrier.land()
    engine.pause(lambda: f"mbarrier_test parity {parity} of {barrier.state()}")
    return 0
