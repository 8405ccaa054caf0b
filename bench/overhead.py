"""What the host spends: ``python -m bench.overhead [--json FILE]``.

On a GPU: a cached ``matmul(a, b, out=y)`` on torch tensors and on Numba arrays beside ``torch.matmul(a, b, out=y)``, and the first call of
a process, compiled fresh and from the disk cache. Anywhere: the time to import dnnkern, and in the simulator a tiled product of 64x64x64
and one of 256x256x256 on tensor cores.
"""
import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_IMPORT = """
import time, {before}
start = time.perf_counter()
import {what}
print(time.perf_counter() - start)
"""

_FIRST_CALL = """
import time
start = time.perf_counter()
import numpy as np
from numba import cuda
a, b, y = (cuda.to_device(np.ones((1024, 1024), np.float32)) for _ in range(3))
cuda.synchronize()
numba = time.perf_counter()
import dnnkern
dnnkern.matmul(a, b, out=y)
cuda.synchronize()
first = time.perf_counter()
dnnkern.matmul(a, b, out=y)
cuda.synchronize()
print(numba - start, first - numba, time.perf_counter() - first)
"""

_SIMULATED = """
from bench.overhead import simulated_product, simulated_tensor_cores
print(*simulated_product(), simulated_tensor_cores())
"""


def python(code, **environment) -> list[float]:
    """Numbers that a fresh interpreter prints."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**{k: v for k, v in os.environ.items() if k != "DNNKERN_DEVICE"}, "PYTHONPATH": path, **environment})
    return [float(x) for x in done.stdout.split()]


def import_times(repeats=5) -> dict:
    """Milliseconds, medians of fresh interpreters."""
    found = {}
    for name, before, what in (("import dnnkern", "sys", "dnnkern"), ("import numba.cuda", "sys", "numba.cuda"),
                               ("import dnnkern.matmul, dnnkern.device imported before", "dnnkern.device", "dnnkern.matmul")):
        found[name] = 1e3 * statistics.median(python(_IMPORT.format(before=before, what=what))[0] for _ in range(repeats))
    return found


def simulated_product(size=64, tile=16) -> tuple:
    """Seconds of a tiled float32 product in the simulator: the first launch and the median of five more."""
    import numpy as np

    from dnnkern.device import SIMULATED, cuda, f32, i32
    from dnnkern.device.sim import Pointer
    if not SIMULATED:
        raise RuntimeError("NUMBA_ENABLE_CUDASIM=1 is not set")
    TILE = tile

    @cuda.jit(launch_bounds=TILE * TILE)
    def product(a, b, y, n):
        tile_a = cuda.shared.array((TILE, TILE), f32)
        tile_b = cuda.shared.array((TILE, TILE), f32)
        tx, ty = i32(cuda.threadIdx.x), i32(cuda.threadIdx.y)
        row, column = i32(cuda.blockIdx.y * TILE + ty), i32(cuda.blockIdx.x * TILE + tx)
        total = f32(0)
        for start in range(0, n, TILE):
            tile_a[ty, tx] = a[row * n + start + tx]
            tile_b[ty, tx] = b[(start + ty) * n + column]
            cuda.syncthreads()
            for k in range(TILE):
                total = f32(total + tile_a[ty, k] * tile_b[k, tx])
            cuda.syncthreads()
        y[row * n + column] = total

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (size, size)).astype(np.float32) for _ in range(2))
    y = np.full((size, size), np.nan, np.float32)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        product.simulate((size // TILE, size // TILE, 1), (TILE, TILE, 1), [Pointer(a), Pointer(b), Pointer(y), size])
        times.append(time.perf_counter() - start)
    if not np.array_equal(y, a @ b):
        raise RuntimeError("the simulated product is wrong")
    return times[0], statistics.median(times[1:])


def simulated_tensor_cores(size=256) -> float:
    """Seconds of matmul's `wgmma` on bfloat16 in the simulator, the configuration its own: the median of five calls after the first."""
    import ml_dtypes
    import numpy as np

    import dnnkern
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (size, size)).astype(ml_dtypes.bfloat16) for _ in range(2))
    y = np.full((size, size), np.nan, ml_dtypes.bfloat16)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        dnnkern.matmul(a, b, transpose_b=True, out=y, algo="wgmma")
        times.append(time.perf_counter() - start)
    if not np.array_equal(y, (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)):
        raise RuntimeError("the simulated product is wrong")
    return statistics.median(times[1:])


def call_times() -> dict:
    """Microseconds of host time of one cached call; 64x64x64 float32, so that the device keeps up."""
    import numpy as np
    from numba import cuda

    import dnnkern
    from dnnkern.host.timing import host_seconds
    found = {}
    a, b, y = (cuda.to_device(np.ones((64, 64), np.float32)) for _ in range(3))
    found["matmul(a, b, out=y), Numba arrays"] = host_seconds(lambda: dnnkern.matmul(a, b, out=y), cuda.synchronize)
    found["matmul(a, b), Numba arrays"] = host_seconds(lambda: dnnkern.matmul(a, b), cuda.synchronize)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        p, q, r = (torch.ones(64, 64, device="cuda") for _ in range(3))
        wait = torch.cuda.synchronize
        found["matmul(a, b, out=y), torch tensors"] = host_seconds(lambda: dnnkern.matmul(p, q, out=r), wait)
        found["matmul(a, b), torch tensors"] = host_seconds(lambda: dnnkern.matmul(p, q), wait)
        found["torch.matmul(a, b, out=y)"] = host_seconds(lambda: torch.matmul(p, q, out=r), wait)
        found["torch.matmul(a, b)"] = host_seconds(lambda: torch.matmul(p, q), wait)
    return {name: 1e6 * seconds for name, seconds in found.items()}


def first_call_times() -> dict:
    """Milliseconds of the first matmul of a process, with an empty cache and with what that run left; Numba's import and context apart."""
    with tempfile.TemporaryDirectory() as folder:
        fresh, cached = (python(_FIRST_CALL, DNNKERN_CACHE_DIR=folder) for _ in range(2))
    return {"import of Numba, context, upload": 1e3 * cached[0], "first call, compiled": 1e3 * fresh[1],
            "first call, from the disk cache": 1e3 * cached[1], "second call": 1e3 * cached[2]}


def main(argv=None) -> int:
    """Measure what this machine can and print it."""
    from dnnkern.device import DEVICE
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description="Measure what the host spends.")
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    args = parser.parse_args(argv)
    tables = [("ms", import_times())]
    if importlib.util.find_spec("greenlet"):  # the simulator's scheduler, which a machine with a GPU need not have
        first, again, tensor_cores = python(_SIMULATED, NUMBA_ENABLE_CUDASIM="1")
        tables[0][1].update({"simulator: tiled 64x64x64 float32, first launch": 1e3 * first,
                             "simulator: tiled 64x64x64 float32, again": 1e3 * again,
                             "simulator: matmul, wgmma, 256x256x256 bfloat16": 1e3 * tensor_cores})
    if DEVICE == "cuda":
        tables += [("ms", first_call_times()), ("µs", call_times())]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}\n\n| what | time |\n|---|--:|")
    for unit, found in tables:
        for name, value in found.items():
            print(f"| {name} | {value:.4g} {unit} |")
    if args.json:
        from dnnkern.host.device import device

        from .machine import machine
        with open(args.json, "a") as file:
            file.write(json.dumps({"machine": machine(device(0)), "overhead": [(unit, found) for unit, found in tables]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
