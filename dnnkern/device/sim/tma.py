"""Bulk copies between global and shared memory: the twins of `dnnkern.device.tma`.

A load is checked and poisons its destination when it is issued; it lands when somebody waits at its barrier. A store is checked when it is
issued; its source is read when its thread waits for it. Both are in the order of memory accesses from their issue until the wait.
"""
from collections import deque

import numpy as np

from ..host_memory import POISON
from . import engine, order, proxy
from .errors import Misuse
from .maps import BoundMap, Run, swizzled
from .mbarrier import barrier_at, released

_OFFSET_BITS = {3: 16, 4: 8, 5: 5}


def _check_map(tensor_map, what):
    if not isinstance(tensor_map, BoundMap):
        raise Misuse(f"{what}: expected tensor_map_address(map) of a kernel parameter, got a {type(tensor_map).__name__}")


def prefetch_tensor_map(tensor_map):
    """Twin of prefetch.tensormap."""
    _check_map(tensor_map, "prefetch_tensor_map")


def _shared_byte(block, address, nbytes, align, what):
    memory, address = block.shared, int(address)
    byte = address - memory.base
    if address % align or not 0 <= byte <= memory.used - nbytes:
        raise Misuse(f"{what}: {nbytes} bytes at shared address {address:#x} are not aligned to {align} bytes or outside the block's "
                     f"{memory.base:#x} .. {memory.base + memory.used:#x}")
    return byte


class Load:
    """A copy of a box or run to a block's shared memory."""
    arrivals = 0

    def __init__(self, barrier, access, source, byte):
        self.access, self.source, self.byte, self.phase, self.nbytes = access, source, byte, barrier.phase, source.nbytes

    def __str__(self):
        return f"a copy of {self.nbytes} bytes of {self.source.title}"

    def land(self):
        """The bytes arrive."""
        source, memory = self.source, self.access.block.shared
        self.access.runs("read", source.memory, source.starts, source.length)
        pieces = memory.raw[self.byte:self.byte + self.nbytes].reshape(-1, 16)
        pieces[swizzled(memory.base + self.byte, self.nbytes, source.swizzle)] = source.read().reshape(-1, 16)


def _load(what, to, source, bar, blocks, align):
    clock = released(engine.CURRENT)
    for block in blocks:
        barrier = barrier_at(block, bar, what, fenced=True)
        byte, memory = _shared_byte(block, to, source.nbytes, align, what), block.shared
        access = proxy.Access(block, barrier.slot, [clock])
        access.runs("write", memory, np.array([byte]), source.nbytes)
        memory.raw[byte:byte + source.nbytes] = POISON
        barrier.enqueue(what, Load(barrier, access, source, byte))


def _coordinates(given, spec, what):
    coordinates = [int(c) for c in given]
    if not all(-2 ** 31 <= c < 2 ** 31 for c in coordinates):
        raise Misuse(f"{what}: coordinates {coordinates} are not int32")
    if coordinates[0] * spec.itemsize % 16:
        raise Misuse(f"{what}: coordinates {coordinates} begin {coordinates[0] * spec.itemsize} bytes into a row; expected a multiple of "
                     "16, all else is an illegal instruction")
    return coordinates


def _check_kind(tensor_map, rank, im2col, what):
    _check_map(tensor_map, what)
    spec = tensor_map.spec
    if len(spec.shape) != rank or spec.im2col != im2col:
        raise Misuse(f"{what}: {tensor_map.title} is {'an im2col' if spec.im2col else 'a tiled'} map of rank {len(spec.shape)}")


def load(rank, im2col, multicast):
    """Twin of the function that `make_tma_load` makes."""
    what = f"tma_load{'_im2col' * im2col}_{rank}d"
    offsets = rank - 2 if im2col else 0
    bits = _OFFSET_BITS.get(rank, 0)

    def copy(to, tensor_map, bar, *rest):
        thread = engine.current()
        _check_kind(tensor_map, rank, im2col, what)
        coordinates = _coordinates(rest[:rank], tensor_map.spec, what)
        if im2col:
            moves = [int(o) for o in rest[rank:rank + offsets]]
            if not all(0 <= o < 1 << bits for o in moves):
                raise Misuse(f"{what}: offsets {moves}; expected 0 to {(1 << bits) - 1}")
            box = tensor_map.pixels(coordinates, moves)
        else:
            box = tensor_map.tile(coordinates)
        blocks = [thread.block]
        if multicast:
            mask, cluster = int(rest[rank + offsets]), thread.block.cluster
            if not 0 < mask < 1 << len(cluster):
                raise Misuse(f"{what}: mask {mask:#x} in a cluster of {len(cluster)} blocks")
            blocks = [block for k, block in enumerate(cluster) if mask >> k & 1]
        _load(what, to, box, bar, blocks, 128)
    return copy


def bulk_load(to, source, nbytes, bar):
    """Twin of cp.async.bulk from global memory."""
    block = engine.current().block
    _load("bulk_load", to, Run(block.launch, int(source), int(nbytes), "bulk_load"), bar, [block], 16)


class Store:
    """A copy of shared memory to a box or run, or an addition to one."""

    def __init__(self, access, byte, target, adds):
        self.access, self.byte, self.target, self.adds = access, byte, target, adds

    def read(self):
        """The source is read. That the target is written at the same time nobody can tell who keeps to the order."""
        memory, target = self.access.block.shared, self.target
        source = memory.raw[self.byte:self.byte + target.nbytes].reshape(-1, 16)
        shadow = order.shadow_of(memory)
        if shadow is not None:
            nothing = np.flatnonzero((source == memory.nothing).all(1))
            never = [k for k in nothing if not shadow.written_at(self.byte + 16 * int(k), 16)]
            if never:
                raise Misuse(f"a bulk store reads {memory.describe(self.byte + 16 * int(never[0]))}, which nothing has written")
        data = source[swizzled(memory.base + self.byte, target.nbytes, target.swizzle)].reshape(-1)
        (target.add if self.adds else target.write)(data)


class Stores:
    """The bulk stores of a thread: not in a group yet, and groups, oldest first, of which the first `read` have read their source.

    Two agents act for it: `reader` in shared memory, `writer` in global memory.
    """

    def __init__(self, thread):
        name = f"a bulk store of thread {thread.tid}"
        clocks = thread.block.clocks
        self.reader = clocks.slot(name, f"thread {thread.tid} has not waited until it has read (make_bulk_wait_read), or not told since")
        self.writer = clocks.slot(name, f"thread {thread.tid} has not waited until it is complete (make_bulk_wait), or not told since")
        self.open, self.groups, self.read = [], deque(), 0


def _stores(thread):
    of_block = thread.block.__dict__.get("bulk_stores")
    if of_block is None:
        of_block = thread.block.__dict__["bulk_stores"] = {}
        thread.block.watchers.append(_returned)
    found = of_block.get(thread.tid)
    if found is None:
        found = of_block[thread.tid] = Stores(thread)
    return found


def _returned(thread):
    mine = thread.block.__dict__["bulk_stores"].get(thread.tid)
    if mine is not None and (mine.open or mine.read < len(mine.groups)):
        what = "has not committed (bulk_commit)" if mine.open else "has not waited for (make_bulk_wait_read)"
        raise Misuse(f"thread {thread.tid} returns with a bulk store that it {what}: shared memory may be gone before it is read")


def _store(what, target, source, align, adds):
    thread = engine.CURRENT
    block, mine = thread.block, _stores(thread)
    byte, clock = _shared_byte(block, source, target.nbytes, align, what), released(thread)
    access = proxy.Access(block, mine.reader, [clock])
    access.runs("read", block.shared, np.array([byte]), target.nbytes)
    if not target.memory.raw.flags.writeable:
        raise Misuse(f"{what}: {target.title} is written, but the array it came from is read-only")
    proxy.Access(block, mine.writer, [clock]).runs("update" if adds else "write", target.memory, target.starts, target.length)
    mine.open.append(Store(access, byte, target, adds))


def store(rank, adds):
    """Twin of the functions that `make_tma_store` and `make_tma_reduce_add` make."""
    what = f"tma_{'reduce_add' if adds else 'store'}_{rank}d"

    def copy(tensor_map, source, *rest):
        engine.current()
        _check_kind(tensor_map, rank, False, what)
        if adds:
            tensor_map.numbers()  # or the error that says what can be added to
        spec = tensor_map.spec
        coordinates = _coordinates(rest[:rank], spec, what)
        if min(coordinates) < 0:
            raise Misuse(f"{what}: coordinates {coordinates} lie before the array; only loads may begin there, a store is an illegal "
                         "instruction")
        if spec.shape[-1] * spec.itemsize % 16 and coordinates[0] <= spec.shape[-1] < coordinates[0] + spec.counts[-1]:
            raise Misuse(f"{what}: rows of {tensor_map.title} have {spec.shape[-1] * spec.itemsize} bytes; a box that goes beyond their "
                         "end writes whole pieces of 16 bytes")
        _store(what, tensor_map.tile(coordinates), source, 128, adds)
    return copy


def bulk_store(target, source, nbytes):
    """Twin of cp.async.bulk to global memory."""
    _store("bulk_store", Run(engine.current().block.launch, int(target), int(nbytes), "bulk_store"), source, 16, False)


def bulk_reduce_add_f32(target, source, nbytes):
    """Twin of cp.reduce.async.bulk of float32."""
    what = "bulk_reduce_add_f32"
    _store(what, Run(engine.current().block.launch, int(target), int(nbytes), what), source, 16, True)


def bulk_commit():
    """Twin of cp.async.bulk.commit_group."""
    thread = engine.current()
    mine = _stores(thread)
    mine.groups.append((mine.open, proxy.now(thread.block)))
    mine.open = []


def bulk_wait(pending, reading):
    """Twin of cp.async.bulk.wait_group: until groups have read their source, or are complete."""
    def wait():
        thread = engine.current()
        block, mine = thread.block, _stores(thread)
        done = len(mine.groups) - pending
        if done <= 0:
            return
        order.examine(block, (thread,))
        for group, _ in list(mine.groups)[mine.read:done]:
            for op in group:
                op.read()
        mine.read = max(mine.read, done)
        proxy.learn(block, (thread,), mine.reader, mine.groups[done - 1][1])
        if not reading:
            proxy.learn(block, (thread,), mine.writer, mine.groups[done - 1][1])
            for _ in range(done):
                mine.groups.popleft()
            mine.read -= done
    return wait
