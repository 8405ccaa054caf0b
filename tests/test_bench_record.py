"""What a row says of its run and of its code, problems that no estimate was fitted to, and the record of all sets; in the simulator."""
import dataclasses
import itertools
import json
import math
import pathlib
import sys
import types

import numpy as np
import pytest

from dnnkern import _bench, dispatch
from dnnkern.device import SIMULATED
from dnnkern.find import Trial
from dnnkern.host import timing
from dnnkern.host.driver import CudaError

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / ".ci" / "docs"))
run = _bench.load()  # makes the folder bench/ importable, wherever pytest was started
from bench import case as measured  # noqa: E402
from bench import code, drawn, fit, record, sensors, shapes  # noqa: E402
from dnnkern.report.rows import records as rows_of  # noqa: E402
from test_bench import empty_database  # noqa: E402, F401 (a fixture)

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the benches' own rules need no GPU")


def options(op="matmul", *words):
    return run.parser().parse_args([op, "--no-peers", "--turns", "2", *words])


def bench_of(text="9x7x11"):
    (case,) = shapes.of("matmul").parse(text)
    return measured.CaseBench(case, dispatch.device_of(0), timing.Clock())


# ---- sensors

class Scripted:
    """Sensors that say what they are told, one reading a turn."""
    uuid = None

    def __init__(self, readings, processes=1):
        self.readings, self.others, self.used = iter(readings), processes, itertools.count()

    def read(self):
        clock, *marks = next(self.readings)
        return {"sm_mhz": clock, "marks": marks}

    def joules(self):
        return float(next(self.used))

    def processes(self):
        return self.others


@pytest.mark.parametrize("readings, processes, marks", [
    ([(1980,), (1965,)], 1, []), ([(1980,), (1900,)], 1, ["clock moved"]), ([(1980,), (1980, "power cap")], 1, ["power cap"]),
    ([(1980,), (1980,)], 2, ["other processes"]), ([(1200, "too hot"), (1980,)], 3, ["clock moved", "other processes", "too hot"])])
def test_marks_of_a_run(readings, processes, marks):
    watch = sensors.Watch(Scripted(readings, processes))
    watch("ours")
    watch("ours")
    assert watch.marks("ours") == marks and watch.span("ours") == [min(r[0] for r in readings), max(r[0] for r in readings)]


def test_marks_are_of_the_contender_that_met_them():
    watch = sensors.Watch(Scripted([(1980,), (1980, "power cap")]))
    watch("ours")
    watch("theirs")
    assert watch.marks("ours") == [] and watch.marks("theirs") == ["power cap"] and watch.span("nobody") == []


def test_what_a_reading_means():
    reasons = [types.SimpleNamespace(value=name) for name in ("gpu_idle", "sw_power_cap", "hw_thermal_slowdown")]
    device = types.SimpleNamespace(
        current_clock_event_reasons=reasons, get_clock=lambda kind: {"sm": types.SimpleNamespace(get_current_mhz=lambda: 1755)}[kind],
        get_field_values=lambda fields: [types.SimpleNamespace(value={83: 2500}[fields[0]])], compute_running_processes=[1, 2])
    found = sensors.Sensors.__new__(sensors.Sensors)
    found._device = device
    assert found.read() == {"sm_mhz": 1755, "marks": ["power cap", "too hot"]} and found.joules() == 2.5 and found.processes() == 2


def test_without_a_gpu_nothing_is_known():
    found = sensors.of(dispatch.device_of(0))
    watch = sensors.Watch(found)
    watch("ours")
    assert isinstance(found, sensors.NoSensors) and found.joules() is None and watch.marks("ours") == [] and watch.span("ours") == []


# ---- rows

def test_a_row_says_what_it_met(simulated):
    bench = bench_of()
    bench.sensors = Scripted(itertools.cycle([(1980,), (1500,)]))
    rows = bench.rows(options("matmul", "--algo", "naive,chosen", "--sustained", "0.001"))
    chosen = next(r for r in rows if r["chosen"])
    assert len(rows) > 1 and max(r["turns"] for r in rows) > 1
    for r in rows:  # what takes long has a time before its first turn
        assert r["marks"] == ["clock moved"] * (r["turns"] > 1) and r["clocks_mhz"] == [1500, 1980] * (r["turns"] > 1)
    assert chosen["code"] and chosen["warm_us"] > 0 and chosen["sustained_us"] > 0 and 0 < chosen["joules"] <= 1
    assert all(r["code"] is r["warm_us"] is r["joules"] is None for r in rows if not r["chosen"])


def test_what_goes_wrong_after_the_gate_counts_for_nothing(monkeypatch, simulated):
    """A kernel that is right once, and wrong from then on."""
    calls, plain = itertools.count(), Trial.run

    def run_once(self, operands, clock):
        plain(self, operands, clock)
        if self.algorithm.name == "tiled" and next(calls):
            operands.memory.argument(operands.sets[0]["y"])[...] = 3.0
    monkeypatch.setattr(Trial, "run", run_once)
    rows = {r["algo"]: r for r in bench_of().rows(options("matmul", "--algo", "naive,tiled"))}
    assert rows["tiled"]["status"].startswith("WRONG after timing: y differs") and rows["tiled"]["time_us"] is None
    assert rows["naive"]["status"] == "ok" and rows["naive"]["time_us"] > 0


def test_a_peer_that_is_wrong_or_fails_is_said_of_the_ratio(simulated):
    def make(case, operands, clock):
        raise RuntimeError("none today")

    def wrong(case, operands, clock):
        from bench.peers import Peer
        return Peer(timing.Contender("b", lambda k: None), lambda: None)
    bench = bench_of()
    bench.peers = [types.SimpleNamespace(NAME="a", make=make), types.SimpleNamespace(NAME="b", make=wrong)]
    rows = bench.rows(options("matmul", "--algo", "naive"), host=None)
    assert next(r for r in rows if r["algo"] == "naive")["marks"] == ["a failed", "b wrong", "no peer"]


def test_a_peer_that_rounds_more_stands_beside(simulated):
    def rounded(case, operands, clock):
        from bench.peers import Peer
        return Peer(timing.Contender("rounded", lambda k: None), lambda: None, results=(), is_exact=False)
    bench = bench_of()
    bench.peers = [types.SimpleNamespace(NAME="rounded", make=rounded)]
    ours, peer = bench.rows(options("matmul", "--algo", "naive"), host=None)
    assert ours["ratio"] is None and ours["marks"] == ["no peer"] and peer["status"] == "ok" and peer["time_us"] > 0


def test_configurations_are_drawn_that_the_estimates_would_not_try(simulated):
    bench = bench_of("64x64x64")
    few = {bench._key(t.algorithm) for t in bench.trials(options("matmul", "--configs", "1", "--random", "0"))}
    more = [bench._key(t.algorithm) for t in bench.trials(options("matmul", "--configs", "1", "--random", "3"))]
    again = [bench._key(t.algorithm) for t in bench_of("64x64x64").trials(options("matmul", "--configs", "1", "--random", "3"))]
    assert few <= set(more) and len(more) == len(few) + 3 and more == again
    assert bench.chosen in few
    within = [t.algorithm.name for t in bench.trials(options("matmul", "--configs", "1", "--random", "0", "--within", "1.0"))]
    assert within == [bench.predicted[0]]


# ---- code

def made(tmp_path, text):
    path = tmp_path / "kernels.py"
    path.write_text(text)
    code._functions.cache_clear()
    names = {}
    exec(compile(text, str(path), "exec"), names)
    return code._Written().of(names["kernel"])


KERNEL = """
SIZE = 4
def device(x):
    return x + SIZE
def kernel(x):
    return device(2 * x)
"""


@pytest.mark.parametrize("old, new, is_same", [
    ("def kernel(x):\n", "def kernel(x):\n    '''What it does.'''\n    # and why\n", True), ("\nSIZE", "\n\n\nSIZE", True),
    ("2 * x", "(2*x)", True), ("2 * x", "x * 2", False), ("SIZE = 4", "SIZE = 8", False), ("x + SIZE", "x - SIZE", False)])
def test_code_is_what_is_computed(old, new, is_same, tmp_path):
    assert (made(tmp_path, KERNEL) == made(tmp_path, KERNEL.replace(old, new))) is is_same


def chosen_row():
    (case,) = shapes.of("softmax_fwd").parse("4096x1024 {}", ("bfloat16",))
    device = dispatch.device_of(0)
    facts = {name: getattr(device, name) for name in ("l2_bytes", "clock_hz", "bandwidth", "memory", "shared_per_block", "shared_per_sm",
                                                      "registers_per_sm")}
    row = {"op": case.op, "record": dispatch.problem_record(case.problem),
           "machine": {"device": "NVIDIA H200", "arch": device.arch, "sms": device.sms, "facts": facts}}
    on = code.device_of(row["machine"])
    algorithm = dispatch.get_algorithm(case.op, case.problem, device=on, prefer="device")
    return {**row, "algo": algorithm.name, "config": algorithm.config_text, "code": code.of(algorithm, case.problem, on)}


def test_other_arguments_are_other_code(simulated):
    """Sizes, strides and places in the workspace count, of whatever kind a number is."""
    (case,) = shapes.of("softmax_fwd").parse("4096x1024 {}", ("bfloat16",))
    device = dispatch.device_of(0)
    algorithm = dispatch.get_algorithm("softmax_fwd", case.problem, device=device)
    launches = algorithm.build(case.problem, device, algorithm.config)

    def with_last(value):
        *others, last = launches[-1].arguments
        changed = dataclasses.replace(launches[-1], arguments=(*others, dataclasses.replace(last, value=value)))
        return code.of(types.SimpleNamespace(build=lambda *_: (*launches[:-1], changed), config=None), case.problem, device)
    assert with_last(7) == with_last(np.int64(7)) == with_last(7.0) != with_last(8) != with_last((8, 9))
    assert with_last((8, 9)) == with_last(np.array([8, 9])) != with_last([9, 8]) and with_last(0.5) != with_last(float("inf"))


def test_a_row_is_stale_when_something_else_would_run(simulated):
    row = chosen_row()
    assert not code.is_stale(json.loads(json.dumps(row)))
    assert code.is_stale({**row, "code": "0"}) and code.is_stale({**row, "algo": "naive"}) and code.is_stale({**row, "record": {}})
    assert code.is_stale({**row, "code": None}) and code.is_stale({**row, "machine": {"device": "NVIDIA H200"}})
    naive = next(a for a in dispatch.algorithms("softmax_fwd") if a.name == "naive")
    better = dispatch.register(dataclasses.replace(naive, name="better", estimate=lambda *_: 1e-9))
    try:
        assert code.is_stale(row)
    finally:
        dispatch.unregister(better)
    assert not code.is_stale(row)


def test_a_page_shows_marks_and_stale_rows(simulated):
    """Three rows of the same page: one of what would run now, one of another kernel, one whose run met a power cap."""
    site = pytest.importorskip("site_tables")
    fresh = {**chosen_row(), "problem": "fresh", "status": "ok", "is_peer": False, "chosen": True, "time_us": 10.0, "tflops": 1.0,
             "gbs": 100.0, "roof": 0.5, "ratio": 1.5, "roofs": {"copy": 1e12}, "eager_us": 12.5, "marks": [], "set": "rows"}
    fresh["machine"].update(commit="0123abcd", date="2026-01-02T03:04:05")
    rows = [fresh, {**fresh, "problem": "older", "code": "0"}, {**fresh, "problem": "capped", "marks": ["power cap"]},
            {**fresh, "problem": "changed", "machine": {**fresh["machine"], "commit": "0123abcd+"}}]
    cells = {line.split("|")[1].split()[1]: [cell.strip() for cell in line.split("|")[8:10]] for line in site.problems(rows).splitlines()
             if "softmax_fwd" in line}
    assert cells == {"fresh": ["12.5", ""], "older": ["12.5", "stale"], "capped": ["12.5", "power cap"]}


# ---- drawn problems

@pytest.mark.parametrize("op", shapes.operations())
def test_drawn_problems(op):
    module = shapes.of(op)
    dtype = "bfloat16" if "bfloat16" in module.DTYPES else module.DTYPES[0]
    found = drawn.cases(op, (dtype,), 3)
    known = {case.problem for name in module.SETS for case in module.cases(name, (dtype,))}
    assert len({case.problem for case in found}) == 3 and found == drawn.cases(op, (dtype,), 3)
    assert not known & {case.problem for case in found}
    assert not any(case.problem.is_empty for case in found)
    assert all(case.problem.bytes <= drawn.MOST_BYTES and case.problem.flops <= drawn.MOST_FLOPS for case in found)


def test_no_estimate_is_fitted_to_drawn_problems(tmp_path):
    row = chosen_row()
    row.update(status="ok", is_peer=False, time_us=10.0, problem="p")
    paths = []
    for name in ("rows", drawn.SET):
        paths.append(tmp_path / name)
        paths[-1].write_text(json.dumps({**row, "set": name}) + "\n")
    assert [len(fit.samples([path], dispatch.device_of(0))) for path in paths] == [1, 0]


# ---- the record

def test_the_first_of_every_set_comes_first(monkeypatch):
    monkeypatch.setattr(record, "SIMULATED", False)
    args = record.parser().parse_args(["--json", "x", "--ops", "softmax_fwd,matmul", "--dtype", "bfloat16,float8_e4m3fn", "--random", "2"])
    cases = record.wanted(args)
    columns = {(c.op, c.problem.dtype if c.op == "softmax_fwd" else c.dtype, name) for name, c in cases}
    first = cases[:len(columns)]
    softmax, matmul = (list(shapes.of(op).SETS) for op in ("softmax_fwd", "matmul"))
    assert sorted(name for name, c in first if c.op == "softmax_fwd") == sorted([*softmax, drawn.SET])
    assert cases == record.wanted(args) and first != sorted(first, key=lambda case: case[1].op)
    assert {name for _, dtype, name in columns if dtype == "float8_e4m3fn"} >= {"scaled", "square"} and set(matmul) <= {n for n, _ in cases}
    assert len({(c.op, str(c)) for _, c in cases}) == len(cases)


def test_a_run_goes_on_where_the_last_one_ended(tmp_path, capsys, simulated):
    path = tmp_path / "record.jsonl"
    words = ["record", "--json", str(path), "--turns", "1", "--sustained", "0", "--ops"]
    assert run.main([*words, "cast,pad"]) == 0
    assert {json.loads(line)["op"] for line in path.read_text().splitlines()} == {"cast", "pad"}
    assert run.main([*words, "cast,mse_loss_fwd,pad"]) == 0
    assert "1 problems to measure, of 3" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = [r for r in rows if r["chosen"]]
    assert sorted(r["op"] for r in chosen) == ["cast", "mse_loss_fwd", "pad"] and all("turns_us" not in r for r in rows)
    assert all(r["set"] == "tiny" and math.isfinite(r["time_us"]) for r in chosen)


def test_runs_share_the_work(tmp_path, simulated, monkeypatch):
    monkeypatch.setattr(record, "CHUNK", 2)
    left = [("tiny", shapes.tiny(op)) for op in ("cast", "mse_loss_fwd", "pad", "unary", "binary")]
    one, other = (record.parts_of(cases, tmp_path) for cases in (left, left[1:]))
    taken = [next(one), next(other), *one, *other]
    assert taken == [left[:2], left[2:4], left[4:]]
    assert [*record.parts_of(left, tmp_path)] == [] and [*record.parts_of(left, None)] == [left[:2], left[2:4], left[4:]]
    path = tmp_path / "rows.jsonl"
    words = ["record", "--json", str(path), "--turns", "1", "--sustained", "0", "--ops", "cast,pad", "--share", str(tmp_path)]
    assert run.main(words) == 0 and not path.exists()  # all has been taken
    assert run.main([*words[:-1], str(tmp_path / "new")]) == 0
    assert {row["op"] for row in rows_of([path])} == {"cast", "pad"}


def test_a_lost_context_ends_the_run_and_gives_back_what_it_had_taken(tmp_path, simulated, monkeypatch, capsys):
    """The trial is named; what was not measured is another process's."""
    monkeypatch.setattr(record, "CHUNK", 2)
    broken, really = [], Trial.prepare

    def prepare(trial, operation, operands, clock):
        if str(trial.algorithm).startswith("pad/"):
            broken.append(trial.algorithm)
            trial.error = "CudaError: misaligned address"
        return not broken and really(trial, operation, operands, clock)

    def synchronize(clock):
        if broken:
            raise CudaError("misaligned address")
    path = tmp_path / "rows.jsonl"
    words = ["record", "--json", str(path), "--turns", "1", "--sustained", "0", "--ops", "cast,pad,unary,binary,softmax_fwd", "--share",
             str(tmp_path / "share")]
    with monkeypatch.context() as patched, pytest.raises(measured.ContextLost, match=r"^pad/\w+.*: CudaError: misaligned address$"):
        patched.setattr(Trial, "prepare", prepare)
        patched.setattr(timing.Clock, "synchronize", synchronize)
        run.main(words)
    assert len(broken) == 1 and f"{broken[0]}: CudaError: misaligned" in capsys.readouterr().err
    assert run.main(words) == 0
    assert {row["op"] for row in rows_of([path])} == {"cast", "unary", "binary", "softmax_fwd"}  # that of pad is taken


def test_what_the_record_keeps():
    def row(algo, time_us, **changes):
        return {"algo": algo, "time_us": time_us, "turns_us": [1], "status": "ok", "is_peer": False, "chosen": False, "predicted": False,
                **changes}
    rows = [row("best", 1.0), row("other", 2.0), row("chosen", 3.0, chosen=True), row("drawn", 4.0), row("bad", None, status="WRONG: y"),
            row("torch", 2.0, is_peer=True)]
    for r in rows:
        r["record"] = {}
    kept = record.told(rows)
    assert [r["algo"] for r in kept] == ["best", "chosen", "bad", "torch"] and ["record" in r for r in kept] == [True, True, True, False]


def test_what_is_stale_is_dropped(tmp_path, capsys, simulated, monkeypatch):
    path = tmp_path / "record.jsonl.gz"
    words = ["record", "--json", str(path), "--ops", "cast,mse_loss_fwd,pad", "--turns", "1", "--sustained", "0"]
    assert run.main(words) == 0
    monkeypatch.setattr(record.code, "is_stale", lambda row: row["op"] == "pad")
    assert run.main(["record", "--json", str(path), "--drop"]) == 0
    assert f"1 of 3 problems were stale and are no longer in {path}" in capsys.readouterr().out
    assert {row["op"] for row in rows_of([path])} == {"cast", "mse_loss_fwd"}
    assert run.main(words) == 0
    assert "1 problems to measure, of 3" in capsys.readouterr().out
    assert {row["op"] for row in rows_of([path])} == {"cast", "mse_loss_fwd", "pad"}


def test_rows_beside_another_pytorch_count_for_nothing(tmp_path):
    path, here = tmp_path / "rows.jsonl", {"device": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "date": "2026-01-01"}
    path.write_text("".join(json.dumps({"op": "cast", "problem": name, "chosen": chosen, "machine": {**here, **other}}) + "\n"
                            for name, chosen, other in (("a", True, {}), ("b", True, {"torch": "2.12.0"}), ("c", False, {}),
                                                        ("d", True, {"device": "NVIDIA H200"}), ("e", True, {"commit": "other"}))))
    assert record.done([path], here) == {("cast", "a"), ("cast", "e")}


def test_a_problem_that_fails_ends_no_run(monkeypatch, tmp_path, capsys, simulated):
    def rows(self, *_, **__):
        raise MemoryError("no room")
    monkeypatch.setattr(measured.CaseBench, "rows", rows)
    assert run.main(["record", "--json", str(tmp_path / "x"), "--ops", "cast,pad"]) == 1
    assert capsys.readouterr().err.count("MemoryError: no room") == 2
