"""`python -m dnnkern check`: what is installed, and whether every algorithm computes on this machine, or solves one given problem.

Products of matrices are compared with NumPy's; the small problems that other families name in their `_parse.SMALL`, {operation: texts},
with their naive algorithms.
"""
import importlib
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
    for family in dispatch.families():
        words = importlib.import_module(f"dnnkern.{family}._parse")
        for op, texts in getattr(words, "SMALL", {}).items():
            for text in texts:
                problem = words.parse_problem(text.split(), op)
                found, wrong = _against_naive(problem, dispatch.algorithms(op), target)
                rows += [(str(problem), *row) for row in found]
                failed |= wrong
    show(("problem", "algorithm", "result"), rows)
    print("Something is wrong." if failed else "All is well.")
    return int(failed)


def run_problem(problem, algo=None) -> int:
    """Run one algorithm, or all that can, on random inputs of a problem and compare with the naive algorithm; 1 if one was wrong."""
    from . import dispatch
    target, allow = device(current_device()), dispatch.Note.NONDETERMINISTIC
    if problem.is_empty:
        print(f"{problem} has no elements: nothing runs")
        return 0
    known = dispatch.algorithms(problem.op)
    if algo is not None:
        known = [dispatch.get_algorithm(problem.op, problem, algo=algo, allow=allow, device=target)]
    rows, failed = _against_naive(problem, known, target)
    show(("algorithm", "result"), rows, title=f"{problem} on {target.name}")
    return int(failed)


def _against_naive(problem, known, target):
    """[(algorithm, how its result compares with the naive one's on random inputs)], and whether one was wrong."""
    from . import dispatch, find
    from .host.operands import Operands
    from .host.timing import Clock
    operation, rows, failed, allow = find.operation_of(problem.op), [], False, dispatch.Note.NONDETERMINISTIC
    with Clock(target.index) as clock, Operands(operation, problem, target) as operands:
        find.set_reference(operation, problem, operands, target, clock)
        for algorithm in known:
            reason = dispatch.refusal(algorithm, problem, target, allow=allow)
            result = f"not applicable: {reason}"
            if reason is None:
                trial = find.Trial(algorithm.configured(problem, target), problem, target)
                failed |= not trial.prepare(operation, operands, clock)
                result = trial.error or "ok"
            rows.append((algorithm.name, result))
    return rows, failed


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
