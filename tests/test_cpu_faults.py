"""The processor as a device, of kernels that do wrong: what is said of them, and that the next launch is right."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cpu, cuda, i32, u32, warp
from dnnkern.device.barrier import barrier_sync
from dnnkern.device.grid import announce, await_blocks


@cuda.jit(launch_bounds=128)
def well(x):
    t = i32(cuda.threadIdx.x)
    v = warp.shuffle_xor_sync(u32(0xFFFFFFFF), t, i32(1))
    cuda.syncthreads()
    x[i32(cuda.blockIdx.x * 128) + t] = v


def goes_on():
    """Kernels run as ever."""
    x = np.zeros((64, 128), np.int32)
    launch(well, 64, 128, x.reshape(-1))
    np.testing.assert_array_equal(x, np.broadcast_to(np.arange(128) ^ 1, x.shape))


# ---- who waits for whom

@cuda.jit(launch_bounds=128)
def apart(x):
    t = i32(cuda.threadIdx.x)
    if t < 8:
        warp.shuffle_xor_sync(u32(0xFFFF), t, i32(1))
    elif t < 32 or 64 <= t < 96:
        cuda.syncthreads()
    elif t < 64:
        barrier_sync(2, 128)
    elif t < 127:
        while x[0] == 0:
            cuda.nanosleep(u32(100))


def test_who_waits_for_whom():
    with pytest.raises(cpu.Deadlock) as caught:
        launch(apart, (1, 2), 128, np.zeros(1, np.int32))
    assert str(caught.value).splitlines() == [
        "kernel apart: no thread can go on",
        "  block (0, 0, 0):",
        "    8 threads 0-7: collective of the lanes 0-15 of a warp: 8-15 missing",
        "    56 threads 8-31, 64-95: syncthreads: 56 of the 127 threads that have not returned have arrived",
        "    32 threads 32-63: barrier 2: 32 of 128 threads have arrived",
        "    31 threads 96-126: sleeps (nanosleep)"]
    goes_on()


@cuda.jit(launch_bounds=32)
def meets(came, n):
    announce(came)
    await_blocks(came, u32(n))


@pytest.mark.parametrize("blocks, more", [(2, 0), (6, 2)])
def test_who_waits_for_a_block_that_there_is_not(blocks, more):
    came = np.zeros(1, np.uint32)
    with pytest.raises(cpu.Deadlock) as caught:
        launch(meets, blocks, 32, came, blocks + 1, cooperative=True)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if "polls" in line] == min(blocks, 4) * [
        f"    thread 0: polls {came.ctypes.data:#x}, byte 0 of argument 'came' (4 bytes): it holds {blocks}"]
    assert sum("31 threads 1-31: syncthreads: 31 of the 32" in line for line in lines) == min(blocks, 4)
    assert lines[-1] == f"  and {more} more blocks" if more else "more blocks" not in lines[-1]
    came[0] = 0
    launch(meets, blocks, 32, came, blocks, cooperative=True)
    assert came[0] == blocks
