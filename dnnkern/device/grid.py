"""Blocks of a cooperative launch that wait for each other: a counter in global memory, where each says that it has come.

>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def two_phases(x, y, came):                                            # came: "uint32*", 0 at first
...     ...                                                                # write a part of x
...     announce(came)
...     await_blocks(came, u32(cuda.gridDim.x))
...     ...                                                                # read all of x

The counter only grows: after phase p it is p times the number of blocks. What any thread of a block wrote before it announced is known to
all threads of the blocks that have waited; they must not read it through the read-only path, or lines of the L1 that they read before
(``copy_async16`` bypasses it). Several counters make several groups of blocks, which do not wait for each other. All blocks that wait must
be resident at once: launch cooperatively.
"""
from . import SIMULATED, cuda, device_function, instruction, u32

if SIMULATED:
    def _add_twin(p, value):
        cuda.threadfence()
        cuda.atomic.add(p, 0, value)

    def _load_twin(p):
        value = cuda.atomic.add(p, 0, 0)
        cuda.threadfence()
        return value
else:
    _add_twin = _load_twin = None

add_released = instruction("red.release.gpu.global.add.u32 [$0], $1;", (), ("uint64", "uint32"), twin=_add_twin, memory=True)
load_acquired = instruction("ld.acquire.gpu.global.u32 $0, [$1];", ("uint32",), ("uint64",), twin=_load_twin, memory=True)
"""``add_released(counter, value)`` says that what this thread knows of is there, ``load_acquired(counter)`` learns of all that was said
before the value it gives: what the two below are made of, for single threads."""


@device_function
def announce(came):
    """What this block has written so far is there. All threads of the block call it."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        add_released(came, u32(1))


@device_function
def await_blocks(came, count):
    """Wait until `count` announcements have been made. All threads of the block call it."""
    if cuda.threadIdx.x == 0:
        while load_acquired(came) < count:
            pass
    cuda.syncthreads()
