"""Asynchronous copies from global to shared memory (cp.async, from sm_80 on): they pass no register and the thread does not wait.

A thread issues copies, closes them into a group, and later waits until all but its latest `n` groups have arrived::

    wait = wait_copies(1)                                    # host: the count is part of the instruction

    copy_async16(shared_address(tile, i), address(x, j), 0, 16)
    commit_copies()
    ...
    wait()                                                   # this thread's copies have landed, up to one group
    cuda.syncthreads()                                       # and now everybody's have

Addresses are bytes: 32-bit in the shared window (`vec.shared_address`), 64-bit generic (`vec.address`) plus a signed offset, which folds
into the instruction where it is a constant. Both must be multiples of the copy's size.

=============================================  ========================================================================================
copy_async4, 8, 16 (to, source, offset, n)      writes that many bytes: `n` from the source, the rest zero; at 0 the source is not touched
copy_async4_if ... (to, source, offset, ok)     where `ok` is zero nothing happens at all
commit_copies()                                 the copies issued since the last call are a group, be it empty
wait_copies(n)                                  host function: the device function that waits for all but the latest n groups
=============================================  ========================================================================================

In the simulator a copy lands at the wait, the latest moment a GPU may choose; until then its destination holds 0xFF bytes (NaN). It is a
write of the thread both when it is issued and when it lands: a barrier must lie between older reads and the issue, and between the wait
and other threads' reads.
"""
import functools

from . import SIMULATED, instruction

if SIMULATED:
    from collections import deque

    import numpy as np

    from .sim.arrays import POISON
    from .sim.engine import current
    from .sim.errors import Misuse

    _WORD = np.dtype(np.uint32)

    class _Copies:
        """What a thread has under way: copies (destination byte, source bytes, size) not in a group yet, and groups, oldest first."""
        __slots__ = "open", "groups"

        def __init__(self):
            self.open, self.groups = [], deque()

    def _copies(thread):
        of_block = thread.block.__dict__.setdefault("async_copies", {})
        found = of_block.get(thread.tid)
        if found is None:
            found = of_block[thread.tid] = _Copies()
        return found

    def _source(thread, at, count, size):
        for memory in thread.block.launch.memories[1:]:
            if memory.base <= at < memory.base + memory.size:
                byte = at - memory.base
                if at % size or byte + count > memory.size:
                    raise Misuse(f"cp.async of {size} bytes from {memory.describe(byte)}: misaligned or beyond the end of its memory")
                return memory, byte
        raise Misuse(f"cp.async reads address {at:#x}, where there is no memory")

    def _copy(size):
        def copy(to, source, offset, count):
            thread = current()
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
            _copies(thread).open.append((byte, size, memory, first, count))
        return copy

    def _copy_if(size):
        copy = _copy(size)

        def copy_if(to, source, offset, ok):
            if ok:
                copy(to, source, offset, size)
        return copy_if

    def _log(log, memory, byte, count):
        entry = (byte >> 2) + memory.code(_WORD)
        log.extend(range(entry, entry + (count + 3 >> 2)))

    def _commit():
        mine = _copies(current())
        mine.groups.append(mine.open)
        mine.open = []

    def _wait(pending):
        def wait():
            thread = current()
            groups, shared = _copies(thread).groups, thread.block.shared.raw
            while len(groups) > pending:
                for byte, size, memory, first, count in groups.popleft():
                    if count:
                        shared[byte:byte + count] = memory.raw[first:first + count]
                        _log(thread.reads, memory, first, count)
                    shared[byte + count:byte + size] = 0
                    _log(thread.writes, thread.block.shared, byte, size)
        return wait
else:
    def _copy(size):
        return None

    _copy_if = _wait = _copy
    _commit = None


def _instructions(size):
    """The zero-filling and the predicated copy of `size` bytes; only 16 bytes can bypass the L1."""
    op = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global"
    fill = instruction(f"{{ .reg .u64 o; add.s64 o, $1, $2; {op} [$0], [o], {size}, $3; }}", (), ("uint32", "uint64", "int64", "uint32"),
                       twin=_copy(size), memory=True)
    predicated = instruction(f"{{ .reg .pred p; .reg .u64 o; setp.ne.s32 p, $3, 0; add.s64 o, $1, $2; @p {op} [$0], [o], {size}; }}", (),
                             ("uint32", "uint64", "int64", "int32"), twin=_copy_if(size), memory=True)
    return fill, predicated


copy_async4, copy_async4_if = _instructions(4)
copy_async8, copy_async8_if = _instructions(8)
copy_async16, copy_async16_if = _instructions(16)
commit_copies = instruction("cp.async.commit_group;", (), (), twin=_commit, memory=True)


@functools.cache
def wait_copies(pending):
    """Device function that waits until at most `pending` of the thread's latest groups are under way. Host function."""
    if pending < 0:
        raise ValueError(f"wait_copies: {pending} groups")
    return instruction(f"cp.async.wait_group {pending};", (), (), twin=_wait(pending), memory=True)
