"""A matrix product with its neighbours fused, on whatever this machine has: torch tensors on a GPU, NumPy arrays in the simulator.

    python examples/matmul.py
"""
import numpy as np

import dnnkern
from dnnkern.device import SIMULATED


def main():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (32, 96), (32,)))
    expected = np.maximum(x.astype(np.float64) @ w.T + b, 0)

    if SIMULATED:
        y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="relu")
    else:
        import torch
        put = [torch.from_numpy(a).cuda() for a in (x, w, b)]
        y = dnnkern.matmul(*put[:2], transpose_b=True, bias=put[2], activation="relu").cpu().numpy()

    print("a", type(y).__name__, "of", y.dtype, y.shape, "on", "the simulator" if SIMULATED else "the GPU")
    print(f"largest error against float64: {np.abs(y - expected).max():.1e}")


if __name__ == "__main__":
    main()
