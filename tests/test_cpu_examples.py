"""The programs of examples/, the one of README and the examples of docs/ on the processor."""
import re
import subprocess
import sys

import pytest
from test_examples import ENVIRONMENT, PAGES, ROOT, RUN, SAYS, SIZES

# What only the simulator has, or what a Hopper GPU would choose.
OTHERS = {"docs/device.md", "docs/matmul.md", "docs/index.md"}


def _run(*words):
    return subprocess.run([sys.executable, "-W", "error", *words], capture_output=True, text=True, cwd=ROOT, timeout=300,
                          env={**ENVIRONMENT, "DNNKERN_DEVICE": "cpu"})


@pytest.mark.parametrize("name", ["matmul.py", "own_algorithm.py", "tensor_core_gemm.py", *SIZES])
def test_example(name):
    if name in SIZES:
        pytest.importorskip("torch")
    done = _run(*RUN.get(name, ()), f"examples/{name}", *SIZES.get(name, ()))
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name].replace("simulator", "cpu"), done.stdout), done.stdout


def test_readme_program():
    done = _run("-c", re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1])
    assert done.returncode == 0 and done.stdout.strip().startswith("(32, 16) float32"), done.stderr


@pytest.mark.parametrize("path", sorted({*PAGES} - OTHERS))
def test_examples_in_docs(path):
    for name in ("torch", "jax", "transformers"):
        if re.search(rf"^>>> import {name}\b", (ROOT / path).read_text(), re.M):
            pytest.importorskip(name)
    done = _run("-m", "doctest", "-o", "ELLIPSIS", path)
    assert done.returncode == 0, done.stdout + done.stderr
