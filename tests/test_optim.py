"""Optimisers: against PyTorch, lists that change, lists that stay, skipped steps, words, bad input."""
import gc

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._optim import NUMBERED, STATES, USUAL, Step
from labs import array, host

import dnnkern
from dnnkern import dispatch, optim
from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.optim._parse import FAMILY, SMALL, parse_problem

OPS = tuple(STATES)
ALGORITHMS = ("naive", "chunks")
SHAPES = ((3, 5), (7,), (40,))


def lists_of(op, shapes=SHAPES, dtype="float32", seed=0, zeros=True):
    """Random parameters and gradients, and states, by name."""
    rng = np.random.default_rng(seed)
    made = {name: [rng.standard_normal(shape) for shape in shapes] for name in ("params", "grads")}
    made.update({name: [np.zeros(shape) if zeros else rng.uniform(1, 2, shape) for shape in shapes] for name in STATES[op]})
    return {name: [array(x, dtype) for x in some] for name, some in made.items()}


def step(op, lists, number=1, **more):
    """One step with the usual numbers."""
    return getattr(dnnkern, op)(**lists, **{**USUAL[op], **more}, **({"step": number} if op in NUMBERED else {}))


# ---- against PyTorch

def _torch_optimiser(torch, op, parameters, more, amsgrad=True):
    lr, decay, up = more["lr"], more["weight_decay"], {"maximize": more.get("maximize", False)}
    betas, adam = (more.get("beta1"), more.get("beta2")), {"amsgrad": amsgrad, **up}
    nesterov = more.get("nesterov", False)
    return {"sgd_step": lambda: torch.optim.SGD(parameters, lr, more["momentum"], more["dampening"], decay, nesterov, **up),
            "adam_step": lambda: torch.optim.Adam(parameters, lr, betas, more["eps"], decay, **adam),
            "adamw_step": lambda: torch.optim.AdamW(parameters, lr, betas, more["eps"], decay, **adam),
            "rmsprop_step": lambda: torch.optim.RMSprop(parameters, lr, more["alpha"], more["eps"], decay, more["momentum"], True, **up),
            "adagrad_step": lambda: torch.optim.Adagrad(parameters, lr, more["lr_decay"], decay, eps=more["eps"], **up)}[op]()


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("op", [op for op in OPS if op not in ("lion_step", "lamb_step")])
@pytest.mark.parametrize("up, amsgrad", [(False, False), (True, True)])
def test_ten_steps_are_pytorchs(op, algo, up, amsgrad):
    if amsgrad and "vmax" not in STATES[op]:
        amsgrad = False
    torch = pytest.importorskip("torch")
    lists = lists_of(op, dtype="float64")
    if not amsgrad:
        lists.pop("vmax", None)
    parameters = [torch.from_numpy(host(p)).requires_grad_() for p in lists["params"]]
    more = {**USUAL[op], "maximize": up, **({"eps": 1e-6} if "eps" in USUAL[op] else {})}
    optimiser = _torch_optimiser(torch, op, parameters, more, amsgrad)
    rng = np.random.default_rng(1)
    for number in range(1, 11):
        lists["grads"] = [array(rng.standard_normal(shape), "float64") for shape in SHAPES]
        for p, g in zip(parameters, lists["grads"]):
            p.grad = torch.from_numpy(host(g))
        optimiser.step()
        first = {"first": number == 1} if op == "sgd_step" else {}
        step(op, lists, number, algo=algo, **more, **first)
    for p, q in zip(lists["params"], parameters):
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=1e-11, atol=1e-12)


def test_nesterov_is_pytorchs():
    torch = pytest.importorskip("torch")
    lists, more = lists_of("sgd_step", dtype="float64"), {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "lr": 0.1}
    parameters = [torch.from_numpy(host(p)).requires_grad_() for p in lists["params"]]
    optimiser = _torch_optimiser(torch, "sgd_step", parameters, dict(USUAL["sgd_step"], **more))
    for p, g in zip(parameters, lists["grads"]):
        p.grad = torch.from_numpy(host(g))
    for _ in range(10):
        optimiser.step()
        step("sgd_step", lists, **more)
    for p, q in zip(lists["params"], parameters):
        np.testing.assert_allclose(host(p), q.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("op", [op for op in OPS if op != "lamb_step"])
def test_both_algorithms_give_the_same_bits(op, simulated):
    """One formula, one order: in every dtype, on the aligned path and beside it."""
    for dtype in ("float32", "bfloat16"):
        found = []
        for algo in ALGORITHMS:
            lists = lists_of(op, ((1030,), (33,)), dtype, zeros=False)
            step(op, lists, algo=algo)
            found.append([host(a) for name, some in lists.items() if name != "grads" for a in some])
        for a, b in zip(*found):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_lamb_moves_each_array_by_its_own_norm(algo):
    """And as Adam where a norm is 0: parameters that are 0, or nothing to do."""
    p = [array(np.full(1500, 8.0)), array(np.zeros(9)), array(np.full(4, 3.0))]
    g = [array(np.ones(1500)), array(np.ones(9)), array(np.zeros(4))]
    m, v = ([array(np.zeros(n)) for n in (1500, 9, 4)] for _ in range(2))
    dnnkern.lamb_step(p, g, m, v, lr=0.5, eps=1e-12, step=1, algo=algo)
    np.testing.assert_allclose(host(p[0]), 4.0, rtol=1e-5)
    np.testing.assert_allclose(host(p[1]), -0.5, rtol=1e-5)
    np.testing.assert_array_equal(host(p[2]), 3.0)


# ---- lists

def test_a_list_that_stays_is_not_looked_at_again(monkeypatch):
    from dnnkern.host import lists as module
    lists, looked = lists_of("adamw_step"), []
    look = module.ListOperation._look
    monkeypatch.setattr(module.ListOperation, "_look", lambda self, name, *more: looked.append(name) or look(self, name, *more))
    for number in range(1, 4):
        step("adamw_step", lists, number)
    assert looked == ["params", "grads", "m", "v", "vmax"]
    lists["grads"] = [array(host(g)) for g in lists["grads"]]
    step("adamw_step", lists, 4)
    assert looked[5:] == (["grads"] if HOST_MEMORY else [])  # on a GPU the call's site recognises arrays like these
    lists["m"] = list(lists["m"])  # another list of the same arrays
    step("adamw_step", lists, 5)
    assert len(looked) == 5 + HOST_MEMORY


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_lists_that_change(algo):
    """Other arrays, other lengths, other shapes, other dtypes, in any order: each call is what a fresh one would be."""
    one, two = lists_of("sgd_step", seed=1), lists_of("sgd_step", seed=2)
    short = {name: some[:2] for name, some in lists_of("sgd_step", seed=3).items()}
    other = lists_of("sgd_step", ((4, 4), (3, 5), (9,)), seed=4)
    half = lists_of("sgd_step", dtype="float16", seed=5)
    mixed = {name: one[name] if name == "grads" else two[name] for name in two}
    for lists in (one, two, short, other, half, mixed, one, half, mixed):
        before = {name: [host(a) for a in some] for name, some in lists.items()}
        step("sgd_step", lists, algo=algo)
        keywords = USUAL["sgd_step"]
        for k, p in enumerate(before["params"]):
            g = before["grads"][k] + keywords["weight_decay"] * p
            m = keywords["momentum"] * before["momenta"][k] + (1 - keywords["dampening"]) * g
            np.testing.assert_allclose(host(lists["params"][k]), p - keywords["lr"] * m, rtol=5e-3, atol=5e-3)


def test_arrays_that_come_to_lie_where_others_did():
    """Memory and identities are used again at once when arrays die; what is remembered of those must not count."""
    for n in (64, 32, 64, 8, 48):
        p, g = array(np.ones(n)), array(np.full(n, 0.5))
        dnnkern.sgd_step([p], [g], lr=1.0)
        np.testing.assert_array_equal(host(p), 0.5)
        del p, g
        gc.collect()
    for dtype in ("float32", "float16", "bfloat16"):
        p, g = array(np.ones(16), dtype), array(np.full(16, 0.5), dtype)
        dnnkern.sgd_step([p], [g], lr=1.0)
        np.testing.assert_array_equal(host(p), 0.5)
        del p, g


def test_remembering_keeps_nothing_alive(simulated):
    import weakref
    p, g = np.ones(8, np.float32), np.ones(8, np.float32)
    watched = weakref.ref(g)
    dnnkern.sgd_step([p], [g], lr=1.0)
    del g
    gc.collect()
    assert watched() is None
    dnnkern.sgd_step([p], [np.ones(8, np.float32)], lr=1.0)
    assert all(listed.alive for listed in optim.SGD.listed.values() if len(listed.ids) == 1 and listed.ids[0] == id(p))


def test_torch_lists(simulated):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(5, 3)
    params = list(layer.parameters())
    layer(torch.ones(2, 5)).sum().backward()
    want = [p.detach() - 0.5 * p.grad for p in params]
    dnnkern.sgd_step(params, [p.grad for p in params], lr=0.5)
    for p, w in zip(params, want):
        torch.testing.assert_close(p.detach(), w)


def test_other_numbers_compile_nothing():
    lists = lists_of("adam_step")
    step("adam_step", lists)
    plans = {key: len(fixed.plans) for key, fixed in optim.ADAM.fixed.items()}
    step("adam_step", lists, 7, lr=0.3, beta1=0.1, weight_decay=0.0)
    assert plans == {key: len(fixed.plans) for key, fixed in optim.ADAM.fixed.items()}


def test_generators_and_tuples_are_lists():
    p, g = array(np.ones(4)), array(np.ones(4))
    dnnkern.sgd_step((x for x in [p]), (g,), lr=0.5)
    np.testing.assert_array_equal(host(p), 0.5)
    assert dnnkern.sgd_step([], [], lr=0.5) is None


# ---- steps that do nothing, and gradients that are no numbers

@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_found_inf_skips_the_step(op, algo):
    lists = lists_of(op, zeros=False)
    lists["grads"][1] = array(np.full(7, np.inf))
    before = {name: [host(a) for a in some] for name, some in lists.items()}
    for found in (1.0, np.inf, np.nan):
        step(op, lists, found_inf=array([found]), grad_scale=array([2.0]), algo=algo)
        for name, some in lists.items():
            for a, b in zip(some, before[name]):
                np.testing.assert_array_equal(host(a), b)
    step(op, lists, found_inf=array([0.0]), algo=algo)
    assert not np.array_equal(host(lists["params"][0]), before["params"][0])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_numbers_that_are_none_go_where_the_formula_takes_them(algo):
    lists = lists_of("adamw_step")
    bad = host(lists["grads"][2])
    bad[[3, 5]] = np.nan, np.inf
    lists["grads"][2] = array(bad)
    step("adamw_step", lists, algo=algo)
    for name in ("params", "m"):
        finite = np.isfinite(host(lists[name][2]))
        assert list(np.flatnonzero(~finite)) == [3, 5], name
        assert all(np.isfinite(host(a)).all() for a in lists[name][:2])


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("op", OPS)
def test_maximizing_is_a_step_with_the_negative_gradients(op, algo):
    up, down = lists_of(op, zeros=False), lists_of(op, zeros=False)
    down["grads"] = [array(-host(g)) for g in down["grads"]]
    step(op, up, algo=algo, maximize=True)
    step(op, down, algo=algo)
    for name in STATES[op] + ("params",):
        for a, b in zip(up[name], down[name]):  # which products a compiler fuses may differ
            np.testing.assert_allclose(host(a), host(b), rtol=3e-7, atol=0)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_largest_moment_stays(algo):
    """And NaN is larger than any number, as in torch.maximum."""
    lists = {name: [array(values)] for name, values in (("params", [1.0, 1, 1]), ("grads", [3.0, 3, 3]), ("m", [0.0, 0, 0]),
                                                        ("v", [0.0, 0, np.nan]), ("vmax", [np.nan, 25, 0]))}
    dnnkern.adam_step(**lists, lr=0.5, beta1=0.5, beta2=0.5, eps=0.0, step=1, algo=algo)
    np.testing.assert_array_equal(host(lists["vmax"][0]), [np.nan, 25, np.nan])
    np.testing.assert_array_equal(host(lists["v"][0]), [4.5, 4.5, np.nan])
    np.testing.assert_allclose(host(lists["params"][0]), [np.nan, 1 - 0.5 * 3 / np.sqrt(50), np.nan], rtol=1e-6)


def test_the_scale_divides_gradients_that_stay():
    for algo in ALGORITHMS:
        lists, same = lists_of("adam_step"), lists_of("adam_step")
        lists["grads"] = [array(64 * host(g)) for g in lists["grads"]]
        before = [host(g) for g in lists["grads"]]
        step("adam_step", lists, grad_scale=array([64.0]), algo=algo)
        step("adam_step", same, algo=algo)
        for a, b in zip(lists["params"], same["params"]):
            np.testing.assert_array_equal(host(a), host(b))
        for g, b in zip(lists["grads"], before):
            np.testing.assert_array_equal(host(g), b)


def test_master_weights_keep_what_halves_lose():
    p, master = array(np.full(40, 256.0), "bfloat16"), array(np.full(40, 256.0))
    alone, g = array(np.full(40, 256.0), "bfloat16"), array(np.ones(40), "bfloat16")
    for _ in range(8):
        dnnkern.sgd_step([p], [g], lr=0.25, master=[master])
        dnnkern.sgd_step([alone], [g], lr=0.25)
    np.testing.assert_array_equal(host(master), 254.0)
    np.testing.assert_array_equal(host(p), 254.0)
    np.testing.assert_array_equal(host(alone), 256.0)


def test_the_check_for_nan_looks_at_what_is_written(monkeypatch, capsys):
    from dnnkern.host import lists as module
    from dnnkern.host.check import CheckFailed
    monkeypatch.setattr(module, "CHECKS", frozenset({"nan"}))
    p = [array(np.ones(3)), array(np.ones(2))]
    dnnkern.sgd_step(p, [array([1, 2, 3]), array([4, 5])], lr=1)
    with pytest.raises(CheckFailed, match=r"output 1 holds 1 values that are not finite, as does grads\[1\]; python -m dnnkern check sgd"):
        dnnkern.sgd_step(p, [array([1, 2, 3]), array([4, np.inf])], lr=1)
    said = capsys.readouterr().err
    assert "the first at (1,): -inf\n  of its operands grads[1] has 1 such values\n  the same call on random operands: python -m" in said


# ---- random problems

@pytest.mark.parametrize("op", OPS)
def test_random_problems(op, request):
    def problems(draw):
        from hypothesis import strategies as st
        count = draw(st.integers(1, 4))
        shapes = tuple(tuple(draw(st.sampled_from([1, 2, 3, 8])) for _ in range(draw(st.integers(0, 2)))) + (draw(st.integers(0, 70)),)
                       for _ in range(count))
        dtypes = tuple(draw(st.sampled_from(["float32", "float16", "bfloat16"])) for _ in range(count))
        master = draw(st.booleans()) and "float32" not in dtypes
        layout = {}
        for k, shape in enumerate(shapes):
            if draw(st.booleans()):
                layout[f"params{k}"] = contract.random_layout(draw, st, len(shape))
                layout[f"grads{k}"] = layout[f"params{k}"] if draw(st.booleans()) else contract.random_layout(draw, st, len(shape))
        return Step("random", op, shapes, dtypes, draw(st.sampled_from([None, "float32"])), draw(st.booleans()) and not master, master,
                    draw(st.sampled_from([None, 4.0])), draw(st.sampled_from([None, 0.0])), layout=layout)
    contract.random_problems(request, problems, 12)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("64x3x7x7,5,2*6x4 bf16 --master --scaled".split(), op)
    assert [p.shape for p in problem.params] == [(64, 3, 7, 7), (5,), (6, 4), (6, 4)] and problem.master[0].dtype == "float32"
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    narrow = parse_problem("8 f16 --narrow --grads f32".split(), op)
    assert [t.dtype for t in narrow.arrays(0)[:3]] == ["float16", "float32", "float16"]
    up = parse_problem("8 f32 --maximize".split(), op)
    assert up.flags == ("maximize",) and FAMILY[op][2](dispatch.problem_record(up)) == up
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"params": 1})
    for words in (["4x", "f32"], ["0*4", "f32"], ["4", "int8"], ["4", "f32", "--master"], ["4", "f32", "--states", "spin"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).bytes


def test_bytes_are_what_must_move():
    assert parse_problem("8x100 f32".split(), "adamw_step").bytes == 7 * 3200
    assert parse_problem("8x100 bf16 --master".split(), "adamw_step").bytes == 2 * 1600 + 6 * 3200
    assert parse_problem(["8x100", "f32", "--states", ""], "sgd_step").bytes == 3 * 3200


@pytest.mark.parametrize("op", OPS)
def test_the_problems_of_the_bench_have_an_algorithm(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "bfloat16")):
        assert dispatch.get_algorithm(op, case.problem).name == "chunks", case


@pytest.mark.parametrize("op, words", [("adamw_step", "33,9 {} --scaled"), ("lamb_step", "33,9 {}"), ("clip_grad_norm", "33,9 {}"),
                                       ("dropout_fwd", "5x9 {}"), ("dropout_bwd", "5x9 {}")])
def test_they_are_measured(op, words, simulated, capsys):
    from bench import run
    assert run.main([op, "--no-peers", "--problem", words, "--dtype", "float32,bfloat16"]) == 0
    assert "naive" in capsys.readouterr().out


# ---- bad input

def refused(error, words, function, lists, **more):
    """The call raises `error`, whose message is one line that has all the words, and writes nothing."""
    before = {name: [host(a) for a in some] for name, some in lists.items() if some is not None}
    with labs.refuses(error, words, function.__name__):
        function(**lists, **more)
    for name, some in before.items():
        for a, b in zip(lists[name], some):
            np.testing.assert_array_equal(host(a), b)


def test_lists_that_do_not_fit():
    adam, number = dnnkern.adam_step, {"lr": 0.1, "step": 1}
    good = lists_of("adam_step")
    for name in ("grads", "m", "v"):
        refused(ValueError, [f"{name} has 2 arrays, params has 3"], adam, {**good, name: good[name][:2]}, **number)
        other = [good[name][0], array(np.ones(8)), good[name][2]]
        refused(ValueError, [f"{name}[1] has shape (8,)", "params[1] has (7,)"], adam, {**good, name: other}, **number)
        double = [good[name][0], array(np.ones(7), "float64"), good[name][2]]
        refused(TypeError, [f"{name}[1] is float64", "params[1] is float32"], adam, {**good, name: double}, **number)
        refused(TypeError, [f"{name}: got NoneType"], adam, {**good, name: None}, **number)
        refused(TypeError, [f"{name} is a ", "expected a list of arrays"], adam, {**good, name: array(np.ones(3))}, **number)
    refused(TypeError, ["params: got NoneType"], adam, {**good, "params": None}, **number)
    whole = {"params": [array(np.ones(3), "int32")], "grads": [array(np.ones(3))]}
    refused(TypeError, ["params[0] is int32"], dnnkern.sgd_step, whole, lr=1)
    refused(TypeError, ["params[0] is float32 beside master weights"], adam, {**good, "master": [array(host(p)) for p in good["params"]]},
            **number)
    half = lists_of("adam_step", dtype="float16")
    refused(TypeError, ["master[1] is float16", "float32"], adam,
            {**half, "master": [array(host(p), "float16" if k == 1 else "float32") for k, p in enumerate(half["params"])]}, **number)
    brain = [array(host(a), "bfloat16") for a in half["m"]]
    refused(TypeError, ["m[0] is bfloat16", "float32 or float16"], adam, {**half, "m": brain}, **number)
    with pytest.raises(TypeError, match=r"adam_step: grads\[1\]: got NoneType"):
        adam(good["params"], [good["grads"][0], None, good["grads"][2]], good["m"], good["v"], **number)


def test_memory_that_is_shared():
    good = lists_of("sgd_step", ((8,), (8,)))
    p, g, m = good["params"], good["grads"], good["momenta"]
    sgd = dnnkern.sgd_step
    refused(ValueError, ["params[1], which is written, is the same memory as params[0]"], sgd, {"params": [p[0], p[0]], "grads": g}, lr=1)
    refused(ValueError, ["momenta[0], which is written", "same memory as grads[1]"], sgd, {**good, "momenta": [g[1], m[1]]}, lr=1,
            momentum=0.5)
    refused(ValueError, ["params[0]", "same memory as grads[0]"], sgd, {"params": p, "grads": [p[0], g[1]]}, lr=1)
    sgd(p, [g[0], g[0]], lr=1)  # gradients are only read
    if SIMULATED:
        whole = np.ones(24, np.float32)
        refused(ValueError, ["overlaps"], sgd, {"params": [whole[:16], whole[8:]], "grads": [array(np.ones(16)), array(np.ones(16))]}, lr=1)
        sgd([whole[::2], whole[1::2]], [array(np.ones(12)), array(np.ones(12))], lr=0.5)  # between each other, and apart
        np.testing.assert_array_equal(whole, 0.5)
        frozen = np.ones(8, np.float32)
        frozen.flags.writeable = False
        refused(TypeError, ["params[0] is a read-only numpy array"], sgd, {"params": [frozen], "grads": [array(np.ones(8))]}, lr=1)
    shared = labs.guarded(lay((3, 8), "float32", expand=(0,))).array
    with pytest.raises(ValueError, match=r"params\[0\] has shape \(3, 8\) and strides .* share one address"):
        sgd([shared], [array(np.ones((3, 8)))], lr=1)


@pytest.mark.parametrize("op", NUMBERED)
def test_steps_count_from_one(op):
    lists = lists_of(op)
    for number, error in ((0, ValueError), (-3, ValueError), (1.5, TypeError), (None, TypeError)):
        refused(error, [f"step is {number}" if error is ValueError else f"step={number}"], getattr(dnnkern, op), lists, lr=0.1, step=number)
    refused(TypeError, ["step is int32[1]", "float32"], getattr(dnnkern, op), lists, lr=0.1, step=array(np.ones(1), "int32"))
    refused(ValueError, ["step is float32[2]"], getattr(dnnkern, op), lists, lr=0.1, step=array(np.ones(2)))


@pytest.mark.parametrize("beta1, beta2", [(0.9, 0.999), (0.0, 0.99), (0.5, 0.0)])
@pytest.mark.parametrize("number", [1, 7, 100000])
def test_the_number_of_a_step_on_the_device(beta1, beta2, number):
    """Corrections made in float32 on the device are those of float64 on the host, at the first step too, where 1 - beta2 is small."""
    for op in ("adam_step", "lamb_step"):
        for algo in ALGORITHMS:
            there, here = (lists_of(op, zeros=False) for _ in range(2))
            step(op, there, array([float(number)]), beta1=beta1, beta2=beta2, algo=algo)
            step(op, here, number, beta1=beta1, beta2=beta2, algo=algo)
            for a, b in zip(there["params"], here["params"]):
                np.testing.assert_allclose(host(a), host(b), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("op, name, values", [
    ("sgd_step", "lr", (-1, np.nan, np.inf)), ("sgd_step", "momentum", (-0.1, 1)), ("sgd_step", "dampening", (1.5,)),
    ("adam_step", "beta1", (1, -0.1)), ("adamw_step", "beta2", (1.0, np.nan)), ("adam_step", "eps", (-1e-8,)),
    ("adamw_step", "weight_decay", (-1,)), ("rmsprop_step", "alpha", (1,)), ("adagrad_step", "lr_decay", (-1,)),
    ("lion_step", "beta2", (2,))])
def test_numbers_out_of_range(op, name, values):
    lists = lists_of(op)
    more = {"lr": 0.1, **({"step": 1} if op in NUMBERED else {})}
    for value in values:
        refused(ValueError, [f"{name}={float(value)}"], getattr(dnnkern, op), lists, **{**more, name: value})
    refused(TypeError, [f"{name}='much'"], getattr(dnnkern, op), lists, **{**more, name: "much"})


def test_combinations_that_make_no_sense():
    lists = lists_of("sgd_step")
    bare = {name: lists[name] for name in ("params", "grads")}
    refused(ValueError, ["momentum=0.5 without momenta"], dnnkern.sgd_step, bare, lr=1, momentum=0.5)
    refused(ValueError, ["nesterov", "dampening=0.5"], dnnkern.sgd_step, lists, lr=1, momentum=0.5, dampening=0.5, nesterov=True)
    refused(ValueError, ["nesterov with momentum=0.0"], dnnkern.sgd_step, lists, lr=1, nesterov=True)
    refused(TypeError, ["maximize=1", "True or False"], dnnkern.sgd_step, lists, lr=1, maximize=1)
    adam = lists_of("adam_step")
    other = {**adam, "vmax": [adam["vmax"][0], array(np.zeros(8)), adam["vmax"][2]]}
    refused(ValueError, ["vmax[1] has shape (8,)", "(7,)"], dnnkern.adam_step, other, lr=1, step=1)
    refused(ValueError, ["vmax", "2", "3"], dnnkern.adamw_step, {**adam, "vmax": adam["vmax"][:2]}, lr=1, step=1)
    rms = {name: some for name, some in lists_of("rmsprop_step").items() if name != "momenta"}
    refused(ValueError, ["momentum=0.5 without momenta"], dnnkern.rmsprop_step, rms, lr=1, momentum=0.5)


def test_single_numbers():
    lists = lists_of("sgd_step")
    for name in ("grad_scale", "found_inf"):
        refused(ValueError, [f"{name} is float32[2]", "one float32 number"], dnnkern.sgd_step, lists, lr=1, **{name: array(np.ones(2))})
        refused(TypeError, [f"{name} is float64[1]"], dnnkern.sgd_step, lists, lr=1, **{name: array(np.ones(1), "float64")})
        refused(TypeError, [f"{name}: got float"], dnnkern.sgd_step, lists, lr=1, **{name: 2.0})


def test_algorithms_that_cannot():
    lists = {"params": [array(np.ones((4, 6)), step=2)], "grads": [array(np.ones((4, 6)))]}
    refused(NotSupported, ["'chunks'", "all of 1 parameters have arrays with gaps"], dnnkern.sgd_step, lists, lr=1, algo="chunks")
    refused(NotSupported, ["algo='fast'"], dnnkern.sgd_step, lists, lr=1, algo="fast")
