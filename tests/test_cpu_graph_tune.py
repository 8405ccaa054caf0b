"""What `autotune` measured, in the find database: taken by equal graphs in this process and in others."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dnnkern.graph as cudnn
from dnnkern import dispatch, find
from dnnkern.host import paths

sys.path.insert(0, str(Path(__file__).parent))

from test_graph_tune import A, ALL, B, FALLBACK, FIRST, Case, identities, workspace  # noqa: E402,F401
from test_graph_tune import test_plans_are_measured_on_the_buffers, test_results_over_operands_are_refused  # noqa: E402,F401
from test_graph_tune import launches_fixture  # noqa: E402,F401


@pytest.fixture(name="folder")
def folder_fixture():
    """The database without graphs."""
    def clear():
        for folder in paths.cache_dir().glob("find/*/graph"):
            shutil.rmtree(folder)
    clear()
    yield paths.cache_dir()
    clear()


def pretend(monkeypatch, wanted):
    """Of the plans that are measured, that for which `wanted` holds is the fastest."""
    class Sample:
        def __init__(self, median):
            self.median = median
    monkeypatch.setattr(find, "heats", lambda contenders, clock: {
        c.name: Sample(1e-6 if wanted(c.name) else 1e-3 * (1 + k)) for k, c in enumerate(contenders)})


def tuned(monkeypatch, index=2, **more):
    """A case whose plan of this index is now the fastest, and its identity."""
    case = Case(**more).planned(A, FALLBACK)
    plan = case.plans[index]
    pretend(monkeypatch, lambda other: other is plan)
    case.graph.autotune(case.pack(), workspace(case.graph))
    case.check()
    return case, plan.identity


def test_another_graph_takes_it(folder, monkeypatch):
    case, identity = tuned(monkeypatch)
    assert len(list(folder.glob("find/*/graph/*.json"))) == 1
    for modes in ([A], [B], [A, FALLBACK], [cudnn.heur_mode.OPENSOURCE]):
        other = Case(name="another name").planned(*modes, policy=FIRST)
        assert other.graph._candidate.identity == identity and identities(other)[0] == identity
        assert len(set(identities(other))) == len(identities(other))
    execute_and_check(other)
    assert other.graph.explain().parts[0].algorithm == case.plans[0].algorithms[0].name
    for other in (Case(rows=3).planned(A, policy=FIRST), Case().planned(FALLBACK, policy=FIRST)):
        assert not other.graph._engines.known or other.graph._candidate.identity != identity


def execute_and_check(case):
    pack = case.pack()
    case.graph.execute(pack, np.empty(case.graph.get_workspace_size(), np.uint8))
    case.check()


def test_another_process_takes_it(folder, monkeypatch):
    _, identity = tuned(monkeypatch)
    code = "import test_graph_tune as t; c = t.Case().planned(t.A); print(c.graph._candidate.identity)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent,
                          env={**os.environ, "DNNKERN_CACHE_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(identity)


def test_filters_pass_over_it(folder, monkeypatch):
    case, identity = tuned(monkeypatch)
    second = case.plans[1].identity
    other = Case()
    other.graph.create_execution_plans([A])
    other.graph.deselect_engines([case.names[0]])
    other.graph.build_plans()
    assert other.graph._candidate.identity == second != identity, "the next that was measured"


def test_preferences_go_before_it(folder, monkeypatch):
    _, identity = tuned(monkeypatch)
    with dispatch.prefer("naive"):
        case = Case().planned(A, policy=FIRST)
        assert not case.graph._engines.known and all(a.name == "naive" for a in case.graph._candidate.algorithms)
    with dispatch.prefer("device"):
        assert Case().planned(A, policy=FIRST).graph._candidate.identity == identity


@pytest.mark.parametrize("left_out", ["filter", "not built", "one mode", "added"])
def test_what_is_incomplete_is_not_kept(folder, monkeypatch, left_out):
    case = Case()
    modes = [FALLBACK] if left_out == "one mode" else [A, FALLBACK]
    case.graph.create_execution_plans(modes)
    if left_out == "filter":
        case.graph.deselect_workspace_greater_than(1 << 40)
    if left_out == "added":
        case.graph.create_execution_plan(0, {})
    case.graph.build_plans(FIRST if left_out == "not built" else ALL)
    case.graph.autotune(case.pack(), workspace(case.graph))
    case.check()
    assert not list(folder.glob("find/*/graph/*.json"))


@pytest.mark.parametrize("damage", ["text", "no plan", "another algorithm", "another configuration", "another cut"])
def test_an_answer_that_makes_no_sense_is_passed_over(folder, monkeypatch, damage):
    _, identity = tuned(monkeypatch)
    file, = folder.glob("find/*/graph/*.json")
    text = file.read_text()
    was = {"text": text, "no plan": '\\"cut\\"', "another algorithm": '\\"algorithm\\": \\"',
           "another configuration": '\\"config\\": \\"', "another cut": '\\"cut\\": '}[damage]
    assert was in text
    file.write_text("{" if damage == "text" else text.replace(was, {"no plan": '\\"gut\\"'}.get(damage, was + "7")))
    with pytest.warns() if damage == "text" else _nothing():
        case = Case().planned(A, policy=FIRST)
    assert not case.graph._engines.known
    execute_and_check(case)


def _nothing():
    import contextlib
    return contextlib.nullcontext()


def test_the_last_measurement_counts(folder, monkeypatch):
    """And the plan that was the fastest is measured again, whatever the modes are."""
    case = Case().planned(B)
    wanted = next(plan for plan in case.plans if plan.cut == 2)
    pretend(monkeypatch, lambda plan: plan is wanted)
    case.graph.autotune(case.pack(), workspace(case.graph))
    other = Case().planned(A)
    assert identities(other)[0] == wanted.identity
    names = other.plans
    pretend(monkeypatch, lambda plan: plan is names[-1])
    other.graph.autotune(other.pack(), workspace(other.graph))
    assert Case().planned(A, policy=FIRST).graph._candidate.identity == names[-1].identity != wanted.identity
