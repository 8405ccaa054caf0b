"""What the kernels of embeddings compile to: 16-byte accesses, loads in flight, no division, nothing in local memory."""
import re

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


def in_flight(code, width=128):
    """The most loads of so many bits between two additions of floats."""
    most, now = 0, 0
    for line in code.lines:
        if re.match(rf"LDG\.E\.{width}", line):
            now += 1
        elif re.match("F?D?ADD", line):
            now = 0
        most = max(most, now)
    return most


@pytest.mark.parametrize("words", ["50257x768 bf16 16x1024", "32000x4096 f32 4096 --indices int32", "1000x64 f64 512"])
def test_gradients_are_gathered_in_16_bytes(words):
    """Eight loads before the first sum; sums of slices, four."""
    found = kernels("embedding_bwd", words, "sorted")
    rows, slices = found["embedding_bwd_sorted"], found["embedding_slices"]
    sums = 1 if "f32" in words or "f64" in words else 2
    assert accesses(rows, "LDG")[128] == 8 + 4 * sums, "gradients of positions, sums of slices"
    assert set(accesses(rows, "STG")) == {128} and accesses(slices, "STG") == {128: sums}
    assert accesses(slices, "LDG")[128] == in_flight(slices) == 8 and in_flight(rows) >= 8 and rows.registers <= 64
    for code in found.values():
        assert not code.divisions and ("f64" in words or not code.doubles)


@pytest.mark.parametrize("words", ["50257x768 bf16 32", "50257x768 f32 32 --indices int32", "1000x64 f64 512"])
def test_few_gradients_are_gathered_in_16_bytes(words):
    code = kernels("embedding_bwd", words, "direct")["embedding_bwd_direct"]
    assert accesses(code, "LDG")[128] == in_flight(code) == 8 and set(accesses(code, "STG")) == {128}
    assert not code.divisions and ("f64" in words or not code.doubles) and code.registers <= 64


def test_sorting_has_loads_in_flight_and_no_division():
    found = kernels("embedding_bwd", "50257x768 bf16 16x1024", "sorted")
    tiles, lists = found["embedding_tiles"], found["embedding_sort"]
    assert accesses(tiles, "LDG")[64] == 4, "indices of a thread"
    for code in (tiles, lists):
        assert not code.divisions and not code.doubles and code.registers <= 48
