"""Named barriers: pipelines of warps that announce and wait, groups that meet among themselves, and what the simulator refuses."""
import re

import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, i32
from dnnkern.device.barrier import barrier_arrive, barrier_sync

STEPS, N = 4, 64
FULL, EMPTY = 1, 2
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


@cuda.jit(launch_bounds=2 * N)
def pipeline(x, y):
    """One group fills a tile, the other reads it backwards, `STEPS` times."""
    tile = cuda.shared.array(N, f32)
    t = i32(cuda.threadIdx.x)
    if t < N:
        for k in range(STEPS):
            barrier_sync(EMPTY, 2 * N)
            tile[t] = x[i32(N * k + t)]
            barrier_arrive(FULL, 2 * N)
    else:
        barrier_arrive(EMPTY, 2 * N)
        for k in range(STEPS):
            barrier_sync(FULL, 2 * N)
            y[i32(N * k + t - N)] = tile[2 * N - 1 - t]
            if k < STEPS - 1:
                barrier_arrive(EMPTY, 2 * N)


def test_a_pipeline_of_two_groups():
    x = np.arange(STEPS * N, dtype=np.float32)
    y = np.zeros_like(x)
    launch(pipeline, 1, 2 * N, x, y)
    np.testing.assert_array_equal(y.reshape(STEPS, N), x.reshape(STEPS, N)[:, ::-1])


@cuda.jit(launch_bounds=192)
def groups(x, y):
    """Three groups of two warps, each with a barrier of its own, known at run time only; then all of the block."""
    tile = cuda.shared.array(192, f32)
    t = i32(cuda.threadIdx.x)
    group, lane = i32(t // 64), i32(t % 64)
    for k in range(STEPS):
        tile[t] = f32(x[t] + f32(k))
        barrier_sync(i32(group + 1), 64)
        y[i32(192 * k + t)] = tile[i32(64 * group + 63 - lane)]
        barrier_sync(i32(group + 1), 64)
    tile[t] = x[t]
    barrier_sync(4, 192)
    y[i32(192 * STEPS + t)] = tile[191 - t]


def test_groups_meet_among_themselves():
    x = np.arange(192, dtype=np.float32)
    y = np.zeros((STEPS + 1, 192), np.float32)
    launch(groups, 1, 192, x, y)
    for k in range(STEPS):
        np.testing.assert_array_equal(y[k].reshape(3, 64), x.reshape(3, 64)[:, ::-1] + k)
    np.testing.assert_array_equal(y[STEPS], x[::-1])


@cuda.jit(launch_bounds=96)
def beside_syncthreads(x, y):
    tile = cuda.shared.array(96, f32)
    t = i32(cuda.threadIdx.x)
    tile[t] = x[t]
    cuda.syncthreads()
    v = tile[95 - t]
    barrier_sync(0, 96)
    tile[t] = v
    cuda.syncthreads()
    y[t] = tile[95 - t]


def test_barrier_0_after_syncthreads():
    x, y = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    launch(beside_syncthreads, 1, 96, x, y)
    np.testing.assert_array_equal(x, y)


def _last_warp(lanes):
    """Kernel: two warps meet, of which the first has `lanes` lanes left and the second 8."""
    @cuda.jit(launch_bounds=40)
    def kernel(y):
        tile = cuda.shared.array(40, f32)
        t = i32(cuda.threadIdx.x)
        if t >= lanes and t < 32:
            return
        tile[t] = f32(t)
        barrier_sync(1, 64)
        if t < lanes:
            y[t] = tile[32 + t % 8]
    return kernel


@pytest.mark.parametrize("lanes", [32, pytest.param(16, marks=simulated)])
def test_a_warp_counts_for_32(lanes):
    """Whatever the block leaves it of lanes, and in the simulator also where some have returned."""
    y = np.zeros(lanes, np.float32)
    launch(_last_warp(lanes), 1, 40, y)
    np.testing.assert_array_equal(y, 32 + np.arange(lanes) % 8)


def _mixed(t):
    if t < 64:
        barrier_sync(0, 128)
    else:
        cuda.syncthreads()


def _two_counts(t):
    barrier_sync(1, 64 if t < 32 else 96)


def _twice(t):
    if t < 32:
        barrier_arrive(1, 96)
        barrier_sync(1, 96)


def _two_places(t):
    if t & 1:
        barrier_sync(1, 128)
    else:
        barrier_sync(1, 128)


@simulated
@pytest.mark.parametrize("body, words", [
    (lambda t: barrier_sync(16, 128), "bar.sync: barrier 16; a block has 0 to 15"),
    (lambda t: barrier_sync(1, 48), "bar.sync: barrier 1 for 48 threads; it takes a multiple of 32"),
    (lambda t: barrier_arrive(1, 0), "bar.arrive: barrier 1 for 0 threads"),
    (lambda t: barrier_sync(1, 160), "bar.sync: barrier 1 for 160 threads; it takes a multiple of 32 up to the 128"),
    (lambda t: barrier_sync(0, 64), "bar.sync: barrier 0 for 64 threads is also syncthreads'"),
    (lambda t: barrier_sync(1 + t % 2, 64), "the lanes of warp 0 give different barriers"),
    (lambda t: barrier_sync(1, 128) if t < 96 else None, "barrier 1: 96 of 128 threads have arrived, warps [0, 1, 2]"),
    (_mixed, "barrier 0"), (_two_counts, "threads to barrier 1"), (_twice, "warp 0 comes a second time to barrier 1: 32 of 96"),
    (_two_places, "a warp executes such an instruction as one")])
def test_refused(body, words):
    from dnnkern.device.sim import SimError

    @cuda.jit(launch_bounds=128)
    def kernel():
        body(i32(cuda.threadIdx.x))
    with pytest.raises(SimError, match=re.escape(words)):
        launch(kernel, 1, 128)
