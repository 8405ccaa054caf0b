"""Pixels and the L2's lines of 128 bytes: which arrays have rows that cross them, and copies that have none."""
import contract
import pytest
from cases._conv import Conv

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem
from dnnkern.conv.implicit_gemm_wgmma import parts_of


@pytest.mark.parametrize("words, image, filter", [
    ("2x64x8x8 k64 3x3 p1 bf16 nhwc", False, False), ("2x80x8x8 k64 3x3 p1 bf16 nhwc", True, True),
    ("2x32x8x8 k64 3x3 p1 bf16 nhwc", False, False), ("2x48x8x8 k64 3x3 p1 bf16 nhwc", True, True),
    ("2x64x8x8 k64 3x3 p1 e4m3 nhwc", False, False), ("2x232x8x8 k64 1x1 bf16 nhwc", True, True),
    ("2x139x8x8 k64 3x3 p1 bf16 nhwc", False, False), ("2x20x8x8 k64 3x3 p1 bf16 nchw", True, True)])
def test_rows_that_cross_lines(words, image, filter):
    """As arrays lie, or their copies: more than 128 bytes of a copied pixel begin at a line."""
    parts = parts_of(parse_problem(words.split(), "conv_fwd"))
    assert (parts.image.crosses, parts.filter.crosses) == (image, filter)


@pytest.mark.parametrize("op", ("conv_fwd", "conv_bwd_data"))
@pytest.mark.parametrize("layout, size, k", [("NHWC", (1, 71, 4, 5), 67), ("NCHW", (2, 66, 3, 4), 70)])
def test_copies_begin_at_lines(op, layout, size, k):
    case = Conv("lines", op, size, k, (2, 3), "float16", layout=layout, padding=1)
    problem = case.problem()
    parts = parts_of(problem)
    assert parts.image.packed and parts.image.read_strides[-2] == 128 and not parts.image.crosses
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "implicit_gemm_wgmma")
    with contract.registered(algorithm.configured(problem, contract.device())) as mine:
        contract.check_exact(mine, case)


def test_tiles_that_read_fewer_lines_are_chosen():
    """Clusters share the filter's rows: of 232 channels, whose pixels are two lines for each step."""
    device = contract.device()
    algorithm = next(a for a in dispatch.algorithms("conv_fwd") if a.name == "implicit_gemm_wgmma")
    tiles = {words: algorithm.configured(parse_problem(words.split(), "conv_fwd"), device).config.tile
             for words in ("40x256x65x65 k232 3x3 p1 bf16 nhwc", "40x232x65x65 k232 3x3 p1 bf16 nhwc")}
    assert [tile.cluster for tile in tiles.values()] == [1, 2]
