# %% [markdown]
# # A graph that is one kernel
#
# A layer of a network: product, bias, GELU and a residual, with the sum before GELU kept for the backward pass. `explain` shows what
# became of each node, what other cuts would move, and their predicted times.
#
#     python examples/graph_fused.py

# %%
import numpy as np

import dnnkern.graph as cudnn
from dnnkern.device import cuda

M, N, K = 48, 40, 64
rng = np.random.default_rng(0)
A, B, BIAS, RESIDUAL = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, M, K), (1, K, N), (1, 1, N), (1, M, N)))

FLOAT = cudnn.data_type.FLOAT
graph = cudnn.pygraph(name="layer", io_data_type=FLOAT, intermediate_data_type=FLOAT, compute_data_type=FLOAT)
a, b, bias, residual = (graph.tensor(name=name, dim=x.shape, stride=[s // 4 for s in x.strides])
                        for name, x in (("a", A), ("b", B), ("bias", BIAS), ("residual", RESIDUAL)))
before = graph.bias(graph.matmul(a, b, name="product"), bias, name="sum").set_output(True)
y = graph.add(graph.gelu(before, name="gelu"), residual, name="layer").set_output(True)
graph.build([cudnn.heur_mode.A])
print(graph.explain())

# %%
sent = {t: cuda.to_device(x) for t, x in ((a, A), (b, B), (bias, BIAS), (residual, RESIDUAL))}
results = {t: cuda.to_device(np.empty((1, M, N), np.float32)) for t in (before, y)}
workspace = cuda.to_device(np.empty(max(graph.get_workspace_size(), 1), np.uint8))
graph.execute({**sent, **results}, workspace)

wanted = A.astype(np.float64) @ B + BIAS
print("the sum differs from float64 by", f"{np.abs(results[before].copy_to_host() - wanted).max():.0e} at most")
