"""The charts of the README: their numbers, from rows, and that the committed ones are of the committed rows."""
import json
import pathlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from dnnkern import _bench
from dnnkern.device import SIMULATED
from dnnkern.report import rows as results

_bench.load()  # makes the folder bench/ importable, wherever pytest was started
from bench import charts, report, shapes  # noqa: E402

pytestmark = pytest.mark.skipif(not SIMULATED, reason="pictures of what was measured need no GPU")
DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
ROOFS = {"copy": 4e12, "bfloat16": 8e14}


def row(problem="p", op="matmul", algo="mma", ratio=1.5, roof=0.5, gbs=2000.0, chosen=True, date="2026-01-02T00:00:00", device="A", **more):
    return {"op": op, "problem": problem, "algo": algo, "config": "", "status": "ok", "time_us": 5.0, "is_peer": False, "chosen": chosen,
            "ratio": ratio, "roof": roof, "gbs": gbs, "roofs": ROOFS, "machine": {"device": device, "date": date}, **more}


def timed(problem="gpt2-train-16", ours=2.0, eager=4.0, inductor=3.0, date="2026-01-01T00:00:00", shaken=1.0, **more):
    times = {"ours": ours, "eager": eager, "inductor": inductor}
    return {"op": "compile", "problem": problem, "mode": None, "status": "ok", "machine": {"device": "A", "date": date},
            **{f"{way}_ms": t for way, t in times.items()}, **{f"{way}_turns": [t, t * shaken] for way, t in times.items()}, **more}


def texts(path):
    return [e.text for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_every_operation_has_one_family():
    for op in shapes.operations():
        assert [name for name, pattern in results.FAMILIES.items() if re.fullmatch(pattern, op)] == [charts.family(op)], op
    assert charts.family("nonsense") is None


def test_what_counts_is_what_was_chosen_last():
    rows = [row(algo="new", ratio=1.2, date="2026-01-03T00:00:00"), row(algo="old", ratio=9.0), row(algo="best", chosen=False, ratio=10.0),
            row(algo="torch", is_peer=True), row("q", status="WRONG"), row("r", ratio=None)]
    assert [(r["problem"], r["algo"]) for r in charts.chosen(rows)] == [("p", "new"), ("r", "mma")]
    assert charts.ratios(rows) == {"matrix products": [1.2]}


def test_ratios_by_family():
    speeds = [0.5, 0.9, 1.0, 2.0, 4.5]
    rows = [row(f"p{k}", ratio=v) for k, v in enumerate(speeds)] + [row("s", op="softmax_fwd", ratio=3.0)]
    (first, quarter, text), (second, same, other) = charts.ratio_lines(rows)
    np.testing.assert_allclose(quarter, np.percentile(speeds, (25, 50, 75)))
    assert (first, text) == ("matrix products", "1.00x, faster in 2 of 5")
    assert (second, same, other) == ("softmax", (3.0, 3.0, 3.0), "3.00x, faster in 1 of 1")


def test_shares_by_what_binds():
    """2,000 GB/s are half of the copy rate; a share above that is of the arithmetic units."""
    rows = [row("a", roof=0.5), row("b", roof=0.8), row("c", roof=0.6), row("d", roof=None)]
    assert charts.roofs(rows) == {("matrix products", "memory"): [0.5], ("matrix products", "arithmetic"): [0.8, 0.6]}
    assert [line[3] for line in charts.roof_lines(rows)] == ["50 % of 1", "70 % of 2"]


def test_rows_are_of_the_record_once_it_has_all_families():
    ops = [next(op for op in shapes.operations() if charts.family(op) == name) for name in results.FAMILIES]
    old = {"op": ops[0], "problem": "old", "machine": {"commit": "a"}}
    record = [{"op": op, "problem": "new", "set": "s", "machine": {"commit": "b"}} for op in ops]
    changed = {**record[0], "machine": {"commit": "b+"}}
    assert results.recorded([old, *record, changed]) == record
    assert results.recorded([old, *record[1:], changed]) == [old, *record[1:]]


def test_one_device_a_chart():
    rows = [row("a"), row("b"), row("c", device="B")]
    assert [r["problem"] for r in charts.on_device(rows)] == ["a", "b"]
    assert [r["problem"] for r in charts.on_device(rows, "B")] == ["c"]
    with pytest.raises(ValueError, match="no rows of 'C'; there are some of A, B"):
        charts.on_device(rows, "C")
    with pytest.raises(ValueError, match="there are some of no device"):
        charts.on_device([])


def test_programs():
    """The latest steady row; where the host was busy in every one, that of the smallest gain: no luck counts for us."""
    steady = [timed(ours=2.0), timed(ours=1.9, date="2026-01-02T00:00:00"), timed(ours=1.0, date="2026-01-03T00:00:00", shaken=1.5)]
    name = "llama-train-1"
    shaken = [timed(name, ours=o, date=f"2026-01-0{k}T00:00:00", shaken=2.0) for k, o in ((1, 1.0), (2, 2.5), (3, 1.5))]
    others = [timed(name, status="failed"), timed(name, mode="reduce-overhead"), timed("other"), {"op": "compile"}, {}]
    assert [(r["problem"], r["ours_ms"]) for r in charts.programs(steady + shaken + others)] == [("gpt2-train-16", 1.9), (name, 2.5)]
    assert charts.programs([]) == []


def test_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rows.jsonl"
    lines = [row("a"), row("b", date="2026-01-05T00:00:00"), row("c", device="B"), timed(), timed(date="2026-01-02T00:00:00", ours=1.0)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.main([str(path), "--charts", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.split()) == 6
    for theme in charts.THEMES:
        ratio, steps = texts(tmp_path / f"ratio-{theme}.svg"), texts(tmp_path / f"compile-{theme}.svg")
        assert "1.50x, faster in 2 of 2" in ratio and "matrix products" in ratio
        assert any("A, 2026-01-02 to 2026-01-05, 2 rows" in t for t in ratio)
        assert "50 % of 2" in texts(tmp_path / f"roof-{theme}.svg")
        assert {"1 ms  dnnkern", "4 ms  PyTorch as it is", "3 ms  Inductor", "GPT-2 small, training"} <= set(steps)


@pytest.mark.parametrize("text, words", [
    ("", "no rows; there are some of no device"), ('{"op": "mat', "rows.jsonl:1: no line of results"),
    ("\n[1, 2]\n", "rows.jsonl:2: no line of results: [1, 2]; expected a JSON object"),
    ('{"other": 1}\n', "no rows"), (json.dumps(row()) + "\n\n\xff", "rows.jsonl:3: no line of results")])
def test_foreign_files(text, words, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as ended:
        report.main([str(path), "--charts", str(tmp_path)])
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_no_file(capsys, tmp_path):
    for words, said in (([], "required: files"), ([str(tmp_path / "none")], "No such file")):
        with pytest.raises(SystemExit):
            report.main(words)
        assert said in capsys.readouterr().err


def test_the_committed_charts_are_of_the_committed_rows():
    paths = report.files(report.RESULTS)
    rows, programs = charts.on_device(report.read(paths)), charts.programs(list(report.records(paths)))
    wanted = {"ratio": [line[2] for line in charts.ratio_lines(rows)], "roof": [line[3] for line in charts.roof_lines(rows)],
              "compile": [f"{r[f'{way}_ms']:.3g} ms  {name}" for r in programs for way, name in charts.WAYS.items()]}
    for kind, lines in wanted.items():
        for theme in charts.THEMES:
            path = DOCS / f"{kind}-{theme}.svg"
            assert path.stat().st_size < 60_000
            found = texts(path)
            assert [t for t in found if t in set(lines)] == lines, f"{path.name} is of other rows: python -m bench.report --charts docs"
            assert any(re.search(r"NVIDIA H\d00.* rows of", t) for t in found)
