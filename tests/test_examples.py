"""The programs of examples/ and the examples in docs/ and README run, and show what their text says."""
import doctest
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

from dnnkern.device import SIMULATED, cuda

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*.md"))
SAYS = {
    "matmul.py": r"a DeviceArray of float32 \(64, 32\) on simulator\nlargest error against float64: \d\.\de-0[5-9]\n$",
    "tensor_core_gemm.py": r"^\d+x\d+x\d+ on simulator: bitwise identical to NumPy\n$",
    "race.py": r"Race: shared array s\[\d+\].*a syncthreads is missing between them\n(  thread .* at examples/race.py:.*\n){2}"
               r"(in kernel .*\n)?\n"  # 3.10 has no exception notes
               r"with the barrier: \[ 32640\..* expected: \[ 32640\.",
    "graph_matmul_bias.py": r"^\(1, 48, 40\), largest error against float64: \d\.\de-0[5-9]\n$",
    "graph_convolution.py": r"^\(2, 3, 6, 5\) torch.float16, channels last: True, largest error over largest value: "
                            r"\d\.\de-04\n$",
    "graph_fused.py": r"^graph layer: 1 step(.|\n)* product \+ sum \+ gelu \+ layer +matmul(.|\n)*float64 by \de-0[5-9] at most\n$",
    "own_algorithm.py": r"naive algorithm: \d\.\de-0[4-9]\n(.|\n)* warp_dot +predicted(.|\n)*warp_dot +operands and output are bfloat16",
    "train_ddp.py": r"^epoch 1: loss [123]\.\d{4}, \d+ samples/s\n1 ranks on cpu; \d+ calls of rank 0 ran on dnnkern's kernels\n$",
    "torch_training.py": r"^step 0: loss 2\.\d{4}\nstep 1: loss [012]\.\d{4}\n$",
}
SIZES = {"graph_matmul_bias.py": ("48", "40", "24"), "graph_convolution.py": ("2", "8", "6", "5", "3"), "torch_training.py": ("2",),
         "train_ddp.py": ("--size", "8", "--samples", "8", "--batch", "4", "--width", "2", "--epochs", "1")}
RUN = {"torch_training.py": ("-m", "dnnkern", "run", "--simulate"),  # programs that are none of this library's
       "train_ddp.py": ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")}
TORCH = "matmul.py", "graph_matmul_bias.py", "graph_convolution.py"
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k != "DNNKERN_PREFER"},  # as their readers run them
               "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def test_every_example_is_here():
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name):
    if not SIMULATED:
        pytest.importorskip("torch" if name in TORCH else "greenlet" if name == "race.py" else "numpy")
        if name == "tensor_core_gemm.py" and cuda.get_current_device().compute_capability[0] != 9:
            pytest.skip("wgmma is Hopper's")
    if name in SIZES:
        pytest.importorskip("torch")
    words = *RUN.get(name, ()), f"examples/{name}", *SIZES.get(name, ())
    environment = {**ENVIRONMENT, "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_DEVICE": "cpu"} if name in RUN else ENVIRONMENT
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    said = SAYS[name] if SIMULATED else SAYS[name].replace("simulator", "cuda").replace("DeviceArray", "DeviceNDArray")
    assert re.search(said, done.stdout), done.stdout


@pytest.mark.parametrize("path", PAGES)
def test_examples_in_docs(path, simulated):
    """In a process of its own: a page may register algorithms or change the simulator's settings."""
    for name in ("torch", "keras", "jax", "transformers", "onnx"):
        if re.search(rf"^>>> import {name}\b", (ROOT / path).read_text(), re.M) and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    done = subprocess.run([sys.executable, "-m", "doctest", "-o", "ELLIPSIS", path], capture_output=True, text=True, cwd=ROOT,
                          env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docs_have_examples():
    parser = doctest.DocTestParser()
    for page in set(PAGES) - {"docs/index.md", "docs/graph-cuts.md"}:
        assert parser.get_examples((ROOT / page).read_text()), page


def readme_programs():
    """The Python blocks of README.md: each is a whole program."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_readme_program(simulated):
    """That of PyTorch runs on the processor and on GPUs, in test_cpu_examples."""
    programs = [program for program in readme_programs() if "import torch" not in program]
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT,
                              timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_readme_shows_what_there_is():
    """Pictures exist, and the first screen has the three ways in."""
    text = (ROOT / "README.md").read_text()
    pictures = re.findall(r'(?:srcset|src)="([^"]+)"', text)
    assert len(pictures) == 6 and all((ROOT / path).is_file() for path in pictures)
    first = text[:text.index("<picture>")]
    assert len(first.splitlines()) < 45
    assert all(words in first for words in ("python -m dnnkern run train.py", 'backend="dnnkern"', "import dnnkern\n"))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^    make (\S+)", text, re.M)) <= set(targets)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / page).read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
