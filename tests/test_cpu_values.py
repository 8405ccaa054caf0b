"""Tests of values at sizes that only take time in the simulator: marked `sized` where they are written, run here on the processor.

A test of many small kernels is no cheaper here: compiling them, for every algorithm and dtype, takes longer than simulating them.
"""
import pathlib

import test_embedding
import test_rnn
import test_transform_resample
from kit import sized

for module in (test_embedding, test_rnn, test_transform_resample):
    globals().update(sized(module))
# In files that are skipped where what they need is not installed: test_cpu_demo.py, test_cpu_jax.py, test_cpu_torch_*.py.
ELSEWHERE = {"test_demo", "test_jax", "test_jax_bench", "test_jax_enable", "test_onnx", *(f"test_torch_{name}" for name in (
    "above", "compile", "compile_joined", "compile_random", "convert", "distributed", "functional", "keras", "modules_optim", "nn",
    "operators", "optim", "overrides", "programs", "run", "table", "train_ddp", "transformers"))}


def test_nothing_that_is_marked_is_left_out():
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    marked = {path.stem for path in files if "pytest.mark." + "sized" in path.read_text()}
    assert marked == {test_embedding.__name__, test_rnn.__name__, test_transform_resample.__name__} | ELSEWHERE
