"""What the gradients of grouped products' matrices compile to: the main loops of `matmul`, in registers."""
import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx_transform import accesses, assembled  # noqa: E402

from dnnkern.matmul._parse import parse_problem  # noqa: E402


@pytest.mark.parametrize("words, algo, registers", [("bf16", "mma", 255), ("f32 --math tf32", "mma", 255), ("f32", "blocked", 255)])
def test_gradients_of_grouped_matrices(words, algo, registers):
    """Copies of 16 bytes along rows, wherever a group begins; no stack, no spill, no call."""
    code, launch = assembled(parse_problem(f"8x4096x4096x4096 {words}".split(), "grouped_matmul_bwd_weights"), algo)
    assert not (code.stack or code.spilled or code.calls or code.doubles) and code.registers <= registers
    assert code.count("LDGSTS") >= 8 and set(accesses(code, "LDGSTS")) == {128}
    assert launch.grid[0] % 8 == 0
