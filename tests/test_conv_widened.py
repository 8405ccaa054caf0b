"""Convolutions of 8-bit floats whose operands become float16 in the workspace: each kernel that reads copies, every layout."""
from dataclasses import replace

import contract
import pytest
from cases._conv import Conv

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem
from dnnkern.conv.conv_fwd_widened import ALGORITHM, Config, _able, widened

LAST = {"order": (0, 2, 3, 1)}
CASES = {
    "depthwise": dict(size=(2, 16, 7, 6), k=16, filter=(3, 3), padding=1, groups=16, layout="NHWC"),
    "depthwise-epilogue": dict(size=(1, 8, 5, 6), k=8, filter=(3, 3), stride=2, padding=1, groups=8, layout="NHWC", bias=True,
                               residual=True, activation="relu", alpha=2.0),
    "depthwise-first": dict(size=(2, 6, 5, 9), k=12, filter=(3, 2), groups=6, beta=1.0),
    "causal": dict(size=(2, 8, 19), k=8, filter=(4,), padding=((3, 0),), groups=8, dtype="float8_e5m2"),
    "grouped": dict(size=(1, 64, 5, 6), k=64, filter=(3, 3), padding=1, groups=16, layout="NHWC"),
    "merged": dict(size=(1, 64, 6, 6), k=64, filter=(3, 3), stride=2, padding=1, groups=16, layout="NHWC", out_dtype="float32"),
    "mixed": dict(size=(1, 5, 6, 7), k=6, filter=(3, 3), padding=1, layout="NHWC", dtype_w="float8_e5m2"),
    "small-c": dict(size=(1, 3, 9, 16), k=16, filter=(3, 3), padding=1, layout="NHWC", out_dtype="float16"),
    "apart": dict(size=(2, 8, 5, 6), k=8, filter=(3, 3), groups=8, lay={"x": LAST, "w": {"gap": 1}}),
    "flipped": dict(size=(1, 4, 5, 6), k=4, filter=(3, 2), groups=4, mode="convolution")}


@pytest.mark.parametrize("id", CASES)
def test_each_kernel_that_reads_copies(id):
    case = Conv(id, "conv_fwd", **{"dtype": "float8_e4m3fn", **CASES[id]})
    problem, device = case.problem(), contract.device()
    assert contract.refusal(ALGORITHM, problem) is None
    inner = widened(problem)
    assert inner.x.dtype == inner.w.dtype == "float16" and inner.x.is_packed == ("x" not in case.lay)
    able = [a for a in _able(problem) if a.refusal(inner, device) is None]
    assert (able[0].name == "depthwise") == (case.groups == case.size[1])
    assert {c.name for c in ALGORITHM.configs(problem, device)} <= {a.name for a in able}
    for algorithm in able:
        config = Config(algorithm.name, algorithm.configured(inner, device).config)
        with contract.registered(replace(ALGORITHM, config=config)) as mine:
            contract.check_exact(mine, case)


@pytest.mark.parametrize("words, reason", [
    ("2x64x8x8 k64 3x3 p1 g64 bf16 nhwc", "expected two of"), ("2x64x8x8 k64 3x3 p1 g64 e4m3 nhwc --out-dtype e4m3", "results of"),
    ("2x64x1x1 k0 1x1 e4m3 nhwc", "without elements")])
def test_what_it_refuses(words, reason):
    assert reason in contract.refusal(ALGORITHM, parse_problem(words.split(), "conv_fwd"))


def test_it_is_chosen_where_tensor_cores_take_no_8_bits():
    device = contract.device()
    chosen = {words: dispatch.get_algorithm("conv_fwd", parse_problem(words.split(), "conv_fwd"), device=device, prefer="device").name
              for words in ("64x144x56x56 k144 3x3 p1 g144 e4m3 nhwc", "64x256x28x28 k256 3x3 p1 e4m3 nhwc")}
    assert list(chosen.values()) == ["widened", "implicit_gemm_wgmma"]
