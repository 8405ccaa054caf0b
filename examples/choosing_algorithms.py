# %% [markdown]
# # Choosing algorithms
#
# Why a call runs what it runs, how to have it measured instead of predicted, and how to set limits: workspace, properties, determinism.
#
#     python examples/choosing_algorithms.py
#
# ## Explain
#
# Every algorithm answers for a problem: the reason why it cannot solve it, or its predicted time, workspace and configuration. The chosen
# one comes first. `prefer="device"` asks for the choice of a GPU; the simulator by itself prefers what is quick to simulate. On the
# command line it is `python -m dnnkern explain matmul 64x64x64 f32`, and `--why` prints the terms of each prediction.
#
# On the processor a choice also counts a 300th of the time to compile, so small problems get the simplest kernel.

# %%
import numpy as np

import dnnkern
from dnnkern import Note, dispatch
from dnnkern.device import cuda

problem = dnnkern.problem("matmul", a=("64x64", "float32"), b=("64x64", "float32"))
print(problem)
for c in dispatch.explain("matmul", problem, prefer="device"):
    mark, why = ("*", f", chosen: {c.why}") if c.chosen else (" ", "")
    print(mark, f"{c.algo:15}", c.reason or f"{1e3 * c.time_ms:.1f} us predicted, {c.memory} bytes{why}")

# %% [markdown]
# ## Find
#
# `find_algorithms` runs every algorithm and its most promising configurations, checks their results against the reference, and times
# them. It stores what it found: later calls of this problem, in other processes too, run the fastest, and `explain` says "measured". Here
# `save=False` leaves your measurements alone. On the command line: `python -m dnnkern find softmax_fwd 8x96 f32`.

# %%
rows = dnnkern.problem("softmax_fwd", x=("8x96", "float32"))
perfs = dispatch.find_algorithms("softmax_fwd", rows, save=False)
for p in perfs[:3]:
    print(f"  {p.algo:8} {1e3 * p.time_ms:8.1f} us {p.memory:7} bytes  {p.config}")
print(f"{len(perfs)} measured, {sum(p.status == 'ok' for p in perfs)} correct; the fastest: {perfs[0].algo}")

# %% [markdown]
# ## Workspace limits
#
# With `workspace_limit=` an algorithm that needs more bytes is not chosen; 0 allows none. Split-K keeps partial sums of slices of k there.

# %%
rng = np.random.default_rng(0)
A, B = rng.standard_normal((8, 512)).astype(np.float32), rng.standard_normal((512, 16)).astype(np.float32)
a, b, expected = cuda.to_device(A), cuda.to_device(B), A.astype(np.float64) @ B
long = dnnkern.problem("matmul", a=a, b=b)
needed = next(c.memory for c in dispatch.explain("matmul", long) if c.algo == "split_k")
for limit in (needed, 0):
    try:
        y = dnnkern.matmul(a, b, algo="split_k", workspace_limit=limit)
        print(f"split_k within {limit} bytes: error {np.abs(y.copy_to_host() - expected).max():.1e}")
    except dnnkern.NotSupported as refused:
        print(f"split_k within {limit} bytes: {refused}")
y = dnnkern.matmul(a, b, workspace_limit=0)
print(f"any algorithm within 0 bytes: error {np.abs(y.copy_to_host() - expected).max():.1e}")

# %% [markdown]
# ## Properties, and a name
#
# `exclude=` leaves out algorithms with notes of cuDNN's vocabulary, `algo=` forces one: it runs, or the call fails with the reason, never
# another one. `dispatch.prefer` is a wish for a block of code, `DNNKERN_PREFER` one for a process.

# %%
x, w = (cuda.to_device(rng.standard_normal(shape).astype(np.float32)) for shape in ((1, 4, 8, 8), (4, 4, 3, 3)))
conv = dnnkern.problem("conv_fwd", x=x, w=w, padding=1)
able = [c.algo for c in dispatch.explain("conv_fwd", conv, exclude=Note.WINOGRAD | Note.FFT) if c.reason is None]
print("without Winograd and FFT:", ", ".join(sorted(able)))
with dispatch.prefer("direct"):
    print("preferred:", dispatch.get_algorithm("conv_fwd", conv).name)
try:
    dnnkern.conv_fwd(x, w, padding=1, algo="fft", exclude=Note.FFT)
except dnnkern.NotSupported as refused:
    print(refused)

# %% [markdown]
# ## Determinism
#
# Results are bitwise reproducible, unless a call allows otherwise: algorithms that add by atomics have the note NONDETERMINISTIC and are
# candidates only with `allow=`. The gradient of `grid_sample` has one: many output pixels read the same input pixel.

# %%
image, grid, dy = (cuda.to_device(np.tanh(rng.standard_normal(s).astype(np.float32)))
                   for s in ((1, 2, 6, 6), (1, 12, 12, 2), (1, 2, 12, 12)))
scatter = dnnkern.problem("grid_sample_bwd", dy=dy, x=image, grid=grid)
for allow in (Note.NONE, Note.NONDETERMINISTIC):
    row = next(c for c in dispatch.explain("grid_sample_bwd", scatter, allow=allow) if c.algo == "atomic")
    print(f"allow={' '.join(allow.names) or 'NONE'}: atomic", row.reason or "is a candidate")
runs = [dnnkern.grid_sample_bwd(dy, image, grid)[0].copy_to_host() for _ in range(3)]
print("three runs bitwise identical:", all(np.array_equal(runs[0], run) for run in runs))
