"""What the kernels of embeddings compile to: 16-byte accesses, loads in flight, no division, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.embedding._parse import parse_problem  # noqa: E402


def kernels(op, words, algo, arch="sm_90a"):
    """The code of each kernel by name."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None
    return {launch.kernel.py_func.__name__: machine_code(launch.kernel, launch.signature, arch)
            for launch in algorithm.build(problem, target, algorithm.configured(problem, target).config)}


@pytest.mark.parametrize("words, flight", [("50257x768 bf16 16x1024", 2), ("32000x4096 f32 4096 --indices int32", 2),
                                           ("1000x64 f64 512", 1)])
def test_rows_are_copied_in_16_bytes(words, flight):
    """As many loads and stores of a thread as its configuration says; the indices are short ones."""
    code = kernels("embedding_fwd", words, "rows")["embedding_fwd_rows"]
    assert accesses(code, "LDG")[128] == accesses(code, "STG")[128] == flight
    assert not code.divisions and not code.doubles and code.registers <= 40


@pytest.mark.parametrize("words", ["50257x768 bf16 16x1024", "32000x4096 f32 4096 --indices int32", "1000x64 f64 512"])
def test_gradients_are_gathered_in_16_bytes(words):
    found = kernels("embedding_bwd", words, "sorted")
    rows, slices = found["embedding_bwd_sorted"], found["embedding_slices"]
    sums = 4 if "f32" in words or "f64" in words else 8
    assert accesses(rows, "LDG")[128] == 4 + sums, "gradients of positions, sums of slices"
    assert accesses(rows, "STG") == {128: 1} and accesses(slices, "STG") == {128: sums // 4}
    assert accesses(slices, "LDG")[128] == 4
    for code in found.values():
        assert not code.divisions and ("f64" in words or not code.doubles)


def test_sorting_has_loads_in_flight_and_no_division():
    code = kernels("embedding_bwd", "50257x768 bf16 16x1024", "sorted")["embedding_sort"]
    assert accesses(code, "LDG")[64] == 8, "four indices of a thread, twice"
    assert not code.divisions and not code.doubles and code.registers <= 64
