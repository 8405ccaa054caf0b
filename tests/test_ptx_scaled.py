"""What products of 8-bit floats with scales by block compile to, and what those of few rows ask for ahead. No GPU needed."""
import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx_transform import accesses, assembled  # noqa: E402

from dnnkern.host.device import _SIMULATOR  # noqa: E402
from dnnkern.matmul import matmul_mma, matmul_wgmma  # noqa: E402
from dnnkern.matmul._parse import parse_problem  # noqa: E402


@pytest.mark.parametrize("k, loads", [(4096, {128: 4, 32: 8}), (4224, {32: 24})])
def test_scales_by_block_are_loaded_for_sixteen_steps(k, loads):
    """Those of the first steps, and ahead: of a four at a time where a row has whole fours, of b one by one. Each step has two shuffles."""
    problem = parse_problem(f"256x256x{k} e4m3 nt --scales block,block".split())
    config = next(c for c in matmul_wgmma.configs(problem, _SIMULATOR) if str(c) == "128x128")
    code, _ = assembled(problem, "wgmma", config=config)
    assert not (code.stack or code.spilled or code.calls or code.doubles)
    assert code.count("QGMMA") == 16 and code.count("SHFL") == 8 and accesses(code, "LDG") == loads


@pytest.mark.parametrize("n, ahead", [(4096, True), (14336, False)])
def test_few_rows_are_asked_for_where_one_wave_computes_them(n, ahead):
    problem = parse_problem(f"8x{n}x4096 bf16 nt".split())
    config = next(c for c in matmul_mma.configs(problem, _SIMULATOR) if str(c) == "32x8x512B w2x1x4 s9")
    (launch,) = matmul_mma.build(problem, _SIMULATOR, config)
    code = machine_code(launch.kernel, launch.signature, "sm_90a")
    assert not (code.stack or code.spilled) and bool(code.count("CCTL.E.PF2")) == ahead and code.count("ACQBULK") == 1
