# %% [markdown]
# # Quickstart
#
# One layer, `gelu(x @ w.T + b)`, as one kernel, on the arrays of four libraries. The result is an array of the same kind. A section whose
# library is missing says so and is skipped.
#
# It runs on a GPU if there is one, else on the processor or in the simulator:
#
#     python examples/quickstart.py

# %%
import importlib.util
import math

import numpy as np

import dnnkern
from dnnkern.device import DEVICE, cuda

rng = np.random.default_rng(0)
X, W, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((32, 64), (16, 64), (16,)))
sums = X.astype(np.float64) @ W.T + B
expected = sums * (1 + np.vectorize(math.erf)(sums / math.sqrt(2))) / 2  # NumPy, in float64
errors = {}


def installed(name):
    """Whether a library can be imported; a line of text if not."""
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"{name} is not installed: its section is skipped")
    return found


def compare(name, y, as_numpy):
    """Print what came back and how far it is from float64."""
    errors[name] = np.abs(as_numpy - expected).max()
    print(f"{name}: {type(y).__name__} {tuple(y.shape)} on {DEVICE}, largest error against float64: {errors[name]:.1e}")


# %% [markdown]
# ## Numba
#
# `dnnkern.device.cuda` is `numba.cuda`, or a stand-in with the same arrays where there is no GPU. Nothing is copied to or from the device
# but by `to_device` and `copy_to_host`.

# %%
x, w, b = (cuda.to_device(a) for a in (X, W, B))
y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="gelu")
compare("numba", y, y.copy_to_host())

# %% [markdown]
# On the processor and in the simulator NumPy's arrays are arrays of the device, too.

# %%
if DEVICE != "cuda":
    y = dnnkern.matmul(X, W, transpose_b=True, bias=B, activation="gelu")
    compare("numpy", y, y)

# %% [markdown]
# ## CuPy
#
# Work is launched on CuPy's current stream, and results come from its memory pool. CuPy needs a GPU.

# %%
if DEVICE == "cuda" and installed("cupy"):
    import cupy

    x, w, b = map(cupy.asarray, (X, W, B))
    y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="gelu")
    compare("cupy", y, cupy.asnumpy(y))

# %% [markdown]
# ## PyTorch
#
# A call takes tensors. `dnnkern.torch.functional` has the same functions with gradients, and `dnnkern.torch.enabled()` runs PyTorch's own
# operators on this library's kernels, so that a program need not change at all.

# %%
if installed("torch"):
    import torch

    import dnnkern.torch

    device = "cuda" if DEVICE == "cuda" else "cpu"
    x, w, b = (torch.from_numpy(a).to(device) for a in (X, W, B))
    y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="gelu")
    compare("torch", y, y.cpu().numpy())

    w.requires_grad_()
    with dnnkern.torch.enabled():
        torch.nn.functional.linear(x, w, b).sum().backward()
    print("PyTorch's operators that ran on dnnkern:", ", ".join(sorted(row.op for row in dnnkern.torch.status(reset=True) if row.ours)))
    errors["torch, gradient"] = np.abs(w.grad.cpu().numpy() - X.sum(axis=0, dtype=np.float64)).max()

# %% [markdown]
# ## JAX
#
# `dnnkern.jax` has the functions for `jit`, `grad` and `vmap`; `dnnkern.jax.enable()` replaces JAX's own operations in a whole program.

# %%
if installed("jax"):
    import jax

    import dnnkern.jax

    layer = jax.jit(lambda x, w, b: dnnkern.jax.matmul(x, w, transpose_b=True, bias=b, activation="gelu"))
    y = layer(*map(jax.numpy.asarray, (X, W, B)))
    compare("jax", y, np.asarray(y))
    gradient = jax.grad(lambda b: layer(X, W, b).sum())(jax.numpy.asarray(B))
    slope = (1 + np.vectorize(math.erf)(sums / math.sqrt(2))) / 2 + sums * np.exp(-sums ** 2 / 2) / math.sqrt(2 * math.pi)
    errors["jax, gradient"] = np.abs(np.asarray(gradient) - slope.sum(axis=0)).max()

# %%
print(f"{len(errors)} results, largest error of all: {max(errors.values()):.1e}")
