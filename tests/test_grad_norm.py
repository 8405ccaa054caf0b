"""The norm of gradients and clipping: against PyTorch, what is not finite, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._grad_norm import Norm
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.optim._parse import FAMILY, SMALL, parse_problem

OPS = ("grad_norm", "clip_grad_norm")
ALGORITHMS = ("naive", "chunks")
SHAPES = ((3, 5), (4100,), (40,))


def gradients(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [array(rng.standard_normal(shape), dtype) for shape in SHAPES]


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("most", [0.5, 1e3])
def test_it_is_pytorchs(algo, most):
    torch = pytest.importorskip("torch")
    grads = gradients("float64")
    parameters = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]
    for p, g in zip(parameters, grads):
        p.grad = torch.from_numpy(host(g))
    norm = dnnkern.grad_norm(grads, algo=algo)
    want = torch.nn.utils.clip_grad_norm_(parameters, most)
    clipped = dnnkern.clip_grad_norm(grads, most, algo=algo)
    np.testing.assert_allclose([host(norm), host(clipped)], float(want), rtol=1e-12)
    for p, g in zip(parameters, grads):
        np.testing.assert_allclose(host(g), p.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("bad, norm", [(np.inf, np.inf), (-np.inf, np.inf), (np.nan, np.nan)])
def test_what_is_not_finite_is_found(bad, norm, dtype, algo):
    """Wherever it is: in a whole chunk, in the last elements, in the smallest array."""
    found = array([5.0])
    for which, where in ((1, 17), (1, 4099), (0, 3)):
        grads = gradients(dtype)
        values = host(grads[which])
        values.reshape(-1)[where] = bad
        grads[which] = array(values, dtype)
        np.testing.assert_array_equal(host(dnnkern.grad_norm(grads, found_inf=found, algo=algo)), norm)
        assert host(found)[0] == 1
        dnnkern.clip_grad_norm(grads, 1.0, found_inf=found, algo=algo)
        assert host(found)[0] == 1
        rest = np.concatenate([np.delete(host(g).reshape(-1), where if k == which else []) for k, g in enumerate(grads)])
        assert np.isnan(rest).all() if np.isnan(norm) else not rest.any()
        assert np.isnan(host(grads[which]).reshape(-1)[where])
    dnnkern.grad_norm(gradients(dtype), found_inf=found, algo=algo)
    assert host(found)[0] == 0


def test_squares_that_overflow_are_not_infinite_gradients():
    found = array([5.0])
    for algo in ALGORITHMS:
        assert host(dnnkern.grad_norm([array(np.full(9, 1e30))], found_inf=found, algo=algo)) == np.inf
        assert host(found)[0] == 0


def test_an_infinite_bound_only_divides_by_the_scale():
    for algo in ALGORITHMS:
        grads = gradients()
        before = [host(g) for g in grads]
        dnnkern.clip_grad_norm(grads, float("inf"), grad_scale=array([8.0]), algo=algo)
        for g, b in zip(grads, before):
            np.testing.assert_array_equal(host(g), b / 8)


def test_with_a_step():
    """As training has it: scaled gradients are looked at, then a step divides them, or does nothing."""
    found, scale = array([0.0]), array([1024.0])
    params, grads = [array(np.ones(9)), array(np.ones(5))], [array(np.full(9, 512.0)), array(np.full(5, 256.0))]
    dnnkern.grad_norm(grads, grad_scale=scale, found_inf=found)
    dnnkern.sgd_step(params, grads, lr=1.0, grad_scale=scale, found_inf=found)
    np.testing.assert_array_equal(host(params[0]), 0.5)
    grads[1] = array([1, 2, np.inf, 3, 4])
    dnnkern.grad_norm(grads, grad_scale=scale, found_inf=found)
    dnnkern.sgd_step(params, grads, lr=1.0, grad_scale=scale, found_inf=found)
    np.testing.assert_array_equal(host(params[0]), 0.5)


@pytest.mark.parametrize("op", OPS)
def test_random_problems(op, request):
    def problems(draw):
        from hypothesis import strategies as st
        count = draw(st.integers(1, 4))
        shapes = tuple(tuple(draw(st.sampled_from([1, 2, 3, 8])) for _ in range(draw(st.integers(0, 2)))) + (draw(st.integers(0, 70)),)
                       for _ in range(count))
        dtypes = tuple(draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"])) for _ in range(count))
        layout = {f"grads{k}": contract.random_layout(draw, st, len(shape)) for k, shape in enumerate(shapes) if draw(st.booleans())}
        return Norm("random", op, shapes, dtypes, draw(st.sampled_from([0.5, 100.0])), draw(st.sampled_from([None, 4.0])),
                    draw(st.booleans()), layout)
    contract.random_problems(request, problems, 25)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("64x3x7x7,5,2*6x4 bf16 --scaled".split(), op)
    assert [g.shape for g in problem.grads] == [(64, 3, 7, 7), (5,), (6, 4), (6, 4)] and problem.found_inf is not None
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    assert parse_problem("8x100 f32".split(), op).bytes == 3200 * (3 if op.startswith("clip") else 1)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).bytes


@pytest.mark.parametrize("op", OPS)
def test_the_problems_of_the_bench_have_an_algorithm(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "bfloat16")):
        assert dispatch.get_algorithm(op, case.problem).name == "chunks", case


# ---- bad input

def refused(error, words, function, grads, *args, **kwargs):
    """The call raises `error`, whose message is one line that has all the words, and writes nothing."""
    out, before = labs.guarded(lay((), "float32")), [host(g) for g in grads] if isinstance(grads, list) else []
    with labs.refuses(error, words, function.__name__):
        function(grads, *args, **{"out": out.array, **kwargs})
    labs.synchronize()
    out.assert_untouched("out")
    for g, b in zip(grads, before):
        np.testing.assert_array_equal(host(g), b)


def test_lists():
    for function, more in ((dnnkern.grad_norm, ()), (dnnkern.clip_grad_norm, (1.0,))):
        refused(ValueError, ["grads is empty"], function, [], *more)
        refused(TypeError, ["grads is a ", "expected a list"], function, array(np.ones(3)), *more)
        refused(TypeError, ["grads[1] is int32", "bfloat16"], function, [array(np.ones(3)), array(np.ones(3), "int32")], *more)
        with pytest.raises(TypeError, match=r"grads\[0\]: got NoneType"):
            function([None], *more)
        refused(ValueError, ["grad_scale is float32[2]", "one float32 number"], function, [array(np.ones(3))], *more,
                grad_scale=array(np.ones(2)))
        refused(TypeError, ["found_inf is float64"], function, [array(np.ones(3))], *more, found_inf=array(np.ones(1), "float64"))
        refused(NotSupported, ["'chunks'", "grads[0] has gaps"], function, [array(np.ones((3, 4)), step=2)], *more, algo="chunks")
        refused(NotSupported, ["'chunks'", "no array has elements"], function, [array(np.ones((3, 0)))], *more, algo="chunks")
    with pytest.raises(TypeError, match="grad_norm: out is float32.*; expected one float64 number"):
        dnnkern.grad_norm([array(np.ones(3), "float64")], out=array(np.ones(1)))


def test_memory_that_is_shared():
    g = array(np.ones(8))
    assert host(dnnkern.grad_norm([g, g])) == 4
    refused(ValueError, ["grads[1], which is written, is the same memory as grads[0]"], dnnkern.clip_grad_norm, [g, g], 1.0)
    shared = labs.guarded(lay((3, 8), "float32", expand=(0,))).array
    with pytest.raises(ValueError, match="share one address"):
        dnnkern.clip_grad_norm([shared], 1.0)
    if SIMULATED:
        with pytest.raises(ValueError, match=r"out, which is written, overlaps grads\[0\]"):
            dnnkern.grad_norm([g], out=g[3:4])


@pytest.mark.parametrize("most, error", [(-1, ValueError), (float("nan"), ValueError), ("much", TypeError), (None, TypeError)])
def test_bounds(most, error):
    refused(error, ["max_norm="], dnnkern.clip_grad_norm, gradients(), most)
