"""What the processor takes: ``DNNKERN_DEVICE=cpu python -m bench.processor [--demo] [--json FILE]``.

Calls of ours beside NumPy and PyTorch on the same arrays, in turns, and what a barrier, a shuffle and a compilation take. Medians, seconds
of the wall and of CPU. With `--demo` the demo as well, in processes of its own: with an empty cache, and with what that run has left.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import dnnkern
from dnnkern.device import DEVICE, cuda, f32, i32, u32, warp
from dnnkern.device.cpu import launch as cpu_launch
from dnnkern.host.device import device

from .machine import machine

TURNS = 11


def taken(call):
    """(seconds of the wall, of CPU) of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(calls):
    """{name: (wall, CPU)} of calls that take turns, after one of each that is not counted."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(TURNS):
        for name, call in calls.items():
            times[name].append(taken(call))
    return {name: tuple(map(statistics.median, zip(*found))) for name, found in times.items()}


def products(n=1024):
    """A product in float32."""
    a, b = (np.random.default_rng(k).standard_normal((n, n)).astype(np.float32) for k in range(2))
    y = np.empty_like(a)
    calls = {"blocked": lambda: dnnkern.matmul(a, b, out=y, algo="blocked"), "numpy": lambda: np.matmul(a, b)}
    _check(calls["blocked"](), a.astype(np.float64) @ b, 1e-3)
    if torch := _torch():
        p, q = torch.from_numpy(a), torch.from_numpy(b)
        calls["torch"] = lambda: torch.matmul(p, q)
    return {f"matmul float32 {n}^3": medians(calls)}


def hopper(n=256):
    """A product in bfloat16 by Hopper's kernels, and by others."""
    import ml_dtypes
    a, b = (np.random.default_rng(k).standard_normal((n, n)).astype(ml_dtypes.bfloat16) for k in range(2))
    y = np.empty((n, n), np.float32)
    calls = {algo: lambda algo=algo: dnnkern.matmul(a, b, out=y, out_dtype="float32", algo=algo) for algo in ("wgmma", "blocked", "mma")}
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    for call in calls.values():
        call()
        _check(y, wanted, 1e-3)
    if torch := _torch():
        p, q = (torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (a, b))
        calls["torch"] = lambda: torch.matmul(p, q)
    return {f"matmul bfloat16 {n}^3": medians(calls)}


def convolutions():
    """A layer of ResNet on one image, channels last."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 56, 56, 64), (64, 3, 3, 64)))
    calls = {algo: lambda algo=algo: dnnkern.conv_fwd(x, w, padding=1, layout="NHWC", algo=algo)
             for algo in ("implicit_gemm", "winograd_nonfused", "direct", "naive")}
    if torch := _torch():
        p, q = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(w).permute(0, 3, 1, 2)
        calls["torch"] = lambda: torch.nn.functional.conv2d(p, q, padding=1)
        wanted = calls["torch"]().permute(0, 2, 3, 1).numpy()
        for algo in list(calls)[:4]:
            _check(calls[algo](), wanted, 1e-2)
    return {"conv_fwd 1x64x56x56 k64 3x3 p1 float32": medians(calls)}


def attention():
    """A forward pass of four heads."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 4, 512, 64)).astype(np.float32) for _ in range(3))
    calls = {"flash_simt": lambda: dnnkern.sdpa_fwd(q, k, v, algo="flash_simt")}
    if torch := _torch():
        p = [torch.from_numpy(x) for x in (q, k, v)]
        calls["torch"] = lambda: torch.nn.functional.scaled_dot_product_attention(*p)
        _check(calls["flash_simt"](), calls["torch"]().numpy(), 1e-4)
    return {"sdpa_fwd b1 h4 s512 d64 float32": medians(calls)}


@cuda.jit
def _barriers(y, n):
    for _ in range(n):
        cuda.syncthreads()
    y[i32(cuda.threadIdx.x)] = f32(n)


@cuda.jit
def _shuffles(y, n):
    v = i32(cuda.threadIdx.x)
    for _ in range(n):
        v = warp.shuffle_xor_sync(u32(0xFFFFFFFF), v, i32(1))
    y[i32(cuda.threadIdx.x)] = f32(v)


def waits(n=2000):
    """Nanoseconds a thread of a barrier and of a shuffle."""
    found = {}
    for name, kernel in (("barrier", _barriers), ("shuffle", _shuffles)):
        for threads in (32, 256, 1024):
            y = np.zeros(threads, np.float32)
            wall, cpu = medians({"": lambda: cpu_launch.launch_once(kernel, 1, threads, (y, n))})[""]
            found[f"{name}, {threads} threads, ns a thread"] = {"": (1e9 * wall / n / threads, 1e9 * cpu / n / threads)}
    return found


def compilations():
    """Seconds to compile a kernel in a process that has compiled others."""
    from dnnkern import dispatch
    found, problem = {}, dnnkern.problem("matmul", a=((256, 256), "float32"), b=((256, 256), "float32"))
    for name in ("tiled", "naive", "blocked"):
        algorithm = next(a for a in dispatch.algorithms("matmul") if a.name == name).configured(problem, device(0))
        launch, = algorithm.build(problem, device(0), algorithm.config)
        found[f"compile, matmul {name}, s"] = {"": taken(lambda: cpu_launch.cpu.compile_kernel(launch.kernel, launch.signature))}
    return {name: times for name, times in found.items() if "tiled" not in name}  # the first warms Numba's front end


def demos():
    """Seconds of the wall of the whole demo, and its accuracy."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing compiled", "again"):
            started = time.perf_counter()
            said = subprocess.run([sys.executable, "-m", "dnnkern", "demo"], capture_output=True, text=True, check=True,
                                  env={**os.environ, "DNNKERN_CACHE_DIR": folder}).stdout
            accuracy = re.search(r"test accuracy ([\d.]+) %", said)[1]
            found[f"demo, {name}, {accuracy} %"] = {"": (time.perf_counter() - started, None)}
    return found


def _check(got, wanted, tolerance):
    worst = np.abs(np.asarray(got) - wanted).max()
    if not worst <= tolerance:
        raise AssertionError(f"differs by {worst:.1e}, allowed {tolerance:.0e}")


def _torch():
    try:
        import torch
    except ImportError:
        return None
    return torch


def main(argv=None) -> int:
    """Measure and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.processor", description="Measure what the processor takes.")
    parser.add_argument("--demo", action="store_true", help="the demo as well: two minutes")
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    arguments = parser.parse_args(argv)
    if DEVICE != "cpu":
        parser.error(f"this process runs on {DEVICE}: set DNNKERN_DEVICE=cpu")
    found = {**compilations(), **products(), **hopper(), **convolutions(), **attention(), **waits(), **(demos() if arguments.demo else {})}
    print(f"{device(0).name}\n\n| what | | wall | CPU |\n|---|---|--:|--:|")
    for what, times in found.items():
        for name, (wall, cpu) in times.items():
            print(f"| {what} | {name} | {wall:.4g} | {'' if cpu is None else f'{cpu:.4g}'} |")
    if arguments.json:
        with open(arguments.json, "a") as file:
            file.write(json.dumps({"machine": machine(device(0)), "seconds": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
