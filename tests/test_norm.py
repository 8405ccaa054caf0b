"""Layer and RMS normalisation: against PyTorch, rows far from 0, words, bad input."""
import dataclasses

import cases
import contract
import numpy as np
import pytest
from labs import array, host, refused

import dnnkern
from dnnkern import dispatch
from dnnkern.host.tensor import Tensor
from dnnkern.norm._parse import FAMILY, SMALL, parse_problem

OPS = ("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd")


def able(op, problem):
    """Algorithms that run it here."""
    return [a.name for a in dispatch.algorithms(op) if contract.refusal(a, problem) is None]


# ---- against PyTorch

@pytest.mark.parametrize("axis", [1, -1])
def test_torch_agrees_on_layer_norm(axis):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((5, 3, 12)), rng.standard_normal((5, 3, 12))
    gamma, beta = (rng.standard_normal(x.shape[axis:]) for _ in range(2))
    t, g, b = (torch.from_numpy(v).requires_grad_() for v in (x, gamma, beta))
    want = torch.nn.functional.layer_norm(t, x.shape[axis:], g, b, 1e-5)
    want.backward(torch.from_numpy(dy))
    y, mean, rstd = dnnkern.layer_norm_fwd(array(x, "float64"), array(gamma, "float64"), array(beta, "float64"), axis=axis)
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-12, atol=1e-13)
    got = dnnkern.layer_norm_bwd(array(dy, "float64"), array(x, "float64"), array(gamma, "float64"), mean, rstd, axis=axis)
    for one, other in zip(got, (t, g, b)):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("axis", [1, -1])
def test_torch_agrees_on_rms_norm(axis):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((5, 3, 12)), rng.standard_normal((5, 3, 12))
    gamma = rng.standard_normal(x.shape[axis:])
    t, g = (torch.from_numpy(v).requires_grad_() for v in (x, gamma))
    want = t * torch.rsqrt((t * t).mean(tuple(range(axis % 3, 3)), keepdim=True) + 1e-6) * g
    want.backward(torch.from_numpy(dy))
    y, rstd = dnnkern.rms_norm_fwd(array(x, "float64"), array(gamma, "float64"), axis=axis)
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-12, atol=1e-13)
    got = dnnkern.rms_norm_bwd(array(dy, "float64"), array(x, "float64"), array(gamma, "float64"), rstd, axis=axis)
    for one, other in zip(got, (t, g)):
        np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_torch_agrees_on_a_residual_stream(op):
    """y and summed of a pre-norm block both go on; their gradients meet in dx, that of x and of the residual."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    x, residual, dy, dsummed = rng.standard_normal((4, 5, 12))
    gamma = rng.standard_normal(12)
    t, u, g = (torch.from_numpy(v.copy()).requires_grad_() for v in (x, residual, gamma))
    total = t + u
    want = getattr(torch.nn.functional, op)(total, (12,), g, eps=1e-5)
    torch.autograd.backward((want, total), (torch.from_numpy(dy), torch.from_numpy(dsummed)))
    weight = array(gamma, "float64")
    y, *statistics, summed = getattr(dnnkern, op + "_fwd")(array(x, "float64"), weight, eps=1e-5, residual=array(residual, "float64"))
    for algo in ("naive", "block", "split"):
        dx, dgamma, *_ = getattr(dnnkern, op + "_bwd")(array(dy, "float64"), summed, weight, *statistics, dsummed=array(dsummed, "float64"),
                                                       algo=algo)
        for one, other in ((dx, t), (dx, u), (dgamma, g)):
            np.testing.assert_allclose(host(one), other.grad.numpy(), rtol=1e-11, atol=1e-12, err_msg=algo)


def test_the_variance_survives_rows_far_from_zero():
    """Distances of 1 to a mean of 10000: the squares' own difference would have no correct digit in float32."""
    x = 10000 + np.tile([-1.0, 1.0], (3, 64))
    for algo in able("layer_norm_fwd", parse_problem(["3x128", "f32"], "layer_norm_fwd")):
        y, mean, rstd = dnnkern.layer_norm_fwd(array(x), eps=0.0, algo=algo)
        np.testing.assert_allclose(host(rstd), 1, rtol=1e-3, err_msg=algo)
        np.testing.assert_allclose(host(y), x - 10000, atol=2e-3, err_msg=algo)


def test_sums_of_long_rows_lose_no_digits():
    """Squares of 0.3, added one by one in float32, would be off by 2e-4 after 32,768 of them."""
    x = np.tile(np.array([0.3, -0.3], np.float32), (1, 16384))
    for algo in able("layer_norm_fwd", parse_problem(["1x32768", "f32"], "layer_norm_fwd")):
        _, mean, rstd = dnnkern.layer_norm_fwd(array(x), eps=0.0, algo=algo)
        np.testing.assert_allclose(host(rstd), 1 / np.float64(x[0, 0]), rtol=2e-6, err_msg=algo)
        np.testing.assert_allclose(host(mean), 0, atol=1e-7, err_msg=algo)


def test_constant_rows_are_zero():
    y, mean, rstd = dnnkern.layer_norm_fwd(array(np.full((2, 40), 3.0)), eps=1e-5)
    assert not host(y).any() and (host(mean) == 3).all()
    np.testing.assert_allclose(host(rstd), 1e-5 ** -0.5, rtol=1e-6)


def test_a_row_with_nan_stays_alone():
    x = np.random.default_rng(1).standard_normal((3, 20))
    x[1, 7] = np.nan
    for y in (dnnkern.layer_norm_fwd(array(x))[0], dnnkern.rms_norm_fwd(array(x))[0]):
        assert np.isnan(host(y)[1]).all() and np.isfinite(host(y)[[0, 2]]).all()


def test_a_residual_is_added_once_and_rounded():
    """What is normalised is the sum as it is returned, so that the gradients' x is it."""
    rng = np.random.default_rng(2)
    x, residual = array(rng.standard_normal((3, 40)), "bfloat16"), array(rng.standard_normal((3, 40)), "bfloat16")
    for op in ("layer_norm_fwd", "rms_norm_fwd"):
        for algo in able(op, parse_problem("3x40 bf16 --residual".split(), op)):
            *found, summed = getattr(dnnkern, op)(x, residual=residual, algo=algo)
            for one, other in zip(found, getattr(dnnkern, op)(summed, algo=algo)):
                np.testing.assert_array_equal(host(one), host(other), err_msg=algo)
            np.testing.assert_array_equal(host(summed), host(array(host(x) + host(residual), "bfloat16")))


def test_dbeta_of_rms_norm_comes_when_it_is_wanted():
    rng = np.random.default_rng(3)
    x, dy, rstd = array(rng.standard_normal((4, 24))), array(rng.standard_normal((4, 24))), array(rng.random(4) + 1)
    for algo in able("rms_norm_bwd", parse_problem("4x24 f32 --has-beta".split(), "rms_norm_bwd")):
        short, (dx, dgamma, dbeta) = (dnnkern.rms_norm_bwd(dy, x, None, rstd, has_beta=wanted, algo=algo) for wanted in (False, True))
        assert len(short) == 2
        np.testing.assert_array_equal(host(short[0]), host(dx))
        np.testing.assert_array_equal(host(short[1]), host(dgamma))
        np.testing.assert_allclose(host(dbeta), host(dy).sum(0), rtol=1e-5, atol=1e-5)


# ---- what supports says

@pytest.mark.parametrize("capability, shared", [((7, 5), 65536), ((8, 6), 101376), ((8, 0), 166912), ((9, 0), 232448), ((12, 0), 101376)])
def test_the_longest_rows_have_a_configuration(capability, shared):
    device = dataclasses.replace(contract.device(), capability=capability, shared_per_block=shared, shared_per_sm=shared + 1024)
    for op in OPS:
        for algorithm in dispatch.algorithms(op):
            reached = set()
            for dtype in ("float64", "float32", "bfloat16"):
                for length in [n + odd for k in range(3, 19) for n in (2 ** k, 3 * 2 ** k) for odd in (0, -1)]:
                    for weights in (dtype, "float64" if dtype == "float64" else "float32"):
                        words = f"70x{length} {dtype} --weights {weights}"
                        problem = parse_problem(words.split(), op)
                        if algorithm.refusal(problem, device) is None:
                            reached.add(length)
                            for variant in algorithm.variants(problem, device):
                                assert variant.workspace(problem, device, variant.config) >= 0
                            assert algorithm.variants(problem, device), f"{algorithm} has nothing for {words}"
            assert len(reached) > 20 or device.supports(algorithm.arch)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30x50 bf16 --axis 1 --weights float32".split(), op)
    assert problem.axis == 1 and problem.gamma.shape == (30, 50) and problem.gamma.dtype == "float32"
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"axis": 1})
    full = next(text for text in SMALL[op][::-1])
    problem = parse_problem(full.split(), op)
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "--axis", "2"], ["4x4", "int8"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).x.size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16")):
        assert case.problem.op == op and dispatch.get_algorithm(op, case.problem)


# ---- bad input

@pytest.mark.parametrize("axis, error, words", [(2, ValueError, ["axis=2", "-2 to 1"]), (1.5, TypeError, ["axis=1.5", "integer"])])
def test_axes(axis, error, words):
    x, row, one = array(np.ones((3, 8))), array(np.ones(8)), array(np.ones(3))
    refused(error, words, dnnkern.layer_norm_fwd, x, axis=axis)
    refused(error, words, dnnkern.rms_norm_bwd, x, x, row, one, axis=axis)


def test_operands():
    x, row, one = array(np.ones((3, 8))), array(np.ones(8)), array(np.ones(3))
    refused(TypeError, ["x: ", "NoneType"], dnnkern.layer_norm_fwd, None)
    refused(TypeError, ["mean: ", "NoneType"], dnnkern.layer_norm_bwd, x, x, row, None, one)
    refused(TypeError, ["x is int32", "bfloat16"], dnnkern.rms_norm_fwd, array(np.ones((3, 8)), "int32"))
    refused(ValueError, ["gamma has shape (3,)", "(8,)"], dnnkern.layer_norm_fwd, x, one)
    refused(ValueError, ["beta has shape (3, 8)", "(8,)"], dnnkern.rms_norm_fwd, x, row, x)
    refused(TypeError, ["gamma is float64", "float32"], dnnkern.layer_norm_fwd, x, array(np.ones(8), "float64"))
    refused(TypeError, ["rstd is float64", "float32"], dnnkern.rms_norm_bwd, x, x, row, array(np.ones(3), "float64"))
    refused(ValueError, ["dy has shape (3, 7)", "(3, 8)"], dnnkern.layer_norm_bwd, array(np.ones((3, 7))), x, row, one, one)
    refused(ValueError, ["no dimensions"], dnnkern.layer_norm_fwd, array(1.0))
    refused(ValueError, ["residual has shape (8,)", "(3, 8)"], dnnkern.layer_norm_fwd, x, residual=row)
    refused(TypeError, ["residual is float16", "float32"], dnnkern.rms_norm_fwd, x, residual=array(np.ones((3, 8)), "float16"))
    refused(ValueError, ["dsummed has shape (8,)", "(3, 8)"], dnnkern.layer_norm_bwd, x, x, row, one, one, dsummed=row)
    refused(TypeError, ["dsummed is float16", "float32"], dnnkern.rms_norm_bwd, x, x, row, one, dsummed=array(np.ones((3, 8)), "float16"))
    refused(TypeError, ["has_beta=1", "True or False"], dnnkern.rms_norm_bwd, x, x, row, one, has_beta=1)
    refused(ValueError, ["(3, 0)", "one element"], dnnkern.layer_norm_fwd, array(np.ones((3, 0))))


def test_outputs():
    x, one = array(np.ones((3, 8))), array(np.ones(3))
    refused(ValueError, ["out has 2 arrays", "y, mean, rstd"], dnnkern.layer_norm_fwd, x, out=(array(np.ones((3, 8))), one))
    refused(ValueError, ["mean of out has shape (8,)", "(3,)"], dnnkern.layer_norm_fwd, x,
            out=(array(np.ones((3, 8))), array(np.ones(8)), one))
    refused(TypeError, ["y of out is float64"], dnnkern.rms_norm_fwd, x, out=(array(np.ones((3, 8)), "float64"), one))
    refused(ValueError, ["out has 3 arrays", "y, mean, rstd, summed"], dnnkern.layer_norm_fwd, x, residual=x,
            out=(array(np.ones((3, 8))), one, one))
    refused(ValueError, ["same memory as x"], dnnkern.rms_norm_fwd, x, out=(x, one))


def test_sums_over_no_rows_are_zero():
    none, row = array(np.ones((0, 5))), array(np.ones(5))
    dx, dgamma, dbeta = dnnkern.layer_norm_bwd(none, none, row, array(np.ones(0)), array(np.ones(0)))
    assert dx.shape == (0, 5) and not host(dgamma).any() and not host(dbeta).any()


# ---- backward: many steps of few blocks

@pytest.mark.parametrize("op", ["layer_norm_bwd", "rms_norm_bwd"])
@pytest.mark.parametrize("shape, dtype, extra", [((13, 72), "bfloat16", True), ((9, 136), "float32", False), ((9, 37), "float16", False)])
@pytest.mark.parametrize("dsummed", [False, True])
def test_rings_go_round(op, shape, dtype, extra, dsummed, monkeypatch):
    """With two blocks a row of partial sums is many rows' own; else every row of a small problem has a group of threads to itself."""
    from dnnkern.norm.block import backward as _backward
    monkeypatch.setattr(_backward, "groups", lambda problem, device, config: (2, max(1, config.threads // config.lanes)))
    case = dataclasses.replace(next(c for c in cases.modules()[op].CASES if c.id.startswith("rows")), shape=shape, dtype=dtype,
                               extra=extra and op.startswith("rms"), dsummed=dsummed)
    problem = case.problem()
    tried = set()
    for name in sorted(set(able(op, problem)) - {"naive"}):
        variants = next(a for a in dispatch.algorithms(op) if a.name == name).variants(problem, contract.device())
        for variant in variants:
            if variant.config is None:
                continue
            kind = (name, variant.config.rows, variant.config.kept) if name == "block" else name
            if kind not in tried and variant.config.lanes * variant.config.cluster <= 512:
                tried.add(kind)
                contract.check(variant, case, again=False, **contract.ONCE)


# ---- rows partly in shared memory

@pytest.mark.parametrize("op, shape, dtype", [("layer_norm_fwd", (2, 2500), "float32"), ("layer_norm_fwd", (3, 4611), "bfloat16"),
                                              ("rms_norm_fwd", (2, 5003), "float16")])
def test_a_part_in_shared_memory(op, shape, dtype):
    case = next(c for c in cases.modules()[op].CASES if c.id.startswith("rows"))
    case = dataclasses.replace(case, shape=shape, dtype=dtype, extra=False, around=3.0)
    cluster = next(a for a in dispatch.algorithms(op) if a.name == "cluster")
    found = [v for v in cluster.variants(case.problem(), contract.device()) if v.config.shared and v.config.lanes <= 128]
    assert {v.config.lanes for v in found} >= {64}
    for variant in found:
        contract.check(variant, case, again=False, **contract.ONCE)


# ---- rows in pieces

@pytest.mark.parametrize("shape, dtype, extra", [((2, 5000), "float32", False), ((1, 20011), "bfloat16", True),
                                                 ((2, 1600), "float64", True)])
@pytest.mark.parametrize("op", OPS)
def test_pieces_of_rows(op, shape, dtype, extra):
    """The last piece is not full, and has no elements at all for some threads."""
    case = next(c for c in cases.modules()[op].CASES if c.id.startswith("rows"))
    if op.endswith("bwd"):  # columns that have their threads are elements where rows are odd: a few make a piece
        shape = (shape[0], shape[1] // (16 if shape[1] % 2 else 2))
    case = dataclasses.replace(case, shape=shape, dtype=dtype, extra=extra and bool(case.optional), around=3.0)
    for algorithm in dispatch.algorithms(op):
        if algorithm.name == "split":
            contract.check(algorithm, case, again=False, **contract.ONCE)


@pytest.mark.parametrize("op", ["layer_norm_bwd", "rms_norm_bwd"])
def test_ranges_of_rows(op, monkeypatch):
    """Strips of columns over several rows each, the last range with fewer."""
    from dnnkern.norm.split import backward as _split_backward
    monkeypatch.setattr(_split_backward, "plan", lambda problem, device: (2, 512, 2, 2, 3))
    case = next(c for c in cases.modules()[op].CASES if c.id.startswith("rows"))
    case = dataclasses.replace(case, shape=(5, 2600), dtype="float32", weights=None)
    contract.check(next(a for a in dispatch.algorithms(op) if a.name == "split"), case, again=False, **contract.ONCE)


# ---- programs

def _problem(program, *extras, shape=(4, 24)):
    from dnnkern.norm import RmsNormProblem
    x, statistic = Tensor.packed(shape, "float32"), Tensor.packed(shape[:1], "float32")
    return RmsNormProblem(x, None, None, x, statistic, 1, program=program, extras=extras)


def _added(dtype="float32", access="matrix", **more):
    from dnnkern.device.pointwise import Function
    from dnnkern.device.program import Program, Step
    return Program(((dtype, access),), (Step(Function.of("add"), (0, 1)),), **more)


@pytest.mark.parametrize("program, extras, error, message", [
    (None, [(4, 24)], ValueError, "rms_norm_fwd: 1 extras without a program"),
    ("gelu", [], TypeError, "rms_norm_fwd: program: got str; expected a Program"),
    (_added(), [], ValueError, "rms_norm_fwd: 0 extras; the program has 1 operands"),
    (_added("float16"), [(4, 24)], TypeError, "rms_norm_fwd: x0 is float32; the program has float16"),
    (_added(), [(4, 23)], ValueError, r"rms_norm_fwd: x0 has shape \(4, 23\), which does not broadcast to the result's \(4, 24\)"),
    (_added(access="row"), [(1, 24)], ValueError, "rms_norm_fwd: x0 is read by row, and varies along columns"),
    (_added(access="column"), [(4, 24)], ValueError, "rms_norm_fwd: x0 is read by column, and varies along rows")])
def test_programs_that_are_refused(program, extras, error, message):
    with pytest.raises(error, match=message):
        _problem(program, *(Tensor.packed(shape, "float32") for shape in extras))


def test_which_algorithms_run_programs():
    """Operands that step evenly through the elements of a row, or `naive`; `block` and `ring` move them along the dimensions of rows."""
    device, program = contract.device(), _added()
    even = _problem(program, Tensor.packed((4, 24), "float32"))
    assert {a.name for a in dispatch.algorithms("rms_norm_fwd") if dispatch.refusal(a, even, device) is None} >= {"naive", "block", "ring"}
    odd = dataclasses.replace(even, x=(x := Tensor.packed((2, 2, 24), "float32")), y=x, rstd=Tensor.packed((2, 2), "float32"), axis=2,
                              extras=(Tensor((2, 2, 24), (24, 48, 1), "float32"),))
    for name in ("naive", "block", "ring"):
        assert dispatch.refusal(dispatch.named("rms_norm_fwd", name), odd, device) is None
    apart = dataclasses.replace(even, x=(x := Tensor.packed((4, 3, 8), "float32")), y=x, rstd=Tensor.packed((4,), "float32"),
                                extras=(Tensor((4, 3, 8), (24, 1, 3), "float32"),))
    assert "rows are 2 dimensions" in dispatch.refusal(dispatch.named("rms_norm_fwd", "block"), apart, device)
    assert dispatch.refusal(dispatch.named("rms_norm_fwd", "naive"), apart, device) is None
