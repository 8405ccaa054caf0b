"""The bench of operation graphs, on the processor at its small sizes."""
import json
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import graph, peers, run, shapes  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.host.paths import cache_dir  # noqa: E402
from dnnkern.host.timing import Clock  # noqa: E402


def test_rows(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    assert run.main(["graph", "--only", "matmul,host", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    *cases, by_uid, by_tensor, of_shapes, addresses = map(json.loads, file.read_text().splitlines())
    assert [row["problem"] for row in cases] == [f"matmul {chain} float32" for chain in (
        "64x48x40 add@48 gelu", "64x48x40 add@48 keep gelu", "8x96x64 add@96 gelu", "8x96x64 add@96 keep gelu")]
    for row in cases:
        assert row["status"] == "ok" and row["plan"].startswith("matmul_") and "|" not in row["plan"]
        assert row["graph_us"] > 0 and row["of_plain"] == pytest.approx(row["plain_us"] / row["graph_us"])
        assert 0 < row["error"] <= 1 and row["machine"]["arch"] and row["op"] == "graph"
    assert 0 < addresses["calls"] < by_tensor["calls"] and by_uid["us"] > 0 and of_shapes["calls"] < 2 * by_uid["calls"]
    assert "x plain" in capsys.readouterr().out


def test_rows_of_swiglu(tmp_path):
    """Beside the product alone, and the product and a kernel of the gate."""
    file = tmp_path / "rows.jsonl"
    assert graph.main(["--only", "swiglu", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["problem"] for row in rows] == [f"swiglu {what} float32" for what in ("64x40x48", "64x40x48 both stored", "8x64x32")]
    for row in rows:
        assert 0 < row["error"] <= 1 and row["of_plain"] > 0 and row["of_apart"] == pytest.approx(row["apart_us"] / row["graph_us"])


def test_rows_behind_a_product(tmp_path):
    """Beside the product alone, and the product and a kernel of the rows."""
    file = tmp_path / "rows.jsonl"
    assert graph.main(["--only", "product_rows", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["problem"] for row in rows] == [f"product {what} 64x40x48 float32" for what in ("softmax", "layer_norm", "rms_norm")]
    for row in rows:
        assert 0 < row["error"] <= 1 and row["of_plain"] > 0 and row["of_apart"] == pytest.approx(row["apart_us"] / row["graph_us"])


def test_regret(tmp_path, capsys, monkeypatch):
    file, made = tmp_path / "rows.jsonl", graph.cases
    monkeypatch.setattr(graph, "cases", lambda *given: made(*given)[:1])
    try:
        assert graph.main(["--only", "pointwise", "--dtype", "float32", "--no-peers", "--turns", "1", "--regret", "--json", str(file)]) == 0
    finally:
        for folder in cache_dir().glob("find/*/graph"):
            shutil.rmtree(folder)
    row, = map(json.loads, file.read_text().splitlines())
    times = dict(map(tuple, row["plans"]))
    assert len(times) == len(row["plans"]) > 2 and row["best"] == row["plans"][0][0]
    assert row["regret"] == pytest.approx(times[row["estimated"]] / times[row["best"]]) and row["regret"] >= 1
    assert all(us in times.values() and moved > 0 for _, moved, us in row["cuts"]) and row["cuts"][-1][1] > row["cuts"][0][1]
    assert "regret: time of the plan that the estimates choose" in capsys.readouterr().out


def test_cuts_of_a_gpu_that_is_not_here(capsys):
    assert graph.main(["--explain", "sm_90a", "--only", "conv,score_mod", "--dtype", "float16"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n\n\n") == 0 and text.count("graph conv 64x") == 2 and "flash_wgmma" in text and "(chosen)" in text
    assert "conv_fprop 0 | mul 1 | add 2 | relu 3 | add 4" in text and "wgmma" in text


def test_the_page_of_cuts():
    from bench import graph_cuts
    page = Path(__file__).resolve().parent.parent / "docs" / "graph-cuts.md"
    assert graph_cuts.page(graph_cuts.all_cases()) == page.read_text(), "print it anew: python -m bench.graph_cuts > docs/graph-cuts.md"


def test_a_wrong_result_has_no_number(monkeypatch):
    def expected(self, case, arrays):
        wrong = torch.ones(case.shapes["y"])
        return (wrong, wrong) if case.keeps else wrong
    monkeypatch.setattr(graph.Bench, "_expected", expected)
    assert graph.main(["--only", "matmul", "--dtype", "float32", "--no-peers", "--turns", "1"]) == 1


def test_errors():
    expected = torch.randn(40, 50)
    for dtype in ("bfloat16", "float16", "float32"):
        assert graph._error(expected.to(getattr(torch, dtype)), expected, dtype) <= 1
    assert graph._error(expected.bfloat16(), expected, "float16") > 1
    one = expected.clone()
    one[3, 4] += 0.1
    assert graph._error(one, expected, "float16") > 1 and graph._error(one * torch.nan, expected, "float16") > 1
    sizes = torch.ones(40, 1)
    sizes[0] = 100
    large, wrong = expected * sizes, (expected + 2.0 ** -8) * sizes
    assert graph._error(wrong, large, "bfloat16", sizes) <= 1 < graph._error(wrong, large, "bfloat16")


def test_the_peers_compute_the_same():
    """Which is checked before they are timed: product, convolution and chain."""
    for part in ("matmul", "conv", "pointwise"):
        for case in graph.cases(part, ["float32"], small=True):
            t = case.arrays("cpu")
            y, operands = None, iter(t[name] for name in t if name.startswith("o"))
            if part == "matmul":
                y = t["a"] @ t["b"]
            elif part == "conv":
                y = torch.conv2d(t["x"], t["w"], padding=1)
            else:
                y = t["x"]
            for mode, operand in case.steps:
                if mode == "keep":
                    kept = y
                    continue
                other = () if operand is None else (next(operands) if isinstance(operand, str) else operand,)
                y = {"gelu": torch.nn.functional.gelu, "swish": torch.nn.functional.silu}.get(mode, getattr(torch, mode, None))(y, *other)
            torch.testing.assert_close(case.eager()(t), (y, kept) if case.keeps else y)


@pytest.mark.parametrize("case", graph.graph_rows.cases(["float32"], small=True)[:-1], ids=str)
def test_reductions_among_functions(case):
    """The graph's result, and PyTorch's own functions, against the formula in float64."""
    t = case.arrays("cpu")
    wide = {name: v.double() for name, v in t.items()}
    formula = graph.graph_rows.FORMULAS[case.name](graph.graph_rows._Torch(), *(wide[name] for name in wide if name != "y"))
    torch.testing.assert_close(case.eager()(t), formula.float())
    made, given = case.graph(t)
    assert [step.op for step in made._engines.steps] == ["fused_reduction"] and set(given.values()) == set(t)
    workspace = torch.empty(max(made.get_workspace_size(), 1), dtype=torch.uint8)
    made.execute({tensor.get_uid(): t[name] for tensor, name in given.items()}, workspace)
    assert graph._error(t["y"], formula.float(), case.dtype) <= 1
    if case.anchor:
        assert len(case.graph(t, alone=True)[0]._engines.steps) == 1


@pytest.mark.parametrize("case", graph.graph_columns.cases(["float32", "float16"], small=True), ids=str)
def test_reductions_of_columns(case):
    """All results, of PyTorch's functions and of the graph, which is one part, against PyTorch's in float32."""
    t = case.arrays("cpu")
    expected = case.eager()({name: v.float() for name, v in t.items()})
    made, given = case.graph(t)
    assert [step.op for step in made._engines.steps] == ["fused_reduction"] and set(given.values()) == set(t)
    workspace = torch.empty(max(made.get_workspace_size(), 1), dtype=torch.uint8)
    made.execute({tensor.get_uid(): t[name] for tensor, name in given.items()}, workspace)
    for got in (graph._results(case, t), case.eager()(t)):
        assert len(got) == len(expected) == len(case.results) and graph._error(got, expected, case.dtype) <= 1
    assert graph._error((*expected[:-1], expected[-1] + expected[-1].abs().max()), expected, case.dtype) > 1


@pytest.mark.parametrize("case", [case for part in ("wgrad", "quantized", "attention_fp8")
                                  for case in graph.cases(part, ["float16"], small=True)], ids=str)
def test_what_is_made_and_scaled(case):
    """Operands that a gradient or a product makes, results of 8 bits: one part, beside PyTorch's own functions in float32."""
    t = case.arrays("cpu")
    expected = case.eager()({name: v.float() for name, v in t.items()})
    made, given = case.graph(t)
    assert len(made._engines.steps) == 1
    workspace = torch.empty(max(made.get_workspace_size(), 1), dtype=torch.uint8)
    made.execute({tensor.get_uid(): t[name] for tensor, name in given.items()}, workspace)
    assert graph._error(graph._results(case, t), expected, case.dtype) <= 1
    assert len(case.graph(t, alone=True)[0]._engines.steps) == 1
    if hasattr(case, "apart"):
        apart, given = case.apart(t)
        assert len(apart._candidate.name.split(" | ")) == 2
        kept = t["y"].clone()
        workspace = torch.empty(apart.get_workspace_size(), dtype=torch.uint8)
        apart.execute({tensor.get_uid(): t[name] for tensor, name in given.items()}, workspace)
        torch.testing.assert_close(t["y"], kept, rtol=1e-2, atol=1e-2)


def test_bytes_of_two_passes():
    """What batch normalization's sums are of is read again: the added gradient once, as it has been stored."""
    forward, mask, _, backward, *_ = graph.cases("norm", ["float16"], small=True)
    whole, weights = 2 * 16 * 5 * 6 * 2, 16 * 4
    assert (forward.bytes, forward.moved) == (3 * whole + 2 * weights, 4 * whole + 2 * weights)
    assert (backward.bytes, backward.moved) == (5 * whole + 5 * weights, 7 * whole + 5 * weights)
    assert mask.bytes == forward.bytes + whole // 2


def test_the_error_of_a_mask():
    mask = torch.arange(1000) % 2 > 0
    wrong = mask.clone()
    wrong[0] = ~wrong[0]
    assert graph._error(mask, mask, "float32") == 0 and graph._error(wrong, mask, "float32") > 1 > graph._error(wrong, mask, "bfloat16")


def test_score_mods(tmp_path, monkeypatch):
    """A soft cap with a causal mask, forward and backward, beside the definition."""
    file, made = tmp_path / "rows.jsonl", graph.cases
    monkeypatch.setattr(graph, "cases", lambda *given: made(*given)[:2])
    assert graph.main(["--only", "score_mod", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["plan"] for row in rows] == ["sdpa_fwd_naive", "sdpa_bwd_naive"] and all(0 < row["error"] <= 1 for row in rows)
    assert all(row["of_plain"] > 0 and row["plain_plan"] == row["plan"] for row in rows)


def test_norms(tmp_path, monkeypatch):
    """With a mask, and a gradient behind one: each a problem of its family, right beside PyTorch's."""
    file, made = tmp_path / "rows.jsonl", graph.cases
    monkeypatch.setattr(graph, "cases", lambda *given: made(*given)[1:3])
    assert graph.main(["--only", "norm", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    rows = list(map(json.loads, file.read_text().splitlines()))
    assert [row["plan"].split("_naive")[0] for row in rows] == ["batch_norm_train_fwd", "batch_norm_bwd"]
    assert all(0 < row["error"] <= 1 and row["of_plain"] > 0 for row in rows)


def test_genstats(tmp_path, monkeypatch):
    """Three results beside PyTorch's, in one kernel, in front of the convolution's time and the plan with kernels around it."""
    file, made = tmp_path / "rows.jsonl", graph.cases
    monkeypatch.setattr(graph, "cases", lambda *given: made(*given)[1:2])
    assert graph.main(["--only", "genstats", "--dtype", "float32", "--no-peers", "--turns", "1", "--json", str(file)]) == 0
    row, = map(json.loads, file.read_text().splitlines())
    assert row["plan"] == "conv_fwd_naive" and row["plain_plan"].startswith("conv_fwd_")
    assert [name.split("_")[0] for name in row["apart_plan"].split(" | ")] == ["fused", "conv", "batch", "fused"]
    assert 0 < row["error"] <= 1 and row["of_plain"] > 0 and row["of_apart"] > 0
    case = made("genstats", ["float32"], True)[0]
    arrays = case.arrays("cpu")
    arrays["x"][0, 0, 0, 0] += 3
    expected = case.eager()(arrays)
    assert graph._error((*expected[:2], expected[2] * 1.001), expected, "float32") > 1


def test_unknown_parts():
    with pytest.raises(ValueError, match="bench graph: --only has networks; expected some of matmul, swiglu, product_rows, conv"):
        graph.main(["--only", "networks"])


@pytest.mark.parametrize("op, make", [
    ("matmul", lambda module: module.Case(64, 48, 40, layout="nt", program="mul@48 add@64x48 relu mul@0.5 add@64x1 tanh")),
    ("conv_fwd", lambda module: module.parse("2x16x8x8 k16 3x3 p1 --program mul@16x1x1 add@16x1x1 relu add@2x16x8x8",
                                             layouts=("nhwc",))[0]),
    ("fused_pointwise", lambda module: module.parse("64x96 {} mul@96 add@64x96 gelu")[0])])
def test_programs_of_an_operation_beside_torch(op, make):
    """Problems in words, with their peer, through the bench of the operation."""
    case = make(shapes.of(op))
    device = dispatch.device_of(0)
    modules, missing = peers.peers_of(op)
    assert not missing and case.problem.program is not None and "+" in str(case)
    args = run.parser().parse_args([op, "--algo", "chosen", "--turns", "1"])
    with Clock(0) as clock:
        bench = run.CaseBench(case, device, clock, [module for module in modules if module.NAME == "torch"])
        rows = bench.rows(args)
    assert [(row["algo"], row["status"]) for row in rows] == [(bench.chosen[0], "ok"), ("torch", "ok")]


def test_named_programs():
    for op, count in (("matmul", 6), ("conv_fwd", 2)):
        found = shapes.of(op).cases("programs", ("float16",))
        assert len(found) == count and all(case.problem.program.steps for case in found)
