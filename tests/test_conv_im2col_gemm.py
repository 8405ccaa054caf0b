"""Convolutions by columns: slices of the batch, both orders of the columns, every way in which arrays are packed or results moved."""
from dataclasses import replace

import contract
import pytest
from cases._conv import Conv

from dnnkern.engine.plan import collapsed
from dnnkern.conv._parse import parse_problem
from dnnkern.conv.im2col_gemm import ALGORITHMS, MOST_WORKSPACE, Config, configs, workspace
from dnnkern.conv.im2col_gemm.plan import is_of_patches, patches_matrix

ALL = dict(bias=True, residual=True, activation="relu")
LAST = {"order": (0, 2, 3, 1)}
CASES = {
    "conv_fwd": [
        dict(),                                                                  # the product writes y
        dict(layout="NHWC", bias=True, beta=2.0),
        dict(groups=2, bias=True),                                               # a bias of groups is an addend of y's shape
        dict(groups=2, layout="NHWC", bias=True, residual=True, alpha=2.0),      # two of them: a last pass
        dict(beta=2.0, **ALL),
        dict(mode="convolution", layout="NHWC"),
        dict(lay={"y": {"gap": 3}, "x": LAST}, residual=True),                   # y's rows lie apart: a last pass moves them
        dict(dtype="int8", out_dtype="int8", layout="NHWC", beta=1.0)],          # products add no int8
    "conv_bwd_data": [
        dict(), dict(layout="NHWC"), dict(groups=2), dict(groups=2, layout="NHWC", beta=2.0, alpha=-1.0),
        dict(mode="convolution"), dict(lay={"y": {"gap": 3}}),                   # dy is packed
        dict(transposed=True, layout="NHWC", **ALL)],
    "conv_bwd_filter": [
        dict(), dict(layout="NHWC"), dict(groups=2), dict(groups=2, layout="NHWC", dtype="float16", out_dtype="float32", beta=1.0),
        dict(mode="convolution", alpha=2.0, beta=1.0), dict(layout="NHWC", mode="convolution"), dict(lay={"w": {"gap": 2}})]}
ROWS = [(op, k, more, Config(last, 2)) for op, rows in CASES.items() for k, more in enumerate(rows) for last in (0, 1)]


@pytest.mark.parametrize("op, more, config", [pytest.param(op, more, c, id=f"{op}-{k}-{'last' if c.last else 'first'}")
                                              for op, k, more, c in ROWS])
def test_slices_and_orders(op, more, config):
    """Exact, in guarded memory: of three images two at a time, and then one, which may need another product."""
    more = dict(more)
    case = Conv("slices", op, (3, 4, 4, 3), 6, (2, 3), more.pop("dtype", "float32"), stride=(1, 2), padding=((1, 0), (1, 1)), **more)
    algorithm = next(a for a in ALGORITHMS if a.op == op)
    with contract.registered(replace(algorithm, config=config)) as mine:
        contract.check_exact(mine, case)


PATCHES = {  # whether the product writes dx itself, with channels last
    "nhwc": (dict(layout="NHWC"), False), "nchw": (dict(), False), "groups": (dict(groups=3, layout="NHWC"), False),
    "flipped": (dict(mode="convolution"), False), "apart": (dict(lay={"x": {"gap": 3}}), False),
    "f16": (dict(dtype="float16", layout="NHWC"), False), "f16-to-f32": (dict(dtype="float16", out_dtype="float32"), False),
    "rows": (dict(size=(3, 3, 4, 9), stride=(1, 3), filter=(1, 3), layout="NHWC"), True),
    "1d": (dict(size=(3, 6, 12), stride=3, filter=(3,), dtype="bfloat16", layout="NHWC"), True),
    "one-dy": (dict(size=(3, 6, 12), stride=3, filter=(3,), dtype="float16", layout="NHWC", lay={"y": {"expand": (0,)}}), True),
    "3d": (dict(size=(3, 3, 4, 4, 3), stride=(2, 2, 1), filter=(2, 2, 1), layout="NHWC"), False)}


@pytest.mark.parametrize("last", (0, 1))
@pytest.mark.parametrize("more, in_place", PATCHES.values(), ids=PATCHES)
def test_patches(more, in_place, last):
    """Windows that do not overlap: a product whose columns are transposed, no sums; exact, of three images two at a time."""
    more = dict(dict(size=(3, 3, 4, 9), filter=(2, 3), stride=(2, 3), dtype="float32"), **more)
    size, taps, dtype = more.pop("size"), more.pop("filter"), more.pop("dtype")
    case = Conv("patches", "conv_bwd_data", size, 6, taps, dtype, **more)
    algorithm = next(a for a in ALGORITHMS if a.op == "conv_bwd_data")
    with contract.registered(replace(algorithm, config=Config(last, 2))) as mine:
        contract.check_exact(mine, case)
        problem = case.problem()
        kernels = [launch.kernel.__name__ for launch in mine.build(problem, contract.device(), mine.config)]
    assert not any("col2im" in name for name in kernels)
    assert (patches_matrix(problem, last) is not None) == (in_place and bool(last))


@pytest.mark.parametrize("more", [dict(stride=(2, 2)), dict(padding=1), dict(dilation=(1, 2)), dict(beta=1.0), dict(alpha=2.0),
                                  dict(size=(3, 3, 5, 9)), dict(bias=True, transposed=True)], ids=str)
def test_other_windows_are_no_patches(more):
    more = dict(dict(size=(3, 3, 4, 9), stride=(2, 3)), **more)
    case = Conv("others", "conv_bwd_data", more.pop("size"), 6, (2, 3), **more)
    assert not is_of_patches(case.problem())


@pytest.mark.parametrize("sizes, strides, step", [((2, 3), (6, 2), 2), ((2, 3), (8, 2), None), ((2, 1, 3), (3, 99, 1), 1),
                                                  ((1, 1), (7, 9), 1), ((3, 2), (-2, -1), -1), ((2, 2), (0, 0), 0)])
def test_dimensions_that_are_one(sizes, strides, step):
    assert collapsed(sizes, strides) == step


def test_columns_are_bounded():
    """Slices by the bound and by the L2, whole batches where they fit, one image where even that exceeds the bound."""
    device = contract.device()
    small, large, huge = (parse_problem(f"{n}x64x{e}x{e} k64 3x3 p1 f32".split()) for n, e in ((2, 14), (256, 112), (2, 2048)))
    assert {c.images for c in configs(small, device)} == {2}
    found = {c.images for c in configs(large, device)}
    each = 9 * 64 * 112 * 112 * 4
    assert found == {MOST_WORKSPACE // each, 1}
    for c in configs(large, device):  # beside the columns there is what a product needs for itself: a copy of them at most
        assert c.images * each <= workspace(large, device, c) <= 2 * c.images * each + 2 ** 24
    assert {c.images for c in configs(huge, device)} == {1}


def test_groups_bound_the_launches():
    """With channels last every group has its own columns: not for many groups."""
    device = contract.device()
    depthwise, few = (parse_problem(f"8x64x14x14 k64 3x3 p1 g{g} f32 nhwc".split()) for g in (64, 2))
    assert {c.last for c in configs(depthwise, device)} == {0} and {c.last for c in configs(few, device)} == {0, 1}


def test_misaligned_slices_are_not_read_in_whole_words():
    """Images of an odd number of bytes: the second one begins at an odd multiple of two bytes, and products of slices know."""
    algorithm = next(a for a in ALGORITHMS if a.op == "conv_bwd_data")
    case = Conv("odd", "conv_bwd_data", (4, 3, 5, 5), 3, (3, 3), "float16")
    with contract.registered(replace(algorithm, config=Config(0, 1))) as mine:
        contract.check_exact(mine, case)
