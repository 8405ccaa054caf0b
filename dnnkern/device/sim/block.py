"""A resident block: its threads, its shared memory, its barrier."""
import numpy as np

from . import order
from .arrays import POISON, Array, Buffer, Pointer, array, packed_strides
from .clocks import Clocks
from .config import config
from .engine import Barrier, Dim3, Thread, Warp, park, wake
from .errors import Misuse


class SharedMemory(Buffer):
    """A block's shared memory: the dynamic array at `config.shared_base`, static arrays behind it in the order in which they first run."""

    def __init__(self, block):
        dynamic = block.launch.shared
        raw = np.full(max(config.shared_limit, dynamic) + 1024, POISON, np.uint8)
        super().__init__(raw, block.launch.new_memory(self), config.shared_base)
        self.dynamic = self.used = dynamic
        self.statics = {}
        self.block = block

    def place_static(self, site, shape, dtype, alignment):
        """First element of the static array that is created at `site`."""
        found = self.statics.get(site)
        if found is None:
            nbytes = int(np.prod(shape)) * dtype.itemsize
            align = max(alignment or 0, 16)
            first = -(-(self.base + self.used) // align) * align - self.base
            if first + nbytes > config.shared_limit:
                raise Misuse(f"shared memory: an array of {nbytes} bytes on top of {self.used} exceeds the {config.shared_limit} of a block")
            self.used = first + nbytes
            found = self.statics[site] = first // dtype.itemsize
        return found


class Block:
    """Threads `threads`, `live` of them not yet returned; `index` is blockIdx, `number` counts blocks of the launch as they start."""

    def __init__(self, launch, index, cluster):
        x, y, z = launch.block_dim
        self.launch, self.index, self.cluster, self.n = launch, index, cluster, x * y * z
        self.number = launch.started
        launch.started += 1
        self.live = self.n
        self.clocks = Clocks(self.number, self.n)
        self.floor = 0  # every thread of the block knows all that its threads did up to this time
        self._shared = None
        self.barrier, self.votes = Barrier("syncthreads"), []
        self.warps = [Warp(i, min(32, self.n - 32 * i)) for i in range(-(-self.n // 32))]
        self.threads = [Thread(self, tid, Dim3(tid % x, tid // x % y, tid // (x * y))) for tid in range(self.n)]

    @property
    def shared(self):
        if self._shared is None:
            self._shared = SharedMemory(self)
        return self._shared

    def arguments(self, thread):
        return [hand(a, thread) for a in self.launch.arguments]

    def shared_array(self, thread, site, shape, dtype, alignment):
        """The dynamic array for shape 0, else the static array created at `site`."""
        memory = self.shared
        if shape == 0:
            return array(memory, dtype, 0, (memory.dynamic // dtype.itemsize,), (1,), thread, site)
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
        site = (*site, shape, dtype)
        return array(memory, dtype, memory.place_static(site, shape, dtype, alignment), shape, packed_strides(shape), thread, site)

    def sync(self, thread, site):
        """Barrier of all threads that have not returned."""
        barrier = self.barrier
        if not barrier.arrived:
            barrier.site = site
        elif barrier.site != site:
            raise Misuse(f"syncthreads at {describe(site)}, while {len(barrier.arrived)} threads of the block wait in another one, "
                         f"at {describe(barrier.site)}: all threads of a block must meet in the same syncthreads")
        barrier.arrived.append(thread)
        if len(barrier.arrived) == self.live:
            self.release()
            return
        generation = barrier.generation
        while barrier.generation == generation:
            park(barrier.waiters, lambda: f"{barrier.report(self.live)} at {describe(site)}")

    def vote(self, thread, site, predicate):
        """`predicate` of every thread, by barrier."""
        votes = self.votes
        votes.append(bool(predicate))
        self.sync(thread, site)
        if self.votes is votes:
            self.votes = []
        return votes

    def release(self):
        """All live threads have arrived at the barrier."""
        barrier = self.barrier
        order.meet_block(self)
        barrier.arrived = []
        barrier.generation += 1
        wake(barrier.waiters)

    def finish(self, thread):
        """`thread` returns: barriers and collectives no longer wait for it."""
        order.exit(thread)
        self.live -= 1
        thread.warp.live &= ~(1 << thread.lane)
        for exchange in list(thread.warp.exchanges.values()):
            exchange.complete_without(thread)
        if self.live and len(self.barrier.arrived) == self.live:
            self.release()

    def close(self):
        """The last thread has returned."""


def hand(value, thread):
    """`value` of a kernel argument as `thread` gets it: arrays and pointers carry their thread's log."""
    if isinstance(value, Pointer):
        return value.of_thread(thread)
    if isinstance(value, Array):
        return array(value.buffer, value.dtype, value.start, value.shape, value.strides, thread, value.name)
    if type(value) is tuple:
        return tuple(hand(v, thread) for v in value)
    return value


def describe(site):
    """Line of a call site (code object, bytecode offset)."""
    code, offset = site[:2]
    line = next((n for first, last, n in code.co_lines() if first <= offset < last), code.co_firstlineno)
    return f"line {line} of {code.co_name}"
