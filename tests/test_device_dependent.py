"""Dependent launches: kernels that wait for their predecessors, in a chain and alone."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import SIMULATED, cuda, f32, i32
from dnnkern.device.dependent import launch_dependent_grids, wait_for_previous_grid

pytestmark = needs(9)
BLOCKS, THREADS = 64, 128
N = BLOCKS * THREADS


@cuda.jit(launch_bounds=THREADS)
def follow(x, y):
    """y[i] = 2 x[N - 1 - i] + 1: each block reads what another one wrote a launch before."""
    launch_dependent_grids()
    t = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    wait_for_previous_grid()
    y[t] = f32(f32(2) * x[i32(N - 1 - t)] + f32(1))


def test_without_a_predecessor():
    x, y = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    launch(follow, BLOCKS, THREADS, x, y)
    np.testing.assert_array_equal(y, 2 * x[::-1] + 1)


@pytest.mark.skipif(SIMULATED, reason="needs the driver")
def test_a_chain():
    """Every launch may start when all blocks of the one before have, and none reads too early."""
    from numba import cuda as nb

    from dnnkern.host.launch import Argument, Executable, Launch
    there, back = (tuple(Argument("float32*", name) for name in names) for names in (("x", "y"), ("y", "x")))
    launches = [Launch(follow, (BLOCKS, 1, 1), (THREADS, 1, 1), (there, back)[k % 2], dependent=k > 0) for k in range(6)]
    plan = Executable(launches, [("x", "pointer"), ("y", "pointer")], 0)
    start = np.arange(N, dtype=np.float32)
    for _ in range(5):
        x, y = nb.to_device(start), nb.to_device(np.zeros_like(start))
        plan.execute((x.device_ctypes_pointer.value, y.device_ctypes_pointer.value), 0)
        nb.synchronize()
        np.testing.assert_array_equal(x.copy_to_host(), 64 * start + 63)  # six times reversed and 2 v + 1
