"""The contract: every algorithm of the registry on every problem of `cases/<op>.py`. No algorithm is named here."""
import collections
import functools
import random

import cases
import contract
import pytest
from contract import ALLOW, device, refusal

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Note

# The simulator's bound: a plan that takes it longer, as `_seconds` estimates, runs on a GPU only. What may not be left out by it,
# `test_the_simulator_runs_every_algorithm` and `test_the_sample_has_every_algorithm_dtype_and_problem` say.
MOST_SECONDS = 2.0
AGAIN = 3  # problems of an algorithm there, the shortest, on which all is run; of the others, exact and rounded values by turns, once
SEVERAL_SECONDS = 1.0  # that several configurations may take on one problem there
VARIANTS, FURTHER = (2, 1) if SIMULATED else (3, 3)  # configurations, the most promising first, and on how many problems of an algorithm
SEED = 20

OPS = cases.modules()
CASES = {op: list(module.CASES) + ([] if SIMULATED else list(module.LARGE)) for op, module in OPS.items()}


def _key(case):
    return case.id.split("-")[-1]  # the dtype


def _seconds(variant, problem, case):
    """What the simulator takes, a guess: by threads, their shared memory and the elementary steps of an output, fitted to 1650 runs."""
    launches, tensor_core = variant.build(problem, device(), variant.config), Note.TENSOR_CORE in variant.notes
    threads = sum(_volume(k.grid) * _volume(k.block) for k in launches)
    shared = sum(_volume(k.grid) * k.shared for k in launches)
    steps = threads * (case.work / max(1, sum(p.size for p in case.outputs().values())))
    return 1.15e-4 * threads + (9e-7 * shared + 1.6e-6 * steps if tensor_core else 8e-6 * shared + 3.8e-7 * steps)


def _volume(v):
    return v[0] * v[1] * v[2]


@functools.cache
def _supported(op):
    """[(algorithm, case, problem)] of all pairs where the algorithm supports the problem."""
    found = []
    for case in CASES[op]:
        problem = case.problem()
        for algorithm in dispatch.algorithms(op):
            if refusal(algorithm, problem) is None:
                found.append((algorithm, case, problem))
    return found


def _runs(algorithm, case, problem, limit=VARIANTS):
    """The variants of an algorithm that run here on a problem: the most promising of those within the simulator's bound."""
    if problem.is_empty:
        return [algorithm]
    variants = algorithm.variants(problem, device())
    if SIMULATED:
        variants = [v for v in variants if _seconds(v, problem, case) <= MOST_SECONDS]
    return variants[:limit]


@functools.cache
def _sample(op):
    """[(variant, case)]: every problem, with the algorithm that has had the least time so far; every algorithm with every dtype it has and
    at least four problems; and `FURTHER` times several configurations of an algorithm. Else it is the most promising one, in the simulator
    the shortest. Drawn with a fixed seed."""
    pairs = list(_supported(op))
    random.Random(SEED).shuffle(pairs)
    able = {}
    for algorithm, case, problem in pairs:
        able.setdefault(case.id, []).append((algorithm, case, problem))
    counts, spent, kinds, chosen, further = collections.Counter(), collections.Counter(), set(), [], collections.Counter()

    def take(algorithm, case, problem):
        variants = _runs(algorithm, case, problem, None)
        if not variants or any(a.name == algorithm.name and c is case for a, c in chosen):
            return False
        shortest = min(variants, key=lambda v: _seconds(v, problem, case)) if SIMULATED and len(variants) > 1 else variants[0]
        some, several = [shortest], list(dict.fromkeys(variants[:VARIANTS] + [shortest]))
        if len(several) > 1 and further[algorithm.name] < FURTHER:
            if not SIMULATED or sum(_seconds(v, problem, case) for v in several) <= SEVERAL_SECONDS:
                some = several
                further[algorithm.name] += 1
        chosen.extend((v, case) for v in some)
        counts[algorithm.name] += 1
        spent[algorithm.name] += 0 if problem.is_empty else sum(_seconds(v, problem, case) for v in some)
        kinds.add((algorithm.name, _key(case)))
        return True

    for rows in able.values():
        any(take(*row) for row in sorted(rows, key=lambda row: spent[row[0].name]))
    for algorithm, case, problem in pairs:
        if not problem.is_empty and ((algorithm.name, _key(case)) not in kinds or counts[algorithm.name] < 4):
            take(algorithm, case, problem)
    order = {c.id: k for k, c in enumerate(CASES[op])}
    return sorted(chosen, key=lambda row: (row[0].name, order[row[1].id]))


def _thorough(rows):
    """Which rows of a sample, by number, the simulator runs in every way; those of empty problems, which launch nothing, are none."""
    costs = {}
    for k, (variant, case) in enumerate(rows):
        if not (problem := case.problem()).is_empty:
            costs.setdefault(variant.name, []).append((_seconds(variant, problem, case), k))
    return {k for some in costs.values() for _, k in sorted(some)[:AGAIN]}


def _everything(op):
    return [(v, case) for algorithm, case, problem in _supported(op) for v in _runs(algorithm, case, problem, None)]


def pytest_generate_tests(metafunc):
    full = metafunc.config.getoption("--full")
    if "pair" in metafunc.fixturenames:
        rows = []
        for op in OPS:
            seen, sample = collections.Counter(), _everything(op) if full else _sample(op)
            thorough = _thorough(sample) if SIMULATED and not full else range(len(sample))
            for k, (variant, case) in enumerate(sample):
                name = f"{op}-{variant.name}-{case.id}"
                only = None if k in thorough else ("exact", "float")[seen[variant.name] % 2]
                rows.append(pytest.param((variant, case, only), id=f"{name}-{seen[name]}" if seen[name] else name))
                seen[name] += 1
                seen[variant.name] += 1
        metafunc.parametrize("pair", rows)
    if "refused" in metafunc.fixturenames:
        rows = []
        for op in OPS:
            for algorithm in dispatch.algorithms(op):
                seen = set()
                for case in CASES[op]:
                    problem = case.problem()
                    reason = refusal(algorithm, problem)
                    if reason and not problem.is_empty and (full or reason not in seen):
                        seen.add(reason)
                        rows.append(pytest.param((algorithm, case, reason), id=f"{op}-{algorithm.name}-{case.id}"))
        metafunc.parametrize("refused", rows)
    if "op" in metafunc.fixturenames:
        metafunc.parametrize("op", list(OPS))


def test_contract(pair):
    variant, case, only = pair
    contract.check(variant, case, only=only)


def test_refused_by_name_and_reason(refused):
    algorithm, case, reason = refused
    assert isinstance(reason, str) and len(reason) >= 5 and "\n" not in reason, reason
    contract.check_refusal(algorithm, case, reason)


def test_every_operation_has_cases():
    assert {a.op for a in dispatch.algorithms()} == set(OPS)


def test_every_algorithm_supports_three_problems_and_every_problem_has_an_algorithm(op):
    pairs = _supported(op)
    for algorithm in dispatch.algorithms(op):
        if device().supports(algorithm.arch) is None:
            assert len({case.id for a, case, _ in pairs if a is algorithm}) >= 3, f"{algorithm} supports fewer than three of the cases"
    left = {case.id for case in CASES[op]} - {case.id for _, case, _ in pairs}
    assert not left, f"nothing supports {sorted(left)}"


def test_every_problem_has_a_deterministic_algorithm_by_default(op):
    for case in CASES[op]:
        if not case.problem().is_empty:
            assert dispatch.get_algorithm(op, case.problem()).is_deterministic


def test_the_sample_has_every_algorithm_dtype_and_problem(op):
    sample = _sample(op)
    able = [a.name for a in dispatch.algorithms(op) if device().supports(a.arch) is None]
    assert sorted({a.name for a, _ in sample}) == sorted(able)
    assert {_key(c) for _, c in sample} == {_key(c) for c in CASES[op]}
    assert {c.id for _, c in sample} == {c.id for c in CASES[op]}, "the simulator's bound leaves a problem without a run"


def test_the_simulator_runs_every_algorithm(op, simulated):
    for algorithm in dispatch.algorithms(op):
        ran = {case.id for a, case, problem in _supported(op) if a is algorithm and not problem.is_empty and _runs(a, case, problem)}
        assert len(ran) >= 3, f"{algorithm}: {MOST_SECONDS} s leave only {sorted(ran)}"


def test_the_declared_arrays_are_what_the_front_end_sees(op):
    from dnnkern.host.arrays import kind_of
    from dnnkern.host.tensor import Tensor
    from labs import guarded
    for case in CASES[op]:
        for name, p in (*case.inputs().items(), *case.outputs().items()):
            if p is not None and p.size and p.size < 10 ** 6 and (SIMULATED or min(p.strides, default=1) >= 0):
                array = guarded(p).array
                assert kind_of(array).tensor(array) == Tensor(p.shape, p.strides, p.dtype, p.alignment), (case.id, name)


def test_values_are_what_the_modes_promise(op):
    import numpy as np
    for case in CASES[op]:
        for mode in ("exact", "float"):
            for name, place in case.inputs().items():
                if place is None or place.size > 10 ** 5:
                    continue
                x = case.values(mode)[name]
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
        able = [(v, problem, case) for a, case, problem in _supported(op) if a is algorithm and case.exact and not problem.is_empty
                for v in _runs(a, case, problem, 1)]
        for variant, _, case in sorted(able[:20], key=lambda row: _seconds(*row))[:1]:
            with contract.registered(variant) as mine:
                contract.check_exact(mine, case, again=False)


def test_gradients_against_finite_differences(op):
    for case in CASES[op]:
        for analytic, numeric, tolerance in case.gradient(case.values("float")) if case.gradient else ():
            contract.assert_within(analytic, numeric, tolerance, f"{case.id}: gradient")


@pytest.mark.slow
def test_beyond_int32(op, on_gpu):
    for case in getattr(OPS[op], "BEYOND_INT32", ()):
        for algorithm in dispatch.algorithms(op):
            if refusal(algorithm, case.problem()) is None:
                OPS[op].check_beyond_int32(case, algorithm.name, ALLOW)
