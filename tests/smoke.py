"""What runs on the Pythons that the other tests do not run on (`.ci/smoke`), with nothing installed but what `pip install .` brings and
pytest: every module is imported, every operation computes in the simulator, kernels of every family pass Numba's front end.

Host logic has tests of its own; `.ci/smoke` names those that run too.
"""
import os
import subprocess
import sys

import cases
import contract
import pytest
import sample

from dnnkern import dispatch

OPS = cases.modules()
TOGETHER = "blocked", "mma", "wgmma"  # algorithms of matmul whose threads share memory and wait for each other
LOWERED = [*{sample.family_of(op): (op, "naive") for op in OPS}.values(), *(("matmul", name) for name in TOGETHER)]


def algorithm_of(op, name):
    """An algorithm by its names."""
    return next(a for a in dispatch.algorithms(op) if a.name == name)


def least(op, able=lambda problem: True):
    """The case of an operation that is the least work, of those that are some."""
    found = [c for c in OPS[op].CASES if not c.problem().is_empty and able(c.problem())]
    return min(found, key=lambda c: (c.trivial, c.work < 100, c.work))


def program(statements, simulated):
    """Run statements in a process in which every warning is an error; what it prints."""
    tests = os.path.dirname(__file__)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": str(int(simulated)), "PYTHONPATH": os.pathsep.join([tests, os.path.dirname(tests)])}
    done = subprocess.run([sys.executable, "-W", "error", "-c", statements], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORTS = """
import importlib.util, pkgutil, dnnkern
names = [m.name for m in pkgutil.walk_packages(dnnkern.__path__, "dnnkern.") if {without!r} not in m.name and "__main__" not in m.name]
if importlib.util.find_spec("torch") is None:
    names = [name for name in names if not name.startswith(("dnnkern.torch", "dnnkern.graph.experimental.ops"))]
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("keras") is None:
    names = [name for name in names if not name.startswith("dnnkern.keras")]
if importlib.util.find_spec("jax") is None:
    names = [name for name in names if not name.startswith("dnnkern.jax")]
if importlib.util.find_spec("onnx") is None:
    names = [name for name in names if not name.startswith("dnnkern.onnx")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.parametrize("simulated, without", [(True, "._numba"), (False, ".device.sim")], ids=["simulator", "hardware"])
def test_every_module_is_imported(simulated, without):
    assert int(program(IMPORTS.format(without=without), simulated)) > 300


@pytest.mark.parametrize("op", OPS)
def test_an_operation_by_naive_and_by_what_a_gpu_chooses(op):
    case = least(op)
    for name in dict.fromkeys(("naive", dispatch.get_algorithm(op, case.problem(), prefer="device").name)):
        contract.check(algorithm_of(op, name), case, only="exact")


@pytest.mark.parametrize("name", TOGETHER)
def test_a_product_by_threads_that_work_together(name):
    algorithm = algorithm_of("matmul", name)
    contract.check(algorithm, least("matmul", lambda p: contract.refusal(algorithm, p) is None), only="exact")


LOWERING = """
import smoke
from dnnkern.device._numba_compile import compile_llvm
from dnnkern.host.device import _SIMULATOR as hopper
for op, name in smoke.LOWERED:
    algorithm = smoke.algorithm_of(op, name)
    problem = smoke.least(op, lambda p: algorithm.refusal(p, hopper) is None).problem()
    algorithm = algorithm.configured(problem, hopper)
    for launch in algorithm.build(problem, hopper, algorithm.config):
        assert "define" in compile_llvm(launch.kernel, launch.signature, hopper.arch)
    print(algorithm)
"""


def test_numba_lowers_kernels():
    """Down to the text that NVVM would be given: the part of the compiler that depends on Python, and needs no toolkit."""
    assert len(program(LOWERING, simulated=False).splitlines()) == len(LOWERED)
