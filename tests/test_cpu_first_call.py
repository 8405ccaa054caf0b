"""What a process imports until its first call has run, where the kernel is on disk; and that the light objects stand for Numba's."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dnnkern.device import _light, cuda, device_function, f32, f64, i32, jit, u32, vec

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_CALL = """
import json, re, sys
import numpy as np
before, opened = set(sys.modules), []
# a module once, whether or not there may be bytecode of it
FORMS = r"__pycache__/|(\\.cpython-\\d+)?\\.pyc?$"
sys.addaudithook(lambda event, args: opened.append(re.sub(FORMS, "", str(args[0]))) if event == "open" else None)
import dnnkern
from dnnkern.host import manifest
manifest.SETTLED = 0
x = np.ones((64, 64), np.float32)
assert np.allclose(dnnkern.softmax_fwd(x), 1 / 64)
assert np.allclose(dnnkern.matmul(x, x), 64)
names = sorted(set(sys.modules) - before)
print(json.dumps({"compilers": [name for name in ("numba", "llvmlite", "cuda.core") if name in sys.modules],
                  "own": len([name for name in names if name.startswith("dnnkern")]), "others": len(names), "opened": len(set(opened)),
                  "algorithms": [name for name in names if name.startswith(("dnnkern.softmax.softmax_", "dnnkern.softmax.rows.",
                                                                            "dnnkern.matmul.matmul_", "dnnkern.matmul.grouped_"))]}))
"""


def python(code, **environment):
    """What a fresh process on the processor prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "DNNKERN_DEVICE": "cpu", **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_that_finds_its_kernels_imports_no_compiler(tmp_path):
    """Nor any algorithm but those that are chosen; what else it does is held to a budget."""
    first, second = (json.loads(python(FIRST_CALL, DNNKERN_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert first["compilers"] == ["numba", "llvmlite", "cuda.core"] and len(first["algorithms"]) > 8
    assert second["compilers"] == [] and len(second["algorithms"]) == 2, second
    assert second["own"] <= 96 and second["others"] <= 117 and second["opened"] <= 131, second


def test_a_forced_algorithm_is_the_only_one_imported(tmp_path):
    code = FIRST_CALL.replace("dnnkern.softmax_fwd(x)", "dnnkern.softmax_fwd(x, algo='naive')").replace("matmul(x, x)",
                                                                                                        "matmul(x, x, algo='naive')")
    for _ in range(2):
        said = json.loads(python(code, DNNKERN_CACHE_DIR=str(tmp_path)))
    assert said["compilers"] == [] and said["algorithms"] == ["dnnkern.matmul.matmul_naive", "dnnkern.softmax.softmax_naive"]


def test_numba_looks_for_blas_when_somebody_asks():
    """To import what compiles does not import SciPy's. Who multiplies arrays in a kernel finds what Numba finds by itself."""
    said = python("""
import sys
from dnnkern.device import numba_cuda
numba_cuda()
before = "scipy.linalg" in sys.modules
from numba.cuda.np import arraymath, linalg
print(before, arraymath.ensure_blas is linalg.ensure_blas, bool(arraymath._HAVE_BLAS) is arraymath._check_blas())
""")
    assert said == "False True True"


def test_importing_kernels_imports_no_numba():
    assert python("import sys, dnnkern; [dnnkern.dispatch.algorithms()]; print('numba' in sys.modules)") == "False"


def test_programs_that_name_numba_directly():
    """Where numba.cuda is imported first its host functions need no GPU either, and its `jit` takes what kernels name here."""
    code = """
from numba import cuda
from dnnkern.device import device_function, f32, i32, vec
from dnnkern.device import cuda as light

@device_function
def twice(x):
    return f32(2) * x

@cuda.jit
def kernel(x):
    i = i32(light.threadIdx.x)
    x[i] = twice(x[i])

x = cuda.to_device([1.0, 2.0])
kernel[1, 2](x)
print(x.copy_to_host(), light.to_device is cuda.to_device)
"""
    assert python(code) == "[2. 4.] True"


def test_what_light_objects_stand_for():
    from numba import cuda as numba_cuda
    from numba.cuda import types
    assert f32.made is types.float32 and f32[:] == types.float32[:] and i32(3.0) == 3 and type(i32(3)) is np.int32
    assert cuda.threadIdx is numba_cuda.threadIdx and cuda.__name__ == "numba.cuda" and "syncthreads" in dir(cuda)
    assert vec.load4.made is vec.load4.made and type(vec.load4.made).__name__ == "_Intrinsic"
    with pytest.raises(AttributeError, match="no_such_name"):
        cuda.no_such_name
    with pytest.raises(AttributeError, match="no_such_name"):
        f64.no_such_name


def test_kernels_are_light_and_can_be_called():
    @jit(launch_bounds=32)
    def kernel(x, n):
        """Words."""
        i = i32(cuda.threadIdx.x)
        if i < n:
            x[i] += f32(i)
    assert isinstance(kernel, _light.Function) and (kernel.__name__, kernel.__doc__) == ("kernel", "Words.")
    assert kernel.targetoptions == {"launch_bounds": 32} and "kernel" in repr(kernel)
    x = cuda.to_device(np.zeros(4, np.float32))
    kernel[1, 32](x, 4)
    assert x.copy_to_host().tolist() == [0, 1, 2, 3]
    assert type(kernel.made).__name__ == "CUDADispatcher" and kernel.made is kernel.made


def test_jit_forms():
    def f(x):
        return x
    assert cuda.jit(f).targetoptions == {} and cuda.jit(f, True).targetoptions == {"device": True}
    assert cuda.jit(device=True)(f).targetoptions == {"device": True} and cuda.jit(launch_bounds=4)(f).targetoptions == {"launch_bounds": 4}
    assert device_function(f).targetoptions == {"device": True, "forceinline": True} and device_function(f).py_func.__name__ == "f"
    with pytest.raises(Exception, match="CUDA driver library cannot be found"):
        cuda.jit("float32(float32)", device=True)(f)  # Numba's own, which compiles at once for the GPU at hand
    assert repr(u32) == "uint32" and "load4" not in repr(vec.load4) and "vector_load(4" in repr(vec.load4)
