"""Softmax: against PyTorch, special values, random problems, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay, numpy_dtype
from cases._softmax import SHORT, softmax
from cases.softmax_bwd import Backward
from cases.softmax_fwd import Forward
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.softmax.rows import softmax_cluster
from dnnkern.softmax._parse import FAMILY, SMALL, parse_problem

OPS = ("softmax_fwd", "softmax_bwd")


def able(op, problem):
    """Algorithms that run it here; in the simulator only with few threads."""
    found = []
    for algorithm in dispatch.algorithms(op):
        if contract.refusal(algorithm, problem) is None:
            bound = algorithm.configured(problem, contract.device())
            launches = bound.build(problem, contract.device(), bound.config)
            if not SIMULATED or sum(k.grid[0] * k.block[0] for k in launches) <= 2600:
                found.append(algorithm)
    return found


# ---- against PyTorch

@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_torch_agrees_in_both_directions(axis, log):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((3, 5, 12)), rng.standard_normal((3, 5, 12))
    t = torch.from_numpy(x).requires_grad_()
    want = (torch.log_softmax if log else torch.softmax)(t, axis)
    want.backward(torch.from_numpy(dy))
    y = dnnkern.softmax_fwd(array(x, "float64"), axis=axis, log=log)
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-13, atol=1e-15)
    dx = dnnkern.softmax_bwd(array(dy, "float64"), y, axis=axis, log=log)
    np.testing.assert_allclose(host(dx), t.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("shape, axis", [((5, 37), 1), ((5, 64), 1), ((2, 1100), 1), ((2, 5, 8), 1), ((1, 4200), 1)])
def test_special_values_are_pytorchs(shape, axis, dtype, log):
    """In every algorithm: rows with -inf, with +inf, with NaN, of nothing but -inf, and of numbers that overflow by themselves."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(8).standard_normal(shape)
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])  # a copy
    kinds = [-np.inf, np.inf, np.nan]
    for k, row in enumerate(rows):
        if k % 5 < 3:
            row[(7 * k + 1) % len(row)] = kinds[k % 5]
        elif k % 5 == 3:
            row[:] = -np.inf
        else:
            row += 20000
    if len(rows) == 1:
        rows[0, ::3] = -np.inf
    x = np.moveaxis(rows.reshape(np.moveaxis(x, axis, -1).shape), -1, axis)
    x = x.astype(numpy_dtype(dtype)).astype(np.float64)
    want = (torch.log_softmax if log else torch.softmax)(torch.from_numpy(x), axis).numpy()
    given = array(x, dtype)
    problem = Forward("special", shape, dtype, axis, log).problem()
    for algorithm in able("softmax_fwd", problem):
        y = host(dnnkern.softmax_fwd(given, axis=axis, log=log, algo=algorithm.name))
        np.testing.assert_allclose(y, want, rtol=1e-2, atol=1e-4, err_msg=str(algorithm))


def test_large_numbers_lose_nothing():
    """Softmax does not change when a number is added to a row: what is subtracted before the exponential is exact."""
    x = np.random.default_rng(1).integers(-16, 17, (3, 256)) / 4
    problem = Forward("shifted", x.shape).problem()
    for algorithm in able("softmax_fwd", problem):
        y = [host(dnnkern.softmax_fwd(array(x + s), algo=algorithm.name)) for s in (0, 2 ** 20)]
        np.testing.assert_array_equal(*y, err_msg=str(algorithm))


def test_the_logarithm_stays_finite():
    x = np.zeros((1, 300))
    x[0, 7] = 1e4
    y = host(dnnkern.softmax_fwd(array(x), log=True))
    assert np.isfinite(y).all() and y.min() == -1e4


# ---- rows of clusters, partly in shared memory

@pytest.mark.parametrize("shape, dtype, log", [((2, 6002), "float32", False), ((1, 6008), "bfloat16", True), ((1, 5003), "float16", False)])
def test_parts_of_rows_of_a_cluster(shape, dtype, log, monkeypatch):
    monkeypatch.setattr(softmax_cluster, "PARTS_BYTES", 0)
    case = Forward("parts", shape, dtype, log=log, around=3.0)
    cluster = next(a for a in dispatch.algorithms("softmax_fwd") if a.name == "cluster")
    found = [v for v in cluster.variants(case.problem(), contract.device()) if v.config.shared and v.config.cluster > 1]
    found = [v for v in found if v.config.lanes * v.config.cluster <= 512]
    assert found
    for variant in found[:3]:
        contract.check(variant, case, again=False, **contract.ONCE)


# ---- random problems

@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    hypothesis = pytest.importorskip("hypothesis")
    st, full = hypothesis.strategies, request.config.getoption("--full")

    @hypothesis.settings(max_examples=400 if full else 20, deadline=None, derandomize=not full, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def check(data):
        draw = data.draw
        rank = draw(st.integers(1, 4))
        shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 8, 24])) for _ in range(rank - 1)) + (draw(st.integers(1, 70)),)
        while np.prod(shape) > 600:
            shape = (*shape[:-2], 1, shape[-1]) if shape[-2] > 1 else (1,) * (rank - 1) + shape[-1:]
        layouts = {}
        for name in ("x", "dy", "y", "dx"):
            layouts[name] = {"gap": draw(st.sampled_from([0, 0, 0, 1, 8])), "misaligned": draw(st.sampled_from([0, 0, 0, 1, 4])),
                             "step": draw(st.sampled_from([1, 1, 1, 2]))}
            if draw(st.booleans()):
                layouts[name]["order"] = tuple(draw(st.permutations(range(rank))))
        case = kind("random", shape, draw(st.sampled_from(list(SHORT))), draw(st.integers(-rank, rank - 1)), draw(st.booleans()), layouts)
        values = case.values("float")
        reference, tolerance = case.reference(values)
        for algorithm in able(case.op, case.problem()):
            run = contract.Run(case, algorithm, values, tight=True)
            run.check_memory()
            run.check_values(reference, tolerance)
    check()


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30x50 bf16 --axis -2 --log".split(), op)
    assert (problem.axis, problem.log, problem.dtype) == (1, True, "bfloat16")
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"axis": 1})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "--axis", "2"], ["4x4", "int8"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size


@pytest.mark.parametrize("op", OPS)
def test_the_problems_of_the_bench_have_an_algorithm(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16")):
        chosen = dispatch.get_algorithm(op, case.problem)
        assert chosen.name != "naive", f"{case}: {chosen}"


def test_bytes_are_what_must_move():
    assert parse_problem("8x100 f32".split(), "softmax_fwd").bytes == 2 * 3200
    assert parse_problem("8x100 bf16".split(), "softmax_bwd").bytes == 3 * 1600


# ---- bad input

def refused(error, words, function, *args, **kwargs):
    """The call raises `error`, whose message is one line that has all the words, and writes nothing."""
    out = labs.guarded(lay((3, 8), kwargs.pop("out_dtype", "float32")))
    kwargs.setdefault("out", out.array)
    with labs.refuses(error, words, function.__name__):
        function(*args, **kwargs)
    labs.synchronize()
    out.assert_untouched("out")


@pytest.mark.parametrize("axis, error, words", [
    (2, ValueError, ["axis=2", "-2 to 1"]), (-3, ValueError, ["axis=-3"]), (1.5, TypeError, ["axis=1.5", "integer"]),
    (None, TypeError, ["axis=None"])])
def test_axes(axis, error, words):
    x = array(np.ones((3, 8)))
    refused(error, words, dnnkern.softmax_fwd, x, axis=axis)
    refused(error, words, dnnkern.softmax_bwd, x, x, axis=axis)


def test_operands():
    x, short, half = array(np.ones((3, 8))), array(np.ones((3, 7))), array(np.ones((3, 8)), "float16")
    refused(TypeError, ["x: ", "NoneType"], dnnkern.softmax_fwd, None)
    refused(TypeError, ["y: ", "NoneType"], dnnkern.softmax_bwd, x, None)
    refused(TypeError, ["x is int32", "bfloat16"], dnnkern.softmax_fwd, array(np.ones((3, 8)), "int32"), out_dtype="int32")
    refused(ValueError, ["y has shape (3, 7)", "(3, 8)"], dnnkern.softmax_bwd, x, short)
    refused(TypeError, ["y is float16", "float32"], dnnkern.softmax_bwd, x, half)
    refused(ValueError, ["x has no dimensions"], dnnkern.softmax_fwd, array(1.0))
    refused(ValueError, ["9 dimensions"], dnnkern.softmax_fwd, array(np.ones((1,) * 9)))
    refused(TypeError, ["log=1"], dnnkern.softmax_fwd, x, log=1)


def test_outputs():
    x = array(np.ones((3, 8)))
    refused(TypeError, ["out is float64", "float32"], dnnkern.softmax_fwd, x, out_dtype="float64")
    refused(ValueError, ["out has shape (3, 7)", "(3, 8)"], dnnkern.softmax_fwd, x, out=array(np.ones((3, 7))))
    refused(ValueError, ["same memory as x"], dnnkern.softmax_fwd, x, out=x)
    refused(ValueError, ["same memory as y"], dnnkern.softmax_bwd, x, (y := array(np.ones((3, 8)))), out=y)
    if SIMULATED:
        whole = array(np.ones((4, 8)))
        refused(ValueError, ["partly overlaps x"], dnnkern.softmax_fwd, whole[:3], out=whole[1:])
    shared = labs.guarded(lay((3, 8), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], dnnkern.softmax_fwd, x, out=shared)


def test_algorithms_that_cannot():
    refused(NotSupported, ["algo='fast'", "naive"], dnnkern.softmax_fwd, array(np.ones((3, 8))), algo="fast")


def test_nothing_to_do():
    assert dnnkern.softmax_fwd(array(np.ones((0, 5)))).shape == (0, 5)
    assert dnnkern.softmax_bwd(array(np.ones((5, 0))), array(np.ones((5, 0)))).shape == (5, 0)


def test_the_reference_sums_to_one():
    x = np.random.default_rng(2).standard_normal((4, 9))
    np.testing.assert_allclose(softmax(x, 1).sum(1), 1, rtol=1e-14)
    np.testing.assert_allclose(np.exp(softmax(x, 1, True)), softmax(x, 1), rtol=1e-14)
