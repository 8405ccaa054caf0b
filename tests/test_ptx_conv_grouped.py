"""What grouped convolutions compile to: fragments from memory in loads of 16 bytes; in gradients of filters from shared memory."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem


@pytest.mark.parametrize("op, words, products", [("conv_fwd", "64x128x56x56 k128 3x3 p1 g32 f16 nhwc", 4),
                                                 ("conv_bwd_data", "64x256x28x28 k256 3x3 p1 g32 bf16 nhwc", 8)])
def test_fragments_come_from_memory(op, words, products):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "grouped").configured(problem, target)
    launch, config = algorithm.build(problem, target, algorithm.config)[0], algorithm.config
    code = machine_code(launch.kernel, launch.signature)
    rows = config.rows + 2
    columns = 3 if config.unroll else 1
    assert code.count("HMMA") == 3 * config.rows * products * columns
    assert code.opcodes("LDG.E.128").count("LDG.E.128.CONSTANT") == 2 * rows * (columns if config.unroll else 2)
    assert not code.count("LDSM") and code.count("LDS") == 3 * products // 2 * columns
    assert code.registers * launch.block[0] * config.blocks <= 65536


@pytest.mark.parametrize("words, beginning, products, loads", [
    ("64x128x56x56 k128 3x3 p1 g32 f16 nhwc", "64 channels 7x28", 42, 25),
    ("64x128x56x56 k128 3x3 p1 g32 f16 nhwc", "32 channels 7x28", 42, 25),
    ("64x512x14x14 k512 3x3 p1 g32 bf16 nhwc", "64 channels 7x14", 126, 34),
    ("64x1024x7x7 k1024 3x3 p1 g32 f16 nhwc", "64 channels 7x28", 72, 22),
    ("64x256x56x56 k256 3x3 s2 p1 g32 bf16 nhwc", "64 channels 7x14", 42, 37)])
def test_a_filters_gradient_is_products_and_what_loads_their_operands(words, beginning, products, loads):
    problem, target = parse_problem(words.split(), "conv_bwd_filter"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("conv_bwd_filter") if a.name == "grouped")
    bound = next(v for v in algorithm.variants(problem, target) if str(v.config).startswith(beginning))
    launch = bound.build(problem, target, bound.config)[0]
    code = machine_code(launch.kernel, launch.signature)
    assert (code.count("HMMA"), code.count("LDSM")) == (products, loads)
    # nothing passes a register on its way to shared memory
    assert code.count("LDGSTS.E.BYPASS.128") and not code.opcodes("LDG.", "STS") and not code.doubles
    places = [i for i, line in enumerate(code.lines) if line.startswith(("HMMA", "LDSM"))]
    assert len(code.lines[places[0]:places[-1]]) <= 1.15 * (products + loads)
    assert code.registers * launch.block[0] * bound.config.blocks <= 65536
