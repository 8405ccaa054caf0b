"""`python -m dnnkern check`: what is installed, and whether every algorithm computes on this machine."""
import importlib.metadata
import platform
import sys

import numpy as np

from ._table import show
from .device import SIMULATED, cuda
from .host.arrays import view
from .host.device import current_device, device
from .host.dtypes import ROUNDOFF, STORAGE, numpy_dtype

PACKAGES = ("dnnkern", "numba", "numba-cuda", "llvmlite", "numpy", "ml_dtypes", "cuda-core", "cuda-bindings", "nvidia-nvvm",
            "nvidia-nvjitlink", "greenlet", "torch")
SIZES = 33, 29, 37  # nothing divides them


def run() -> int:
    """Print versions and results; 1 if an algorithm failed."""
    from . import dispatch
    from .matmul import matmul
    from .matmul._parse import parse_problem
    target = device(current_device())
    print(f"Python {platform.python_version()} on {platform.platform()}")
    print(", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name))))
    print(f"Device: {target.name} ({target.arch})" + (", NUMBA_ENABLE_CUDASIM=1" if SIMULATED else ""))
    m, n, k = SIZES
    rng = np.random.default_rng(0)
    rows, failed = [], False
    for dtype in ("float32", "bfloat16", "float16", "float64", "int8"):
        a, b = (_random(rng, shape, dtype) for shape in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b.astype(np.float64)
        # K products of magnitude up to 16, accumulated, then rounded to the output's type
        bound = 16 * k * k * ROUNDOFF["float64" if dtype == "float64" else "float32"] + ROUNDOFF.get(dtype, 0) * np.abs(expected).max()
        problem = parse_problem([f"{m}x{n}x{k}", dtype])
        for algorithm in dispatch.algorithms("matmul"):
            reason = dispatch.refusal(algorithm, problem, target, allow=dispatch.Note.NONDETERMINISTIC)
            if reason is None:
                try:
                    y = matmul(_put(a, dtype), _put(b, dtype), algo=algorithm.name, allow=dispatch.Note.NONDETERMINISTIC)
                    error = np.abs(_get(y).astype(np.float64) - expected).max()
                    result = "ok" if error <= bound else f"WRONG: off by {error:.3g}, allowed {bound:.3g}"
                except Exception as problem_found:  # a report must go on to the next algorithm
                    result = f"FAILED: {type(problem_found).__name__}: {problem_found}"
                failed |= result != "ok"
            else:
                result = f"not applicable: {reason}"
            rows.append((f"matmul {m}x{n}x{k} {dtype}", algorithm.name, result))
    show(("problem", "algorithm", "result"), rows)
    print("Something is wrong." if failed else "All is well.")
    return int(failed)


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        module = sys.modules.get(name)
        return getattr(module, "__version__", None)


def _random(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(np.int8) if dtype == "int8" else rng.uniform(-4, 4, shape).astype(numpy_dtype(dtype))


def _put(x, dtype):
    if SIMULATED:
        return x
    if STORAGE[dtype] == dtype or dtype == "float16":
        return cuda.to_device(x)
    return view(cuda.to_device(x.view(STORAGE[dtype])), dtype)


def _get(y):
    return y if isinstance(y, np.ndarray) else y.copy_to_host()
