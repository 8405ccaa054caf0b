"""What the host spends on a cached call of every public function, up to the driver, whose launches do nothing: ``python -m bench.cached``.

No GPU is needed, nor used. Beside the time stands a number that depends on no machine: how many functions Python calls, its own and C's.
The arrays are those of `tests/calls.py`, and the lists of an optimiser's step on ResNet-50.
"""
import argparse
import contextlib
import functools
import itertools
import sys
import time
from pathlib import Path

from .pretend import numba_array, pretended_gpu

TESTS = Path(__file__).resolve().parent.parent / "tests"
FRAMEWORKS = "torch", "numba"
_NOT_MADE = {"rnn_bwd_data", "rnn_bwd_weights", "grouped_matmul",
             "grouped_matmul_bwd_weights"}  # calls whose arrays have values or come from another call


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


def _arrays_of(framework, real=False):
    """array(*shape, dtype=, value=) of a framework; `real` ones lie on a GPU."""
    if framework == "numba" and real:
        import numpy as np
        from numba import cuda
        return lambda *shape, dtype="float32", value=1: cuda.to_device(np.full(shape, value, dtype))
    if framework == "numba":
        return lambda *shape, dtype="float32", value=1: numba_array(shape, dtype)
    import torch
    return lambda *shape, dtype="float32", value=1: torch.full(shape, value, dtype=getattr(torch, dtype), device="cuda" if real else "cpu")


def public_arguments(framework, real=False):
    """{public function: its keyword arguments} of all whose arrays need no call to make them."""
    import inspect

    import dnnkern
    sys.path.insert(0, str(TESTS))
    try:
        import calls
    finally:
        sys.path.remove(str(TESTS))
    found = {}
    before, calls.array = calls.array, _arrays_of(framework, real)
    try:
        for name in calls.CALLS.keys() - _NOT_MADE:
            arrays, keywords = calls.CALLS[name]()
            names = [n for n in inspect.signature(getattr(dnnkern, name)).parameters if n not in keywords]
            found[name] = {**dict(zip(names, arrays)), **keywords}
    finally:
        calls.array = before
    return dict(sorted(found.items()))


def public_calls(framework, real=False):
    """[(what is called, a callable)]: every public function, with `out` where it has one, and without."""
    import dnnkern
    found = []
    for name, given in public_arguments(framework, real).items():
        call = functools.partial(getattr(dnnkern, name), **given)
        if not name.endswith("_step"):
            found.append((f"{name}, out=", functools.partial(call, out=call())))
        found.append((name, call))
    return found


def layer_calls(framework, real=False):
    """The same for layers of a network on torch tensors: tensor maps, several launches, workspaces."""
    if framework != "torch":
        return []
    import dnnkern
    make = functools.partial(_arrays_of(framework, real), dtype="bfloat16")
    a, y, layers = make(512, 1024), make(512, 512), itertools.cycle([make(1024, 512) for _ in range(24)])
    b, (x, rows, scale) = next(layers), (make(32, 64, 28, 28), make(4096, 1024), make(1024))
    channels = [_arrays_of(framework, real)(64) for _ in range(4)]
    found, (_, *moments) = dnnkern.batch_norm_train_fwd(x, *channels), dnnkern.layer_norm_fwd(rows, scale, scale)
    return [("matmul of layers, out=", lambda: dnnkern.matmul(a, b, out=y)),
            ("matmul of layers, 24 weights in turn, out=", lambda: dnnkern.matmul(a, next(layers), out=y)),
            ("batch_norm_train_fwd of layers, out=", lambda: dnnkern.batch_norm_train_fwd(x, *channels, out=found)),
            ("batch_norm_train_fwd of layers", lambda: dnnkern.batch_norm_train_fwd(x, *channels)),
            ("batch_norm_bwd of layers", lambda: dnnkern.batch_norm_bwd(x, x, channels[0], *found[1:])),
            ("layer_norm_bwd of layers", lambda: dnnkern.layer_norm_bwd(rows, rows, scale, *moments))]


def list_calls(framework, count=161, real=False):
    """The same for steps on lists of so many arrays."""
    import dnnkern
    make = _arrays_of(framework, real)
    params, grads, m, v = ([make(64, 3) for _ in range(count)] for _ in range(4))
    others = itertools.cycle([[make(64, 3) for _ in range(count)] for _ in range(8)])
    return [(f"sgd_step, {count} arrays", lambda: dnnkern.sgd_step(params, grads, m, lr=1e-3, momentum=0.9)),
            (f"adamw_step, {count} arrays", lambda: dnnkern.adamw_step(params, grads, m, v, lr=1e-3, step=7)),
            (f"adamw_step, {count} arrays, new gradients", lambda: dnnkern.adamw_step(params, next(others), m, v, lr=1e-3, step=7))]


def cached_calls(frameworks=FRAMEWORKS, only=("",), real=False) -> list:
    """[{"function", "framework", "us", "calls"}]: host time and calls of Python of cached calls.

    Parameters
    ----------
    frameworks : sequence of str
    only : sequence of str
        Beginnings of the functions' names.
    real : bool
        Whether kernels are launched on a GPU. Otherwise the driver's functions do nothing.
    """
    rows = []
    with contextlib.nullcontext() if real else pretended_gpu():
        for framework in frameworks:
            for name, call in (*public_calls(framework, real), *layer_calls(framework, real), *list_calls(framework, real=real)):
                if name.startswith(tuple(only)):
                    for _ in range(3):
                        call()
                    rows.append({"function": name, "framework": framework, "us": _real_microseconds(call) if real else microseconds(call),
                                 "calls": calls_of(call)})
    return rows


def _real_microseconds(call):
    from dnnkern.host import driver
    from dnnkern.host.timing import host_seconds
    return 1e6 * host_seconds(call, driver.cuCtxSynchronize)


def main(argv=None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cached", description="Time cached calls up to the driver.")
    parser.add_argument("--only", default="", metavar="WORD", help="functions whose name begins so")
    parser.add_argument("--gpu", action="store_true", help="launch the kernels, on this machine's GPU")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="default: each")
    words = parser.parse_args(argv)
    print("| function | framework | µs | calls of Python |\n|---|---|--:|--:|")
    for row in cached_calls(words.framework or FRAMEWORKS, (words.only,), words.gpu):
        print(f"| {row['function']} | {row['framework']} | {row['us']:.2f} | {row['calls']} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
