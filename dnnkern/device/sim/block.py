"""A resident block: its threads, its shared memory, its barrier."""
import numpy as np

from . import cluster, order
from .arrays import Buffer, Layout, packed_strides
from .clocks import Clocks
from .config import config
from .engine import Barrier, Dim3, Thread, Warp, park, wake
from .errors import Misuse
from .names import ArrayName, line


class SharedMemory(Buffer):
    """A block's shared memory: the dynamic array at `config.shared_base`, static arrays behind it in the order in which they first run.

    `number` is its index among the launch's memories once another block of the cluster has accessed it; `nothing` is the byte that it holds
    where nothing has written.
    """
    number = None

    def __init__(self, block):
        dynamic = block.launch.shared
        self.nothing = block.launch.fresh.shared
        raw = np.full(max(config.shared_limit, dynamic) + 1024, self.nothing, np.uint8)
        super().__init__(raw, 0, config.shared_base)
        self.dynamic = dynamic
        self.statics = {}
        self.block = block

    @property
    def used(self):
        """Bytes of all arrays that a block of the launch has made so far: they lie at the same place in each."""
        return self.block.launch.shared_used

    def dynamic_layout(self, dtype):
        """The dynamic array as elements of `dtype`."""
        layout = self.statics.get(dtype)
        if layout is None:
            layout = self.statics[dtype] = Layout(self, dtype, 0, (self.dynamic // dtype.itemsize,), (1,), "dynamic shared array")
        return layout

    def static_layout(self, code, offset, shape, dtype, alignment):
        """The static array that is created by the call at bytecode `offset` of `code`."""
        key = id(code), offset, shape, dtype  # by identity: equal code of two functions makes two arrays
        layout = self.statics.get(key)
        if layout is None:
            extents = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
            launch = self.block.launch
            first = launch.statics.get(key)
            if first is None:
                nbytes = int(np.prod(extents)) * dtype.itemsize
                align = max(alignment or 0, 16)
                first = -(-(self.base + self.used) // align) * align - self.base
                if first + nbytes > config.shared_limit:
                    raise Misuse(f"shared memory: an array of {nbytes} bytes on top of {self.used} exceeds a block's {config.shared_limit}")
                launch.statics[key], launch.shared_used = first, first + nbytes
            name = ArrayName("shared array", code, offset)
            layout = self.statics[key] = Layout(self, dtype, first // dtype.itemsize, extents, packed_strides(extents), name)
        return layout

    def describe(self, byte):
        """Words for the place `byte`: array, index and address."""
        whose = f" of block {self.block.index}" if self.block.clustered else ""
        for layout in self.statics.values():
            first, size = layout.start * layout.dtype.itemsize, int(np.prod(layout.shape)) * layout.dtype.itemsize
            if first <= byte < first + size:
                index = np.unravel_index((byte - first) // layout.dtype.itemsize, layout.shape)
                return f"{layout.name}[{', '.join(str(i) for i in index)}] (address {self.base + byte:#x}){whose}"
        return f"shared memory address {self.base + byte:#x}{whose}"


class Block:
    """Threads `threads`, `live` of them not yet returned; `index` is blockIdx, `number` counts blocks of the launch as they start."""

    def __init__(self, launch, index, cluster):
        x, y, z = launch.block_dim
        self.launch, self.index, self.cluster, self.n = launch, index, cluster, x * y * z
        self.number = len(launch.indices)
        launch.indices.append(index)
        self.live = self.n
        self.clocks = Clocks(self.number, self.n)
        launch.clocks.append(self.clocks)
        self.floor = 0  # every thread of the block knows all that its threads did up to this time
        self.uniform = True  # all threads have the same clock, and nothing released or acquired that others have not
        self.atomic_slot = self.clocks.slot("a thread of the block")  # agent of the atomic operations that pass knowledge on
        self.logged = 0  # accesses in the logs of threads that have returned
        self._shared = None
        self.barrier, self.votes = Barrier("syncthreads"), []
        self.named = {}  # phases of named barriers under way, by number (see `barriers`)
        self.clustered = launch.cluster_dim != (1, 1, 1)  # other blocks may access the shared memory
        self.visits = {}  # threads of other blocks that have, and when (see `cluster`)
        self.watchers = []  # called with each thread that returns
        self.warps = [Warp(i, min(32, self.n - 32 * i)) for i in range(-(-self.n // 32))]
        self.threads = [Thread(self, tid, Dim3(tid % x, tid // x % y, tid // (x * y))) for tid in range(self.n)]

    @property
    def shared(self):
        if self._shared is None:
            self._shared = SharedMemory(self)
        return self._shared

    def arguments(self, thread):
        return [give(thread) for give in self.launch.arguments]

    def shared_array(self, thread, code, offset, shape, dtype, alignment):
        """The dynamic array for shape 0, else the static array created at bytecode `offset` of `code`."""
        memory = self.shared
        if shape == 0:
            layout = memory.dynamic_layout(dtype)
        else:
            layout = memory.static_layout(code, offset, shape, dtype, alignment)
        return layout.of_thread(thread)

    def sync(self, thread, code, offset):
        """Barrier of all threads that have not returned, called at bytecode `offset` of `code`."""
        barrier = self.barrier
        arrived = barrier.arrived
        if 0 in self.named:
            raise Misuse(f"syncthreads at {line(code, offset)} is barrier 0, at which threads wait already: {self.named[0].report()}")
        barrier.arrive(thread, code, offset)
        if len(arrived) == self.live:
            self.release()
        else:
            while barrier.arrived is arrived:
                park(barrier.waiters, self._why)

    def _why(self):
        return self.barrier.report(self.live)

    def vote(self, thread, code, offset, predicate):
        """`predicate` of every thread, by barrier."""
        votes = self.votes
        votes.append(bool(predicate))
        self.sync(thread, code, offset)
        if self.votes is votes:
            self.votes = []
        return votes

    def release(self):
        """All live threads have arrived at the barrier."""
        barrier = self.barrier
        order.meet_block(self)
        barrier.arrived = []
        wake(barrier.waiters)

    def finish(self, thread):
        """`thread` returns: barriers and collectives no longer wait for it."""
        order.leave(thread)
        self.live -= 1
        thread.warp.live &= ~(1 << thread.lane)
        for exchange in list(thread.warp.exchanges.values()):
            exchange.complete_without(thread)
        if self.live and len(self.barrier.arrived) == self.live:
            self.release()
        for watch in self.watchers:
            watch(thread)

    def close(self):
        """The last thread has returned."""
        order.close(self)
        cluster.leave(self)
