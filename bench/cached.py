"""What the host spends on a cached call of every public function, up to the driver, whose launches do nothing: ``python -m bench.cached``.

No GPU is needed, nor used. Beside the time stands a number that depends on no machine: how many functions Python calls, its own and C's.
The arrays are those of `tests/calls.py`, and the lists of an optimiser's step on ResNet-50.
"""
import argparse
import functools
import itertools
import sys
import time
from pathlib import Path

from .pretend import numba_array, pretended_gpu

TESTS = Path(__file__).resolve().parent.parent / "tests"
FRAMEWORKS = "torch", "numba"
_NOT_MADE = {"rnn_bwd_data", "rnn_bwd_weights", "grouped_matmul"}  # calls whose arrays have values or come from another call


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
    """Processor time of a call: the least of some bursts, after enough of them to be warm."""
    for _ in range(20):
        call()
    start = time.process_time()
    call()
    count = max(1, int(seconds / max(time.process_time() - start, 1e-7)))
    best = float("inf")
    for _ in range(bursts):
        start = time.process_time()
        for _ in range(count):
            call()
        best = min(best, time.process_time() - start)
    return 1e6 * best / count


def _arrays_of(framework):
    """array(*shape, dtype=, value=) of a framework."""
    if framework == "numba":
        return lambda *shape, dtype="float32", value=1: numba_array(shape, dtype)
    import torch
    return lambda *shape, dtype="float32", value=1: torch.full(shape, value, dtype=getattr(torch, dtype))


def public_arguments(framework):
    """{public function: its keyword arguments} of all whose arrays need no call to make them."""
    import inspect

    import dnnkern
    sys.path.insert(0, str(TESTS))
    try:
        import calls
    finally:
        sys.path.remove(str(TESTS))
    found = {}
    before, calls.array = calls.array, _arrays_of(framework)
    try:
        for name in calls.CALLS.keys() - _NOT_MADE:
            arrays, keywords = calls.CALLS[name]()
            names = [n for n in inspect.signature(getattr(dnnkern, name)).parameters if n not in keywords]
            found[name] = {**dict(zip(names, arrays)), **keywords}
    finally:
        calls.array = before
    return dict(sorted(found.items()))


def public_calls(framework):
    """[(what is called, a callable)]: every public function, with `out` where it has one, and without."""
    import dnnkern
    found = []
    for name, given in public_arguments(framework).items():
        call = functools.partial(getattr(dnnkern, name), **given)
        if not name.endswith("_step"):
            found.append((f"{name}, out=", functools.partial(call, out=call())))
        found.append((name, call))
    return found


def list_calls(framework, count=161):
    """The same for steps on lists of so many arrays."""
    import dnnkern
    make = _arrays_of(framework)
    params, grads, m, v = ([make(64, 3) for _ in range(count)] for _ in range(4))
    others = itertools.cycle([[make(64, 3) for _ in range(count)] for _ in range(8)])
    return [(f"sgd_step, {count} arrays", lambda: dnnkern.sgd_step(params, grads, m, lr=1e-3, momentum=0.9)),
            (f"adamw_step, {count} arrays", lambda: dnnkern.adamw_step(params, grads, m, v, lr=1e-3, step=7)),
            (f"adamw_step, {count} arrays, new gradients", lambda: dnnkern.adamw_step(params, next(others), m, v, lr=1e-3, step=7))]


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
