"""What convolutions of few filters on Hopper's tensor cores compile to: nothing but products between the barriers of a tile."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem
from dnnkern.device.index import ceil_div

ROWS = [("conv_fwd", "64x64x56x56 k64 3x3 p1 f16 nhwc"),
        ("conv_fwd", "4x128x512x512 k64 3x3 p1 bf16 nhwc --bias --residual --activation relu"),
        ("conv_bwd_data", "64x64x56x56 k64 3x3 p1 bf16 nhwc"), ("conv_bwd_data", "4x64x16x56x56 k64 3x3x3 p1 f16 nhwc"),
        ("conv_fwd", "2x32x64x64x64 k32 3x3x3 p1 f16 nhwc"), ("conv_bwd_data", "4x64x128x128 k24 3x3 p1 bf16 nhwc"),
        ("conv_fwd", "64x512x14x14 k512 3x3 p1 g32 bf16 nhwc"), ("conv_bwd_data", "64x1024x7x7 k1024 3x3 p1 g32 f16 nhwc")]


@pytest.mark.parametrize("op, words", ROWS)
def test_products_follow_each_other(op, words):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "halo_wgmma")
    for config in algorithm.configs(problem, target)[::2]:
        (launch,) = algorithm.build(problem, target, config)
        code = machine_code(launch.kernel, launch.signature)  # no spills, no local memory, no calls
        assert "C7508" not in code.report and "C7514" not in code.report and "C7518" not in code.report
        products = code.count("HGMMA")
        steps = min(4, ceil_div(problem.c if op == "conv_fwd" else problem.k, 16))
        assert products and products % (steps * config.lines // 8) == 0, "steps of k for each tap"
        assert code.count("WARPGROUP.DEPBAR") <= 1 + products // steps and code.registers * launch.block[0] <= 65536
        places = [k for k, line in enumerate(code.lines) if "HGMMA" in line]
        between = code.lines[places[0]:places[-1]]
        assert not [line for line in between if line.startswith(("LDS", "STS", "LDG", "ST.", "BAR"))], "something waits between them"
