"""Rings of stages between a producer of asynchronous copies and its consumers, and their mbarriers.

A ring has `stages` buffers. Each has a full barrier, which the producer's arrival and the bytes of its copies complete, and an empty
barrier, which the consumers' arrivals complete::

    producer    acquire: wait on empty[stage] -> expect bytes on full[stage], copy -> next stage
    consumer    wait on full[stage] -> read -> release: arrive on empty[stage] -> next stage

Both sides count the stages for themselves, in a `PipelineState`: the stage, and the phase (a parity) of the barrier that they wait on
next. A kernel makes its rings while its closure is built and captures them::

    pipe = make_pipeline(stages=4, consumers=2)              # two warpgroups read each stage
    SHARED = 4 * STAGE + pipe.bytes                          # the ring, then its barriers

    bars = pipe.barriers(ring + 4 * STAGE)
    if tid == 0:
        pipe.init(bars)
        fence_mbarrier_init()
    cuda.syncthreads()
    if producer:
        state = pipe.producer_start()
        for k in range(steps):
            pipe.producer_acquire(bars, state)
            bar = pipe.producer_expect(bars, state, u32(STAGE))
            load(ring + state.stage * STAGE, x_map, bar, k * BK, row)
            state = pipe.next(state)
    else:
        state = pipe.consumer_start()
        for k in range(steps):
            pipe.consumer_wait(bars, state)
            ...                                              # read the stage
            pipe.consumer_release(bars, state, thread)       # thread 0 of each warpgroup arrives
            state = pipe.next(state)

Blocks of a cluster that fill each other's stages by multicast have rings with `cluster` blocks: a release arrives in all of them, since
any of them may overwrite the stage. Where a barrier of the block says that a stage has been read, `consumers` is 0 and there are no empty
barriers.

Rings of ``cp.async`` (`cp_async`) are none of these. Their copies complete in groups that each thread counts for itself, a barrier of the
block both publishes a stage and frees another one, and the same threads copy and multiply: there is no phase, nobody to acquire from or to
release to, and the stage is an address that moves. The state and half of the operations would be empty. A ring that cp.async fills for
*other* warps has a full barrier of all copying threads and their `mbarrier_arrive_copies`; the library has no such ring.

Sources: CUTLASS's PipelineState and PipelineTmaAsync, and quack's, for the ideas.
"""
import functools
from typing import Callable, NamedTuple

from . import device_function, u32
from ._typed import by_field
from .mbarrier import mbarrier_arrive, mbarrier_arrive_expect, mbarrier_free_remote, mbarrier_init, mbarrier_wait

BARRIER = 8  # bytes


@by_field
class PipelineState(NamedTuple):
    """Where one side of a ring is.

    Attributes
    ----------
    stage : uint32
        The stage, 0 to ``stages - 1``.
    phase : uint32
        Parity of the phase that it waits for there. It flips where the ring begins again.
    """
    stage: u32
    phase: u32


class Barriers(NamedTuple):
    """Shared addresses of the full and of the empty barrier of a ring's stage 0; those of the other stages follow, 8 bytes apart."""
    full: u32
    empty: u32


class Pipeline(NamedTuple):
    """A ring's size and its device functions; `bars` is a `Barriers`, `state` a `PipelineState`.

    bytes : int
        Shared memory of the barriers, which is a multiple of 8; so must be its address.
    barriers(base)
        The `Barriers` at a shared address: full barriers first, then empty ones.
    init(bars)
        One thread: initialise all barriers. `fence_mbarrier_init` and a barrier of the block, or cluster, must follow.
    producer_start(), consumer_start()
        The state of either side at the ring's first use. To the producer all stages are free.
    next(state)
        The state of the stage after.
    advance(state, steps)
        The state `steps` stages later, for consumers that skip what others consume. They need a barrier with those: a parity does
        not tell a phase from the one after the next.
    state_at(use)
        A consumer's state at use number `use` of the ring, uint32, counted from 0. The producer's has the other phase.
    full_barrier(bars, state)
        Address of the stage's full barrier, which copies complete.
    producer_acquire(bars, state)
        Wait until all consumers have released what the stage held before.
    producer_expect(bars, state, nbytes)
        Arrive, and expect so many bytes of copies; gives the full barrier's address, for the copies.
    producer_commit(bars, state)
        Arrive alone: what this thread wrote to the stage is there.
    producer_tail(bars, state)
        Wait until all stages are free. Where others release stages of this block's, it must not end before.
    consumer_wait(bars, state)
        Wait until the stage is full.
    consumer_release(bars, state, thread)
        The stage has been read. Of the threads that call it with their numbers (of a warp or warpgroup, which must have met if all of
        them read) thread 0 arrives; in clusters the first threads, one for each block.

    A ring without empty barriers has None in place of `producer_acquire`, `producer_tail` and `consumer_release`.
    """
    bytes: int
    barriers: Callable
    init: Callable
    producer_start: Callable
    consumer_start: Callable
    next: Callable
    advance: Callable
    state_at: Callable
    full_barrier: Callable
    producer_acquire: Callable
    producer_expect: Callable
    producer_commit: Callable
    producer_tail: Callable
    consumer_wait: Callable
    consumer_release: Callable


@functools.cache
def make_pipeline(stages, consumers=1, producers=1, cluster=1) -> Pipeline:
    """The `Pipeline` of a ring.

    Parameters
    ----------
    stages : int
        Buffers of the ring, 1 or more.
    consumers : int
        Arrivals that free a stage, those of one block: warps or warpgroups, as `consumer_release` is called. With 0 there are no empty
        barriers.
    producers : int
        Arrivals that fill a stage, beside the bytes of copies.
    cluster : int
        Blocks that fill each other's stages; a power of two.

    Examples
    --------
    >>> pipe = make_pipeline(stages=3, consumers=2)
    >>> pipe.bytes
    48
    >>> make_pipeline(stages=3, consumers=0).bytes
    24
    """
    if stages < 1 or consumers < 0 or producers < 1 or cluster not in (1, 2, 4, 8, 16):
        raise ValueError(f"pipeline of {stages} stages, {consumers} consumers, {producers} producers, {cluster} blocks; expected at least "
                         "1 stage, 0 consumers, 1 producer, and 1, 2, 4, 8 or 16 blocks")
    FREED, TO_EMPTY, RELEASES = consumers * cluster, BARRIER * stages, consumers > 0

    @device_function
    def barriers(base):
        return Barriers(base, base + TO_EMPTY)

    @device_function
    def init(bars):
        for s in range(stages):
            mbarrier_init(bars.full + u32(BARRIER * s), u32(producers))
            if RELEASES:
                mbarrier_init(bars.empty + u32(BARRIER * s), u32(FREED))

    @device_function
    def producer_start():
        return PipelineState(u32(0), u32(1))

    @device_function
    def consumer_start():
        return PipelineState(u32(0), u32(0))

    @device_function
    def next_state(state):
        if stages == 1:
            return PipelineState(state.stage, state.phase ^ 1)
        if stages == 2:
            return PipelineState(state.stage ^ 1, state.phase ^ state.stage)
        stage = state.stage + 1
        if stage == stages:
            return PipelineState(u32(0), state.phase ^ 1)
        return PipelineState(stage, state.phase)

    @device_function
    def advance(state, steps):
        total = state.stage + u32(steps)
        rounds = total // stages
        return PipelineState(total - rounds * stages, state.phase ^ (rounds & 1))

    @device_function
    def state_at(use):
        rounds = use // stages
        return PipelineState(use - rounds * stages, rounds & 1)

    @device_function
    def full_barrier(bars, state):
        return bars.full + BARRIER * state.stage

    @device_function
    def producer_acquire(bars, state):
        mbarrier_wait(bars.empty + BARRIER * state.stage, state.phase)

    @device_function
    def producer_expect(bars, state, nbytes):
        bar = bars.full + BARRIER * state.stage
        mbarrier_arrive_expect(bar, nbytes)
        return bar

    @device_function
    def producer_commit(bars, state):
        mbarrier_arrive(bars.full + BARRIER * state.stage)

    @device_function
    def producer_tail(bars, state):
        for _ in range(stages):
            producer_acquire(bars, state)
            state = next_state(state)

    @device_function
    def consumer_wait(bars, state):
        mbarrier_wait(bars.full + BARRIER * state.stage, state.phase)

    @device_function
    def consumer_release(bars, state, thread):
        if cluster == 1:
            if thread == 0:
                mbarrier_arrive(bars.empty + BARRIER * state.stage)
        elif thread < cluster:
            mbarrier_free_remote(bars.empty + BARRIER * state.stage, u32(thread))

    def freed(function):
        return function if RELEASES else None
    return Pipeline(BARRIER * stages * (1 + RELEASES), barriers, init, producer_start, consumer_start, next_state, advance, state_at,
                    full_barrier, freed(producer_acquire), producer_expect, producer_commit, freed(producer_tail), consumer_wait,
                    freed(consumer_release))
