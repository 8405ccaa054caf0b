"""The contract: every algorithm of the registry on every problem of `cases/<op>.py`. No algorithm is named here."""
import itertools

import cases
import contract
import pytest
import sample
from contract import ALLOW, device, refusal
from sample import CASES, MOST_SECONDS, OPS

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.host import front, lists


def pytest_generate_tests(metafunc):
    full = metafunc.config.getoption("--full")
    for name, rows_of in (("pair", sample.rows), ("refused", sample.refused)):
        if name in metafunc.fixturenames:
            rows, seen = [], {}
            for row in (row for op in OPS for row in rows_of(op, full)):
                word = f"{row.op}-{row.algo}-{row.case}"
                seen[word] = seen.get(word, -1) + 1
                rows.append(pytest.param(row, id=f"{word}-{seen[word]}" if seen[word] else word))
            metafunc.parametrize(name, rows)
    if "op" in metafunc.fixturenames:
        metafunc.parametrize("op", list(OPS))


def test_contract(pair):
    contract.check(*pair.resolve(), only=pair.only)


def test_refused_by_name_and_reason(refused):
    assert isinstance(refused.reason, str) and len(refused.reason) >= 5 and "\n" not in refused.reason, refused.reason
    contract.check_refusal(*refused.resolve(), refused.reason)


@pytest.mark.always
def test_every_operation_has_cases():
    assert {a.op for a in dispatch.algorithms()} == set(OPS)
    for op, module in OPS.items():
        names = [case.id for case in (*module.CASES, *module.LARGE)]
        assert len(names) == len(set(names)), f"two cases of {op} have the same id"


@pytest.mark.always
def test_cases_for_a_gpu_are_problems(op):
    """Seen without one, too."""
    for case in (*OPS[op].LARGE, *getattr(OPS[op], "BEYOND_INT32", ())):
        assert not case.problem().is_empty, case.id


@pytest.mark.always
def test_every_algorithm_supports_three_problems_and_every_problem_has_an_algorithm(op):
    pairs = sample.supported(op)
    for algorithm in dispatch.algorithms(op):
        if device().supports(algorithm.arch) is None:
            assert len({case.id for a, case, _ in pairs if a is algorithm}) >= 3, f"{algorithm} supports fewer than three of the cases"
    left = set(CASES[op]) - {case.id for _, case, _ in pairs}
    assert not left, f"nothing supports {sorted(left)}"


@pytest.mark.always
def test_every_problem_has_a_deterministic_algorithm_by_default(op):
    for case in CASES[op].values():
        if not case.problem().is_empty:
            assert dispatch.get_algorithm(op, case.problem()).is_deterministic


@pytest.mark.always
def test_the_sample_has_every_algorithm_dtype_and_problem(op):
    rows = sample.rows(op)
    able = [a.name for a in dispatch.algorithms(op) if device().supports(a.arch) is None]
    assert sorted({row.algo for row in rows}) == sorted(able)
    assert {row.dtype for row in rows} == {sample.dtype_of(name) for name in CASES[op]}
    assert {row.case for row in rows} == set(CASES[op]), "the simulator's bound leaves a problem without a run"


@pytest.mark.always
def test_the_simulator_runs_every_algorithm(op, simulated):
    for algorithm in dispatch.algorithms(op):
        able = ((a, case, problem) for a, case, problem in sample.supported(op) if a is algorithm and not problem.is_empty)
        ran = list(itertools.islice((case.id for a, case, problem in able if sample.runs(a, case, problem)), 3))
        assert len(ran) == 3, f"{algorithm}: {MOST_SECONDS} s leave only {ran}"


def test_the_declared_arrays_are_what_the_front_end_sees(op):
    from dnnkern.host.arrays import kind_of
    from dnnkern.host.tensor import Tensor
    from labs import guarded
    for case in CASES[op].values():
        for name, p in (*case.inputs().items(), *case.outputs().items()):
            if p is not None and p.size and p.size < 10 ** 6 and (SIMULATED or min(p.strides, default=1) >= 0):
                array = guarded(p).array
                assert kind_of(array).tensor(array) == Tensor(p.shape, p.strides, p.dtype, p.alignment), (case.id, name)


@pytest.mark.always
def test_values_are_what_the_modes_promise(op):
    import numpy as np
    for case in CASES[op].values():
        small = {name: place for name, place in case.inputs().items() if place is not None and place.size <= 10 ** 5}
        for mode in ("exact", "float") if case.exact else ("float",):
            values = case.values(mode) if small else {}
            for name, place in small.items():
                x = values[name]
                assert np.array_equal(cases.rounded(x, place.dtype), x), (case.id, name, "is not representable")
                assert mode == "float" or np.array_equal(x, np.rint(x)), (case.id, name, "is no integer")
        if case.exact and case.work < 10 ** 8:
            y, _ = case.reference(case.values("exact"))
            for name, place in case.outputs().items():
                assert np.array_equal(cases.rounded(y[name], place.dtype), y[name]), (case.id, name, "is not representable")
            contract.assert_telling(y, case)


@pytest.mark.parametrize("policy, seed", [("lifo", 0), ("random", 1)])
def test_other_schedules(op, policy, seed, simulated, monkeypatch):
    from dnnkern.device.sim import config
    monkeypatch.setattr(config, "policy", policy)
    monkeypatch.setattr(config, "seed", seed)
    for algorithm in dispatch.algorithms(op):
        able = [(seconds, variant, case) for a, case, problem in sample.supported(op)
                if a is algorithm and case.exact and not problem.is_empty for variant, seconds in sample.runs(a, case, problem)[:1]]
        for _, variant, case in sorted(able[:20], key=lambda row: row[0])[:1]:
            with contract.registered(variant) as mine:
                contract.check_exact(mine, case, again=False)


def test_nothing_depends_on_what_was_in_memory(op, simulated, monkeypatch):
    """Every algorithm once under DNNKERN_CHECK=unwritten; the other tests look at outputs and workspace alone."""
    for module in (front, lists):
        monkeypatch.setattr(module, "CHECKS", frozenset({"unwritten"}))
    shortest = {}
    for row in sorted(sample.rows(op), key=lambda row: row.seconds):
        if row.seconds:  # a problem without elements takes none
            shortest.setdefault(row.algo, row)
    for row in shortest.values():
        contract.check(*row.resolve(), only="exact")


@pytest.mark.always
def test_gradients_against_finite_differences(op):
    for case in CASES[op].values():
        for analytic, numeric, tolerance in case.gradient(case.values("float")) if case.gradient else ():
            contract.assert_within(analytic, numeric, tolerance, f"{case.id}: gradient")


@pytest.mark.slow
def test_beyond_int32(op, on_gpu):
    for case in getattr(OPS[op], "BEYOND_INT32", ()):
        for algorithm in dispatch.algorithms(op):
            if refusal(algorithm, case.problem()) is None:
                OPS[op].check_beyond_int32(case, algorithm.name, ALLOW)
