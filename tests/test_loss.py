"""Losses: against PyTorch, special values, targets that are no class, random problems, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay, numpy_dtype
from cases._cross_entropy import SHORT, Backward, Forward
from labs import array, host, refused

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.loss._parse import FAMILY, SMALL, parse_problem

OPS = ("cross_entropy_fwd", "cross_entropy_bwd", "nll_loss_fwd", "nll_loss_bwd")
MSE = ("mse_loss_fwd", "mse_loss_bwd")
NONE = -100


def able(problem):
    """Algorithms that run it here; in the simulator only with few threads."""
    found = []
    for algorithm in dispatch.algorithms(problem.op):
        if contract.refusal(algorithm, problem) is None:
            bound = algorithm.configured(problem, contract.device())
            launches = bound.build(problem, contract.device(), bound.config)
            if not SIMULATED or sum(k.grid[0] * k.block[0] for k in launches) <= 2600:
                found.append(algorithm)
    return found


# ---- against PyTorch

@pytest.mark.parametrize("targets", ["int64", "int32", "soft"])
@pytest.mark.parametrize("weighted, smoothing", [(False, 0.0), (True, 0.0), (False, 0.1), (True, 0.3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 2, 3), (6,)])
def test_torch_agrees_in_both_directions(shape, reduction, weighted, smoothing, targets):
    torch = pytest.importorskip("torch")
    rng, classes, rows = np.random.default_rng(4), shape[min(1, len(shape) - 1)], shape[:1] + shape[2:] if len(shape) > 1 else ()
    x, weight = rng.standard_normal(shape), rng.random(classes) if weighted else None
    t = rng.random(shape) if targets == "soft" else rng.integers(0, classes, rows)
    ignored = 2 if targets != "soft" else NONE
    logits = torch.from_numpy(x).requires_grad_()
    goal = torch.from_numpy(np.asarray(t)) if targets == "soft" else torch.from_numpy(np.asarray(t)).long()
    want = torch.nn.functional.cross_entropy(logits, goal, None if weight is None else torch.from_numpy(weight), ignore_index=ignored,
                                             label_smoothing=smoothing, reduction=reduction)
    g = np.asarray(rng.standard_normal(tuple(want.shape)))
    want.backward(torch.from_numpy(g))
    how = {"weight": None if weight is None else array(weight, "float64"), "label_smoothing": smoothing, "reduction": reduction,
           "ignore_index": ignored}
    given = array(x, "float64"), array(t, "float64" if targets == "soft" else targets)
    loss, lse = dnnkern.cross_entropy_fwd(*given, **how)
    np.testing.assert_allclose(host(loss), want.detach().numpy(), rtol=1e-12)
    dx = dnnkern.cross_entropy_bwd(array(g, "float64"), *given, lse, **how)
    np.testing.assert_allclose(host(dx), logits.grad.numpy(), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("shape", [(7, 37), (7, 64), (6, 6, 8), (2, 1100)])
def test_special_values_are_pytorchs(shape, dtype, smoothing):
    """In every algorithm: rows with -inf, with +inf, with NaN, of nothing but -inf, at the target and elsewhere, large numbers."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    x, rows = rng.standard_normal(shape), shape[:1] + shape[2:]
    t = rng.integers(1, shape[1], rows)
    x[0, 0], x[1, 0] = -np.inf, np.inf
    if len(x) > 2:
        np.put_along_axis(x[2], np.expand_dims(t[2], 0), -np.inf, 0)
        x[3, shape[1] - 1], x[4], x[5] = np.nan, -np.inf, x[5] + 2000
    x = x.astype(numpy_dtype(dtype)).astype(np.float64)
    logits = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.cross_entropy(logits, torch.from_numpy(t), label_smoothing=smoothing, reduction="none")
    want.sum().backward()
    given, labels = array(x, dtype), array(t, "int64")
    how = {"label_smoothing": smoothing, "reduction": "none"}
    for algorithm in able(Forward("special", shape, dtype, smoothing=smoothing, reduction="none").problem()):
        loss, lse = dnnkern.cross_entropy_fwd(given, labels, **how, algo=algorithm.name)
        np.testing.assert_allclose(host(loss), want.detach().numpy(), rtol=2e-3, atol=1e-4, err_msg=str(algorithm))
        sums = torch.logsumexp(logits, 1).detach().numpy()
        np.testing.assert_allclose(host(lse), np.where(sums == np.inf, np.nan, sums), rtol=1e-3, atol=1e-4, err_msg=str(algorithm))
    dloss = array(np.ones(rows), "float64" if dtype == "float64" else "float32")
    for algorithm in able(Backward("special", shape, dtype, smoothing=smoothing, reduction="none").problem()):
        dx = host(dnnkern.cross_entropy_bwd(dloss, given, labels, lse, **how, algo=algorithm.name))
        np.testing.assert_allclose(dx, logits.grad.numpy(), rtol=1e-2, atol=2e-3, err_msg=str(algorithm))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(6, 37), (6, 64), (6, 6, 8), (6, 1100)])
def test_large_logits_cost_what_they_lack(shape, dtype):
    """In every algorithm: logits of up to the largest float32, of both signs, and rows of nothing but the least."""
    torch = pytest.importorskip("torch")
    rng, rows = np.random.default_rng(3), shape[:1] + shape[2:]
    x = rng.standard_normal(shape) * np.reshape([1.5e9, 3e9, 1e20, 1e30, 5e37, 0.0], (6, *[1] * (len(shape) - 1)))
    x[1], x[3], x[5] = -abs(x[1]), abs(x[3]), -3.3e38
    x = x.astype(numpy_dtype(dtype)).astype(np.float64)
    t = x.argmax(1)
    t[0] = 2
    logits = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.cross_entropy(logits, torch.from_numpy(t), reduction="none")
    want.sum().backward()
    given, labels, how = array(x, dtype), array(t, "int64"), {"reduction": "none"}
    for algorithm in able(Forward("large", shape, dtype, reduction="none").problem()):
        loss, lse = dnnkern.cross_entropy_fwd(given, labels, **how, algo=algorithm.name)
        np.testing.assert_allclose(host(loss), want.detach().numpy(), rtol=1e-6, atol=1e-5, err_msg=str(algorithm))
        np.testing.assert_allclose(host(lse), torch.logsumexp(logits, 1).detach().numpy(), rtol=1e-6, err_msg=str(algorithm))
    for algorithm in able(Backward("large", shape, dtype, reduction="none").problem()):
        dx = host(dnnkern.cross_entropy_bwd(array(np.ones(rows), "float32"), given, labels, lse, **how, algo=algorithm.name))
        assert np.isfinite(dx).all()
        np.testing.assert_allclose(dx[:5], logits.grad.numpy()[:5], atol=1e-6, err_msg=str(algorithm))  # lse has no digits for a logarithm


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 2, 3), (6,)])
def test_torch_agrees_on_nll(shape, reduction, weighted):
    torch = pytest.importorskip("torch")
    rng, classes, rows = np.random.default_rng(5), shape[min(1, len(shape) - 1)], shape[:1] + shape[2:] if len(shape) > 1 else ()
    x, weight, t = rng.standard_normal(shape), rng.random(classes) if weighted else None, np.asarray(rng.integers(0, classes, rows))
    logp = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.nll_loss(logp, torch.from_numpy(t), None if weight is None else torch.from_numpy(weight), ignore_index=1,
                                        reduction=reduction)
    g = np.asarray(rng.standard_normal(tuple(want.shape)))
    want.backward(torch.from_numpy(g))
    how = {"weight": None if weight is None else array(weight, "float64"), "ignore_index": 1, "reduction": reduction}
    given = array(x, "float64"), array(t, "int64")
    np.testing.assert_allclose(host(dnnkern.nll_loss_fwd(*given, **how)), want.detach().numpy(), rtol=1e-12)
    dx = dnnkern.nll_loss_bwd(array(g, "float64"), *given, **how)
    np.testing.assert_allclose(host(dx), logp.grad.numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 7), (300,), ()])
def test_torch_agrees_on_mse(shape, reduction):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x, target = np.asarray(rng.standard_normal(shape)), np.asarray(rng.standard_normal(shape))
    tensor = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.mse_loss(tensor, torch.from_numpy(target), reduction=reduction)
    g = np.asarray(rng.standard_normal(tuple(want.shape)))
    want.backward(torch.from_numpy(g))
    given = array(x, "float64"), array(target, "float64")
    for algorithm in dispatch.algorithms("mse_loss_fwd"):
        loss = dnnkern.mse_loss_fwd(*given, reduction=reduction, algo=algorithm.name)
        np.testing.assert_allclose(host(loss), want.detach().numpy(), rtol=1e-12)
        dx = dnnkern.mse_loss_bwd(array(g, "float64"), *given, reduction=reduction, algo=algorithm.name)
        np.testing.assert_allclose(host(dx), tensor.grad.numpy(), rtol=1e-12, atol=1e-15)


def test_mse_of_nothing_and_of_what_is_not_finite():
    assert np.isnan(host(dnnkern.mse_loss_fwd(array(np.zeros((0, 3))), array(np.zeros((0, 3))))))
    x = array([1, np.nan, np.inf, -np.inf, 2], "float16")
    for algorithm in dispatch.algorithms("mse_loss_fwd"):
        loss = host(dnnkern.mse_loss_fwd(x, array(np.zeros(5), "float16"), reduction="none", algo=algorithm.name))
        np.testing.assert_array_equal(loss, [1, np.nan, np.inf, np.inf, 4])
        assert np.isnan(host(dnnkern.mse_loss_fwd(x, x, algo=algorithm.name)))


# ---- targets that are no class

@pytest.mark.parametrize("shape", [(8, 40), (8, 33), (2, 5, 8)])
@pytest.mark.parametrize("targets", ["int32", "int64"])
def test_a_target_that_is_no_class_costs_nan_and_reads_nothing(targets, shape):
    """The simulator raises on a read outside the arrays."""
    far = [shape[1], -1, 2 ** 31 - 1, -2 ** 31] + ([2 ** 40, -2 ** 62] if targets == "int64" else [shape[1] + 1, -7])
    rows = shape[:1] + shape[2:]
    t = np.arange(np.prod(rows)).reshape(rows) % shape[1]
    t.reshape(-1)[1:1 + len(far)] = far
    bad = np.isin(np.arange(t.size), np.arange(1, 1 + len(far))).reshape(rows)
    x, weight = labs.array(np.random.default_rng(1).standard_normal(shape)), array(np.ones(shape[1]))
    labels = labs.guarded(lay(rows, targets), None)
    labels.array[...] = t if isinstance(labels.array, np.ndarray) else labels.array.new_tensor(t)
    for smoothing, weights in ((0.0, None), (0.1, weight)):
        how = {"weight": weights, "label_smoothing": smoothing, "reduction": "none"}
        more = {"targets": targets, "smoothing": smoothing, "weight": "float32" if weights is not None else "", "reduction": "none"}
        for algorithm in able(Forward("bad", shape, **more).problem()):
            loss, lse = dnnkern.cross_entropy_fwd(x, labels.array, **how, algo=algorithm.name)
            assert (np.isnan(host(loss)) == bad).all() and np.isfinite(host(lse)).all(), algorithm
        for algorithm in able(Backward("bad", shape, **more).problem()):
            dx = host(dnnkern.cross_entropy_bwd(array(np.ones(rows)), x, labels.array, lse, **how, algo=algorithm.name))
            wrong = np.isnan(np.moveaxis(dx, 1, -1))
            assert wrong[bad].any(-1).all() and not wrong[~bad].any(), algorithm
    assert np.isnan(host(dnnkern.cross_entropy_fwd(x, labels.array)[0]))


def test_nll_of_targets_that_are_no_class():
    t = array([0, 4, -1, 2], "int64")
    loss = host(dnnkern.nll_loss_fwd(array(-np.ones((4, 4))), t, reduction="none", algo="naive"))
    np.testing.assert_array_equal(loss, [1, np.nan, np.nan, 1])
    for algorithm in dispatch.algorithms("nll_loss_fwd"):
        for reduction in ("sum", "mean"):
            assert np.isnan(host(dnnkern.nll_loss_fwd(array(-np.ones((4, 4))), t, reduction=reduction, algo=algorithm.name)))
    for algorithm in dispatch.algorithms("nll_loss_bwd"):
        if algorithm.name != "columns":
            dx = host(dnnkern.nll_loss_bwd(array(np.ones(4)), array(np.ones((4, 4))), t, reduction="none", algo=algorithm.name))
            assert (np.isnan(dx) == [[False] * 4, [True] * 4, [True] * 4, [False] * 4]).all() and dx[0, 0] == dx[3, 2] == -1, algorithm


def test_checked_targets_raise_with_their_position(monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    x = array(np.ones((3, 4)))
    loss, lse = dnnkern.cross_entropy_fwd(x, array([0, NONE, 3], "int64"))
    with pytest.raises(ValueError, match=r"cross_entropy_fwd: targets\[2\] is 4; expected a class, 0 to 3, or ignore_index=-100"):
        dnnkern.cross_entropy_fwd(x, array([0, NONE, 4], "int64"))
    with pytest.raises(ValueError, match=r"cross_entropy_bwd: targets\[0\] is -1; expected a class, 0 to 3, or ignore_index=1"):
        dnnkern.cross_entropy_bwd(array(1.0), x, array([-1, 1, 3], "int32"), lse, ignore_index=1)


def test_ignored_rows_cost_nothing_whatever_they_hold():
    x = np.ones((4, 40))
    x[1], x[2, 3] = np.nan, np.inf
    labels, g = array([1, 7, 7, 2], "int64"), array(1.0)
    for algorithm in able(Forward("ignored", x.shape, ignore=7).problem()):
        loss, lse = dnnkern.cross_entropy_fwd(array(x), labels, ignore_index=7, algo=algorithm.name)
        np.testing.assert_allclose(host(loss), np.log(40), rtol=1e-6, err_msg=str(algorithm))
    for algorithm in able(Backward("ignored", x.shape, ignore=7).problem()):
        dx = host(dnnkern.cross_entropy_bwd(g, array(x), labels, lse, ignore_index=7, algo=algorithm.name))
        assert (dx[1:3] == 0).all() and np.isfinite(dx).all() and dx[0].any(), algorithm


@pytest.mark.parametrize("targets", ["int64", "soft"])
def test_the_mean_over_nothing_is_nan(targets):
    t = np.zeros((0, 5)) if targets == "soft" else np.zeros(0)
    loss, lse = dnnkern.cross_entropy_fwd(array(np.zeros((0, 5))), array(t, "float32" if targets == "soft" else targets))
    assert np.isnan(host(loss)) and lse.shape == (0,)
    every = dnnkern.cross_entropy_fwd(array(np.ones((3, 5))), array(np.full(3, NONE), "int64"))[0]
    assert np.isnan(host(every))


def test_losses_of_many_rows_are_added_in_two_launches(monkeypatch):
    from dnnkern.loss import _totals
    monkeypatch.setattr(_totals, "FEW", 40)
    monkeypatch.setattr(_totals, "BLOCKS", 3)
    monkeypatch.setattr(_totals, "blocks_of", lambda count: 1 if count <= 40 else 3)
    for weight, smoothing in (("", 0.0), ("float32", 0.125)):
        for kind in (Forward, Backward):
            case = kind("many-f32", (130, 5), weight=weight, smoothing=smoothing)
            values = case.values("float")
            reference, tolerance = case.reference(values)
            naive = next(a for a in dispatch.algorithms(case.op) if a.name == "naive")
            assert len(naive.build(case.problem(), contract.device(), None)) == 3
            with contract.registered(naive) as mine:
                run = contract.Run(case, mine, values)
                run.check_memory()
                run.check_values(reference, tolerance)


# ---- random problems

@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        rank = draw(st.integers(1, 4))
        shape = (draw(st.integers(1, 40)),)
        if rank > 1:
            shape = (draw(st.integers(1, 3)), *shape, *(draw(st.sampled_from([1, 2, 3])) for _ in range(rank - 2)))
        dtype, soft = draw(st.sampled_from(list(SHORT))), draw(st.sampled_from(["int32", "int64", "soft"]))
        rows = rank - 1
        ranks = {"logits": rank, "dlogits": rank, "targets": rank if soft == "soft" else rows, "weight": 1, "lse": rows}
        return kind("random", shape, dtype, soft, draw(st.sampled_from(["", dtype, "float64" if dtype == "float64" else "float32"])),
                    draw(st.sampled_from([0.0, 0.0, 0.25])), NONE, draw(st.sampled_from(["mean", "sum", "none"])),
                    {name: contract.random_layout(draw, st, n) for name, n in ranks.items()})
    contract.random_problems(request, problems, 8)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    smooth = "--smoothing 0.25 " if op.startswith("cross") else ""
    problem = parse_problem(f"4x30x50 bf16 --weight {smooth}--ignore 3 --reduction none --targets int32".split(), op)
    assert (problem.axis, problem.label_smoothing, problem.ignore_index, problem.rows) == (1, 0.25 if smooth else 0, 3, 200)
    assert problem.weight.shape == (30,) and problem.targets.dtype == "int32"
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"axis": 1})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "--smoothing", "2"], ["4x4", "int8"], ["4x0", "f32"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].ndim >= 0


@pytest.mark.parametrize("op", MSE)
def test_words_and_records_of_mse(op):
    problem = parse_problem("4x30 bf16 --reduction none".split(), op)
    assert (problem.x.shape, problem.reduction, problem.compute) == ((4, 30), "none", "float32")
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for words in (["4x"], ["4x4", "f31"], ["4x4", "int8"], ["4x4", "f32", "--reduction", "all"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)


@pytest.mark.parametrize("op", OPS + MSE)
def test_the_problems_of_the_bench_are_problems(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16")):
        assert dispatch.get_algorithm(op, case.problem).is_deterministic


def test_bytes_are_what_must_move():
    assert parse_problem("8x100 f32".split(), "cross_entropy_fwd").bytes == 3200 + 8 * 8 + 4 + 8 * 4
    assert parse_problem("8x100 bf16".split(), "cross_entropy_bwd").bytes == 2 * 1600 + 8 * 8 + 4 + 8 * 4


# ---- bad input

FWD, BWD = dnnkern.cross_entropy_fwd, dnnkern.cross_entropy_bwd


@pytest.mark.parametrize("how, error, words", [
    ({"reduction": "avg"}, ValueError, ["reduction='avg'", "'mean', 'sum', 'none'"]),
    ({"label_smoothing": 1.5}, ValueError, ["label_smoothing=1.5", "0 to 1"]),
    ({"label_smoothing": -0.1}, ValueError, ["label_smoothing=-0.1"]),
    ({"label_smoothing": float("nan")}, ValueError, ["label_smoothing=nan"]),
    ({"label_smoothing": "0.1"}, TypeError, ["label_smoothing='0.1'", "real number"]),
    ({"label_smoothing": True}, TypeError, ["label_smoothing=True"]),
    ({"ignore_index": 0.5}, TypeError, ["ignore_index=0.5", "integer"]),
    ({"ignore_index": 2 ** 63}, ValueError, ["ignore_index is 9223372036854775808"])])
def test_parameters(how, error, words):
    x, t, row, g = array(np.ones((3, 8))), array(np.ones(3), "int64"), array(np.ones(3)), array(1.0)
    refused(error, words, FWD, x, t, **how)
    refused(error, words, BWD, g, x, t, row, **how)


def test_operands():
    x, t, row, g = array(np.ones((3, 8))), array(np.ones(3), "int64"), array(np.ones(3)), array(1.0)
    refused(TypeError, ["logits: ", "NoneType"], FWD, None, t)
    refused(TypeError, ["targets: ", "NoneType"], FWD, x, None)
    refused(TypeError, ["lse: ", "NoneType"], BWD, g, x, t, None)
    refused(TypeError, ["logits is int32", "bfloat16"], FWD, array(np.ones((3, 8)), "int32"), t)
    refused(TypeError, ["targets is int8", "int32 or int64", "float32 for probabilities"], FWD, x, array(np.ones(3), "int8"))
    refused(TypeError, ["targets is float16", "logits is float32"], FWD, x, array(np.ones((3, 8)), "float16"))
    refused(ValueError, ["targets has shape (4,)", "(3, 8)", "(3,)"], FWD, x, array(np.ones(4), "int64"))
    refused(ValueError, ["targets has shape (3,)", "probabilities"], FWD, x, row)
    refused(ValueError, ["ignore_index=2", "probabilities"], FWD, x, x, ignore_index=2)
    refused(ValueError, ["logits has no dimensions"], FWD, g, array(1, "int64"))
    refused(ValueError, ["9 dimensions"], FWD, array(np.ones((1,) * 9)), array(np.ones((1,) * 8), "int64"))
    refused(ValueError, ["no class along axis 1"], FWD, array(np.ones((3, 0))), t)
    refused(ValueError, ["weight has shape (7,)", "(8,)"], FWD, x, t, weight=array(np.ones(7)))
    refused(TypeError, ["weight is float16", "float32"], FWD, x, t, weight=array(np.ones(8), "float16"))
    refused(TypeError, ["weight is float64", "bfloat16 or float32"], FWD, array(np.ones((3, 8)), "bfloat16"), t,
            weight=array(np.ones(8), "float64"))
    refused(ValueError, ["dloss has shape (3,)", "()"], BWD, row, x, t, row)
    refused(ValueError, ["dloss has shape ()", "(3,)"], BWD, g, x, t, row, reduction="none")
    refused(TypeError, ["dloss is float16", "float32"], BWD, array(1.0, "float16"), x, t, row)
    refused(ValueError, ["lse has shape (2,)", "(3,)"], BWD, g, x, t, array(np.ones(2)))


def test_nll_operands():
    x, t, g = array(np.ones((3, 8))), array(np.ones(3), "int64"), array(1.0)
    refused(TypeError, ["logp: ", "NoneType"], dnnkern.nll_loss_fwd, None, t)
    refused(TypeError, ["targets is float32", "int32 or int64"], dnnkern.nll_loss_fwd, x, x)
    refused(ValueError, ["targets has shape (4,)", "(3,)"], dnnkern.nll_loss_bwd, g, x, array(np.ones(4), "int64"))
    refused(ValueError, ["dloss has shape (3,)"], dnnkern.nll_loss_bwd, array(np.ones(3)), x, t)
    refused(ValueError, ["reduction='all'"], dnnkern.nll_loss_bwd, g, x, t, reduction="all")
    refused(ValueError, ["logp has no dimensions"], dnnkern.nll_loss_fwd, g, t)


def test_mse_operands():
    x, g, fwd, bwd = array(np.ones((3, 8))), array(1.0), dnnkern.mse_loss_fwd, dnnkern.mse_loss_bwd
    refused(TypeError, ["target: ", "NoneType"], fwd, x, None)
    refused(TypeError, ["x is int32", "bfloat16"], fwd, array(np.ones(3), "int32"), array(np.ones(3), "int32"))
    refused(TypeError, ["target is float16", "float32"], fwd, x, array(np.ones((3, 8)), "float16"))
    refused(ValueError, ["target has shape (3, 7)", "(3, 8)"], fwd, x, array(np.ones((3, 7))))
    refused(ValueError, ["9 dimensions"], fwd, array(np.ones((1,) * 9)), array(np.ones((1,) * 9)))
    refused(ValueError, ["reduction='rms'"], fwd, x, x, reduction="rms")
    refused(ValueError, ["dloss has shape ()", "(3, 8)"], bwd, g, x, x, reduction="none")
    refused(ValueError, ["out has shape ()", "(3, 8)"], fwd, x, array(np.ones((3, 8))), reduction="none", out=g)
    refused(ValueError, ["same memory as x"], bwd, g, x, array(np.ones((3, 8))), out=x)


def test_outputs():
    x, t, row, g = array(np.ones((3, 8))), array(np.ones(3), "int64"), array(np.ones(3)), array(1.0)
    refused(ValueError, ["out has 1 arrays", "loss, lse"], FWD, x, t, out=g)
    refused(ValueError, ["out (loss) has shape (3,)", "()"], FWD, x, t, out=(row, array(np.ones(3))))
    refused(TypeError, ["out (lse) is float64", "float32"], FWD, x, t, out=(array(1.0), array(np.ones(3), "float64")))
    refused(ValueError, ["same memory as logits"], BWD, g, x, t, row, out=x)
    shared = labs.guarded(lay((3, 8), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], BWD, g, x, t, row, out=shared)
    refused(NotSupported, ["algo='fast'", "naive"], FWD, x, t, algo="fast")
