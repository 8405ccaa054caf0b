# %% [markdown]
# # A character-level LSTM
#
# It learns the Zen of Python, the text of the module `this`, and then writes. Embedding, LSTM, linear layer, cross-entropy and Adam are
# calls of this library, forward and backward.
#
#     python examples/char_lstm.py [steps]

# %%
import contextlib
import io
import math
import sys

import numpy as np

import dnnkern
from dnnkern.device import SIMULATED, cuda

with contextlib.redirect_stdout(io.StringIO()) as printed:  # the module prints its text
    import this  # noqa: F401
text = printed.getvalue()
alphabet = sorted(set(text))
codes = np.array([alphabet.index(c) for c in text], np.int32)

STEPS = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdigit() else 200
V = len(alphabet)
T, N, E, H, NEW = (5, 2, 6, 8, 4) if SIMULATED else (32, 16, 32, 96, 120)  # characters and sequences of a batch, embedding, LSTM units
print(f"{len(text)} characters, an alphabet of {V}")

# %% [markdown]
# ## Parameters
#
# The weights of an `RnnSpec` are one contiguous array, whose parts have PyTorch's names and gate order. Adam takes lists of arrays and
# updates them in place, all in one launch.

# %%
rng = np.random.default_rng(0)
spec = dnnkern.RnnSpec("lstm", E, H)


def uniform(shape, bound=H ** -0.5):
    return rng.uniform(-bound, bound, shape).astype(np.float32)


weights = spec.pack({m.name: cuda.to_device(uniform(m.shape)) for m in spec.matrices})
table, w, b = map(cuda.to_device, (rng.standard_normal((V, E)).astype(np.float32), uniform((H, V)), np.zeros(V, np.float32)))
params = [table, weights, w, b]
moments = [[cuda.to_device(np.zeros(p.shape, np.float32)) for p in params] for _ in range(2)]


# %% [markdown]
# ## A training step
#
# Each forward function has its gradient, which takes what the forward one saved: `reserve` of the LSTM, `lse` of the cross-entropy.

# %%
def loss_and_gradients(inputs, targets):
    """Mean cross-entropy of the next character, and the gradients of `params`; inputs and targets are (T, N) and (T N)."""
    table, weights, w, b = params
    x = dnnkern.embedding_fwd(table, inputs)
    y, _, _, reserve = dnnkern.rnn_fwd(spec, x, None, None, weights, training=True)
    rows = y.reshape(T * N, H)
    logits = dnnkern.matmul(rows, w, bias=b)
    loss, lse = dnnkern.cross_entropy_fwd(logits, targets)

    dlogits = dnnkern.cross_entropy_bwd(one, logits, targets, lse)
    db = dnnkern.reduce(dlogits, "add", axes=0)
    dw = dnnkern.matmul(rows, dlogits, transpose_a=True)
    dy = dnnkern.matmul(dlogits, w, transpose_b=True).reshape(T, N, H)
    dx, _, _ = dnnkern.rnn_bwd_data(spec, dy, None, None, x, None, None, y, weights, reserve)
    dweights = dnnkern.rnn_bwd_weights(spec, x, None, y, reserve)
    return loss, [dnnkern.embedding_bwd(dx, inputs, V), dweights, dw, db]


def batch():
    """Characters, and the characters after them, of N windows of the text."""
    windows = np.stack([codes[s:s + T + 1] for s in rng.integers(0, len(codes) - T, N)], axis=1)  # (T + 1, N)
    return cuda.to_device(np.ascontiguousarray(windows[:-1])), cuda.to_device(windows[1:].reshape(-1).copy())


one = cuda.to_device(np.ones((), np.float32))

# %% [markdown]
# Is it the gradient? Along its own direction the loss rises by the gradient's norm for each unit of length.

# %%
inputs, targets = batch()
start, grads = [p.copy_to_host() for p in params], [g.copy_to_host() for g in loss_and_gradients(inputs, targets)[1]]
norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads))
beside = []
for length in (0.02, -0.02):
    for p, s, g in zip(params, start, grads):
        p.copy_to_device(s + np.float32(length / norm) * g)
    beside.append(float(loss_and_gradients(inputs, targets)[0].copy_to_host()))
for p, s in zip(params, start):
    p.copy_to_device(s)
print(f"the gradient's norm is {norm:.4f}, by differences of the loss {(beside[0] - beside[1]) / 0.04:.4f}")

# %%
losses = []
for step in range(1, STEPS + 1):
    loss, grads = loss_and_gradients(*batch())
    dnnkern.adam_step(params, grads, *moments, lr=6e-3, step=step)
    if step == 1 or step % 50 == 0 or step == STEPS:
        losses.append(float(loss.copy_to_host()))
        print(f"step {step}: loss {losses[-1]:.3f}")

# %% [markdown]
# ## Writing
#
# One character per call: the states go from one call to the next. The next character is drawn from the softmax of the logits.

# %%
table, weights, w, b = params
h = c = None
written = "Beautiful is"
for k in range(NEW):
    for character in written if k == 0 else written[-1]:
        x = dnnkern.embedding_fwd(table, cuda.to_device(np.array([[alphabet.index(character)]], np.int32)))
        y, h, c, _ = dnnkern.rnn_fwd(spec, x, h, c, weights)
    p = dnnkern.softmax_fwd(dnnkern.matmul(y.reshape(1, H), w, bias=b)).copy_to_host()[0].astype(np.float64)
    written += alphabet[rng.choice(V, p=p / p.sum())]
print(written)
print(f"loss {losses[0]:.3f} (of guessing: {math.log(V):.3f}) -> {losses[-1]:.3f} after {STEPS} steps")
