# %% [markdown]
# # Your own algorithm for an operation
#
# Registered at run time, it competes with the library's. The idea: y = x @ w.T for few rows of x (one decoding step of a language model),
# one warp per element of y. Its lanes read x and w, both contiguous along k, 128 bytes at a time, and the warp adds its 32 partial sums by
# shuffles. With one row of x, w is read once.
#
#     python examples/own_algorithm.py

# %%
import functools

import numpy as np

import dnnkern
from dnnkern import dispatch
from dnnkern.device import cuda, f32, jit
from dnnkern.device.epilogue import EpilogueParams, make_epilogue
from dnnkern.device.fastmath import fma
from dnnkern.device.warp import lane_id, reduce_sum, warp_id
from dnnkern.host.launch import Argument, Launch

WARPS = 4
THREADS = 32 * WARPS


# %% [markdown]
# ## What dispatch asks
#
# `supports` is about correctness, `estimate` about speed, and `workspace` about memory.

# %%
def supports(problem):
    """The first reason why not. About correctness only, never speed."""
    if problem.a.dtype != "float32" or problem.y.dtype != "float32":
        return f"operands and output are {problem.a.dtype} and {problem.y.dtype}; expected float32"
    if problem.batch:
        return f"has a batch of {problem.batch_size}"
    if problem.a_strides[1] != 1 or problem.b_strides[0] != 1:
        return f"k has strides {problem.a_strides[1]} in a and {problem.b_strides[0]} in b; expected 1 and 1"
    if problem.is_wide:
        return "offsets need 64 bits"
    return None


def workspace(problem, device, config):
    """Bytes of scratch memory."""
    return 0


def estimate(problem, device, config):
    """Seconds. Every warp streams two rows of length k: x from the caches, w from memory once per row of x."""
    traffic = problem.m * problem.n * problem.k * 4 / device.bandwidth
    latency = problem.k / 32 * 30 / device.clock_hz
    return 2e-6 + max(traffic, latency)


# %% [markdown]
# ## The kernel
#
# It ends with the library's epilogue, so that it takes every factor, bias, addend and activation that the operation has.

# %%
@functools.cache
def kernel(spec):
    """y[m, n] = epilogue(sum_k x[m, k] * w[n, k])."""
    epilogue = make_epilogue(spec)

    @jit(launch_bounds=THREADS)
    def warp_dot(a, b, y, M, N, K, sam, sbn, sym, syn, alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride):
        i = cuda.blockIdx.x * WARPS + warp_id()
        if i < M * N:  # whole warps leave: the sum needs all lanes
            m = i // N
            n = i - m * N
            acc = f32(0)
            for k in range(lane_id(), K, 32):
                acc = fma(a[m * sam + k], b[n * sbn + k], acc)
            acc = reduce_sum(acc)
            if lane_id() == 0:
                e = EpilogueParams(alpha, beta, bias, bias_stride, c, c_row_stride, c_column_stride, ())  # no program
                y[m * sym + n * syn] = epilogue(acc, m, n, e)
    return warp_dot


# %% [markdown]
# ## The launch
#
# An argument is a number of the problem, or the name of an array of the call.

# %%
def build(problem, device, config):
    """One launch, one warp per element of y."""
    sizes = problem.m, problem.n, problem.k, problem.a_strides[0], problem.b_strides[1], *problem.y_strides
    arguments = (Argument("float32*", "a"), Argument("float32*", "b"), Argument("float32*", "y"), *(Argument("int32", s) for s in sizes),
                 *problem.epilogue_arguments())
    return (Launch(kernel(problem.epilogue), (-(-problem.m * problem.n // WARPS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = dispatch.Algorithm(op="matmul", name="warp_dot", supports=supports, workspace=workspace, estimate=estimate, build=build)

# %% [markdown]
# ## A call, and the competition
#
# `algo=` forces it. In `explain` it stands beside the others: for one row it comes next to the best, for many it is far slower, and it
# refuses bfloat16. These are the estimates for a GPU, in the simulator for an H200. The processor predicts its own times, from
# operations and bytes, and asks no `estimate`: there the simplest algorithm wins.

# %%
dispatch.register(ALGORITHM)
rng = np.random.default_rng(0)
x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((1, 512), (48, 512), (48,)))
x, w, b = (cuda.to_device(a) for a in (x, w, b))
y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="gelu", algo="warp_dot").copy_to_host()
reference = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="gelu", algo="naive").copy_to_host()
print(f"largest difference from the naive algorithm: {np.abs(y - reference).max():.1e}")

for m, n, dtype, more in ((1, 48, "float32", {"bias": ("48", "float32"), "activation": "gelu"}), (512, 512, "float32", {}),
                          (1, 48, "bfloat16", {})):
    problem = dnnkern.problem("matmul", a=((m, 512), dtype), b=((n, 512), dtype), transpose_b=True, **more)
    print(f"\n{problem}")
    for c in dispatch.explain("matmul", problem, prefer="device"):  # as on a GPU, also in the simulator
        print(f"  {'*' if c.chosen else ' '} {c.algo:14}", c.reason or f"predicted {1e3 * c.time_ms:.1f} us")

# %%
dispatch.unregister(ALGORITHM)
