# %% [markdown]
# # A race found
#
# Your own kernel in the simulator, with a bug that a GPU would hide. The kernel adds 256 numbers per block in shared memory. Every round
# halves the number of active threads, with a barrier in between. Without that `syncthreads` the sum is right on many GPUs. The simulator
# reports the missing barrier even if the result happened to be right.
#
#     python examples/race.py

# %%
import os

os.environ.update(DNNKERN_DEVICE="simulator", NUMBA_ENABLE_CUDASIM="1")  # even with a GPU: only the simulator finds races

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


x, y = np.arange(4 * N, dtype=np.float32), np.zeros(4, np.float32)
try:
    block_sum_racy.simulate(4, N, [Pointer(x), Pointer(y)])
except Race as race:
    print(f"Race: {race}\n")
else:
    raise SystemExit("the race was not found")


# %% [markdown]
# The message names both threads, the line of each, and what is missing. With the barrier in the loop:

# %%
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


block_sum.simulate(4, N, [Pointer(x), Pointer(y)])
print("with the barrier:", y, "expected:", x.reshape(4, N).sum(axis=1))
