"""What the host spends: ``python -m bench.overhead [--json FILE]``.

Anywhere: the time to import dnnkern; the first call of a process, compiled, from the disk cache, and on a GPU from a kernel pack; choosing
an algorithm for a shape never seen (`bench.get`); cached calls on each framework's arrays (`bench.cached`), on a GPU beside PyTorch's own,
else up to the driver; and in the simulator a tiled product and one on tensor cores. Counts beside the times depend on no machine.
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
CHOSEN = "matmul", "conv_fwd", "conv_bwd_filter", "rnn_fwd", "softmax_fwd"  # operations whose choices are timed
CACHED = ("matmul", "conv_fwd", "batch_norm_train_fwd", "layer_norm_bwd", "rnn_fwd", "sgd_step, 161 arrays", "adamw_step, 161 arrays",
          "adamw_step, 161 arrays, new gradients")

_IMPORT = """
import time, {before}
start = time.perf_counter()
import {what}
print(time.perf_counter() - start)
"""

# Of a process: seconds of its first call and of the second; files opened in the first, modules imported, whether a compiler is among them.
_FIRST_CALL = """
import sys, time
{arrays}
opened, before = [], len(sys.modules)
sys.addaudithook(lambda event, about: opened.append(about[0]) if event == "open" else None)
start = time.perf_counter()
import dnnkern
dnnkern.matmul(a, b, out=y)
wait()
first = time.perf_counter()
count, modules, compiler = len(opened), len(sys.modules) - before, "numba" in sys.modules
dnnkern.matmul(a, b, out=y)
wait()
print(first - start, time.perf_counter() - first, count, modules, int(compiler))
"""
_ARRAYS = {"cuda": """
import torch
a, b, y = (torch.ones(1024, 1024, device="cuda") for _ in range(3))
wait = torch.cuda.synchronize
wait()
""", "cpu": """
import numpy as np
a, b, y = (np.ones((256, 256), np.float32) for _ in range(3))
wait = bool
"""}

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


def first_call_times(device) -> dict:
    """{what: (milliseconds, counts)} of a process's first matmul: with an empty cache, with what that run left, on a GPU from a pack."""
    code, found = _FIRST_CALL.format(arrays=_ARRAYS[device]), {}
    with tempfile.TemporaryDirectory() as folder:
        ways = {"compiled": folder, "from the disk cache": folder}
        if device == "cuda":
            ways["from a pack"] = os.path.join(folder, "other")
            _import_pack(ways["from a pack"])
        for way, cache in ways.items():
            first, again, files, modules, compiler = python(code, DNNKERN_CACHE_DIR=cache, DNNKERN_DEVICE=device)
            counts = f"{files:.0f} files, {modules:.0f} modules, {'with' if compiler else 'without'} Numba"
            found[f"first call, {way}"] = 1e3 * first, counts
            found["second call"] = 1e3 * again, ""
    return found


def _import_pack(cache):
    """Make a pack of the kernel of `_FIRST_CALL`'s product, and import it into this cache directory."""
    code = """
import sys
from pathlib import Path
import dnnkern
from dnnkern import _pack
from dnnkern.host import packs
from dnnkern.host.compile import cache_dir
from dnnkern.host.compiler import Job
from dnnkern.host.device import device
operand = (1024, 1024), "float32"
problem = dnnkern.problem("matmul", a=operand, b=operand, out=operand)
kernels = Job(problem.op, problem, device(0)).kernels()
for kernel in kernels:
    kernel.compile()
made = cache_dir() / "one.pack"
packs.write(made, {bytes.fromhex(kernel.pack_key): (cache_dir() / kernel.file).read_bytes() for kernel in kernels},
            _pack.choices_of([problem], device(0)), archs=[device(0).arch], versions={}, sources=_pack.sources())
print(len(kernels))
"""
    with tempfile.TemporaryDirectory() as folder:
        python(code, DNNKERN_CACHE_DIR=folder)
        subprocess.run([sys.executable, "-m", "dnnkern", "cache", "import", os.path.join(folder, "one.pack")], check=True, cwd=ROOT,
                       capture_output=True, env={**os.environ, "DNNKERN_CACHE_DIR": cache})


def choice_times() -> dict:
    """{what: (milliseconds, counts)} of choosing for shapes never seen, medians."""
    from . import get
    return {f"get, {row.operation}": (row.ms, f"{row.estimated:g} estimates") for row in get.get_cold(CHOSEN)}


def call_times(device) -> dict:
    """{what: (microseconds, counts)} of cached calls, on each framework; on a GPU of PyTorch's product too."""
    from . import cached
    frameworks, found = [name for name in cached.FRAMEWORKS if importlib.util.find_spec(name)], {}
    for row in cached.cached_calls(frameworks, CACHED, real=device == "cuda"):
        found[f"{row['function']} ({row['framework']})"] = row["us"], f"{row['calls']} calls of Python"
    if device == "cuda" and "torch" in frameworks:
        import torch

        from dnnkern.host.timing import host_seconds
        p, q, r = (torch.ones(64, 64, device="cuda") for _ in range(3))
        for name, call in (("torch.matmul, out=", lambda: torch.matmul(p, q, out=r)), ("torch.matmul", lambda: torch.matmul(p, q))):
            found[name] = 1e6 * host_seconds(call, torch.cuda.synchronize), ""
    return found


def main(argv=None) -> int:
    """Measure what this machine can and print it."""
    from dnnkern.device import DEVICE
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description="Measure what the host spends.")
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    args = parser.parse_args(argv)
    tables = [("ms", {name: (value, "") for name, value in import_times().items()})]
    if importlib.util.find_spec("greenlet"):  # the simulator's scheduler, which a machine with a GPU need not have
        first, again, tensor_cores = python(_SIMULATED, NUMBA_ENABLE_CUDASIM="1")
        tables[0][1].update({"simulator: tiled 64x64x64 float32, first launch": (1e3 * first, ""),
                             "simulator: tiled 64x64x64 float32, again": (1e3 * again, ""),
                             "simulator: matmul, wgmma, 256x256x256 bfloat16": (1e3 * tensor_cores, "")})
    if DEVICE != "simulator":
        tables += [("ms", first_call_times(DEVICE)), ("ms", choice_times()), ("µs", call_times(DEVICE))]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}\n\n| what | time | counts |\n|---|--:|---|")
    for unit, found in tables:
        for name, (value, counts) in found.items():
            print(f"| {name} | {value:.4g} {unit} | {counts} |")
    if args.json:
        from dnnkern.host.device import device

        from .machine import machine
        with open(args.json, "a") as file:
            file.write(json.dumps({"machine": machine(device(0)), "overhead": [(unit, found) for unit, found in tables]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
