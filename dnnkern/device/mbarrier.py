"""Barriers in shared memory that count threads and bytes (mbarrier): how asynchronous copies say that they have landed.

A barrier is 8 bytes of shared memory at a multiple of 8. A phase of it is complete when as many arrivals as `mbarrier_init` was told have
come and all bytes that were expected have landed; then the next phase begins by itself. A wait names the phase by its parity: 0 for the
first, 1 for the second, 0 for the third::

    full = vec.shared_address(barriers, 0)                   # barriers = cuda.shared.array(1, i64)
    if t == 0:
        mbarrier_init(full, u32(1))
        fence_mbarrier_init()
    cuda.syncthreads()
    if t == 0:
        mbarrier_arrive_expect(full, u32(4096))              # the one arrival, and what it promises
        load(tile, tensor_map_address(x), full, 0, 0)        # tma: completes 4096 bytes
    mbarrier_wait(full, u32(0))

===========================================  ==========================================================================================
mbarrier_init(bar, count)                     `count` arrivals complete a phase, 1 to 2**20 - 1
fence_mbarrier_init()                         makes it known to the cluster and to copies; a barrier of threads must follow
mbarrier_invalidate(bar)                      the 8 bytes are ordinary memory again
mbarrier_arrive(bar)                          one arrival; what this thread did before is known to those who wait
mbarrier_arrive_count(bar, n)                 `n` arrivals
mbarrier_arrive_expect(bar, bytes)            one arrival, and `bytes` more must land in this phase
mbarrier_expect(bar, bytes)                   the same without the arrival
mbarrier_arrive_remote(bar, rank)             one arrival at the barrier at the same offset in the cluster's block `rank`
mbarrier_free_remote(bar, rank)               the same, but says only that reads are over: it needs no fence
mbarrier_arrive_copies(bar)                   one arrival when this thread's cp.async copies so far have landed
mbarrier_wait(bar, parity)                    until the phase of this parity is complete; sees what its block's arrivals made known
mbarrier_wait_cluster(bar, parity)            the same for arrivals of the whole cluster
mbarrier_test(bar, parity)                    whether it is complete, without waiting
fence_async()                                 what this thread wrote or knows of is visible to asynchronous copies from here on
fence_async_shared(), fence_async_global()    the same for shared, or global, memory alone
===========================================  ==========================================================================================

`bar` is a 32-bit address in the shared window. sm_90, but for init, arrive, arrive_copies and test: sm_80. A thread that only waits now and
then must keep count of the phases, or be told by others: a parity tells a phase from the one before it, no more.

In the simulator a barrier counts its phases. That it runs ahead of a thread that waits by parity, fewer or more bytes or arrivals than it
was told of, use before its initialisation is known, and a block that ends while others may still arrive are errors; so is whatever is
accessed in no order with its arrivals and waits. Deadlocks are reported with what each barrier lacks.
"""
from . import SIMULATED, instruction

if SIMULATED:
    from .sim import cp_async as _copies
    from .sim import mbarrier as _twins
else:
    _twins = _copies = None


def _operation(name, text, *operands, results=(), home=_twins):
    return instruction(text, results, operands, memory=True, twin=getattr(home, name, None))


def _wait(scope):
    return ("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire." + scope
            + ".shared::cta.b64 p, [$0], $1; @p bra done; bra again; done: }")


mbarrier_init = _operation("init", "mbarrier.init.shared::cta.b64 [$0], $1;", "uint32", "uint32")
fence_mbarrier_init = _operation("fence_init", "fence.mbarrier_init.release.cluster;")
mbarrier_invalidate = _operation("invalidate", "mbarrier.inval.shared::cta.b64 [$0];", "uint32")
mbarrier_arrive = _operation("arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", "uint32")
mbarrier_arrive_count = _operation("arrive_count", "mbarrier.arrive.shared::cta.b64 _, [$0], $1;", "uint32", "uint32")
mbarrier_arrive_expect = _operation("arrive_expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "uint32", "uint32")
mbarrier_expect = _operation("expect", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", "uint32", "uint32")
mbarrier_arrive_remote = _operation(
    "arrive_remote", "{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [a]; }",
    "uint32", "uint32")
mbarrier_free_remote = _operation(
    "free_remote", "{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [a]; }",
    "uint32", "uint32")
mbarrier_arrive_copies = _operation("arrive_copies", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "uint32", home=_copies)
mbarrier_wait = _operation("wait", _wait("cta"), "uint32", "uint32")
mbarrier_wait_cluster = _operation("wait_cluster", _wait("cluster"), "uint32", "uint32")
mbarrier_test = _operation("test", "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }",
                           "uint32", "uint32", results=("int32",))
fence_async = _operation("fence_async", "fence.proxy.async;")
fence_async_shared = _operation("fence_async_shared", "fence.proxy.async.shared::cta;")
fence_async_global = _operation("fence_async_global", "fence.proxy.async.global;")
