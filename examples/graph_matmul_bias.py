# %% [markdown]
# # A graph: a product and a bias
#
# With the names of cuDNN's Python package: the first program of its introduction.
#
#     python examples/graph_matmul_bias.py [m n k]

# %%
import sys

import torch

import dnnkern.graph as cudnn
from dnnkern.device import DEVICE


def main(m=1024, n=1024, k=512):
    b, device = 1, "cuda" if DEVICE == "cuda" else "cpu"
    A = torch.randn(b, m, k, device=device)
    B = torch.randn(b, k, n, device=device)
    bias_ = torch.randn(b, m, 1, device=device)
    result = torch.empty(b, m, n, device=device)

    graph = cudnn.pygraph(intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
    a = graph.tensor_like(A)
    b = graph.tensor_like(B)
    bias = graph.tensor_like(bias_)
    c = graph.matmul(name="matmul", A=a, B=b)
    d = graph.bias(name="bias", input=c, bias=bias)
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(graph.get_workspace_size(), device=device, dtype=torch.uint8)
    graph.execute({a: A, b: B, bias: bias_, d: result}, workspace)

    expected = torch.matmul(A.double(), B.double()) + bias_
    print(f"{tuple(result.shape)}, largest error against float64: {(result - expected).abs().max():.1e}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word.isdigit()))
