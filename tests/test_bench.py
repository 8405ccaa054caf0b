"""The benches' arithmetic, tables and gate, in the simulator."""
import dataclasses
import importlib
import json
import math
import time
import types

import pytest

from dnnkern import _bench, dispatch, find
from dnnkern.device import SIMULATED
from dnnkern.host import timing
from dnnkern.host.launch import Argument, Launch
from test_find import writes_seven

run = _bench.load()  # makes the folder bench/ importable, wherever pytest was started
from bench import case as measured  # noqa: E402
from bench import peers, report, roof, table  # noqa: E402
from bench.shapes import conv_bwd_bias, conv_bwd_data, conv_bwd_filter, conv_fwd  # noqa: E402
from bench.shapes import grouped_matmul as grouped_shapes  # noqa: E402
from bench.shapes import matmul as shapes  # noqa: E402

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the benches' own rules need no GPU")


def row(algo, time_us, problem="8x8x8", config="", status="ok", **changes):
    numbers = dict(iqr_us=0.02 * time_us, tflops=1e3 / time_us, gbs=100.0, roof=0.5, ratio=20.0 / time_us) if time_us else dict.fromkeys(
        ("iqr_us", "tflops", "gbs", "roof", "ratio"))
    base = dict(op="matmul", problem=problem, algo=algo, config=config, status=status, time_us=time_us, is_peer=False, chosen=False,
                predicted=False, estimate_us=1.0, host_us=6.0, workspace=0, notes=[], turns=9, calls=10, **numbers)
    return {**base, **changes}


ROWS = [row("fast", 10.0, config="tile 64"), row("slow", 15.0, chosen=True, predicted=True, workspace=3 << 20, notes=["TENSOR_CORE"]),
        row("bad", None, status="WRONG: y differs from the naive result by 3"), row("torch", 20.0, is_peer=True, ratio=None),
        row("fast", 10.0, problem="9x9x9", chosen=True, predicted=True, config="tile 64"), row("slow", 40.0, problem="9x9x9")]


@pytest.fixture(autouse=True)
def empty_database(tmp_path, monkeypatch):
    for module in (find, dispatch):
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    dispatch.forget()
    yield
    dispatch.forget()


@pytest.fixture
def wrong_algorithm():
    def build(problem, device, config):
        return (Launch(writes_seven, (1, 1, 1), (32, 1, 1), (Argument("float32*", "y"), Argument("int32", problem.y.size))),)
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    algorithm = dispatch.register(dataclasses.replace(naive, name="wrong", build=build))
    yield algorithm
    dispatch.unregister(algorithm)


def arguments(*words):
    return run.parser().parse_args(["matmul", "--no-peers", *words])


# ---- arithmetic

@pytest.mark.parametrize("op, short, long, name", [
    ("matmul", "64x64x64", "16384x16384x16384", "tiled"), ("rnn_fwd", "8x4 16x16 lstm {}", "256x64 1024x1024 lstm {}", "step"),
    ("rnn_bwd_data", "8x4 16x16 gru {}", "256x64 1024x1024 lstm {}", "step"),
    ("sdpa_fwd", "1x2x64x32 {}", "2x16x8192x128 {}", "flash_simt"), ("sdpa_bwd", "1x2x64x32 {}", "2x16x8192x128 {}", "flash_simt")])
def test_a_reference_that_would_take_long_has_a_stand_in(op, short, long, name, simulated):
    for words, wanted in ((short, "naive"), (long, name)):
        (case,) = importlib.import_module(f"bench.shapes.{op}").parse(words, ("float32",))
        assert dispatch.reference_of(op, case.problem, dispatch.device_of(0)).name == wanted


def test_geomean():
    assert table.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert table.geomean([]) is None and table.geomean([None, 3.0]) == pytest.approx(3.0)


def test_regret_is_the_predicted_time_over_the_best():
    groups = table.by_problem(ROWS)
    assert table.regret(groups["8x8x8"]) == pytest.approx(1.5)
    assert table.regret(groups["9x9x9"]) == pytest.approx(1.0)
    assert table.regret([row("fast", 1.0)]) is None
    assert table.regret([row("fast", None, status="WRONG: x", predicted=True), row("slow", 2.0)]) is None


def test_peers_and_failures_are_never_the_best():
    assert [r["algo"] for r in table.timed(ROWS[:4])] == ["fast", "slow"]


def test_summary():
    lines = "\n".join(table.summary(ROWS, heuristic=True))
    assert f"geometric mean: {math.sqrt(1.5):.3f} over 2 problems, worst 1.500" in lines
    assert "estimate chose slow (predicted 1 µs, took 15), best fast[tile 64] 10 µs" in lines
    assert f"chosen over peer (above 1 is faster), geometric mean: {math.sqrt(20 / 15 * 2):.3f} over 2 problems" in lines
    assert "best over peer (above 1 is faster), geometric mean: 2.000 over 2 problems" in lines
    assert "8x8x8: bad: WRONG: y differs" in lines
    assert table.summary([]) == []


# ---- tables

def test_a_wrong_row_has_a_word_and_no_number():
    cells = dict(zip(table.HEAD, table.cells(ROWS[2])))
    assert cells["time µs"] == "WRONG"
    assert not any(cells[name] for name in ("TFLOP/s", "GB/s", "roof %", "x peer", "host µs"))


def test_cells():
    more = {"eager_us": 12.5, "warm_us": 9.0, "sustained_us": 16.0, "joules": 7.5e-4, "marks": ["power cap"]}
    cells = dict(zip(table.HEAD, table.cells({**ROWS[1], **more})))
    assert cells == {"": "*~", "algorithm": "slow", "configuration": "", "time µs": "15.00", "IQR %": "2.0", "TFLOP/s": "66.7",
                     "GB/s": "100", "roof %": "50.0", "x peer": "1.333",
                     "host µs": "6.0", "eager µs": "12.5", "warm µs": "9.00", "sustained µs": "16.00",
                     "mJ": "0.75", "workspace": "3.0 MiB", "notes": "TENSOR_CORE, power cap"}
    assert table.cells(ROWS[3])[0] == "peer"


def test_the_table_lines_up_and_names_everything(capsys):
    table.show("title", ROWS[:4])
    lines = capsys.readouterr().out.splitlines()
    del lines[2]  # of dashes
    assert lines[0] == "title" and len(lines) == 6
    assert len({line.index(end) + len(end) for line, end in zip(lines[1:4], ("time µs", "10.00", "15.00"))}) == 1


def test_the_table_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    table.show("title [1.0 s]", ROWS[:4])
    out = capsys.readouterr().out
    assert "tile 64" in out and "WRONG" in out and "[1.0 s]" in out and max(map(len, out.splitlines())) <= 100


def test_markdown():
    lines = table.markdown(ROWS).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 8x8x8 | slow | 15.00 ") and "fast[tile 64]" in lines[2]
    assert "the same" in lines[3]


# ---- shapes and roofs

@pytest.mark.parametrize("name", [*shapes.SETS, "all"])
def test_every_case_is_a_problem(name):
    found = shapes.cases(name, shapes.DTYPES)
    assert found and len({str(c) + c.layout for c in found}) == len(found)
    for case in found:
        problem = case.problem
        assert (problem.m, problem.n, problem.k, problem.batch_size) == (case.m, case.n, case.k, case.batch)
        assert problem.bytes < 8 << 30


@pytest.mark.parametrize("name", [*grouped_shapes.SETS, "all"])
def test_every_grouped_case_is_a_problem(name):
    found = grouped_shapes.cases(name, grouped_shapes.DTYPES)
    assert found and len({str(c) for c in found}) == len(found)
    for case in found:
        problem = case.problem
        assert (problem.groups, problem.m_total, problem.n, problem.k) == (case.groups, case.m, case.n, case.k)
        assert problem.bytes < 16 << 30 and (problem.scale_a is not None) == case.dtype.startswith("float8")


@pytest.mark.parametrize("name", [*conv_bwd_data.SETS, "fused", "all"])
def test_every_convolution_is_a_problem(name):
    for module in (conv_fwd, conv_bwd_data, conv_bwd_filter, conv_bwd_bias):
        if name != "all" and name not in module.SETS:
            continue
        found = module.cases(name, module.DTYPES)
        assert found and len({str(c) + c.layout for c in found}) == len(found)
        for case in found:
            assert (case.problem.op, case.problem.layout) == (case.op, case.layout) and 0 < case.problem.bytes < 8 << 30
            assert case.problem.flops > 0 and roof.unit_of(case.problem) == ("fma" if case.dtype == "float32" else case.dtype)


def test_convolutions_are_written_as_on_the_command_line():
    (case,) = conv_fwd.parse("8x16x12x12 k32 3x3 s2 p1 --bias --activation relu", ("bfloat16",), ("nchw",))
    assert str(case) == "8x16x12x12 k32 3x3 s2 p1 bfloat16 NCHW + bias, relu"
    with pytest.raises(ValueError, match="conv_fwd: filter missing"):
        conv_fwd.parse("8x16x12x12 k32")
    with pytest.raises(ValueError, match="conv_bwd_data has no dtype 'int8'"):
        conv_bwd_data.cases("resnet50", ("int8",))
    with pytest.raises(ValueError, match="conv_fwd has no layout 'NT'; there are NCHW and NHWC"):
        conv_fwd.cases("resnet50", layouts=("nt",))


@pytest.mark.parametrize("op, words", [("conv_fwd", "1x3x6x5 k4 3x3 p1 --residual"), ("conv_bwd_data", "1x3x6x5 k4 3x3 s2 p1"),
                                       ("conv_bwd_filter", "1x3x6x5 k4 3x3 p0:1"), ("conv_bwd_bias", "2x3x6x5")])
def test_convolutions_are_measured(op, words, capsys):
    assert run.main([op, "--no-peers", "--problem", words, "--dtype", "float32,bfloat16", "--algo", "naive"]) == 0
    assert words.split()[0] + " " in capsys.readouterr().out


def test_scales_are_for_8_bit_floats():
    assert [c.scales for c in shapes.parse("256x256x256", ("float8_e4m3fn", "float32"))] == [("tensor", "tensor")] * 2
    plain, scaled = (shapes.cases("scaled", (dtype,)) for dtype in ("bfloat16", "float8_e4m3fn"))
    assert 2 * len(plain) == len(scaled) and {c.problem.scales.by_block for c in scaled} == {True, False}
    assert all(c.problem.scale_a is None for c in plain)


@pytest.mark.parametrize("op, others", [("matmul", []), ("grouped_matmul", []), ("conv_fwd", ["cudnn fused"]),
                                        ("conv_bwd_data", []), ("conv_bwd_filter", []), ("conv_bwd_bias", [])])
def test_peers_are_those_of_their_operation(op, others):
    found, missing = peers.peers_of(op)
    assert [m.NAME for m in found] + list(missing) == [*others, "torch"]


def test_options_of_cases():
    (case,) = shapes.parse("2x3x4x5", ("bfloat16",), ("tn",))
    assert (case.batch, case.m, case.n, case.k, case.layout) == (2, 3, 4, 5, "tn")
    assert {c.layout for c in shapes.cases("square", layouts=("nn", "tt"))} == {"nn", "tt"}
    assert [c.math for c in shapes.parse("3x4x5", ("float32", "float16"), math="tf32")] == ["tf32", None]
    for text in ("3x4", "axbxc"):
        with pytest.raises(ValueError, match="MxNxK"):
            shapes.parse(text)
    with pytest.raises(ValueError, match="no set"):
        shapes.cases("round")
    with pytest.raises(ValueError, match="no dtype"):
        shapes.cases("square", ("float8",))
    with pytest.raises(ValueError, match="GxMxNxK"):
        grouped_shapes.parse("3x4x5")
    with pytest.raises(ValueError, match="no layout 'tn'"):
        grouped_shapes.parse("2x3x4x5", layouts=("tn",))


def test_the_floor_is_the_longer_of_bytes_and_operations():
    roofs = {"copy": 1e12, "fma": 1e13}
    large, thin = shapes.Case(1024, 1024, 1024).problem, shapes.Case(1, 4096, 4096).problem
    assert roof.floor_seconds(large, roofs) == pytest.approx(2 * 1024 ** 3 / 1e13)
    assert roof.floor_seconds(thin, roofs) == pytest.approx(thin.bytes / 1e12)
    assert roof.floor_seconds(shapes.Case(8, 8, 8, dtype="bfloat16").problem, roofs) is None
    assert roof.unit_of(shapes.Case(8, 8, 8, math="tf32").problem) == "tf32"


# ---- the command

def test_the_gate_catches_a_wrong_algorithm(wrong_algorithm, capsys):
    assert run.run(arguments("--problem", "5x4x3", "--algo", "naive,wrong")) == 1
    out = capsys.readouterr().out
    (line,) = [x for x in out.splitlines() if x.split()[:1] == ["wrong"]]
    assert line.split() == ["wrong", "WRONG"]
    assert "5x4x3 float32 nn: wrong: WRONG: y differs from the naive result" in out


def test_rows_are_written_as_json_lines(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    assert run.main(["matmul", "--no-peers", "--problem", "5x4x3", "--dtype", "float32,bfloat16", "--algo", "naive", "--heuristic",
                     "--json", str(path)]) == 0
    rows = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert [r["problem"] for r in rows] == ["5x4x3 float32 nn", "5x4x3 bfloat16 nn"]
    assert all(r["status"] == "ok" and r["time_us"] > 0 and r["record"]["a"]["shape"] == [5, 3] for r in rows)
    assert {"device", "clocks", "versions", "commit", "date"} <= set(rows[0]["machine"])


def test_grouped_products_are_measured(capsys):
    assert run.main(["grouped_matmul", "--no-peers", "--problem", "3x5x4x3", "--dtype", "float32,float8_e4m3fn", "--algo", "naive"]) == 0
    assert "3 groups of 5x4x3 float8_e4m3fn nt -> bfloat16 + scales by tensor and tensor" in capsys.readouterr().out


def test_what_a_peer_cannot_leave_out_is_taken_off(monkeypatch, tmp_path, simulated):
    """The part is timed in the same race, and has no row."""
    def make(case, operands, clock):
        whole, part = (timing.Contender(name, lambda k, s=s: time.sleep(s)) for name, s in (("lib", 0.03), ("lib's part", 0.02)))
        return peers.Peer(whole, lambda: None, results=(), less=part)
    monkeypatch.setattr(run, "peers_of", lambda op: ([types.SimpleNamespace(NAME="lib", make=make)], {}))
    path = tmp_path / "rows.jsonl"
    assert run.main(["matmul", "--problem", "5x4x3", "--algo", "naive", "--json", str(path)]) == 0
    rows = {r["algo"]: r for r in map(json.loads, path.read_text().splitlines())}
    assert set(rows) == {"naive", "lib"} and 0 < rows["lib"]["time_us"] < 20e3


def test_little_that_is_left_of_a_peer_is_no_time(monkeypatch, tmp_path, simulated):
    """Of a difference of two times that are almost the same nothing is known."""
    def make(case, operands, clock):
        whole, part = (timing.Contender(name, lambda k: time.sleep(0.03)) for name in ("lib", "lib's part"))
        return peers.Peer(whole, lambda: None, results=(), less=part)
    monkeypatch.setattr(run, "peers_of", lambda op: ([types.SimpleNamespace(NAME="lib", make=make)], {}))
    path = tmp_path / "rows.jsonl"
    run.main(["matmul", "--problem", "5x4x3", "--algo", "naive", "--json", str(path)])
    rows = {r["algo"]: r for r in map(json.loads, path.read_text().splitlines())}
    assert rows["lib"]["status"].startswith("NO TIME: what is left of ") and rows["lib"]["time_us"] is None
    assert rows["naive"]["ratio"] is None and {"lib not told apart", "no peer"} <= set(rows["naive"]["marks"])


def test_what_get_answers_is_always_measured(monkeypatch, capsys):
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    monkeypatch.setattr(measured, "HOPELESS", 0.0)
    monkeypatch.setattr(dispatch, "get_algorithm", lambda *_, **__: naive)
    rows = run.measure(arguments("--problem", "5x4x3", "--configs", "1"), dispatch.device_of(0))
    assert [r["algo"] for r in rows if r["chosen"]] == ["naive"]


def test_unknown_names(capsys):
    with pytest.raises(ValueError, match="no algorithm nothing; there are .*naive"):
        run.run(arguments("--algo", "nothing", "--problem", "5x4x3"))
    with pytest.raises(ValueError, match="'nonsense'; there are some for .*grouped_matmul, .*matmul.*, transpose"):
        run.main(["nonsense"])


def test_report(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    machine = {"device": "D", "arch": "sm_90a", "date": "2026-01-01T00:00:00", "commit": "abc", "clocks": {}, "torch": "2.0"}
    path, picture = tmp_path / "rows.jsonl", tmp_path / "rows.png"
    lines = [json.dumps({**r, "machine": machine, "roofs": {"copy": 4e12, "fma": 6e13}}) for r in ROWS]
    path.write_text("\n".join([json.dumps({"machine": machine, "overhead": []}), lines[0]] + lines) + "\n")
    assert report.main([str(path), "--png", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "Roofs of the run: copy 4000 GB/s, fma 60.0 TFLOP/s." in out and "| 9x9x9 | fast[tile 64] |" in out
    assert len(report.read([path])) == len(ROWS)
    assert picture.read_bytes().startswith(b"\x89PNG")


# ---- the ladder

def cubes(algo, rates, kind="bfloat16 nt", **more):
    """Rows of N x N products that ran at {N: TFLOP/s}."""
    return [row(algo, 2 * n ** 3 / rate / 1e6, problem=f"{n}x{n}x{n} {kind}", tflops=rate, machine=MACHINE, roofs={}, **more)
            for n, rate in rates.items()]


MACHINE = {"device": "D", "arch": "sm_90a", "date": "2026-01-01T00:00:00", "commit": "abc", "clocks": {}, "torch": "2.0"}
LADDER = (cubes("wgmma", {1000: 300.0, 4096: 600.0}, config="128x128") + cubes("wgmma", {1000: 250.0, 4096: 700.0}, config="128x256")
          + cubes("torch", {1000: 310.0, 4096: 690.0}, is_peer=True, ratio=None) + cubes("naive", {256: 0.5, 1000: 1.25})
          + cubes("mma", {4096: 500.0}) + [row("bad", None, problem="64x64x64 float16 nn", status="WRONG: y", machine=MACHINE)])


def test_a_ladder_has_the_fastest_configuration_of_each_size():
    rungs = report.ladder(LADDER)
    assert rungs == {"naive": {256: 0.5, 1000: 1.25}, "mma": {4096: 500.0}, "wgmma": {1000: 300.0, 4096: 700.0},
                     "torch (peer)": {1000: 310.0, 4096: 690.0}}
    assert list(rungs) == ["naive", "mma", "wgmma", "torch (peer)"], "slowest first, peers last"
    assert report.ladder_table(rungs).splitlines() == [
        "| TFLOP/s | 256 | 1000 | 4096 |", "|---|--:|--:|--:|", "| naive | 0.50 | 1.25 |  |", "| mma |  |  | 500 |",
        "| wgmma |  | 300 | 700 |", "| torch (peer) |  | 310 | 690 |"]
    assert "| 9.95 | 12.3 | 1235 |" in report.ladder_table({"fp8": {1: 9.951, 2: 12.34, 3: 1234.6}})
    assert report.ladder([]) == {}


def test_a_ladder_is_of_one_kind():
    with pytest.raises(ValueError, match="differ in more than their size: bfloat16 nt; float32 nn; choose with --only"):
        report.ladder(LADDER + cubes("naive", {256: 1.0}, kind="float32 nn"))


def test_sizes_of_products_that_are_no_cubes():
    (thin,) = cubes("naive", {512: 3.0})
    assert report.size_of({**thin, "problem": "128x1024x1024 bfloat16 nt"}) == 512 and report.kind_of(thin) == "bfloat16 nt"


def test_the_ladder_is_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "rows.jsonl", tmp_path / "ladder.svg"
    path.write_text("".join(json.dumps(r) + "\n" for r in LADDER + cubes("naive", {256: 1.0}, kind="float32 nn")))
    assert report.main([str(path), "--ladder", str(picture), "--only", "nt bfloat16"]) == 0
    assert "| wgmma |  | 300 | 700 |" in capsys.readouterr().out
    text = picture.read_text()
    assert all(f"<!-- {name} -->" in text for name in ("naive", "mma", "wgmma", "torch (peer)", "TFLOP/s", "4096"))
    assert "<!-- matmul bfloat16 nt, D, 2026-01-01, commit abc -->" in text


# ---- the layers

def test_layers_have_the_shortest_time_of_each_algorithm(tmp_path):
    rows = [row("a", 10.0, problem="p"), row("a", 8.0, problem="p", config="wide"), row("a", 5.0, problem="q"), row("b", 7.0, problem="p"),
            row("b", 4.0, problem="q"), row("torch", 9.0, problem="p", is_peer=True), row("bad", None, problem="p", status="WRONG: y")]
    assert report.layers(rows) == {"b": {"p": 7.0, "q": 4.0}, "a": {"p": 8.0, "q": 5.0}, "torch (peer)": {"p": 9.0}}
    assert list(report.layers(rows)) == ["b", "a", "torch (peer)"], "the one that is fastest most often first, peers last"
    pytest.importorskip("matplotlib")
    picture = tmp_path / "layers.svg"
    report.draw_layers([{**r, "machine": MACHINE} for r in rows], str(picture))
    text = picture.read_text()
    assert all(f"<!-- {name} -->" in text for name in ("a", "b", "torch (peer)", "p", "q", "microseconds")) and "<!-- bad -->" not in text
