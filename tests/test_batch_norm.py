"""Batch normalisation: against PyTorch, channels far from 0, running statistics, words, bad input."""
from dataclasses import replace

import contract
import numpy as np
import pytest
from cases import _group_norm as group
from cases._batch_norm import Backward, Infer, Train
from labs import array, host
from test_norm import refused

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.device.epilogue import Activation
from dnnkern.norm._parse import FAMILY, SMALL, parse_problem
from dnnkern.norm.resident.kernel import Tile

OPS = ("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd")


def able(op, words):
    """Algorithms that run it here."""
    problem = parse_problem(words.split(), op)
    return [a.name for a in dispatch.algorithms(op) if contract.refusal(a, problem) is None]


# ---- against PyTorch

@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 5), (2, 3, 2, 3, 2)])
def test_torch_agrees(shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, dy, residual = (rng.standard_normal(shape) for _ in range(3))
    gamma, beta, running_mean = (rng.standard_normal(shape[1]) for _ in range(3))
    running_var = rng.random(shape[1])
    leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, gamma, beta, residual)]
    t, g, b, r = leaves
    runs = torch.from_numpy(running_mean.copy()), torch.from_numpy(running_var.copy())
    want = torch.relu(torch.nn.functional.batch_norm(t, *runs, g, b, True, 0.3, 1e-4) + r)
    want.backward(torch.from_numpy(dy))
    ours = array(running_mean, "float64"), array(running_var, "float64")
    given = [array(v, "float64") for v in (x, gamma, beta)]
    fused = {"activation": "relu", "residual": array(residual, "float64")}
    y, mean, rstd = dnnkern.batch_norm_train_fwd(*given, *ours, momentum=0.3, eps=1e-4, **fused)
    for one, other in zip((y, *ours), (want.detach(), *runs)):
        np.testing.assert_allclose(host(one), other.numpy(), rtol=1e-11, atol=1e-12)
    got = dnnkern.batch_norm_bwd(array(dy, "float64"), *given[:2], mean, rstd, activation="relu", y=y, residual=True)
    for one, other in zip(got, leaves):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-10, atol=1e-11)
    frozen = torch.relu(torch.nn.functional.batch_norm(t, *runs, g, b, False, 0.3, 1e-4) + r)
    for leaf in leaves:
        leaf.grad = None
    frozen.backward(torch.from_numpy(dy))
    constants = array(runs[0].numpy(), "float64"), array(1 / np.sqrt(runs[1].numpy() + 1e-4), "float64")
    y = array(frozen.detach().numpy(), "float64")
    got = dnnkern.batch_norm_bwd(array(dy, "float64"), *given[:2], *constants, activation="relu", y=y, residual=True, frozen=True)
    for one, other in zip(got, leaves):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-10, atol=1e-11)
    infer = torch.nn.functional.batch_norm(t, *runs, g, b, False, 0.3, 1e-4).detach()
    y = dnnkern.batch_norm_infer(*given, *ours, eps=1e-4)
    np.testing.assert_allclose(host(y), infer.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name, function", [("silu", "silu"), ("gelu", "gelu"), ("tanh", "tanh"), ("bent", "leaky_relu")])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_torch_agrees_on_activations_whose_argument_is_computed_anew(name, function, layout):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    (x, dy), (gamma, beta) = rng.standard_normal((2, 3, 4, 2, 5)), rng.standard_normal((2, 4))
    activation = Activation("leaky_relu", negative_slope=-0.5) if name == "bent" else name
    leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, gamma, beta)]
    more = {"negative_slope": -0.5} if name == "bent" else {}
    torch_function = getattr(torch, function, None) or getattr(torch.nn.functional, function)
    want = torch_function(torch.nn.functional.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.1, 1e-4), **more)
    want.backward(torch.from_numpy(dy))

    def lie(v):
        return array(np.ascontiguousarray(np.moveaxis(v, 1, -1)) if layout == "NHWC" else v, "float64")

    def stand(v):
        return np.moveaxis(host(v), -1, 1) if layout == "NHWC" and v.ndim > 1 else host(v)
    weights = [array(v, "float64") for v in (gamma, beta)]
    for algo in ("naive", "columns" if layout == "NHWC" else "planes"):
        y, mean, rstd = dnnkern.batch_norm_train_fwd(lie(x), *weights, eps=1e-4, layout=layout, activation=activation, algo=algo)
        np.testing.assert_allclose(stand(y), want.detach().numpy(), rtol=1e-11, atol=1e-12)
        got = dnnkern.batch_norm_bwd(lie(dy), lie(x), weights[0], mean, rstd, layout=layout, activation=activation, beta=weights[1],
                                     algo=algo)
        for one, other in zip(got, leaves):
            np.testing.assert_allclose(stand(one), other.grad.numpy(), rtol=1e-10, atol=1e-11)


def test_layouts_agree():
    rng = np.random.default_rng(7)
    x, gamma, beta = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(3), rng.standard_normal(3)
    first = dnnkern.batch_norm_train_fwd(*(array(v, "float64") for v in (x, gamma, beta)))
    last = dnnkern.batch_norm_train_fwd(*(array(v, "float64") for v in (np.ascontiguousarray(x.transpose(0, 2, 3, 1)), gamma, beta)),
                                        layout="NHWC")
    np.testing.assert_allclose(host(first[0]).transpose(0, 2, 3, 1), host(last[0]), rtol=1e-12)
    np.testing.assert_allclose(host(first[2]), host(last[2]), rtol=1e-12)


def test_activations_have_statistics_of_their_own():
    x = np.random.default_rng(8).standard_normal((7, 2, 3))
    y, mean, rstd = dnnkern.batch_norm_train_fwd(array(x, "float64"), None, None, mode="per_activation", eps=0.0)
    np.testing.assert_allclose(host(mean), x.mean(0))
    np.testing.assert_allclose(host(y), (x - x.mean(0)) / x.std(0), rtol=1e-10)


@pytest.mark.parametrize("words", ["4x6x8x8 f32", "4x16x8x8 f32 nhwc"])
def test_the_variance_survives_channels_far_from_zero(words):
    """Distances of 1 to a mean of 10000: the squares' own difference would have no correct digit in float32."""
    problem = parse_problem(words.split(), OPS[0])
    x = 10000 + np.where(np.indices(problem.x.shape).sum(0) % 2, -1.0, 1.0)
    for algo in able(OPS[0], words):
        y, mean, rstd = dnnkern.batch_norm_train_fwd(array(x), None, None, eps=0.0, layout=problem.layout, algo=algo)
        np.testing.assert_allclose(host(rstd), 1, rtol=1e-3, err_msg=algo)
        np.testing.assert_allclose(host(y), x - 10000, atol=2e-3, err_msg=algo)


@pytest.mark.parametrize("words", ["4x6x8x8 f32", "4x16x8x8 f32 nhwc"])
def test_one_value_far_from_the_others_costs_nothing(words):
    """Distances to the first value, or to any other one, lose what distances to the mean keep."""
    problem = parse_problem(words.split(), OPS[0])
    x = np.random.default_rng(2).standard_normal(problem.x.shape)
    x[0, 0, 0] = 3e4
    axes = (0, 2, 3) if problem.layout == "NCHW" else (0, 1, 2)
    for algo in able(OPS[0], words):
        _, _, rstd = dnnkern.batch_norm_train_fwd(array(x), None, None, eps=0.0, layout=problem.layout, algo=algo)
        np.testing.assert_allclose(host(rstd), 1 / x.std(axes), rtol=1e-5, err_msg=algo)


def test_a_channel_with_nan_stays_alone():
    x = np.random.default_rng(1).standard_normal((3, 4, 6, 2))
    x[1, 2, 3, 0] = np.nan
    y = host(dnnkern.batch_norm_train_fwd(array(x), None, None)[0])
    assert np.isnan(y[:, 2]).all() and np.isfinite(y[:, [0, 1, 3]]).all()
    y = host(dnnkern.batch_norm_infer(array(x), None, None, array(np.zeros(4)), array(np.ones(4))))
    assert np.isnan(y).sum() == 1


def test_inference_has_every_activation():
    x, zero, one = array(np.array([[-3.0], [2.0]])), array(np.zeros(1)), array(np.ones(1))
    y = dnnkern.batch_norm_infer(x, one, zero, zero, one, eps=0.0, activation="sigmoid")
    np.testing.assert_allclose(host(y).ravel(), 1 / (1 + np.exp([3.0, -2.0])), rtol=1e-5)
    y = dnnkern.batch_norm_infer(x, one, zero, zero, one, eps=0.0, activation=Activation("relu", upper_clip=1.5))
    assert host(y).ravel().tolist() == [0.0, 1.5]


@pytest.mark.parametrize("op", ["batch_norm_train_fwd", "batch_norm_bwd"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_slabs_take_every_so_many_th_tile(op, pieces, monkeypatch):
    """Few blocks, each with several tiles, the last of them not full."""
    monkeypatch.setattr("dnnkern.norm.columns.slabs_of", lambda tiles, wanted: min(tiles, pieces))
    kind, missing = (Train, ("residual",)) if op.endswith("fwd") else (Backward, ("y", "dresidual"))
    case = kind(f"tiles-{pieces}-f32", (1, 13, 31, 128), layout="NHWC", missing=missing, around=3.0)
    contract.check(next(a for a in dispatch.algorithms(op) if a.name == "columns"), case, again=False, **contract.ONCE)


@pytest.mark.parametrize("op", ["batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd"])
@pytest.mark.parametrize("dtype, pixels", [("float32", 601), ("bfloat16", 1205), ("float16", 519)])
def test_large_planes_are_taken_in_pieces(op, dtype, pixels, monkeypatch):
    """Pieces of planes that begin anywhere, the last of them short."""
    monkeypatch.setattr("dnnkern.norm.planes.LANES", (8,))
    kind, missing = (Backward, ("y",)) if op.endswith("bwd") else (Train if "train" in op else Infer, ())
    case = kind(f"pieces-{pixels}", (2, 3, pixels), dtype, missing=missing, around=3.0)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "planes")
    config = algorithm.configured(case.problem(), contract.device()).config
    assert config.lanes == 8 and pixels > 8 * config.registers * config.layout.elements
    contract.check(algorithm, case, again=False, **contract.ONCE)


def test_random_problems(request):
    """Every algorithm of all operations by channels on random shapes, layouts in memory and missing operands."""
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        kind = draw(st.sampled_from([Train, Infer, Backward, group.Forward, group.Backward]))
        shape = (draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 4, 6, 8, 16, 24])),
                 *(draw(st.integers(1, 9)) for _ in range(draw(st.integers(0, 2)))))
        dtype, layout = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"])), draw(st.sampled_from(["NCHW", "NHWC"]))
        optional = ["gamma", "beta", "running_mean", "running_var", "residual", "dresidual"]
        missing = tuple(n for n in optional if (n in kind.names or n in kind.results) and draw(st.booleans()))
        more = {"activation": draw(st.sampled_from([None, "relu", "leaky_relu", "swish"])), "around": draw(st.sampled_from([0.0, 50.0]))}
        if more["activation"] == "swish":  # which a residual does not go with, and which asks for beta where there is gamma
            missing = tuple({*missing, "residual", "dresidual"} - ({"beta"} if "dy" in kind.names else set()))
        if "dy" in kind.names:
            missing += ("y",) if more["activation"] in (None, "swish") else ()
            missing += ("beta",) if more["activation"] != "swish" else ()
        if issubclass(kind, group.GroupNorm):
            more["groups"] = draw(st.sampled_from([g for g in (1, 2, 3, 4, shape[1]) if shape[1] % g == 0]))
        else:
            more["mode"] = draw(st.sampled_from(["spatial", "spatial", "per_activation"]))
        stored = shape if layout == "NCHW" else (shape[0], *shape[2:], shape[1])
        whole = draw(st.sampled_from([{}, {}, {"gap": 8}, {"gap": 1}, {"misaligned": 1}, {"flip": (0,)}, {"step": 2}]))
        places = {name: whole for name in ("x", "dy", "y", "dx", "residual", "dresidual")}
        if draw(st.booleans()):
            places["x"] = contract.random_layout(draw, st, len(stored))
        return kind("random", stored, dtype, layout, missing=missing, places=places,
                    weights="float32" if dtype.endswith("16") and draw(st.booleans()) else None, **more)
    contract.random_problems(request, problems, 40)


# ---- in parts

PARTS = [("NCHW", None), ("NHWC", "relu"), ("NHWC", "swish"), ("NCHW", "relu")]


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("layout, activation", PARTS)
def test_parts_give_what_the_whole_gives(layout, activation, dtype, tolerance):
    """Two parts of a batch of different sizes, as on two devices: statistics, result, running statistics and all gradients."""
    rng, c, split = np.random.default_rng(2), 8, 2
    shape = (5, c, 3, 4) if layout == "NCHW" else (5, 3, 4, c)
    x, dy = rng.standard_normal(shape) * 3 + 5, rng.standard_normal(shape)
    gamma, beta = (array(rng.standard_normal(c), dtype) for _ in range(2))
    how = {"layout": layout, "activation": activation}

    def running():
        return array(np.arange(c), dtype), array(np.ones(c), dtype)
    whole, moved = running(), running()
    y, mean, rstd = dnnkern.batch_norm_train_fwd(array(x, dtype), gamma, beta, *whole, **how)
    more = {"y": y} if activation == "relu" else {"beta": beta} if activation else {}
    residual = activation != "swish"
    dx, dgamma, dbeta, *dz = dnnkern.batch_norm_bwd(array(dy, dtype), array(x, dtype), gamma, mean, rstd, residual=residual, **how, **more)

    xs, dys = ([array(part, dtype) for part in np.split(v, [split])] for v in (x, dy))
    stats = [dnnkern.batch_norm_stats(part, layout=layout) for part in xs]
    means, rstds = (array(np.stack([host(s[k]) for s in stats]), dtype) for k in (0, 1))
    counts = array(np.array([split * 12, (5 - split) * 12]), "int32")
    merged = dnnkern.batch_norm_merge(means, rstds, counts, *moved)
    ys = [dnnkern.batch_norm_infer(part, gamma, beta, *merged[:2], **how) for part in xs]

    def extra(k):
        return {"y": ys[k]} if activation == "relu" else {"beta": beta} if activation else {}
    sums = [dnnkern.batch_norm_bwd_sums(dys[k], xs[k], gamma, merged[0], merged[2], **how, **extra(k)) for k in (0, 1)]
    total = [array(host(a) + host(b), dtype) for a, b in zip(*sums)]
    parts = [dnnkern.batch_norm_bwd_apply(dys[k], xs[k], gamma, merged[0], merged[2], *total, counts, **how, **extra(k)) for k in (0, 1)]
    for found, expected in ((merged[0], mean), (merged[2], rstd), *zip(moved, whole), *zip(total, (dgamma, dbeta))):
        np.testing.assert_allclose(host(found), host(expected), rtol=tolerance, atol=tolerance)
    for halves, expected in ((ys, y), (parts, dx)):
        np.testing.assert_allclose(np.concatenate([host(h) for h in halves]), host(expected), rtol=tolerance, atol=tolerance)
    if residual:
        both = dnnkern.batch_norm_bwd_apply(dys[0], xs[0], gamma, merged[0], merged[2], *total, counts, residual=True, **how, **extra(0))
        np.testing.assert_array_equal(host(both[0]), host(parts[0]))
        np.testing.assert_allclose(host(both[1]), host(dz[0])[:split], rtol=tolerance)


@pytest.mark.parametrize("op, function", [("batch_norm_train_fwd", "batch_norm_stats"), ("batch_norm_bwd", "batch_norm_bwd_sums")])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_algorithm_gives_parts_alone(op, function, layout):
    rng = np.random.default_rng(6)
    x, dy = (array(rng.standard_normal((4, 8, 4, 8) if layout == "NCHW" else (4, 4, 8, 8)), "float16") for _ in range(2))
    mean, rstd = dnnkern.batch_norm_stats(x, layout=layout, algo="naive")
    given = (x,) if function.endswith("stats") else (dy, x, None, mean, rstd)
    expected, tried = getattr(dnnkern, function)(*given, layout=layout, algo="naive"), 0
    for algorithm in dispatch.algorithms(op):
        try:
            found = getattr(dnnkern, function)(*given, layout=layout, algo=algorithm.name)
        except dispatch.NotSupported:
            continue
        tried += 1
        for one, other in zip(found, expected, strict=True):
            assert str(one.dtype).removeprefix("torch.") == "float32"
            np.testing.assert_allclose(host(one), host(other), rtol=1e-5, atol=1e-5)
    assert tried >= 2


def test_merging_is_pytorchs():
    torch = pytest.importorskip("torch")
    rng, counts = np.random.default_rng(8), [6, 1, 20]
    x = [torch.from_numpy(rng.standard_normal((n, 5))) for n in counts]
    means, rstds = (array(np.stack([f(v) for v in x]), "float64") for f in (
        lambda v: v.mean(0).numpy(), lambda v: (v.var(0, correction=0) + 1e-3).rsqrt().numpy()))
    ours = array(np.zeros(5), "float64"), array(np.ones(5), "float64")
    theirs = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    torch.nn.functional.batch_norm(torch.cat(x), *theirs, training=True, momentum=0.2, eps=1e-3)
    mean, var, rstd = dnnkern.batch_norm_merge(means, rstds, array(np.array(counts), "int64"), *ours, momentum=0.2, eps=1e-3)
    np.testing.assert_allclose(host(var), torch.cat(x).var(0, correction=0).numpy(), rtol=1e-12)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(host(one), other.numpy(), rtol=1e-12)
    none = dnnkern.batch_norm_merge(means, rstds, array(np.zeros(3), "int64"), eps=0.25)
    np.testing.assert_array_equal(np.stack([host(v) for v in none]), np.array([0.0, 0, 2])[:, None] * np.ones(5))


def test_bad_parts():
    x, c, counts = array(np.ones((2, 4, 3))), array(np.ones(4)), array(np.ones(1), "int32")
    merge, rows = dnnkern.batch_norm_merge, array(np.ones((2, 4)))
    refused(TypeError, ["x: got NoneType"], dnnkern.batch_norm_stats, None)
    refused(ValueError, ["means has shape (4,)", "(parts, channels)"], merge, c, c, counts)
    refused(TypeError, ["counts: got NoneType"], merge, rows, rows, None)
    refused(ValueError, ["counts has shape (1,)", "(2,)"], merge, rows, rows, counts)
    refused(ValueError, ["rstds has shape (4,)", "(2, 4)"], merge, rows, c, array(np.ones(2), "int32"))
    refused(TypeError, ["means is float16"], merge, array(np.ones((2, 4)), "float16"), rows, array(np.ones(2), "int32"))
    refused(ValueError, ["running_var has shape (3,)"], merge, rows, rows, array(np.ones(2), "int32"), c, array(np.ones(3)))
    refused(ValueError, ["dgamma has shape (3,)", "(4,)"], dnnkern.batch_norm_bwd_apply, x, x, c, c, c, array(np.ones(3)), c, counts)
    refused(TypeError, ["counts is float16"], dnnkern.batch_norm_bwd_apply, x, x, c, c, c, c, c, array(np.ones(1), "float16"))
    refused(TypeError, ["y: got NoneType"], dnnkern.batch_norm_bwd_sums, x, x, c, c, c, activation="relu")


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30x5x6 bf16 nhwc weights=float32 relu residual".split(), op)
    assert problem.x.shape == (4, 5, 6, 30) and problem.gamma.dtype == "float32" and problem.activation.mode == "relu"
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"mode": "spatial"})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "ncwh"], ["4x4", "f32", "g2"], ["4x4", "int8"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).x.size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "bfloat16")):
        assert case.problem.op == op and dispatch.get_algorithm(op, case.problem).name != "naive", case


def test_found_algorithms_leave_running_statistics_as_they_were():
    """Every candidate is measured and checked on the same statistics."""
    problem = parse_problem("3x8x4 f32 running".split(), OPS[0])
    found = dispatch.find_algorithms(OPS[0], problem, save=False)
    assert [p.algo for p in found if p.status != "ok"] == []


# ---- bad input

def test_operands():
    x, c, n = array(np.ones((2, 3, 4))), array(np.ones(3)), array(np.ones(2))
    train, infer, bwd = dnnkern.batch_norm_train_fwd, dnnkern.batch_norm_infer, dnnkern.batch_norm_bwd
    refused(TypeError, ["x: ", "NoneType"], train, None, c, c)
    refused(TypeError, ["var: ", "NoneType"], infer, x, c, c, c, None)
    refused(TypeError, ["y: ", "NoneType"], bwd, x, x, c, c, c, activation="relu")
    refused(TypeError, ["beta: ", "NoneType", "gradient of swish"], bwd, x, x, c, c, c, activation="swish")
    refused(TypeError, ["beta: ", "NoneType"], bwd, x, x, c, c, c, activation=Activation("leaky_relu", negative_slope=-1), y=x)
    refused(TypeError, ["x is int32", "bfloat16"], train, array(np.ones((2, 3)), "int32"), c, c)
    refused(ValueError, ["gamma has shape (2,)", "(3,)", "NCHW"], train, x, n, c)
    refused(ValueError, ["beta has shape (3,)", "(4,)", "NHWC"], train, x, None, c, layout="NHWC")
    refused(ValueError, ["gamma has shape (3,)", "(3, 4)"], train, x, c, None, mode="per_activation")
    refused(ValueError, ["running_mean has shape (2,)", "(3,)"], train, x, c, c, n)
    refused(TypeError, ["running_var is float64", "float32"], train, x, c, c, c, array(np.ones(3), "float64"))
    refused(TypeError, ["rstd is float64", "float32"], bwd, x, x, c, c, array(np.ones(3), "float64"))
    refused(ValueError, ["dy has shape (2, 3)", "(2, 3, 4)"], bwd, array(np.ones((2, 3))), x, c, c, c)
    refused(ValueError, ["residual has shape (2, 3)"], train, x, c, c, residual=array(np.ones((2, 3))))
    refused(ValueError, ["x has shape (3,)"], train, c, c, c)
    refused(ValueError, ["(1, 1, 1, 1, 1, 1)", "2 to 5 dimensions"], train, array(np.ones((1,) * 6)), None, None)
    refused(ValueError, ["(0, 3, 4)", "one value"], train, array(np.ones((0, 3, 4))), c, c)


def test_parameters():
    x, c = array(np.ones((2, 3, 4))), array(np.ones(3))
    refused(ValueError, ["layout='NCWH'", "NHWC"], dnnkern.batch_norm_train_fwd, x, c, c, layout="NCWH")
    refused(ValueError, ["mode='both'", "per_activation"], dnnkern.batch_norm_infer, x, c, c, c, c, mode="both")
    refused(ValueError, ["'gelu'", "with a residual", "relu"], dnnkern.batch_norm_train_fwd, x, c, c, activation="gelu", residual=x)
    refused(ValueError, ["'gelu'", "with a residual"], dnnkern.batch_norm_bwd, x, x, c, c, c, activation="gelu", beta=c, residual=True)
    refused(ValueError, ["activation='step'"], dnnkern.batch_norm_infer, x, c, c, c, c, activation="step")
    bent = Activation("leaky_relu", negative_slope=-1)
    refused(ValueError, ["negative"], dnnkern.batch_norm_train_fwd, x, c, c, activation=bent, residual=x)
    refused(TypeError, ["activation=3"], dnnkern.batch_norm_train_fwd, x, c, c, activation=3)
    refused(TypeError, ["residual=1", "True or False"], dnnkern.batch_norm_bwd, x, x, c, c, c, residual=1)
    refused(TypeError, ["frozen=1", "True or False"], dnnkern.batch_norm_bwd, x, x, c, c, c, frozen=1)


def test_outputs():
    x, c = array(np.ones((2, 3, 4))), array(np.ones(3))
    y, mean, rstd = array(np.zeros((2, 3, 4))), array(np.zeros(3)), array(np.zeros(3))
    train = dnnkern.batch_norm_train_fwd
    refused(ValueError, ["out has 2 arrays", "y, mean, rstd"], train, x, c, c, out=(y, mean))
    refused(ValueError, ["mean of out has shape (2, 3, 4)", "(3,)"], train, x, c, c, out=(y, array(np.zeros((2, 3, 4))), rstd))
    refused(TypeError, ["y of out is float64"], train, x, c, c, out=(array(np.ones((2, 3, 4)), "float64"), mean, rstd))
    refused(ValueError, ["same memory as x"], train, x, c, c, out=(x, mean, rstd))
    refused(ValueError, ["out has 3 arrays", "dresidual"], dnnkern.batch_norm_bwd, x, x, c, c, c, residual=True, out=(y, mean, rstd))
    assert not host(y).any() and not host(mean).any()


def test_running_statistics_overlap_nothing():
    x, c, d = array(np.ones((2, 3, 4))), array(np.ones(3)), array(np.ones(3))
    train = dnnkern.batch_norm_train_fwd
    refused(ValueError, ["running_mean, which is written", "gamma"], train, x, c, d, c)
    refused(ValueError, ["running_var, which is written", "running_mean"], train, x, d, d, c, c)
    refused(ValueError, ["same memory as running_mean"], train, x, d, d, c, out=(array(np.zeros((2, 3, 4))), c, array(np.zeros(3))))
    both = array(np.ones(5))
    refused(ValueError, ["running_var, which is written", "running_mean"], train, x, d, d, both[:3], both[1:4])
    assert (host(c) == 1).all() and (host(both) == 1).all()
    train(x, c, c, d)  # gamma may be beta
    np.testing.assert_allclose(host(d), 1)


@pytest.mark.skipif(not SIMULATED, reason="NumPy arrays")
def test_running_statistics_can_be_written():
    x, c, fixed = array(np.ones((2, 3, 4))), array(np.ones(3)), np.ones(3, np.float32)
    fixed.setflags(write=False)
    refused(TypeError, ["running_var is a read-only numpy array"], dnnkern.batch_norm_train_fwd, x, c, None, None, fixed)
    once = np.broadcast_to(np.ones(1, np.float32), (3,))
    refused(ValueError, ["running_mean", "share one address"], dnnkern.batch_norm_train_fwd, x, c, None, once)


# ---- values that stay in shared memory

@pytest.mark.parametrize("op, kind", [("batch_norm_train_fwd", Train), ("batch_norm_bwd", Backward)])
@pytest.mark.parametrize("width, group, slots, apart", [(32, 1, 2, 0), (64, 2, 1, 0), (32, 2, 1, 1), (64, 1, 5, 0)])
def test_chunks_that_are_kept_and_chunks_that_come_again(op, kind, width, group, slots, apart):
    """With fewer slots than chunks, in one block, in a cluster, in blocks of a cooperative launch; the last rows fill no chunk."""
    missing = ("y", "beta", "dresidual") if kind is Backward else ("residual",)
    case = kind("chunks", (2, 31, 23, 32 if width == 64 else 16), "float16", "NHWC", weights="float32", missing=missing)
    tile = Tile("float16", width, group, 512, 1 + (kind is Backward), slots, apart)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "resident")
    assert contract.refusal(algorithm, case.problem()) is None
    with contract.registered(replace(algorithm, config=tile)) as mine:
        contract.check(mine, case)
