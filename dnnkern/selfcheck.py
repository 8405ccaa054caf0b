"""`dnnkern check`: versions, and whether every algorithm computes correctly on this machine, or on one given problem.

Matrix products are compared with NumPy's; the small problems that families list in their `_parse.SMALL`, {operation: texts}, with their
naive algorithms.
"""
import importlib
import platform
import sys

import numpy as np

from . import dispatch
from ._output import document
from ._table import Lines, note, progress, say
from .device import DEVICE, HOST_MEMORY, cuda
from .host.arrays import view
from .host.versions import installed
from .host.device import current_device, device
from .host.dtypes import ROUNDOFF, STORAGE, numpy_dtype

PACKAGES = ("dnnkern", "numba", "numba-cuda", "llvmlite", "numpy", "ml_dtypes", "cuda-core", "cuda-bindings", "nvidia-nvvm",
            "nvidia-nvjitlink", "greenlet", "torch")
SIZES = 33, 29, 37  # no tile size divides them
NOT_APPLICABLE = "not applicable: "


def run(as_json=False, quiet=False) -> int:
    """Print versions, and each result when it is known; 1 if an algorithm failed."""
    target = device(current_device())
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    say(f"Python {platform.python_version()} on {platform.platform()}")
    say(", ".join(map(" ".join, versions.items())))
    say(f"Device: {target.name} ({target.arch})" + f", {DEVICE}" * (DEVICE != target.name))
    tried = [(problem, dispatch.algorithms(problem.op), _against_numpy) for problem in _products()]
    tried += [(problem, dispatch.algorithms(problem.op), _against_naive) for problem in _small()]
    return _report(tried, target, as_json, quiet, {"python": platform.python_version(), **versions})


def run_problem(problem, algo=None, exclude=dispatch.Note.NONE, as_json=False, quiet=False) -> int:
    """Run one algorithm, or all that can, on random inputs of a problem and compare with the naive algorithm; 1 if one was wrong.

    Algorithms with notes of `exclude` are left out.
    """
    target = device(current_device())
    if problem.is_empty:
        say(f"{problem} has no elements: nothing runs")
        return _report([], target, True) if as_json else 0
    known = [a for a in dispatch.algorithms(problem.op) if not a.notes & exclude]
    if algo is not None:
        known = [dispatch.get_algorithm(problem.op, problem, algo=algo, exclude=exclude, device=target,
                                        allow=dispatch.Note.NONDETERMINISTIC)]
    say(f"{problem} on {target.name}")
    return _report([(problem, known, _against_naive)], target, as_json, quiet)


def _report(tried, target, as_json=False, quiet=False, versions=None) -> int:
    """Run, print row by row (if `quiet` those that are wrong alone), and summarise; 1 if a result was wrong.

    `tried`: problems, the algorithms to run on them, and which of the functions below compares. With several problems, algorithms that
    cannot solve one are counted but not shown.
    """
    total, several = sum(len(known) for _, known, _ in tried), len(tried) > 1
    columns = ("", "problem", "algorithm", "result") if several else ("", "algorithm", "result")
    widest = [(f"{total}/{total}", *([str(problem)] if several else []), a.name, "ok") for problem, known, _ in tried for a in known]
    table, done, skipped, wrong = Lines(columns, widest, right={0}), 0, 0, 0
    if not (as_json or quiet):
        print("\n".join(table.head()), flush=True)
    results = []
    with progress("checking"):
        for problem, known, compare in tried:
            for name, result in compare(problem, known, target):
                done += 1
                not_applicable = result.startswith(NOT_APPLICABLE)
                skipped += not_applicable
                is_wrong = result != "ok" and not not_applicable
                wrong += is_wrong
                results.append({"op": problem.op, "problem": str(problem), "algorithm": name, "result": result,
                                "status": "wrong" if is_wrong else "not applicable" if not_applicable else "ok"})
                note(f"{done} of {total}: {problem}, {name}" if several and not_applicable else "")
                if not (as_json or several and not_applicable or quiet and not is_wrong):
                    row = f"{done}/{total}", *([str(problem)] if several else []), name, result
                    print("\n".join(table.row(row, style="red" if is_wrong else None)), flush=True)
    note()
    if as_json:
        document("check", device=target.name, versions=versions or {}, ran=done - skipped, wrong=wrong, results=results)
    say(f"{done - skipped} ran, {skipped} {'is' if skipped == 1 else 'are'} not applicable. "
        + (f"{wrong} failed." if wrong else "All are correct."))
    return int(wrong > 0)


def _products():
    """A matrix product of each dtype."""
    from .matmul._parse import parse_problem
    m, n, k = SIZES
    return [parse_problem([f"{m}x{n}x{k}", dtype]) for dtype in ("float32", "bfloat16", "float16", "float64", "int8")]


def _small():
    """The families' small problems."""
    for family in dispatch.families():
        words = importlib.import_module(f"dnnkern.{family}._parse")
        for op, texts in words.SMALL.items():
            for text in texts:
                yield words.parse_problem(text.split(), op)


def _against_numpy(problem, known, target):
    """(algorithm, "ok" or what is wrong) of a product through the public function, compared with NumPy, one after the other."""
    from .matmul import matmul
    (m, k), (_, n), dtype, allow = problem.a.shape, problem.b.shape, problem.a.dtype, dispatch.Note.NONDETERMINISTIC
    rng = np.random.default_rng(0)
    a, b = (_random(rng, shape, dtype) for shape in ((m, k), (k, n)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    # K products of magnitude up to 16, accumulated, then rounded to the output's type
    bound = 16 * k * k * ROUNDOFF["float64" if dtype == "float64" else "float32"] + ROUNDOFF.get(dtype, 0) * np.abs(expected).max()
    for algorithm in known:
        if (reason := dispatch.refusal(algorithm, problem, target, allow=allow)) is not None:
            yield algorithm.name, NOT_APPLICABLE + reason
            continue
        try:
            y = matmul(_put(a, dtype), _put(b, dtype), algo=algorithm.name, allow=allow)
            error = np.abs(_get(y).astype(np.float64) - expected).max()
            yield algorithm.name, "ok" if error <= bound else f"WRONG: off by {error:.3g}, allowed {bound:.3g}"
        except Exception as found:  # continue with the next algorithm
            yield algorithm.name, f"FAILED: {type(found).__name__}: {found}"


def _against_naive(problem, known, target):
    """(algorithm, "ok" or what is wrong) on random inputs, compared with the naive algorithm, one after the other."""
    from . import find
    from .host.operands import Operands
    from .host.timing import Clock
    operation, allow = dispatch.operation_of(problem.op), dispatch.Note.NONDETERMINISTIC
    with Clock(target.index) as clock, Operands(operation, problem, target) as operands:
        find.set_reference(operation, problem, dispatch.reference_of(problem.op, problem, target), operands, target, clock)
        for algorithm in known:
            if (reason := dispatch.refusal(algorithm, problem, target, allow=allow)) is not None:
                yield algorithm.name, NOT_APPLICABLE + reason
                continue
            trial = find.Trial(algorithm.configured(problem, target), problem, target)
            trial.prepare(operation, operands, clock)
            yield algorithm.name, trial.error or "ok"


def _version(name):
    return installed(name) or getattr(sys.modules.get(name), "__version__", None)


def _random(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(np.int8) if dtype == "int8" else rng.uniform(-4, 4, shape).astype(numpy_dtype(dtype))


def _put(x, dtype):
    if HOST_MEMORY:
        return x
    if STORAGE[dtype] == dtype or dtype == "float16":
        return cuda.to_device(x)
    return view(cuda.to_device(x.view(STORAGE[dtype])), dtype)


def _get(y):
    return y if isinstance(y, np.ndarray) else y.copy_to_host()
