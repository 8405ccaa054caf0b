"""What reductions compile to: loads of 16 bytes, a flight of them at a time, registers alone, few instructions an element."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.engine.fold import IGNORES_ZEROS  # noqa: E402
from dnnkern.reduce._parse import parse_problem  # noqa: E402


def assembled(words, algo, op="reduce"):
    """The first kernel of the algorithm's likeliest configuration, and its launches."""
    target, problem = device("sm_90a"), parse_problem(words.split(), op)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None, algorithm.supports(problem)
    launches = algorithm.build(problem, target, algorithm.configured(problem, target).config)
    return machine_code(launches[0].kernel, launches[0].signature), launches


def mode_branches(words, op):
    """Whether what lies beyond the end of a walk must be left out, because a 0 would count."""
    return parse_problem(words.split(), op).fold not in IGNORES_ZEROS


def resident(code, launch):
    """Threads that a multiprocessor holds."""
    threads = launch.block[0]
    return min(65536 // (-(-code.registers // 8) * 8 * threads), 2048 // threads) * threads


@pytest.mark.parametrize("words, algo", [
    ("65536x4096 f32 add 1", "rows"), ("65536x4096 bf16 norm2 1", "rows"), ("65536x4096 f16 logsumexp 1", "rows"),
    ("65536x4096 f64 add 1", "rows"), ("134217728 bf16 amax", "two_stage"), ("64x256x56x56 f16 avg 0,2,3", "two_stage"),
    ("65536x1024 bf16 add 0", "two_stage"), ("4096x65536 f32 max 0", "columns"), ("4096x65536 bf16 logsumexp 0", "columns"),
    ("65536x4096 i8 add 1", "rows"), ("65536x4096 int32 max 1", "rows")])
def test_loads_have_16_bytes(words, algo):
    """Four at least before the first is used; 64 KB under way in a multiprocessor."""
    code, launches = assembled(words, algo)
    loads = accesses(code, "LDG")
    assert set(loads) == {128} and loads[128] >= 4 and loads[128] % 4 == 0, loads
    assert not code.divisions and (" f64 " in words or not code.doubles)
    assert resident(code, launches[0]) * 64 >= 64 << 10, code.registers


@pytest.mark.parametrize("op, mode", [("reduce", "add"), ("argreduce", "max")])
def test_rows_that_begin_anywhere_are_read_by_16_bytes(op, mode):
    """But for the elements at their ends."""
    code, _ = assembled(f"65536x4097 bf16 {mode} 1", "rows", op)
    loads = accesses(code, "LDG")
    assert loads[128] >= 4 and set(loads) == {128, 16}, loads


@pytest.mark.parametrize("words, algo, op, most", [
    ("65536x4096 bf16 add 1", "rows", "reduce", 4), ("65536x4096 bf16 max 1", "rows", "reduce", 5),
    ("65536x4096 bf16 norm2 1", "rows", "reduce", 9), ("65536x4096 bf16 logsumexp 1", "rows", "reduce", 10),
    ("65536x4096 bf16 max 1", "rows", "argreduce", 9), ("65536x4096 bf16 logsumexp 0", "columns", "reduce", 14)])
def test_instructions_of_an_element(words, algo, op, most):
    """Of 16-bit elements: a multiprocessor issues about 14 in the time that memory takes to bring one."""
    code, _ = assembled(words, algo, op)
    loads = [k for k, line in enumerate(code.lines) if line.startswith("LDG.E.128")]
    rest = range(loads[-1], len(code.lines))
    if mode_branches(words, op):  # round what is done with each load
        rest = range([k for k in rest if code.lines[k].startswith("BSYNC")][len(loads) - 1], len(code.lines))
    end = next(k for k in rest if code.lines[k].startswith("BRA"))
    assert 2 < (end - loads[0]) / (8 * len(loads)) <= most


def test_exponentials_are_one_an_element():
    code, _ = assembled("65536x4096 bf16 logsumexp 1", "rows")
    walk = 4 * (8 + 1)
    merges = 6 + 1 + 1  # lanes, warps, and the logarithm's
    assert walk <= code.count("MUFU.EX2") <= walk + merges + 4


@pytest.mark.parametrize("words", ["65536x1024 bf16 add 0", "134217728 bf16 add"])
def test_the_second_launch_is_small(words):
    """And prepared while the first runs."""
    first, launches = assembled(words, "two_stage")
    code = machine_code(launches[1].kernel, launches[1].signature)
    assert code.registers <= 40 and not code.doubles
    assert first.count("PREEXIT") == 1 == code.count("ACQBULK") and launches[1].dependent
    assert launches[1].grid[0] * launches[1].block[0] <= 1 << 16 < launches[0].grid[0] * launches[0].block[0]
