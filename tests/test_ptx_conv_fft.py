"""What transforms and complex products compile to: everything stays in registers, and the multiply-adds are those of the tile."""
import pytest
from sass import machine_code

from dnnkern.conv.fft.plan import TILES, Config, Plan
from dnnkern.conv._parse import parse_problem

FIRST = next(iter(TILES))
# Words of a conv_fwd problem, extents of the transform, whole or not; loads and stores of spectra, a complex number each, of a thread:
# a column and what the outer two have, or two rows.
TRANSFORMS = [("8x64x56x56 k64 5x5 p2 f32 nhwc", (32, 32), 0, 32 + 2 * 17), ("8x64x56x56 k64 5x5 p2 f32", (16, 16), 0, 16 + 2 * 9),
              ("8x64x58x40 k64 7x7 p3 f32", (64, 48), 1, 64 + 2 * 33), ("8x64x17x35 k64 7x7 p3 f32 nhwc", (20, 40), 1, 20 + 2 * 11),
              ("8x64x4096 k64 9 p4 f32", (1, 64), 0, 2 * 33)]


def launches(words, op, extents, whole, tile):
    return Plan(parse_problem(words.split(), op), Config(*extents, whole, tile, 4, 1 << 30)).launches()


def assembled(launch):
    code = machine_code(launch.kernel, launch.signature)
    assert not code.doubles
    return code


@pytest.mark.parametrize("words, extents, whole, spectra", TRANSFORMS)
def test_transforms(words, extents, whole, spectra):
    found = launches(words, "conv_fwd", extents, whole, FIRST)
    forward, back = found[1], found[-1]
    code = assembled(forward)
    assert code.opcodes("STG").count("STG.E.64") == spectra and code.count("LDGSTS") >= 1 and code.count("LDG.") == 0
    assert code.count("FFMA") < code.count("FADD")
    assert code.registers * forward.block[0] * _blocks(forward) <= 65536
    code = assembled(back)
    # what is real is read as such: the ends of two lines
    assert len([name for name in code.opcodes("LDG") if ".64" in name]) == spectra - 4
    assert code.registers * back.block[0] * _blocks(back) <= 65536


def _blocks(launch):
    """That the launch bounds promise."""
    return launch.kernel.targetoptions["launch_bounds"][1]


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_filter"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_products(op, tile):
    launch = next(x for x in launches("8x64x56x56 k64 5x5 p2 f32", op, (16, 16), 0, tile) if "product" in x.kernel.py_func.__name__)
    code = assembled(launch)
    assert code.count("FFMA") == 4 * tile.tm * tile.tn * tile.bk
    assert code.opcodes("LDS").count("LDS.128") == (tile.tm + tile.tn) // 2 * (tile.bk + 1)
    assert code.registers * tile.threads * tile.blocks <= 65536
    assert (launch.shared + 1024) * tile.blocks <= 233472
