"""What the last pass of a convolution by columns compiles to: whole accesses where neighbours lie together, a row of taps in flight."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.conv._parse import parse_problem  # noqa: E402
from dnnkern.conv.im2col_gemm import Config  # noqa: E402

ROWS = [("conv_bwd_data", "32x64x56x56 k64 3x3 p1 f16 nhwc", 1, {128: 3}, {64: 1}),     # channels: four of a tap, a row of them
        ("conv_bwd_data", "32x64x56x56 k64 3x3 p1 f32 nchw", 0, {32: 9}, {32: 1}),
        ("conv_bwd_data", "32x64x56x56 k64 3x3 s2 p1 bf16 nchw", 0, {32: 3}, {16: 1}),
        ("conv_bwd_data", "32x64x56x56 k64 3x3 p1 f64 nhwc", 1, {128: 9}, {128: 1}),
        ("conv_bwd_data", "32x66x56x56 k64 7x7 p3 f32 nhwc", 1, {32: 7}, {32: 1}),
        ("conv_bwd_filter", "256x64x56x56 k64 3x3 p1 f16 nhwc", 1, {128: 1}, {64: 1})]  # many slices: their sum is rounded by the last pass


def last_pass(op, words, last, arch="sm_90a", images=None):
    """The plan's launches, and the last one's code."""
    problem, target = parse_problem(words.split(), op=op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "im2col_gemm")
    launches = algorithm.build(problem, target, Config(last, images or problem.n))
    code = machine_code(launches[-1].kernel, launches[-1].signature, arch)
    return launches, code


@pytest.mark.parametrize("op, words, last, loads, stores", ROWS)
def test_neighbours_are_one_access(op, words, last, loads, stores):
    launches, code = last_pass(op, words, last, images=16)
    assert launches[-1].kernel.__name__ == "conv_col2im"
    assert accesses(code, "LDG") == loads and accesses(code, "STG") == stores
    assert -(-code.registers // 8) * 8 * 256 * 4 <= 65536


@pytest.mark.parametrize("words", ["32x64x56x56 k64 3x3 s2 p1 bf16 nchw", "32x64x56x56 k64 3x3 p1 f16 nhwc"])
def test_no_division_and_no_stray_float64(words):
    for last in (0, 1):
        _, code = last_pass("conv_bwd_data", words, last)
        assert not code.divisions and not code.doubles and not code.opcodes("MUFU", "I2F")
