"""mbarriers: arrivals, bytes, phases, clusters; in the simulator and on a GPU."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import SIMULATED, cuda, f32, i32, i64, u32
from dnnkern.device.cluster import (cluster_arrive, cluster_arrive_relaxed, cluster_rank, cluster_sync, cluster_wait, remote_address,
                                    store_remote_f32)
from dnnkern.device.cp_async import commit_copies, copy_async4, copy_async16, wait_copies
from dnnkern.device.mbarrier import (fence_async, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_copies, mbarrier_arrive_count,
                                     mbarrier_arrive_expect, mbarrier_arrive_remote, mbarrier_expect, mbarrier_free_remote, mbarrier_init,
                                     mbarrier_invalidate, mbarrier_test, mbarrier_wait, mbarrier_wait_cluster)
from dnnkern.device.tma import bulk_load, make_tma_load, tensor_map_address
from dnnkern.device.vec import address, shared_address
from dnnkern.host.tensormap import TensorMap

pytestmark = needs(9)


def test_arrivals_make_known_what_was_written():
    """Warp 1 reads what warp 0 wrote, without a barrier of the block in between."""
    @cuda.jit(launch_bounds=64)
    def kernel(x, y):
        s = cuda.shared.array(32, f32)
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        if t == 0:
            mbarrier_init(bar, u32(32))
        cuda.syncthreads()
        if t < 32:
            s[t] = x[t] * f32(2)
            mbarrier_arrive(bar)
        else:
            mbarrier_wait(bar, u32(0))
            y[i32(t - 32)] = s[i32(63 - t)]

    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 64, x, y)
    assert (y == 2 * x[::-1]).all()


def test_phases_alternate():
    """Two warps hand one buffer to and fro; each waits for the other's barrier by the parity of the round."""
    rounds = 9

    @cuda.jit(launch_bounds=64)
    def kernel(y):
        s = cuda.shared.array(32, i32)
        bars = cuda.shared.array(2, i64)
        t, full, empty = i32(cuda.threadIdx.x), shared_address(bars, 0), shared_address(bars, 1)
        lane = i32(t & 31)
        if t == 0:
            mbarrier_init(full, u32(32))
            mbarrier_init(empty, u32(32))
        cuda.syncthreads()
        total = i32(0)
        for k in range(rounds):
            if t < 32:
                mbarrier_wait(empty, u32(k & 1 ^ 1))  # at once in the first round: the phase before the first counts as complete
                s[lane] = i32(k * 100 + lane)
                mbarrier_arrive(full)
            else:
                mbarrier_wait(full, u32(k & 1))
                total = i32(10 * (total % 1000000) + s[i32(31 - lane)])
                mbarrier_arrive(empty)
        if t >= 32:
            y[lane] = total

    y, expected = np.zeros(32, np.int32), np.zeros(32, np.int64)
    for k in range(rounds):
        expected = 10 * (expected % 1000000) + k * 100 + 31 - np.arange(32)
    launch(kernel, 1, 64, y)
    assert (y == expected).all()


def test_several_arrivals_at_once_and_a_test_that_does_not_wait():
    @cuda.jit(launch_bounds=64)
    def kernel(y):
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        if t == 0:
            mbarrier_init(bar, u32(6))
        cuda.syncthreads()
        if t == 0:
            y[0] = mbarrier_test(bar, u32(0))
            y[1] = mbarrier_test(bar, u32(1))  # the phase before the first
            mbarrier_arrive_count(bar, u32(4))
            y[2] = mbarrier_test(bar, u32(0))
        cuda.syncthreads()
        if t == 32:
            mbarrier_arrive_count(bar, u32(2))
        if t == 0:
            while mbarrier_test(bar, u32(0)) == 0:
                pass
            y[3] = mbarrier_test(bar, u32(0))
            y[4] = mbarrier_test(bar, u32(1))

    y = np.full(5, -1, np.int32)
    launch(kernel, 1, 64, y)
    assert y.tolist() == [0, 1, 0, 1, 0]


def test_bytes_expected_without_arriving():
    """Each of two threads expects its own bytes, one arrives for both."""
    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        s = cuda.shared.array(32, f32, alignment=16)
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        if t == 0:
            mbarrier_init(bar, u32(1))
            fence_mbarrier_init()
        cuda.syncwarp()
        if t < 2:
            mbarrier_expect(bar, u32(64))
            bulk_load(shared_address(s, i32(16 * t)), address(x, i32(16 - 16 * t)), u32(64), bar)
        cuda.syncwarp()
        if t == 0:
            mbarrier_arrive(bar)
        mbarrier_wait(bar, u32(0))
        y[t] = s[t]

    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 32, x, y)
    assert (y == np.roll(x, 16)).all()


def test_copies_by_cp_async_arrive():
    """A warp copies and goes on; the other waits at the barrier. Groups do not matter to it."""
    arrived = wait_copies(0)

    @cuda.jit(launch_bounds=64)
    def kernel(x, y, z):
        s = cuda.shared.array(160, f32, alignment=16)
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        if t == 0:
            mbarrier_init(bar, u32(32))
        cuda.syncthreads()
        if t < 32:
            copy_async16(shared_address(s, i32(4 * t)), address(x, i32(4 * t)), 0, u32(16))
            commit_copies()
            copy_async4(shared_address(s, i32(128 + t)), address(x, i32(128 + t)), 0, u32(4))
            mbarrier_arrive_copies(bar)
            commit_copies()
            arrived()  # its own copies: a wait of its own does as well
            z[t] = s[i32(128 + t)]
        else:
            mbarrier_wait(bar, u32(0))
            for k in range(5):
                y[i32(5 * (t - 32) + k)] = s[i32(159 - 5 * (t - 32) - k)]

    x, y, z = np.arange(160, dtype=np.float32), np.zeros(160, np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 64, x, y, z)
    assert (y == x[::-1]).all() and (z == x[128:]).all()


@pytest.mark.parametrize("blocks", (2, 4))
@pytest.mark.parametrize("ready", (cluster_arrive, cluster_arrive_relaxed), ids=("released", "relaxed"))
def test_arrivals_from_other_blocks(blocks, ready):
    """Every block writes a part of its neighbour's memory and arrives there. A relaxed arrival will do behind the fence."""
    @cuda.jit(launch_bounds=32)
    def kernel(y):
        s = cuda.shared.array(32, f32)
        bars = cuda.shared.array(1, i64)
        t, rank, bar = i32(cuda.threadIdx.x), cluster_rank(), shared_address(bars, 0)
        neighbour = i32((rank + 1) % blocks)
        if t == 0:
            mbarrier_init(bar, u32(32))
            fence_mbarrier_init()
        cuda.syncwarp()
        ready()
        cluster_wait()
        store_remote_f32(remote_address(shared_address(s, t), u32(neighbour)), f32(100 * rank + t))
        mbarrier_arrive_remote(bar, u32(neighbour))
        mbarrier_wait_cluster(bar, u32(0))
        y[i32(32 * rank + t)] = s[i32(31 - t)]
        cluster_sync()

    y = np.zeros((blocks, 32), np.float32)
    launch(kernel, blocks, 32, y, cluster=blocks)
    assert (y == 100 * ((np.arange(blocks)[:, None] - 1) % blocks) + 31 - np.arange(32)).all()


@pytest.mark.parametrize("release", (mbarrier_arrive_remote, mbarrier_free_remote), ids=("release", "relaxed"))
def test_multicast_into_stages_that_both_blocks_free(release):
    """Each block loads half of a tile for both. Neither may write the other's stage before that has been read there."""
    stages, steps, half = 2, 5, 64
    words, all_words, all_bars = 2 * half, 2 * 2 * half, 2 * stages
    copy = make_tma_load(2, multicast=True)

    @cuda.jit(launch_bounds=64)
    def kernel(x, y):
        ring = cuda.shared.array(all_words, f32, alignment=128)
        bars = cuda.shared.array(all_bars, i64)
        t, rank, at = i32(cuda.threadIdx.x), cluster_rank(), tensor_map_address(x)
        full, empty = shared_address(bars, 0), shared_address(bars, stages)
        if t == 0:
            for s in range(stages):
                mbarrier_init(u32(full + u32(8 * s)), u32(1))
                mbarrier_init(u32(empty + u32(8 * s)), u32(2))  # a consumer warp of each block
            fence_mbarrier_init()
        cluster_sync()
        if t == 0:
            for k in range(steps):
                s = i32(k % stages)
                bar = u32(full + u32(8 * s))
                mbarrier_wait(u32(empty + u32(8 * s)), u32(i32(k // stages) & 1 ^ 1))
                mbarrier_arrive_expect(bar, u32(4 * words))
                copy(shared_address(ring, i32(s * words + rank * half)), at, bar, i32(8 * rank), i32(8 * k), u32(3))
        elif t >= 32:
            for k in range(steps):
                s = i32(k % stages)
                mbarrier_wait(u32(full + u32(8 * s)), u32(i32(k // stages) & 1))
                for j in range(t - 32, words, 32):
                    y[i32((rank * steps + k) * words + j)] = ring[i32(s * words + j)] + f32(rank)
                cuda.syncwarp()
                if t < 34:
                    release(u32(empty + u32(8 * s)), u32(t - 32))
        cluster_sync()

    x, y = np.arange(8 * steps * 16, dtype=np.float32).reshape(8 * steps, 16), np.zeros((2, steps, 2, 8, 8), np.float32)
    launch(kernel, 2, 64, (x, TensorMap("float32", x.shape, (16, 1), (8, 8))), y, cluster=2)
    tiles = x.reshape(steps, 8, 2, 8).transpose(0, 2, 1, 3)
    assert (y == np.stack([tiles, tiles + 1])).all()


def test_memory_of_a_barrier_is_used_again():
    @cuda.jit(launch_bounds=32)
    def kernel(y):
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        for k in range(2):
            if t == 0:
                mbarrier_init(bar, u32(32))
            cuda.syncwarp()
            mbarrier_arrive(bar)
            mbarrier_wait(bar, u32(0))
            cuda.syncwarp()
            if t == 0:
                mbarrier_invalidate(bar)
                bars[0] = i64(7 + k)
                y[k] = i32(bars[0])

    y = np.zeros(2, np.int32)
    launch(kernel, 1, 32, y)
    assert y.tolist() == [7, 8]


def test_plain_writes_reach_a_copy_behind_the_fence():
    """Global memory that the same launch wrote, loaded by a bulk copy."""
    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        s = cuda.shared.array(32, f32, alignment=16)
        bars = cuda.shared.array(1, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        x[t] = f32(3 * t)
        fence_async()
        if t == 0:
            mbarrier_init(bar, u32(1))
            fence_mbarrier_init()
        cuda.syncwarp()
        if t == 0:
            mbarrier_arrive_expect(bar, u32(128))
            bulk_load(shared_address(s, 0), address(x, 0), u32(128), bar)
        mbarrier_wait(bar, u32(0))
        y[t] = s[t]

    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 32, x, y)
    assert (y == 3 * np.arange(32)).all()


@pytest.mark.skipif(not SIMULATED, reason="a GPU hangs")
def test_a_deadlock_says_what_each_barrier_lacks():
    from dnnkern.device.sim import Deadlock

    @cuda.jit(launch_bounds=64)
    def kernel(x):
        s = cuda.shared.array(32, f32, alignment=16)
        bars = cuda.shared.array(2, i64)
        t, bar = i32(cuda.threadIdx.x), shared_address(bars, 0)
        if t == 0:
            mbarrier_init(bar, u32(3))
            mbarrier_init(u32(bar + u32(8)), u32(1))
            fence_mbarrier_init()
            mbarrier_arrive_expect(bar, u32(128))
            bulk_load(shared_address(s, 0), address(x, 0), u32(64), bar)
        cuda.syncthreads()
        mbarrier_wait(u32(bar + u32(8 * (t >> 5))), u32(0))

    with pytest.raises(Deadlock) as report:
        launch(kernel, 1, 64, np.zeros(32, np.float32))
    words = str(report.value)
    assert "32 threads 0-31: mbarrier_wait parity 0 on mbarrier shared array bars[0]" in words
    assert "phase 0 in progress, 2 of 3 arrivals pending, 128 bytes outstanding, 1 copies under way" in words
    assert "32 threads 32-63" in words and "1 of 1 arrivals pending, 0 bytes outstanding" in words
