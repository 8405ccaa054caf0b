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
    from .sim import cp_async as _twins
else:
    _twins = None


def _twin(name, *choices):
    return getattr(_twins, name)(*choices) if SIMULATED else None


def _instructions(size):
    """The zero-filling and the predicated copy of `size` bytes; only 16 bytes can bypass the L1."""
    op = f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global"
    fill = instruction(f"{{ .reg .u64 o; add.s64 o, $1, $2; {op} [$0], [o], {size}, $3; }}", (), ("uint32", "uint64", "int64", "uint32"),
                       twin=_twin("make_copy", size), memory=True)
    predicated = instruction(f"{{ .reg .pred p; .reg .u64 o; setp.ne.s32 p, $3, 0; add.s64 o, $1, $2; @p {op} [$0], [o], {size}; }}", (),
                             ("uint32", "uint64", "int64", "int32"), twin=_twin("make_copy_if", size), memory=True)
    return fill, predicated


copy_async4, copy_async4_if = _instructions(4)
copy_async8, copy_async8_if = _instructions(8)
copy_async16, copy_async16_if = _instructions(16)
commit_copies = instruction("cp.async.commit_group;", (), (), twin=_twins.commit if SIMULATED else None, memory=True)


@functools.cache
def wait_copies(pending):
    """Device function that waits until at most `pending` of the thread's latest groups are under way. Host function."""
    if pending < 0:
        raise ValueError(f"wait_copies: {pending} groups")
    return instruction(f"cp.async.wait_group {pending};", (), (), twin=_twin("make_wait", pending), memory=True)
