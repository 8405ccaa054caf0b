"""The benches through pytest-benchmark, in the simulator: each operation has a row, and what a row is chosen, skipped or failed for."""
import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import types

import pytest

from dnnkern import _bench, dispatch, find
from dnnkern.device import SIMULATED
from dnnkern.host.dtypes import numpy_dtype
from dnnkern.host.launch import Argument, Launch
from dnnkern.host.operands import Operands
from dnnkern.host.timing import Clock
from test_find import writes_seven

run = _bench.load()  # makes the folder bench/ importable, wherever pytest was started
pytest.importorskip("pytest_benchmark")
from bench import case as measured  # noqa: E402
from bench import conftest, peers, shapes, table, test_ops  # noqa: E402

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the benches' own rules need no GPU")

# The operands' numbers (rates, decays, sizes of windows) are not the defaults of the call, with which the host's time is taken.
OTHER_NUMBERS = {"adagrad_step", "adamw_step", "lion_step", "lrn_bwd", "lrn_fwd", "rmsprop_step", "sgd_step"}


def options(op="matmul", **changes):
    """The options as pytest has them."""
    parser = argparse.ArgumentParser()
    run.add_options(parser.add_argument, configurations=1)
    return argparse.Namespace(**{**vars(parser.parse_args([])), "op": op, "problem": [], "turns": 1, **changes})


def stage(case, names, **changes):
    """What the tests of one problem share, and the problem."""
    problem = test_ops.Problem(case)
    items = [types.SimpleNamespace(callspec=types.SimpleNamespace(params={"problem": problem, "algorithm": name})) for name in names]
    session = types.SimpleNamespace(items=[*items, types.SimpleNamespace()], config=types.SimpleNamespace(option=options(**changes)))
    return conftest.Stage(session, Clock(0)), problem


# ---- every operation

def run_suite(path):
    """What `pytest bench/` saves; the naive algorithms alone."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", "--algo", "naive", "--turns", "1",
                           "--no-peers", f"--benchmark-json={path}", "--benchmark-group-by=param:problem", "--benchmark-columns=median"],
                          capture_output=True, text=True, cwd=shapes.__path__[0] + "/../..", env=outer, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(path.read_text(), parse_constant=pytest.fail), done.stdout


def test_every_operation_has_shapes():
    assert set(shapes.operations()) == {a.op for a in dispatch.algorithms()}


@pytest.mark.parametrize("op", shapes.operations())
def test_every_case_to_measure_is_a_problem(op):
    module = importlib.import_module(f"bench.shapes.{op}")
    dtypes = ("float32",) if op == "batch_norm_merge" else ("float32", "bfloat16")  # statistics alone
    for name in (*module.SETS, "all"):
        found = module.cases(name, dtypes)
        assert found and len(set(map(str, found))) == len(found)
        assert all(case.problem.op == op and 0 < case.problem.bytes < 512 << 30 for case in found)
    with pytest.raises(ValueError, match=f"{op} has no dtype 'complex64'|dtype 'complex64'"):
        module.cases("all", ("complex64",))


def test_every_operation_has_a_row(tmp_path):
    results, out = run_suite(tmp_path / "results.json")
    rows = {row["params"]["op"]: row for row in results["benchmarks"]}
    assert set(rows) == set(shapes.operations()) and len(rows) == len(results["benchmarks"])
    for op, row in rows.items():
        assert row["stats"]["median"] > 0 and row["name"].split()[0] == "naive" and row["options"]["timer"] == "DeviceTime"
        assert row["param"].startswith(f"{op}-tiny-") and row["param"].endswith("-naive")
        assert row["group"] == row["params"]["problem"] and row["group"].startswith(f"{op} ") and f"problem={row['group']}'" in out
        assert row["extra_info"]["gbs"] > 0 and set(row["extra_info"]) == {*conftest.Stage.REPORTED, "regret"}
    assert {"device", "clocks", "versions", "commit", "date", "roofs"} <= set(results["dnnkern"])
    stable = results["machine_info"]["dnnkern"]
    assert set(stable) == {"schema", "device", "arch", "sms", "facts", "versions", "torch", "driver"}, "nothing that changes"


@pytest.mark.parametrize("op", shapes.operations())
def test_the_call_that_the_host_is_timed_with_computes_the_problem(op):
    case, device = shapes.tiny(op), dispatch.device_of(0)
    operation = dispatch.operation_of(op)
    with Clock(0) as clock, Operands(operation, case.problem, device) as operands:
        find.set_reference(operation, case.problem, dispatch.reference_of(op, case.problem, device), operands, device, clock)
        found = {name: operands.array(0, name) for name in (*operands.tensors, *operands.outputs)}
        arrays = {name: None if a is None else a.view(numpy_dtype({**operands.tensors, **operands.outputs}[name].dtype))
                  for name, a in found.items()}
        wrong = operands.wrong(lambda: case.call(arrays, algo="naive"), float("inf") if op in OTHER_NUMBERS else None)
        assert wrong is None


def test_what_has_no_peer_says_so(capsys):
    lines, config = [], types.SimpleNamespace(option=options(), stash={})
    reporter = types.SimpleNamespace(section=lines.append, line=lines.append)
    conftest.pytest_terminal_summary(reporter, config)
    assert lines == [], "nothing was measured"
    config.stash[conftest.STAGE], problem = stage(shapes.tiny("lion_step"), ["naive"])
    config.stash[conftest.STAGE].row(problem, "naive")
    conftest.pytest_terminal_summary(reporter, config)
    assert lines == ["dnnkern", "no library here has lion_step: there is no peer"]
    assert run.main(["lion_step", "--algo", "naive", "--turns", "1"]) == 0
    assert "no peer: no library here has lion_step" in capsys.readouterr().out


# ---- names of tests

def test_a_test_is_named_by_operation_set_problem_and_algorithm():
    rows = test_ops._rows(options("conv_fwd", set="resnet50", dtype="bfloat16", first=2))
    names = [row.id for row in rows]
    assert len(set(names)) == len(names) and len({row.values[2] for row in rows}) == 2
    assert "conv_fwd-resnet50-64x64x56x56_k64_1x1_s1_p0_bfloat16_NHWC-implicit_gemm_wgmma" in names
    assert "conv_fwd-resnet50-64x64x56x56_k64_1x1_s1_p0_bfloat16_NHWC-cudnn_fused" in names
    assert {row.values[2] for row in rows if row.id.startswith(names[-1].rsplit("-", 1)[0])} == {
        "conv_fwd 64x64x56x56 k64 1x1 s1 p0 bfloat16 NHWC (resnet50)"}


def test_algorithms_are_chosen_by_name():
    def ends(**more):
        return [row.values[3] for row in test_ops._rows(options("softmax_fwd", set="odd", first=1, **more))]
    assert ends(algo="naive,warp", no_peers=True) == ["naive", "warp"]
    assert ends(algo="chosen") == ["chosen", "torch"]
    assert {"naive", "block", "torch"} < set(ends())
    with pytest.raises(ValueError, match="softmax_fwd has no algorithm wgmma; there are .*naive"):
        ends(algo="wgmma")


def test_algorithms_are_chosen_by_notes():
    def names(**more):
        return {row.values[3] for row in test_ops._rows(options("sdpa_bwd", set="all", first=1, dtype="bfloat16", no_peers=True, **more))}
    atomic, tensor_core = ({a.name for a in dispatch.algorithms("sdpa_bwd") if a.notes & note}
                           for note in (dispatch.Note.NONDETERMINISTIC, dispatch.Note.TENSOR_CORE))
    assert names() & tensor_core and not names() & atomic
    assert names(allow=dispatch.Note.NONDETERMINISTIC) & atomic
    assert names(exclude=dispatch.Note.TENSOR_CORE) == names() - tensor_core

    here, problem = stage(shapes.tiny("matmul"), ["naive", "tiled"], exclude=dispatch.Note.TENSOR_CORE, no_peers=True)
    assert here.row(problem, "naive")[0]["status"] == "ok" and here.row(problem, "tiled")[0]["status"] == "ok"


def test_problems_are_chosen_by_set_and_number():
    def chosen(**more):
        return [(name, case.problem.op) for name, case in run.selected(options("softmax_fwd", **more))]
    assert chosen() == [("tiny", "softmax_fwd")]
    assert [name for name, _ in chosen(set="odd,log", first=1, dtype="float32,bfloat16")] == ["odd", "odd", "log", "log"]
    assert {name for name, _ in chosen(set="all", first=1)} == set(shapes.of("softmax_fwd").SETS)
    assert len(chosen(set="odd", first=0)) == len(shapes.of("softmax_fwd").SETS["odd"])
    with pytest.raises(ValueError, match="no set 'round'"):
        chosen(set="round")


# ---- what a row is

def test_all_algorithms_of_a_problem_are_measured_together():
    here, problem = stage(shapes.tiny("matmul"), ["naive", "tiled", "torch"])
    row, reason = here.row(problem, "naive")
    assert reason is None and row["status"] == "ok" and row["turns"] == len(row["turns_us"]) == 1
    assert {r["algo"] for r in here.rows() if not r["is_peer"]} == {"naive", "tiled"}
    assert here.row(problem, "naive")[0] is row, "nothing is measured again"


def test_without_timing_results_are_checked():
    here, problem = stage(shapes.tiny("matmul"), ["naive", "tiled"], no_peers=True)
    row, _ = here.row(problem, "naive", timed=False)
    assert row["status"] == "ok" and row["time_us"] is None and here.regret(problem, row) is None
    assert table.summary(here.rows(), heuristic=True) == []


def test_what_was_chosen_has_a_regret():
    here, problem = stage(shapes.tiny("matmul"), ["chosen"], algo="chosen", no_peers=True)
    row, _ = here.row(problem, "chosen")
    assert row["chosen"] and here.regret(problem, row) == 1.0
    assert here.regret(problem, {**row, "chosen": False}) is None
    assert here.regret(problem, {**row, "time_us": 3 * row["time_us"]}) == pytest.approx(3.0)


def test_what_is_not_measured_says_why(monkeypatch):
    monkeypatch.setattr(measured, "HOPELESS", 0.0)
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    monkeypatch.setattr(dispatch, "get_algorithm", lambda *_, **__: naive)
    monkeypatch.setattr(conftest, "peers_of", lambda op: ([types.SimpleNamespace(NAME="torch", make=lambda *_: None)],
                                                          {"other": "is not installed"}))
    monkeypatch.setattr(conftest, "names_of", lambda op: ["torch", "other"])
    here, problem = stage(shapes.tiny("matmul"), ["naive", "tiled", "torch", "other"])
    assert here.row(problem, "naive")[1] is None
    reasons = [here.row(problem, name)[1] for name in ("tiled", "torch", "other")]
    assert reasons[0].startswith("predicted to take ") and reasons[1:] == ["torch cannot do it", "no peer other: is not installed"]


def test_a_wrong_algorithm_has_no_time():
    def build(problem, device, config):
        return (Launch(writes_seven, (1, 1, 1), (32, 1, 1), (Argument("float32*", "y"), Argument("int32", problem.y.size))),)
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    algorithm = dispatch.register(dataclasses.replace(naive, name="wrong", build=build))
    try:
        here, problem = stage(shapes.tiny("matmul"), ["naive", "wrong"], no_peers=True)
        row, _ = here.row(problem, "wrong")
    finally:
        dispatch.unregister(algorithm)
    assert row["status"].startswith("WRONG: y differs from the naive result") and row["time_us"] is None and row["turns"] == 0
    assert here.row(problem, "naive")[0]["status"] == "ok"


def test_a_peer_that_fails_hides_nothing(monkeypatch):
    def make(case, operands, clock):
        raise RuntimeError("out of memory")
    monkeypatch.setattr(conftest, "peers_of", lambda op: ([types.SimpleNamespace(NAME="torch", make=make)], {}))
    here, problem = stage(shapes.tiny("matmul"), ["naive", "torch"])
    assert here.row(problem, "torch")[0]["status"] == "RuntimeError: out of memory" and here.row(problem, "naive")[0]["status"] == "ok"


@pytest.mark.parametrize("is_peer, outcome", [(True, pytest.skip.Exception), (False, pytest.fail.Exception)])
def test_a_wrong_peer_is_skipped_and_a_wrong_algorithm_fails(is_peer, outcome):
    row = {"algo": "torch", "status": "WRONG: y differs", "is_peer": is_peer}
    here = types.SimpleNamespace(row=lambda *_, **__: (row, None))
    with pytest.raises(outcome, match="^torch: WRONG: y differs$"):
        test_ops.test_ops(types.SimpleNamespace(enabled=True), "matmul", "tiny", "8x8x8", "torch", here)


def test_the_command_fails_for_what_is_ours(monkeypatch, capsys):
    wrong = {"algo": "torch", "config": "", "op": "matmul", "problem": "8x8x8", "status": "WRONG: y differs", "chosen": False,
             "ratio": None, "time_us": None}
    for is_peer in (True, False):
        monkeypatch.setattr(run, "measure", lambda args, device: [{**wrong, "is_peer": is_peer}])
        assert run.main(["matmul"]) == int(not is_peer)
        assert "8x8x8: torch: WRONG: y differs" in capsys.readouterr().out


def test_a_problem_that_fails_is_tried_once(monkeypatch):
    tried = []

    def rows(*_, **__):
        tried.append(1)
        raise MemoryError("too large")
    monkeypatch.setattr(run.CaseBench, "rows", rows)
    here, problem = stage(shapes.tiny("matmul"), ["naive", "tiled"], no_peers=True)
    with pytest.raises(MemoryError):
        here.row(problem, "naive")
    with pytest.raises(pytest.fail.Exception, match="matmul 8x8x8 float32 nn: MemoryError: too large"):
        here.row(problem, "tiled")
    assert len(tried) == 1


def test_memory_that_a_peer_keeps_goes_back(monkeypatch):
    kept, done = [run.PEERS_MEMORY + 1, run.PEERS_MEMORY], []
    card = types.SimpleNamespace(is_available=lambda: True, memory_reserved=lambda: kept.pop(0), empty_cache=lambda: done.append("torch"))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=card))
    clock = types.SimpleNamespace(release=lambda: done.append("graphs"))
    run.release(clock)
    run.release(clock)
    assert done == ["graphs", "torch", "graphs"]


def test_peers_are_named_without_their_libraries():
    assert peers.names_of("conv_fwd") == ["cudnn fused", "torch"] and peers.names_of("lion_step") == []
    for op in shapes.operations():
        found, missing = peers.peers_of(op)
        assert sorted([module.NAME for module in found] + list(missing)) == sorted(peers.names_of(op))
