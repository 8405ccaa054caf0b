"""Estimates of products and convolutions whose kernels make an operand, beside what an H100 took: the rows that docs/notes/graph.md has."""
import json
import math
import pathlib
import re
from dataclasses import replace

import pytest
from representative import device

from dnnkern import dispatch
from dnnkern.conv import ConvProblem
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.engine.prologues import Prologue
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import MatmulProblem

ROWS = pathlib.Path(__file__).resolve().parent.parent / "bench" / "results" / "h100-prologue.jsonl"
H100 = replace(device("sm_90a"), clock_hz=1.98e9, bandwidth=3.35e12, l2_bytes=50 << 20)
MOST = 1.4      # of an estimate over the time, or the other way round
ON_AVERAGE = 1.08
MAKE = "implicit_gemm_wgmma", "halo_wgmma", "wgmma_prologue"


def measured():
    """{problem: [(algorithm, configuration, us)]} of the last row of each."""
    rows = {row["problem"]: row["best"] for row in map(json.loads, ROWS.read_text().splitlines())}
    return {text: [tuple(how) for how in best if how[0] in MAKE] for text, best in rows.items()}


def scaled(dtype, shape):
    """Scale, bias and ReLU."""
    steps = [Step(Function.of(mode), operands, to) for mode, operands, to in (
        ("scale", (0, 1), None), ("bias", (3, 2), None), ("relu", (4,), dtype))]
    return Prologue(Program([("float32", "column")] * 2, steps), dtype, [Tensor.packed(shape, "float32")] * 2)


def problem_of(text):
    """The problem that a row names."""
    if "NHWC" in text:
        n, c, h, w, k, r = map(int, re.match(r"(\d+)x(\d+)x(\d+)x(\d+) k(\d+) (\d)x", text).groups())
        x, f, y = (Tensor.packed(shape, "float16") for shape in ((n, h, w, c), (k, r, r, c), (n, h, w, k)))
        return ConvProblem("conv_fwd", x, f, y, padding=r // 2, layout="NHWC", prologue_a=scaled("float16", (c,)))
    m, n, k = map(int, re.match(r"(\d+)x(\d+)x(\d+) ", text).groups())
    to = "bfloat16"
    a, b, y = Tensor.packed((m, k), to), Tensor((k, n), (1, k), to), Tensor.packed((m, n), to)
    if text.endswith("scale-bias-relu"):
        return MatmulProblem(a, b, y, prologue_a=scaled(to, (1, k)))
    cast, source = Prologue(Program((), [Step(Function.of("identity"), (0,), to)]), to, []), "float8_e4m3fn" if "fp8" in text else "int8"
    if "weights" in text:
        return MatmulProblem(a, Tensor((k, n), (1, k), source), y, prologue_b=cast)
    return MatmulProblem(Tensor.packed((m, k), source), b, y, prologue_a=cast)


def ratios(text, best):
    """(algorithm, configuration, estimate over the time) of each that was measured."""
    problem = problem_of(text)
    for name, text_of, us in best:
        found = next(v for v in dispatch.named(problem.op, name).variants(problem, H100) if str(v.config) == text_of)
        yield name, text_of, 1e6 * found.seconds(problem, H100) / us


@pytest.mark.parametrize("text", measured())
def test_estimates_are_near_what_was_measured(text):
    found = list(ratios(text, measured()[text]))
    assert found and all(1 / MOST < ratio < MOST for *_, ratio in found), found


def test_on_average_they_are_nearer():
    found = [abs(math.log(ratio)) for text, best in measured().items() for *_, ratio in ratios(text, best)]
    assert len(found) > 50 and math.exp(sum(found) / len(found)) < ON_AVERAGE
