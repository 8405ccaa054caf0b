"""What depthwise convolutions compile to: their loads and multiply-adds are counted, and everything stays in registers."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem
from dnnkern.conv.depthwise import UNROLLED, filter_images

# operation, problem, beginning of the configuration; loads of 16 bytes at least, multiply-adds exactly: taps x pixels x channels of a
# thread, where all is unrolled
ROWS = [("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc", "nhwc v8 2x2", 16, 9),
        ("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f32 nchw", "nchw", 6, 9),
        ("conv_bwd_data", "64x144x56x56 k144 3x3 p1 g144 bf16 nhwc", "nhwc v8 2x2", 16, 9),
        ("conv_fwd", "8x2048x4096 k2048 4 p3:0 g2048 f16 nchw", "nchw", 2, 4),
        ("conv_bwd_filter", "64x144x56x56 k144 3x3 p1 g144 f32 nhwc", "nhwc v4 2x4", 16, 9),
        ("conv_bwd_filter", "8x2048x4096 k2048 4 p3:0 g2048 bf16 nchw", "nchw", 3, 4)]
# kernels that read rows by TMA: operation, problem, beginning of the configuration; multiply-adds a tap of a step, steps that are unrolled,
# instructions of a step at most, registers at most
STEPS = [("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc", "rows w4", 16, 1, 240, 128),
         ("conv_bwd_data", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc", "rows w4", 16, 1, 240, 128),
         ("conv_fwd", "64x144x56x56 k144 3x3 p1 g144 f32 nhwc", "rows w4", 16, 1, 208, 128),
         ("conv_fwd", "64x144x56x56 k144 3x3 s2 p1 g144 bf16 nhwc", "rows w4", 16, 1, 320, 128),
         ("conv_bwd_data", "64x144x56x56 k144 3x3 s2 p1 g144 bf16 nhwc", "rows w4", 8, 1, 224, 128),
         ("conv_bwd_filter", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc", "rows w4", 16, 3, 272, 128),
         ("conv_bwd_filter", "64x144x56x56 k144 3x3 p1 g144 f16 nhwc --out-dtype f32", "rows w4", 16, 3, 272, 128),
         ("conv_fwd", "64x240x28x28 k240 5x5 p2 g240 f16 nhwc", "rows w4 32x7", 16, 1, 544, 168),
         ("conv_fwd", "64x96x56x56 k96 7x7 p3 g96 bf16 nhwc", "rows w4 v2", 8, 1, 560, 112),
         ("conv_bwd_data", "64x384x14x14 k384 7x7 p3 g384 bf16 nhwc", "rows w2 v2", 4, 1, 364, 88),
         ("conv_bwd_filter", "64x96x56x56 k96 7x7 p3 g96 bf16 nhwc --out-dtype f32", "rows w2 v2", 4, 1, 352, 168),
         ("conv_bwd_filter", "64x384x14x14 k384 7x7 p3 g384 bf16 nhwc --out-dtype f32", "rows w4 v2", 8, 1, 592, 208)]
LARGE = [("conv_bwd_data", "1x4x8x8 k4 7x7 p3 g4 f16"), ("conv_bwd_filter", "1x4x8x8 k4 7x7 p3 g4 f16"),
         ("conv_fwd", "1x2x6x16 k2 5x5 p2 g2 f16"), ("conv_bwd_filter", "2x4x8x8x8 k4 3x3x3 p1 g4 f16"),
         ("conv_fwd", "64x96x56x56 k96 7x7 p3 g96 bf16 nhwc"), ("conv_bwd_filter", "64x96x56x56 k96 7x7 p3 g96 bf16 nhwc --out-dtype f32")]


def _variants(op, words):
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "depthwise")
    return [(v.build(problem, target, v.config)[0], v.config, problem) for v in algorithm.variants(problem, target)]


def _picked(op, words, pick):
    """(code, launch, configuration, problem) of the most promising configuration whose name begins so."""
    launch, config, problem = next(row for row in _variants(op, words) if str(row[1]).startswith(pick))
    return machine_code(launch.kernel, launch.signature), launch, config, problem


@pytest.mark.parametrize("op, words, pick, loads, taps", ROWS)
def test_loads_and_products(op, words, pick, loads, taps):
    code, launch, config, _ = _picked(op, words, pick)
    wide = [name for name in code.opcodes("LDG") if ".128" in name or ".64" in name]
    assert len(wide) >= loads, code.opcodes("LDG")
    assert code.count("FFMA") == taps * config.th * config.tw * (config.vector if config.channels else 1)
    assert code.registers * launch.block[0] * config.blocks <= 65536


@pytest.mark.parametrize("words, products", [("64x768x7x7 k768 7x7 p3 g768 bf16 nhwc", 37 ** 2),
                                             ("64x960x7x7 k960 3x3 p1 g960 f16 nhwc", 19 ** 2)])
def test_whole_images(words, products):
    """Products inside the image alone, each pixel loaded once, and no loop but that over images and those of the sums at its end."""
    code, launch, config, problem = _picked("conv_bwd_filter", words, "images")
    assert code.count("FFMA") == products and len(code.opcodes("LDG")) == 2 * 49
    assert not code.stack and code.registers * launch.block[0] * filter_images.BLOCKS <= 65536


@pytest.mark.parametrize("op, words, pick, products, turns, instructions, registers", STEPS)
def test_steps(op, words, pick, products, turns, instructions, registers):
    """From the last wait to the end of a step: each element is converted once, sums are not copied, and the border costs nothing."""
    code, launch, config, problem = _picked(op, words, pick)
    assert code.count("FFMA") == turns * products * problem.taps
    assert code.registers <= registers and -(-code.registers // 8) * 8 * launch.block[0] * config.blocks <= 65536
    assert not [name for name in code.opcodes("LDG") if ".128" in name or ".64" in name], "rows come by TMA"
    assert code.count("UTMALDG")
    products_at = [k for k, line in enumerate(code.lines) if line.startswith("FFMA")]
    wait = max(k for k, line in enumerate(code.lines[:products_at[0]]) if line.startswith("SYNCS.PHASECHK"))
    end = next(k for k in range(products_at[-1], len(code.lines)) if code.lines[k].startswith(("EXIT", "BAR", "FADD")))
    assert end - wait <= instructions * turns, (end - wait) / turns


@pytest.mark.parametrize("op, words", LARGE)
def test_large_filters_are_not_unrolled_too_far(op, words):
    """A bound on the compiler's time, which grows with the square of a block's multiply-adds."""
    rows = _variants(op, words)
    assert rows
    for launch, config, _ in (rows[0], rows[-1]):
        code = machine_code(launch.kernel, launch.signature)
        assert code.count("FFMA") <= UNROLLED[getattr(config, "channels", 1)], config
