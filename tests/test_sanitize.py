"""The contract under compute-sanitizer (`--sanitize`): every access checked against the allocations, shared memory for races, barriers.

Set DNNKERN_TESTS_CACHE_DIR, and run the contract before: a process here is one algorithm's, and would compile for minutes.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cases
import pytest

from dnnkern import dispatch


def sanitizer():
    """compute-sanitizer of the PATH, or of the toolkit's usual place; None where there is none."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return found if Path(found).exists() else None


@pytest.fixture
def program(request, on_gpu):
    if not request.config.getoption("--sanitize"):
        pytest.skip("only with --sanitize")
    found = sanitizer()
    if found is None:
        pytest.skip("no compute-sanitizer")
    return found


def _run(program, tool, *command):
    # failed driver calls are not counted: cuInit makes some of its own;
    # without torch's cache every array is an allocation of its own, whose end the tool knows
    return subprocess.run([program, "--tool", tool, "--error-exitcode", "86", "--report-api-errors", "no", *command],
                          capture_output=True, text=True, env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


TOGETHER = 4  # algorithms of one process, which takes ten seconds before it begins
ALGORITHMS = [f"{op}-{'+'.join(a.name for a in every[k:k + TOGETHER])}" for op in cases.modules()
              for every in [dispatch.algorithms(op)] for k in range(0, len(every), TOGETHER)]


@pytest.mark.parametrize("algorithms", ALGORITHMS)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_contract(program, tool, algorithms, request):
    """One process for some algorithms of an operation and a tool, so that ``pytest -n`` may run several at once and ``-k`` choose."""
    # the others watch every access to shared memory: a hundred times slower
    small, most = ("", None) if tool == "memcheck" else (" and not large", 12)
    most = request.config.getoption("--sanitized") or most
    op, names = algorithms.split("-")
    rows = " or ".join(f"test_contract[{op}-{name}-" for name in names.split("+"))
    done = _run(program, tool, sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu and not slow", "-p", "no:cacheprovider",
                str(Path(__file__).with_name("test_contract.py")), "-k", f"({rows}){small}", *(["--each", str(most)] if most else []))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    said = {"racecheck": "RACECHECK SUMMARY: 0 hazards displayed"}.get(tool, "ERROR SUMMARY: 0 errors")
    assert " passed" in done.stdout and said in done.stdout + done.stderr, done.stdout[-4000:]


PROGRAM = """
import torch
from dnnkern.device import cuda, f32, i32
from dnnkern.host.launch import Argument, Executable, Launch

@cuda.jit(launch_bounds=32)
def matmul_beyond(y, n):
    y[i32(cuda.threadIdx.x + n)] = f32(1)

y = torch.zeros(32, device="cuda")
arguments = Argument("float32*", "y"), Argument("int32", 1 << 20)
Executable([Launch(matmul_beyond, (1, 1, 1), (32, 1, 1), arguments)], [("y", "pointer")], 0).execute((y.data_ptr(),), 0)
torch.cuda.synchronize()
"""


def test_memcheck_sees_our_kernels(program):
    """A kernel that writes behind its array is reported, and by name."""
    done = _run(program, "memcheck", sys.executable, "-c", PROGRAM)
    assert done.returncode != 0 and "Invalid __global__ write" in done.stdout + done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
