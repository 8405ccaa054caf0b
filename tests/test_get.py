"""What `get` asks before it answers: bounds are never above estimates, nothing that could win is passed over, and few are estimated."""
import dataclasses
import statistics
import sys

import cases
import pytest
from representative import device

import bench.get
import bench.shapes
import dnnkern
from dnnkern import dispatch
from dnnkern.algorithm import ROUNDING, Algorithm, cheapest
from dnnkern.dispatch import Note
from dnnkern.engine import embed
from dnnkern.engine.cost import LAUNCH, Cost
from dnnkern.engine.plan import Plan
from dnnkern.host import memo
from dnnkern.host.device import _SIMULATOR as H200

DEVICES = H200, device("sm_90a"), device("sm_80"), device("sm_89")
OPS = sorted(cases.modules())
SMALL, LARGE = 14, 14  # problems of an operation: of the tests' cases, of those that are measured


def spread(things, count):
    """So many of them, from all over."""
    return things[::max(1, len(things) // count)][:count]


def measured(op, most=LARGE):
    """Problems of the bench's sets, of three types at most."""
    module = bench.shapes.of(op)
    dtypes = [d for d in ("float32", "float16", "float64") if d in module.DTYPES] or module.DTYPES[:1]
    found = []
    for name in module.SETS:
        for dtype in dtypes:
            found += spread(module.cases(name, (dtype,), (), None), most)
    return [case.problem for case in spread(found, most)]


def problems(op, full=False):
    """With `full` all that there are."""
    small = [case.problem() for case in spread(cases.modules()[op].CASES, 9999 if full else SMALL)]
    return [p for p in (*small, *measured(op, 9999 if full else LARGE)) if not p.is_empty]


def able(op, problem, device):
    return [a for a in dispatch.algorithms(op) if dispatch.refusal(a, problem, device, allow=Note.NONDETERMINISTIC) is None]


@pytest.mark.parametrize("op", OPS)
def test_bounds_are_below_estimates_and_choices_are_those_of_all_estimates(op, request):
    for problem in problems(op, request.config.getoption("--full")):
        for target in DEVICES:
            found = []
            for algorithm in able(op, problem, target):
                configs = algorithm.configs(problem, target) if algorithm.configs else [None]
                estimates = [algorithm.estimate(problem, target, config) for config in configs]
                best = min(range(len(configs)), key=estimates.__getitem__)
                words = f"{algorithm} for {problem} on {target.name}"
                assert algorithm.least_seconds(problem, target) <= estimates[best] * ROUNDING, words
                if algorithm.config_bound:
                    for config, seconds in zip(configs, estimates):
                        assert algorithm.config_bound(problem, target, config) <= seconds * ROUNDING, f"{words}: {config}"
                bound, seconds = algorithm.least(problem, target)
                assert (bound.config, seconds) == (configs[best], estimates[best]), words
                found.append((bound, seconds))
            if found:
                found.sort(key=lambda pair: pair[1])  # of equal ones the first
                for count in (1, 2):
                    assert cheapest(able(op, problem, target), problem, target, count=count) == found[:count], f"{problem} on {target.name}"


def test_the_fastest_product_is_below_every_estimate():
    """What plans that embed products take as a bound of these."""
    for problem in [case.problem() for case in cases.modules()["matmul"].CASES[::3]] + measured("matmul"):
        for target in DEVICES if problem.k and problem.y.size else ():
            fastest = embed.fastest_seconds(problem.a.dtype, problem.math, problem.y.size, problem.k, problem.bytes, target)
            for algorithm in able("matmul", problem, target):
                assert fastest <= algorithm.least(problem, target)[1] * ROUNDING, f"{algorithm} for {problem} on {target.name}"


def test_what_has_no_configuration_for_a_device_is_passed_over():
    """Heads too wide for the tiles of tensor cores in 99 KiB of shared memory."""
    (case,) = bench.shapes.of("sdpa_fwd").parse("4x16x2048x192 {} --causal", ("float16",), ())
    for arch in ("sm_80", "sm_89", "sm_120a"):
        rows = {c.algo: c for c in dispatch.explain("sdpa_fwd", case.problem, device=device(arch))}
        assert any(c.chosen for c in rows.values())
        assert (rows["flash_mma"].reason is None) == (arch == "sm_80"), rows["flash_mma"].reason
    assert "heads of 192 and 192: no tile fits 101376 bytes" in rows["flash_mma"].reason


# ---- the order

def algorithm(name, seconds, **more):
    """One of matmul that says what it was asked."""
    def estimate(problem, device, config):
        asked.append(name if config is None else f"{name} {config}")
        return seconds if config is None else seconds[config]
    asked = []
    return Algorithm("matmul", name, lambda p: None, lambda *_: 0, estimate, lambda *_: (), **more), asked


PROBLEM = dnnkern.problem("matmul", a=("64x64", "float32"), b=("64x64", "float32"))


def found(*algorithms, **more):
    """(names of the cheapest, all that was asked)"""
    best = cheapest([a for a, _ in algorithms], PROBLEM, H200, **more)
    return [(a.name, a.config) for a, _ in best], [name for _, asked in algorithms for name in asked]


def test_what_cannot_win_is_not_asked():
    slow, fast = algorithm("slow", 5.0, bound=lambda p, d: 4.0), algorithm("fast", 2.0, bound=lambda p, d: 1.0)
    assert found(slow, fast) == ([("fast", None)], ["fast"])
    assert found(slow, fast, count=2) == ([("fast", None), ("slow", None)], ["slow", "fast", "fast"])  # lists of what was asked go on


def test_without_a_bound_everything_is_asked():
    assert found(algorithm("slow", 5.0), algorithm("fast", 2.0)) == ([("fast", None)], ["slow", "fast"])


def test_of_equal_ones_the_first_wins_whatever_their_bounds():
    first, second = algorithm("first", 2.0, bound=lambda p, d: 2.0), algorithm("second", 2.0, bound=lambda p, d: 1.0)
    assert found(first, second)[0] == [("first", None)]
    assert found(second, first)[0] == [("second", None)]


def test_configurations_that_cannot_win_are_not_asked():
    bounds = {1: 0.0, 2: 8.0, 3: 0.0}
    tiles = algorithm("tiles", {1: 3.0, 2: 9.0, 3: 2.0}, configs=lambda p, d: [1, 2, 3], config_bound=lambda p, d, c: bounds[c])
    assert found(tiles) == ([("tiles", 3)], ["tiles 1", "tiles 3"])
    hopeless = algorithm("hopeless", {1: 3.0}, configs=lambda p, d: [1], config_bound=lambda p, d, c: 1.5)
    assert found(algorithm("other", 1.0), hopeless) == ([("other", None)], ["other"])


def test_the_best_configuration_may_be_known():
    tiles = algorithm("tiles", {1: 3.0, 2: 9.0, 3: 2.0}, configs=lambda p, d: [1, 2, 3], best=lambda p, d: 3)
    assert found(tiles) == ([("tiles", 3)], ["tiles 3"])
    limited = dataclasses.replace(tiles[0], workspace=lambda p, d, c: c)
    assert cheapest([limited], PROBLEM, H200, workspace_limit=2)[0][0].config == 1  # within the limit all are asked


# ---- what is remembered

def test_facts_are_remembered_until_choices_change():
    class Thing:
        asked = 0
    thing = Thing()

    @memo.remembered
    def fact(thing, more):
        thing.asked += 1
        return thing.asked + more

    @memo.kept(8)
    def number(k):
        thing.asked += 10
        return k
    assert [fact(thing, 5), fact(thing, 5), fact(thing, 6)] == [6, 6, 8]
    assert [number(1), number(1)] == [1, 1] and thing.asked == 12
    dispatch.choices_changed()
    assert fact(thing, 5) == 18 and number(1) == 1 and thing.asked == 23


# ---- plans

def test_parts_that_are_alike_are_estimated_once():
    """And their launches stand in the order of the parts."""
    called = []

    def body(plan, part):
        called.append(part)
        plan.add(Cost(math=part % 2 + 1.0), lambda: (f"product {part}",))
        plan.add(LAUNCH, lambda: (f"sum {part}",))
    plan = Plan(H200)
    plan.add(Cost(pack=0.5), lambda: ("pack",))
    plan.repeat([4, 3, 2, 8], body, lambda part: part % 2)
    assert called == [4, 3] and plan.seconds == pytest.approx(0.5 + 3 * 1.0 + 2.0 + 4 * LAUNCH)
    assert plan.cost.terms == {"pack": 0.5, "math": 5.0, "launch": pytest.approx(4 * LAUNCH)}
    assert plan.launches() == ("pack", *(f"{what} {part}" for part in (4, 3, 2, 8) for what in ("product", "sum")))
    assert called == [4, 3, 4, 3, 2, 8]
    plan.repeat([], body)
    assert plan.launches()[-1] == "sum 8"


@pytest.mark.parametrize("op", ["rnn_fwd", "rnn_bwd_data"])
def test_a_long_chain_is_estimated_as_fast_as_a_short_one(op):
    """Of a recurrent network, whose launches exist once they are asked for."""
    for name in ("step", "fused_step"):
        algorithm, calls = dispatch.named(op, name), []
        for steps in (5, 5, 5000):  # the first fills caches
            problem = bench.shapes.of(op).parse(f"{steps}x16 64x64 lstm {{}}", ("float16",), ())[0].problem
            config = algorithm.configured(problem, H200).config
            dispatch.choices_changed()
            calls.append(0)

            def count(_frame, event, _):
                calls[-1] += event == "call"
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                algorithm.estimate(problem, H200, config)
            finally:
                sys.setprofile(before)
        assert calls[1] > 100, f"{algorithm}: {calls}"
        # More rows bring more kernels of the products with x to choose from; what walks the chain makes a call a step at least.
        assert calls[2] - calls[1] < 0.5 * (5000 - 5), f"{algorithm}: {calls}"


# ---- what is asked of a shape never seen

# Medians over problems of the bench's sets: estimates, and calls of Python functions, of which versions of Python count some differently.
BUDGET = {"matmul": (60, 7000), "conv_fwd": (55, 6500), "conv_bwd_data": (50, 6000), "conv_bwd_filter": (75, 12000), "rnn_fwd": (12, 21000),
          "rnn_bwd_data": (60, 18000), "rnn_bwd_weights": (125, 13500), "adam_step": (3, 15500), "sdpa_fwd": (20, 4200),
          "softmax_fwd": (18, 2300), "transpose": (7, 750)}


@pytest.mark.always
@pytest.mark.parametrize("op", BUDGET)
def test_few_are_estimated_for_a_shape_never_seen(op):
    with bench.get.nothing_kept():
        counts = bench.get.counts(op, bench.get.problems(op)[1], dataclasses.replace(H200, name="NVIDIA H200"))
    estimated, calls = (statistics.median(some) for some in zip(*counts))
    most_estimated, most_calls = BUDGET[op]
    assert len(counts) > 5 and 0 < estimated <= most_estimated and calls <= most_calls, f"{estimated} estimates, {calls} calls"


def test_the_measuring_tool(capsys):
    assert bench.get.main(["softmax_fwd"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[2].startswith("| softmax_fwd | 24 of ") and bench.get.get_cold(["softmax_fwd"])[0].ms > 0
