"""Group and instance normalisation: against PyTorch, groups far from 0, words, bad input."""
import dataclasses

import cases
import contract
import numpy as np
import pytest
from labs import array, host
from test_norm import refused

import dnnkern
from dnnkern import dispatch
from dnnkern.norm import group_norm_fwd_slices
from dnnkern.norm._parse import FAMILY, SMALL, parse_problem

OPS = ("group_norm_fwd", "group_norm_bwd")


def able(op, words):
    """Algorithms that run it here."""
    problem = parse_problem(words.split(), op)
    return [a.name for a in dispatch.algorithms(op) if contract.refusal(a, problem) is None]


# ---- against PyTorch

@pytest.mark.parametrize("shape, groups, activation", [((6, 4), 2, "relu"), ((3, 6, 5), 3, "silu"), ((2, 4, 3, 5), 1, "relu"),
                                                       ((2, 8, 2, 3, 2), 4, "gelu")])
def test_torch_agrees_on_groups(shape, groups, activation):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, dy = (rng.standard_normal(shape) for _ in range(2))
    gamma, beta = (rng.standard_normal(shape[1]) for _ in range(2))
    leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, gamma, beta)]
    want = getattr(torch.nn.functional, activation)(torch.nn.functional.group_norm(leaves[0], groups, *leaves[1:], 1e-4))
    want.backward(torch.from_numpy(dy))
    given = [array(v, "float64") for v in (x, gamma, beta)]
    y, mean, rstd = dnnkern.group_norm_fwd(*given, groups, eps=1e-4, activation=activation)
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-11, atol=1e-12)
    got = dnnkern.group_norm_bwd(array(dy, "float64"), *given[:2], mean, rstd, groups, activation=activation, y=y, beta=given[2])
    for one, other in zip(got, leaves):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-10, atol=1e-11)


def test_torch_agrees_on_instances():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    (x, dy), (gamma, beta) = rng.standard_normal((2, 2, 3, 4, 5)), rng.standard_normal((2, 3))
    leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, gamma, beta)]
    want = torch.nn.functional.silu(torch.nn.functional.instance_norm(leaves[0], weight=leaves[1], bias=leaves[2]))
    want.backward(torch.from_numpy(dy))
    given = [array(v, "float64") for v in (x, gamma, beta)]
    y, mean, rstd = dnnkern.instance_norm_fwd(*given, activation="silu")
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-11, atol=1e-12)
    fused = {"activation": "silu", "beta": given[2]}
    for one, other in zip(dnnkern.instance_norm_bwd(array(dy, "float64"), *given[:2], mean, rstd, **fused), leaves):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-10, atol=1e-11)


def test_layouts_agree():
    rng = np.random.default_rng(7)
    x, gamma = rng.standard_normal((2, 6, 4, 5)), rng.standard_normal(6)
    first = dnnkern.group_norm_fwd(array(x, "float64"), array(gamma, "float64"), None, 3)
    last = dnnkern.group_norm_fwd(array(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "float64"), array(gamma, "float64"), None, 3,
                                  layout="NHWC")
    np.testing.assert_allclose(host(first[0]).transpose(0, 2, 3, 1), host(last[0]), rtol=1e-12)
    np.testing.assert_allclose(host(first[2]), host(last[2]), rtol=1e-12)


def test_one_group_is_layer_normalisation():
    x = np.random.default_rng(3).standard_normal((3, 4, 6))
    y, mean, rstd = dnnkern.group_norm_fwd(array(x, "float64"), None, None, 1)
    z, other, _ = dnnkern.layer_norm_fwd(array(x, "float64"), axis=1)
    np.testing.assert_allclose(host(y), host(z), rtol=1e-12)
    np.testing.assert_allclose(host(mean)[:, 0], host(other), atol=1e-14)


@pytest.mark.parametrize("words", ["4x6x8x8 f32 g3", "4x16x8x8 f32 nhwc g2", "4x8x100 f32"])
def test_the_variance_survives_groups_far_from_zero(words):
    """Distances of 1 to a mean of 10000: the squares' own difference would have no correct digit in float32."""
    problem = parse_problem(words.split(), OPS[0])
    x = 10000 + np.where(np.indices(problem.x.shape).sum(0) % 2, -1.0, 1.0)
    for algo in able(OPS[0], words):
        y, mean, rstd = dnnkern.group_norm_fwd(array(x), None, None, problem.groups, eps=0.0, layout=problem.layout, algo=algo)
        np.testing.assert_allclose(host(rstd), 1, rtol=1e-3, err_msg=algo)
        np.testing.assert_allclose(host(y), x - 10000, atol=2e-3, err_msg=algo)


def test_a_group_with_nan_stays_alone():
    x = np.random.default_rng(1).standard_normal((3, 4, 6, 2))
    x[1, 2, 3, 0] = np.nan
    y = host(dnnkern.group_norm_fwd(array(x), None, None, 2)[0])
    assert np.isnan(y[1, 2:]).all() and np.isfinite(y[[0, 2]]).all() and np.isfinite(y[1, :2]).all()


# ---- slices in clusters

@pytest.mark.parametrize("shape, groups, dtype, layout", [
    ((2, 9, 37, 64), 8, "float32", "NHWC"), ((1, 20, 30, 64), 8, "bfloat16", "NHWC"), ((1, 33, 31, 16), 2, "float32", "NHWC"),
    ((1, 2, 60, 130), 2, "float32", "NCHW"), ((1, 2, 72, 220), 2, "float16", "NCHW")])
def test_every_way_to_cut_slices(shape, groups, dtype, layout, monkeypatch):
    """The last block of a cluster has fewer pixels than others; some have none."""
    monkeypatch.setattr(group_norm_fwd_slices, "LEAST_BYTES", 1024)
    case = next(c for c in cases.modules()[OPS[0]].CASES if c.id.startswith("planes"))
    case = dataclasses.replace(case, shape=shape, groups=groups, dtype=dtype, layout=layout, around=3.0, weights="float32")
    slices = next(a for a in dispatch.algorithms(OPS[0]) if a.name == "slices")
    found, tried = slices.variants(case.problem(), contract.device()), set()
    for variant in sorted(found, key=lambda v: v.config.lanes):
        c = variant.config
        kind = (c.columns, c.cluster > 1, c.shared > 0)
        if kind not in tried and c.lanes * c.cluster <= 1024:
            tried.add(kind)
            contract.check(variant, case, again=False, **contract.ONCE)
    assert len(tried) >= 3 and {k[1] for k in tried} == {False, True}


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30x5x6 bf16 nhwc weights=float32 relu g3".split(), op)
    assert problem.x.shape == (4, 5, 6, 30) and problem.gamma.dtype == "float32" and problem.groups == 3 and problem.rstd.shape == (4, 3)
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    assert parse_problem(["4x30x5", "f32"], op).groups == 30
    recomputed = parse_problem("4x30x5 f32 silu".split(), op)
    assert recomputed.activation.mode == "swish" and FAMILY[op][2](dispatch.problem_record(recomputed)) == recomputed
    assert recomputed.beta is not None and (op.endswith("fwd") or recomputed.y is None and problem.y is not None and problem.beta is None)
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"groups": 3})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "g3"], ["4x4", "f32", "running"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).x.size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "bfloat16")):
        assert case.problem.op == op and dispatch.get_algorithm(op, case.problem).name != "naive", case


# ---- bad input

def test_operands():
    x, c, s = array(np.ones((2, 4, 3))), array(np.ones(4)), array(np.ones((2, 2)))
    fwd, bwd = dnnkern.group_norm_fwd, dnnkern.group_norm_bwd
    refused(TypeError, ["x: ", "NoneType"], fwd, None, c, c, 2)
    refused(TypeError, ["mean: ", "NoneType"], bwd, x, x, c, None, s, 2)
    refused(TypeError, ["y: ", "NoneType"], bwd, x, x, c, s, s, 2, activation="relu")
    refused(TypeError, ["beta: ", "NoneType", "gradient of gelu"], bwd, x, x, c, s, s, 2, activation="gelu")
    refused(ValueError, ["beta has shape (2, 2)", "(4,)"], bwd, x, x, c, s, s, 2, activation="gelu", beta=s)
    refused(TypeError, ["x is int32", "bfloat16"], fwd, array(np.ones((2, 4)), "int32"), c, c, 2)
    refused(ValueError, ["gamma has shape (2, 2)", "(4,)", "2 groups"], fwd, x, s, c, 2)
    refused(ValueError, ["mean has shape (4,)", "(2, 2)"], bwd, x, x, c, c, s, 2)
    refused(TypeError, ["rstd is float64", "float32"], bwd, x, x, c, s, array(np.ones((2, 2)), "float64"), 2)
    refused(ValueError, ["dy has shape (2, 4)", "(2, 4, 3)"], bwd, array(np.ones((2, 4))), x, c, s, s, 2)
    refused(ValueError, ["x has shape (4,)"], fwd, c, c, c, 2)
    refused(ValueError, ["(2, 4, 0)", "one value"], fwd, array(np.ones((2, 4, 0))), c, c, 2)


@pytest.mark.parametrize("groups, error, words", [(3, ValueError, ["groups=3", "4 channels"]), (0, ValueError, ["groups is 0"]),
                                                  (2.0, TypeError, ["groups=2.0"]), (None, TypeError, ["groups=None"])])
def test_groups(groups, error, words):
    x, c, s = array(np.ones((2, 4, 3))), array(np.ones(4)), array(np.ones((2, 2)))
    refused(error, words, dnnkern.group_norm_fwd, x, c, c, groups)
    refused(error, words, dnnkern.group_norm_bwd, x, x, c, s, s, groups)


def test_parameters():
    x, c = array(np.ones((2, 4, 3))), array(np.ones(4))
    refused(ValueError, ["layout='NCWH'", "NHWC"], dnnkern.group_norm_fwd, x, c, c, 2, layout="NCWH")
    refused(ValueError, ["activation='gelus'", "relu"], dnnkern.group_norm_fwd, x, c, c, 2, activation="gelus")


def test_instances_have_their_own_name_in_messages():
    x, c, s = array(np.ones((2, 4, 3))), array(np.ones(4)), array(np.ones((2, 4)))
    refused(TypeError, ["x: ", "NoneType"], dnnkern.instance_norm_fwd, None)
    refused(ValueError, ["gamma has shape (2, 4)", "(4,)"], dnnkern.instance_norm_fwd, x, s)
    refused(ValueError, ["rstd has shape (4,)", "(2, 4)"], dnnkern.instance_norm_bwd, x, x, c, s, c)
    refused(ValueError, ["layout='NCWH'"], dnnkern.instance_norm_fwd, x, layout="NCWH")
    refused(TypeError, ["beta: ", "gradient of mish"], dnnkern.instance_norm_bwd, x, x, c, s, s, activation="mish")
    refused(ValueError, ["x has shape (4,)"], dnnkern.instance_norm_fwd, c)


def test_outputs():
    x, c = array(np.ones((2, 4, 3))), array(np.ones(4))
    y, mean, rstd = array(np.zeros((2, 4, 3))), array(np.zeros((2, 2))), array(np.zeros((2, 2)))
    refused(ValueError, ["out has 2 arrays", "y, mean, rstd"], dnnkern.group_norm_fwd, x, c, c, 2, out=(y, mean))
    refused(ValueError, ["mean of out has shape (4,)", "(2, 2)"], dnnkern.group_norm_fwd, x, c, c, 2, out=(y, array(np.zeros(4)), rstd))
    refused(ValueError, ["same memory as x"], dnnkern.group_norm_fwd, x, c, c, 2, out=(x, mean, rstd))
    assert not host(y).any() and not host(mean).any()


def test_sums_over_no_images_are_zero():
    none, c, s = array(np.ones((0, 4, 5))), array(np.ones(4)), array(np.ones((0, 2)))
    dx, dgamma, dbeta = dnnkern.group_norm_bwd(none, none, c, s, s, 2)
    assert dx.shape == (0, 4, 5) and not host(dgamma).any() and not host(dbeta).any()
