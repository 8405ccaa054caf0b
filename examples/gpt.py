# %% [markdown]
# # A small GPT, trained, then decoded with a paged cache
#
# Two blocks of attention with rotary embeddings and a gated linear unit learn the Zen of Python, character by character. They are written
# with `dnnkern.torch.functional`, so PyTorch's autograd finds the gradients, and every function is a kernel of this library, forward and
# backward. It needs PyTorch.
#
#     python examples/gpt.py [steps]

# %%
import contextlib
import io
import math
import sys

import torch

import dnnkern.torch
from dnnkern.device import DEVICE, SIMULATED
from dnnkern.torch import functional as F

with contextlib.redirect_stdout(io.StringIO()) as printed:  # the module prints its text
    import this  # noqa: F401
text = printed.getvalue()
alphabet = sorted(set(text))

STEPS = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdigit() else 120
V = len(alphabet)
HEADS, D, BLOCKS, B, T, NEW = (2, 8, 1, 1, 6, 5) if SIMULATED else (4, 16, 2, 8, 32, 48)  # heads of D, blocks, sequences of T characters
C = HEADS * D  # channels
device = "cuda" if DEVICE == "cuda" else "cpu"
torch.manual_seed(0)
codes = torch.tensor([alphabet.index(c) for c in text], device=device)

# %% [markdown]
# ## The model
#
# Residuals are added by the kernels of the products: `linear(..., residual=x)`. The heads of queries, keys and values are views of one
# product, which attention reads as they are: layout "BSHD", any strides.

# %%
params = {"embedding": torch.randn(V, C) / 4, "norm": torch.ones(C)}
for i in range(BLOCKS):
    for name, shape in (("qkv", (3 * C, C)), ("out", (C, C)), ("up", (4 * C, C)), ("down", (C, 2 * C))):
        params[f"{name}{i}"] = torch.randn(shape) / math.sqrt(shape[1])
    params[f"norm_a{i}"], params[f"norm_b{i}"] = torch.ones(C), torch.ones(C)
params = {name: p.to(device).requires_grad_() for name, p in params.items()}

angles = torch.arange(512, device=device)[:, None] * 10000 ** (-torch.arange(D // 2, device=device) / (D / 2))
COS, SIN = angles.cos()[:, None], angles.sin()[:, None]  # (positions, 1, D / 2) for (B, S, H, D)


def block(i, x, cos, sin, attend):
    """Block i; `attend(i, q, k, v)` is attention to all keys that there are."""
    h = F.rms_norm(x, (C,), params[f"norm_a{i}"])
    q, k, v = F.linear(h, params[f"qkv{i}"]).unflatten(-1, (3, HEADS, D)).unbind(2)
    o = attend(i, F.rope(q, cos, sin), F.rope(k, cos, sin), v)
    x = F.linear(o.flatten(2), params[f"out{i}"], residual=x)
    h = F.rms_norm(x, (C,), params[f"norm_b{i}"])
    return F.linear(F.swiglu(F.linear(h, params[f"up{i}"])), params[f"down{i}"], residual=x)


def model(tokens, cos, sin, attend):
    """What the last layer gets, (B, S, C); logits are its products with the embedding."""
    x = F.embedding(tokens, params["embedding"])
    for i in range(BLOCKS):
        x = block(i, x, cos, sin, attend)
    return F.rms_norm(x, (C,), params["norm"])


def causal(i, q, k, v):
    return F.attention(q, k, v, causal=True, layout="BSHD")


# %% [markdown]
# ## Training
#
# `linear_cross_entropy` keeps neither the logits nor their gradient whole in memory.

# %%
optimizer = dnnkern.torch.optim.AdamW(params.values(), lr=4e-3, weight_decay=0.0)
losses = []
for step in range(1, STEPS + 1):
    windows = torch.stack([codes[s:s + T + 1] for s in torch.randint(len(codes) - T, (B,))])
    hidden = model(windows[:, :-1], COS[:T], SIN[:T], causal)
    loss = F.linear_cross_entropy(hidden.flatten(0, 1), params["embedding"], windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1 or step % 25 == 0 or step == STEPS:
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.3f}")

# %% [markdown]
# ## Decoding with a paged cache
#
# Keys and values of all sequences are in one pool of pages of eight, and a table says which pages a sequence has, in which order. Two
# prompts of the same length go through the model once; then each step adds one character to each sequence. A step computes one row per
# sequence: its key and value go into the cache, and `attention_decode` reads the rest from there.
#
# ```text
# page_table   sequence 0:  5  1  8 ...      key j of sequence b = row j % 8 of page page_table[b, j // 8]
#              sequence 1:  3  9  0 ...
# ```

# %%
PAGE = 8
tokens = torch.tensor([[alphabet.index(c) for c in prompt] for prompt in ("Beautiful is", "Although pra")], device=device)
pages = -(-(tokens.shape[1] + NEW) // PAGE)
page_table = torch.randperm(2 * pages, device=device).int().reshape(2, pages)
caches = [[torch.zeros(2 * pages, PAGE, HEADS, D, device=device) for _ in "kv"] for _ in range(BLOCKS)]


def cached(first):
    """Attention of rows from position `first` on, whose keys and values enter the cache."""
    def attend(i, q, k, v):
        at = torch.arange(first, first + q.shape[1], device=device)
        for cache, rows in zip(caches[i], (k, v)):
            cache[page_table[:, at // PAGE].long(), at % PAGE] = rows
        lengths = torch.full((2,), first + q.shape[1], dtype=torch.int32, device=device)
        return F.attention_decode(q, *caches[i], lengths, page_table=page_table, layout="BSHD")
    return attend


with torch.no_grad():
    kept, new = [], tokens
    for first in [0, *range(tokens.shape[1], tokens.shape[1] + NEW - 1)]:
        rows = slice(first, first + new.shape[1])
        kept.append(F.linear(model(new, COS[rows], SIN[rows], cached(first)), params["embedding"]))
        new = kept[-1][:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], dim=1)
    full = F.linear(model(tokens[:, :-1], COS[:tokens.shape[1] - 1], SIN[:tokens.shape[1] - 1], causal), params["embedding"])

for row in tokens.tolist():
    print(repr("".join(alphabet[t] for t in row)))
ran = [row for row in dnnkern.torch.status(reset=True) if not row.ours]
print("functions that went back to PyTorch:", ", ".join(f"{row.op} ({row.reason})" for row in ran) or "none")
print(f"decoding beside the full forward pass: largest difference of a logit {(torch.cat(kept, dim=1) - full).abs().max():.1e}, "
      f"largest logit {full.abs().max():.1f}; loss {losses[0]:.3f} -> {losses[-1]:.3f}")
