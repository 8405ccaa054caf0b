"""What convolutions on Hopper's tensor cores compile to: loads without a detour through registers, sums that stay where they are."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem

# operation, problem, tile ("" for the chosen one); copies of an unrolled step at least: boxes of the filter and one of pixels
ROWS = [("conv_fwd", "64x256x14x14 k256 3x3 p1 bf16 nhwc --bias --residual --activation gelu", "128x256", 2),
        ("conv_fwd", "64x256x14x14 k256 3x3 p1 bf16 nhwc --bias --activation relu", "192x128", 2),
        ("conv_fwd", "64x64x56x56 k64 3x3 p1 f16 nhwc", "256x64", 2),
        ("conv_fwd", "64x256x14x14 k256 3x3 p1 f32 nhwc --math tf32", "128x256 cluster 2", 2),
        ("conv_fwd", "64x256x14x14 k256 3x3 p1 e4m3 nhwc --bias", "", 2),
        ("conv_fwd", "4x64x16x56x56 k64 3x3x3 p1 i8 nhwc", "", 2),
        ("conv_fwd", "64x256x14x14 k256 3x3 p1 g2 bf16 nchw --beta 1 --activation swish", "", 2),
        ("conv_bwd_data", "64x256x28x28 k256 3x3 p1 bf16 nhwc", "128x256", 5),
        ("conv_bwd_data", "64x256x28x28 k256 3x3 p1 s2 bf16 nhwc --bias --residual --beta 1 --activation gelu", "128x128", 3),
        ("conv_bwd_data", "4x64x16x28x28 k64 3x3x3 p1 s2 f32 nhwc --math tf32", "", 2)]


@pytest.mark.parametrize("op, words, tile, copies", ROWS)
def test_product(op, words, tile, copies):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "implicit_gemm_wgmma")
    config = next((c for c in algorithm.configs(problem, target) if str(c) == tile), None)
    config = config or algorithm.configured(problem, target).config
    assert not tile or str(config) == tile
    launch = algorithm.build(problem, target, config)[-1]
    code = machine_code(launch.kernel, launch.signature)  # no spills, no local memory, no calls
    assert "C7508" not in code.report and "C7514" not in code.report and "C7518" not in code.report
    loads = code.opcodes("UTMALDG")
    pixels = [name for name in loads if "IM2COL" in name]
    boxes = config.tile.bm * config.tile.bn // 64 ** 2 if op == "conv_fwd" and problem.residual is not None else 0  # of the residual
    assert pixels and len(loads) == copies * len(pixels) + boxes
    assert code.opcodes("HGMMA", "QGMMA", "IGMMA")
    assert not code.doubles or problem.compute == "int32"
    if config.tile.cluster == 1:  # values that a warp shares reach TMA without a move each
        assert code.count("R2UR") <= 8 * len(pixels)
    assert code.registers * config.tile.threads * config.tile.blocks <= 65536
