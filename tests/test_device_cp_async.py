"""Asynchronous copies, and what the simulator says when one is not waited for."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, i32, u32
from dnnkern.device import cp_async
from dnnkern.device.cp_async import commit_copies, wait_copies
from dnnkern.device.vec import address, shared_address

N = 64
COPIES = {4: (cp_async.copy_async4, cp_async.copy_async4_if), 8: (cp_async.copy_async8, cp_async.copy_async8_if),
          16: (cp_async.copy_async16, cp_async.copy_async16_if)}
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


def mirror(size, wait=True, barrier=True, landed=0):
    """Kernel: y = x backwards, through shared memory; a copy of `size` bytes a thread."""
    count = size // 4
    block, (copy, _) = N // count, COPIES[size]
    arrived = wait_copies(landed)

    @cuda.jit(launch_bounds=block)
    def kernel(x, y):
        s = cuda.shared.array(N, f32, alignment=16)
        t = i32(cuda.threadIdx.x)
        copy(shared_address(s, i32(t * count)), address(x, i32(t * count)), 0, u32(size))
        commit_copies()
        if wait:
            arrived()
        if barrier:
            cuda.syncthreads()
        for k in range(count):
            y[i32(t * count + k)] = s[i32(N - 1 - t * count - k)]
    return kernel, block


@pytest.mark.parametrize("size", COPIES)
def test_copies(size):
    kernel, block = mirror(size)
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    launch(kernel, 1, block, x, y)
    assert (y == x[::-1]).all()


@pytest.mark.parametrize("size", COPIES)
def test_zero_fill_and_predicate(size):
    count, elements = size // 4, 16 * size
    fill, predicated = COPIES[size]
    arrived = wait_copies(0)

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        s = cuda.shared.array(elements, f32, alignment=16)
        t = i32(cuda.threadIdx.x)
        for k in range(2 * count):
            s[i32(2 * t * count + k)] = f32(-1)
        cuda.syncthreads()
        # the lower half zero-fills from thread 20 on, with an address outside x; the upper is copied by even threads alone
        fill(shared_address(s, i32(t * count)), address(x, i32(t * count if t < 20 else 1 << 24)), 0, u32(size) if t < 20 else u32(0))
        predicated(shared_address(s, i32((32 + t) * count)), address(x, 0), i32(t * size), i32(t & 1 ^ 1))
        commit_copies()
        arrived()
        cuda.syncthreads()
        for k in range(2 * count):
            y[i32(2 * t * count + k)] = s[i32(2 * t * count + k)]

    x, y = np.arange(1, 32 * count + 1, dtype=np.float32), np.zeros(64 * count, np.float32)
    launch(kernel, 1, 32, x, y)
    low, high = y[:32 * count].reshape(32, count), y[32 * count:].reshape(32, count)
    rows = x.reshape(32, count)
    assert (low == np.where(np.arange(32)[:, None] < 20, rows, 0)).all()
    assert (high == np.where(np.arange(32)[:, None] % 2 == 0, rows, -1)).all()


def test_wait_leaves_the_latest_groups():
    arrived = wait_copies(1)

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        s = cuda.shared.array(64, f32)
        t = i32(cuda.threadIdx.x)
        for half in range(2):
            cp_async.copy_async4(shared_address(s, i32(t + 32 * half)), address(x, t), i32(128 * half), u32(4))
            commit_copies()
        arrived()
        y[t] = s[t]

    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    launch(kernel, 1, 32, x, y)
    assert (y[:32] == x[:32]).all()


@simulated
@pytest.mark.parametrize("kind", ({"wait": False}, {"landed": 1}), ids=("no wait", "waits for too few"))
def test_mutant_missing_wait(kind):
    kernel, block = mirror(4, **kind)
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    launch(kernel, 1, block, x, y)
    assert np.isnan(y).all()


@simulated
def test_mutant_missing_barrier():
    from dnnkern.device.sim import Race
    kernel, block = mirror(4, barrier=False)
    with pytest.raises(Race, match="shared array s"):
        launch(kernel, 1, block, np.arange(N, dtype=np.float32), np.zeros(N, np.float32))


@simulated
def test_mutant_barrier_before_the_wait():
    from dnnkern.device.sim import Race
    arrived = wait_copies(0)

    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        s = cuda.shared.array(N, f32)
        t = i32(cuda.threadIdx.x)
        cp_async.copy_async4(shared_address(s, t), address(x, t), 0, u32(4))
        commit_copies()
        cuda.syncthreads()
        arrived()
        y[t] = s[i32(N - 1 - t)]

    with pytest.raises(Race):
        launch(kernel, 1, N, np.arange(N, dtype=np.float32), np.zeros(N, np.float32))


@simulated
def test_mutant_overwrites_what_others_still_read():
    from dnnkern.device.sim import Race
    arrived = wait_copies(0)

    @cuda.jit(launch_bounds=N)
    def kernel(x, y):
        s = cuda.shared.array(N, f32)
        t = i32(cuda.threadIdx.x)
        for half in range(2):
            cp_async.copy_async4(shared_address(s, t), address(x, t), i32(4 * N * half), u32(4))
            commit_copies()
            arrived()
            cuda.syncthreads()
            y[i32(t + N * half)] = s[i32(N - 1 - t)]

    with pytest.raises(Race):
        launch(kernel, 1, N, np.arange(2 * N, dtype=np.float32), np.zeros(2 * N, np.float32))


@simulated
@pytest.mark.parametrize("shift", (1, N))
def test_misuse(shift):
    from dnnkern.device.sim import Misuse

    @cuda.jit(launch_bounds=1)
    def kernel(x):
        s = cuda.shared.array(4, f32, alignment=16)
        cp_async.copy_async16(shared_address(s, 0), address(x, shift), 0, u32(16))

    with pytest.raises(Misuse, match="cp.async"):
        launch(kernel, 1, 1, np.zeros(N, np.float32))
