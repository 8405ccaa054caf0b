"""What the gradients of grouped products' matrices compile to: the main loops of `matmul`, in registers."""
import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from representative import device  # noqa: E402
from sass import machine_code  # noqa: E402
from test_ptx_transform import accesses, assembled  # noqa: E402

from dnnkern import dispatch  # noqa: E402
from dnnkern.matmul._parse import parse_problem  # noqa: E402


@pytest.mark.parametrize("words, algo, registers", [("bf16", "mma", 255), ("f32 --math tf32", "mma", 255), ("f32", "blocked", 255)])
def test_gradients_of_grouped_matrices(words, algo, registers):
    """Copies of 16 bytes along rows, wherever a group begins; no stack, no spill, no call."""
    code, launch = assembled(parse_problem(f"8x4096x4096x4096 {words}".split(), "grouped_matmul_bwd_weights"), algo)
    assert not (code.stack or code.spilled or code.calls or code.doubles) and code.registers <= registers
    assert code.count("LDGSTS") >= 8 and set(accesses(code, "LDGSTS")) == {128}
    assert launch.grid[0] % 8 == 0


@pytest.mark.parametrize("words", ["8x4096x4096x4096 bf16", "8x4097x4095x4094 f16"])
def test_gradients_by_wgmma(words):
    """No tile makes its products wait for each other, or zeroes rows where accumulators would lie in memory."""
    problem, target = parse_problem(words.split(), "grouped_matmul_bwd_weights"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(problem.op) if a.name == "wgmma")
    for config in algorithm.configs(problem, target)[::3]:
        launch = algorithm.build(problem, target, config)[-1]
        code = machine_code(launch.kernel, launch.signature, "sm_90a")
        assert not (code.slow or code.stack or code.spilled or code.calls or code.waits_for_device), config
        assert code.opcodes("HGMMA") and code.moved_registers == config.tile.registers
        assert code.opcodes("UTMALDG") and bool(code.opcodes("UTMASTG")) == (problem.db.shape[2] % 8 == 0)
