"""Blocks, warps, threads, and the scheduler that runs them: one greenlet a CUDA thread, one of them at a time.

An instruction that must wait calls `park(waiters, why)` in a loop that re-tests its condition; `wake(waiters)` readies whoever waits.
One that polls calls `pause`: everybody else runs first. Between two such calls nothing interrupts a thread, so instructions are atomic, a
run is repeatable, and a deadlock is exact: no thread is ready and some are left. The threads of all resident blocks share one queue.
"""
import contextlib
import contextvars
import random
from collections import Counter, deque

import greenlet
import numpy as np

from .._words import ranges
from . import trace
from .config import POLICIES, config
from .errors import Deadlock, Misuse, Race, annotate
from .integers import tags
from .names import line

CURRENT = None
"""The running `Thread`; None between launches."""
READY = deque()
STATS = Counter()
"""Of the latest launch: blocks, threads, examinations of the access logs, accesses examined."""
_random = random.Random()


class Dim3:
    """Three sizes or coordinates x, y, z."""
    __slots__ = "x", "y", "z"

    def __init__(self, x, y=1, z=1):
        if "int32" in tags:
            x, y, z = map(tags["int32"], (x, y, z))
        self.x, self.y, self.z = x, y, z

    def __iter__(self):
        return iter((self.x, self.y, self.z))

    def __repr__(self):
        return f"({self.x}, {self.y}, {self.z})"


class Warp:
    """Up to 32 threads of a block; `exchanges` are the collectives some lanes wait in, by kind and mask (see `warp`)."""
    __slots__ = "id", "size", "live", "exchanges"

    def __init__(self, number, size):
        self.id, self.size, self.live, self.exchanges = number, size, (1 << size) - 1, {}


class Thread:
    """A CUDA thread.

    Attributes
    ----------
    tid, lane : int
        Number in the block, in the warp.
    threadIdx, blockIdx : Dim3
    warp, block : Warp, Block
    reads, writes : list of int
        Plain accesses since the thread last synchronised, as `arrays` logs them.
    clock : Clock
        What it knows to have happened (see `clocks`).
    released, released_block, acquired, acquired_block : Clock or None
        What its next atomic operation passes on, and its next fence takes in, device-wide and within the block (see `order`).
    """
    __slots__ = ("tid", "lane", "threadIdx", "blockIdx", "warp", "block", "reads", "writes", "atomics", "clock", "released",
                 "released_block", "acquired", "acquired_block", "why", "done", "greenlet")

    def __init__(self, block, tid, index):
        self.tid, self.lane, self.threadIdx, self.blockIdx, self.block = tid, tid & 31, index, block.index, block
        self.warp = block.warps[tid >> 5]
        self.reads, self.writes, self.atomics = trace.logs_of(self)
        self.clock = block.clocks.start
        self.released = self.released_block = self.acquired = self.acquired_block = None
        self.why, self.done, self.greenlet = None, False, None

    def __repr__(self):
        return f"thread {self.threadIdx} of block {self.blockIdx}"


class Barrier:
    """A meeting of threads, in the call at bytecode `offset` of `code`. `arrived` is a new list every time."""
    __slots__ = "name", "arrived", "waiters", "code", "offset"

    def __init__(self, name):
        self.name, self.arrived, self.waiters, self.code, self.offset = name, [], [], None, 0

    def arrive(self, thread, code, offset):
        if not self.arrived:
            self.code, self.offset = code, offset
        elif self.offset != offset or self.code is not code:
            raise Misuse(f"{self.name} at {line(code, offset)}, while {len(self.arrived)} threads wait in another one, at "
                         f"{line(self.code, self.offset)}: all threads must meet in the same {self.name}")
        self.arrived.append(thread)

    def report(self, need):
        return f"{self.name}: {len(self.arrived)} of {need} threads arrived at {line(self.code, self.offset)}"


class Worker(greenlet.greenlet):
    """What threads of a launch run in."""


def in_kernel():
    """Whether this code runs in a simulated kernel; `CURRENT` may be another OS thread's, or of a launch that Ctrl-C ended."""
    return isinstance(greenlet.getcurrent(), Worker)


def current():
    """The running `Thread`, for code that only makes sense inside a kernel."""
    if not in_kernel():
        raise Misuse("no simulated kernel is running")
    return CURRENT


def _random_next():
    i = _random.randrange(len(READY))
    READY[i], READY[-1] = READY[-1], READY[i]
    return READY.pop()


_POLICIES = dict(zip(POLICIES, (READY.popleft, READY.pop, _random_next), strict=True))
_next = READY.popleft  # takes the thread that runs next off the queue; set by every launch


def _leave(thread):
    """Run others until somebody switches back to `thread`, which is in the queue or in a list of waiters."""
    global CURRENT
    following = _next() if READY else None
    if following is thread:
        return
    if following is not None and following.greenlet is not None:
        CURRENT = following
        following.greenlet.switch(following)
    else:  # nobody is ready, or a thread has to be started, which is done from the hub: a greenlet inherits its starter's recursion depth
        thread.block.launch.hub.switch(following)


def park(waiters, why):
    """Wait in the list `waiters`; `why()` tells the deadlock report what for."""
    thread = CURRENT
    thread.why = why
    waiters.append(thread)
    if trace.SCHEDULE is not None:
        trace.SCHEDULE.waits(thread, why)
    _leave(thread)
    if trace.SCHEDULE is not None:
        trace.SCHEDULE.goes_on(thread)
    thread.why = None


def wake(waiters, meet=True):
    """Ready all of `waiters` and empty the list; `meet`: they, and who wakes them, have met."""
    if waiters:
        if trace.SCHEDULE is not None and meet:
            trace.SCHEDULE.meets([CURRENT, *waiters])
        waiters[0].block.launch.idle = 0
        READY.extend(waiters)
        waiters.clear()


def pause(why):
    """Let everybody else run first: what a thread does that polls memory, having seen no change."""
    thread = CURRENT
    launch = thread.block.launch
    launch.idle += 1
    if launch.idle > 2 * len(READY) + 2:
        launch.polled_in_vain(why)
    thread.why = why
    if config.policy == "lifo":
        READY.appendleft(thread)
    else:
        READY.append(thread)
    _leave(thread)
    thread.why = None


class Launch:
    """One launch: admits blocks, runs the threads, tells what went wrong."""

    def __init__(self, name, function, grid, block, cluster, shared, cooperative, make_block):
        self.name, self.function, self.grid, self.block_dim, self.cluster_dim = name, function, grid, block, cluster
        self.shared, self.cooperative, self.make_block = shared, cooperative, make_block
        self.shared_used, self.statics = shared, {}  # bytes of shared memory arrays, the first bytes of static ones: the same in all blocks
        self.hub, self.idle, self.blocks, self.live_blocks = greenlet.getcurrent(), 0, [], 0
        self.pending = iter(self._clusters())
        self.left = grid[0] * grid[1] * grid[2]
        self.context = None
        self.workers, self.idle_workers = [], []  # a greenlet costs ten times what a switch does, so they are used again
        self.block_size, self.grid_size = Dim3(*block), Dim3(*grid)
        self.barrier = Barrier("grid sync")

    def _clusters(self):
        (gx, gy, gz), (cx, cy, cz) = self.grid, self.cluster_dim
        for z in range(0, gz, cz):
            for y in range(0, gy, cy):
                for x in range(0, gx, cx):
                    yield [(x + i, y + j, z + k) for k in range(cz) for j in range(cy) for i in range(cx)]

    def admit(self):
        """Make the next cluster's blocks resident; False if there is none."""
        ids = next(self.pending, None)
        if ids is None:
            return False
        cluster = []
        for index in ids:
            block = self.make_block(self, Dim3(*index), cluster)
            cluster.append(block)
            self.blocks.append(block)
            self.live_blocks += 1
            self.left -= 1
            READY.extend(block.threads)
            STATS["blocks"] += 1
            STATS["threads"] += block.n
        self.idle = 0
        return True

    def admit_another(self):
        """Give blocks that can only wait the company of further ones, as far as a GPU would."""
        if not self.left:
            return False
        return (self.barrier.arrived or self.live_blocks < config.resident_limit) and self.admit()

    def sync(self, thread, code, offset):
        """Barrier of all threads of the launch, called at bytecode `offset` of `code`."""
        barrier = self.barrier
        if self.cooperative is False:
            raise Misuse(f"grid sync in kernel {self.name}, whose launch is not cooperative")
        barrier.arrive(thread, code, offset)
        if self.all_at_barrier():
            self.release()
            return
        arrived = barrier.arrived
        while barrier.arrived is arrived:
            park(barrier.waiters, lambda: barrier.report(np.prod(self.grid) * np.prod(self.block_dim)))

    def all_at_barrier(self):
        return not self.left and len(self.barrier.arrived) == sum(b.live for b in self.blocks)

    def release(self):
        """All live threads have arrived at the grid's barrier."""
        self.synchronise()
        self.barrier.arrived = []
        wake(self.barrier.waiters)

    def run(self):
        """Run every block to its end."""
        global CURRENT, _next
        READY.clear()
        STATS.clear()
        if config.policy not in POLICIES:
            raise Misuse(f"config.policy is {config.policy!r}, not one of {', '.join(POLICIES)}")
        _next = _POLICIES[config.policy]
        _random.seed(f"{config.seed} {self.name}")
        with np.errstate(all="ignore"):
            self.context = contextvars.copy_context()
        while (self.cooperative or self.live_blocks < config.resident_blocks) and self.admit():
            pass
        thread = None
        try:
            while True:
                if thread is None:
                    if READY:
                        thread = _next()
                    elif self.live_blocks and self.admit_another():
                        continue
                    else:
                        break
                if thread.greenlet is None:
                    thread.greenlet = self.idle_workers.pop() if self.idle_workers else self.new_worker()
                CURRENT = thread
                thread = thread.greenlet.switch(thread)
            CURRENT = None
            if self.live_blocks:
                raise Deadlock(self.report("no thread can go on"))
        except Exception as error:
            self.explain(error)
            raise
        finally:
            CURRENT = None
            READY.clear()
            self.end_workers()

    def new_worker(self):
        worker = Worker(_worker, self.hub)
        worker.gr_context = self.context
        self.workers.append(worker)
        return worker

    def end_workers(self):
        """End all greenlets, which the garbage collector does not: it cannot see what their frames refer to."""
        self.idle_workers.clear()
        try:
            while self.workers:
                with contextlib.suppress(Exception):  # of a kernel's own finally clauses
                    self.workers.pop().throw()
        finally:  # Ctrl-C here must not leave the others behind
            if self.workers:
                self.end_workers()

    def finish(self, thread):
        """`thread` has returned from the kernel."""
        thread.done = True
        self.idle = 0
        block = thread.block
        block.finish(thread)
        if not block.live:
            block.close()
            self.blocks.remove(block)
            self.live_blocks -= 1
            while self.left and self.live_blocks < config.resident_blocks:
                self.admit()
        if self.barrier.arrived and self.all_at_barrier():
            self.release()

    def polled_in_vain(self, why):
        """Every ready thread has polled without seeing a change."""
        if self.idle > max(config.spin_limit, 50 * len(READY)):
            CURRENT.why = why
            raise Deadlock(self.report(f"the ready threads only poll ({self.idle} times without a change)"))
        if self.left:
            self.admit_another()

    def report(self, headline):
        """Who waits for what; threads of a block with one story on one line."""
        lines = [f"kernel {self.name}: {headline}"]
        for block in self.blocks[:4]:
            stories = {}
            for t in block.threads:
                if not t.done:
                    stories.setdefault(t.why() if t.why else "ready to run", []).append(t.tid)
            lines.append(f"  block {block.index}:")
            lines += [f"    {ranges(tids)}: {story}" for story, tids in stories.items()]
        if len(self.blocks) > 4:
            lines.append(f"  and {len(self.blocks) - 4} more blocks")
        if self.left:
            lines.append(f"  {self.left} blocks have not started")
        return "\n".join(lines)

    def explain(self, error):
        """Say where `error` happened."""
        t = CURRENT
        if t is not None:
            place = f"thread {t.threadIdx} (warp {t.warp.id}, lane {t.lane}) of block {t.blockIdx}"
            annotate(error, f"in kernel {self.name}, noticed when {place} synchronised or ended" if isinstance(error, Race) else
                     f"in kernel {self.name}, {place}")
        if not isinstance(error, Race):
            self.blame(error, t)


def _worker(thread):
    """Body of a greenlet: runs `thread`, then one thread after the other that has not started; waits among the idle in between."""
    global CURRENT
    launch, me = thread.block.launch, greenlet.getcurrent()
    function, hub, idle = launch.function, launch.hub, launch.idle_workers
    while True:
        function(*thread.block.arguments(thread))
        thread.greenlet = None
        launch.finish(thread)
        thread = _next() if READY else None
        if thread is None or thread.greenlet is not None:
            idle.append(me)
            CURRENT = thread
            thread = hub.switch(None) if thread is None else thread.greenlet.switch(thread)
        else:
            thread.greenlet = me
            CURRENT = thread
