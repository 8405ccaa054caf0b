"""What the kernels of attention and of rotary embeddings compile to: 16-byte accesses, no stray float64, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import Assembled  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.attention._parse import parse_problem  # noqa: E402


def assembled(op, words, algo, folder, most=1, arch="sm_90a"):
    """(algorithm bound to a configuration, [(name of a kernel, its code, launch), ...]) of the most promising configurations."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None
    for variant in algorithm.variants(problem, target)[:most]:
        yield variant, [(launch.kernel.py_func.__name__, Assembled(launch.kernel, launch.signature, arch, folder), launch)
                        for launch in variant.build(problem, target, variant.config)]


@pytest.mark.parametrize("words, loads", [("4x32x4096x128 bf16", 4), ("4x4096x32x128 bf16 --heads-inside --interleaved", 4),
                                          ("4x32x4096x128 f32 --in-place", 4), ("4x32x4096x128 f16 --angles f32", 6)])
def test_rows_are_turned_16_bytes_at_a_time(words, loads, tmp_path):
    """Two halves of a row, cosines and sines: each once; nothing is divided."""
    (_, [(_, code, _)]), = assembled("rope_fwd", words, "rows", tmp_path)
    assert accesses(code, "LDG") == {128: loads} and accesses(code, "STG") == {128: 2}
    assert ".f64" not in code.ptx and "div." not in code.ptx and "rem." not in code.ptx
    assert code.registers <= 64
