"""Named barriers: some warps of a block meet, or some announce what others wait for (bar.sync, bar.arrive).

::

    barrier_sync(name, threads)         wait until `threads` threads have come to barrier `name`, this warp among them
    barrier_arrive(name, threads)       come to it and go on: what this warp did before is known to those who wait

A block has 16, `name` 0 to 15, of which 0 is that of `cuda.syncthreads`: leave it to that. `threads` counts whole warps, a multiple of 32,
and all who come to one use of a barrier, to wait or not, give the same. Who counts is whoever comes: the barrier opens for the first
`threads` threads, and is then as new. The lanes of a warp come as one; a warp comes once. A ring between a producer and consumers takes
two::

    if producer:                                             # 32 threads              consumers: 64 threads
        barrier_sync(EMPTY, 96)                              #                         barrier_sync(FULL, 96)
        ... write the tile                                   #                         ... read the tile
        barrier_arrive(FULL, 96)                             #                         barrier_arrive(EMPTY, 96)

where the consumers begin with an arrival at EMPTY. Names and counts that are constants cost nothing; a `name` that is not known when the
kernel is compiled reserves all 16.
"""
from . import SIMULATED, instruction

if SIMULATED:
    from .sim.barriers import barrier_arrive as _arrive, barrier_sync as _sync
else:
    _arrive = _sync = None

barrier_sync = instruction("bar.sync $0, $1;", (), ("uint32", "uint32"), twin=_sync, memory=True, convergent=True)
barrier_arrive = instruction("bar.arrive $0, $1;", (), ("uint32", "uint32"), twin=_arrive, memory=True, convergent=True)
