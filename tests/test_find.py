"""Measuring and the find database, in the simulator."""
import dataclasses
import itertools
import json
import math
import multiprocessing
import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from dnnkern import dispatch, find
from dnnkern.device import SIMULATED, cuda
from dnnkern.dispatch import Note, Perf
from dnnkern.embedding._parse import parse_problem
from dnnkern.host import timing, versions
from dnnkern.host.launch import Argument, Launch
from dnnkern.host.operands import Operands, sets_for
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import MatmulProblem

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the database and its rules need no GPU")
DEVICE = dispatch.device_of(0)


def product(m=6, n=5, k=4, dtype="float32", **extra):
    out = "int32" if dtype == "int8" else dtype
    return MatmulProblem(a=Tensor.packed((m, k), dtype), b=Tensor.packed((k, n), dtype), y=Tensor.packed((m, n), out), **extra)


def perf(name, ms, memory=0, config="", status="ok"):
    return Perf(name, status, ms, memory, True, "exact", Note.NONE, config)


def named(name):
    return next(a for a in dispatch.algorithms("matmul") if a.name == name)


def known():
    return tuple(dispatch.algorithms("matmul"))


def store(problem, perfs):
    return find.store("matmul", problem, DEVICE, known(), perfs)


def load(problem, device=DEVICE):
    return find.load("matmul", problem, device, known())


def best_known(problem, able, **limit):
    return find.best_known("matmul", problem, DEVICE, able, known(), **limit)


@dataclasses.dataclass(frozen=True)
class Tile:
    """A configuration whose text says what it is."""
    size: int

    def __str__(self):
        return f"tile {self.size}"


@pytest.fixture(autouse=True)
def empty_database(tmp_path, monkeypatch):
    for module in (find, dispatch):
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(find, "STORES", True)  # as on a device
    dispatch.forget()
    yield tmp_path
    dispatch.forget()


@pytest.fixture
def registered():
    """Registers variants of the naive algorithm for one test."""
    added = []

    def add(name, **changes):
        added.append(dispatch.register(dataclasses.replace(named("naive"), name=name, **changes)))
        return added[-1]
    yield add
    for algorithm in added:
        dispatch.unregister(algorithm)


@pytest.fixture
def only(monkeypatch):
    """Leaves only the named algorithms among an operation's candidates."""
    def restrict(*names):
        every = dispatch.algorithms
        monkeypatch.setattr(dispatch, "algorithms", lambda op=None: [a for a in every(op) if a.name in names])
    return restrict


@cuda.jit(launch_bounds=32)
def writes_seven(y, n):
    i = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    if i < n:
        y[i] = np.float32(7)


@cuda.jit(launch_bounds=32)
def writes_nothing(y, n):
    if n < 0:
        y[0] = np.float32(0)


def build_with(kernel):
    def build(problem, device, config):
        return (Launch(kernel, (1, 1, 1), (32, 1, 1), (Argument("float32*", "y"), Argument("int32", problem.y.size))),)
    return build


# ---- the database

def test_round_trip(empty_database):
    problem = product()
    assert store(problem, [perf("naive", 2.0), perf("other", math.inf, status="WRONG: y")])
    (path,) = empty_database.rglob("*.json")
    assert path.parent.name == "matmul" and path.parent.parent.name == "simulator-sm-90a-132"
    entry = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert entry["problem"]["a"]["shape"] == [6, 4] and entry["title"] == str(problem) and entry["versions"]
    assert entry["results"][1]["time_ms"] is None
    assert load(problem) == [(2.0, 0, "naive", "")]
    assert best_known(problem, dispatch.algorithms("matmul")) is named("naive")


def test_infinite_parameters_are_plain_json(empty_database):
    from dnnkern.device.epilogue import Activation
    problem = product(activation=Activation("relu"))
    store(problem, [perf("naive", 1.0)])
    (path,) = empty_database.rglob("*.json")
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert load(problem)


def test_another_problem_is_another_entry(empty_database):
    store(product(), [perf("naive", 1.0)])
    for other in (product(m=7), product(dtype="bfloat16"), product(math="tf32")):
        assert load(other) == []
    assert load(product(), dataclasses.replace(DEVICE, sms=78)) == []


def test_other_versions_do_not_count(monkeypatch):
    store(product(), [perf("naive", 1.0)])
    versions = dict(find.versions(), numba="0.0.0")
    monkeypatch.setattr(find, "versions", lambda: versions)
    assert load(product()) == []


@pytest.mark.parametrize("wheels, nvvm", [({}, "system"), ({"nvidia-nvvm": "13.5.37"}, "13.5.37"),
                                          ({"nvidia-cuda-nvcc-cu12": "12.9.86", "nvidia-nvjitlink-cu12": "12.9.86"}, "12.9.86"),
                                          ({"nvidia-nvvm": "13.5.37", "nvidia-cuda-nvcc-cu12": "12.9.86"}, "13.5.37, 12.9.86")])
def test_versions_of_the_toolkit_whatever_its_wheels_are_called(wheels, nvvm, monkeypatch, tmp_path):
    for name, version in wheels.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    versions._folders.cache_clear()
    found = versions.versions.__wrapped__()
    versions._folders.cache_clear()
    assert (found["nvidia-nvvm"], found["dnnkern"], found["numba"]) == (nvvm, "source", "system")
    assert found["nvidia-nvjitlink"] == wheels.get("nvidia-nvjitlink-cu12", "system")


@pytest.mark.parametrize("text", ["{", "", "[]", "{}", "null 1", "\x00\x01"])
def test_a_broken_file_warns_and_is_removed(empty_database, text):
    store(product(), [perf("naive", 1.0)])
    (path,) = empty_database.rglob("*.json")
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="broken"):
        assert best_known(product(), dispatch.algorithms("matmul")) is None
    assert not path.exists()


def test_a_result_that_makes_no_sense_is_broken(empty_database):
    store(product(), [perf("naive", 1.0)])
    (path,) = empty_database.rglob("*.json")
    entry = json.loads(path.read_text())
    entry["results"] = [{"algo": "naive", "status": "ok", "time_ms": None}]
    path.write_text(json.dumps(entry))
    with pytest.warns(RuntimeWarning, match="broken"):
        assert load(product()) == []


@pytest.mark.parametrize("change", [
    {"memory": math.inf}, {"memory": -1}, {"memory": "0"}, {"memory": True}, {"time_ms": math.nan}, {"time_ms": "1"}, {"time_ms": -1.0},
    {"algo": 5}, {"config": None}, {"status": ["ok"], "algo": None}], ids=str)
def test_values_of_wrong_types_are_broken(empty_database, change):
    store(product(), [perf("naive", 1.0)])
    (path,) = empty_database.rglob("*.json")
    entry = json.loads(path.read_text())
    entry["results"][0].update(change)
    path.write_text(json.dumps(entry))
    if "status" in change:
        assert load(product()) == []
        return
    with pytest.warns(RuntimeWarning, match="broken"):
        assert load(product()) == []


@pytest.mark.parametrize("text", ["[" * 200_000, '{"results": 5}', "[1, 2]", '"x"', "NaN", '{"a":' * 100_000])
def test_what_cannot_be_removed_is_ignored_with_one_warning(empty_database, monkeypatch, text):
    """As in a cache that is read-only; and ordinary calls work."""
    store(product(), [perf("naive", 1.0)])
    (path,) = empty_database.rglob("*.json")
    path.write_text(text)

    def unlink(self, missing_ok=False):
        raise PermissionError("read-only")
    monkeypatch.setattr(type(path), "unlink", unlink)
    with pytest.warns(RuntimeWarning, match="is ignored") as caught:
        for _ in range(2):
            assert load(product()) == []
    assert len(caught) == 1
    dispatch.forget()
    assert dispatch.get_algorithm("matmul", product(), device=DEVICE)


def test_a_directory_in_an_entrys_place_is_ignored(empty_database):
    path = find.path_of("matmul", product(), DEVICE, known())
    path.mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert load(product()) == []


def test_without_a_cache_directory_nothing_is_kept(monkeypatch):
    for module in (find, dispatch):
        monkeypatch.setattr(module, "cache_dir", lambda: None)
    assert store(product(), [perf("naive", 1.0)]) is False
    assert load(product()) == []


def test_configurations_round_trip(registered):
    tiled = registered("configured", configs=lambda problem, device: (Tile(16), Tile(32), Tile(64)),
                       estimate=lambda problem, device, config: 1.0 / config.size if config else 1.0)
    able = dispatch.algorithms("matmul")
    store(product(), [perf("configured", 1.0, config="tile 16"), perf("naive", 2.0)])
    best = best_known(product(), able)
    assert best == dataclasses.replace(tiled, config=Tile(16))
    row = dispatch.explain("matmul", product(), device=DEVICE)[0]
    assert (row.algo, row.config, row.why) == ("configured", "tile 16", "measured")


def test_what_no_longer_exists_is_passed_over(registered):
    registered("configured", configs=lambda problem, device: (Tile(16),), estimate=lambda *_: 1.0)
    able = dispatch.algorithms("matmul")
    store(product(), [perf("gone", 1.0), perf("configured", 2.0, config="tile 8"), perf("naive", 3.0)])
    assert best_known(product(), able).name == "naive"
    store(product(m=9), [perf("gone", 1.0)])
    assert best_known(product(m=9), able) is None


def test_the_callers_limits_hold():
    store(product(), [perf("tiled", 1.0, memory=4096), perf("naive", 2.0)])
    able = dispatch.algorithms("matmul")
    assert best_known(product(), able).name == "tiled"
    assert best_known(product(), able, workspace_limit=100).name == "naive"
    assert best_known(product(), [named("naive")]).name == "naive"


def _writer(folder, number):
    find.cache_dir = lambda: folder
    for _ in range(20):
        store(product(), [perf("naive", 1.0 + number)] * 30)


def test_concurrent_writers_leave_a_whole_file(empty_database):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_writer, args=(empty_database, k)) for k in range(3)]
    for w in writers:
        w.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while any(w.is_alive() for w in writers):
            assert len(load(product())) in (0, 30)
    for w in writers:
        w.join()
        assert w.exitcode == 0
    assert len(load(product())) == 30
    assert len(list(empty_database.rglob("*"))) == 4  # three folders and one file: no temporary one is left


# ---- measuring

def test_find_stores_and_get_follows(only, registered, empty_database):
    registered("slow", estimate=lambda *_: 1e-9)  # the estimates' favourite; measured, the naive algorithm and it are alike
    only("naive", "slow")
    problem = product()
    assert dispatch.get_algorithm("matmul", problem, device=DEVICE).name == "slow"
    perfs = dispatch.find_algorithms("matmul", problem, device=DEVICE)
    assert [p.status for p in perfs] == ["ok", "ok"] and perfs[0].time_ms <= perfs[1].time_ms
    assert dispatch.get_algorithm("matmul", problem, device=DEVICE).name == perfs[0].algo
    store(problem, [perf("naive", 1.0), perf("slow", 2.0)])
    dispatch.forget(dispatch.operation_of("matmul"))
    assert dispatch.get_algorithm("matmul", problem, device=DEVICE).name == "naive"


def test_times_of_the_simulator_decide_nothing(only, registered, empty_database, monkeypatch):
    monkeypatch.setattr(find, "STORES", not SIMULATED)
    registered("favourite", estimate=lambda *_: 1e-9)
    only("naive", "favourite")
    for _ in range(3):
        assert [p.status for p in dispatch.find_algorithms("matmul", product(), device=DEVICE)] == ["ok", "ok"]
        assert dispatch.get_algorithm("matmul", product(), device=DEVICE).name == "favourite"
    assert not list(empty_database.rglob("*.json"))


def test_find_clears_the_front_ends_choices(only):
    import dnnkern
    only("naive", "tiled")
    operation = dispatch.operation_of("matmul")
    a, b = np.ones((6, 4), np.float32), np.ones((4, 5), np.float32)
    dnnkern.matmul(a, b)
    assert operation.calls
    dispatch.find_algorithms("matmul", product(), device=DEVICE)
    assert not operation.calls
    assert (dnnkern.matmul(a, b) == 4).all()


def test_not_saved_when_asked_not_to(only, empty_database):
    only("naive")
    assert dispatch.find_algorithms("matmul", product(), save=False, device=DEVICE)[0].status == "ok"
    assert not list(empty_database.rglob("*.json"))


def test_skipped_for_workspace_is_not_stored(only, registered, empty_database):
    registered("hungry", workspace=lambda *_: 1 << 20)
    only("naive", "hungry")
    perfs = dispatch.find_algorithms("matmul", product(), workspace_limit=1000, device=DEVICE)
    assert [p.algo for p in perfs] == ["naive", "hungry"]
    assert perfs[1].status == "needs 1048576 bytes of workspace, the limit is 1000" and math.isinf(perfs[1].time_ms)
    assert not list(empty_database.rglob("*.json"))
    assert all(p.status == "ok" for p in dispatch.find_algorithms("matmul", product(), device=DEVICE))
    assert list(empty_database.rglob("*.json"))


@pytest.mark.parametrize("kernel", [writes_seven, writes_nothing])
def test_a_wrong_algorithm_is_not_timed(only, registered, kernel):
    registered("wrong", build=build_with(kernel), estimate=lambda *_: 1e-9)
    only("naive", "wrong")
    perfs = dispatch.find_algorithms("matmul", product(), device=DEVICE)
    assert [p.algo for p in perfs] == ["naive", "wrong"]
    assert perfs[1].status.startswith("WRONG: y differs") and math.isinf(perfs[1].time_ms)
    dispatch.forget()
    assert dispatch.get_algorithm("matmul", product(), device=DEVICE).name == "naive"


def test_an_algorithm_that_raises_does_not_hide_the_others(only, registered):
    def build(problem, device, config):
        raise RuntimeError("no such instruction")
    registered("broken", build=build)
    only("naive", "broken")
    assert [p.status for p in dispatch.find_algorithms("matmul", product(), device=DEVICE)] == ["ok", "RuntimeError: no such instruction"]


def test_nondeterministic_only_where_allowed(only, registered):
    registered("atomic", notes=Note.NONDETERMINISTIC)
    only("naive", "atomic")
    assert len(dispatch.find_algorithms("matmul", product(), device=DEVICE)) == 1
    perfs = dispatch.find_algorithms("matmul", product(), allow=Note.NONDETERMINISTIC, device=DEVICE)
    assert {p.algo: p.determinism for p in perfs} == {"naive": True, "atomic": False}


def test_the_callers_arrays_are_read_and_left_alone(only, registered):
    only("naive")
    a, b = np.full((6, 4), 3, np.float32), np.full((4, 5), 2, np.float32)
    dispatch.find_algorithms("matmul", product(), arrays=(a, b, None, None), device=DEVICE)
    assert (a == 3).all() and (b == 2).all()
    with pytest.raises(ValueError, match="b is"):
        dispatch.find_algorithms("matmul", product(), arrays=(a, a, None, None), device=DEVICE)
    dispatch.find_algorithms("matmul", product(), arrays=(a, b), device=DEVICE)  # those at the end may be left out
    with pytest.raises(ValueError, match="7 arrays given; expected a, b, bias, c, scale_a, scale_b"):
        dispatch.find_algorithms("matmul", product(), arrays=(a, b) + (None,) * 5, device=DEVICE)


# ---- operands and the clock

@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8"])
def test_operands_are_random_and_laid_out_as_the_problem_says(dtype):
    a = Tensor((6, 4), (-9, 2), dtype, alignment={"int8": 1, "float16": 2, "bfloat16": 2}.get(dtype, 16))
    problem = dataclasses.replace(product(dtype=dtype), a=a)
    with Operands(dispatch.operation_of("matmul"), problem, DEVICE) as operands:
        array = operands.array(0, "a")
        address = array.__array_interface__["data"][0]
        assert array.shape == (6, 4) and array.strides == (-9 * a.itemsize, 2 * a.itemsize)
        assert (min(16, address & -address) if address & 15 else 16) == a.alignment
        assert len(np.unique(array)) > 4
        assert operands.array(0, "bias") is None


def test_sets_have_more_than_the_l2_of_what_is_moved():
    problem = parse_problem("1000000x64 bf16 65536".split(), "embedding_fwd")
    size = sum(t.nbytes for t in (problem.table, problem.indices, *problem.outputs))
    assert problem.bytes < size / 7
    l2 = 50 << 20
    assert sets_for(size, problem.bytes, l2, 4 << 30) == -(-3 * l2 // problem.bytes) == 10
    assert sets_for(1 << 20, 1 << 20, l2, 4 << 30) == 150 == sets_for(1 << 20, 2 << 20, l2, 4 << 30)
    assert sets_for(size, problem.bytes, l2, 3 * size) == 3 and sets_for(8 << 30, 1, l2, 4 << 30) == 1
    assert sets_for(0, 0, l2, 4 << 30) == sets_for(64, 64, l2, 4 << 30) == 1024


def test_in_place_operands_start_afresh_for_every_check(only):
    only("naive")
    y = Tensor.packed((6, 5), "float32")
    problem = product(c=y, beta=True, in_place=True)
    assert dispatch.find_algorithms("matmul", problem, device=DEVICE)[0].status == "ok"


def test_samples():
    sample = timing.Sample((3.0, 1.0, 2.0, 4.0, 5.0))
    assert sample.median == 3.0 and sample.iqr == 2.0
    assert timing.Sample((2.0,)).iqr == 0.0


@pytest.fixture
def takes(monkeypatch):
    """What lets so many seconds go by, of a clock that nothing else moves: load of the machine does not count."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_by(seconds):
        now[0] += seconds
    return pass_by


def test_race_gives_every_contender_its_turns(takes):
    order = []
    contenders = [timing.Contender(name, lambda k, name=name: (order.append((name, k)), takes(2e-2))) for name in "ab"]
    with timing.Clock() as clock:
        samples = timing.race(contenders, clock, rounds=4)
    assert [len(samples[name].times) for name in "ab"] == [4, 4]
    turns = [name for name, _ in itertools.groupby(order, key=lambda call: call[0])]
    assert turns[-5:] == list("ababa")  # ab, ba, ab, ba: a turn is one call or more
    assert samples["a"].times == pytest.approx([2e-2] * 4)


def test_long_contenders_get_fewer_turns(takes):
    contenders = [timing.Contender("fast", lambda k: takes(1e-6)), timing.Contender("slow", lambda k: takes(0.02))]
    with timing.Clock() as clock:
        samples = timing.race(contenders, clock, rounds=9, limit=0.3)
        once = timing.race(contenders, clock, rounds=9, limit=0.04)
    assert len(samples["fast"].times) == 9 and len(samples["slow"].times) == 3 and len(once["slow"].times) == 1


def test_batches_walk_through_the_sets():
    seen = []
    timing.Contender("x", seen.append, sets=3).enqueue(7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_host_time_is_not_measured_where_the_queue_would_fill():
    assert timing.host_seconds(lambda: None, lambda: None, device_seconds=0.1) is None
    assert timing.host_seconds(lambda: None, lambda: None) >= 0
    calls = []
    assert timing.host_seconds(lambda: calls.append(time.sleep(2e-3)), lambda: None, repeats=3, limit=0.02) >= 2e-3
    assert 50 + 3 * 5 <= len(calls) <= 50 + 3 * 10
