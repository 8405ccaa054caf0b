"""The programs of examples/, the one of README and the examples of docs/ on the processor."""
import re
import subprocess
import sys

import pytest
from test_examples import ENVIRONMENT, PAGES, ROOT, RUN, SAYS, SIMULATES, SIZES, need, readme_programs

# What only the simulator has, or what a Hopper GPU would choose.
OTHERS = {"docs/device.md", "docs/matmul.md", "docs/index.md"}


def _run(*words):
    return subprocess.run([sys.executable, "-W", "error", *words], capture_output=True, text=True, cwd=ROOT, timeout=300,
                          env={**ENVIRONMENT, "DNNKERN_DEVICE": "cpu"})


@pytest.mark.parametrize("name", sorted(set(SAYS) - set(SIMULATES)))
def test_example(name):
    need(name)
    done = _run(*RUN.get(name, ()), f"examples/{name}", *SIZES.get(name, ()))
    assert done.returncode == 0, done.stderr
    said = SAYS[name].replace("simulator", "cpu")
    if name == "own_algorithm.py":  # the processor asks no estimates: another one is chosen
        said = said.replace(r"  \* warp_dot", r"(.|\n)*    warp_dot")
    assert re.search(said, done.stdout), done.stdout


@pytest.mark.parametrize("place", range(2))
def test_readme_program(place):
    program = readme_programs()[place]
    torch = "import torch" in program
    if torch:
        pytest.importorskip("torch")
        program += TOLD
    done = _run(*(["-W", "ignore"] if torch else []), "-c", program)
    assert done.returncode == 0 and done.stdout.strip().startswith("compiled 1 True" if torch else "(32, 16) float32"), done.stderr


# What the program of PyTorch does not print: its gradients are float64's, and parts ran on this library's kernels.
TOLD = """
import copy, dnnkern.torch
told = dnnkern.torch.explain(model)
plain = copy.deepcopy(model._orig_mod).double()
x = torch.randn(16, 64)
for one, given in ((model, x), (plain, x.double())):
    one.zero_grad()
    one(given).square().mean().backward()
pairs = zip(model.parameters(), plain.parameters())
print("compiled", told.graphs, bool(told.parts) and all(torch.allclose(a.grad.double(), b.grad, atol=1e-6) for a, b in pairs))
"""


def test_readme_commands(tmp_path):
    """Commands of README.md, as far as they need no GPU and take no minutes, on a program of three lines."""
    pytest.importorskip("torch")
    commands = re.findall(r"^    (?:\$ )?python -m (dnnkern .*?)(?: {2,}#.*)?$", (ROOT / "README.md").read_text(), re.M)
    assert {words.split()[1] for words in commands} == {"run", "explain"}
    program = tmp_path / "train.py"
    program.write_text("import torch\nlayer = torch.nn.Linear(4, 3).cuda()\nlayer(torch.ones(2, 4, device='cuda')).sum().backward()\n"
                       "print(layer.bias.grad.tolist())\n")
    for words in commands:
        done = _run("-W", "ignore", "-m", *words.replace("train.py", str(program)).split())
        if "run train.py" in words:  # on a GPU
            assert done.returncode == 1 and "cuda" in done.stderr.lower()
        else:
            assert done.returncode == 0, done.stderr
            assert ("[2.0, 2.0, 2.0]" if " run " in words else "* what a call runs") in done.stdout
            assert "--report" not in words or "addmm" in done.stderr and "2 calls of 2 operators ran on its kernels" in done.stderr


def test_readme_variables(tmp_path):
    """What README.md sets for a run of a program does what it says: on a program whose product has an infinite element."""
    pytest.importorskip("torch")
    given = re.findall(r"`(DNNKERN_\w+)=(\w+) python -m dnnkern run train\.py`", (ROOT / "README.md").read_text())
    assert sorted(given) == [("DNNKERN_CHECK", "nan"), ("DNNKERN_LOG", "dispatch")]
    program = tmp_path / "train.py"
    program.write_text("import torch\na = torch.eye(3)\na[1, 2] = 2e38\nprint((a @ a).isinf().sum().item())\n")
    said = {}
    for name, value in given:
        done = subprocess.run([sys.executable, "-m", "dnnkern", "run", str(program)], capture_output=True, text=True, cwd=ROOT, timeout=120,
                              env={**ENVIRONMENT, "DNNKERN_DEVICE": "cpu", name: value})
        said[name] = done
    assert said["DNNKERN_LOG"].returncode == 0 and said["DNNKERN_LOG"].stdout == "1\n"
    found = said["DNNKERN_LOG"].stderr
    assert re.search(r"^dnnkern\.dispatch: matmul 3x3x3 float32 nn -> matmul/naive \(predicted [\d.]+ ms\)  python -m dnnkern explain "
                     r"matmul a=3x3:float32 b=3x3:float32$", found, re.M)
    found = said["DNNKERN_CHECK"].stderr
    assert said["DNNKERN_CHECK"].returncode == 1 and "matmul 3x3x3 float32 nn: 1 of 9 values of output 0 are not finite" in found
    assert "the first at (1, 2): inf\n  of its operands none has such values\n" in found
    assert "python -m dnnkern check matmul a=3x3:float32 b=3x3:float32 --algo naive" in found


def test_pages_name_files_that_exist():
    pattern = r"\b(?:examples|tests|bench|dnnkern)/[\w/]+\.(?:py|md|jsonl)\b"
    named = {(path, file) for path in PAGES for file in re.findall(pattern, (ROOT / path).read_text())}
    missing = {(path, file) for path, file in named if not (ROOT / file).exists()}
    assert len(named) > 20 and missing == {("docs/algorithm.md", "dnnkern/softmax/softmax_fwd_one_warp.py")}  # which its reader writes


@pytest.mark.parametrize("path", sorted({*PAGES} - OTHERS))
def test_examples_in_docs(path):
    for name in ("torch", "jax", "transformers", "onnx"):
        if re.search(rf"^>>> import {name}\b", (ROOT / path).read_text(), re.M):
            pytest.importorskip(name)
    done = _run("-m", "doctest", "-o", "ELLIPSIS", path)
    assert done.returncode == 0, done.stdout + done.stderr
