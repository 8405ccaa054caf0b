"""Filters' gradients with channels first, by copies with channels last: each kernel, one array or both copied, every rank."""
from dataclasses import replace

import contract
import pytest
from cases._conv import Conv

from dnnkern.conv._parse import parse_problem
from dnnkern.conv.conv_bwd_filter_channels_last import ALGORITHM, Config, _copies

LAST = {"order": (0, 2, 3, 1)}
CASES = {
    "odd": dict(size=(3, 24, 5, 7), k=40, filter=(3, 2), stride=(1, 2), padding=(1, 0)),
    "slabs": dict(size=(2, 64, 5, 6), k=72, filter=(3, 3), padding=1),
    "slabs-dilated": dict(size=(1, 128, 6, 5), k=64, filter=(2, 3), padding=2, dilation=2, dtype="float16"),
    "grouped": dict(size=(2, 64, 6, 5), k=64, filter=(3, 3), padding=1, groups=16, dtype="float16"),
    "groups": dict(size=(2, 32, 6, 5), k=48, filter=(3, 3), padding=1, groups=2),
    "1d": dict(size=(2, 32, 19), k=24, filter=(3,), stride=2, padding=1),
    "3d": dict(size=(1, 16, 3, 4, 5), k=16, filter=(2, 3, 2), padding=1, dtype="float16"),
    "flipped": dict(size=(2, 16, 4, 8), k=16, filter=(3, 3), padding=1, mode="convolution"),
    "x-last": dict(size=(2, 64, 5, 6), k=64, filter=(3, 3), padding=1, lay={"x": LAST}),
    "dy-last": dict(size=(2, 64, 5, 6), k=64, filter=(3, 3), padding=1, lay={"y": LAST}),
    "gaps": dict(size=(2, 16, 5, 6), k=16, filter=(3, 3), padding=1, lay={"x": {"gap": 3}, "w": {"gap": 1}, "y": {"gap": 2}}),
    "misaligned": dict(size=(2, 16, 5, 6), k=16, filter=(1, 3), layout="NHWC", lay={"x": {"misaligned": 1}}),
    "odd-channels": dict(size=(2, 13, 5, 6), k=19, filter=(3, 2), padding=1, layout="NHWC"),
    "odd-of-two-lines": dict(size=(1, 70, 3, 5), k=67, filter=(1, 3), padding=1, layout="NHWC", dtype="float16"),
    "odd-channels-first": dict(size=(2, 9, 4, 5), k=21, filter=(2, 2), alpha=0.5),
    "odd-filters": dict(size=(2, 16, 5, 6), k=12, filter=(3, 3), padding=1, layout="NHWC"),
    "pixels-apart": dict(size=(2, 16, 5, 6), k=16, filter=(3, 3), layout="NHWC", lay={"x": {"gap": 3}}),
    "float32-results": dict(size=(2, 32, 5, 6), k=16, filter=(3, 3), padding=1, out_dtype="float32", alpha=2.0, beta=1.0)}


@pytest.mark.parametrize("id", CASES)
def test_each_kernel_that_reads_copies(id):
    case = Conv(id, "conv_bwd_filter", **{"dtype": "bfloat16", **CASES[id]})
    problem, device = case.problem(), contract.device()
    assert contract.refusal(ALGORITHM, problem) is None
    assert "".join(_copies(problem)) == {"x-last": "y", "dy-last": "x", "misaligned": "x", "odd-filters": "y",
                                         "pixels-apart": "x"}.get(id, "xy")
    names = {}
    for config in ALGORITHM.configs(problem, device):
        names.setdefault(config.name, config)
    filters = {config.filter: config for config in ALGORITHM.configs(problem, device)}
    assert (True in filters) == (case.beta == 0 and case.layout == "NCHW")
    assert ("slabs_wgmma" in names) == ("slabs" in id or id in ("x-last", "dy-last")), names
    assert ("grouped" in names) == (id in ("grouped", "3d", "flipped", "gaps", "misaligned", "pixels-apart"))
    for config in dict.fromkeys((*names.values(), *filters.values())):
        with contract.registered(replace(ALGORITHM, config=config)) as mine:
            contract.check_exact(mine, case)


@pytest.mark.parametrize("words, reason", [
    ("2x64x8x8 k64 3x3 p1 bf16 nhwc", "contiguous already"), ("2x64x8x8 k64 3x3 p1 f32 nchw", "dtype float32"),
    ("2x64x1x1 k0 1x1 bf16 nchw", "without elements")])
def test_what_it_refuses(words, reason):
    assert reason in contract.refusal(ALGORITHM, parse_problem(words.split(), "conv_bwd_filter"))


def test_the_copies_follow_the_sums():
    """The kernel's own workspace is first, each part aligned to 16 bytes."""
    problem, device = parse_problem("3x24x5x7 k40 3x3 p1 bf16 nchw".split(), "conv_bwd_filter"), contract.device()
    for config in ALGORITHM.configs(problem, device):
        copies, launches = 2 * 3 * 5 * 7 * (24 + 40), ALGORITHM.build(problem, device, config)
        found = [a.offset for launch in launches for a in launch.arguments if a.is_dynamic and a.value == "workspace"]
        last = 2 * 40 * 24 * 9 if config.filter else 2 * 3 * 5 * 7 * 40
        assert isinstance(config, Config) and max(found) + last <= ALGORITHM.workspace(problem, device, config)
        assert ALGORITHM.workspace(problem, device, config) >= copies and not any(offset % 16 for offset in found)
        assert not any(a.value in ("x", "y") for launch in launches[2:] for a in launch.arguments if a.is_dynamic)
        written = [k for k, launch in enumerate(launches) if any(a.is_dynamic and a.value == "w" for a in launch.arguments)]
        assert written == [len(launches) - 1] if config.filter else len(launches) - 1 in written
