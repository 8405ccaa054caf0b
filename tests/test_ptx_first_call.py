"""The first call of a process on a GPU whose kernels are on disk, with a driver that does nothing in the GPU's place."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_CALL = """
import json, os, re, sys
import numpy as np
before, opened, calls = set(sys.modules), [], [0]
# a module once, whether or not there may be bytecode of it
FORMS = r"__pycache__/|(\\.cpython-\\d+)?\\.pyc?$"
sys.addaudithook(lambda event, args: opened.append(re.sub(FORMS, "", str(args[0]))) if event == "open" else None)
import stub_gpu
import dnnkern
from dnnkern.host import manifest
gpu = stub_gpu.install()
manifest.SETTLED = 0
a, b, y = (stub_gpu.Array(1024, 1024) for _ in range(3))
sys.setprofile(lambda frame, event, arg: calls.__setitem__(0, calls[0] + (event == "call")))
assert dnnkern.matmul(a, b, out=y) is y
sys.setprofile(None)
assert not gpu.wrong and gpu.loaded[0] == b"\\x7fELF" and len(gpu.launched) == 1, (gpu.wrong, gpu.loaded, gpu.launched)
names = sorted(set(sys.modules) - before)
child = os.fork()
if not child:
    dnnkern.matmul(a, b, out=y)
    os._exit(gpu.wrong != [] or len(gpu.launched) != 2)
assert os.waitpid(child, 0)[1] == 0
print(json.dumps({"compilers": [name for name in ("numba", "llvmlite", "cuda", "cuda.core", "cuda.bindings") if name in sys.modules],
                  "own": len([name for name in names if name.startswith("dnnkern")]), "others": len(names), "opened": len(set(opened)),
                  "calls": calls[0],
                  "algorithms": [name for name in names if name.startswith(("dnnkern.matmul.matmul_", "dnnkern.matmul.grouped_"))]}))
"""


PACK = """
import pathlib, sys
import dnnkern
from dnnkern import _pack
from dnnkern.host import manifest, packs
from dnnkern.host.compiler import Job
from dnnkern.host.device import described
manifest.SETTLED = 0
cache, device = pathlib.Path(sys.argv[1]), described("sm_90a")
operand = (1024, 1024), "float32"
problem = dnnkern.problem("matmul", a=operand, b=operand, out=operand)
kernel, = Job(problem.op, problem, device).kernels()
kernel.compile()
packs.write(cache / "one.pack", {bytes.fromhex(kernel.pack_key): (cache / kernel.file).read_bytes()}, _pack.choices_of([problem], device),
            archs=["sm_90a"], versions={}, sources=_pack.sources())
"""


def python(cache, *words):
    """What a process prints that has this cache directory."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=ROOT, env={
        **{k: v for k, v in os.environ.items() if k != "DNNKERN_DEVICE"}, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def first_call(cache):
    return json.loads(python(cache, "-c", FIRST_CALL))


def test_a_process_that_finds_its_kernels_imports_no_compiler(tmp_path):
    """The second one meets no compiler at all, and is held to a budget."""
    first, second = first_call(tmp_path), first_call(tmp_path)
    assert first["compilers"] == ["numba", "llvmlite", "cuda", "cuda.core", "cuda.bindings"] and len(first["algorithms"]) > 8
    assert second["compilers"] == [] and len(second["algorithms"]) == 1, second
    assert second["own"] <= 83 and second["others"] <= 100 and second["opened"] <= 106 and second["calls"] <= 29000, second
    assert len(list(tmp_path.glob("cubin/sm_90a/*.cubin"))) == 1


def test_nor_does_one_that_has_a_pack(tmp_path):
    """Which has the choice too: a single algorithm is imported, and nothing is kept."""
    made, served = tmp_path / "made", tmp_path / "served"
    python(made, "-c", PACK, made)
    assert python(served, "-m", "dnnkern", "cache", "import", made / "one.pack") == "1 kernels and 1 choices for sm_90a are imported\n"
    found = first_call(served)
    assert found["compilers"] == [] and found["algorithms"] == ["dnnkern.matmul.matmul_blocked"] and found["others"] <= 107, found
    assert not list(served.glob("cubin/*/*")) and not list(served.glob("chosen/*/*"))
