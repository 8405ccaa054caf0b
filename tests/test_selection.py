"""What `make test` chooses: what has changed, what covers something, then the cheapest; and what a full run writes."""
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import sample
import selection
from selection import PACKAGE, ROOT, TESTS

from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="tests are chosen where there is no GPU")


def item(nodeid, path=None, **parameters):
    """A test as pytest collects it."""
    name = nodeid.split("::")[0]
    spec = types.SimpleNamespace(params=parameters) if parameters else None
    made = types.SimpleNamespace(nodeid=f"tests/{nodeid}", path=path or TESTS / name)
    if spec:
        made.callspec = spec
    return made


def row(op, algo, case="a-f32", only=None, seconds=0.1):
    return item(f"test_contract.py::test_contract[{op}-{algo}-{case}]", pair=sample.Row(op, algo, case, only=only, seconds=seconds))


@pytest.mark.parametrize("changed, test, expected", [
    ("dnnkern/softmax/softmax_ring.py", row("softmax_fwd", "ring"), 0),
    ("dnnkern/softmax/softmax_ring.py", row("softmax_fwd", "naive"), None),
    ("dnnkern/softmax/_math.py", row("softmax_fwd", "ring"), 1),
    ("dnnkern/softmax/softmax_ring.py", item("test_softmax.py::test_x"), 2),  # through the front end, which finds it at its first use
    ("dnnkern/softmax/softmax_ring.py", item("test_pool.py::test_x"), None),
    ("dnnkern/device/wgmma.py", row("matmul", "wgmma"), 2),
    ("dnnkern/device/wgmma.py", row("matmul", "naive"), None),
    ("dnnkern/host/front.py", row("max_pool_bwd", "naive"), 2),
    ("tests/cases/softmax_fwd.py", row("softmax_fwd", "naive"), 0),
    ("tests/cases/softmax_fwd.py", row("softmax_bwd", "naive"), None),
    ("tests/test_softmax.py", item("test_softmax.py::test_x"), 0),
    ("bench/roof.py", item("test_bench.py::test_x"), 1),
    ("docs/guide.md", item("test_examples.py::test_x"), 0),
    ("examples/race.py", item("test_examples.py::test_x"), 0),
    ("CHANGELOG.md", item("test_examples.py::test_x"), None)])
def test_how_far_a_test_is_from_a_changed_file(changed, test, expected):
    assert (ROOT / changed).is_file()
    found = selection.hops(test, selection.files_of({changed}), False)
    assert (found is None) == (expected is None) and (found is None or found <= expected)


def test_an_algorithm_is_known_by_its_file_or_by_that_of_its_idea():
    both = selection.made_of(row("sdpa_fwd", "naive"))
    assert both[PACKAGE / "attention" / "sdpa_naive.py"] == 0 and PACKAGE / "attention" / "sdpa_fwd_flash_mma.py" not in both


def test_every_run_of_the_contract_has_its_algorithms_file():
    for op in sample.OPS:
        for algo in {r.algo for r in sample.rows(op)}:
            own = selection.made_of(row(op, algo))
            assert any(d == 0 and (p.stem.endswith(f"_{algo}") or p.parent.name == algo) for p, d in own.items()), (op, algo)


def test_what_covers_something_is_never_left_out():
    rows = [row("softmax_fwd", algo, f"{k}-{dtype}", seconds=1.0 + k) for k in range(3) for dtype in ("f32", "bf16")
            for algo in ("naive", "ring")]
    rows += [item(f"test_softmax.py::test_x[{k}]") for k in range(5)]
    kept = [r.nodeid for r, (keep, *_) in zip(rows, selection.select(rows, "simulator", budget=0)) if keep]
    contract = "tests/test_contract.py::test_contract[softmax_fwd-"
    assert kept == [f"{contract}naive-0-f32]", f"{contract}ring-0-f32]", f"{contract}naive-0-bf16]", "tests/test_softmax.py::test_x[0]"]


def test_what_has_changed_comes_first_then_problems_then_the_cheapest():
    rows = [row("softmax_fwd", "naive", "0-f32"), row("softmax_fwd", "ring", "0-f32")]  # they cover what there is to cover
    rows += [row("softmax_fwd", algo, f"{k}-f32", seconds=k) for k in (3, 1, 2) for algo in ("naive", "ring")]

    def kept(budget, *names, whole=False):
        chosen = selection.select(rows, "simulator", set(names), whole, {}, 4 * budget + 1)
        return [r.callspec.params["pair"] for r, (keep, _, _) in zip(rows, chosen) if keep][2:], [affected for _, affected, _ in chosen]

    assert [(r.algo, r.case[0]) for r in kept(3)[0]] == [("naive", "1"), ("naive", "2")], "problems, the cheapest of each"
    some, affected = kept(3, "dnnkern/softmax/softmax_ring.py")
    assert [(r.algo, r.case[0]) for r in some] == [("ring", "1"), ("ring", "2")] and affected == [False, True] * 4
    some, affected = kept(12, whole=True)
    assert len(some) == 6 and all(affected)


def test_of_what_has_changed_another_dtype_comes_first():
    rows = [row("softmax_fwd", algo, f"{k}-{dtype}", seconds=1.0) for algo in ("naive", "ring") for dtype in ("f32", "bf16")
            for k in range(3)]
    chosen = selection.select(rows, "simulator", {"dnnkern/softmax/softmax_ring.py"}, False, {}, 4 * 4)
    kept = [r.callspec.params["pair"] for r, (keep, _, _) in zip(rows, chosen) if keep]
    assert [r.dtype for r in kept if r.algo == "ring"] == ["f32", "bf16"]


def test_costs_are_the_tests_own_or_their_functions():
    known = {"tests/test_x.py::test_a": 0.5, "tests/test_x.py::test_a[long]": 9.0,
             "tests/test_contract.py::test_contract[softmax_fwd-ring]": 0.3}
    costs = selection.Costs(known, "compile")
    assert [costs.of(item(f"test_x.py::{name}")) for name in ("test_a[long]", "test_a[short]", "test_b")] == [9.0, 0.5, 3.0]
    assert costs.of(row("softmax_fwd", "ring")) == 0.3
    assert costs.of(row("softmax_fwd", "naive", only="exact", seconds=0.2)) == 0.2


def test_a_record_is_short():
    costs = {f"tests/test_x.py::test_a[{k}]": 0.1 + 0.1 * (k == 1) for k in range(4)} | {"tests/test_x.py::test_a[4]": 3.0}
    contract = "tests/test_contract.py::test_contract"
    costs |= {f"{contract}[conv_fwd-direct-a-f32]": 0.2, f"{contract}[conv_fwd-naive-a-f32]": 0.1}
    found = selection.condensed(costs)
    assert found["tests/test_x.py::test_a"] == 0.125 and found["tests/test_x.py::test_a[4]"] == 3.0
    assert found[f"{contract}[conv_fwd-direct]"] == 0.2
    assert found[contract] == pytest.approx(0.15)


def test_costs_of_newer_tests_are_added(tmp_path, monkeypatch):
    green, record = tmp_path / "green.json", tmp_path / "record.json"
    green.write_text(json.dumps({"commit": "abc", "costs": {"tests/test_x.py::test_a": 1.0}}))
    record.write_text(json.dumps({"tests/test_x.py::test_a[1]": 0.1, "tests/test_y.py::test_b[2]": 2.0, "tests/test_y.py::test_b[3]": 0.2}))
    monkeypatch.setattr(selection, "GREEN", green)
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    selection.add_costs({"simulator": record})
    assert json.loads(green.read_text()) == {"commit": "abc", "costs": {
        "tests/test_x.py": 0.1, "tests/test_x.py::test_a": 1.0, "tests/test_y.py": 0.2, "tests/test_y.py::test_b": 0.2,
        "tests/test_y.py::test_b[2]": 2.0}}


def test_what_git_does_not_know_is_everything():
    names, why = selection.changed("no-such-commit")
    assert "no-such-commit" in why and names


def test_a_run_is_recorded_and_says_what_it_leaves_out(tmp_path):
    """A run of a quick file in a process of its own."""
    record = tmp_path / "record.json"
    words = "-q -p no:cacheprovider tests/test_planted.py --select --since HEAD".split()
    run = subprocess.run([sys.executable, "-m", "pytest", *words, f"--record={record}"], cwd=ROOT, capture_output=True, text=True,
                         env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"})
    assert run.returncode == 0, run.stdout
    assert "left out" in run.stdout and "in all" in run.stdout
    costs = json.loads(record.read_text())
    assert {name.split("::")[0] for name in costs} == {"tests/test_planted.py"} and max(costs.values()) > 0


def test_the_record_is_of_this_project():
    green = json.loads(selection.GREEN.read_text())
    assert {"commit", "date", "versions", "tiers", "costs"} <= green.keys() and set(green["tiers"]) == {"simulator", "compile"}
    assert all(pathlib.Path(name.split("::")[0]).name.startswith("test_") for name in green["costs"])
