"""What the kernels of programs with reductions compile to: a row is in registers, and nothing else."""
import pytest
import sass

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx import device  # noqa: E402

from dnnkern.fused._parse import parse_problem  # noqa: E402

SOFTMAX, NORM = "sub@row-max exp div@row-add", "sub@row-avg div@row-norm2 mul@4096 add@4096"
TEN = "mul@4096 add@8192x4096 relu mul@8192x4096 add@0.5 swish mul@0.25 add@8192x4096 abs sqrt --rows add,amax"


@pytest.mark.parametrize("words, instructions", [
    (f"8192x4096 bf16 {SOFTMAX}", 24), (f"8192x4096 f32 {SOFTMAX}", 40), (f"8192x4096 bf16 {NORM}", 26), (f"8192x4096 bf16 {TEN}", 110),
    ("8192x4095 bf16 abs --rows amax", 60)])
def test_rows_are_registers(words, instructions):
    """No local memory, no call, nothing spilled, in the configuration that is chosen; so many instructions of an element at most."""
    problem = parse_problem(words.split(), "fused_reduction")
    rows = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "rows").configured(problem, device("sm_90a"))
    (launch,), config = rows.build(problem, device("sm_90a"), rows.config), rows.config
    code = sass.assembled(launch.kernel, launch.signature, "sm_90a")
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert len(code.lines) <= instructions * config.lanes * config.chunks.elements, (len(code.lines), str(config))
    assert not code.doubles
    if config.cover == "even":
        inputs = len(problem.inputs) * config.lanes
        assert len(code.opcodes("LDG.E.128")) == inputs, "each input is read once, 16 bytes at a time"


def test_parts_of_rows_are_registers():
    """Of all launches: a level, and the results."""
    problem = parse_problem("1x67108864 bf16 div@row-amax mul@0.5".split(), "fused_reduction")
    split = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "split").configured(problem, device("sm_90a"))
    launches = split.build(problem, device("sm_90a"), split.config)
    assert len(launches) == 2
    for launch in launches:
        code = sass.assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
        assert len(code.opcodes("LDG.E.128")) == split.config.lanes


@pytest.mark.parametrize("words, registers, instructions", [
    ("64x56x56x256 f16 mul@256 add@256 relu --rows add,sum_square --axes 0,1,2", 80, 30),
    ("16384x4096 bf16 mul@16384x4096 --rows add --axes 0", 80, 22),
    ("16384x4096 f32 sub@row-avg div@row-norm2 mul@4096 --axes 0", 64, 34)])
def test_columns_are_registers(words, registers, instructions):
    """Of all launches: no local memory, no call; inputs 16 bytes at a time, those of a column once for all rows of a strip's step."""
    problem = parse_problem(words.split(), "fused_reduction")
    columns = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "columns").configured(problem, device("sm_90a"))
    walks = iter(columns.config.walks)
    for launch in columns.build(problem, device("sm_90a"), columns.config):
        code = sass.assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
        assert code.registers <= registers and not code.doubles
        if not launch.kernel.__name__.endswith("end"):
            walk = next(walks)
            assert len(code.lines) <= instructions * walk.lanes * walk.chunks.elements, len(code.lines)
            assert len(code.opcodes("LDG.E.128")) == sum(1 if once else walk.lanes for once in walk.chunks.once)
            assert len(code.opcodes("STG.E.128")) == walk.lanes * len(walk.step.results)


def test_a_program_in_float64_has_no_stack():
    problem = parse_problem(f"512x1024 f64 {SOFTMAX}".split(), "fused_reduction")
    rows = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "rows").configured(problem, device("sm_80"))
    (launch,) = rows.build(problem, device("sm_80"), rows.config)
    code = sass.assembled(launch.kernel, launch.signature, "sm_80")
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL"), code.report
