"""Depthwise convolutions by rows, in long strips: on a device of many multiprocessors a block of a problem this small has a step or two."""
import itertools
from dataclasses import replace

import contract
import pytest
from cases._conv import Conv

from dnnkern.conv._parse import parse_problem
from dnnkern.conv.depthwise import filter_images
from dnnkern.conv.depthwise.rows_plan import RowsConfig, row_configs, row_launch, row_sums_launch
from dnnkern.conv.depthwise import ALGORITHMS

EPILOGUE = dict(bias=True, residual=True, activation="relu")
OPS = "conv_fwd", "conv_bwd_data", "conv_bwd_filter"
CASES = [
    # size, filter, what else; the channels' last groups, the last strip and the last rows are cut off in many
    ((2, 24, 23, 9), (3, 3), dict(padding=1)),
    ((1, 32, 21, 6), (3, 3), dict(padding=1, dtype="bfloat16", mode="convolution")),
    ((2, 8, 17, 10), (3, 3), dict(padding=1, dtype="float32")),
    ((1, 24, 25, 11), (3, 3), dict(stride=2, padding=1)),
    ((1, 16, 18, 11), (2, 3), dict(stride=(3, 2), padding=((0, 1), (2, 1)))),
    ((1, 16, 20, 8), (5, 5), dict(padding=2, dtype="bfloat16")),
    ((1, 16, 19, 9), (3, 2), dict(padding=(2, 1), dilation=(2, 1))),
    ((1, 8, 18, 7), (7, 7), dict(padding=3)),
    ((3, 16, 12, 5), (1, 3), dict(padding=(0, 1))),
    ((2, 16, 13, 6), (3, 3), dict(padding=1, dtype="bfloat16", out_dtype="float32")),
    ((1, 8, 9, 6), (5, 5), dict(padding=((7, 6), (2, 2)))),
    ((1, 16, 17, 8), (5, 5), dict(padding=0)),
    ((1, 8, 7, 8), (7, 5), dict(padding=((3, 9), (2, 2)), stride=2)),
]
MANY = [
    ((2, 16, 11, 9), (7, 7), dict(padding=3, dtype="bfloat16", out_dtype="float32")),
    ((1, 8, 19, 7), (7, 7), dict(padding=((6, 0), (0, 6)), stride=2, mode="convolution")),
    ((2, 24, 6, 5), (5, 5), dict(padding=((4, 3), (2, 2)), dtype="float32")),
    ((1, 16, 7, 6), (4, 5), dict(padding=2, dtype="float16", beta=1.0)),
]


def _long(problem, device, pick):
    """A configuration by rows, for a single block at a time and a short ring."""
    found = row_configs(problem, device)
    return [replace(found[pick % len(found)], blocks=1, stages=3)] if found else []


def _few(algorithm, device, pick):
    """The algorithm with the plans of that device, by rows alone."""
    def configs(problem, _):
        return _long(problem, device, pick)
    return replace(algorithm, configs=configs, workspace=lambda problem, _, config: algorithm.workspace(problem, device, config),
                   build=lambda problem, _, config: algorithm.build(problem, device, config),
                   estimate=lambda problem, _, config: algorithm.estimate(problem, device, config))


def _rows():
    for op in OPS:
        for k, (size, taps, more) in enumerate(CASES):
            yield pytest.param(op, size, taps, {"dtype": "float16", **more}, k, id=f"{op}-{k}")
    # filters of many taps: two channels a thread, and rows of zeros above and below the image are left out
    for op, (k, (size, taps, more)), pick in itertools.product(OPS, enumerate(MANY), range(6)):
        yield pytest.param(op, size, taps, more, pick, id=f"{op}-many-{k}-{pick}")
    yield pytest.param("conv_fwd", (1, 16, 16, 7), (3, 3), dict(dtype="float16", padding=1, **EPILOGUE), 0, id="conv_fwd-epilogue")
    yield pytest.param("conv_bwd_data", (1, 16, 15, 8), (3, 3), dict(dtype="float16", stride=2, transposed=True, **EPILOGUE), 0,
                       id="conv_bwd_data-epilogue")


@pytest.mark.parametrize("op, size, taps, more, pick", list(_rows()))
def test_long_strips(op, size, taps, more, pick):
    """The whole contract, with fewer multiprocessors than the problem has images."""
    device = contract.device()
    if device.supports("sm_90+"):
        pytest.skip("rows come by TMA: sm_90+")
    case = Conv("strips", op, size, size[1], taps, layout="NHWC", groups=size[1], **more)
    few = _few(next(a for a in ALGORITHMS if a.op == op), replace(device, sms=1), pick)
    variants = few.variants(case.problem(), device)
    assert variants and all(isinstance(v.config, RowsConfig) for v in variants)
    for variant in variants:
        contract.check(variant, case, **contract.ONCE)


def test_strips_are_long():
    """What the test above is for: a block has more steps than the ring has stages, and of the filter's gradient more than one strip."""
    device, (size, taps, more) = replace(contract.device(), sms=1, capability=(9, 0)), CASES[0]
    for op in OPS:
        problem = Conv("strips", op, size, size[1], taps, "float16", layout="NHWC", groups=size[1], **more).problem()
        for pick in range(4):
            config, = _long(problem, device, pick)
            launch = row_sums_launch(problem, device, config)[1] if op == "conv_bwd_filter" else row_launch(problem, device, config)
            steps, *more_of = [a.value for a in launch.arguments if a.type == "int32"]
            assert steps > config.stages, (op, str(config), steps)
            assert op != "conv_bwd_filter" or more_of[1] > more_of[2], "tasks and splits"


IMAGES = [
    ((9, 40, 7, 7), (7, 7), dict(padding=3, dtype="bfloat16")),
    ((5, 33, 7, 7), (3, 3), dict(padding=1, dtype="float32", mode="convolution")),
    ((3, 8, 6, 5), (4, 2), dict(padding=((1, 2), (0, 1)), dtype="float16", out_dtype="float32", alpha=2.0, beta=1.0)),
    ((4, 16, 4, 8), (2, 3), dict(padding=0, dtype="float16")),
    ((2, 8, 3, 3), (5, 5), dict(padding=4, dtype="bfloat16")),
]


@pytest.mark.parametrize("splits", (1, 2))
@pytest.mark.parametrize("size, taps, more", IMAGES)
def test_whole_images(size, taps, more, splits, monkeypatch):
    """Sums of warps and of splits, whose last images and channels are cut off; every product inside the image, and no other."""
    case = Conv("images", "conv_bwd_filter", size, size[1], taps, groups=size[1], layout="NHWC", **more)
    monkeypatch.setattr(filter_images, "_splits", lambda p, device, config: splits)
    algorithm = next(a for a in ALGORITHMS if a.op == "conv_bwd_filter")
    config, = filter_images.image_configs(case.problem())
    with contract.registered(replace(algorithm, config=config)) as mine:
        contract.check(mine, case)


@pytest.mark.parametrize("words", [
    "2x64x14x14 k64 3x3 p1 g64 bf16 nhwc", "2x64x7x7 k64 3x3 p1 g64 bf16 nchw", "2x64x7x7 k64 3x3 p1 g64 f64 nhwc",
    "2x64x8x8 k64 3x3 s2 p1 g64 bf16 nhwc", "2x64x7x7 k64 3x3 p2 d2 g64 bf16 nhwc", "2x64x7x7 k128 3x3 p1 g64 bf16 nhwc",
    "2x64x2x5x5 k64 1x3x3 p0x1x1 g64 bf16 nhwc"])
def test_other_problems_have_no_whole_images(words):
    assert filter_images.image_configs(parse_problem(words.split(), "conv_bwd_filter")) == []
