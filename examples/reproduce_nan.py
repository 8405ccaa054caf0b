# %% [markdown]
# # A NaN: where it comes from, and the call alone
#
# Two layers and a loss in float16. The loss is NaN, and nothing says which of the calls made it so.
#
#     python examples/reproduce_nan.py
#
# With `DNNKERN_CHECK=nan` every call waits for the device and looks at its results. The first one that is not finite raises an error with
# the problem, the position, which operands are not finite either, and a command that runs this one call again, on random operands. A
# program needs no change: `DNNKERN_CHECK=nan python train.py`, or `... python -m dnnkern run train.py` if it is PyTorch's. Here the
# variable is set in the program, before dnnkern is imported.

# %%
import os
import shlex
import subprocess
import sys

os.environ["DNNKERN_CHECK"] = "nan"

import numpy as np

import dnnkern
from dnnkern.device import cuda

rng = np.random.default_rng(0)
x, w, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 64), (64, 64), (64, 10)))
targets = rng.integers(0, 10, 8).astype(np.int32)


def loss(scale):
    """Of inputs that are too large by a factor, as without normalisation."""
    a, b, c = (cuda.to_device(m) for m in ((x * np.float16(scale)), w, v))
    hidden = dnnkern.matmul(a, b, activation="relu")
    logits = dnnkern.matmul(hidden, c)
    return float(dnnkern.cross_entropy_fwd(logits, cuda.to_device(targets))[0].copy_to_host())


# %%
try:
    loss(scale=3000)
except ArithmeticError as error:
    message = str(error)
said, command = message.split("; ", 1)
print("found:", said)

# %% [markdown]
# ## The call alone
#
# The command repeats the call on random inputs, on this machine, and compares it with the reference: the problem in JSON has shapes,
# strides and dtypes, the last word is the algorithm. It belongs into a bug report if it finds a wrong result. Here it does not, so the
# kernel is right and the values are too large.

# %%
print("command:", command)
words = [sys.executable, *shlex.split(command)[1:]]
done = subprocess.run(words, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "DNNKERN_CHECK"})
print(done.stdout.strip())
print("exit code:", done.returncode)

# %% [markdown]
# ## What the numbers say
#
# The sums fit float32, in which products accumulate, but their rounded results do not fit float16, whose largest number is 65504.

# %%
largest = np.abs((x.astype(np.float64) * 3000) @ w).max()
print(f"largest sum of the first layer: {largest:.0f}; float16 ends at {np.finfo(np.float16).max:.0f}")
got, expected_logits = loss(scale=1), np.maximum(x.astype(np.float64) @ w, 0) @ v
shifted = expected_logits - expected_logits.max(axis=1, keepdims=True)
expected = (np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(8), targets]).mean()
print(f"normalised: loss {got:.4f}, in float64 {expected:.4f}")
