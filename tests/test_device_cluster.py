"""Clusters: ranks, the barrier and what it makes known, remote accesses, and what the simulator refuses."""
import re

import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import SIMULATED, cluster, cuda, f32, i32, i64, u32
from dnnkern.device.cluster import (cluster_arrive, cluster_arrive_relaxed, cluster_rank, cluster_size, cluster_sync, cluster_wait,
                                    remote_address)
from dnnkern.device.mbarrier import (fence_async_shared, fence_mbarrier_init, mbarrier_arrive_expect, mbarrier_free_remote, mbarrier_init,
                                     mbarrier_wait)
from dnnkern.device.vec import load_shared_f32, shared_address

pytestmark = needs(9)
N = 64
CAST = {"u32": u32, "f32": f32}
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 1, 1), (2, 2, 1), (1, 2, 2)])
def test_ranks(shape):
    @cuda.jit(launch_bounds=32)
    def kernel(ranks, sizes):
        if cuda.threadIdx.x == 0:
            b = i32(cuda.blockIdx.x + 4 * (cuda.blockIdx.y + 4 * cuda.blockIdx.z))
            ranks[b] = cluster_rank()
            sizes[b] = cluster_size()
    ranks, sizes = np.full((2, 4, 4), -1, np.int32), np.full((2, 4, 4), -1, np.int32)
    launch(kernel, (4, 4, 2), 32, ranks, sizes, cluster=shape)
    z, y, x = np.indices(ranks.shape)
    cx, cy, cz = shape
    np.testing.assert_array_equal(ranks, x % cx + cx * (y % cy + cy * (z % cz)))
    assert (sizes == cx * cy * cz).all()


@pytest.mark.parametrize("name", CAST)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_ring_of_blocks(name, size):
    """Each block reads its right neighbour's tile, then writes into its left one's."""
    load, store, T = getattr(cluster, f"load_remote_{name}"), getattr(cluster, f"store_remote_{name}"), CAST[name]

    @cuda.jit(launch_bounds=N)
    def kernel(x, y, z):
        tile, box = cuda.shared.array(N, T), cuda.shared.array(N, T)
        t = i32(cuda.threadIdx.x)
        at = i32(N * cuda.blockIdx.x + t)
        rank, blocks = cluster_rank(), cluster_size()
        tile[t] = x[at]
        cluster_sync()
        y[at] = load(remote_address(shared_address(tile, i32(N - 1 - t)), i32((rank + 1) % blocks)))
        store(remote_address(shared_address(box, t), i32((rank + blocks - 1) % blocks)), x[at])
        cluster_sync()
        z[at] = box[t]
    x = np.arange(8 * N, dtype=np.float32 if name == "f32" else np.uint32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    launch(kernel, 8, N, x, y, z, cluster=size)
    tiles = x.reshape(-1, size, N)
    np.testing.assert_array_equal(y.reshape(tiles.shape), np.roll(tiles, -1, axis=1)[:, :, ::-1])
    np.testing.assert_array_equal(z.reshape(tiles.shape), np.roll(tiles, -1, axis=1))


def test_arrival_and_wait_apart():
    """What lies between them is done while others come; a relaxed arrival only says that the block has started."""
    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        tile, own = cuda.shared.array(N, f32), cuda.shared.array(N, f32)
        t = i32(cuda.threadIdx.x)
        at = i32(N * cuda.blockIdx.x + t)
        other = i32(1 - cluster_rank())
        cluster_arrive_relaxed()
        own[t] = x[at]
        cluster_wait()
        cluster.store_remote_f32(remote_address(shared_address(tile, i32(N - 1 - t)), other), own[t])
        cluster_arrive()
        own[t] = f32(-1)
        cluster_wait()
        y[at] = tile[t]
    x = np.arange(4 * N, dtype=np.float32)
    y = np.zeros_like(x)
    launch(kernel, 4, N, x, y, cluster=2)
    np.testing.assert_array_equal(y.reshape(2, 2, N), x.reshape(2, 2, N)[:, ::-1, ::-1])


def test_threads_that_have_returned_are_not_waited_for():
    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        tile = cuda.shared.array(N, f32)
        t = i32(cuda.threadIdx.x)
        if t >= 32 and cluster_rank() == 1:
            return
        tile[t] = x[i32(N * cuda.blockIdx.x + t)]
        cluster_sync()
        if t < 32:
            y[i32(32 * cuda.blockIdx.x + t)] = cluster.load_remote_f32(remote_address(shared_address(tile, t), i32(1 - cluster_rank())))
        cluster_sync()
    x, y = np.arange(2 * N, dtype=np.float32), np.zeros(N, np.float32)
    launch(kernel, 2, N, x, y, cluster=2)
    np.testing.assert_array_equal(y.reshape(2, 32), x.reshape(2, N)[::-1, :32])


@pytest.mark.parametrize("size", [2, 4])
def test_stores_that_a_barrier_counts(size):
    """Blocks send each other a number a step, to slots of two steps by turns; whoever has received a step may send the next but one."""
    STEPS, SLOTS = 5, 2 * size

    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        slots, bars = cuda.shared.array(SLOTS, f32), cuda.shared.array(2, i64)
        t, rank, blocks = i32(cuda.threadIdx.x), cluster_rank(), cluster_size()
        if t == 0:
            for k in range(2):
                mbarrier_init(shared_address(bars, i32(k)), u32(1))
            fence_mbarrier_init()
        cluster_sync()
        for step in range(STEPS):
            half = i32(step & 1)
            cuda.syncthreads()
            if t == 0:
                mbarrier_arrive_expect(shared_address(bars, half), u32(4 * size))
            if t < blocks:
                to = remote_address(shared_address(slots, i32(half * size + rank)), t)
                cluster.store_async_f32(to, x[i32(STEPS * cuda.blockIdx.x + step)], remote_address(shared_address(bars, half), t))
            mbarrier_wait(shared_address(bars, half), u32(i32(step >> 1) & 1))
            if t < size:
                y[i32((STEPS * cuda.blockIdx.x + step) * size + t)] = slots[i32(half * size + t)]
        cluster_sync()
    x = np.arange(8 * STEPS, dtype=np.float32)
    y = np.zeros(8 * STEPS * size, np.float32)
    launch(kernel, 8, N, x, y, cluster=size)
    got = y.reshape(8 // size, size, STEPS, size)
    np.testing.assert_array_equal(got, np.broadcast_to(x.reshape(-1, 1, size, STEPS).swapaxes(2, 3), got.shape))


def test_a_copy_between_blocks():
    """Each block writes numbers, a step after the other, and sends them to the other one, which has read the former ones."""
    STEPS = 3

    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        own, other = cuda.shared.array(N, f32), cuda.shared.array(N, f32)
        bars = cuda.shared.array(2, i64)
        t, to = i32(cuda.threadIdx.x), i32(1 - cluster_rank())
        full, empty = shared_address(bars, 0), shared_address(bars, 1)
        if t == 0:
            mbarrier_init(full, u32(1))
            mbarrier_init(empty, u32(N))
            fence_mbarrier_init()
        cluster_sync()
        for step in range(STEPS):
            phase = u32(step & 1)
            own[t] = x[i32((STEPS * cuda.blockIdx.x + step) * N + t)]
            fence_async_shared()
            cuda.syncthreads()
            if t == 0:
                mbarrier_wait(empty, phase ^ u32(1))
                mbarrier_arrive_expect(full, u32(4 * N))
                cluster.copy_async(remote_address(shared_address(other, 0), to), shared_address(own, 0), u32(4 * N),
                                   remote_address(full, to))
            mbarrier_wait(full, phase)
            y[i32((STEPS * cuda.blockIdx.x + step) * N + t)] = other[t]
            mbarrier_free_remote(empty, u32(to))
            cluster_sync()
    x = np.arange(4 * STEPS * N, dtype=np.float32)
    y = np.zeros_like(x)
    launch(kernel, 4, N, x, y, cluster=2)
    np.testing.assert_array_equal(y.reshape(2, 2, -1), x.reshape(2, 2, -1)[:, ::-1])


def _remote(tile, t):
    return remote_address(shared_address(tile, t), i32(1 - cluster_rank()))


def _before_the_start(tile, t):
    tile[t] = cluster.load_remote_f32(_remote(tile, t))


def _before_the_end(tile, t):
    cluster_sync()
    if cluster_rank() == 0:
        cluster.load_remote_f32(_remote(tile, t))


def _no_order(tile, t):
    cluster_sync()
    cluster.store_remote_f32(_remote(tile, t), f32(1))
    cuda.threadfence()
    tile[t] = f32(0)
    cluster_sync()


def _relaxed(tile, t):
    tile[t] = f32(0)
    cluster_arrive_relaxed()
    cluster_wait()
    cluster.load_remote_f32(_remote(tile, t))
    cluster_sync()


def _after_the_arrival(tile, t):
    cluster_arrive()
    tile[t] = f32(0)
    cluster_wait()
    cluster.load_remote_f32(_remote(tile, t))
    cluster_sync()


def _twice(tile, t):
    cluster_arrive()
    cluster_arrive()


def _sent(tile, t, to, wait):
    bars = cuda.shared.array(1, i64)
    bar = shared_address(bars, i32(0))
    if t == 0:
        mbarrier_init(bar, u32(1))
        fence_mbarrier_init()
    cluster_sync()
    if t == 0:
        mbarrier_arrive_expect(bar, u32(4))
        cluster.store_async_f32(_remote(tile, t), f32(1), remote_address(bar, to))
    if wait:
        mbarrier_wait(bar, u32(0))
    tile[t] = tile[t]
    cluster_sync()


@simulated
@pytest.mark.parametrize("body, error, words", [
    (lambda tile, t: _sent(tile, t, i32(1 - cluster_rank()), False), "Race", "a copy to mbarrier"),
    (lambda tile, t: _sent(tile, t, cluster_rank(), True), "Misuse", "are in different blocks"),
    (_before_the_start, "Race", "nothing says that it has started"),
    (_before_the_end, "Race", "a cluster barrier is missing behind the access"),
    (_no_order, "Race", "between blocks of a cluster it takes a cluster barrier"), (_relaxed, "Race", "of block"),
    (_after_the_arrival, "Race", "of block"), (_twice, "Misuse", "cluster_wait must come in between"),
    (lambda tile, t: cluster_wait(), "Misuse", "cluster_arrive must come first"),
    (lambda tile, t: remote_address(shared_address(tile, t), 2), "Misuse", "rank 2 in a cluster of 2 blocks"),
    (lambda tile, t: cluster.load_remote_f32(shared_address(tile, t) + (3 << 24)), "Misuse", "no address in a cluster of 2"),
    (lambda tile, t: cluster.load_remote_f32(remote_address(u32(shared_address(tile, t) + 2), 1)), "Misuse", "misaligned or outside"),
    (lambda tile, t: cluster.load_remote_f32(remote_address(u32(shared_address(tile, t) + 4 * N), 1)), "Misuse", "misaligned or outside"),
    (lambda tile, t: load_shared_f32(_remote(tile, t)), "Misuse", "misaligned or outside the block's")])
def test_refused(body, error, words):
    from dnnkern.device import sim

    @cuda.jit(launch_bounds=N)
    def kernel():
        body(cuda.shared.array(N, f32), i32(cuda.threadIdx.x))
    with pytest.raises(getattr(sim, error), match=re.escape(words)):
        launch(kernel, 2, N, cluster=2)


@simulated
def test_a_deadlock_says_how_many_are_missing(monkeypatch):
    from dnnkern.device.sim import Deadlock, config
    monkeypatch.setattr(config, "spin_limit", 100)

    @cuda.jit(launch_bounds=N)
    def kernel(y):
        if cluster_rank() == 0:
            cluster_sync()
        while cluster_rank() == 1:
            cuda.nanosleep(1)
    with pytest.raises(Deadlock, match=f"cluster barrier: {N} of {2 * N} threads have arrived"):
        launch(kernel, 2, N, np.zeros(1, np.float32), cluster=2)
