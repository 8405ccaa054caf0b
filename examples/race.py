"""Your own kernel in the simulator, and the mistake that a GPU would not have told you of.

The kernel adds up 256 numbers a block in shared memory. Every round halves the number of threads that add; in between all must wait.
Without that `syncthreads` the sum comes out right on many a GPU. The simulator says what is missing, even where this run was lucky.

    python examples/race.py
"""
import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # on a machine with a GPU too: it is the simulator that finds races

import numpy as np

from dnnkern.device import cuda, f32, jit
from dnnkern.device.sim import Pointer, Race

N = 256


@jit(launch_bounds=N)
def block_sum_racy(x, y):
    s = cuda.shared.array(N, f32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.blockIdx.x * N + t]
    cuda.syncthreads()
    half = N // 2
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        half //= 2
    if t == 0:
        y[cuda.blockIdx.x] = s[0]


@jit(launch_bounds=N)
def block_sum(x, y):
    s = cuda.shared.array(N, f32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.blockIdx.x * N + t]
    cuda.syncthreads()
    half = N // 2
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        y[cuda.blockIdx.x] = s[0]


def main():
    x, y = np.arange(4 * N, dtype=np.float32), np.zeros(4, np.float32)
    try:
        block_sum_racy.simulate(4, N, [Pointer(x), Pointer(y)])
    except Race as race:
        print(f"Race: {race}\n")
    else:
        raise SystemExit("the race was not noticed")
    block_sum.simulate(4, N, [Pointer(x), Pointer(y)])
    print("with the barrier:", y, "expected:", x.reshape(4, N).sum(axis=1))


if __name__ == "__main__":
    main()
