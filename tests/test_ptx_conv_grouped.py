"""What grouped convolutions compile to: fragments come from memory in loads of 16 bytes, without passing through shared memory."""
import pytest
from sass import Assembled
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem


@pytest.mark.parametrize("op, words, products", [("conv_fwd", "64x128x56x56 k128 3x3 p1 g32 f16 nhwc", 4),
                                                 ("conv_bwd_data", "64x256x28x28 k256 3x3 p1 g32 bf16 nhwc", 8)])
def test_fragments_come_from_memory(op, words, products, tmp_path):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "grouped").configured(problem, target)
    launch, config = algorithm.build(problem, target, algorithm.config)[0], algorithm.config
    code = Assembled(launch.kernel, launch.signature, "sm_90a", tmp_path)
    rows = config.rows + 2
    columns = 3 if config.unroll else 1
    assert code.count("HMMA") == 3 * config.rows * products * columns
    assert code.opcodes("LDG.E.128").count("LDG.E.128.CONSTANT") == 2 * rows * (columns if config.unroll else 2)
    assert not code.count("LDSM") and code.count("LDS") == 3 * products // 2 * columns
    assert code.registers * launch.block[0] * config.blocks <= 65536
