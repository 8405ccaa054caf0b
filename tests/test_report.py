"""The page of results: its data against the rows, what it loads, comparisons, and that what is wrong is one line and exit code 2."""
import base64
import collections
import configparser
import fnmatch
import functools
import gzip
import html.parser
import json
import math
import pathlib
import re
import shutil

import numpy as np
import pytest

from dnnkern import _report
from dnnkern.__main__ import main
from dnnkern.device import SIMULATED
from dnnkern.report import compare, data, page, rows

pytestmark = pytest.mark.skipif(not SIMULATED, reason="pages of what was measured need no GPU")
ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = rows.files(ROOT / "bench" / "results")
ROOFS = {"copy": 4e12, "bfloat16": 8e14, "fma": 6e13}
LIMIT = 2 << 20  # bytes of the page of all committed results


def machine(device="A", date="2026-01-02T03:04:05+00:00", commit="abcdef0123", **more):
    return {"device": device, "arch": "sm_90a", "sms": 132, "clocks": {"driver_version": "580.1", "power.limit": "700.00"},
            "torch": "2.11.0", "versions": {"numba": "0.68.0"}, "commit": commit, "date": date, **more}


def row(problem="8x8x8 bfloat16 nn", algo="mma", time_us=10.0, op="matmul", config="", is_peer=False, chosen=False, predicted=False,
        status="ok", ratio=None, roof=0.5, gbs=400.0, tflops=4.0, iqr_us=0.01, **of_machine):
    return {"op": op, "problem": problem, "algo": algo, "config": config, "status": status, "time_us": time_us, "iqr_us": iqr_us,
            "tflops": tflops, "gbs": gbs, "roof": roof, "ratio": ratio, "is_peer": is_peer, "chosen": chosen, "predicted": predicted,
            "host_us": 5.0, "workspace": 0, "estimate_us": None if is_peer else 9.0, "notes": [], "roofs": ROOFS,
            "machine": machine(**of_machine)}


def program(problem="gpt2-train-16", ours=2.0, eager=4.0, **of_machine):
    return {"op": "compile", "problem": problem, "mode": None, "status": "ok", "ours_ms": ours, "eager_ms": eager, "inductor_ms": 3.0,
            "machine": machine(**of_machine)}


def graph(problem="chain 8x8 float16", graph_us=5.0, **of_machine):
    return {"op": "graph", "problem": problem, "plan": "p", "status": "ok", "graph_us": graph_us, "torch.compile_us": 6.0, "torch_us": 20.0,
            "machine": machine(**of_machine)}


def write(path, some):
    path.write_text("".join(json.dumps(r) + "\n" for r in some))
    return str(path)


@pytest.fixture
def without_vega(monkeypatch):
    monkeypatch.setattr(page, "vega", lambda: "window.vegaEmbed = null;")


class Page(html.parser.HTMLParser):
    """Tags, what they load, and the texts of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.texts, self.within = [], collections.defaultdict(str), None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loads += [found[name] for name in ("src", "href", "srcset", "action", "data") if found.get(name)]
        if tag in ("script", "style"):
            self.within = "data" if found.get("id") == "data" else tag

    def handle_endtag(self, tag):
        self.within = None

    def handle_data(self, text):
        if self.within:
            self.texts[self.within] += text


def data_of(page):
    """The data of a page's text."""
    return json.loads(gzip.decompress(base64.b64decode(Page(page).texts["data"])))


def decoded(found):
    """The rows of a page's data, as {column: value}."""
    table = found["rows"]
    texts = {name: [table[name]["texts"][k] for k in table[name]["codes"]] for name in data.COLUMNS}
    return [{**{name: texts[name][k] for name in texts}, **{name: table[name][k] for name in (*data.MEASURES, "regret")}}
            for k in range(table["count"])]


def made(path, *words):
    code = main(["report", *words, "--out", str(path), "--quiet"])
    return code, data_of(path.read_text())


# ---- the page of all that is committed

@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    pytest.importorskip("vl_convert", reason="vl_convert is not installed")
    path = tmp_path_factory.mktemp("report") / "page.html"
    assert main(["report", *map(str, RESULTS), "--out", str(path), "--quiet"]) == 0
    return path


@functools.cache
def raw_rows():
    """All lines of bench/results, read here anew."""
    return [json.loads(line) for path in RESULTS for line in rows.opened(path, "rt") if line.strip()]


def test_the_page_is_small_and_loads_nothing(committed):
    assert committed.stat().st_size < LIMIT
    text = committed.read_text()
    found = Page(text)
    assert all(load.startswith(("#", "data:")) for load in found.loads), found.loads
    assert not re.search(r"url\(|@import", found.texts["style"])
    ours = text[text.index('"use strict"'):]
    assert "http" not in ours.replace("http://www.w3.org/2000/svg", "") and "fetch(" not in ours and "import(" not in ours
    assert "vegaEmbed" in found.texts["script"] and "{{" not in text[:text.index("<script")]


def test_the_pages_rows_are_the_committed_ones(committed):
    found = data_of(committed.read_text())
    wanted = {}
    for r in raw_rows():
        if {"machine", "op", "algo", "config", "is_peer", "chosen", "roof"} <= r.keys():
            key = r["machine"]["device"], r["op"], r["problem"], r["algo"], r["config"]
            if key not in wanted or wanted[key]["machine"]["date"] <= r["machine"]["date"]:
                wanted[key] = r
    got = {(r["device"], r["op"], r["problem"], r["algo"], r["config"]): r for r in decoded(found)}
    assert got.keys() == wanted.keys() and found["rows"]["count"] == len(wanted) > 5000
    for key, r in wanted.items():
        for name in data.MEASURES:
            if r.get(name) is None:
                assert got[key][name] is None, (key, name)
            else:
                assert got[key][name] == pytest.approx(r[name], rel=6e-4), (key, name)
        assert got[key]["status"] == r["status"] and (got[key]["kind"] == "peer") == r["is_peer"]
    assert len(found["devices"]) == len({r["machine"]["device"] for r in raw_rows() if rows.FIELDS <= r.keys() or data.is_drawn(r)})


CHARTS = {  # of each chart of the page the rows that it draws
    "ratio": lambda d, r: [x for x in r if "*" in x["kind"] and x["ratio"]],
    "roofline": lambda d, r: [x for x in r if "*" in x["kind"] and x["tflops"] and x["gbs"]],
    "algorithms": lambda d, r: [x for x in r if x["status"] == "ok" and x["time_us"]],
    "share": lambda d, r: [x for x in r if "*" in x["kind"] and x["roof"] and x["bound"]],
    "regret": lambda d, r: [x for x in r if x["regret"]],
    "bandwidth": lambda d, r: [x for x in r if "*" in x["kind"] and x["bound"] == "memory" and x["gbs"]],
    "estimate": lambda d, r: [x for x in r if x["kind"] and x["estimate_us"]],
    "host": lambda d, r: [x for x in r if x["kind"] and x["host_us"]],
    "graphs": lambda d, r: d["graphs"], "history": lambda d, r: d["history"], "programs": lambda d, r: d["programs"],
    "overheads": lambda d, r: d["host"], "changes": lambda d, r: [True]}  # only with --compare
LEAST = {"ratio": 800, "roofline": 600, "algorithms": 5000, "share": 900, "regret": 900, "bandwidth": 500, "estimate": 900, "host": 1700,
         "graphs": 100, "history": 100, "programs": 20, "overheads": 60, "changes": 1}


def test_every_chart_has_its_data(committed):
    text = committed.read_text()
    charts = re.findall(r"^const chart\w+ = \{\n  id: \"(\w+)\"", text, re.MULTILINE)
    found = data_of(text)
    got = decoded(found)
    assert sorted(charts) == sorted(CHARTS)
    for name in charts:
        assert len(CHARTS[name](found, got)) >= LEAST[name], name


def test_the_families_are_those_of_the_rows(capsys, tmp_path, without_vega):
    """Geometric means and medians, computed anew by NumPy."""
    out = tmp_path / "p.html"
    assert main(["report", *map(str, RESULTS), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["command"], told["bytes"], told["file"]) == (1, "report", out.stat().st_size, str(out))
    timed, latest = {}, {}
    for r in sorted((r for r in raw_rows() if rows.FIELDS <= r.keys()), key=lambda r: r["machine"]["date"]):
        timed[r["machine"]["device"], r["op"], r["problem"], r["algo"], r["config"]] = r
    for r in sorted(timed.values(), key=lambda r: r["machine"]["date"]):  # a later run may not have timed what was chosen
        if r["chosen"] and not r["is_peer"] and r["status"] == "ok":
            latest[r["machine"]["device"], r["op"], r["problem"]] = r
    for f in told["families"]:
        some = [r for (device, op, _), r in latest.items() if device == f["device"] and rows.family(op) == f["family"]]
        ratios = [r["ratio"] for r in some if r["ratio"]]
        assert (len(some), len(ratios), sum(x > 1 for x in ratios)) == (f["problems"], f["with_peer"], f["faster"])
        if ratios:
            assert f["ratio"] == pytest.approx(np.exp(np.mean(np.log(ratios))))
        assert f["roof"] == pytest.approx(np.median([r["roof"] for r in some if r["roof"]]))
    assert sum(f["problems"] for f in told["families"]) == len(latest)


# ---- what becomes of rows

def test_regret_and_choice_are_of_the_latest_run(tmp_path, without_vega):
    old = [row(algo="fast", time_us=5.0, date="2026-01-01", commit="1111111111"),
           row(algo="slow", time_us=50.0, date="2026-01-01", commit="1111111111", chosen=True, predicted=True)]
    new = [row(algo="slow", time_us=12.0, ratio=2.0, date="2026-01-03", commit="2222222+", chosen=True, predicted=True),
           row(algo="other", time_us=8.0, date="2026-01-03", commit="2222222+"),
           row(algo="torch", time_us=24.0, is_peer=True, date="2026-01-03", commit="2222222+")]
    code, found = made(tmp_path / "p.html", write(tmp_path / "r.jsonl", old + new))
    got = {r["algo"]: r for r in decoded(found)}
    assert code == 0 and {name: r["kind"] for name, r in got.items()} == {"fast": "", "slow": "*~", "other": "", "torch": "peer"}
    assert got["slow"]["regret"] == 1.5 and got["other"]["regret"] is None
    assert got["slow"]["family"] == "matrix products" and got["slow"]["dtype"] == "bfloat16" and got["slow"]["unit"] == "bfloat16"
    assert got["slow"]["commit"] == "2222222+" and got["fast"]["commit"] == "1111111"
    (history,) = found["history"]
    assert [run[1] for run in history["runs"]] == ["1111111", "2222222+"] and [run[4] for run in history["runs"]] == [50, 12]


def test_bound_is_by_the_roof_of_the_run(tmp_path, without_vega):
    some = [row("m bfloat16", chosen=True, roof=0.1, gbs=400.0), row("a bfloat16", chosen=True, roof=0.5, gbs=400.0),
            row("n", chosen=True, roof=None)]
    got = {r["problem"]: r for r in decoded(made(tmp_path / "p.html", write(tmp_path / "r.jsonl", some))[1])}
    assert [got[p]["bound"] for p in ("m bfloat16", "a bfloat16", "n")] == ["memory", "arithmetic", ""]
    assert got["n"]["dtype"] == "other" and got["n"]["unit"] == "fma"


def test_of_programs_graphs_and_host_times_the_newest_counts(tmp_path, without_vega):
    some = [program(ours=2.5, date="2026-01-03"), program(ours=9.0, date="2026-01-01"), program("x", ours=1.0),
            graph(graph_us=7.0, date="2026-01-01"), graph(graph_us=5.0, date="2026-01-04"),
            {"op": "graph", "what": "host: execute", "us": 10.0, "machine": machine()},
            {"machine": machine(), "overhead": [["ms", {"import dnnkern": [0.5, "note"]}], ["µs", {"matmul": 7.0, "none": None}]]},
            {"op": "compile", "problem": "broken", "status": "WRONG", "machine": machine()}]
    found = made(tmp_path / "p.html", write(tmp_path / "r.jsonl", some))[1]
    assert {p["problem"]: (p["ours"], p["inductor"], p["eager"]) for p in found["programs"]} == {
        "gpt2-train-16": (2.5, 3, 4), "x": (1, 3, 4)}
    assert [(g["graph"], g["torch_compile"], g["torch"]) for g in found["graphs"]] == [(5, 6, 20)]
    assert {h["what"]: h["us"] for h in found["host"]} == {"host: execute": 10, "import dnnkern": 500, "matmul": 7}
    assert found["files"] == [{"file": "r.jsonl", "rows": 8, "drawn": 7}] and found["rows"]["count"] == 0


def test_two_devices_in_one_file(tmp_path, without_vega):
    some = [row(device="A", chosen=True), row(device="B", chosen=True, time_us=7.0), row("9x9x9", device="B", chosen=True)]
    found = made(tmp_path / "p.html", write(tmp_path / "r.jsonl", some))[1]
    assert [(d["name"], d["rows"], d["driver"]) for d in found["devices"]] == [("B", 2, "580.1"), ("A", 1, "580.1")]
    assert sorted((r["device"], r["problem"], r["time_us"]) for r in decoded(found)) == [
        ("A", "8x8x8 bfloat16 nn", 10), ("B", "8x8x8 bfloat16 nn", 7), ("B", "9x9x9", 10)]


def test_texts_of_rows_end_no_script(tmp_path, without_vega):
    some = [row("</script><script>alert(1)</script> {{style}} <!--", chosen=True, device="<b>&amp;")]
    code, found = made(tmp_path / "p.html", write(tmp_path / "r.jsonl", some))
    assert decoded(found)[0]["problem"] == some[0]["problem"] and found["devices"][0]["name"] == "<b>&amp;"
    assert "<title>dnnkern: &lt;b&gt;&amp;amp;</title>" in (tmp_path / "p.html").read_text()


def test_numbers_have_four_digits():
    assert [data.short(v) for v in (0.000123456, 12345.678, 2.0, None, True, "x")] == [0.0001235, 12350, 2, None, None, None]


# ---- comparisons

def peers(times):
    return [row(f"peer {k}", "torch", time, is_peer=True) for k, time in enumerate(times)]


def test_slower_is_what_exceeds_the_spread_of_peers():
    before = peers([10.0] * 40) + [row("p", "a", 100.0, chosen=True), row("q", "a", 100.0), row("r", "a", 100.0), row("s", "a", 100.0)]
    after = peers([10.0] * 35 + [10.4] * 5) + [row("p", "a", 104.1, chosen=True), row("q", "a", 103.9), row("r", "a", 95.0),
                                               row("t", "a", 1.0)]
    got = compare.compare(before, after)
    assert got["spread"] == pytest.approx(0.04) and got["peers"] == 40
    assert [(r["problem"], r["called"]) for r in got["slower"]] == [("p", True)] and got["slower"][0]["change"] == pytest.approx(0.041)
    assert [r["problem"] for r in got["faster"]] == ["r"] and (got["compared"], got["only_before"], got["only_after"]) == (3, 1, 1)


def test_few_peers_leave_the_usual_spread_and_a_row_its_own():
    noisy = row("q", "a", 110.0, iqr_us=12.0)
    got = compare.compare(peers([10.0]) + [row("p", "a", 100.0), row("q", "a", 100.0)], peers([20.0]) + [row("p", "a", 102.4), noisy])
    assert got["spread"] == compare.SPREAD and got["peers"] == 0 and got["slower"] == []
    assert [r["problem"] for r in compare.compare([row("p", "a", 100.0)], [row("p", "a", 102.4)], spread=0.02)["slower"]] == ["p"]


def test_the_usual_spread_is_that_of_the_committed_peers():
    """Peers' code is the same from commit to commit: what their times differ by is the run's."""
    runs = collections.defaultdict(list)
    for r in sorted((r for r in raw_rows() if rows.FIELDS <= r.keys()), key=lambda r: r["machine"]["date"]):
        if r["is_peer"] and r["status"] == "ok":
            runs[r["machine"]["device"], r["op"], r["problem"], r["algo"]].append(r["time_us"])
    drift = [abs(b / a - 1) for times in runs.values() for a, b in zip(times, times[1:])]
    assert len(drift) > 400 and np.quantile(drift, 0.95) == pytest.approx(compare.SPREAD, abs=0.003)


def test_another_choice_and_a_wrong_result_are_found():
    before = [row("p", "a", 10.0, chosen=True), row("p", "b", 15.0), row("q", "a", 10.0, config="x", chosen=True), row("r", "a", 5.0)]
    after = [row("p", "a", 10.0), row("p", "b", 15.0, chosen=True), row("q", "a", 13.0, config="y", chosen=True),
             row("r", "a", None, status="WRONG: by 3", roof=None)]
    got = compare.compare(before, after)
    assert [(r["problem"], r["algo"], r["config"], round(r["change"], 3)) for r in got["slower"]] == [
        ("p", "a -> b", "", 0.5), ("q", "a", "x -> y", 0.3)]
    assert [(r["problem"], r["status"]) for r in got["wrong"]] == [("r", "WRONG: by 3")]


def test_devices_are_not_compared_with_each_other():
    got = compare.compare([row("p", "a", 10.0), row("p", "a", 10.0, device="B")], [row("p", "a", 10.0), row("p", "a", 30.0, device="B")])
    assert [r["device"] for r in got["slower"]] == ["B"]
    with pytest.raises(ValueError, match="no algorithm was measured in both"):
        compare.compare([row("p", "a", 10.0)], [row("p", "a", 10.0, device="B")])


def test_compare_ends_with_1_and_lists_what_is_slower(capsys, tmp_path):
    a = write(tmp_path / "a.jsonl", [row("p", "mma", 10.0, chosen=True), row("q", "mma", 10.0)])
    b = write(tmp_path / "b.jsonl", [row("p", "mma", 12.0, chosen=True), row("q", "mma", 10.1)])
    assert main(["report", "--compare", a, b]) == 1
    out = capsys.readouterr().out
    assert "matmul" in out and "+20.0" in out and "1 slower, 0 faster, 0 wrong of 2 compared" in out
    assert main(["report", "--compare", b, a]) == 0 and main(["report", "--compare", a, a, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", "--compare", a, b, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (slower,) = told["compared"]["slower"]
    assert (slower["before_ms"], slower["after_ms"], slower["problem"]) == (0.01, 0.012, "p") and told["file"] is None
    assert main(["report", "--compare", a, b, "--spread", "25"]) == 0


def test_commits_of_the_rows_are_compared(capsys, tmp_path, without_vega):
    files = [write(tmp_path / "r.jsonl", [row("p", "a", 10.0, commit="1234567890", date="2026-01-01"),
                                          row("p", "a", 20.0, commit="abcdef0+")])]
    assert main(["report", *files, "--compare", "12345", "abcdef"]) == 1
    assert "slower in abcdef than in 12345" in capsys.readouterr().out
    code, found = made(tmp_path / "p.html", *files, "--compare", "12345", "abcdef")
    assert code == 1 and [r["after_us"] for r in found["compared"]["slower"]] == [20.0]


# ---- wrong use

@pytest.mark.parametrize("content, message", [
    ("", "the file is empty; expected JSON lines"), ("\n\n", "the file is empty"),
    (json.dumps(row())[:100], ":1: no line of results"),
    (json.dumps(row()) + "\n" + json.dumps(row())[:50], ":2: no line of results: the last line is cut off"),
    ("op,time\nmatmul,3\n", ":1: no line of results"), ("[1, 2]\n", "expected a JSON object"), ("[" * 100000, ":1: no line of results"),
    ('{"kernel": 1}\n{"kernel": 2}\n', "got objects with kernel; expected JSON lines of `dnnkern bench"),
    (b"\xff\xfe\x00PK", ":1: no line of results"),
    (json.dumps(row(schema=2)), "results of schema 2; expected 1 at most"),
    (json.dumps(row(schema="x")), "results of schema x; expected 1"),
    (json.dumps(row(time_us="fast")), "time_us: got fast; expected a number"),
    (json.dumps(row(time_us=0.0)), "time_us: got 0.0; expected more"),
    (json.dumps(row(gbs=math.nan)), "gbs: got nan; expected a number"),
    (json.dumps({**row(), "machine": "H200"}), "machine: got H200; expected"),
    (json.dumps(row(op=3)), "op: got 3; expected a text")], ids=range(16))
def test_a_file_that_is_no_results(capsys, tmp_path, without_vega, content, message):
    path, out = tmp_path / "r.jsonl", tmp_path / "p.html"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["report", str(path), "--out", str(out)]) == 2
    _is_one_line(capsys, message)
    assert not out.exists()


@pytest.mark.parametrize("words, message", [
    (["{dir}/none.jsonl"], "no such file: {dir}/none.jsonl; expected a file of results"), (["{dir}"], "{dir} is a folder; expected a file"),
    (["{dir}/r.jsonl", "--out", "{dir}"], "--out {dir}: it is a folder; expected a file that can be written"),
    (["{dir}/r.jsonl", "--out", "{dir}/none/p.html"], "--out {dir}/none/p.html: there is no folder {dir}/none; expected"),
    (["{dir}/r.jsonl", "--out", "{dir}/r.jsonl/p.html"], "there is no folder {dir}/r.jsonl; expected"),
    (["{dir}/r.jsonl", "--spread", "3"], "--spread 3; expected percent from 0, with --compare A B"),
    (["--compare", "{dir}/r.jsonl", "{dir}/r.jsonl", "--spread", "nan"], "--spread nan; expected percent"),
    (["--compare", "{dir}/r.jsonl", "{dir}/none.jsonl"], "no such file: {dir}/none.jsonl; expected"),
    (["{dir}/r.jsonl", "--compare", "abcdef", "7777777"],
     "--compare 7777777: neither a file nor a commit of the rows; expected a file, or one of abcdef0"),
    (["--compare", "{dir}/r.jsonl", "{dir}/s.jsonl"], "no algorithm was measured in both"),
    (["--compare", "x"], "--compare: expected 2 arguments")])
def test_a_wrong_use(capsys, tmp_path, without_vega, words, message):
    write(tmp_path / "r.jsonl", [row()])
    write(tmp_path / "s.jsonl", [program()])
    try:
        code = main(["report", *(word.replace("{dir}", str(tmp_path)) for word in words)])
    except SystemExit as ended:  # argparse
        code = ended.code
    assert code == 2
    _is_one_line(capsys, message.replace("{dir}", str(tmp_path)))


def _is_one_line(capsys, message):
    got = capsys.readouterr()
    assert got.out == "" and got.err.count("\n") == 1 and message in got.err, got.err


def test_without_the_extra_it_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    assert main(["report", write(tmp_path / "r.jsonl", [row()]), "--out", str(tmp_path / "p.html")]) == 2
    _is_one_line(capsys, "pip install dnnkern[report]")
    assert main(["report", "--compare", *[str(tmp_path / "r.jsonl")] * 2, "--quiet"]) == 0, "a comparison needs no charts"


def test_without_a_checkout_files_are_named(capsys, tmp_path, monkeypatch, without_vega):
    monkeypatch.setattr(_report, "RESULTS", tmp_path)
    assert main(["report", "--out", str(tmp_path / "p.html")]) == 2
    _is_one_line(capsys, "no file is named, and there is no source checkout")


def test_a_page_that_cannot_be_written_leaves_the_old_one(capsys, tmp_path, monkeypatch, without_vega):
    out = tmp_path / "p.html"
    out.write_text("old")
    monkeypatch.setattr(page.os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert main(["report", write(tmp_path / "r.jsonl", [row()]), "--out", str(out)]) == 2
    _is_one_line(capsys, f"--out {out}: Permission denied; expected a file that can be written")
    assert out.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["p.html", "r.jsonl"]


def test_the_files_of_the_page_are_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["dnnkern.report"].replace(",", " ").split()
    for path in page.HERE.iterdir():
        assert path.suffix in (".py", "") or any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns), path.name
    assert {path.name for path in page.HERE.glob("*.js")} == set(page.SCRIPTS)


# Machado, Oliveira and Fernandes 2009: linear RGB as it is seen without one of the cones.
VISIONS = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color):
    part = np.array([int(color[k:k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = XYZ @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_stay_apart(theme, vision):
    """In CIELAB, where 2.3 is what is just noticed; and each has a contrast of 3 with the page."""
    text = (page.HERE / "core.js").read_text().split(f"\n  {theme}: {{")[1].split("],")[0]
    named = dict(re.findall(r"(\w+): \"(#\w{6})\"", text))
    series = re.findall(r"\"(#\w{6})\"", text.split("series")[1])
    seen = [lab(VISIONS[vision] @ linear(color)) for color in series]
    apart = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a in range(8) for b in range(a)}
    assert len(series) == 8 and min(apart.values()) > 15, min(apart, key=apart.get)
    assert np.linalg.norm(np.subtract(*(lab(VISIONS[vision] @ linear(named[name])) for name in ("good", "bad")))) > 60
    light = XYZ[1] @ linear(named["page"])
    for color in (*series, named["good"], named["bad"], named["grey"]):
        low, high = sorted((light, XYZ[1] @ linear(color)))
        assert (high + 0.05) / (low + 0.05) > 3, color


# ---- in a browser

@pytest.mark.parametrize("width, theme", [(1440, "light"), (390, "dark")])
def test_in_a_browser(committed, width, theme):
    """Every chart is drawn, nothing is logged or loaded, the keyboard reaches the points, and nothing is wider than the screen."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = shown.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        logged, loaded = [], []
        tab.on("console", lambda message: logged.append(message.text))
        tab.on("pageerror", lambda error: logged.append(str(error)))
        tab.on("request", lambda request: loaded.append(request.url))
        tab.goto(committed.as_uri())
        drawn = {}
        for name in tab.eval_on_selector_all(".chart", "all => all.map(one => one.id)"):
            tab.evaluate("id => document.getElementById(id).scrollIntoView()", name)
            tab.wait_for_selector(f"#{name}[data-ready]")
            drawn[name] = tab.locator(f"#{name} .mark-symbol path").count()
        assert len(drawn) == len(CHARTS) - 1 and min(drawn.values()) > 10, drawn
        assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth")
        background = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[theme]
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == background
        tab.locator("#chart-ratio .plot").focus()
        tab.keyboard.press("ArrowRight")
        title = tab.inner_text("#tip h4")
        assert tab.is_visible("#tip") and title in tab.inner_text("#said")
        tab.keyboard.press("Enter")
        tab.wait_for_function("document.activeElement.className == 'scroll'")
        assert title.split(" ", 1)[1] in tab.inner_text("#rows tbody tr:first-child")
        assert logged == [] and loaded == [committed.as_uri()]
        shown.close()
