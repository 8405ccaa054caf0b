"""Which plans a graph has, in which order, and `autotune`, which measures them."""
import numpy as np
import pytest
from graphs import T, array_of, close, draw, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern import find
from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.graph import _engines, _partition
from dnnkern.graph._errors import InvalidVariantPack, WorkspaceTooSmall

A, B, FALLBACK, OPENSOURCE = cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK, cudnn.heur_mode.OPENSOURCE
ALL, FIRST = cudnn.build_plan_policy.ALL, cudnn.build_plan_policy.HEURISTICS_CHOICE
on_host = pytest.mark.skipif(not HOST_MEMORY, reason="passes NumPy arrays")


class Case:
    """y = -exp(softmax(x)) * scale, of 2 rows: three nodes that can be one kernel, two or three."""

    def __init__(self, rows=2, name="soft"):
        self.graph, self.array, self.scale = new_graph(), draw((1, rows, 4), rows), draw((1, rows, 4), 7)
        self.x, self.s = like(self.graph, self.array), like(self.graph, self.scale)
        graph = self.graph
        self.y = graph.mul(graph.neg(graph.exp(graph.softmax(self.x, 2, name=name))), self.s).set_output(True)
        graph.build()

    def planned(self, *modes, policy=ALL):
        self.graph.create_execution_plans(list(modes))
        self.graph.build_plans(policy)
        return self

    @property
    def plans(self):
        return self.graph._plans.all()

    @property
    def names(self):
        return [plan.name for plan in self.plans]

    def pack(self):
        self.result = array_of(self.y)
        return {self.x: self.array, self.s: self.scale, self.y: self.result}

    def check(self):
        e = np.exp(self.array.astype(float))
        close(self.result, -np.exp(e / e.sum(2, keepdims=True)) * self.scale, factor=64)


def workspace(graph):
    return np.empty(graph.get_autotune_workspace_size(), np.uint8)


def identities(case):
    return [plan.identity for plan in case.plans]


# ---- plans


def test_modes():
    a, b, fallback = (Case().planned(mode, policy=FIRST) for mode in (A, B, FALLBACK))
    assert identities(Case().planned(OPENSOURCE, policy=FIRST)) == identities(a)
    assert set(identities(a)) < set(identities(b)), "B has more"
    assert {plan.cut for plan in a.plans} == {0, 1} < {plan.cut for plan in b.plans}
    assert {plan.cut for plan in fallback.plans[:1]} == {1} and len(fallback.plans[0].steps) == 4, "one node a part"
    assert all(a.name == "naive" for a in fallback.plans[-1].algorithms)
    for case in (a, b):
        seconds = [plan.seconds for plan in case.plans[1:]]
        assert seconds == sorted(seconds) and len(set(identities(case))) == len(case.plans)
    both = Case().planned(A, FALLBACK, policy=FIRST)
    assert identities(both)[:len(a.plans)] == identities(a) and set(identities(both)) == {*identities(a), *identities(fallback)}
    other = Case().planned(FALLBACK, A, policy=FIRST)
    assert identities(other)[0] == identities(fallback)[0] and set(identities(other)) == set(identities(both))
    assert other.graph._candidate is other.plans[0]


def test_b_takes_a_cut_between_where_it_is_predicted_to_be_the_fastest(monkeypatch):
    cost = _engines.Cut.cost.fget
    monkeypatch.setattr(_engines.Cut, "cost", property(lambda self: cost(self) * (0.01 if self.number == 2 else 1.0)))
    a, b = (Case().planned(mode, policy=FIRST) for mode in (A, B))
    assert a.graph._candidate.cut != 2 and b.graph._candidate.cut == 2
    execute(b.graph, b.pack())
    b.check()


def test_cuts_between():
    case = Case()
    found = _partition.between(case.graph.spec)
    first, single = _partition.cuts(case.graph.spec)
    assert len(first) == 1 and len(single) == 4 and [len(cut) for cut in found] == [2]
    assert [len(part) for part in found[0]] == [1, 3] and sum(found[0], ()) == first[0]
    alone = new_graph()
    alone.relu(alone.tensor([2, 2], [2, 1])).set_output(True)
    alone.build()
    assert not _partition.between(alone.spec)


def test_engines_of_all_cuts():
    graph = Case().graph
    engines, names = graph._engines, set()
    for engine in range(graph.get_engine_count()):
        plan = engines.plan(engine, {})
        assert plan.engine == 0 or plan.cut in (0, 1, 2)
        assert engines._named(engines.cut_of(plan.cut), plan).engine == engine
        names.add(plan.identity)
    assert len(names) == graph.get_engine_count()
    with pytest.raises(RuntimeError, match="cut 9 of 3"):
        engines.cut_of(9)


def test_a_plan_that_is_built_stays_built():
    """Whatever filters are set after it."""
    case = Case().planned(A, FALLBACK)
    plan = case.plans[1]
    case.graph.deselect_engines([case.plans[0].name])
    assert case.plans[0] is plan and plan.is_built


# ---- autotune


def test_plans_are_measured_on_the_buffers():
    case = Case().planned(A, FALLBACK)
    before, scale, names = case.array.copy(), case.scale.copy(), case.names
    pack = case.pack()
    perfs = run(case, pack)
    case.check()
    assert sorted(p.algo for p in perfs) == sorted(names) and all(p.status == "ok" and 0 < p.time_ms for p in perfs)
    assert [p.time_ms for p in perfs] == sorted(p.time_ms for p in perfs)
    assert [p.algo for p in perfs] == case.names and case.graph._candidate is case.plans[0]
    np.testing.assert_array_equal(case.array, before)
    np.testing.assert_array_equal(case.scale, scale)
    case.result[...] = np.nan
    execute(case.graph, pack)
    case.check()
    case.graph.deselect_engines([case.names[0]])
    assert case.names == [p.algo for p in perfs if not p.algo.startswith(perfs[0].algo)], "filters keep the order"


def run(case, pack):
    """`autotune`, whose buffers are copied to the device and back where that is not the host."""
    found = []
    graph = case.graph

    class Tuned:
        get_workspace_size = staticmethod(graph.get_autotune_workspace_size)
        execute = staticmethod(lambda given, workspace: found.extend(graph.autotune(given, workspace)))
    execute(Tuned, pack)
    return found


def test_the_fastest_is_what_runs(monkeypatch):
    """And has run last: of plans that fill the result with their numbers, its number is there afterwards."""
    case = Case().planned(A, FALLBACK)
    order = {plan: k for k, plan in enumerate(case.plans)}
    wanted, ran = case.plans[2], []
    for plan, k in order.items():
        executable = plan.executable(frozenset(), None)[0]
        monkeypatch.setattr(executable, "execute", lambda values, stream, k=k, real=executable.execute: (ran.append(k),
                                                                                                         real(values, stream)))
    slower = iter(range(1, 100))
    sample = type("Sample", (), {})
    monkeypatch.setattr(find, "heats", lambda contenders, clock: {
        c.name: _with(sample(), median=0.5 if c.name is wanted else float(next(slower))) for c in contenders})
    perfs = run(case, case.pack())
    assert perfs[0].algo == wanted.name and case.plans[0] is wanted is case.graph._candidate
    assert ran == [*range(len(order)), 2]
    case.check()


def _with(thing, **attributes):
    vars(thing).update(attributes)
    return thing


def test_a_plan_that_fails_is_left_behind(monkeypatch):
    case = Case().planned(FALLBACK)
    broken = case.plans[0]

    def fails(values, stream):
        raise RuntimeError("no such luck")
    monkeypatch.setattr(broken.executable(frozenset(), None)[0], "execute", fails)
    perfs = run(case, case.pack())
    case.check()
    assert perfs[-1].algo == broken.name and perfs[-1].status == "RuntimeError: no such luck" and perfs[-1].time_ms == np.inf
    assert case.plans[0] is not broken
    for plan in case.plans:
        monkeypatch.setattr(plan.executable(frozenset(), None)[0], "execute", fails)
    with pytest.raises(RuntimeError, match="autotune: no plan ran: .*no such luck"):
        run(case, case.pack())


def test_only_what_is_built_is_measured():
    case = Case().planned(A, FALLBACK, policy=FIRST)
    count = len(case.plans)
    case.graph.build_plan_at_index(2)
    built = {case.plans[0].name, case.plans[2].name}
    perfs = run(case, case.pack())
    assert {p.algo for p in perfs} == built and len(case.plans) == count and case.names[:2] == [p.algo for p in perfs]


@on_host
@pytest.mark.parametrize("same", [True, False])
def test_results_over_operands_are_refused(same, launches):
    case = Case().planned(A, policy=FIRST)
    memory = np.zeros(16, np.float32)
    memory[:8] = case.array.ravel()
    before = memory.copy()
    shared = memory[0 if same else 4:][:8].reshape(1, 2, 4)
    pack = {case.x: memory[:8].reshape(1, 2, 4), case.s: case.scale, case.y: shared}
    with pytest.raises(InvalidVariantPack, match="overlap; expected results apart from operands"):
        case.graph.autotune(pack, workspace(case.graph))
    np.testing.assert_array_equal(memory, before)
    assert not launches
    pack[case.y] = memory[8:].reshape(1, 2, 4)
    case.graph.autotune(pack, workspace(case.graph))
    assert launches


@on_host
def test_running_statistics_in_place_are_refused(launches):
    """They would be updated once a run."""
    graph = new_graph()
    x, scale, bias, mean, var = (draw(shape, k) for k, shape in enumerate([(2, 3, 2, 2), *[(1, 3, 1, 1)] * 4]))
    given = [like(graph, array) for array in (x, scale, bias, mean, var)]
    number = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], is_pass_by_value=True)
    results = graph.batchnorm(*given, number, number)
    for result in results:
        result.set_output(True)
    graph.build([A])
    arrays = {t: array_of(t) for t in results}
    pack = {**dict(zip(given, (x, scale, bias, mean, np.abs(var)))), **arrays, number: np.full((1, 1, 1, 1), 0.1, np.float32)}
    with pytest.raises(InvalidVariantPack, match="autotune: .*overlap"):
        graph.autotune({**pack, results[3]: mean}, workspace(graph))
    assert not launches
    graph.autotune(pack, workspace(graph))
    graph.execute({**pack, results[3]: mean}, np.empty(graph.get_workspace_size_with_copies(), np.uint8))


@on_host
def test_ragged_results_over_operands(launches):
    """Of tensors whose dims do not say how far they reach."""
    graph = new_graph(T.HALF)
    q = graph.tensor([1, 1, 4, 8], [32, 8, 8, 1], name="q")
    offsets = graph.tensor([2, 1, 1, 1], [1, 1, 1, 1], T.INT32)
    lengths = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.INT32)
    q.set_ragged_offset(offsets)
    o, _ = graph.sdpa(q, q, q, attn_scale=1.0, is_inference=True, use_padding_mask=True, seq_len_q=lengths, seq_len_kv=lengths)
    o.set_output(True).set_dim([1, 1, 4, 8]).set_stride([32, 8, 8, 1]).set_ragged_offset(offsets)
    graph.build([A])
    memory = draw((64,), 1).astype(np.float16)
    pack = {q: memory[:32], o: memory[16:48], offsets: np.array([0, 32], np.int32), lengths: np.array([4], np.int32)}
    with pytest.raises(InvalidVariantPack, match="autotune: .*overlap"):
        graph.autotune(pack, workspace(graph))
    assert not launches
    graph.autotune({**pack, o: memory[32:]}, workspace(graph))


@on_host
def test_bad_input(launches):
    case = Case()
    with pytest.raises(RuntimeError, match="autotune: the graph 'test_graph' has no plans"):
        case.graph.autotune({}, None)
    case.graph.create_execution_plans([A])
    with pytest.raises(RuntimeError, match="autotune: no plan of the graph 'test_graph' has been built"):
        case.graph.autotune({}, None)
    with pytest.raises(RuntimeError, match="get_autotune_workspace_size: no plan"):
        case.graph.get_autotune_workspace_size()
    case.planned(A)
    size = case.graph.get_autotune_workspace_size()
    assert size == max(case.graph.get_workspace_size_plan_at_index(k) for k in range(len(case.plans))) > 0
    with pytest.raises(ValueError, match="autotune: got list; expected a dict"):
        case.graph.autotune([], None)
    pack = case.pack()
    for wrong in (None, np.empty(size - 1, np.uint8)):
        with pytest.raises(WorkspaceTooSmall, match=f"autotune: .* need {size} bytes"):
            case.graph.autotune(pack, wrong)
    with pytest.raises(InvalidVariantPack, match="has no buffer"):
        case.graph.autotune({key: value for key, value in pack.items() if key is not case.s}, workspace(case.graph))
    with pytest.raises(RuntimeError, match="HANDLE_ERROR"):
        case.graph.autotune(pack, workspace(case.graph), handle=12345)
    assert not launches


@pytest.fixture(name="launches")
def launches_fixture(monkeypatch):
    """The executables that have run since."""
    if SIMULATED:
        from dnnkern.host.launch import SimulatedExecutable as Executable
    else:
        from dnnkern.host.cpu import CpuExecutable as Executable
    ran, execute = [], Executable.execute
    monkeypatch.setattr(Executable, "execute", lambda self, values, stream: (ran.append(self), execute(self, values, stream)))
    return ran


def test_a_deserialized_graph_is_tuned_too():
    case = Case().planned(A)
    data = case.graph.serialize()
    other = cudnn.pygraph()
    other.deserialize(data)
    case.result = array_of(case.y)
    pack = {case.x.get_uid(): case.array, case.s.get_uid(): case.scale, case.y.get_uid(): case.result}
    tuned = type("Tuned", (), {"graph": other})
    assert [p.algo for p in run(tuned, pack)] == [other.get_plan_name_at_index(0)]
    case.check()


@pytest.mark.parametrize("cut", range(3))
def test_plans_of_every_cut_are_serialized(cut):
    case = Case().planned(B, policy=FIRST)
    index = next(k for k, plan in enumerate(case.plans) if plan.cut == cut)
    case.graph.build_plan_at_index(index)
    other = cudnn.pygraph()
    other.deserialize(case.graph.serialize())
    assert other._candidate.identity == case.plans[index].identity
    case.result = array_of(case.y)
    execute(other, {case.x.get_uid(): case.array, case.s.get_uid(): case.scale, case.y.get_uid(): case.result})
    case.check()


@pytest.mark.skipif(not SIMULATED, reason="elsewhere times are kept")
def test_nothing_is_kept_in_the_simulator(monkeypatch):
    monkeypatch.setattr(find, "store", lambda *given: pytest.fail("stored"))
    case = Case().planned(A)
    run(case, case.pack())
    assert not case.graph._engines.known


def test_what_a_graph_is_called():
    case = Case()
    assert str(case.graph.spec) == "graph test_graph of softmax 1x2x4 + exp 1x2x4 + neg 1x2x4 + mul 1x2x4"
    assert case.graph.spec.anonymous == Case(name="another").graph.spec.anonymous != Case(rows=5).graph.spec.anonymous


# ---- fewer multiprocessors

def product(sm_count=None, m=8192):
    graph = cudnn.pygraph(io_data_type=T.HALF, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT, sm_count=sm_count)
    x, w = graph.tensor([1, m, 64], [m * 64, 64, 1], uid=1), graph.tensor([1, 64, 512], [64 * 512, 512, 1], uid=2)
    graph.matmul(x, w).set_output(True).set_uid(3)
    graph.build()
    return graph


def grids(graph):
    """{algorithm: blocks of its launches}"""
    engines = graph._engines
    plans = [engines.plan(k, {}) for k in range(graph.get_engine_count())]
    return {plan.algorithms[0].name: [int(np.prod(launch.grid)) for launch in plan.algorithms[0].build(
        plan.steps[0].problem, plan.device, plan.algorithms[0].config)] for plan in plans}


@pytest.mark.skipif(not SIMULATED, reason="of a Hopper, which the simulator has")
def test_blocks_that_take_tile_after_tile_are_fewer_on_fewer_multiprocessors():
    whole, part = grids(product()), grids(product(40))
    assert whole["wgmma"][0] > 40 >= part["wgmma"][0] > 0
    assert part["naive"] == whole["naive"], "a block for each tile"
    assert product(40)._engines.first().seconds > product()._engines.first().seconds


def test_a_graph_for_one_multiprocessor():
    """Computes the same, and so does what it was serialized to; what was measured for it is not another's."""
    graph = product(1, 16)
    graph.create_execution_plans([A])
    graph.build_plans()
    x, w = draw((1, 16, 64), 1).astype(np.float16), draw((1, 64, 512), 2).astype(np.float16)
    other = cudnn.pygraph()
    other.deserialize(graph.serialize())
    assert (other.sm_count, other._candidate.device.sms, graph._candidate.device.sms) == (1, 1, 1)
    for made in (graph, other):
        result = np.full((1, 16, 512), np.nan, np.float16)
        execute(made, {1: x, 2: w, 3: result})
        close(result, x.astype(float) @ w, factor=4, scale=32)
    whole = product(None, 16)._engines
    assert find.identity("graph", graph.spec, graph._engines.device, ()) != find.identity("graph", graph.spec, whole.device, ()) or (
        whole.device.sms == 1)


def test_as_many_multiprocessors_as_there_are():
    most = product()._engines.device.sms
    assert product(most)._engines.device.sms == most
    for wrong in (0, -1, most + 1):
        with pytest.raises(RuntimeError, match=f"INVALID_VALUE: sm_count is {wrong}; expected 1 to {most}"):
            product(wrong)
    with pytest.raises(TypeError):
        product("all")
