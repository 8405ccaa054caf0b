"""Filters' gradients by Stream-K: shares that are equal and complete, blocks that end one tile and begin the next, and what is refused."""
from dataclasses import replace

import contract
import pytest
from cases._conv import Conv

from dnnkern.conv._parse import parse_problem
from dnnkern.conv.conv_bwd_filter_stream_k import ALGORITHM, Config, shares_of
from dnnkern.conv.conv_bwd_filter_stream_k import _shares as shares_in
from dnnkern.engine.hopper import Tile

TILES = Tile(64, 64), Tile(128, 128), Tile(128, 128, ping_pong=True)


@pytest.mark.parametrize("tiles, steps, blocks", [(144, 256, 132), (72, 392, 132), (5, 9, 3), (3, 9, 5), (2, 40, 3), (1, 8, 2), (7, 11, 6),
                                                  (131, 500, 132), (133, 500, 132), (300, 17, 132)])
def test_shares_are_equal_and_complete(tiles, steps, blocks):
    s = shares_of(tiles, steps, blocks)
    assert s.whole + s.rest == tiles and s.head + s.length == steps and s.whole == s.waves * blocks
    assert (s.blocks - 1) * s.each < s.rest * s.length <= s.blocks * s.each, "every block has something"
    longest = s.waves * steps + max(s.each, s.head)
    assert longest * blocks < tiles * steps + 2 * blocks * (1 + (blocks - tiles if s.head else 0) / max(1, blocks - tiles)) + s.head
    contributors = [{n // s.each for n in range(t * s.length, (t + 1) * s.length)} for t in range(s.rest)]
    assert max(map(len, contributors)) + (s.head > 0) == s.slots
    pieces = [{n // s.length for n in range(b * s.each, min((b + 1) * s.each, s.rest * s.length))} for b in range(s.blocks)]
    assert max(map(len, pieces)) <= s.pieces


def test_nothing_to_divide():
    assert shares_of(132, 100, 132) is None and shares_of(264, 100, 132) is None
    assert shares_of(131, 50, 132) is None and shares_of(133, 50, 132) is None, "too little"


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("blocks", [2, 3, 4, 5, 7, 11])
def test_blocks_that_end_one_tile_and_begin_the_next(tile, blocks):
    case = Conv("stream", "conv_bwd_filter", (3, 64, 14, 17), 72, (2, 2), "bfloat16", layout="NHWC", padding=1)
    problem = case.problem()
    config = Config(tile, 64, blocks)
    if shares_in(problem, config) is None:
        pytest.skip("nothing to divide")
    with contract.registered(replace(ALGORITHM, config=config)) as mine:
        contract.check_exact(mine, case)


@pytest.mark.parametrize("more", [dict(layout="NCHW", lay={name: {"order": (0, 2, 3, 1)} for name in "xwy"}),
                                  dict(out_dtype="float32", alpha=2.0, beta=1.0), dict(mode="convolution", stride=2, size=(3, 64, 28, 25)),
                                  dict(dilation=2, dtype="float16"), dict(size=(2, 16, 300), filter=(3,)),
                                  dict(size=(1, 24, 4, 9, 11), filter=(2, 1, 3), k=136)])
def test_kinds(more):
    case = Conv("kinds", "conv_bwd_filter", **{"size": (2, 64, 18, 19), "k": 40, "filter": (3, 3), "dtype": "bfloat16", "layout": "NHWC",
                                               "padding": 1, **more})
    problem, device = case.problem(), contract.device()
    assert contract.refusal(ALGORITHM, problem) is None
    for config in ALGORITHM.configs(problem, device):
        with contract.registered(replace(ALGORITHM, config=config)) as mine:
            contract.check_exact(mine, case)


@pytest.mark.parametrize("words, reason", [
    ("2x64x8x8 k64 3x3 p1 bf16 nchw", "contiguous"), ("2x64x16x16 k64 3x3 p1 g2 bf16 nhwc", "2 groups"),
    ("2x20x16x16 k64 3x3 p1 bf16 nhwc", "a stride of 40 bytes"), ("1x64x8x8 k64 3x3 p1 bf16 nhwc", "64 pixels are 1 steps")])
def test_what_it_refuses(words, reason):
    assert reason in contract.refusal(ALGORITHM, parse_problem(words.split(), "conv_bwd_filter"))
