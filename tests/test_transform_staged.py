"""Boxes of several dimensions through shared memory: which they are, their values, their banks; col2im of windows with strides."""
import contract
import numpy as np
import pytest
from cases.transpose import Transpose

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import NotSupported
from dnnkern.transform._parse import parse_problem


@pytest.mark.parametrize("shape, axes, dtype, flat, units", [
    ((3, 7, 7, 20), (0, 3, 1, 2), "int8", "y", (4, 4)), ((2, 32, 7, 7), (0, 2, 3, 1), "int8", "x", (16, 16)),
    ((4, 5, 6, 7, 8, 9), (4, 1, 5, 0, 3, 2), "float16", "x", (16, 4)), ((3, 4, 10, 5, 12), (3, 1, 4, 0, 2), "float32", "y", (16, 16)),
    ((2, 3, 4, 5, 6), (4, 2, 1, 0, 3), "float64", "y", (16, 16)), ((3, 5, 7, 3, 5), (3, 1, 4, 0, 2), "bfloat16", "x", (2, 2))])
def test_boxes_of_short_dimensions(shape, axes, dtype, flat, units, simulated):
    """In shared memory as in x or as in y, vectors of either side as their alignment leaves them."""
    case = Transpose("boxes", shape, axes, dtype)
    staged = next(a for a in dispatch.algorithms("transpose") if a.name == "staged")
    variants = staged.variants(case.problem(), contract.device())
    assert (flat == "x", units) in [(v.config.x_is_flat, v.config.units) for v in variants], [str(v.config) for v in variants]
    for variant in variants:
        contract.check(variant, case, again=False, **contract.ONCE)


def test_boxes_hold_whole_runs_and_divide_their_dimensions(simulated):
    """64 rows of 16 x 14 pixels: a run of x is a row, one of y all pixels of a block's element; dimensions number what is left."""
    problem = parse_problem("8x3x224x224 f16 16".split(), "space_to_depth")
    staged = next(a for a in dispatch.algorithms("space_to_depth") if a.name == "staged")
    config = staged.configured(problem, contract.device()).config
    assert config.elements == 16 * 14 * 14 and config.runs == (2 * 16 * 14, 2 * 14 * 14) and config.units == (16, 8)
    (launch,) = staged.build(problem, contract.device(), config)
    assert launch.grid[0] * config.elements == problem.x.size


@pytest.mark.parametrize("words", ["8x8x10x40x64x12 bf16 4,1,5,0,3,2", "16x64x48 f16 0,2,1", "4x128x128x4 f32 3,1,0,2"])
def test_empty_vectors_of_a_box_keep_lanes_from_the_same_bank(words, simulated):
    problem = parse_problem(words.split(), "transpose")
    for variant in next(a for a in dispatch.algorithms("transpose") if a.name == "staged").variants(problem, contract.device()):
        config = variant.config
        assert config.conflicts(config.padded) == min(config.conflicts(True), config.conflicts(False)) <= 8, str(config)
        last = config.elements * config.itemsize - 1
        assert last + (last >> 7 << 4) < config.nbytes <= 48 * 1024


def test_what_boxes_refuse(simulated):
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    with pytest.raises(NotSupported, match="the dimension that is contiguous in y is so in x: its rows stay rows"):
        dnnkern.transpose(x, (1, 0, 2, 3), algo="staged")
    with pytest.raises(NotSupported, match=r"strides of x along the dimensions are .*-1.*; expected positive ones"):
        dnnkern.transpose(x[..., ::-1], (0, 3, 1, 2), algo="staged")
    with pytest.raises(NotSupported, match="the least strides are 2 in x and 1 in y; expected 1 in both"):
        dnnkern.transpose(np.zeros((3, 4, 10), np.float32)[..., ::2], (2, 0, 1), algo="staged")


@pytest.mark.parametrize("layout, by", [("NCHW", "staged"), ("NHWC", "copy")])
def test_windows_side_by_side_are_a_permutation(layout, by, simulated):
    """Patches of a picture: each pixel comes from one element of the columns, by a transposition."""
    x = np.random.default_rng(6).integers(-99, 100, (2, 3, 12, 20)).astype(np.float16)
    x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    columns = dnnkern.im2col(x, (4, 5), stride=(4, 5), layout=layout)
    assert np.array_equal(dnnkern.col2im(columns, x.shape, (4, 5), stride=(4, 5), layout=layout, algo="permuted"), x)
    problem = parse_problem(["2x3x12x20", "f16", "4x5", "s4x5", *["nhwc"] * (layout == "NHWC")], "col2im")
    permuted = next(a for a in dispatch.algorithms("col2im") if a.name == "permuted")
    assert {v.config.by for v in permuted.variants(problem, contract.device())} == {by}


@pytest.mark.parametrize("words, reason", [
    ("2x3x12x20 f16 4x4 s2", "along h 5 windows of 4 pixels, stride 2, dilation 1, on 12 pixels after 0 of padding"),
    ("2x3x12x21 f16 4x5 s4x5", "along w 4 windows of 5 pixels, stride 5, dilation 1, on 21 pixels after 0 of padding"),
    ("2x3x12x20 f16 4x4 s4 p2", "along h 4 windows of 4 pixels, stride 4, dilation 1, on 12 pixels after 2 of padding")])
def test_windows_that_are_no_permutation(words, reason, simulated):
    permuted = next(a for a in dispatch.algorithms("col2im") if a.name == "permuted")
    assert permuted.supports(parse_problem(words.split(), "col2im")) == f"{reason}; expected windows side by side that cover the image"


@pytest.mark.parametrize("shape, window, stride, padding, layout", [
    ((2, 3, 9, 8), (3, 3), (2, 2), 1, "NCHW"), ((1, 3, 12, 16), (7, 7), (2, 2), 3, "NCHW"), ((2, 7, 8, 9), (3, 3), (2, 3), 1, "NHWC"),
    ((1, 2, 5, 7, 8), (2, 3, 5), (2, 1, 3), 1, "NCHW"), ((1, 1, 80), (70,), (2,), 9, "NCHW"), ((1, 6, 7, 16), (2, 3), (4, 3), 0, "NHWC")])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_taps_that_match_are_those_of_all(shape, window, stride, padding, layout, dtype, simulated):
    """Bitwise what the sums over all taps are, since their order is the same; strides that differ, and gaps between windows."""
    more = dict(stride=stride, padding=padding, layout=layout)
    x = np.random.default_rng(7).standard_normal(shape).astype(dtype)
    columns = np.random.default_rng(8).standard_normal(dnnkern.im2col(x, window, **more).shape).astype(dtype)
    results = {algo: dnnkern.col2im(columns, shape, window, algo=algo, **more) for algo in ("gather", "matching", "naive")}
    assert np.array_equal(results["gather"], results["matching"])
    assert np.allclose(results["naive"], results["matching"], 2e-3)


def test_taps_of_stride_1_all_match(simulated):
    matching = next(a for a in dispatch.algorithms("col2im") if a.name == "matching")
    assert matching.supports(parse_problem("2x3x9x8 f32 3x3 p1".split(), "col2im")) == "the stride is 1: every tap reads every pixel"
    assert matching.supports(parse_problem("2x3x9x8 f32 3x3 s2 d2 p2".split(), "col2im")) == "dilation (2, 2); expected 1"
