# %% [markdown]
# # A kernel debugged with a breakpoint
#
# In the simulator a kernel is Python: each thread runs your function, so `breakpoint()` and `print` work in it. This kernel should give the
# maximum of each row, one warp per row. One of the results is wrong.
#
#     python examples/debug_kernel.py
#
# stops in the debugger, in the thread and at the element that matter. The session further down can also be piped in:
#
#     printf 'p row, k, lane_id()\np float(best), float(x[row * columns + k])\nc\n' | python examples/debug_kernel.py

# %%
import os

os.environ.update(DNNKERN_DEVICE="simulator", NUMBA_ENABLE_CUDASIM="1")  # even with a GPU: there a kernel is machine code

import numpy as np

from dnnkern.device import f32, jit
from dnnkern.device.sim import Pointer
from dnnkern.device.warp import lane_id, reduce_max, warp_id

ROWS, COLUMNS = 3, 40
x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
x[1] -= 9  # no element of this row is positive
expected = x.max(axis=1)


def run(kernel):
    """The kernel's results; its parameters are flat pointers and numbers."""
    y = np.zeros(ROWS, np.float32)
    kernel.simulate(1, 32 * ROWS, [Pointer(x), Pointer(y), COLUMNS])
    return y


# %%
@jit(launch_bounds=32 * ROWS)
def row_max(x, y, columns):
    row = warp_id()
    best = f32(0)
    for k in range(lane_id(), columns, 32):
        best = max(best, x[row * columns + k])
    best = reduce_max(best)
    if lane_id() == 0:
        y[row] = best


got = run(row_max)
wrong = int(np.abs(got - expected).argmax())
print(f"row {wrong} is {got[wrong]:.3f}, expected {expected[wrong]:.3f}")

# %% [markdown]
# ## Stop where it goes wrong
#
# Row 1 is wrong, and its largest element is known. So stop in the thread that reads this element, before it compares: a condition is plain
# Python. `where`, `up`, `p`, `n` and `c` are pdb's, and every variable of the kernel can be printed. Other threads wait meanwhile.
#
# ```text
# > examples/debug_kernel.py(82)row_max_stopped()
# -> best = max(best, x[row * columns + k])
# (Pdb) p row, k, lane_id()
# (1, 39, 7)
# (Pdb) p float(best), float(x[row * columns + k])
# (0.0, -6.997607231140137)
# (Pdb) c
# ```
#
# The maximum so far is 0, larger than every element of the row: `best` must not start at 0.

# %%
largest = int(x[wrong].argmax())


@jit(launch_bounds=32 * ROWS)
def row_max_stopped(x, y, columns):
    row = warp_id()
    best = f32(0)
    for k in range(lane_id(), columns, 32):
        if row == wrong and k == largest:
            breakpoint()
        best = max(best, x[row * columns + k])
    best = reduce_max(best)
    if lane_id() == 0:
        y[row] = best


run(row_max_stopped)


# %% [markdown]
# ## The fix
#
# Lanes without an element need a neutral value, too: minus infinity.

# %%
@jit(launch_bounds=32 * ROWS)
def row_max_fixed(x, y, columns):
    row = warp_id()
    best = f32(-np.inf)
    for k in range(lane_id(), columns, 32):
        best = max(best, x[row * columns + k])
    best = reduce_max(best)
    if lane_id() == 0:
        y[row] = best


print(f"fixed: largest error {np.abs(run(row_max_fixed) - expected).max():.1f}")
