"""The processor: its properties as a device, and the predicted time of a call."""
import json
import os
import time
from pathlib import Path

import numpy as np

from ..engine.cost import Cost
from .paths import cache_dir, read_json, write_atomically

_COPIED = 64 << 20  # bytes, past most caches
_SIDE = 768         # rows of the product that is timed


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def numbers() -> dict:
    """The fields of the processor as a `host.device.Device`, its rates measured once a machine: choices rest on them, and are to be the
    same in every process."""
    from ..device.cpu import machine
    folder = cache_dir()
    path = folder / "cpu" / machine.identity() / f"rates-{cores()}.json" if folder else None
    kept = read_json(path) if path is not None else None
    if not (isinstance(kept, dict) and all(isinstance(kept.get(k), float) and kept[k] > 0 for k in ("bandwidth", "rate", "clock"))):
        kept = {"bandwidth": _copy_rate(), "rate": _product_rate(), "clock": 1e6 * float(_fact("cpu MHz", "2000"))}
        if path is not None:
            write_atomically(path, json.dumps(kept).encode())
    return {"name": f"{_fact('model name', 'processor')}, {cores()} cores", "sms": cores(), "l2_bytes": _cache_bytes(),
            "clock_hz": kept["clock"], "bandwidth": kept["bandwidth"], "rate": kept["rate"],
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}


def _fact(name, default):
    """What Linux says of the first core."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return default
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), default)


def _cache_bytes():
    """Bytes of the largest cache."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) << 10)
    return max(sizes, default=8 << 20)


def _best(work, times=3):
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def _copy_rate():
    """Bytes a second, read and written, of a copy."""
    given, made = np.zeros(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)
    return 2 * _COPIED / _best(lambda: np.copyto(made, given))


def _product_rate():
    """Operations a second of NumPy's product in float32."""
    a = np.ones((_SIDE, _SIDE), np.float32)
    return 2 * _SIDE ** 3 / _best(lambda: a @ a)


# (operations a second, bytes a second, seconds to compile) of one core, by the algorithm's name, for some with its operation's before it:
# read off what `python -m bench.algorithms` fits to the calls of all algorithms on 41 problems, AMD EPYC at 2.6 GHz
# (bench/results/cpu-algorithms.jsonl). What threads do beside counting is in both rates, so they are far below the core's own.
_PACES = {
    "naive": (1.8e9, 1.2e9, 0.5), "sdpa_fwd/naive": (0.3e9, 1.2e9, 0.8), "sdpa_bwd/naive": (0.3e9, 1.2e9, 1.5),
    "rnn_fwd/naive": (2.5e9, 1.2e9, 1.6), "max_pool_bwd/naive": (1.8e9, 0.2e9, 0.5), "conv_bwd_filter/naive": (1.5e9, 1.2e9, 0.6),
    "blocked": (15e9, 2e9, 3.0), "split_k": (12e9, 2e9, 3.0), "tiled": (0.65e9, 2e9, 0.5), "mma": (3.6e9, 2e9, 2.5),
    "gemv": (1.4e9, 0.7e9, 1.3), "implicit_gemm": (12e9, 2e9, 4.5), "im2col_gemm": (8.5e9, 2e9, 3.0), "direct": (1.2e9, 2e9, 1.0),
    "winograd": (9e9, 2e9, 4.0), "winograd_nonfused": (11e9, 2e9, 4.5), "fft": (2e9, 2e9, 6.0), "fft_tiling": (5e9, 2e9, 4.5),
    "flash_simt": (5.5e9, 2e9, 4.0), "flash_mma": (2.2e9, 2e9, 4.0), "step": (2.3e9, 1.2e9, 3.0),
    "wgmma": (27e9, 2e9, 1.6), "wgmma_split_k": (27e9, 2e9, 1.6), "wgmma_stream_k": (27e9, 2e9, 1.6), "halo_wgmma": (24e9, 2e9, 2.1),
    "implicit_gemm_wgmma": (27e9, 2e9, 3.0), "slabs_wgmma": (21e9, 2e9, 2.0), "flash_wgmma": (24e9, 2e9, 3.5),
    "flash_wgmma_bf16x6": (5.6e9, 2e9, 4.1), "flash_wgmma_atomic": (21e9, 2e9, 4.0), "implicit_gemm_mma": (2.7e9, 2e9, 4.0),
    "channels": (1.8e9, 2.4e9, 1.2), "columns": (1.2e9, 1.2e9, 2.5), "chunks": (1.8e9, 4.6e9, 1.8), "vector": (1.8e9, 1.3e9, 1.4),
}
_OTHERS = 0.2e9, 0.5e9, 2.0
CALL, LONG = 1e-5, 1e-3  # seconds of a call; of what several cores share
CALLS = 300  # over which the time to compile is spread where an algorithm is chosen


def _pace(algorithm):
    return _PACES.get(f"{algorithm.op}/{algorithm.name}") or _PACES.get(algorithm.name) or _OTHERS


def cost(algorithm, problem, device, choosing=False) -> Cost:
    """What a call takes by an algorithm; `choosing`: and a share of the time to compile, whether the code is kept on disk or not."""
    operations, nbytes, compiling = _pace(algorithm)
    math, memory = getattr(problem, "flops", 0) / operations, problem.bytes / nbytes
    cores = device.sms if math + memory > LONG else 1
    return Cost(calls=CALL, math=math / cores, memory=memory / cores, **({"compile": compiling / CALLS} if choosing else {}))
