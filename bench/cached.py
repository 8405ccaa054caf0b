"""What the host spends on a cached call of every public function, up to the driver, whose launches do nothing: ``python -m bench.cached``.

No GPU is needed, nor used. Beside the time stands a number that depends on no machine: how many functions Python calls, its own and C's.
The arrays are those of `tests/calls.py`, and the lists of an optimiser's step on ResNet-50.
"""
import argparse
import sys
import time
from pathlib import Path

from .pretend import numba_array, pretended_gpu

TESTS = Path(__file__).resolve().parent.parent / "tests"
FRAMEWORKS = "torch", "numba"
_SEARCHED = {"rnn_bwd_data", "rnn_bwd_weights"}  # their arrays come from a call


def calls_of(call) -> int:
    """Functions that Python calls in one call of `call`, itself not counted."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count - 2  # `call` itself, and the end of profiling


def microseconds(call, bursts=25, seconds=2e-3) -> float:
    """The least of some bursts of calls, after enough of them to be warm."""
    for _ in range(20):
        call()
    start = time.perf_counter()
    call()
    count = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / count


def _arrays_of(framework):
    """array(*shape, dtype=, value=) of a framework."""
    if framework == "numba":
        return lambda *shape, dtype="float32", value=1: numba_array(shape, dtype)
    import torch
    return lambda *shape, dtype="float32", value=1: torch.full(shape, value, dtype=getattr(torch, dtype))


def public_calls(framework):
    """[(what is called, a callable)]: every public function, with `out` where it has one, and some without."""
    import inspect

    import dnnkern
    sys.path.insert(0, str(TESTS))
    try:
        import calls
    finally:
        sys.path.remove(str(TESTS))
    make, found = _arrays_of(framework), []
    before, calls.array = calls.array, make
    try:
        given = {name: make_it() for name, make_it in calls.CALLS.items() if name not in _SEARCHED | {"grouped_matmul", "set_tensor"}}
    finally:
        calls.array = before
    for name, (arrays, keywords) in given.items():
        function = getattr(dnnkern, name)
        names = [n for n in inspect.signature(function).parameters if n not in keywords]
        keywords = {**dict(zip(names, arrays)), **keywords}
        if name in calls.WITHOUT_OUT:
            found.append((name, lambda function=function, keywords=keywords: function(**keywords)))
            continue
        out = function(**keywords)
        found += [(f"{name}, out=", lambda function=function, keywords=keywords, out=out: function(**keywords, out=out)),
                  (name, lambda function=function, keywords=keywords: function(**keywords))]
    return found


def list_calls(framework, count=161):
    """The same for steps on lists of so many arrays."""
    import dnnkern
    make = _arrays_of(framework)
    params, grads, m, v = ([make(64, 3) for _ in range(count)] for _ in range(4))
    return [(f"sgd_step, {count} arrays", lambda: dnnkern.sgd_step(params, grads, m, lr=1e-3, momentum=0.9)),
            (f"adamw_step, {count} arrays", lambda: dnnkern.adamw_step(params, grads, m, v, lr=1e-3, step=7))]


def cached_calls(frameworks=FRAMEWORKS, only="") -> list:
    """[{"function", "framework", "us", "calls"}]: host time and calls of Python of cached calls whose name has the word `only`."""
    rows = []
    with pretended_gpu():
        for framework in frameworks:
            for name, call in (*public_calls(framework), *list_calls(framework)):
                if only in name:
                    for _ in range(3):
                        call()
                    rows.append({"function": name, "framework": framework, "us": microseconds(call), "calls": calls_of(call)})
    return rows


def main(argv=None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cached", description="Time cached calls up to the driver.")
    parser.add_argument("--only", default="", metavar="WORD", help="functions whose name has this word")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="default: each")
    words = parser.parse_args(argv)
    print("| function | framework | µs | calls of Python |\n|---|---|--:|--:|")
    for row in cached_calls(words.framework or FRAMEWORKS, words.only):
        print(f"| {row['function']} | {row['framework']} | {row['us']:.2f} | {row['calls']} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
