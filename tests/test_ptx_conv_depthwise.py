"""What depthwise convolutions compile to: their loads and multiply-adds are counted, and everything stays in registers."""
import pytest
from sass import Assembled
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem

# operation, problem; loads of 16 bytes at least, multiply-adds exactly: taps x pixels x channels of a thread, where all is unrolled
ROWS = [("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc", 16, 9), ("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f32 nchw", 6, 9),
        ("conv_bwd_data", "64x144x56x56 k144 3x3 p1 g144 bf16 nhwc", 16, 9), ("conv_fwd", "8x2048x4096 k2048 4 p3:0 g2048 f16 nchw", 2, 4),
        ("conv_bwd_filter", "64x144x56x56 k144 3x3 p1 g144 f32 nhwc", 16, 9),
        ("conv_bwd_filter", "8x2048x4096 k2048 4 p3:0 g2048 bf16 nchw", 3, 4)]


@pytest.mark.parametrize("op, words, loads, taps", ROWS)
def test_loads_and_products(op, words, loads, taps, tmp_path):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "depthwise").configured(problem, target)
    launch, config = algorithm.build(problem, target, algorithm.config)[0], algorithm.config
    code = Assembled(launch.kernel, launch.signature, "sm_90a", tmp_path)
    wide = [name for name in code.opcodes("LDG") if ".128" in name or ".64" in name]
    assert len(wide) >= loads, code.opcodes("LDG")
    assert code.count("FFMA") == taps * config.th * config.tw * (config.vector if config.channels else 1)
    assert code.registers * launch.block[0] * config.blocks <= 65536
