"""Costs: terms that add up, on every algorithm; the table of constants; and what `explain` and the command line show of them."""
import ast
import inspect
import json
import math
import pathlib
import pickle

import cases
import pytest
from representative import device

import dnnkern
from dnnkern import dispatch
from dnnkern.engine.constants import TABLE, constants
from dnnkern.engine.cost import LAUNCH, TERMS, Cost, contend, overlap

HOPPER, AMPERE = device("sm_90a"), device("sm_80")
PACKAGE = pathlib.Path(dnnkern.__file__).parent
ALGORITHMS = sorted(dispatch.algorithms(), key=str)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12)


def test_sums_add_terms_of_the_same_name():
    cost = Cost(launch=1.0, memory=2.0) + Cost(memory=3.0, issue=4.0)
    assert cost == 10.0 and cost.terms == {"launch": 1.0, "memory": 5.0, "issue": 4.0}
    assert (2 * cost).terms == (cost * 2).terms == {"launch": 2.0, "memory": 10.0, "issue": 8.0}
    assert (cost / 2).terms == {"launch": 0.5, "memory": 2.5, "issue": 2.0}
    assert sum([cost, cost]).terms == (2 * cost).terms


def test_long_sums_have_terms():
    cost = sum([Cost(launch=1.0, memory=2.0)] * 5000)
    assert cost == 15000.0 and cost.terms == {"launch": 5000.0, "memory": 10000.0}


def test_numbers_are_other_terms():
    assert (Cost(launch=1.0) + 2.0).terms == {"launch": 1.0, "other": 2.0} == (2.0 + Cost(launch=1.0)).terms
    assert Cost.of(3.0).terms == {"other": 3.0} and Cost.of(LAUNCH) is LAUNCH
    assert (Cost(launch=1.0) + 0).terms == {"launch": 1.0}


def test_the_longest_of_what_overlaps_counts():
    cost = overlap(memory=3.0, issue=2.0)
    assert cost == 3.0 and cost.terms == {"memory": 3.0} and cost.hidden == {"issue": 2.0}
    part = overlap(exposed=0.5, memory=3.0, issue=2.0, l1=1.0)
    assert part == 4.5 and part.terms == {"memory": 3.0, "contention": 1.5}
    nested = overlap(Cost(math=2.0, waves=2.0), memory=3.0)
    assert nested == 4.0 and nested.terms == {"math": 2.0, "waves": 2.0} and nested.hidden == {"memory": 3.0}
    beaten = overlap(Cost(math=2.0, waves=2.0), memory=5.0)
    assert beaten.terms == {"memory": 5.0} and beaten.hidden == {"math": 2.0, "waves": 2.0}


def test_equal_terms_contend():
    cost = contend(2, memory=3.0, issue=4.0)
    assert cost == 5.0 and cost.terms == {"issue": 4.0, "contention": 1.0} and cost.hidden == {"memory": 3.0}


def test_factors_are_terms():
    cost = Cost(memory=4.0).slowed(idle=2.0, tail=1.25)
    assert cost == 10.0 and cost.terms == {"memory": 4.0, "idle": 4.0, "tail": 2.0}
    assert Cost(memory=4.0).slowed(slower=1.0).terms == {"memory": 4.0}


def test_a_cost_is_a_float_that_does_not_change():
    cost = Cost(launch=1.0) + overlap(memory=3.0, issue=2.0)
    assert isinstance(cost, float) and float(cost) == 4.0 and hash(cost) == hash(4.0) and json.dumps(cost) == "4.0"
    cost.terms["launch"] = 7.0
    assert cost.terms == {"launch": 1.0, "memory": 3.0}
    assert pickle.loads(pickle.dumps(cost)).terms == cost.terms


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_terms_add_up_to_the_estimate(algorithm):
    """Of some problems, and of every configuration; the terms have names that are explained, and nothing is left unnamed."""
    able = [p for p in (c.problem() for c in cases.modules()[algorithm.op].CASES) if not p.is_empty and algorithm.reason(p) is None]
    found = 0
    for target in (HOPPER, AMPERE):
        for problem in able[::max(1, len(able) // 4)]:
            if algorithm.refusal(problem, target) is not None:
                continue
            for config in (None,) if algorithm.configs is None else algorithm.configs(problem, target):
                estimate = algorithm.estimate(problem, target, config)
                assert isinstance(estimate, Cost) and estimate > 0
                assert close(sum(estimate.terms.values()), estimate), estimate.terms
                assert {*estimate.terms, *estimate.hidden} <= {*TERMS} - {"other"}
                assert all(t >= 0 for t in estimate.hidden.values())
                found += 1
    assert found or algorithm.arch not in ("sm_70+", "sm_80+", "sm_90a")


@pytest.mark.parametrize("op, words", [("matmul", "512x512x64 bf16"), ("softmax_fwd", "512x1024 f32"),
                                       ("conv_fwd", "8x64x28x28 k64 3x3 p1 f16 nhwc")])
def test_explain_has_the_terms(op, words, capsys):
    from dnnkern.__main__ import main
    from dnnkern._parser import Parser, family_words
    add_arguments, make, _ = family_words(Parser(), op)
    parser = Parser()
    add_arguments(parser)
    able = [c for c in dispatch.explain(op, make(parser.parse_args(words.split())), prefer="device") if c.reason is None]
    assert len(able) > 2
    for candidate in able:
        assert close(sum(candidate.terms.values()), candidate.time_ms)
    assert main(["explain", op, *words.split(), "--why"]) == 0
    got = capsys.readouterr().out
    assert "sum of" in got
    for name in able[0].terms:
        assert f"{name} " in got and TERMS[name] in " ".join(got.split())


def test_an_algorithm_of_a_user_may_return_a_number():
    from dataclasses import replace
    problem = dnnkern.problem("matmul", a=("64x64", "float32"), b=("64x64", "float32"))
    mine = dispatch.register(replace(dispatch.algorithms("matmul")[0], name="mine", configs=None, supports=lambda p: None,
                                     workspace=lambda *_: 0, estimate=lambda *_: 1e-9))
    try:
        chosen = dispatch.explain("matmul", problem, device=HOPPER, prefer="device")[0]
        assert (chosen.algo, chosen.terms) == ("mine", {"other": pytest.approx(1e-6)})
        assert dispatch.get_algorithm("matmul", problem, device=HOPPER, prefer="device").name == "mine"
    finally:
        dispatch.unregister(mine)


# ---- the table

@pytest.mark.parametrize("name", TABLE)
def test_a_row_says_where_its_numbers_are_from(name):
    row = constants(name)
    source = row.about.source
    assert row.about.name == name and row.about.meaning and row.numbers
    assert source.kind in ("fitted", "counted", "guessed", "nominal")
    assert set(row.about.guessed) <= set(row.numbers)
    if source.kind == "fitted":
        assert source.device and (PACKAGE.parent / source.run).is_file() and row.about.command == f"python -m bench.fit {name}"
    else:
        assert not source.run and not row.about.command


def sources():
    return {path: path.read_text() for path in PACKAGE.rglob("*.py")}


def test_every_row_and_number_is_used():
    text = "\n".join(s for path, s in sources().items() if path.parent.name != "constants")
    assert not [name for name in TABLE if f'constants("{name}")' not in text]
    assert not [(name, number) for name, row in TABLE.items() for number in row.numbers
                if f".{number}" not in text and f'"{number}"' not in text and not number.startswith("chunks_")]


def estimates():
    """(file, function) of everything that an algorithm's estimate is, or that is named after the seconds it returns."""
    for path, text in sources().items():
        if path.parent.name in ("host", "device", "constants"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.endswith(("estimate", "seconds", "_cost")):
                yield path.relative_to(PACKAGE), node


def test_no_constant_is_left_in_an_estimate():
    """Numbers that are not whole are a model's, and in the table: but 0.25, 0.5, 1 and units of time and clocks."""
    allowed = {0.0, 0.25, 0.5, 1.0, 1e-6, 1e-9, 1e6, 1e9}
    found = [(str(path), node.name, constant.value) for path, node in estimates() for constant in ast.walk(node)
             if isinstance(constant, ast.Constant) and isinstance(constant.value, float) and constant.value not in allowed]
    assert not found
    assert sum(1 for _ in estimates()) > 100


def test_fit_finds_a_number_again(tmp_path, monkeypatch):
    """Times that the table predicts, and a number that was moved."""
    fit = pytest.importorskip("bench.fit")
    target, row, lines = fit.SIMULATOR, constants("pool/fwd_channels"), []
    for case in cases.modules()["max_pool_fwd"].CASES:
        problem = case.problem()
        for algorithm in dispatch.algorithms("max_pool_fwd"):
            if algorithm.name == "channels" and not problem.is_empty and algorithm.refusal(problem, target) is None:
                lines.append({"op": "max_pool_fwd", "record": dispatch.problem_record(problem), "status": "ok", "is_peer": False,
                              "algo": "channels", "config": "", "time_us": 1e6 * algorithm.seconds(problem, target),
                              "machine": {"device": fit.DEVICE}})
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = fit.samples([file], target)
    assert len(found) == len(lines) > 5 and fit.mean_square(found, target) < 1e-20
    assert fit.main(["pool/fwd_channels", str(file), "--numbers", "thread"]) == 0
    true = row.thread
    monkeypatch.setattr(row, "thread", 1.3 * true)
    assert fit.fit(row, fit.dependent(row, found, target, ["thread"]), target, ["thread"]) < 1e-4
    assert row.thread == pytest.approx(true, rel=0.05)


def test_helpers_are_documented():
    from dnnkern.engine import cost
    assert all(f.__doc__ for name, f in vars(cost).items() if inspect.isfunction(f) and not name.startswith("_"))
