"""The programs of examples/ and the examples in docs/ and README run, and show what their text says."""
import doctest
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from dnnkern.device import SIMULATED, cuda

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*.md"))
ERROR = r"\d\.\de-0[4-9]"  # of float32 sums of a few dozen numbers
GRADIENT = r"the gradient's norm is (0\.\d\d)\d\d, by differences of the loss \1\d\d\n"
DECODED = (r"'Beautiful is.*'\n'Although pra.*'\nfunctions that went back to PyTorch: none\n"
           r"decoding beside the full forward pass: largest difference of a logit (0\.0e\+00|\d\.\de-0[5-9]), largest logit \d+\.\d; ")
SAYS = {
    "quickstart.py": rf"^numba: DeviceArray \(32, 16\) on simulator, largest error against float64: {ERROR}\n(.*\n)*"
                     rf"\d results, largest error of all: {ERROR}\n$",
    "from_cudnn.py": r"^problem: conv_fwd 1x3x224x224 k64 3x3 s1 p1 float32 NCHW\nresult: \(1, 64, 224, 224\)\n"
                     r"PREFER_FASTEST: \w+\nNO_WORKSPACE: (\w+)\n(.*\n)*\1 +[\d.]+ ms predicted, 0 bytes\n(.*\n)*"
                     rf"pointwise +a filter of 9 taps.*\n(.*\n)*legacy, on simulator: .*: {ERROR}\nwithout tensor cores.*: {ERROR}\n"
                     rf"graph layer: 1 step(.*\n)*"
                     rf"graph, on simulator: largest error against float64: {ERROR}\n$",
    "choosing_algorithms.py": r"^matmul 64x64x64 float32 nn\n\* \w+ +[\d.]+ us predicted, \d+ bytes, chosen: \w+\n(.*\n)*"
                              r"(\d+) measured, \2 correct; the fastest: \w+\n"
                              rf"split_k within \d+ bytes: error {ERROR}\nsplit_k within (\d+) bytes: .*the limit is \3\n"
                              rf"any algorithm within 0 bytes: error {ERROR}\nwithout Winograd and FFT: direct, im2col_gemm, .*naive\n"
                              r"preferred: direct\n.* is FFT, which the caller excludes\nallow=NONE: atomic is NONDETERMINISTIC.*\n"
                              r"allow=NONDETERMINISTIC: atomic is a candidate\nthree runs bitwise identical: True\n$",
    "gemm_steps.py": r"^(step[1-6]_\w+ +\d+x\d+x\d+ on simulator: 0 of \d+ elements differ from NumPy\n){6}$",
    "tensor_core_gemm.py": r"^\d+x\d+x\d+ on simulator: bitwise identical to NumPy\n$",
    "race.py": r"Race: shared array s\[\d+\].*a syncthreads is missing between them\n(  thread .* at examples/race.py:.*\n){2}"
               r"(in kernel .*\n)?\n"  # 3.10 has no exception notes
               r"with the barrier: \[ 32640\..* expected: \[ 32640\.",
    "debug_kernel.py": r"^row 1 is 0\.000, expected -6\.998\n> .*debug_kernel\.py\(\d+\)row_max_stopped\(\)\n"
                       r"-> (best = max\(.*|breakpoint\(\))\n"  # which from Python 3.13 on
                       r"\(Pdb\) \(1, 39, 7\)\n\(Pdb\) \(0\.0, -6\.9976\d+\)\n\(Pdb\) fixed: largest error 0\.0\n$",
    "reproduce_nan.py": r"found: matmul 8x64x64 float16 nn \+ relu: output 0 holds 4 values that are not finite\n"
                        r"command: python -m dnnkern check matmul a=8x64:float16 b=64x64:float16 activation=relu --algo \w+\n"
                        r"(.*\n)*1 ran, .* All are correct\.\n"
                        r"exit code: 0\nlargest sum of the first layer: 79\d\d\d; float16 ends at 65504\n"
                        r"normalised: loss 4[45]\.\d+, in float64 44\.9817\n$",
    "graph_matmul_bias.py": rf"^\(1, 48, 40\), largest error against float64: {ERROR}\n$",
    "graph_convolution.py": r"^\(2, 3, 6, 5\) torch.float16, channels last: True, largest error over largest value: "
                            r"\d\.\de-04\n$",
    "graph_fused.py": r"^graph layer: 1 step(.|\n)* product \+ sum \+ gelu \+ layer +matmul(.|\n)*float64 by \de-0[5-9] at most\n$",
    "own_algorithm.py": rf"naive algorithm: {ERROR}\n\nmatmul 1x48x512.*\n  \* gemv +predicted.*\n    warp_dot +predicted(.|\n)*"
                        r"\nmatmul 512x512x512.*\n  \* (?!warp_dot)(.|\n)*warp_dot +operands and output are bfloat16",
    "char_lstm.py": r"^857 characters, an alphabet of 45\n" + GRADIENT + r"step 1: loss 3\.[78]\d\d\n"
                    r"step 40: loss ([01]|2\.[0-4])\.?\d*\nBeautiful is(.|\n)* -> ([01]|2\.[0-4])\.?\d* after 40 steps\n$",
    "gpt.py": r"^step 1: loss 5\.\d+\nstep 20: loss [012]\.\d+\n" + DECODED + r"loss 5\.\d+ -> [012]\.\d+\n$",
    "train_ddp.py": r"^epoch 1: loss [123]\.\d{4}, \d+ samples/s\n1 ranks on cpu; \d+ calls of rank 0 ran on dnnkern's kernels\n$",
    "torch_training.py": r"^step 0: loss 2\.\d{4}\nstep 1: loss [012]\.\d{4}\n$",
    "keras_training.py": r"^epoch 0: loss 0\.[6-9]\d+\n(.*\n){3}epoch 4: loss 0\.[0-3]\d+\n"
                         r"(9\d|100)\.\d% of 128 other images are recognised\n$",
}
IN_SIMULATOR = {  # smaller, for two steps
    "char_lstm.py": r"^857 characters, an alphabet of 45\n" + GRADIENT + r"(step [12]: loss 3\.[78]\d\d\n){2}Beautiful is",
    "gpt.py": r"^step 1: loss 4\.\d+\nstep 2: loss [34]\.\d+\n" + DECODED + r"loss 4\.\d+ -> [34]\.\d+\n$",
}
SIZES = {"graph_matmul_bias.py": ("48", "40", "24"), "graph_convolution.py": ("2", "8", "6", "5", "3"), "torch_training.py": ("2",),
         "char_lstm.py": ("40",), "gpt.py": ("20",),
         "train_ddp.py": ("--size", "8", "--samples", "8", "--batch", "4", "--width", "2", "--epochs", "1")}
RUN = {"torch_training.py": ("-m", "dnnkern", "run", "--simulate"),  # programs that are none of this library's
       "keras_training.py": ("-m", "dnnkern", "run", "--simulate"),
       "train_ddp.py": ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")}
NEEDS = {"graph_matmul_bias.py": "torch", "graph_convolution.py": "torch", "gpt.py": "torch", "torch_training.py": "torch",
         "keras_training.py": "keras", "train_ddp.py": "torch"}
SIMULATES = "race.py", "debug_kernel.py"  # wherever they run
TYPED = {"debug_kernel.py": "p row, k, lane_id()\np float(best), float(x[row * columns + k])\nc\n"}
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k != "DNNKERN_PREFER"},  # as their readers run them
               "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def test_every_example_is_here():
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == set(SAYS)


def need(name):
    """Skip an example whose framework is not installed."""
    for module in ("torch", "keras") if NEEDS.get(name) == "keras" else (NEEDS[name],) if name in NEEDS else ():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize("name", SAYS)
def test_example(name):
    need(name)
    if SIMULATED and name in RUN:
        pytest.skip("test_cpu_examples runs it")
    if not SIMULATED:
        if name in SIMULATES:
            pytest.importorskip("greenlet")
        if name in ("tensor_core_gemm.py", "gemm_steps.py") and cuda.get_current_device().compute_capability[0] != 9:
            pytest.skip("wgmma is Hopper's")
    small = SIMULATED and name in IN_SIMULATOR
    words = *RUN.get(name, ()), f"examples/{name}", *(("2",) if small else SIZES.get(name, ()))
    environment = {**ENVIRONMENT, "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""} if name in RUN else (
        ENVIRONMENT)  # with PyTorch seeing no GPU either
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120,
                          input=TYPED.get(name, ""))
    assert done.returncode == 0, done.stderr
    said = IN_SIMULATOR[name] if small else SAYS[name]
    if not SIMULATED:
        said = said.replace("simulator", "cuda").replace("DeviceArray", "DeviceNDArray")
    if name == "gemm_steps.py" and not SIMULATED:  # it times them, too
        said = said.removesuffix("$") + r"(cuBLAS is not timed.*\n)?(step[1-6]_\w+ +[\d.]+ TFLOP/s.*\n){6}(cuBLAS +[\d.]+ TFLOP/s.*\n)?$"
    assert re.search(said, done.stdout), done.stdout


def test_chart_of_gemm_steps(tmp_path):
    """What a GPU measured, drawn without one: a point for each step, as high as its rate."""
    image = pytest.importorskip("matplotlib.image")
    told = {"device": "a GPU", "sizes": [64, 64, 64], "tflops": {**{f"step{k}_x": 10.0 ** k for k in range(6)}, "cuBLAS": 3e5}}
    (tmp_path / "steps.json").write_text(json.dumps(told))
    done = subprocess.run([sys.executable, "examples/gemm_steps.py", "--read", tmp_path / "steps.json", "--png", tmp_path / "steps.png"],
                          capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"chart: {tmp_path / 'steps.png'}\n"
    pixels = image.imread(tmp_path / "steps.png")
    rows, columns = (abs(pixels[..., :3] - [0x4C / 255, 0x72 / 255, 0xB0 / 255]).max(axis=2) < 0.01).nonzero()
    points = [sorted(rows[columns == c]) for c in sorted(set(columns))]
    middles = [row for row, _ in itertools.groupby((p[len(p) // 2] for p in points), key=lambda row: row // 3)]  # columns of one point
    steps = [3 * (a - b) for a, b in itertools.pairwise(middles)]
    assert len(middles) == 6 and max(steps) - min(steps) <= 6 and min(steps) > 20, middles  # powers of ten, on a logarithmic axis


def test_examples_are_notebooks():
    """Percent format: a first cell of text with a title, and code after it. train_ddp.py is a program with options."""
    for name in set(SAYS) - {"train_ddp.py"}:
        text = (ROOT / "examples" / name).read_text()
        assert re.match(r"# %% \[markdown\]\n# # \S.*\n#\n# ", text) and "\n# %%\n" in text, name
        for cell in re.split(r"^# %%.*\n", text, flags=re.M)[1:]:
            assert cell.strip(), name
        assert "__file__" not in text, "a notebook has none"


CELL_BY_CELL = """
import linecache, re, sys
path, sys.argv = sys.argv[1], ["ipykernel_launcher.py", "-f", "kernel-1.json"]
cells = re.split(r"^# %%(.*)\\n", open(path).read(), flags=re.M)[1:]
for k, (mark, cell) in enumerate(zip(cells[::2], cells[1::2])):
    if "markdown" not in mark:
        linecache.cache[f"<cell {k}>"] = len(cell), None, cell.splitlines(True), f"<cell {k}>"
        exec(compile(cell, f"<cell {k}>", "exec"))
"""


@pytest.mark.parametrize("name", ["own_algorithm.py", "from_cudnn.py"])
def test_cell_by_cell(name):
    """As a notebook runs them: kernels have no file, and the arguments are the notebook's."""
    if not SIMULATED:
        pytest.skip("no other than in the simulator")
    done = subprocess.run([sys.executable, "-c", CELL_BY_CELL, f"examples/{name}"], capture_output=True, text=True, cwd=ROOT,
                          env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


def test_index_of_examples():
    """examples/README.md and README.md list all of them."""
    for page in ("examples/README.md", "README.md"):
        text = (ROOT / page).read_text()
        assert {name for name in SAYS if name not in text} == set(), page


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
    for page in set(PAGES) - {"docs/index.md", "docs/graph-cuts.md", "docs/releasing.md"}:
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
    assert len(pictures) == 8 and all((ROOT / path).is_file() for path in pictures)
    first = text[:text.index("<picture>")]
    assert len(first.splitlines()) < 45
    assert all(words in first for words in ("python -m dnnkern run train.py", 'backend="dnnkern"', "import dnnkern\n"))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^    make (\S+)", text, re.M)) <= set(targets)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "examples/README.md", *PAGES,
                                  *sorted(f"examples/{name}" for name in SAYS)])
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / page).read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
