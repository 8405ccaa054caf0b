"""The registry, the prediction, the reasons. (What is measured, and the database of it: `test_find.py`.)"""
import dataclasses
import importlib
import itertools
import logging
import sys

import contract
import labs
import pytest

import dnnkern
from dnnkern import dispatch, registry
from dnnkern.dispatch import Algorithm, Candidate, Note, NotSupported
from dnnkern.host import manifest
from dnnkern.host.device import current_device
from dnnkern.host.device import device as device_of
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import MatmulProblem

_sizes = itertools.count(1000)


@pytest.fixture
def problem():
    """A problem nobody has asked about yet: choices are remembered."""
    n = next(_sizes)
    return MatmulProblem(a=Tensor.packed((4, n), "float32"), b=Tensor.packed((n, 4), "float32"), y=Tensor.packed((4, 4), "float32"))


@pytest.fixture
def device():
    return device_of(current_device())


def algorithm(name, reason=None, workspace=0, seconds=1e-9, **more):
    """An algorithm that is asked and never run."""
    return Algorithm(op="matmul", name=name, supports=lambda problem: reason, workspace=lambda problem, device, config: workspace,
                     estimate=lambda problem, device, config: seconds, build=lambda problem, device, config: (), **more)


@pytest.fixture
def add():
    """add(algorithm) registers until the test ends."""
    added = []

    def register(a):
        added.append(dispatch.register(a))
        return a
    yield register
    for a in added:
        dispatch.unregister(a)


# ---- registry

def test_register_and_unregister(add, problem):
    before = dispatch.algorithms("matmul")
    mine = algorithm("mine")
    assert dispatch.register(mine) is mine
    try:
        assert dispatch.algorithms("matmul") == before + [mine]
        assert dispatch.get_algorithm("matmul", problem) is mine
        with pytest.raises(ValueError, match="already has an algorithm 'mine'"):
            dispatch.register(algorithm("mine"))
        with pytest.raises(ValueError, match="register: unknown operation 'matmull'; did you mean 'matmul'"):
            dispatch.register(dataclasses.replace(mine, op="matmull"))
        with pytest.raises(TypeError, match="register: algorithm is 'mine'; expected a dispatch.Algorithm"):
            dispatch.register("mine")
    finally:
        dispatch.unregister(mine)
    assert dispatch.algorithms("matmul") == before
    assert dispatch.get_algorithm("matmul", problem).name != "mine"
    dispatch.unregister(mine)  # twice is no error


def test_all_operations():
    everything = dispatch.algorithms()
    assert set(dispatch.algorithms("matmul")) <= set(everything)
    assert len({(a.op, a.name) for a in everything}) == len(everything)


def test_every_operation_has_a_naive_algorithm_that_is_deterministic_and_exact():
    for op in {a.op for a in dispatch.algorithms()}:
        naive = next(a for a in dispatch.algorithms(op) if a.name == "naive")
        assert naive.is_deterministic and naive.math == "exact" and naive.arch == "sm_70+"


def test_an_operation_that_does_not_exist(problem):
    for call in (dispatch.algorithms, lambda op: dispatch.get_algorithm(op, problem), lambda op: dispatch.explain(op, problem)):
        with pytest.raises(ValueError, match="unknown operation 'matmull'.*matmul"):
            call("matmull")
    for odd in (3, [], object()):
        with pytest.raises(TypeError, match="op=.*; expected the name of an operation"):
            dispatch.algorithms(odd)


def test_a_call_sees_an_algorithm_registered_after_it(problem, add):
    """What the front end remembers of a call must not outlive a change of the registry."""
    import labs
    from cases import lay
    import numpy as np
    arrays = [labs.guarded(lay(shape, "float32"), np.ones(shape)).array for shape in ((3, 5), (5, 3))]
    assert np.asarray(dnnkern.matmul(*arrays).tolist()).sum() == 45
    ran = []
    add(dataclasses.replace(algorithm("late", seconds=-1.0), build=lambda *a: ran.append(1) or ()))
    dnnkern.matmul(*arrays)
    assert ran


# ---- discovery

@pytest.fixture
def family(tmp_path, monkeypatch):
    """family({file name: text}) makes a package dnnkern.<family> of these files and discovers it."""
    name = f"family{next(_sizes)}"
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(registry, "PACKAGE", tmp_path)
    monkeypatch.setattr(manifest, "_open", lambda: None)  # which is of the package's own files
    monkeypatch.setattr(dnnkern, "__path__", [*dnnkern.__path__, str(tmp_path)])
    before = {op: dict(known) for op, known in registry._registry.items()}

    def discover(files):
        for file, text in {"__init__.py": "", "_problem.py": "", **files}.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text("from dnnkern.dispatch import Algorithm\n"
                                       "def make(op, name): return Algorithm(op=op, name=name, supports=None, workspace=None, "
                                       "estimate=None, build=None)\n" + text)
        importlib.invalidate_caches()
        return dispatch.algorithms("newop")
    yield discover
    registry._registry.clear()
    registry._registry.update(before)
    registry._discovered.discard(name)
    for module in [m for m in sys.modules if m.startswith(f"dnnkern.{name}")]:
        del sys.modules[module]


def test_adding_a_file_is_adding_an_algorithm(family):
    found = family({"newop_one.py": "ALGORITHM = make('newop', 'one')", "newop_two.py": "ALGORITHM = make('newop', 'two')",
                    "_helper.py": "raise RuntimeError('helpers are not imported')"})
    assert [str(a) for a in found] == ["newop/one", "newop/two"]


def test_one_file_for_several_directions(family):
    found = family({"newop_both.py": "ALGORITHMS = make('newop', 'both'), make('newop_bwd', 'both')"})
    assert [a.name for a in found] == ["both"] and "newop_bwd" in registry._registry


def test_a_folder_is_an_algorithm_or_a_group_of_them(family):
    found = family({"one/__init__.py": "from .kernel import x\nALGORITHM = make('newop', 'one')", "one/kernel.py": "x = 1",
                    "group/__init__.py": "'A group.'", "group/newop_two.py": "ALGORITHM = make('newop', 'two')",
                    "group/_helper.py": "raise RuntimeError('helpers are not imported')",
                    "_parts/__init__.py": "raise RuntimeError('helpers are not imported')"})
    assert [str(a) for a in found] == ["newop/one", "newop/two"]
    assert [a.source.split("/", 2)[2] for a in found] == ["one/__init__.py", "group/newop_two.py"]


@pytest.mark.parametrize("file, text, words", [
    ("wrong/__init__.py", "ALGORITHM = make('newop', 'right')", "wrong/ holds newop/right; its name must be right"),
    ("group/newop_two.py", "ALGORITHM = make('newop', 'two')", "group/ in .* has no __init__.py"),
    ("newop_wrong.py", "ALGORITHM = make('newop', 'right')", "newop_wrong.py holds newop/right.*newop_right.py"),
    ("oldop_right.py", "ALGORITHM = make('newop', 'right')", "oldop_right.py holds newop/right.*newop_right.py"),
    ("newop_both.py", "ALGORITHMS = make('newop', 'both'), make('newop_bwd', 'other')", "newop_both.py holds newop_bwd/other"),
    ("newop_none.py", "", "newop_none.py.*binds neither ALGORITHM nor ALGORITHMS.*underscore"),
    ("helper.py", "x = 1", "helper.py.*binds neither"),
    ("newop_broken.py", "import a_module_that_is_not_there", "a_module_that_is_not_there")])
def test_a_file_that_cannot_be_used_raises(family, file, text, words):
    """Nothing is left out silently."""
    with pytest.raises(ImportError, match=words):
        family({file: text})
    with pytest.raises(ImportError, match=words):  # and again, not only the first time
        dispatch.algorithms("newop")


# ---- get

def test_the_least_estimate_wins(problem, add):
    add(algorithm("slow", seconds=2e-12))
    fast = add(algorithm("fast", seconds=1e-12))
    assert dispatch.get_algorithm("matmul", problem) is fast


def test_what_cannot_run_is_passed_over(problem, add, device):
    add(algorithm("unable", reason="M is odd"))
    add(algorithm("elsewhere", arch="sm_70a"))
    add(algorithm("future", arch="sm_250+"))
    add(algorithm("racing", notes=Note.NONDETERMINISTIC))
    best = add(algorithm("able", seconds=1e-8))
    assert dispatch.get_algorithm("matmul", problem) is best
    assert dispatch.get_algorithm("matmul", problem, allow=Note.NONDETERMINISTIC).name == "racing"
    assert dispatch.get_algorithm("matmul", problem, algo="racing", allow=Note.NONDETERMINISTIC | Note.WINOGRAD).name == "racing"


@pytest.mark.parametrize("name, reason", [("unable", "M is odd"), ("elsewhere", "sm_70a"), ("future", r"needs sm_250\+"),
                                          ("racing", "NONDETERMINISTIC.*allow="),
                                          ("hungry", "needs 4096 bytes of workspace, the limit is 4095")])
def test_forced_algorithms_that_cannot(problem, add, name, reason):
    add(algorithm("unable", reason="M is odd"))
    add(algorithm("elsewhere", arch="sm_70a"))
    add(algorithm("future", arch="sm_250+"))
    add(algorithm("racing", notes=Note.NONDETERMINISTIC))
    add(algorithm("hungry", workspace=4096))
    with pytest.raises(NotSupported, match=f"(?s)matmul: algorithm '{name}' cannot solve matmul 4x4.*{reason}"):
        dispatch.get_algorithm("matmul", problem, algo=name, workspace_limit=4095)


def test_workspace_limits(problem, add):
    add(algorithm("hungry", workspace=4096))
    assert dispatch.get_algorithm("matmul", problem).name == "hungry"
    assert dispatch.get_algorithm("matmul", problem, workspace_limit=4096).name == "hungry"
    assert dispatch.get_algorithm("matmul", problem, workspace_limit=4095).name != "hungry"
    assert dispatch.get_algorithm("matmul", problem, workspace_limit=0).name != "hungry"


def test_nothing_fits_and_every_reason_is_given(problem, monkeypatch):
    one, two = algorithm("one", reason="K is long"), algorithm("two", workspace=10)
    monkeypatch.setattr(dispatch, "algorithms", lambda op=None: [one, two])
    with pytest.raises(NotSupported) as caught:
        dispatch.get_algorithm("matmul", problem, workspace_limit=5)
    assert "one: K is long" in str(caught.value) and "two: needs 10 bytes of workspace, the limit is 5" in str(caught.value)
    dispatch.choices_changed()


def test_the_choice_is_bound_to_its_best_configuration(problem, add, device):
    tiles = add(Algorithm(op="matmul", name="tiles", supports=lambda p: None, workspace=lambda p, d, c: 100 * c,
                          estimate=lambda p, d, c: abs(c - 3) * 1e-12, build=lambda p, d, c: (), configs=lambda p, d: (1, 2, 3, 4)))
    chosen = dispatch.get_algorithm("matmul", problem)
    assert (chosen.name, chosen.config, str(chosen)) == ("tiles", 3, "matmul/tiles[3]")
    assert [v.config for v in tiles.variants(problem, device)] == [3, 2, 4, 1]
    assert chosen.configured(problem, device) is chosen and chosen.variants(problem, device) == [chosen]


def test_no_configuration_fits(problem, add):
    add(dataclasses.replace(algorithm("picky"), configs=lambda p, d: ()))
    with pytest.raises(NotSupported, match="matmul/picky: no configuration fits"):
        dispatch.get_algorithm("matmul", problem, algo="picky")


def test_a_smaller_configuration_within_the_limit(problem, add):
    """The limit chooses among configurations: the fastest one's workspace must not rule the algorithm out."""
    add(Algorithm(op="matmul", name="tiles", supports=lambda p: None, workspace=lambda p, d, c: 100 * c, estimate=lambda p, d, c: 1e-12 / c,
                  build=lambda p, d, c: (), configs=lambda p, d: (1, 2, 3, 4)))
    chosen = dispatch.get_algorithm("matmul", problem, workspace_limit=250)
    assert (chosen.name, chosen.config) == ("tiles", 2)


def test_a_choice_is_made_once(problem, add):
    asked = []
    add(dataclasses.replace(algorithm("counted"), supports=lambda p: asked.append(p)))
    for _ in range(3):
        assert dispatch.get_algorithm("matmul", problem).name == "counted"
    assert len(asked) == 1


# ---- explain

def test_explain(problem, add):
    add(algorithm("unable", reason="M is odd"))
    add(algorithm("hungry", workspace=64, seconds=2e-12, notes=Note.TENSOR_CORE))
    add(algorithm("first", seconds=1e-12))
    rows = dispatch.explain("matmul", problem)
    assert {r.algo for r in rows} == {a.name for a in dispatch.algorithms("matmul")} and all(isinstance(r, Candidate) for r in rows)
    assert rows[0].algo == "first" and [r.algo for r in rows if r.chosen] == ["first"]
    assert [r.why for r in rows if r.why] == ["predicted"] == [rows[0].why]
    able = [r for r in rows if r.reason is None]
    assert [r.time_ms for r in able] == sorted(r.time_ms for r in able) and rows[:len(able)] == able
    by_name = {r.algo: r for r in rows}
    assert by_name["unable"].reason == "M is odd" and by_name["unable"].time_ms is None
    assert (by_name["hungry"].memory, by_name["hungry"].notes, by_name["hungry"].time_ms) == (64, Note.TENSOR_CORE, 2e-9)


def test_nothing_is_explained_of_a_problem_without_elements():
    for op, sizes in (("softmax_fwd", {"x": ("0x10", "float32")}), ("matmul", {"a": ("0x4", "float32"), "b": ("4x3", "float32")})):
        assert dispatch.explain(op, dnnkern.problem(op, **sizes)) == []


def test_explain_within_limits(problem, add, monkeypatch):
    monkeypatch.setattr(dispatch, "algorithms", lambda op=None: [algorithm("hungry", workspace=64)])
    assert dispatch.explain("matmul", problem)[0].chosen
    row, = dispatch.explain("matmul", problem, workspace_limit=63)
    assert not row.chosen and "needs 64 bytes" in row.reason
    dispatch.choices_changed()


def test_explain_says_what_get_does():
    from cases.matmul import CASES
    for case in CASES[::7]:
        if not case.problem().is_empty:
            assert dispatch.explain("matmul", case.problem())[0].algo == dispatch.get_algorithm("matmul", case.problem()).name


# ---- log

def test_the_log_says_each_choice_once(problem, add, monkeypatch, caplog):
    monkeypatch.setenv("DNNKERN_LOG", "dispatch")
    add(algorithm("chosen"))
    with caplog.at_level(logging.INFO, "dnnkern.dispatch"):
        for _ in range(3):
            dispatch.get_algorithm("matmul", problem)
    lines = [r.getMessage() for r in caplog.records if r.name == "dnnkern.dispatch"]
    assert len(lines) == 1 and str(problem) in lines[0] and "matmul/chosen" in lines[0] and "predicted" in lines[0]


def test_a_log_that_there_is_not(problem, monkeypatch):
    monkeypatch.setenv("DNNKERN_LOG", "dispatch,everything")
    with pytest.raises(ValueError, match="DNNKERN_LOG='dispatch,everything'; expected dispatch"):
        dispatch.get_algorithm("matmul", problem)


def test_without_the_variable_nothing_is_logged(problem, monkeypatch, caplog):
    monkeypatch.delenv("DNNKERN_LOG", raising=False)
    with caplog.at_level(logging.INFO, "dnnkern.dispatch"):
        dispatch.get_algorithm("matmul", problem)
    assert not caplog.records


def test_a_problem_as_data(problem):
    record = dispatch.problem_record(problem)
    assert record["a"] == {"shape": list(problem.a.shape), "strides": list(problem.a.strides), "dtype": "float32", "alignment": 16}
    assert contract.device().name


def test_watching_inside_watching():
    """Two lists with the same problems are two."""
    import numpy as np

    import dnnkern
    x = labs.array(np.zeros(7))
    dispatch.choices_changed()
    with dispatch.watch() as outer:
        with dispatch.watch() as inner:
            dnnkern.activation_fwd(x, "relu")
        dnnkern.activation_fwd(x, "tanh")
    assert [str(p) for p in inner] == ["activation_fwd 7 float32 relu"]
    assert [str(p) for p in outer] == ["activation_fwd 7 float32 relu", "activation_fwd 7 float32 tanh"]
