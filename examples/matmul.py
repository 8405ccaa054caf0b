"""A matrix product with bias and activation fused, on the GPU of this machine, or on its processor.

    python examples/matmul.py
"""
import numpy as np

import dnnkern
from dnnkern.device import DEVICE, cuda


def main():
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (32, 96), (32,)))
    expected = np.maximum(x.astype(np.float64) @ w.T + b, 0)

    x, w, b = (cuda.to_device(a) for a in (x, w, b))
    y = dnnkern.matmul(x, w, transpose_b=True, bias=b, activation="relu")

    print("a", type(y).__name__, "of", y.dtype, y.shape, "on", DEVICE)
    print(f"largest error against float64: {np.abs(y.copy_to_host() - expected).max():.1e}")


if __name__ == "__main__":
    main()
